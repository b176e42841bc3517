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
// kvm_exit.rs and layout.rs hold the other side of every struct here.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define APART static __attribute__((noinline))
#define NULL ((void *)0)

// Linux include/uapi/linux/bpf.h: numbers of helpers and maps.
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_map_pop_elem)(void *map, void *value) = (void *)88;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
#define BPF_NOEXIST 1
#define MAP_HASH 1
#define MAP_ARRAY 2
#define MAP_STACK 23
#define MAPPED (1U << 10)

#define UINT(name, value) int (*name)[value]
#define TYPE(name, value) value *name

// The programs are compiled for one processor's virtualization: KVM_ISA_VMX or KVM_ISA_SVM of Linux
// arch/x86/kvm/trace.h.
#define VMX 1
#define SVM 2
#ifndef ISA
#error "compile with -DISA=1 or -DISA=2"
#endif

// What this kernel is like, and what is wanted; written before the programs are loaded.
struct config {
	// Cells in each half, threads, and keys of a kind (exits, accesses) that are told apart exactly.
	u32 cells;
	u32 threads;
	u32 exact;
	// Only the processes in `wanted`.
	u32 filtered;
	// Which argument of the raw tracepoint it is.
	u32 exit_vcpu;
	u32 fault_address;
	u32 xen_number;
	u32 switch_has_state;
	// Offsets, from the kernel's own description of its types.
	u32 vcpu_id;
	u32 vcpu_kvm;
	u32 svm_vmcb;
	// 0 before Linux 5.13.
	u32 svm_vmcb01;
	u32 vmx_exit_reason;
	u32 vmx_qualification;
	u32 task_pid;
	u32 task_state;
	u32 ghcb_exit_code;
};
const volatile struct config config SEC(".rodata");

// Which exits, or which accesses.
struct key {
	u32 reason;
	u32 thread;
	u8 kind;
	u8 flags;
	u16 vcpu;
	u32 ancillary;
	u64 value;
};
// Of a thread that has not yet said which it runs.
#define NO_VCPU 0xffff
#define KEY_NESTED 1
#define KEY_OUTCOME 1 // shift
#define KEY_ACCESS 16
#define KEY_ANCILLARY 32
// The exit's detail is an access, too.
#define KEY_SOLE 64

// Outcome of crates/events/src/row.rs, in its order.
#define OUTCOME_KERNEL 0
#define OUTCOME_USER 1
#define OUTCOME_HALTED 2
#define OUTCOME_L1 3

// DetailKind of crates/events/src/detail.rs.
enum kind {
	NONE = 0,
	MSR_READ = 1,
	MSR_WRITE = 2,
	PORT_IN = 3,
	PORT_OUT = 4,
	MMIO_READ = 5,
	MMIO_WRITE = 6,
	PAGE_FAULT = 7,
	HYPERCALL = 8,
	HYPERV_HYPERCALL = 9,
	XEN_HYPERCALL = 10,
	CPUID = 11,
	CR_READ = 12,
	CR_WRITE = 13,
	APIC_READ = 14,
	APIC_WRITE = 15,
	GHCB = 16,
	GHCB_MSR = 17,
	VMCS_FIELD = 19,
	OVERFLOW = 20,
};

#define BUCKETS 40

// Counts and times of one key in one half. How many there were with a time is the sum of the histogram.
struct cell {
	u64 untimed;
	u64 time;
	// ~shortest, so that zero means none.
	u64 not_min;
	u64 max;
	u64 square_low;
	u64 square_high;
	u32 histogram[BUCKETS];
	u64 unused[6];
};

// Where the time of a thread went, in one half.
struct spans {
	u64 guest;
	u64 l2;
	u64 kernel;
	u64 user;
	u64 halted;
	u64 preempted;
	u64 unknown;
};

// An access that waits for the entry.
struct access {
	u64 start;
	u64 value;
	u32 kind;
	u32 flags;
};
#define ACCESSES 8

// The way from a key, as three words, to its cell.
struct line {
	u64 words[3];
	u64 cell;
};
#define LINES 16

// What is known of the exit that is open.
#define OPEN 1
#define LATE 2
#define NESTED 4
#define INJECTED 8
#define USER 16
#define USER_HALT 32
#define WOKEN 64
#define ANCILLARY 128
#define PREEMPTED 256
// It has an access, the one that its detail is about.
#define SOLE 512

// Where a thread is between its events.
#define IN_GUEST 1
#define SEEN 2
#define THREAD_ANCILLARY 4
#define OUT 8
#define OUT_PREEMPTED 16

struct thread {
	// tgid << 32 | tid, 0 for nobody: a thread that ended, or a place that is free.
	u64 id;
	// 0 when user space may have come to another vCPU.
	u64 vcpu_at;
	u64 kvm;
	u64 ended;
	u32 vcpu;
	u32 index;
	u32 state;
	u32 ancillary;
	u64 since;
	u64 out;
	// The exit that is open.
	u32 flags;
	u32 open_ancillary;
	u64 start;
	u64 guest;
	// SVM's exit_code, exit_code_hi, exit_info_1 and exit_info_2 as they lie in the VMCB; for VMX the reason and the
	// qualification.
	u32 reason;
	u32 reason_high;
	u64 info1;
	u64 info2;
	// How much what was learnt says, and what it is.
	u32 weight;
	u32 kind;
	u64 value;
	u64 user_start;
	u64 wakeup;
	u64 preempted_kernel;
	u64 preempted_user;
	u64 accesses;
	// The VMCB of L1.
	u64 vmcb01;
	struct access access[ACCESSES];
	struct spans spans[2];
	struct line lines[LINES];
};

// Of all vCPUs together. What begins in user space comes first.
struct totals {
	u32 half;
	u32 on;
	u64 saw_wakeup;
	u64 cells_used;
	u64 threads_used;
	u64 exact_used[2];
	u64 coarse_used[2];
	u64 unpaired_exits;
	u64 unpaired_entries;
	u64 details_dropped;
	// Events that could not be counted at all: no thread, no cell, no way to read the reason.
	u64 lost;
};
struct totals totals SEC(".bss");

// layout.rs asserts the same.
_Static_assert(sizeof(struct config) == 68, "config");
_Static_assert(sizeof(struct key) == 24, "key");
_Static_assert(sizeof(struct cell) == 256, "cell");
_Static_assert(sizeof(struct spans) == 56, "spans");
_Static_assert(sizeof(struct thread) == 992, "thread");
_Static_assert(__builtin_offsetof(struct thread, spans) == 368, "thread");
_Static_assert(sizeof(struct totals) == 96, "totals");

// What runs on a CPU: sched_switch keeps it true.
struct slot {
	// The state of the thread, 0 if it is no vCPU's.
	u64 thread;
	// The thread that runs a vCPU there and is not wanted.
	u64 unwanted;
};
// As many as Linux can be built for.
#define CPUS 8192
struct slot slots[CPUS] SEC(".bss.slots");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MAPPED);
	TYPE(key, u32);
	TYPE(value, struct thread);
} threads SEC(".maps");

// Both halves.
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MAPPED);
	TYPE(key, u32);
	TYPE(value, struct cell);
} cells SEC(".maps");

// The key of each cell.
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MAPPED);
	TYPE(key, u32);
	TYPE(value, struct key);
} keys SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 1);
	TYPE(key, struct key);
	TYPE(value, u32);
} cell_of_key SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u32);
} thread_of_tid SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u8);
} wanted SEC(".maps");

// Places that user space gives back.
struct {
	UINT(type, MAP_STACK);
	UINT(max_entries, 1);
	TYPE(value, u32);
} free_cells SEC(".maps");

struct {
	UINT(type, MAP_STACK);
	UINT(max_entries, 1);
	TYPE(value, u32);
} free_threads SEC(".maps");

INLINE void add_one(u64 *to)
{
	__sync_fetch_and_add(to, 1);
}

// ---------------------------------------------------------------------------------------------------- threads

INLINE struct slot *here(void)
{
	return &slots[bpf_get_smp_processor_id() & (CPUS - 1)];
}

INLINE struct thread *thread_at(u32 index)
{
	return index ? bpf_map_lookup_elem(&threads, &index) : NULL;
}

// The state of the thread that runs, if it is a vCPU's.
INLINE struct thread *current_thread(void)
{
	return thread_at(here()->thread);
}

// A state for a thread that runs a vCPU for the first time; 0 for none.
APART u32 new_thread(void)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id, tgid = id >> 32, index = 0;
	struct slot *slot = here();
	struct thread *thread;

	if (!totals.on || slot->unwanted == id)
		return 0;
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

// As current_thread, and makes one where there is none.
INLINE struct thread *vcpu_thread(void)
{
	struct thread *thread = current_thread();

	return thread ? thread : thread_at(new_thread());
}

// Which vCPU the thread runs now.
APART int learn_vcpu(struct thread *thread, u64 vcpu)
{
	u32 number = 0;

	if (!thread)
		return 0;
	thread->vcpu_at = vcpu;
	bpf_probe_read_kernel(&number, sizeof(number), (void *)(vcpu + config.vcpu_id));
	bpf_probe_read_kernel(&thread->kvm, sizeof(thread->kvm), (void *)(vcpu + config.vcpu_kvm));
	thread->vcpu = number;
	if (config.svm_vmcb01)
		bpf_probe_read_kernel(&thread->vmcb01, sizeof(u64), (void *)(vcpu + config.svm_vmcb01));
	return 0;
}

// ---------------------------------------------------------------------------------------------------- cells

// The first cell for one of the keys, from exact to coarse, that there is room for; 0 for none.
APART u32 new_cell(struct key *key)
{
	u32 *known, cell = 0, kind, step;

	if (!key)
		return 0;
	kind = key->flags & KEY_ACCESS ? 1 : 0;
	for (step = 0; step < 3; step++) {
		u64 *used = step ? &totals.coarse_used[kind] : &totals.exact_used[kind];

		if (step == 1) {
			add_one(&totals.details_dropped);
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

INLINE struct line *line_of(struct thread *thread, u64 first, u64 second, u64 third)
{
	u64 at = ((first + second + third) * 0x9e3779b97f4a7c15ULL) >> 60;

	return &thread->lines[at & (LINES - 1)];
}

APART u32 new_line(struct thread *thread, u64 first, u64 second, u64 third)
{
	u64 words[3] = {first, second, third};
	struct key *key = (struct key *)words;
	struct line *line;
	u32 cell;

	if (!thread)
		return 0;
	cell = new_cell(key);
	// What found no cell of its own is looked for again: each one is counted as one without detail.
	if (!cell || words[0] != first || words[1] != second || words[2] != third)
		return cell;
	line = line_of(thread, first, second, third);
	line->words[0] = first;
	line->words[1] = second;
	line->words[2] = third;
	line->cell = cell;
	return cell;
}

// The cell of a key: struct key, word by word.
INLINE u32 cell_of(struct thread *thread, u64 first, u64 second, u64 third)
{
	struct line *line = line_of(thread, first, second, third);

	if (line->words[0] == first && line->words[1] == second && line->words[2] == third)
		return line->cell;
	return new_line(thread, first, second, third);
}

INLINE u64 first_word(struct thread *thread, u32 reason)
{
	return reason | (u64)thread->index << 32;
}

INLINE u64 second_word(struct thread *thread, u32 kind, u32 flags)
{
	return kind | flags << 8 | thread->vcpu << 16;
}

INLINE struct cell *half(u32 cell, u32 which)
{
	u32 at = which ? cell + config.cells : cell;

	return cell ? bpf_map_lookup_elem(&cells, &at) : NULL;
}

// How many bits a byte has, from the highest that is set.
#define SAME2(n) n, n
#define SAME4(n) SAME2(n), SAME2(n)
#define SAME8(n) SAME4(n), SAME4(n)
#define SAME16(n) SAME8(n), SAME8(n)
#define SAME32(n) SAME16(n), SAME16(n)
#define SAME64(n) SAME32(n), SAME32(n)
const volatile u8 bits_of[256] SEC(".rodata.bits") = {
	0, 1, SAME2(2), SAME4(3), SAME8(4), SAME16(5), SAME32(6), SAME64(7), SAME64(8), SAME64(8),
};

APART u32 long_bucket(u64 ns)
{
	u32 bits = 16;

	for (ns >>= 16; ns > 255 && bits < BUCKETS; bits += 8)
		ns >>= 8;
	bits += bits_of[ns & 255];
	return bits < BUCKETS ? bits : BUCKETS - 1;
}

// 0 for 0 ns, i for [2^(i-1), 2^i) ns.
INLINE u32 bucket(u64 ns)
{
	if (ns < 1 << 8)
		return bits_of[ns & 255];
	if (ns < 1 << 16)
		return bits_of[ns >> 8 & 255] + 8;
	return long_bucket(ns);
}

// More than 4 s: its square is longer than a word.
APART int add_long_square(struct cell *cell, u64 ns)
{
	u64 low = (u32)ns, high = ns >> 32, middle = 2 * low * high, square = low * low + (middle << 32);

	if (!cell)
		return 0;
	cell->square_high += high * high + (middle >> 32) + (square < middle << 32);
	cell->square_low += square;
	cell->square_high += cell->square_low < square;
	return 0;
}

INLINE void tally(struct cell *cell, u64 ns)
{
	u32 at = bucket(ns);

	cell->time += ns;
	if (~ns > cell->not_min)
		cell->not_min = ~ns;
	if (ns > cell->max)
		cell->max = ns;
	if (ns >> 32) {
		add_long_square(cell, ns);
	} else {
		u64 square = ns * ns, sum = cell->square_low + square;

		cell->square_low = sum;
		if (sum < square)
			cell->square_high++;
	}
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

// ---------------------------------------------------------------------------------------------------- exits

INLINE u32 basic(u32 reason)
{
	return ISA == VMX ? reason & 0xffff : reason;
}

// Numbers as in crates/events/src/vmx.rs and svm.rs.
INLINE int is_halt(u32 reason)
{
	return ISA == VMX ? basic(reason) == 12 : reason == 0x78 || reason == 0xa6;
}

// KVM may answer such an exit in the run loop and enter again without kvm_entry.
INLINE int is_fast_path(struct thread *thread)
{
	u32 reason = basic(thread->reason);

	if (ISA == VMX)
		return reason == 32 || reason == 52;
	return reason == 0x7c && thread->info1;
}

// The handlers of these exits have all read the qualification, so KVM has it at hand.
INLINE u64 qualification(struct thread *thread)
{
	u64 value = thread->info1;

	if (config.vmx_qualification)
		bpf_probe_read_kernel(&value, sizeof(value), (void *)(thread->vcpu_at + config.vmx_qualification));
	return value;
}

// What an exit was about when nothing else says it; the kind is returned.
INLINE u32 from_information(struct thread *thread, u64 *value)
{
	u32 reason = basic(thread->reason), type;
	u64 info;

	if (ISA == SVM) {
		if (reason == 0x400) {
			*value = thread->info2 & ~0x1fffffULL;
			return PAGE_FAULT;
		}
		if (reason != 0x7b)
			return NONE;
		*value = thread->info1 >> 16 & 0xffff;
		return thread->info1 & 1 ? PORT_IN : PORT_OUT;
	}
	if (reason != 28 && reason != 30 && reason != 44 && reason != 56)
		return NONE;
	info = qualification(thread);
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

INLINE u64 least(u64 a, u64 b)
{
	return a < b ? a : b;
}

// Hands out the time of an exit that was not the kernel's alone.
INLINE void split(struct thread *thread, struct spans *spans, u64 duration, u64 now, u32 outcome)
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
}

// Counts the exit that is open, whatever it was. Without `timed` its entry is missing. Whether its time was given to
// somebody.
APART int close_any(struct thread *thread, u64 now, int timed)
{
	u32 flags, kind, which = totals.half & 1, outcome = OUTCOME_KERNEL;
	u64 duration, value, second;

	if (!thread)
		return 0;
	flags = thread->flags;
	kind = thread->kind;
	value = thread->value;
	duration = now - thread->start;
	if (!thread->weight)
		kind = from_information(thread, &value);
	if ((flags & (INJECTED | NESTED)) == (INJECTED | NESTED))
		outcome = OUTCOME_L1;
	else if (flags & USER_HALT || is_halt(thread->reason) || (kind == GHCB && value == 0x78))
		outcome = OUTCOME_HALTED;
	else if (flags & USER)
		outcome = OUTCOME_USER;
	second = second_word(thread, kind, outcome << KEY_OUTCOME | (flags & SOLE ? KEY_SOLE : 0));
	if (flags & NESTED)
		second |= KEY_NESTED << 8;
	else if (flags & ANCILLARY)
		second |= KEY_ANCILLARY << 8 | (u64)thread->open_ancillary << 32;
	timed = timed && !(flags & LATE) && now >= thread->start;
	if (timed)
		split(thread, &thread->spans[which], duration, now, outcome);
	count(cell_of(thread, first_word(thread, thread->reason), second, value), which, duration, timed);
	return timed;
}

// Counts the exit that is open at its entry.
INLINE int close(struct thread *thread, u32 which, u64 now)
{
	u32 flags = thread->flags, kind = thread->kind, reason = thread->reason;
	u64 value = thread->value, duration = now - thread->start;

	// What the kernel did alone, about something that it told: most exits that come often.
	if (flags != (OPEN | SOLE) || now < thread->start || is_halt(reason))
		return close_any(thread, now, 1);
	thread->spans[which].kernel += duration;
	count(cell_of(thread, first_word(thread, reason), second_word(thread, kind, KEY_SOLE), value), which, duration, 1);
	return 1;
}

// The accesses of a thread end with its entry, or without a known end.
APART int accesses_end(struct thread *thread, u64 now, int timed)
{
	u32 i, which = totals.half & 1;

	if (!thread)
		return 0;
	for (i = 0; i < ACCESSES; i++) {
		struct access *access = &thread->access[i];

		if (i >= thread->accesses)
			break;
		count(cell_of(thread, first_word(thread, 0), second_word(thread, access->kind, access->flags), access->value),
		      which, now - access->start, timed && now >= access->start);
	}
	thread->accesses = 0;
	return 0;
}

// An exit is open already.
APART int exit_in_exit(struct thread *thread)
{
	if (!thread)
		return 0;
	if (is_fast_path(thread)) {
		close_any(thread, 0, 0);
		accesses_end(thread, 0, 0);
	} else {
		add_one(&totals.unpaired_exits);
	}
	return 0;
}

// kvm_exit from anywhere but the guest, as far as is known, or with more to note.
APART int leave_somewhere(struct thread *thread, u64 now)
{
	u32 state, flags = OPEN;
	u64 span = 0;

	if (!thread)
		return 0;
	if (thread->flags & OPEN)
		exit_in_exit(thread);
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
	thread->state = (state & THREAD_ANCILLARY) | SEEN;
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

// kvm_entry.
INLINE void enter_guest(struct thread *thread, u64 now)
{
	u32 which = totals.half & 1, state = thread->state;
	int told = 0;

	if (thread->flags & OPEN)
		told = close(thread, which, now);
	else if (state & SEEN)
		add_one(&totals.unpaired_entries);
	thread->flags = 0;
	if (thread->accesses)
		accesses_end(thread, now, 1);
	if (!told && state & SEEN && now > thread->since)
		thread->spans[which].unknown += now - thread->since;
	// The exit began where the time before it ended, unless it was late.
	if (told || now > thread->since)
		thread->since = now;
	thread->state = (state & THREAD_ANCILLARY) | SEEN | IN_GUEST;
}

// ---------------------------------------------------------------------------------------------------- within exits

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

// ---------------------------------------------------------------------------------------------------- scheduling

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

// ---------------------------------------------------------------------------------------------------- raw tracepoints
//
// Their arguments are what the kernel's code gives to the tracepoint: nothing is copied and nothing formatted.

#define RAW(name) SEC("raw_tp/" #name) int raw_##name(u64 *args)

// One of two arguments. Both are read first: the kernel's verifier does not let a place in them be computed.
INLINE u64 one_of(u32 second, u64 a, u64 b)
{
	__asm__ volatile("" : "+r"(a), "+r"(b));
	return second ? b : a;
}

// The VMCB's layout is the processor's: AMD APM volume 2, appendix B. EXITCODE is at 0x70.
INLINE void read_vmcb(struct thread *thread, u64 vmcb)
{
	bpf_probe_read_kernel(&thread->reason, 24, (void *)(vmcb + 0x70));
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
	if (ISA == VMX)
		bpf_probe_read_kernel(&thread->reason, 4, (void *)(vcpu + config.vmx_exit_reason));
	else if (config.svm_vmcb01)
		// If it was L2's, kvm_nested_vmexit comes next and says so.
		read_vmcb(thread, thread->vmcb01);
	else
		read_present_vmcb(thread, vcpu);
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
