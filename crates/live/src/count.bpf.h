// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// States of threads, cells of keys, and counting of times.

INLINE u64 least(u64 a, u64 b)
{
	return a < b ? a : b;
}

INLINE struct slot *here(void)
{
	return &slots[bpf_get_smp_processor_id() & (CPUS - 1)];
}

INLINE struct thread *thread_at(u32 index)
{
	return index ? bpf_map_lookup_elem(&threads, &index) : NULL;
}

// The state of the running thread, if it is a vCPU's.
INLINE struct thread *current_thread(void)
{
	return thread_at(here()->thread);
}

// Allocates the state of a new vCPU thread; 0 if there is none left.
APART u32 new_thread(void)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id, tgid = id >> 32, index = 0;
	struct slot *slot = here();
	struct thread *thread;
	u32 *known;

	if (!totals.on || slot->unwanted == id)
		return 0;
	known = bpf_map_lookup_elem(&thread_of_tid, &tid);
	if (known) {
		// A sched_switch was missed. The kernel counts that, and it is reported.
		slot->thread = *known;
		return *known;
	}
	if (config.filtered && !bpf_map_lookup_elem(&wanted, &tgid)) {
		slot->unwanted = id;
		return 0;
	}
	if (bpf_map_pop_elem(&free_threads, &index))
		index = totals.threads_used < config.threads ? __sync_fetch_and_add(&totals.threads_used, 1) + 1 : 0;
	thread = thread_at(index);
	if (!thread || bpf_map_update_elem(&thread_of_tid, &tid, &index, 0)) {
		add_one(&totals.lost);
		return 0;
	}
	thread->index = index;
	thread->vcpu = NO_VCPU;
	thread->id = id;
	slot->thread = index;
	return index;
}

// As current_thread, but allocates a state if there is none.
INLINE struct thread *vcpu_thread(void)
{
	struct thread *thread = current_thread();

	return thread ? thread : thread_at(new_thread());
}

// The cell of the most exact key that has one or gets one; 0 if none does.
APART u32 new_cell(struct key *key)
{
	u32 *known, cell = 0, kind, step;

	if (!key)
		return 0;
	kind = key->flags & KEY_ACCESS ? 1 : 0;
	for (step = 0; step < 3; step++) {
		u64 *used = step ? &totals.coarse_used[kind] : &totals.exact_used[kind];

		if (step == 1) {
			add_one(&totals.details_dropped[kind]);
			key->kind = OVERFLOW;
			key->value = 0;
		}
		if (step == 2) {
			key->reason = ~0U;
			key->ancillary = 0;
			key->flags &= ~KEY_ANCILLARY;
		}
		known = bpf_map_lookup_elem(&cell_of_key, key);
		if (known)
			return *known;
		if (step < 2 && *used >= config.exact)
			continue;
		if (bpf_map_pop_elem(&free_cells, &cell))
			cell = totals.cells_used < config.cells - 1 ? __sync_fetch_and_add(&totals.cells_used, 1) + 1 : 0;
		if (!cell)
			continue;
		if (bpf_map_update_elem(&keys, &cell, key, 0) ||
		    bpf_map_update_elem(&cell_of_key, key, &cell, BPF_NOEXIST))
			continue;
		add_one(used);
		return cell;
	}
	add_one(&totals.lost);
	return 0;
}

INLINE struct line *line_of(struct thread *thread, u64 what, u64 value)
{
	u64 at = ((what + value) * 0x9e3779b97f4a7c15ULL) >> 60;

	return &thread->lines[at & (LINES - 1)];
}

APART u32 new_line(struct thread *thread, u64 what, u64 value, u32 ancillary)
{
	struct key key = {.reason = what, .kind = what >> 32, .flags = what >> 40, .ancillary = ancillary, .value = value};
	struct line *line;
	u32 cell;

	if (!thread)
		return 0;
	key.thread = thread->index;
	key.vcpu = thread->vcpu;
	cell = new_cell(&key);
	// A key without a cell is not cached: each such exit is counted as one without detail.
	if (!cell || key.kind == OVERFLOW)
		return cell;
	line = line_of(thread, what, value);
	line->what = what;
	line->value = value;
	line->cell = (u64)ancillary << 32 | cell;
	return cell;
}

// The cell of a key. The cache does not compare thread and vCPU, which set_vcpu ensures.
INLINE u32 cell_of(struct thread *thread, u32 reason, u32 kind_and_flags, u32 ancillary, u64 value)
{
	u64 what = (u64)(LINE_USED | kind_and_flags) << 32 | reason;
	struct line *line = line_of(thread, what, value);

	// Keeps the compiler from recomputing its address for each field.
	__asm__ volatile("" : "+r"(line));
	if (line->what == what && line->value == value) {
		u64 cell = line->cell;

		if (cell >> 32 == ancillary)
			return cell;
	}
	return new_line(thread, what, value, ancillary);
}

// The thread runs another vCPU: the cached lines are those of the previous one.
APART int set_vcpu(struct thread *thread, u32 vcpu)
{
	u32 i;

	if (!thread || thread->vcpu == vcpu)
		return 0;
	thread->vcpu = vcpu;
	for (i = 0; i < LINES; i++)
		thread->lines[i].what = 0;
	return 0;
}

INLINE struct cell *half(u32 cell, u32 which)
{
	u32 at = which ? cell + config.cells : cell;

	return cell ? bpf_map_lookup_elem(&cells, &at) : NULL;
}

// Number of bits of a byte up to the highest that is set.
#define SAME2(n) n, n
#define SAME4(n) SAME2(n), SAME2(n)
#define SAME8(n) SAME4(n), SAME4(n)
#define SAME16(n) SAME8(n), SAME8(n)
#define SAME32(n) SAME16(n), SAME16(n)
#define SAME64(n) SAME32(n), SAME32(n)
const volatile u8 bits_of[256] SEC(".rodata.bits") = {
	0, 1, SAME2(2), SAME4(3), SAME8(4), SAME16(5), SAME32(6), SAME64(7), SAME64(8), SAME64(8),
};

INLINE u32 long_bucket(u64 ns)
{
	u32 bits = 16;

	for (ns >>= 16; ns > 255 && bits < BUCKETS; bits += 8)
		ns >>= 8;
	bits += bits_of[ns & 255];
	return bits < BUCKETS ? bits : BUCKETS - 1;
}

INLINE void add_square(struct cell *cell, u64 square)
{
	u64 sum = cell->square_low + square;

	cell->square_low = sum;
	// One comparison, without an intermediate value.
	__asm__ volatile("" : "+r"(sum));
	if (sum < square)
		cell->square_high++;
}

INLINE void add_time(struct cell *cell, u64 ns)
{
	cell->time += ns;
	if (~ns > cell->not_min)
		cell->not_min = ~ns;
	if (ns > cell->max)
		cell->max = ns;
}

// 66 us and more.
APART int tally_long(struct cell *cell, u64 ns)
{
	u64 low = (u32)ns, high = ns >> 32, middle = 2 * low * high;
	u32 at = long_bucket(ns);

	if (!cell)
		return 0;
	add_time(cell, ns);
	// From 4 s on the square does not fit in 64 bits.
	cell->square_high += high * high + (middle >> 32);
	add_square(cell, low * low);
	add_square(cell, middle << 32);
	if (at < BUCKETS)
		cell->histogram[at]++;
	return 0;
}

INLINE void tally(struct cell *cell, u64 ns)
{
	u32 at;

	if (ns >> 16) {
		tally_long(cell, ns);
		return;
	}
	// 0 for 0 ns, i for [2^(i-1), 2^i) ns.
	at = ns >> 8 ? bits_of[ns >> 8 & 255] + 8 : bits_of[ns & 255];
	add_time(cell, ns);
	add_square(cell, ns * ns);
	if (at < BUCKETS)
		cell->histogram[at]++;
}

INLINE void count(u32 cell, u32 which, u64 ns, int timed)
{
	struct cell *at = half(cell, which);

	if (!at)
		return;
	if (timed)
		tally(at, ns);
	else
		at->untimed++;
}
