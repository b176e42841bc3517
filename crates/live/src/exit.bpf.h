// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// An exit, from kvm_exit to kvm_entry.

INLINE u32 basic(u32 reason)
{
	return ISA == VMX ? reason & 0xffff : reason;
}

// Exit reasons, as in crates/events/src/vmx.rs, svm.rs and arm.rs.
INLINE int is_halt(u32 reason)
{
	if (ISA == ARM)
		return reason == 1;
	return ISA == VMX ? basic(reason) == 12 : reason == 0x78 || reason == 0xa6;
}

// The vCPU waits, by the reason of its exit and by its detail.
INLINE int waits(u32 reason, u32 kind, u64 value)
{
	if (ISA != ARM)
		return is_halt(reason) || (kind == GHCB && value == 0x78);
	// CPU_SUSPEND and CPU_DEFAULT_SUSPEND, with registers of both widths.
	if (kind == SMCCC)
		return (value & ~0x40000000ULL) == 0x84000001 || (value & ~0x40000000ULL) == 0x8400000c;
	// WFE lets another thread run and goes on.
	return is_halt(reason) && !(kind == WAIT && value);
}

// KVM may answer such an exit in the run loop and enter again without kvm_entry.
INLINE int is_fast_path(struct thread *thread)
{
	u32 reason = basic(thread->reason);

	if (ISA == VMX)
		return reason == 32 || reason == 52;
	return ISA == SVM && reason == 0x7c && thread->info1;
}

// The handlers of these exits read the qualification, so KVM has it cached.
INLINE u64 qualification(struct thread *thread)
{
	u64 value = thread->info1;

	if (config.vmx_qualification)
		bpf_probe_read_kernel(&value, sizeof(value), (void *)(thread->vcpu_at + config.vmx_qualification));
	return value;
}

// The interruption information of the exit; KVM reads it to handle an interrupt.
INLINE u64 interruption(struct thread *thread)
{
	u64 value = thread->info2;

	if (config.vmx_interruption) {
		u32 read = 0;

		bpf_probe_read_kernel(&read, sizeof(read), (void *)(thread->vcpu_at + config.vmx_interruption));
		value = read;
	}
	return value;
}

// The kind of a fault on guest memory, as in crates/analyse/src/detail.rs.
INLINE u32 fault_kind(u32 reason, u64 error)
{
	u32 fetch;

	if (ISA == ARM) {
		// The error is the syndrome: a fault of permission.
		if ((reason != 0x24 && reason != 0x20) || (error & 0x3c) != 0xc)
			return PAGE_FAULT;
		return reason == 0x20 ? MAPPED_FETCH : MAPPED_FAULT;
	}
	if (ISA == VMX) {
		if (basic(reason) != 48 || !(error & 0x38))
			return PAGE_FAULT;
		fetch = error & 4;
	} else {
		// Present, and neither reserved bits nor the reverse map table.
		if (reason != 0x400 || (error & 0x80000009) != 1)
			return PAGE_FAULT;
		fetch = error & 0x10;
	}
	return fetch ? MAPPED_FETCH : MAPPED_FAULT;
}

// A nested page fault on an entry that KVM marked as a device's register.
INLINE int is_of_device(u32 reason, u64 error)
{
	return ISA == SVM && reason == 0x400 && (error & 0x80000008) == 8;
}

INLINE int is_fault(u32 kind)
{
	return kind == PAGE_FAULT || kind == MAPPED_FAULT || kind == MAPPED_FETCH;
}

// The detail of an exit without one of another source. Returns its kind.
INLINE u32 from_information(struct thread *thread, u64 *value)
{
	u32 reason = basic(thread->reason), type;
	u64 info;

	if (ISA == ARM)
		return NONE;
	if (ISA == SVM) {
		if (reason == 0x400) {
			if (is_of_device(reason, thread->info1)) {
				*value = thread->info2;
				return thread->info1 & 2 ? MMIO_WRITE : MMIO_READ;
			}
			*value = thread->info2 & ~0x1fffffULL;
			return thread->info1 | thread->info2 ? fault_kind(reason, thread->info1) : NONE;
		}
		if (reason != 0x7b)
			return NONE;
		*value = thread->info1 >> 16 & 0xffff;
		return thread->info1 & 1 ? PORT_IN : PORT_OUT;
	}
	if (reason == 1) {
		info = thread->info2 = interruption(thread);
		// Valid, and an external interrupt.
		if ((info & 0x80000700) != 0x80000000)
			return NONE;
		*value = info & 0xff;
		return INTERRUPT;
	}
	if (reason != 28 && reason != 30 && reason != 44 && reason != 56)
		return NONE;
	info = thread->info1 = qualification(thread);
	*value = info & 0xfff;
	if (reason == 56)
		return APIC_WRITE;
	if (reason == 30) {
		*value = info >> 16 & 0xffff;
		return info & 8 ? PORT_IN : PORT_OUT;
	}
	if (reason == 28) {
		type = info >> 4 & 3;
		// CLTS and LMSW write CR0.
		*value = type < 2 ? info & 0xf : 0;
		return type == 1 ? CR_READ : CR_WRITE;
	}
	type = info >> 12 & 0xf;
	if (type > 1)
		*value = 0;
	return type > 1 ? NONE : type ? APIC_WRITE : APIC_READ;
}

// Distributes the time of an exit that the kernel did not handle alone. Returns the part in which its thread was preempted.
INLINE u64 split(struct thread *thread, struct spans *spans, u64 duration, u64 now, u32 outcome)
{
	u64 user = 0, kernel, halted = 0, away_user = 0, away_kernel = 0;

	if (thread->flags & USER && now > thread->user_start)
		user = least(now - thread->user_start, duration);
	kernel = duration - user;
	if (thread->flags & PREEMPTED) {
		away_user = least(thread->preempted_user, user);
		away_kernel = least(thread->preempted_kernel, kernel);
	}
	user -= away_user;
	kernel -= away_kernel;
	if (outcome == OUTCOME_HALTED) {
		if (thread->flags & WOKEN)
			halted = least(thread->wakeup, kernel);
		else if (!totals.saw_wakeup)
			halted = kernel;
		kernel -= halted;
		if (thread->flags & USER_HALT) {
			halted += user;
			user = 0;
		}
	}
	spans->kernel += kernel;
	spans->user += user;
	spans->halted += halted;
	spans->preempted += away_user + away_kernel;
	return away_user + away_kernel;
}

// Counts the open exit. Without `timed` its entry is missing. Returns whether its time was attributed to
// a part.
APART int close_any(struct thread *thread, u64 now, int timed)
{
	u32 flags, kind, which = totals.half & 1, outcome = OUTCOME_KERNEL;
	u32 what, ancillary = 0, cell;
	u64 duration, value, away = 0;

	if (!thread)
		return 0;
	flags = thread->flags;
	kind = thread->kind;
	value = thread->value;
	duration = now - thread->start;
	if (!thread->weight) {
		kind = from_information(thread, &value);
		// At kvm_exit KVM had not read it yet.
		if (ISA == VMX && kind != NONE)
			tell(INFORMATION, now, thread->info1, thread->info2, 0);
	}
	if ((flags & (INJECTED | NESTED)) == (INJECTED | NESTED))
		outcome = OUTCOME_L1;
	else if (flags & USER_HALT || waits(thread->reason, kind, value))
		outcome = OUTCOME_HALTED;
	else if (flags & USER)
		outcome = OUTCOME_USER;
	what = kind | (outcome << KEY_OUTCOME | (flags & SOLE ? KEY_SOLE : 0)) << 8;
	if (flags & NESTED) {
		what |= KEY_NESTED << 8;
	} else if (flags & ANCILLARY) {
		what |= KEY_ANCILLARY << 8;
		ancillary = thread->open_ancillary;
	}
	timed = timed && !(flags & LATE) && now >= thread->start;
	if (timed)
		away = split(thread, &thread->spans[which], duration, now, outcome);
	cell = cell_of(thread, thread->reason, what, ancillary, value);
	count(cell, which, duration - away, timed);
	if (flags & PREEMPTED && cell)
		count_takers(thread, which ? cell + config.cells : cell, duration);
	return timed;
}

// The accesses of a thread end at its entry, or at an unknown time.
APART int accesses_end(struct thread *thread, u64 now, int timed)
{
	u32 i, which = totals.half & 1;
	u64 away;

	if (!thread)
		return 0;
	away = away_in_exit(thread);
	for (i = 0; i < ACCESSES; i++) {
		struct access *access = &thread->access[i];
		u64 duration = now - access->start;

		if (i >= thread->accesses)
			break;
		count(cell_of(thread, 0, access->kind | access->flags << 8, 0, access->value), which,
		      duration - least(away - access->away, duration), timed && now >= access->start);
	}
	thread->accesses = 0;
	return 0;
}

// An exit is already open.
APART int exit_in_exit(struct thread *thread, u64 now)
{
	if (!thread)
		return 0;
	if (config.slower_ns)
		release(thread, 0);
	if (is_fast_path(thread)) {
		close_any(thread, now, 0);
		accesses_end(thread, now, 0);
	} else {
		add_one(&totals.unpaired_exits);
	}
	return 0;
}

// The open exit came from L2, and so did the guest time before it.
INLINE void of_l2(struct thread *thread)
{
	thread->flags |= NESTED;
	thread->spans[totals.half & 1].l2 += thread->guest;
	thread->guest = 0;
}

// kvm_exit of a thread that is not known to be in the guest, or with more to record.
APART int leave_somewhere(struct thread *thread, u64 now)
{
	u32 state, flags = OPEN;
	u64 span = 0;

	if (!thread)
		return 0;
	if (thread->flags & OPEN)
		exit_in_exit(thread, now);
	state = thread->state;
	thread->guest = 0;
	if (state & SEEN) {
		struct spans *spans = &thread->spans[totals.half & 1];

		if (now < thread->since)
			flags |= LATE;
		else
			span = now - thread->since;
		if (state & IN_GUEST) {
			thread->guest = span;
			spans->guest += span;
		} else {
			spans->unknown += span;
		}
	}
	if (state & THREAD_ANCILLARY) {
		flags |= ANCILLARY;
		thread->open_ancillary = thread->ancillary;
	}
	if (!(flags & LATE))
		thread->since = now;
	thread->flags = flags;
	thread->state = (state & LASTING) | SEEN;
	if (state & RUNS_L2)
		of_l2(thread);
	return 0;
}

// kvm_exit, before the reason is read.
INLINE void leave_guest(struct thread *thread, u64 now)
{
	if (thread->state == (SEEN | IN_GUEST) && !thread->flags && now >= thread->since) {
		u64 guest = now - thread->since;

		thread->spans[totals.half & 1].guest += guest;
		thread->guest = guest;
		thread->since = now;
		thread->flags = OPEN;
		thread->state = SEEN;
	} else {
		leave_somewhere(thread, now);
	}
	thread->start = now;
	thread->accesses = 0;
	thread->weight = 0;
	thread->kind = 0;
	thread->value = 0;
}

// kvm_entry in all cases that enter_guest does not handle.
APART int enter_somehow(struct thread *thread, u64 now)
{
	u32 state;
	int told = 0;

	if (!thread)
		return 0;
	state = thread->state;
	// The exit knows how long its accesses were preempted.
	if (thread->accesses)
		accesses_end(thread, now, 1);
	if (thread->flags & OPEN)
		told = close_any(thread, now, 1);
	else if (state & SEEN)
		add_one(&totals.unpaired_entries);
	if (config.raw) {
		if (config.slower_ns)
			release(thread, thread->flags & OPEN ? handled(thread, now) : 0);
		thread->flags = 0;
		tell(ENTRY, now, 0, 0, 0);
		thread->chosen = 0;
	}
	thread->flags = 0;
	if (!told && state & SEEN && now > thread->since)
		thread->spans[totals.half & 1].unknown += now - thread->since;
	// The exit began where the time before it ended, unless the event was late.
	if (told || now > thread->since)
		thread->since = now;
	thread->state = (state & LASTING) | SEEN | IN_GUEST;
	return 0;
}

// kvm_entry.
INLINE void enter_guest(struct thread *thread, u64 now)
{
	u32 reason = thread->reason, which;
	u64 duration = now - thread->start;

	if (config.raw || thread->flags != (OPEN | SOLE) || thread->state != SEEN || thread->accesses || now < thread->start ||
	    is_halt(reason) || (ISA == ARM && thread->kind == SMCCC)) {
		enter_somehow(thread, now);
		return;
	}
	// An exit that the kernel handled alone, with a known detail: most frequent exits. Counted as in close_any.
	which = totals.half & 1;
	thread->spans[which].kernel += duration;
	thread->flags = 0;
	thread->since = now;
	thread->state = SEEN | IN_GUEST;
	count(cell_of(thread, reason, thread->kind | KEY_SOLE << 8, 0, thread->value), which, duration, 1);
}
