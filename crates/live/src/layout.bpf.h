// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Structs shared by the programs and user space. build.rs generates the Rust side of every struct from this file.

#include "kernel.bpf.h"

// The programs are compiled for one processor's virtualization: KVM_ISA_VMX or KVM_ISA_SVM of Linux
// arch/x86/kvm/trace.h, or arm64's.
#define VMX 1
#define SVM 2
#define ARM 3
#ifndef ISA
#error "compile with -DISA=1, -DISA=2 or -DISA=3"
#endif

// Most places in KVM's code that are probed for VMCS fields.
#define VMCS_PROBES 4

// Properties of this kernel, and what to record; written before the programs are loaded.
struct config {
	// Cells in each half, threads, and keys of a kind (exits, accesses) that are counted exactly.
	u32 cells;
	u32 threads;
	u32 exact;
	// Count only the processes in `wanted`.
	u32 filtered;
	// Index of the raw tracepoint's argument.
	u32 exit_vcpu;
	u32 fault_address;
	u32 xen_number;
	u32 switch_has_state;
	// Offsets, from the kernel's BTF.
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
	// Offset in struct pt_regs of the register that holds the VMCS field at a probe of KVM.
	u32 vmcs_register[VMCS_PROBES];
	// Single events are sent: all of them, those of one exit in `sample`, or those of exits of at least `slower_ns`.
	u32 raw;
	u32 sample;
	// Offsets in struct kvm_page_fault, 0 if BTF lacks it.
	u32 fault_level;
	u32 fault_gfn;
	u32 vmx_interruption;
	u64 slower_ns;
	// Offset of kvm_vcpu.arch.guest_state_protected.
	u32 vcpu_protected;
	// arm64: offsets of what a thread has the scheduler call, and of a vCPU's part in it; of sys_reg_params.is_write; and of a
	// vCPU's PSTATE and HCR_EL2 (0 if this KVM has no hypervisors in VMs). If HCR_EL2 may be in another page: the pointer to that
	// page, and the place within it.
	u32 task_notifiers;
	u32 vcpu_notifier;
	u32 sysreg_write;
	u32 vcpu_pstate;
	u32 vcpu_hcr;
	u32 vcpu_vncr;
	u32 vncr_hcr;
};
const volatile struct config config SEC(".rodata");

// The key of counted exits or accesses.
struct key {
	u32 reason;
	u32 thread;
	u8 kind;
	u8 flags;
	u16 vcpu;
	u32 ancillary;
	u64 value;
};
// vCPU of a thread before its first event that names one.
#define NO_VCPU 0xffff
#define KEY_NESTED 1
#define KEY_OUTCOME 1 // shift
#define KEY_ACCESS 16
#define KEY_ANCILLARY 32
// The exit's detail is an access.
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
	HALT = 21,
	MEMORY_FAULT = 22,
	TO_PRIVATE = 23,
	TO_SHARED = 24,
	PRE_FAULT = 25,
	MAPPED_FAULT = 26,
	MAPPED_FETCH = 27,
	INTERRUPT = 28,
	SYSREG_READ = 29,
	SYSREG_WRITE = 30,
	SMCCC = 31,
	WAIT = 32,
};

#define BUCKETS 40

// Counts and times of one key in one half. The number of timed ones is the sum of the histogram.
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

// Time of a thread by part, in one half.
struct spans {
	u64 guest;
	u64 l2;
	u64 kernel;
	u64 user;
	u64 halted;
	u64 preempted;
	u64 unknown;
};

// An access that ends with the entry.
struct access {
	u64 start;
	// How long its exit had been preempted before.
	u64 away;
	u64 value;
	u32 kind;
	u32 flags;
};
#define ACCESSES 8

// Cache of a thread: from a key to the key's cell, while it runs one vCPU.
struct line {
	// Low half: the reason; high half: LINE_USED, kind and flags of the key.
	u64 what;
	u64 value;
	// Low half: the cell; high half: the key's ancillary.
	u64 cell;
	u64 unused;
};
#define LINES 16
#define LINE_USED (1 << 16)

// Flags of the open exit.
#define OPEN 1
#define LATE 2
#define NESTED 4
#define INJECTED 8
#define USER 16
#define USER_HALT 32
#define WOKEN 64
#define ANCILLARY 128
#define PREEMPTED 256
// Its detail is an access.
#define SOLE 512

// The part of time that a thread is in.
#define IN_GUEST 1
#define SEEN 2
#define THREAD_ANCILLARY 4
#define OUT 8
#define OUT_PREEMPTED 16
// arm64: L1 has entered L2, and nothing else says that an exit is L2's.
#define RUNS_L2 32
// What lasts beyond an exit and an entry.
#define LASTING (THREAD_ANCILLARY | RUNS_L2)

// A thread that ran on the CPU of a preempted vCPU.
struct taker {
	u64 time;
	u32 tid;
	// 0: unused.
	u32 count;
	// comm, 16 bytes; empty if no switch away from it was seen.
	u64 name[2];
};
// Distinct accesses of one exit; the last slot counts all others.
#define TAKERS 8
#define OTHERS (~0U)

// Most preempted vCPUs tracked for each CPU.
#define WAITERS 4

// Protection of a vCPU; 0: not known.
#define STATE_OPEN 1
#define STATE_PROTECTED 2

struct thread {
	// tgid << 32 | tid, 0 for none: a thread that ended, or a free slot.
	u64 id;
	// 0 if user space may have switched to another vCPU.
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
	// SVM: exit_code, exit_code_hi, exit_info_1 and exit_info_2 as in the VMCB; VMX: the reason and the
	// qualification.
	u32 reason;
	u32 reason_high;
	u64 info1;
	u64 info2;
	// The detail, and its weight.
	u32 weight;
	u32 kind;
	u64 value;
	u64 user_start;
	u64 wakeup;
	u64 preempted_kernel;
	u64 preempted_user;
	u64 accesses;
	// L1's VMCB.
	u64 vmcb01;
	// Single events: exits so far, and whether the events of this one are sent.
	u32 exits;
	u32 chosen;
	// Of its vCPU: whether KVM can read the guest's registers.
	u32 protection;
	u32 unused;
	struct access access[ACCESSES];
	struct spans spans[2];
	struct line lines[LINES];
	// During the open exit: the CPU that it was preempted on, and the threads that ran there since.
	u64 out_cpu;
	struct taker takers[TAKERS];
};

// Of all vCPUs. Values set by user space come first.
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
	// Of exits, and of accesses.
	u64 details_dropped[2];
	// Events that could not be counted: no thread, no cell, or the reason cannot be read.
	u64 lost;
	// Single events dropped because the ring buffer was full; they are counted nevertheless.
	u64 raw_lost;
};
struct totals totals SEC(".bss");


// What runs on a CPU, maintained at sched_switch.
struct slot {
	// The state of the vCPU thread; 0: another thread.
	u64 thread;
	// A vCPU thread that is filtered out.
	u64 unwanted;
	// Single events of this CPU dropped since the last one sent.
	u64 lost;
	// While preempted vCPUs wait for this CPU: the running thread, and since when it runs.
	u64 since;
	u32 running;
	u32 waiting;
	// Their states, 0 for none.
	u32 waiters[WAITERS];
};
// The maximum of Linux (CONFIG_NR_CPUS).
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

// Threads that ran during preempted exits, by cell of the exit. Cells of the second half follow those of the first.
struct taken_key {
	u32 cell;
	u32 tid;
};
struct taken {
	u64 time;
	u64 count;
	u64 name[2];
};
struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 16384);
	TYPE(key, struct taken_key);
	TYPE(value, struct taken);
} taken SEC(".maps");

// Slots that user space has freed.
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

// A single event as sent to user space; raw.rs reads it.
struct event {
	u64 time;
	// tgid << 32 | tid
	u64 id;
	u32 cpu;
	u32 vcpu;
	u32 what;
	u32 reason;
	u64 a;
	u64 b;
	u64 c;
};

enum what {
	EXIT = 1,
	ENTRY = 2,
	MSR = 3,
	PIO = 4,
	MMIO = 5,
	FAST_MMIO = 6,
	CALL = 7,
	FAULT = 8,
	LEAF = 9,
	CR = 10,
	APIC = 11,
	GHCB_ENTER = 12,
	GHCB_REQUEST = 13,
	VMCS = 14,
	USER_EXIT = 15,
	NESTED_EXIT = 16,
	NESTED_INJECT = 17,
	NESTED_ENTER = 18,
	WAKEUP = 19,
	SWITCH = 20,
	LOST = 21,
	THREAD_END = 22,
	INFORMATION = 23,
	ATTRIBUTES = 24,
	MAP_REQUEST = 25,
	SYSREG = 26,
	WAIT_FOR = 27,
};

struct {
	UINT(type, MAP_RINGBUF);
	UINT(max_entries, 4096);
} ring SEC(".maps");

// Events of the open exit, held until its duration is known.
#define HELD 32
struct held {
	u64 count;
	struct event events[HELD];
};
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct held);
} held SEC(".maps");
