// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Counts KVM's exits in the kernel, one state per vCPU thread, by the rules of crates/analyse/src/account.rs:
//
//	 guest |kvm_exit  kvm_nested_vmexit?  kvm_msr | kvm_pio | kvm_mmio ...  kvm_userspace_exit?  |kvm_entry| guest
//
// What is counted lies in two halves. The programs add to one while user space reads and clears the other
// (kvm_exit.rs). Every vCPU has cells of its own, and a vCPU is on one CPU at a time, so nothing here needs a lock or an
// atomic addition but what concerns all vCPUs, which is rare.
//
// The way of an exit is short: sched_switch says what runs on each CPU, so the state is at hand; its cell is found
// by a small cache in the state; and an access, of which most exits have one, is counted with its exit.
//
// layout.bpf.h has the structs, count.bpf.h states and cells, exit.bpf.h an exit's beginning and end; here are the
// tracepoints.

#include "layout.bpf.h"
#include "count.bpf.h"
#include "exit.bpf.h"

// How much a kind of detail says about an exit; the most telling one stays, the first among equals.
#define WEIGHT_FAULT 1
#define WEIGHT_APIC 2
#define WEIGHT_GHCB 3
#define WEIGHT_ACCESS 4

INLINE void learn(struct thread *thread, u32 weight, u32 kind, u64 value)
{
	if (thread->flags & OPEN && weight > thread->weight) {
		thread->weight = weight;
		thread->kind = kind;
		thread->value = value;
	}
}

INLINE int detail(u32 weight, u32 kind, u64 value)
{
	struct thread *thread = current_thread();

	if (thread)
		learn(thread, weight, kind, value);
	return 0;
}

INLINE u32 access_flags(struct thread *thread)
{
	return KEY_ACCESS | ((thread->flags & (OPEN | NESTED)) == (OPEN | NESTED) ? KEY_NESTED : 0);
}

INLINE void count_access(struct thread *thread, u32 kind, u64 value, u64 ns, int timed)
{
	u64 second = second_word(thread, kind, access_flags(thread));

	count(cell_of(thread, first_word(thread, 0), second, value), totals.half & 1, ns, timed);
}

// An access that waits for the next entry, to be counted on its own. Without a thread: it is the first that is seen
// of one, back from user space where it was when the recording began.
APART int further_access(struct thread *thread, u32 kind, u64 value)
{
	struct access *access;
	u64 at;

	if (!thread)
		thread = thread_at(new_thread());
	if (!thread)
		return 0;
	at = thread->accesses;
	if (at >= ACCESSES) {
		// Too many in one exit to time them all.
		count_access(thread, kind, value, 0, 0);
		return 0;
	}
	access = &thread->access[at];
	access->start = bpf_ktime_get_ns();
	access->value = value;
	access->kind = kind;
	access->flags = access_flags(thread);
	thread->accesses = at + 1;
	return 0;
}

// An access that lasts until the next entry.
INLINE int access(u32 kind, u64 value)
{
	struct thread *thread = current_thread();
	u32 flags;

	if (!thread)
		return further_access(NULL, kind, value);
	flags = thread->flags;
	if (!(flags & OPEN) || thread->weight >= WEIGHT_ACCESS)
		return further_access(thread, kind, value);
	// The first is what the exit is about. It is counted with it, and its time is taken for that of the exit.
	thread->flags = flags | SOLE;
	thread->weight = WEIGHT_ACCESS;
	thread->kind = kind;
	thread->value = value;
	return 0;
}

// An MMIO read ends with its tracepoint; it began with the exit.
INLINE int mmio_read(u64 address)
{
	struct thread *thread = current_thread();
	u64 now;

	if (!thread)
		thread = thread_at(new_thread());
	if (!thread)
		return 0;
	learn(thread, WEIGHT_ACCESS, MMIO_READ, address);
	now = bpf_ktime_get_ns();
	count_access(thread, MMIO_READ, address, now - thread->start, thread->flags & OPEN && now >= thread->start);
	return 0;
}

INLINE int mmio(u32 type, u64 address)
{
	// KVM_TRACE_MMIO_READ_UNSATISFIED, _READ and _WRITE.
	if (type == 0)
		return detail(WEIGHT_ACCESS, MMIO_READ, address);
	return type == 1 ? mmio_read(address) : access(MMIO_WRITE, address);
}

// Leaves whose answer depends on ECX, as Detail::cpuid of crates/events/src/detail.rs knows them.
#define LEAVES                                                                                                          \
	(1ULL << 0x4 | 1ULL << 0x7 | 1ULL << 0xb | 1ULL << 0xd | 1ULL << 0xf | 1ULL << 0x10 | 1ULL << 0x12 |           \
	 1ULL << 0x14 | 1ULL << 0x17 | 1ULL << 0x18 | 1ULL << 0x1d | 1ULL << 0x1e | 1ULL << 0x1f | 1ULL << 0x24)

INLINE int cpuid(u32 leaf, u32 index)
{
	int has;

	if (leaf < 64)
		has = LEAVES >> leaf & 1;
	else
		has = leaf == 0x8000001d || leaf == 0x80000020 || leaf == 0x80000026;
	return access(CPUID, (u64)leaf << 32 | (has ? index : 0));
}

INLINE int userspace_exit(u32 reason)
{
	struct thread *thread = current_thread();

	if (!thread || !(thread->flags & OPEN))
		return 0;
	if (!(thread->flags & USER)) {
		thread->flags |= USER;
		thread->user_start = bpf_ktime_get_ns();
	}
	// The thread may come back with another vCPU, of which KVM may have put what it knows in the same place.
	thread->vcpu_at = 0;
	// KVM_EXIT_HLT: user space emulates the halt.
	if (reason == 5)
		thread->flags |= USER_HALT;
	return 0;
}

INLINE int wakeup(u64 ns)
{
	struct thread *thread = current_thread();

	if (!totals.saw_wakeup)
		totals.saw_wakeup = 1;
	if (thread && thread->flags & OPEN) {
		thread->wakeup = ns + (thread->flags & WOKEN ? thread->wakeup : 0);
		thread->flags |= WOKEN;
	}
	return 0;
}

INLINE int nested_exit(struct thread *thread)
{
	thread->flags |= NESTED;
	thread->spans[totals.half & 1].l2 += thread->guest;
	thread->guest = 0;
	return 0;
}

INLINE int nested_inject(u32 reason)
{
	struct thread *thread = current_thread();

	if (!thread)
		return 0;
	if (thread->flags & OPEN) {
		thread->flags |= INJECTED;
		if (thread->flags & NESTED)
			reason = thread->reason;
	}
	thread->ancillary = reason;
	thread->state |= THREAD_ANCILLARY;
	return 0;
}

INLINE int nested_enter(void)
{
	struct thread *thread = current_thread();

	if (thread)
		thread->state &= ~THREAD_ANCILLARY;
	return 0;
}

INLINE void switched_in(struct thread *thread, u64 now)
{
	u32 state = thread->state;

	thread->state = state & ~(OUT | OUT_PREEMPTED);
	if ((state & (OUT | OUT_PREEMPTED)) != (OUT | OUT_PREEMPTED) || !(thread->flags & OPEN))
		return;
	if (now < thread->out)
		return;
	if (!(thread->flags & PREEMPTED))
		thread->preempted_user = thread->preempted_kernel = 0;
	thread->flags |= PREEMPTED;
	if (thread->flags & USER && thread->user_start <= thread->out)
		thread->preempted_user += now - thread->out;
	else
		thread->preempted_kernel += now - thread->out;
}

INLINE int switched(int preempted, u32 next)
{
	struct slot *slot = here();
	struct thread *thread = thread_at(slot->thread);
	u32 *index = next ? bpf_map_lookup_elem(&thread_of_tid, &next) : NULL;

	if (thread) {
		thread->out = bpf_ktime_get_ns();
		thread->state = (thread->state & ~OUT_PREEMPTED) | OUT | (preempted ? OUT_PREEMPTED : 0);
	}
	slot->thread = index ? *index : 0;
	thread = thread_at(slot->thread);
	if (thread)
		switched_in(thread, bpf_ktime_get_ns());
	return 0;
}

INLINE int thread_ends(void)
{
	u64 id = bpf_get_current_pid_tgid();
	struct slot *slot = here();
	struct thread *thread = thread_at(slot->thread);
	u32 tid = (u32)id;

	if (!thread)
		return 0;
	if (thread->flags & OPEN)
		add_one(&totals.unpaired_exits);
	thread->flags = 0;
	thread->id = 0;
	thread->ended = id;
	slot->thread = 0;
	bpf_map_delete_elem(&thread_of_tid, &tid);
	return 0;
}

//
// Their arguments are what the kernel's code gives to the tracepoint: nothing is copied and nothing formatted.

#define RAW(name) SEC("raw_tp/" #name) int raw_##name(u64 *args)

// One of two arguments. Both are read first: the kernel's verifier does not let a place in them be computed.
INLINE u64 one_of(u32 second, u64 a, u64 b)
{
	__asm__ volatile("" : "+r"(a), "+r"(b));
	return second ? b : a;
}

// Its reason cannot be read: better none than a wrong one.
APART int lose_exit(struct thread *thread)
{
	add_one(&totals.lost);
	if (thread) {
		thread->flags = 0;
		thread->state &= ~SEEN;
	}
	return 0;
}

// The VMCB's layout is the processor's: AMD APM volume 2, appendix B. EXITCODE is at 0x70.
INLINE void read_vmcb(struct thread *thread, u64 vmcb)
{
	if (bpf_probe_read_kernel(&thread->reason, 24, (void *)(vmcb + 0x70)))
		lose_exit(thread);
}

// The VMCB that the processor last ran: L1's or L2's.
INLINE void read_present_vmcb(struct thread *thread, u64 vcpu)
{
	u64 vmcb = 0;

	bpf_probe_read_kernel(&vmcb, sizeof(vmcb), (void *)(vcpu + config.svm_vmcb));
	read_vmcb(thread, vmcb);
}

RAW(kvm_exit)
{
	struct thread *thread = vcpu_thread();
	u64 vcpu = one_of(config.exit_vcpu, args[0], args[1]);

	if (!thread)
		return 0;
	if (thread->vcpu_at != vcpu)
		learn_vcpu(thread, vcpu);
	leave_guest(thread, bpf_ktime_get_ns());
	if (ISA == VMX) {
		if (bpf_probe_read_kernel(&thread->reason, 4, (void *)(vcpu + config.vmx_exit_reason)))
			lose_exit(thread);
	} else if (config.svm_vmcb01) {
		// If it was L2's, kvm_nested_vmexit comes next and says so.
		read_vmcb(thread, thread->vmcb01);
	} else {
		read_present_vmcb(thread, vcpu);
	}
	return 0;
}

RAW(kvm_entry)
{
	struct thread *thread = vcpu_thread();
	u64 vcpu = args[0];

	if (!thread)
		return 0;
	if (thread->vcpu_at != vcpu)
		learn_vcpu(thread, vcpu);
	enter_guest(thread, bpf_ktime_get_ns());
	return 0;
}

RAW(kvm_msr)
{
	return access(args[0] ? MSR_WRITE : MSR_READ, (u32)args[1]);
}

RAW(kvm_pio)
{
	return access(args[0] ? PORT_OUT : PORT_IN, (u16)args[1]);
}

RAW(kvm_mmio)
{
	return mmio(args[0], args[2]);
}

RAW(kvm_fast_mmio)
{
	return access(MMIO_WRITE, args[0]);
}

RAW(kvm_hypercall)
{
	return access(HYPERCALL, args[0]);
}

RAW(kvm_hv_hypercall)
{
	return access(HYPERV_HYPERCALL, (u16)args[0]);
}

RAW(kvm_xen_hypercall)
{
	return access(XEN_HYPERCALL, one_of(config.xen_number, args[0], args[1]));
}

RAW(kvm_page_fault)
{
	return detail(WEIGHT_FAULT, PAGE_FAULT, one_of(config.fault_address, args[0], args[1]) & ~0x1fffffULL);
}

RAW(kvm_cpuid)
{
	return cpuid(args[0], args[1]);
}

RAW(kvm_cr)
{
	return detail(WEIGHT_ACCESS, args[0] ? CR_WRITE : CR_READ, (u8)args[1]);
}

RAW(kvm_apic)
{
	return detail(WEIGHT_APIC, args[0] ? APIC_WRITE : APIC_READ, (u32)args[1]);
}

RAW(kvm_vmgexit_enter)
{
	u64 code = 0;

	bpf_probe_read_kernel(&code, sizeof(code), (void *)(args[1] + config.ghcb_exit_code));
	return detail(WEIGHT_GHCB, GHCB, code);
}

RAW(kvm_vmgexit_msr_protocol_enter)
{
	return detail(WEIGHT_GHCB, GHCB_MSR, args[1] & 0xfff);
}

RAW(kvm_userspace_exit)
{
	return userspace_exit(args[0]);
}

RAW(kvm_vcpu_wakeup)
{
	return wakeup(args[0]);
}

RAW(kvm_nested_vmexit)
{
	struct thread *thread = current_thread();

	(void)args;
	if (!thread || !(thread->flags & OPEN))
		return 0;
	if (ISA == SVM && config.svm_vmcb01)
		read_present_vmcb(thread, thread->vcpu_at);
	return nested_exit(thread);
}

RAW(kvm_nested_vmexit_inject)
{
	return nested_inject(args[0]);
}

RAW(kvm_nested_vmenter)
{
	(void)args;
	return nested_enter();
}

RAW(kvm_nested_vmrun)
{
	(void)args;
	return nested_enter();
}

RAW(sched_switch)
{
	u32 state = 0, next = 0;

	if (config.switch_has_state)
		state = args[3];
	else
		bpf_probe_read_kernel(&state, sizeof(state), (void *)(args[1] + config.task_state));
	bpf_probe_read_kernel(&next, sizeof(next), (void *)(args[2] + config.task_pid));
	// A task that is in none of the states in which it sleeps or dies could have run on: TASK_REPORT.
	return switched(args[0] || !(state & 0x7f), next);
}

RAW(sched_process_exit)
{
	(void)args;
	return thread_ends();
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
