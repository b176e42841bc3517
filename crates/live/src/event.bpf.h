// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Single events for user space. This code is loaded only if they are requested: the kernel's verifier knows
// the configuration and removes dead branches.

INLINE int put(struct slot *slot, struct event *event)
{
	if (slot->lost) {
		struct event gap = {.time = event->time, .cpu = event->cpu, .vcpu = NO_VCPU, .what = LOST, .a = slot->lost};

		if (bpf_ringbuf_output(&ring, &gap, sizeof(gap), 0))
			goto lost;
		slot->lost = 0;
	}
	if (!bpf_ringbuf_output(&ring, event, sizeof(*event), 0))
		return 0;
lost:
	slot->lost++;
	add_one(&totals.raw_lost);
	return 0;
}

// Holds an event until the duration of its exit is known.
INLINE int hold(struct slot *slot, struct thread *thread, struct event *event)
{
	u32 index = thread->index;
	struct held *events = bpf_map_lookup_elem(&held, &index);
	u64 at;

	if (!events)
		return 0;
	at = events->count;
	if (at >= HELD) {
		slot->lost++;
		add_one(&totals.raw_lost);
		return 0;
	}
	events->events[at] = *event;
	events->count = at + 1;
	return 0;
}

// How long the thread was preempted in the open exit.
INLINE u64 away_in_exit(struct thread *thread)
{
	return thread->flags & PREEMPTED ? thread->preempted_user + thread->preempted_kernel : 0;
}

// How long the open exit was handled until now, without the time in which its thread was preempted.
INLINE u64 handled(struct thread *thread, u64 now)
{
	u64 gross = now - thread->start, away = away_in_exit(thread);

	// It goes on now: the wait that ends with this switch is not yet added.
	if ((thread->state & (OUT | OUT_PREEMPTED)) == (OUT | OUT_PREEMPTED) && now >= thread->out)
		away += now - thread->out;
	return gross - least(away, gross);
}

// The open exit has taken this time, or already takes it. Later events of it are sent at once.
APART int release(struct thread *thread, u64 duration)
{
	struct slot *slot = here();
	struct held *events;
	u32 index, i;

	if (!thread || !thread->chosen)
		return 0;
	thread->chosen = duration >= config.slower_ns;
	index = thread->index;
	events = thread->chosen ? bpf_map_lookup_elem(&held, &index) : NULL;
	if (!events)
		return 0;
	for (i = 0; i < HELD; i++) {
		if (i >= events->count)
			break;
		put(slot, &events->events[i]);
	}
	events->count = 0;
	return 0;
}

// Holds an event of an exit whose duration is not known yet. If the exit is already long enough, no space is
// needed for the events that follow.
INLINE void hold_or_put(struct slot *slot, struct thread *thread, struct event *event)
{
	u64 now = event->time;

	if (now >= thread->start && handled(thread, now) >= config.slower_ns) {
		release(thread, handled(thread, now));
		put(slot, event);
	} else {
		hold(slot, thread, event);
	}
}

// Whether events of a thread are sent now.
INLINE u32 wanted_now(struct thread *thread)
{
	if (!thread)
		return 0;
	return config.sample < 2 && !config.slower_ns ? 1 : thread->chosen;
}

// An event of the running thread. A task switch concerns the next thread too: `c` is its index.
APART int send(u32 what, u64 time, u64 a, u64 b, u64 c)
{
	struct event event = {.time = time, .what = what, .a = a, .b = b};
	struct slot *slot = here();
	struct thread *thread = thread_at(slot->thread), *next = NULL;
	u32 mine, others;

	if (what == SWITCH)
		next = thread_at(c);
	else
		event.c = c;
	event.id = bpf_get_current_pid_tgid();
	event.cpu = bpf_get_smp_processor_id();
	event.vcpu = thread ? thread->vcpu : NO_VCPU;
	if (what == EXIT || what == NESTED_EXIT) {
		event.reason = thread ? thread->reason : 0;
	} else if (what == NESTED_INJECT) {
		event.reason = a;
		event.a = 0;
	}
	if (what == THREAD_END)
		return put(slot, &event);
	// Not by pointers: the kernel's verifier rejects merging two of them.
	mine = wanted_now(thread);
	others = wanted_now(next);
	if (config.slower_ns) {
		// The only event not held is the entry.
		if (mine && thread && !(thread->flags & OPEN))
			return put(slot, &event);
		if (mine && thread)
			hold_or_put(slot, thread, &event);
		if (others && next && next->flags & OPEN)
			hold_or_put(slot, next, &event);
		return 0;
	}
	return mine + others ? put(slot, &event) : 0;
}

INLINE int tell(u32 what, u64 time, u64 a, u64 b, u64 c)
{
	return config.raw ? send(what, time, a, b, c) : 0;
}

// An event without effect on states, if a vCPU thread runs.
INLINE int tell_now(u32 what, u64 a, u64 b, u64 c)
{
	if (!config.raw || !here()->thread)
		return 0;
	return send(what, bpf_ktime_get_ns(), a, b, c);
}

// An exit begins. Decides whether its events are sent, if that does not depend on its duration.
INLINE void choose(struct thread *thread)
{
	u32 index = thread->index;
	struct held *events;

	if (config.sample < 2 && !config.slower_ns)
		return;
	thread->chosen = config.sample < 2 || thread->exits % config.sample == 0;
	thread->exits++;
	if (!config.slower_ns)
		return;
	events = bpf_map_lookup_elem(&held, &index);
	if (events)
		events->count = 0;
}
