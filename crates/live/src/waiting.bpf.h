// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Threads that run while a preempted vCPU waits for its CPU, by the rules of crates/analyse/src/account/waiting.rs. Nothing here runs
// during an exit that was not preempted.
//
// The name of a thread is read at the switch away from it, when it is current.

INLINE int waits_for(struct thread *thread, u32 cpu)
{
	return (thread->state & (OUT | OUT_PREEMPTED)) == (OUT | OUT_PREEMPTED) && thread->flags & OPEN &&
	       thread->out_cpu == cpu;
}

// A thread ran on the CPU that this one waits for. With `current` it is the current thread.
APART int had_cpu(struct thread *thread, u32 tid, u64 ns, int current)
{
	u32 i;

	if (!thread)
		return 0;
	for (i = 0; i < TAKERS; i++) {
		struct taker *taker = &thread->takers[i];

		if (taker->count && taker->tid != tid) {
			if (i + 1 < TAKERS)
				continue;
			taker->tid = OTHERS;
			taker->name[0] = taker->name[1] = 0;
			current = 0;
		}
		if (!taker->count) {
			taker->tid = tid;
			taker->time = 0;
			taker->name[0] = taker->name[1] = 0;
		}
		if (current)
			bpf_get_current_comm(taker->name, sizeof(taker->name));
		taker->count++;
		taker->time += ns;
		return 0;
	}
	return 0;
}

// The current thread leaves a CPU that vCPUs wait for.
APART int leaves_cpu(u64 now, u32 next, u32 next_thread)
{
	struct slot *slot = here();
	u32 cpu = bpf_get_smp_processor_id(), tid = (u32)bpf_get_current_pid_tgid(), waiting = 0, i;
	u64 ns = now > slot->since ? now - slot->since : 0;

	for (i = 0; i < WAITERS; i++) {
		u32 index = slot->waiters[i];
		struct thread *thread = thread_at(index);

		if (!thread)
			continue;
		if (!waits_for(thread, cpu)) {
			slot->waiters[i] = 0;
			continue;
		}
		had_cpu(thread, tid, ns, 1);
		if (index == next_thread)
			slot->waiters[i] = 0;
		else
			waiting++;
	}
	slot->waiting = waiting;
	slot->since = now;
	slot->running = next;
	return 0;
}

// A vCPU was preempted.
APART int begins_to_wait(struct thread *thread, u64 now, u32 next)
{
	struct slot *slot = here();
	u32 i;

	if (!thread)
		return 0;
	thread->out_cpu = bpf_get_smp_processor_id();
	if (!(thread->flags & PREEMPTED)) {
		for (i = 0; i < TAKERS; i++)
			thread->takers[i].count = 0;
	}
	slot->since = now;
	slot->running = next;
	for (i = 0; i < WAITERS; i++) {
		if (slot->waiters[i] && slot->waiters[i] != thread->index)
			continue;
		if (!slot->waiters[i])
			slot->waiting++;
		slot->waiters[i] = thread->index;
		break;
	}
	return 0;
}

// A vCPU runs again, on another CPU than the one that it waited for, where no switch occurred.
APART int moved(struct thread *thread, u64 now)
{
	u64 cpu = bpf_get_smp_processor_id();
	struct slot *slot;

	if (!thread || thread->out_cpu == cpu)
		return 0;
	slot = &slots[thread->out_cpu & (CPUS - 1)];
	if (now > slot->since)
		had_cpu(thread, slot->running, now - slot->since, 0);
	return 0;
}

APART struct taken *sum_of(u32 cell, u32 tid)
{
	struct taken_key key = {.cell = cell, .tid = tid};
	struct taken none = {};
	struct taken *sum = bpf_map_lookup_elem(&taken, &key);

	if (sum)
		return sum;
	// Without a free slot it is counted under "others".
	if (bpf_map_update_elem(&taken, &key, &none, BPF_NOEXIST))
		key.tid = OTHERS;
	return bpf_map_lookup_elem(&taken, &key);
}

// Counts a preempted exit of this duration in this cell.
APART int count_takers(struct thread *thread, u32 cell, u64 duration)
{
	struct taken *sum;
	u64 away, named = 0;
	u32 i;

	if (!thread || !cell)
		return 0;
	away = least(thread->preempted_kernel + thread->preempted_user, duration);
	for (i = 0; i < TAKERS; i++) {
		struct taker *taker = &thread->takers[i];
		u64 time = least(taker->time, away - named);

		if (!taker->count)
			break;
		named += time;
		sum = sum_of(cell, taker->tid);
		if (sum) {
			sum->time += time;
			sum->count += taker->count;
			if (taker->name[0] && taker->tid != OTHERS) {
				sum->name[0] = taker->name[0];
				sum->name[1] = taker->name[1];
			}
		}
		taker->count = 0;
	}
	// More vCPUs wait for this CPU than are tracked.
	sum = away > named ? sum_of(cell, OTHERS) : NULL;
	if (sum)
		sum->time += away - named;
	return 0;
}
