/* A VMM that makes VMs and vCPUs by the thousand. Its guests execute CPUID, each leaf once, then write to a port:
 * how many exits of which leaf that makes is known beforehand.
 *
 *   crowd leaves N      one vCPU, the leaves 0 to N - 1
 *   crowd vcpus VMS N   VMS VMs of N vCPUs each, a thread for each; all are there at the same time; ten leaves each
 *   crowd churn N       N processes, one after the other, each with a VM; ten leaves each
 *   crowd pulse N MS    one vCPU, ten leaves, N times; so many milliseconds apart
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Real mode. esi: the next leaf; edi: the one to stop at. */
static const unsigned char code[] = {
    0x66, 0x89, 0xf0, /* again: mov eax, esi */
    0x66, 0x31, 0xc9, /*        xor ecx, ecx */
    0x0f, 0xa2,       /*        cpuid */
    0x66, 0x46,       /*        inc esi */
    0x66, 0x39, 0xfe, /*        cmp esi, edi */
    0x75, 0xf1,       /*        jne again */
    0xe6, 0x10,       /*        out 0x10, al */
};

static int kvm;
static pthread_barrier_t all_made, all_ran;

static int must(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static int machine(void) {
    int vm = must(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
    void *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvm_userspace_memory_region region = {
        .guest_phys_addr = 0x1000, .memory_size = 4096, .userspace_addr = (unsigned long)memory};
    memcpy(memory, code, sizeof(code));
    must(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
    return vm;
}

struct vcpu {
    int fd;
    struct kvm_run *run;
};

static struct vcpu processor(int vm, int number) {
    static int size;
    struct kvm_sregs special;
    struct vcpu vcpu = {.fd = must(ioctl(vm, KVM_CREATE_VCPU, number), "KVM_CREATE_VCPU")};
    if (!size)
        size = must(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
    vcpu.run = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu.fd, 0);
    must(ioctl(vcpu.fd, KVM_GET_SREGS, &special), "KVM_GET_SREGS");
    special.cs.base = 0x1000;
    special.cs.selector = 0x100;
    must(ioctl(vcpu.fd, KVM_SET_SREGS, &special), "KVM_SET_SREGS");
    return vcpu;
}

static void leaves(struct vcpu vcpu, unsigned count) {
    struct kvm_regs registers = {.rflags = 2, .rsi = 0, .rdi = count};
    must(ioctl(vcpu.fd, KVM_SET_REGS, &registers), "KVM_SET_REGS");
    must(ioctl(vcpu.fd, KVM_RUN, 0), "KVM_RUN");
    if (vcpu.run->exit_reason != KVM_EXIT_IO) {
        fprintf(stderr, "exit reason %u\n", vcpu.run->exit_reason);
        exit(1);
    }
}

static void *one_of_many(void *argument) {
    struct vcpu *vcpu = argument;
    pthread_barrier_wait(&all_made);
    leaves(*vcpu, 10);
    pthread_barrier_wait(&all_ran);
    return 0;
}

static void many(int machines, int processors) {
    pthread_attr_t small;
    pthread_t thread;
    struct vcpu *vcpus = calloc(machines * processors, sizeof(*vcpus));
    pthread_barrier_init(&all_made, 0, machines * processors + 1);
    pthread_barrier_init(&all_ran, 0, machines * processors + 1);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (int m = 0; m < machines; m++) {
        int vm = machine();
        for (int p = 0; p < processors; p++) {
            struct vcpu *vcpu = &vcpus[m * processors + p];
            *vcpu = processor(vm, p);
            if (pthread_create(&thread, &small, one_of_many, vcpu)) {
                fprintf(stderr, "no thread for %d of %d\n", p, m);
                exit(1);
            }
        }
    }
    pthread_barrier_wait(&all_made);
    pthread_barrier_wait(&all_ran);
}

int main(int count, char **words) {
    const char *what = count > 2 ? words[1] : "";
    int number = count > 2 ? atoi(words[2]) : 0, other = count > 3 ? atoi(words[3]) : 0;
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    kvm = must(open("/dev/kvm", O_RDWR), "/dev/kvm");
    if (!strcmp(what, "leaves")) {
        leaves(processor(machine(), 0), number);
    } else if (!strcmp(what, "vcpus")) {
        many(number, other);
    } else if (!strcmp(what, "churn")) {
        for (int i = 0; i < number; i++) {
            pid_t child = fork();
            if (!child) {
                leaves(processor(machine(), 0), 10);
                _exit(0);
            }
            int status = 1;
            must(waitpid(child, &status, 0), "waitpid");
            if (status)
                return 1;
        }
    } else if (!strcmp(what, "pulse")) {
        struct vcpu vcpu = processor(machine(), 0);
        for (int i = 0; i < number; i++) {
            leaves(vcpu, 10);
            usleep(1000 * other);
        }
    } else {
        return 2;
    }
    return 0;
}
