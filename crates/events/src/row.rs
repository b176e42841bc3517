//! Counted exits: what the accounting emits per interval, what the run folder stores, and what
//! the ledger adds up.

use std::sync::Arc;

use crate::{Detail, Reason};

/// Number of log2 buckets of a [`Tally`]'s histogram.
pub const HIST_BUCKETS: usize = 40;

/// A virtual machine seen in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The id that rows carry: the host process where it is known, else the VM's first thread.
    pub id: u32,
    /// Name of its process or thread; hostile text.
    pub name: String,
    /// The recording had no process ids: the grouping of threads into this VM is an inference
    /// from thread numbers and vCPU ids.
    pub inferred: bool,
}

/// Which guest was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// The guest.
    L1,
    /// The guest's guest.
    L2,
    /// The VM nests, and the recording has no `kvm_nested_vmexit` to tell which.
    Unknown,
}

impl Level {
    /// `L1`, `L2` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Level::L1 => "L1",
            Level::L2 => "L2",
            Level::Unknown => "unknown",
        }
    }
}

/// Who handled an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The host kernel alone.
    Kernel,
    /// The VMM in user space.
    User,
    /// The vCPU halted until something woke it.
    Halted,
    /// An L2 exit that was handed to L1.
    L1,
    /// The recording has no `kvm_userspace_exit`: kernel or user.
    Unknown,
}

impl Outcome {
    /// `kernel`, `user`, `halted`, `l1` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Kernel => "kernel",
            Outcome::User => "user",
            Outcome::Halted => "halted",
            Outcome::L1 => "l1",
            Outcome::Unknown => "unknown",
        }
    }
}

/// What exits are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExitKey {
    /// [`Vm::id`].
    pub vm: u32,
    /// KVM's vCPU id, or [`crate::NO_VCPU`].
    pub vcpu: u32,
    /// Which guest exited.
    pub level: Level,
    /// Why.
    pub reason: Reason,
    /// About what.
    pub detail: Detail,
    /// Who handled it.
    pub outcome: Outcome,
    /// An exit of L1 while it handled an L2 exit of this reason: an ancillary exit.
    pub ancillary_of: Option<Reason>,
}

/// What accesses (MSR, port, MMIO, CPUID, hypercall) are told apart by. One exit can hold several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessKey {
    /// [`Vm::id`].
    pub vm: u32,
    /// KVM's vCPU id, or [`crate::NO_VCPU`].
    pub vcpu: u32,
    /// Which guest made it.
    pub level: Level,
    /// What was accessed, and how.
    pub detail: Detail,
}

/// Counts and times of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// How many, timed or not.
    pub count: u64,
    /// How many of them have a duration. A count-only source (a bpftrace map) has 0.
    pub timed: u64,
    /// Sum of durations, ns.
    pub time_ns: u64,
    /// Shortest, ns; `u64::MAX` when nothing is timed.
    pub min_ns: u64,
    /// Longest, ns.
    pub max_ns: u64,
    /// Sum of squared durations, ns^2, for the standard error.
    pub sum_sq: u128,
    /// Durations by log2: bucket 0 holds 0 ns, bucket i holds `[2^(i-1), 2^i)` ns, the last is open.
    pub hist: [u64; HIST_BUCKETS],
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            count: 0,
            timed: 0,
            time_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            sum_sq: 0,
            hist: [0; HIST_BUCKETS],
        }
    }
}

impl Tally {
    /// The histogram bucket of a duration.
    #[inline]
    pub fn bucket(ns: u64) -> usize {
        ((u64::BITS - ns.leading_zeros()) as usize).min(HIST_BUCKETS - 1)
    }

    /// Lower (inclusive) and upper (exclusive) bound of a bucket, ns. The last has no upper bound.
    pub fn bucket_bounds(bucket: usize) -> (u64, Option<u64>) {
        let low = if bucket == 0 { 0 } else { 1 << (bucket - 1) };
        let high = (bucket + 1 < HIST_BUCKETS).then(|| 1 << bucket);
        (low, high)
    }

    /// Adds one duration.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.timed += 1;
        self.time_ns = self.time_ns.saturating_add(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_sq = self.sum_sq.saturating_add(u128::from(ns) * u128::from(ns));
        self.hist[Self::bucket(ns)] += 1;
    }

    /// Adds occurrences that have no duration.
    pub fn add_untimed(&mut self, count: u64) {
        self.count = self.count.saturating_add(count);
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: &Tally) {
        self.count = self.count.saturating_add(other.count);
        self.timed = self.timed.saturating_add(other.timed);
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_sq = self.sum_sq.saturating_add(other.sum_sq);
        for (a, b) in self.hist.iter_mut().zip(&other.hist) {
            *a = a.saturating_add(*b);
        }
    }
}

/// Exits of one key in one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitRow {
    /// Start of the interval on the recorder's clock, ns. An exit belongs to the interval of its end.
    pub interval_start_ns: u64,
    /// Which exits.
    pub key: ExitKey,
    /// How many and how long, from `kvm_exit` to the next `kvm_entry`.
    pub tally: Tally,
}

/// Accesses of one key in one interval.
///
/// Times are those of `perf kvm stat`: from the access's tracepoint to the next `kvm_entry`; for an
/// MMIO read from `kvm_exit` to the tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRow {
    /// Start of the interval on the recorder's clock, ns.
    pub interval_start_ns: u64,
    /// Which accesses.
    pub key: AccessKey,
    /// How many and how long.
    pub tally: Tally,
}

/// Where the time of one vCPU went in one interval, ns. Spans belong to the interval they end in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRow {
    /// Start of the interval on the recorder's clock, ns.
    pub interval_start_ns: u64,
    /// [`Vm::id`].
    pub vm: u32,
    /// KVM's vCPU id.
    pub vcpu: u32,
    /// All time between the vCPU's first and last event.
    pub wall_ns: u64,
    /// In guest mode.
    pub guest_ns: u64,
    /// The part of `guest_ns` in which the guest's guest ran. It is known with the
    /// `kvm_nested_vmexit` that follows: where an interval ends just between, one row's can be larger than
    /// its `guest_ns`; the sums never are.
    pub l2_ns: u64,
    /// Handling exits in the kernel.
    pub exit_kernel_ns: u64,
    /// Handling exits in the VMM.
    pub exit_user_ns: u64,
    /// Halted, polling included.
    pub halted_ns: u64,
    /// Preempted while handling an exit. (A vCPU is only ever preempted outside guest mode.)
    pub preempted_ns: u64,
    /// Time that cannot be told: exits or entries are missing around it.
    pub unknown_ns: u64,
}

/// Time in one interval in which vCPUs could have run, while they handled exits of one key, and one other thread had
/// their CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptedRow {
    /// Start of the interval on the recorder's clock, ns. The time belongs to the interval in which the exit ends.
    pub interval_start_ns: u64,
    /// The exits.
    pub key: ExitKey,
    /// Name of the thread that ran; hostile text.
    pub by: Arc<str>,
    /// How often it was given the CPU.
    pub count: u64,
    /// Time, ns.
    pub time_ns: u64,
}
