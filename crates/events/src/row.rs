//! Counted exits: what the accounting emits per interval, what the run folder stores, and what
//! the ledger adds up.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::words::words;
use crate::{Detail, Durations, Reason};

/// The guest's instruction pointers that entries and exits have: how many are 0.
///
/// KVM gives 0 for a guest whose registers it cannot read: a TD, an SEV-ES or SEV-SNP guest (Linux 6.16 and later,
/// arch/x86/kvm/trace.h, `tracing_kvm_rip_read`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RipCounts {
    /// Entries and exits with 0.
    pub zero: u64,
    /// Those with another value.
    pub other: u64,
}

impl RipCounts {
    /// So many have to be 0, and none another: a guest that runs at address 0 for once does not stay there.
    const ENOUGH: u64 = 32;

    #[inline]
    pub fn add(&mut self, rip: u64) {
        if rip == 0 {
            self.zero += 1;
        } else {
            self.other += 1;
        }
    }

    /// Adds those of another thread, or part of the recording.
    pub fn merge(&mut self, more: RipCounts) {
        self.zero = self.zero.saturating_add(more.zero);
        self.other = self.other.saturating_add(more.other);
    }

    /// The guest's registers are encrypted: there are enough, and all are 0.
    pub fn are_encrypted(self) -> bool {
        self.zero >= RipCounts::ENOUGH && self.other == 0
    }

    fn is_none(&self) -> bool {
        *self == RipCounts::default()
    }
}

/// A virtual machine seen in a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// The id that rows carry: the host process where it is known, else the VM's first thread.
    pub id: u32,
    /// Name of its process or thread; hostile text.
    #[serde(default)]
    pub name: String,
    /// The recording had no process ids: the grouping of threads into this VM is an inference
    /// from thread numbers and vCPU ids.
    #[serde(default)]
    pub inferred: bool,
    /// Of its entries and exits.
    #[serde(default, skip_serializing_if = "RipCounts::is_none")]
    pub rips: RipCounts,
    /// KVM's `guest_state_protected` of its vCPUs: their registers are closed to the host (a TD, SEV-ES, SEV-SNP). Recorded by
    /// `vmtax record` on Linux 5.11 and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_protected: Option<bool>,
}

words! {
    /// Which guest was running.
    pub enum Level {
        L1 = "L1",
        L2 = "L2",
        /// The VM nests, and the recording has no `kvm_nested_vmexit` to tell which.
        Unknown = "unknown",
    }
}

words! {
    /// Who handled an exit.
    pub enum Outcome {
        /// The host kernel alone.
        Kernel = "kernel",
        /// The VMM in user space.
        User = "user",
        /// The vCPU halted until something woke it.
        Halted = "halted",
        /// An L2 exit that was forwarded to L1.
        L1 = "l1",
        /// The recording has no `kvm_userspace_exit`: kernel or user.
        Unknown = "unknown",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExitKey {
    /// [`Vm::id`].
    pub vm: u32,
    /// KVM's vCPU id, or [`crate::NO_VCPU`].
    pub vcpu: u32,
    pub level: Level,
    pub reason: Reason,
    pub detail: Detail,
    pub outcome: Outcome,
    /// An exit of L1 while it handled an L2 exit of this reason: an ancillary exit.
    pub ancillary_of: Option<Reason>,
}

impl ExitKey {
    /// An exit of L1 on vCPU 0, without a detail, that the kernel handled.
    pub const fn of(vm: u32, reason: Reason) -> ExitKey {
        ExitKey {
            vm,
            vcpu: 0,
            level: Level::L1,
            reason,
            detail: Detail::NONE,
            outcome: Outcome::Kernel,
            ancillary_of: None,
        }
    }
}

/// The key of accesses (MSR, port, MMIO, CPUID, hypercall). One exit can have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessKey {
    /// [`Vm::id`].
    pub vm: u32,
    /// KVM's vCPU id, or [`crate::NO_VCPU`].
    pub vcpu: u32,
    /// Which guest made it.
    pub level: Level,
    /// The object of the access, and its direction.
    pub detail: Detail,
}

/// Counts and times of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// How many, timed or not.
    pub count: u64,
    /// Number of those with a duration; 0 for sources of counts (a bpftrace map).
    pub timed: u64,
    /// Sum of durations, ns.
    pub time_ns: u64,
    /// Shortest, ns; `u64::MAX` when nothing is timed.
    pub min_ns: u64,
    pub max_ns: u64,
    /// Sum of squared durations, ns^2, for the standard error.
    pub sum_sq: u128,
    /// By size. A source that gave sums alone (the text of `perf kvm stat report`) leaves it empty, and `sum_sq` 0 where
    /// it gave no error.
    pub durations: Durations,
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
            durations: Durations::default(),
        }
    }
}

impl Tally {
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.timed += 1;
        self.time_ns = self.time_ns.saturating_add(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_sq = self.sum_sq.saturating_add(u128::from(ns) * u128::from(ns));
        self.durations.add(ns);
    }

    /// Adds occurrences that have no duration.
    pub fn add_untimed(&mut self, count: u64) {
        self.count = self.count.saturating_add(count);
    }

    pub fn merge(&mut self, other: &Tally) {
        self.count = self.count.saturating_add(other.count);
        self.timed = self.timed.saturating_add(other.timed);
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_sq = self.sum_sq.saturating_add(other.sum_sq);
        self.durations.merge(&other.durations);
    }
}

/// Exits of one key in one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitRow {
    /// Start of the interval on the recorder's clock, ns. An exit belongs to the interval of its end.
    pub interval_start_ns: u64,
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
    pub key: AccessKey,
    /// How many and how long.
    pub tally: Tally,
}

/// What threads with names of vCPUs' waited for processors, in a recording of the scheduler without KVM's events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduledRow {
    /// They ran, ns.
    pub ran_ns: u64,
    /// They were preempted, or woken while another thread had the processor, and waited, ns.
    pub waited_ns: u64,
    /// How often, and for how long (ns), threads of a name ran in their place; hostile text.
    pub takers: BTreeMap<String, (u64, u64)>,
    /// From their wake-ups until they ran, whatever had the processor.
    pub wake_ups: Tally,
}

/// Time in one interval in which vCPUs could have run, while they handled exits of one key, and one other thread had
/// their CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptedRow {
    /// Start of the interval on the recorder's clock, ns. The time belongs to the interval in which the exit ends.
    pub interval_start_ns: u64,
    pub key: ExitKey,
    /// Name of the thread that ran; hostile text.
    pub by: Arc<str>,
    /// The VM and the vCPU that it runs, if it is a vCPU's thread and that is known.
    pub by_vcpu: Option<(u32, u32)>,
    /// How often it was given the CPU.
    pub count: u64,
    pub time_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_encrypted_by_enough_zeros_and_nothing_else() {
        for (zero, other, expected) in
            [(32, 0, true), (31, 0, false), (1_000_000, 1, false), (0, 1000, false), (0, 0, false)]
        {
            assert_eq!(RipCounts { zero, other }.are_encrypted(), expected, "{zero} {other}");
        }
        let mut rips = RipCounts::default();
        [0, 0, 7].iter().for_each(|rip| rips.add(*rip));
        rips.merge(RipCounts { zero: 1, other: u64::MAX });
        assert_eq!(rips, RipCounts { zero: 3, other: u64::MAX });
    }
}
