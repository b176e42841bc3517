// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Counts KVM's exits in the kernel, one state per vCPU thread, by the rules of crates/analyse/src/account.rs:
//
//	 guest |kvm_exit  kvm_nested_vmexit?  kvm_msr | kvm_pio | kvm_mmio ...  kvm_userspace_exit?  |kvm_entry| guest
//
// Counters have two halves. The programs add to one while user space reads and clears the other
// (kvm_exit.rs). Every vCPU has its own cells, and a vCPU is on one CPU at a time, so no lock is needed; atomic
// additions are needed only for the rare counters of all vCPUs.
//
// An exit costs little: sched_switch maintains the running thread of each CPU, so its state is known; its cell is found
// by a small cache in the state; and the first access is counted with its exit.
//
// layout.bpf.h: structs; count.bpf.h: states and cells; event.bpf.h: single events; waiting.bpf.h: threads that ran on the CPU of a
// preempted vCPU; exit.bpf.h: begin and end of an exit; this file: events between; raw.bpf.h: tracepoints.

#include "layout.bpf.h"
#include "count.bpf.h"
#include "event.bpf.h"
#include "waiting.bpf.h"
#include "exit.bpf.h"

// Priority of a kind of detail; the highest is kept, and the first of equal ones.
#define WEIGHT_WAIT 1
#define WEIGHT_FAULT 2
#define WEIGHT_POLLED 2
#define WEIGHT_BLOCKED 3
#define WEIGHT_APIC 3
#define WEIGHT_GHCB 4
#define WEIGHT_ACCESS 5

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
	count(cell_of(thread, 0, kind | access_flags(thread) << 8, 0, value), totals.half & 1, ns, timed);
}

// An access that lasts until the next entry and is counted separately. Without a thread: the first event
// of a thread that was in user space when the recording began.
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
		// More accesses in one exit than can be timed.
		count_access(thread, kind, value, 0, 0);
		return 0;
	}
	access = &thread->access[at];
	access->start = bpf_ktime_get_ns();
	access->away = away_in_exit(thread);
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
	// The first access is the detail of the exit: it is counted with the exit, with its time.
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
	u64 now, duration;

	if (!thread)
		thread = thread_at(new_thread());
	if (!thread)
		return 0;
	learn(thread, WEIGHT_ACCESS, MMIO_READ, address);
	now = bpf_ktime_get_ns();
	duration = now - thread->start;
	duration -= least(away_in_exit(thread), duration);
	count_access(thread, MMIO_READ, address, duration, thread->flags & OPEN && now >= thread->start);
	return 0;
}

INLINE int mmio(u32 type, u64 address)
{
	// KVM_TRACE_MMIO_READ_UNSATISFIED, _READ and _WRITE.
	if (type == 0)
		return detail(WEIGHT_ACCESS, MMIO_READ, address);
	return type == 1 ? mmio_read(address) : access(MMIO_WRITE, address);
}

INLINE int userspace_exit(u32 reason, u32 error)
{
	struct thread *thread = current_thread();

	if (!thread || !(thread->flags & OPEN))
		return 0;
	if (!(thread->flags & USER)) {
		thread->flags |= USER;
		thread->user_start = bpf_ktime_get_ns();
	}
	tell(USER_EXIT, thread->user_start, reason, error, 0);
	// The thread may return with another vCPU, whose struct KVM may have allocated at the same address.
	thread->vcpu_at = 0;
	// KVM_EXIT_HLT: user space emulates the halt.
	if (reason == 5)
		thread->flags |= USER_HALT;
	// KVM_EXIT_MEMORY_FAULT, in the region that faulted.
	if (reason == 39)
		access(MEMORY_FAULT, thread->weight && is_fault(thread->kind) ? thread->value : ~0ULL);
	return 0;
}

// The VMM made memory private or shared: KVM_MEMORY_ATTRIBUTE_PRIVATE is bit 3.
INLINE int converted(u64 start, u64 end, u64 attributes)
{
	struct thread *thread = current_thread();

	if (thread && end >= start)
		count_access(thread, attributes & 8 ? TO_PRIVATE : TO_SHARED, (end - start) << 12, 0, 0);
	return tell_now(ATTRIBUTES, start, end, attributes);
}

INLINE int wakeup(u64 ns, u32 waited)
{
	struct thread *thread = current_thread();

	if (!totals.saw_wakeup)
		totals.saw_wakeup = 1;
	if (thread && thread->flags & OPEN) {
		thread->wakeup = ns + (thread->flags & WOKEN ? thread->wakeup : 0);
		thread->flags |= WOKEN;
		// Without waiting: KVM polled successfully, and the vCPU kept its CPU.
		if (is_halt(thread->reason))
			learn(thread, waited ? WEIGHT_BLOCKED : WEIGHT_POLLED, HALT, waited != 0);
	}
	return tell_now(WAKEUP, ns, waited, 0);
}

INLINE int nested_inject(u32 reason)
{
	struct thread *thread = current_thread();

	if (!thread)
		return 0;
	tell_now(NESTED_INJECT, reason, 0, 0);
	// L2 was entered before the recording began: this exit is the first that is known to be its.
	if (ISA == ARM && !(thread->state & RUNS_L2) && thread->flags & OPEN)
		of_l2(thread);
	thread->state &= ~RUNS_L2;
	if (thread->flags & OPEN) {
		thread->flags |= INJECTED;
		// Only L1 knows whether an abort is an access of a device.
		if (ISA == ARM && thread->weight && is_fault(thread->kind)) {
			thread->weight = 0;
			thread->kind = 0;
			thread->value = 0;
		}
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

	if (thread) {
		thread->state &= ~THREAD_ANCILLARY;
		if (ISA == ARM && thread->flags & OPEN)
			thread->state |= RUNS_L2;
	}
	return tell_now(NESTED_ENTER, 0, 0, 0);
}

INLINE void switched_in(struct thread *thread, u64 now)
{
	u32 state = thread->state;

	thread->state = state & ~(OUT | OUT_PREEMPTED);
	if ((state & (OUT | OUT_PREEMPTED)) != (OUT | OUT_PREEMPTED) || !(thread->flags & OPEN))
		return;
	if (now < thread->out)
		return;
	moved(thread, now);
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
	u64 next_thread = index ? *index : 0, now = 0;

	if (slot->thread | next_thread | slot->waiting)
		now = bpf_ktime_get_ns();

	if (slot->waiting)
		leaves_cpu(now, next, next_thread);
	if (thread) {
		thread->out = now;
		thread->state = (thread->state & ~OUT_PREEMPTED) | OUT | (preempted ? OUT_PREEMPTED : 0);
		if (preempted && thread->flags & OPEN)
			begins_to_wait(thread, now, next);
	}
	if (slot->thread | next_thread)
		tell(SWITCH, now, next, preempted, next_thread);
	slot->thread = next_thread;
	thread = thread_at(slot->thread);
	if (thread)
		switched_in(thread, now);
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
	tell_now(THREAD_END, 0, 0, 0);
	if (thread->flags & OPEN)
		add_one(&totals.unpaired_exits);
	thread->flags = 0;
	thread->id = 0;
	thread->ended = id;
	slot->thread = 0;
	bpf_map_delete_elem(&thread_of_tid, &tid);
	return 0;
}

INLINE int mmio_of(u32 type, u64 length, u64 address)
{
	mmio(type, address);
	return tell_now(MMIO, type, address, length);
}

INLINE int call(u32 kind, u64 number)
{
	access(kind, number);
	return tell_now(CALL, kind, number, 0);
}

INLINE int page_fault(u64 address, u64 error)
{
	struct thread *thread = current_thread();

	// The exit's own information has a device's register.
	if (thread && !is_of_device(thread->reason, error))
		learn(thread, WEIGHT_FAULT, fault_kind(thread->reason, error), address & ~0x1fffffULL);
	return tell_now(FAULT, address, error, 0);
}

// The end of kvm_exit, when the reason is known.
INLINE int exit_known(struct thread *thread)
{
	// Not if the reason could not be read.
	if (!config.raw || !(thread->flags & OPEN))
		return 0;
	choose(thread);
	return tell(EXIT, thread->start, thread->info1, thread->info2, 0);
}

#include "raw.bpf.h"
#if ISA == ARM
#include "arm.bpf.h"
#else
#include "x86.bpf.h"
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";
