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
#define WEIGHT_FAULT 1
#define WEIGHT_POLLED 1
#define WEIGHT_BLOCKED 2
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

// Leaves whose answer depends on ECX, as in Detail::cpuid of crates/events/src/detail.rs.
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

// A page is mapped: for a page fault during an exit, otherwise on request of user space.
INLINE int mapped(u64 gfn, u32 level)
{
	struct thread *thread = current_thread();
	u64 id = bpf_get_current_pid_tgid();

	// A single-threaded process may be a kernel thread, which maps pages that were swapped out.
	if (!thread && (u32)id != id >> 32)
		thread = thread_at(new_thread());
	if (thread && (thread->flags & (OPEN | USER)) != OPEN && level - 1 < 3)
		count_access(thread, PRE_FAULT, 4096ULL << 9 * (level - 1), 0, 0);
	return tell_now(MAP_REQUEST, gfn, level, 0);
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

INLINE int nested_exit(struct thread *thread)
{
	thread->flags |= NESTED;
	thread->spans[totals.half & 1].l2 += thread->guest;
	thread->guest = 0;
	return tell_now(NESTED_EXIT, 0, 0, 0);
}

INLINE int nested_inject(u32 reason)
{
	struct thread *thread = current_thread();

	if (!thread)
		return 0;
	tell_now(NESTED_INJECT, reason, 0, 0);
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

// Handlers of tracepoints, each with its single event.
INLINE int msr(u32 write, u32 index, u64 data)
{
	access(write ? MSR_WRITE : MSR_READ, index);
	return tell_now(MSR, write, index, data);
}

INLINE int pio(u32 write, u16 port, u32 size, u32 count)
{
	access(write ? PORT_OUT : PORT_IN, port);
	return tell_now(PIO, write, port | (u64)size << 32, count);
}

INLINE int mmio_of(u32 type, u64 length, u64 address)
{
	mmio(type, address);
	return tell_now(MMIO, type, address, length);
}

INLINE int fast_mmio(u64 address)
{
	access(MMIO_WRITE, address);
	return tell_now(FAST_MMIO, address, 0, 0);
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

INLINE int leaf(u32 function, u32 index)
{
	cpuid(function, index);
	return tell_now(LEAF, function, index, 0);
}

INLINE int control_register(u32 write, u8 number, u64 value)
{
	detail(WEIGHT_ACCESS, write ? CR_WRITE : CR_READ, number);
	return tell_now(CR, write, number, value);
}

INLINE int apic(u32 write, u32 at, u64 value)
{
	detail(WEIGHT_APIC, write ? APIC_WRITE : APIC_READ, at);
	return tell_now(APIC, write, at, value);
}

INLINE int ghcb(u64 code, u64 first, u64 second)
{
	// ghcb::request of crates/events: MMIO_READ, MMIO_WRITE, IOIO.
	if (code == 0x80000001 || code == 0x80000002)
		detail(WEIGHT_ACCESS, code == 0x80000001 ? MMIO_READ : MMIO_WRITE, first);
	else if (code == 0x7b)
		detail(WEIGHT_ACCESS, first & 1 ? PORT_IN : PORT_OUT, first >> 16 & 0xffff);
	else
		detail(WEIGHT_GHCB, GHCB, code);
	return tell_now(GHCB_ENTER, code, first, second);
}

INLINE int ghcb_request(u64 value)
{
	detail(WEIGHT_GHCB, GHCB_MSR, value & 0xfff);
	return tell_now(GHCB_REQUEST, value, 0, 0);
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

#if ISA == VMX
// KVM has loaded the field's encoding from the guest's register into a register of the host.
INLINE int vmcs_field(void *registers, u32 at, u32 write)
{
	u64 field = 0;

	bpf_probe_read_kernel(&field, sizeof(field), registers + at);
	// No encoding has more than 32 bits; a guest that names such a field gets an error.
	if (field >> 32)
		return 0;
	detail(WEIGHT_ACCESS, VMCS_FIELD, field);
	return tell_now(VMCS, write, field, 0);
}

// Probes in the handler of VMREAD, then those in the handler of VMWRITE.
#define PROBE(n, write)                                                                                                \
	SEC("kprobe/vmcs") int on_vmcs_##n(void *registers)                                                            \
	{                                                                                                              \
		return vmcs_field(registers, config.vmcs_register[n], write);                                          \
	}
PROBE(0, 0)
PROBE(1, 0)
PROBE(2, 1)
PROBE(3, 1)
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";
