/*
 * tinyvmm FIRMWARE [VCPUS]: runs a 64 KiB firmware image (payload.S) in a KVM virtual machine, until it writes port 0xf4.
 *
 * For hosts where QEMU is too slow or too big. Leaves out every device: a port or an address that nobody answers reads as
 * ones. Prints the number of returns to user space by kind at the end, one line a vCPU.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { RAM = 0x80000, ROM = 0x10000, CPUIDS = 100, MOST_VCPUS = 4 };

static int kvm, vm, ended;
static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t end_signal = PTHREAD_COND_INITIALIZER;
static struct { unsigned io, mmio, other; } returns[MOST_VCPUS];

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void slot(unsigned number, unsigned long guest, void *memory, unsigned long size)
{
	struct kvm_userspace_memory_region region = { number, 0, guest, size, (unsigned long)memory };
	need(!ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
}

static _Noreturn void end(void)
{
	pthread_mutex_lock(&end_lock);
	ended = 1;
	pthread_cond_signal(&end_signal);
	pthread_mutex_unlock(&end_lock);
	for (;;)
		pause();
}

static void *vcpu(void *argument)
{
	long id = (long)argument;
	char name[16];
	snprintf(name, sizeof name, "CPU %ld/KVM", id);
	prctl(PR_SET_NAME, name);
	int fd = ioctl(vm, KVM_CREATE_VCPU, id);
	need(fd >= 0, "KVM_CREATE_VCPU");
	struct { struct kvm_cpuid2 head; struct kvm_cpuid_entry2 entries[CPUIDS]; } cpuid = { .head.nent = CPUIDS };
	need(!ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &cpuid), "KVM_GET_SUPPORTED_CPUID");
	need(!ioctl(fd, KVM_SET_CPUID2, &cpuid), "KVM_SET_CPUID2");
	int size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_run *run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	need(run != MAP_FAILED, "mmap of kvm_run");
	for (;;) {
		if (ioctl(fd, KVM_RUN, 0) < 0) {
			if (errno == EAGAIN || errno == EINTR)	/* EAGAIN: a vCPU that was just started */
				continue;
			perror("KVM_RUN");
			end();
		}
		switch (run->exit_reason) {
		case KVM_EXIT_IO:
			returns[id].io++;
			if (run->io.port == 0xf4)
				end();
			if (run->io.direction == KVM_EXIT_IO_IN)
				memset((char *)run + run->io.data_offset, 0xff, run->io.size * run->io.count);
			break;
		case KVM_EXIT_MMIO:
			returns[id].mmio++;
			if (!run->mmio.is_write)
				memset(run->mmio.data, 0xff, sizeof run->mmio.data);
			break;
		default:
			returns[id].other++;
			fprintf(stderr, "vcpu %ld: exit to user space %u, hardware reason %llx\n", id, run->exit_reason,
				(unsigned long long)run->hw.hardware_exit_reason);
			end();
		}
	}
}

int main(int count, char **arguments)
{
	long vcpus = count > 2 ? atol(arguments[2]) : 1;
	pthread_t thread;

	if (count < 2 || vcpus < 1 || vcpus > MOST_VCPUS) {
		fprintf(stderr, "usage: tinyvmm FIRMWARE [VCPUS]\n");
		return 2;
	}
	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	need(kvm >= 0, "/dev/kvm");
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	need(vm >= 0, "KVM_CREATE_VM");
	need(!ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000ul), "KVM_SET_TSS_ADDR");
	need(!ioctl(vm, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
	char *memory = mmap(NULL, RAM + ROM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	need(memory != MAP_FAILED, "mmap");
	int file = open(arguments[1], O_RDONLY);
	need(file >= 0 && read(file, memory + RAM, ROM) == ROM, arguments[1]);
	slot(0, 0, memory, RAM);
	slot(1, 0xf0000, memory + RAM, ROM);
	slot(2, 0xffff0000, memory + RAM, ROM);
	for (long id = 0; id < vcpus; id++)
		need(!pthread_create(&thread, NULL, vcpu, (void *)id), "pthread_create");
	pthread_mutex_lock(&end_lock);
	while (!ended)
		pthread_cond_wait(&end_signal, &end_lock);
	pthread_mutex_unlock(&end_lock);
	for (long id = 0; id < vcpus; id++)
		printf("vcpu %ld: returns to user space: %u io, %u mmio, %u other\n", id, returns[id].io, returns[id].mmio, returns[id].other);
	return 0;
}
