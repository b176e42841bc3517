// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Times the calls by which a VMM creates and destroys VMs: requests of /dev/kvm, of VMs and of vCPUs, and the release of their
// files. Of KVM_RUN only the first of each vCPU is timed.
//
//	kvm_vm_ioctl, ... ──> calls[tid]   sched_switch ──> time off the CPU, and where   return ──> ring
//
// Probes on functions of the module and no fentry, for which CAP_SYS_ADMIN is needed.

#include "kernel.bpf.h"

#define FRAMES 24

// Offsets, from the kernel's BTF, and whether only the processes in `wanted` are recorded.
struct start_config {
	u32 file_private;
	u32 vcpu_kvm;
	u32 task_pid;
	u32 filtered;
};
const volatile struct start_config config SEC(".rodata");

// The file that is called.
enum file {
	DEVICE = 0,
	VM = 1,
	VCPU = 2,
};

// Linux include/uapi/linux/kvm.h: the number of a request is its lowest byte.
#define KVMIO 0xae
#define SET_MEMORY 0x46
#define SET_MEMORY2 0x49
#define IRQFD 0x76
#define IOEVENTFD 0x79
#define RUN 0x80
// What devices of a running VM call all the time: KVM_IRQ_LINE, KVM_IRQ_LINE_STATUS (whole, as its number is taken twice) and KVM_SIGNAL_MSI.
#define IRQ_LINE 0x61
#define IRQ_LINE_STATUS 0xc008ae67
#define SIGNAL_MSI 0xa5

struct start_call {
	u64 start;
	u64 ns;
	// Off the CPU: in all, and the longest time.
	u64 away;
	u64 longest;
	// tgid << 32 | tid
	u64 id;
	u64 cgroup;
	// struct kvm; 0 for /dev/kvm.
	u64 vm;
	u64 result;
	u32 file;
	// Whole; 0: the file is released.
	u32 request;
	// A slot is deleted, an ioeventfd or an irqfd is removed.
	u32 undo;
	u32 unused;
	u64 name[2];
	// Where the thread left the CPU for the longest time.
	u64 stack[FRAMES];
};

struct start_totals {
	u64 on;
	// Calls that have begun and not returned.
	u64 open;
	// Calls without room.
	u64 lost;
};
struct start_totals totals SEC(".bss");

struct open {
	struct start_call call;
	u64 out;
	u64 stack[FRAMES];
};

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 8192);
	TYPE(key, u32);
	TYPE(value, struct open);
} calls SEC(".maps");

// Zeros: a call is larger than a program's stack.
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct open);
} blank SEC(".maps");

// vCPUs that ran.
struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 65536);
	TYPE(key, u64);
	TYPE(value, u8);
} ran SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u8);
} wanted SEC(".maps");

struct {
	UINT(type, MAP_RINGBUF);
	UINT(max_entries, 4096);
} ring SEC(".maps");

// Whether a request of a VM takes something away.
INLINE u32 undoes(u32 request, u64 argument)
{
	u32 flags = 0;
	u64 size = 1;

	request &= 0xff;
	if (request == SET_MEMORY || request == SET_MEMORY2) {
		bpf_probe_read_user(&size, sizeof(size), (void *)(argument + 16));
		return !size;
	}
	if (request == IOEVENTFD) {
		bpf_probe_read_user(&flags, sizeof(flags), (void *)(argument + 24));
		return flags >> 2 & 1;
	}
	if (request == IRQFD) {
		bpf_probe_read_user(&flags, sizeof(flags), (void *)(argument + 8));
		return flags & 1;
	}
	return 0;
}

INLINE int is_timed(u32 request)
{
	u32 number = request & 0xff;

	return (request >> 8 & 0xff) == KVMIO && number != IRQ_LINE && number != SIGNAL_MSI && request != IRQ_LINE_STATUS;
}

INLINE int is_first_run(u64 vcpu)
{
	u8 yes = 1;

	// The lookup takes no lock.
	return !bpf_map_lookup_elem(&ran, &vcpu) && !bpf_map_update_elem(&ran, &vcpu, &yes, BPF_NOEXIST);
}

INLINE int begin(u32 file, u64 of, u32 request, u64 argument)
{
	u64 id = bpf_get_current_pid_tgid(), object = 0;
	u32 tid = id, tgid = id >> 32, zero = 0;
	struct open *open;
	void *empty;

	if (!totals.on || (config.filtered && !bpf_map_lookup_elem(&wanted, &tgid)))
		return 0;
	bpf_probe_read_kernel(&object, sizeof(object), (void *)(of + config.file_private));
	if (file == VCPU && (request & 0xff) == RUN && !is_first_run(object))
		return 0;
	if (file == VCPU && !request)
		bpf_map_delete_elem(&ran, &object);
	empty = bpf_map_lookup_elem(&blank, &zero);
	if (!empty || bpf_map_update_elem(&calls, &tid, empty, 0)) {
		add_one(&totals.lost);
		return 0;
	}
	open = bpf_map_lookup_elem(&calls, &tid);
	if (!open)
		return 0;
	add_one(&totals.open);
	if (file == VCPU)
		bpf_probe_read_kernel(&open->call.vm, sizeof(u64), (void *)(object + config.vcpu_kvm));
	else if (file == VM)
		open->call.vm = object;
	open->call.undo = file == VM ? undoes(request, argument) : 0;
	open->call.id = id;
	open->call.cgroup = bpf_get_current_cgroup_id();
	open->call.file = file;
	open->call.request = request;
	bpf_get_current_comm(&open->call.name, sizeof(open->call.name));
	open->call.start = bpf_ktime_get_ns();
	return 0;
}

// Arguments and result of a function in struct pt_regs: Linux arch/arm64/include/asm/ptrace.h, and arch/x86/include/asm/ptrace.h.
#if ISA == 3
#define FIRST(registers) (registers[0])
#define SECOND(registers) (registers[1])
#define THIRD(registers) (registers[2])
#define RESULT(registers) (registers[0])
#else
#define FIRST(registers) (registers[14])
#define SECOND(registers) (registers[13])
#define THIRD(registers) (registers[12])
#define RESULT(registers) (registers[10])
#endif

#define REQUESTS(function, file)                                                                                       \
	SEC("kprobe/" #function) int on_##function(u64 *registers)                                                     \
	{                                                                                                              \
		u32 request = SECOND(registers);                                                                       \
                                                                                                                       \
		return is_timed(request) ? begin(file, FIRST(registers), request, THIRD(registers)) : 0;               \
	}
REQUESTS(kvm_dev_ioctl, DEVICE)
REQUESTS(kvm_vm_ioctl, VM)
REQUESTS(kvm_vcpu_ioctl, VCPU)

SEC("kprobe/kvm_vm_release") int on_kvm_vm_release(u64 *registers)
{
	return begin(VM, SECOND(registers), 0, 0);
}

SEC("kprobe/kvm_vcpu_release") int on_kvm_vcpu_release(u64 *registers)
{
	return begin(VCPU, SECOND(registers), 0, 0);
}

SEC("kretprobe/kvm") int on_return(u64 *registers)
{
	u64 now = bpf_ktime_get_ns();
	u32 tid = bpf_get_current_pid_tgid();
	struct open *open = bpf_map_lookup_elem(&calls, &tid);

	if (!open)
		return 0;
	open->call.ns = now - open->call.start;
	open->call.result = RESULT(registers);
	if (bpf_ringbuf_output(&ring, &open->call, sizeof(open->call), BPF_RB_NO_WAKEUP))
		add_one(&totals.lost);
	bpf_map_delete_elem(&calls, &tid);
	__sync_fetch_and_add(&totals.open, -1);
	return 0;
}

RAW(sched_switch)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct open *open;
	u64 now, away;

	if (!totals.open)
		return 0;
	now = bpf_ktime_get_ns();
	open = bpf_map_lookup_elem(&calls, &tid);
	if (open) {
		bpf_get_stack(args, open->stack, sizeof(open->stack), 0);
		// Walking the stack is no waiting.
		open->out = bpf_ktime_get_ns();
	}
	bpf_probe_read_kernel(&tid, sizeof(tid), (void *)(args[2] + config.task_pid));
	open = bpf_map_lookup_elem(&calls, &tid);
	if (!open || !open->out)
		return 0;
	away = now - open->out;
	open->call.away += away;
	if (away > open->call.longest) {
		open->call.longest = away;
		bpf_probe_read_kernel(open->call.stack, sizeof(open->stack), open->stack);
	}
	open->out = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
