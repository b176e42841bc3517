//! Measured values of a lab or benchmark run, other than counted exits.

use crate::words::words;

/// One measured value of one workload.
///
/// The lab stores, for each operation, how many ran in the traced window ([`Sample::OPERATIONS`]) and
/// the path length of each batch ([`Sample::PATH`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What ran. In a lab run the name of the [`crate::Vm`] whose rows belong to it: `cpuid`, or
    /// `cpuid@L2` for the same operation as the guest's guest.
    pub workload: String,
    /// `L1` or `L2` in a lab run, a VM category in a benchmark.
    pub category: String,
    /// Which repetition, from 0.
    pub repeat: u32,
    /// The metric: `operations`, `path`, ...
    pub metric: String,
    /// Unit of `value`: `count`, `instructions`, ...
    pub unit: String,
    pub value: f64,
    /// Which values are good news.
    pub better: Better,
}

impl Sample {
    /// Metric: operations that ran in the traced window; unit `count`.
    pub const OPERATIONS: &'static str = "operations";
    /// Metric: instructions of one operation, from the guest's instruction back to the guest; unit
    /// `instructions`, one sample per batch.
    pub const PATH: &'static str = "path";
    /// Metric: what a guest found with counters of KVM's virtual PMU where that is known beforehand: instructions in its counter; unit
    /// `instructions`, one sample per batch, the first included.
    pub const COUNTED: &'static str = "guest-counted";
    /// Metric: time of a step of a VM's life that the processor was idle, which is not in its path; unit `ns`, one sample per life.
    pub const WAITED: &'static str = "waited";
    /// What the metrics begin with that say where the step of one life waited: the function and its callers follow, as in
    /// `waited-in synchronize_rcu < rcu_sync_enter`; unit `ns`.
    pub const WAITED_IN: &'static str = "waited-in ";
    /// Metric: exits of the step, of one life, are in the recording; 1, unit `count`. Absent in runs before they were.
    pub const STEP_RECORDED: &'static str = "step-recorded";
    /// Metric: instructions of an operation at EL2 of arm64, where code there is apart from the host's kernel, unit `instructions`.
    pub const AT_EL2: &'static str = "instructions-at-el2";
    /// Metric: exits of the recorded batch, counted in the emulator; unit `count`. KVM's tracepoints do not see those that code at EL2 handles by itself.
    pub const EXCEPTIONS: &'static str = "exceptions";
    /// What the metrics begin with that have those of one reason, whose name follows; unit `count`.
    pub const EXCEPTIONS_OF: &'static str = "exceptions ";
    /// What all metrics about memory begin with.
    pub const MEMORY: &'static str = "memory-";
    /// Metric: 2 MiB regions of memory that the recorded batch touches; unit `count`. The next ones are of that batch too, and absent
    /// where the kernel does not say.
    pub const REGIONS: &'static str = "memory-regions";
    /// Metric: 1 where that memory comes from guest_memfd; unit `count`.
    pub const GUEST_MEMFD: &'static str = "memory-guest-memfd";
    /// Metric: page faults of the vCPU by KVM's own counter (`pf_taken`); unit `count`.
    pub const FAULTS: &'static str = "memory-faults";
    /// Metrics: pages of 4 KiB, 2 MiB and 1 GiB mapped at its end, by KVM's counters (`pages_4k`, `pages_2m`, `pages_1g`); unit
    /// `count`.
    pub const PAGES: [&'static str; 3] = ["memory-pages-4k", "memory-pages-2m", "memory-pages-1g"];
    /// Metrics: the same by the tracepoint `kvm_mmu_spte_requested`; unit `count`.
    pub const TRACED: [&'static str; 3] =
        ["memory-traced-4k", "memory-traced-2m", "memory-traced-1g"];
    /// Metric: instructions that populated and pre-faulted the memory before the batch; unit `instructions`.
    pub const PREPARED: &'static str = "memory-prepared";
    /// Metric: conversions between private and shared by hypercall; unit `count`.
    pub const CONVERSIONS: &'static str = "memory-conversions";
    /// Metric: conversions at `KVM_EXIT_MEMORY_FAULT`; unit `count`.
    pub const MEMORY_FAULTS: &'static str = "memory-fault-exits";
    /// What all metrics about simulated translation of addresses begin with: those of [`Simulated`], behind which a space and the processor's name
    /// follow, and the next ones. All are of one batch.
    pub const PAGING: &'static str = "paging-";
    /// Metric: loads and stores; unit `count`.
    pub const PAGING_ACCESSES: &'static str = "paging-accesses";
    /// Metrics: instructions that the operation's code executed, and those of them that are branches; unit `count`.
    pub const PAGING_EXECUTED: [&'static str; 2] = ["paging-instructions", "paging-branches"];
    /// What metrics begin with that say how many different pages of 4 KiB were accessed, by the pages that map them: `4K on 2M` follows, the size of
    /// the guest's page and that of the host's; unit `count`.
    pub const PAGING_PAGES: &'static str = "paging-pages ";
    /// What metrics begin with that are of one instruction of the batch: its offset in the payload and its text follow, a semicolon, and the metric, as in
    /// `paging-at +0x9d mulss xmm0,dword ptr [rdi]; paging-walks zen4`. Those that are 0 are left out.
    pub const PAGING_AT: &'static str = "paging-at ";
    /// What metrics begin with that are of the guest's kernel: one of those above follows. Those without are of a program.
    pub const PAGING_KERNEL: &'static str = "paging-in-kernel ";
    /// Metric: operations of the batch that a call tree ([`crate::CallRow`]) is of; unit `count`. The next four are of that batch too.
    pub const PROFILED: &'static str = "profile-operations";
    /// Metric: instructions that began between the two readings of the clock; unit `instructions`.
    pub const PROFILE_BEGUN: &'static str = "profile-begun";
    /// Metric: those of them that were not done, because they were intercepted or raised a fault; unit `instructions`.
    pub const PROFILE_UNDONE: &'static str = "profile-undone";
    /// Metric: those of the payload's own loop, which are in no tree; unit `instructions`.
    pub const PROFILE_LOOP: &'static str = "profile-loop";
    /// Metric: time that passed without instructions while the processor waited; unit `ns`.
    pub const PROFILE_IDLE: &'static str = "profile-idle";
    /// Metric: how often the main loop of a VMM got a processor during the traffic of a VM of QEMU on an emulated host.
    pub const VMM_TURNS: &'static str = "vmm-turns";
    /// Metric: the same of vhost's worker in the host's kernel; unit `count`.
    pub const VHOST_TURNS: &'static str = "vhost-turns";
    /// Metric: the same of a VMM's thread for a disk's queue; unit `count`.
    pub const IO_TURNS: &'static str = "io-thread-turns";
    /// The end of the name of a workload whose client is in a second VM.
    pub const WITH_PEER: &'static str = " with peer";
    /// And how the category of that second VM begins.
    pub const PEER_OF: &'static str = "peer of ";
    /// Metric: how long the traffic took by the host's clock; unit `ns`.
    pub const ELAPSED: &'static str = "elapsed";
}

/// What the accesses of one batch cost a simulated processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Accesses that missed the first data cache.
    pub data_misses: u64,
    /// Accesses that missed the first data TLB.
    pub l1_misses: u64,
    /// Accesses that missed the second one too: page walks.
    pub walks: u64,
    /// Entries of page tables that walks read, by where: L1, L2, L3, memory.
    pub references: [u64; 4],
    /// Latencies of these references, added up.
    pub walk_cycles: u64,
    /// Latencies of all accesses, walks included, added up: the time of loads that depend on each other.
    pub cycles: u64,
}

impl Simulated {
    /// Metric, unit and value of each number. The processor's name follows the metric.
    pub fn figures(mut self) -> [(&'static str, &'static str, u64); 9] {
        self.fields().map(|(metric, unit, value)| (metric, unit, *value))
    }

    /// Whether the references of walks and latencies were simulated: not of a processor whose walker is not known.
    pub fn is_timed(&self) -> bool {
        self.cycles > 0
    }

    /// The [figures](Simulated::figures) that were simulated.
    pub fn known_figures(self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        const MISSES: usize = 3;
        let known = if self.is_timed() { self.figures().len() } else { MISSES };
        self.figures().into_iter().take(known)
    }

    /// Sets the number of this metric; whether there is one.
    pub fn set(&mut self, metric: &str, value: u64) -> bool {
        let field = self.fields().into_iter().find(|(name, ..)| *name == metric);
        field.map(|(_, _, field)| *field = value).is_some()
    }

    fn fields(&mut self) -> [(&'static str, &'static str, &mut u64); 9] {
        let [l1, l2, l3, memory] = &mut self.references;
        [
            ("paging-data-misses", "count", &mut self.data_misses),
            ("paging-l1-misses", "count", &mut self.l1_misses),
            ("paging-walks", "count", &mut self.walks),
            ("paging-references-l1", "count", l1),
            ("paging-references-l2", "count", l2),
            ("paging-references-l3", "count", l3),
            ("paging-references-memory", "count", memory),
            ("paging-walk-cycles", "cycles", &mut self.walk_cycles),
            ("paging-cycles", "cycles", &mut self.cycles),
        ]
    }

    /// All of them together.
    pub fn sum(all: &[Simulated]) -> Simulated {
        let mut sum = Simulated::default();
        for one in all {
            let parts = one.figures().map(|(.., value)| value);
            sum.fields().into_iter().zip(parts).for_each(|((.., into), value)| *into += value);
        }
        sum
    }

    /// Entries of page tables that walks read.
    pub fn all_references(&self) -> u64 {
        self.references.iter().sum()
    }
}

words! {
    /// Which values of a metric are good news.
    pub enum Better {
        /// Small ones: a latency, a path length.
        Lower = "lower",
        /// Large ones: a throughput.
        Higher = "higher",
        /// Neither: a count of work done.
        Neither = "neither",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are stored: one that changes makes old runs unreadable.
    #[test]
    fn words() {
        assert_eq!(Better::ALL.map(Better::name), ["lower", "higher", "neither"]);
        for better in Better::ALL {
            assert_eq!(Better::from_name(better.name()), Some(better));
        }
        assert_eq!(Better::from_name("Lower"), None);
    }
}
