//! A finding: what was found, how sure that is, what it rests on, what it costs, and what may help. Values, no sentences:
//! those are `vmtax-report`'s.

use std::sync::Arc;

use vmtax_events::apicv::ApicvInhibit;
use vmtax_events::observed::{KvmWork, LogMessage, NamedCost, Observed, ShortName, TimedFunction};
use vmtax_events::{Cause, Detail, Isa, ProfileOrigin, Reason};

use super::burst::Burst;
use super::certainty::Certainty;
use super::interrupts::LineTimer;
use super::subject::Subject;
use super::workload::WorkloadResults;
use crate::diff;
use crate::remedy::{Applies, Context, Remedy, RemedyId, VmKind};

/// What something costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FindingCost {
    /// Time of running time: from `low_ns` to `high_ns` of `base_ns`.
    Time {
        /// At least.
        low_ns: u64,
        /// At most.
        high_ns: u64,
        /// Wall time less halted time of the vCPUs.
        base_ns: u64,
        /// Exits, or times that a vCPU waited.
        count: u64,
    },
    /// Time in exits that do not halt, where the running time is unknown: `time_ns` of the `all_ns` of all of them.
    Spent {
        /// In these.
        time_ns: u64,
        /// In all that do not halt.
        all_ns: u64,
        /// How many.
        count: u64,
    },
    /// Exits whose time is not known.
    Count {
        /// How many.
        count: u64,
    },
    /// Not counted by exits.
    Unknown,
}

impl FindingCost {
    /// At most this share of the running time.
    pub fn share(&self) -> Option<f64> {
        match *self {
            FindingCost::Time { high_ns, base_ns, .. } if base_ns > 0 => {
                Some(high_ns as f64 / base_ns as f64)
            }
            _ => None,
        }
    }
}

/// A remedy, and the condition under which it helps where that is not known.
pub struct Advice {
    /// The row.
    pub remedy: &'static Remedy,
    /// The condition.
    pub condition: Option<&'static str>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub enum FoundKind {
    /// Exits of this subject.
    Exits(Subject),
    /// Exits without a subject, by reason.
    OtherExits(Most<Reason>),
    /// Page faults wait for content that the host must fetch.
    FaultsWait,
    /// Halts return at once.
    HaltsReturn,
    /// A timer that the guest does not arm each time wakes it, or its tick does.
    PeriodicTimer {
        /// The guest arms it each time.
        armed: bool,
    },
    /// A timer of the PC interrupts the guest by itself.
    LineTimer(LineTimer),
    /// Something inhibits APICv or AVIC; what, if KVM's number is known.
    ApicvInhibited(Option<ApicvInhibit>),
    /// A register access takes the VMM far longer than others do.
    SlowRegisters,
    /// The host moves pages to make huge ones for the guest.
    Compaction,
    /// The host looks for pages of equal content.
    PageMerging,
    /// The host's mitigation of VMSCAPE makes each exit to the VMM dear.
    VmscapeBarrier,
    /// KVM polls for vCPUs that are halted.
    HostPolls,
    /// The guest uses its APIC through memory.
    Xapic,
    /// The host takes memory back.
    Reclaim,
    /// KVM does not run the guest.
    NoKvm,
    /// The guest's counter of stolen time is wrong.
    StealCounter,
    /// The guest is idle by its own counters, and its host has a processor busy for it.
    IdleInside,
    /// A guest writes memory as fast as its migration sends it.
    MigrationBehind,
    /// A CPU did not leave this function for seconds.
    StuckIn(ShortName),
    /// A CPU of a host did not leave this work for seconds.
    HostStuckIn(KvmWork),
    /// A task was blocked for minutes below this function.
    BlockedIn(ShortName),
    /// A thread of QEMU that is no vCPU's was blocked below it.
    VmmBlockedIn(ShortName),
    /// The log of a boot has gaps, before lines of this driver or subsystem.
    BootGaps(ShortName),
    /// The text names it, and no cost of it.
    Named(NamedCost),
    /// A function of the host's kernel takes long.
    SlowFunction(TimedFunction),
    /// Mitigations make entries and exits dear.
    Mitigations,
    /// The host's kernel takes more of a processor than its guest.
    HostKernel,
    /// A message of a log.
    Message(LogMessage),
    /// vCPUs wait for processors.
    Contention(CpuHolder),
    /// The guest polls while it is idle.
    GuestPolls,
    /// The guest copies data through a bounce buffer.
    BounceBuffer,
    /// Branches are mispredicted more often than in the base.
    BranchMisses,
    /// Loads go to memory of another node more often than in the base.
    RemoteMemory,
    /// The VMM's memory is on several nodes.
    SpreadMemory,
    /// vCPUs wait for the lock of KVM's page tables.
    MmuLock,
    /// Time in functions that wait for locks, of which the profile does not show the callers.
    LockWaits,
    /// All vCPUs of a VM that are shown were on one processor.
    OneProcessor,
    /// A disk is busy nearly all of the time.
    BusyDisk(ShortName),
    /// QEMU's thread of a migration looks at each page for zeros.
    MigrationScan,
    /// The TLB misses more often than in the base.
    TlbMisses,
    /// Conversions of single pages break up huge pages.
    ShatteredRegions,
    /// Memory is mapped in pages of 4 KiB.
    SmallPages {
        /// Because it is private; its pages were not counted.
        private: bool,
    },
    /// The guest changes mappings of an IOMMU that the VMM emulates.
    EmulatedIommu,
    /// The guest's accesses to registers of a passed-through device go through the VMM.
    PassedThroughRegisters,
    /// vCPUs wait until others take an IPI.
    IpiWaits,
    /// The kernel of a profile without functions of KVM moves pages between its NUMA nodes.
    GuestNuma,
    /// This option got losses of benchmarks back.
    Recovery(String),
}

/// Who has the processors that vCPUs wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuHolder {
    /// Nobody: the processors are idle while vCPUs are held back.
    Quota,
    /// Other vCPUs of the VM.
    OwnVcpus,
    /// Other threads.
    Threads,
    /// The guest's host, as its steal shows.
    Host,
    /// The recording does not show who.
    Unknown,
}

impl FoundKind {
    /// It has no row in the table of remedies: its words say what to do.
    pub fn is_cured_by_words(&self) -> bool {
        use FoundKind as F;
        matches!(
            self,
            F::Message(_)
                | F::StealCounter
                | F::IdleInside
                | F::MigrationBehind
                | F::StuckIn(_)
                | F::HostStuckIn(_)
                | F::BlockedIn(_)
                | F::VmmBlockedIn(_)
                | F::BootGaps(_)
                | F::Named(_)
                | F::HostKernel
                | F::EmulatedIommu
                | F::PassedThroughRegisters
                | F::IpiWaits
                | F::GuestNuma
                | F::MmuLock
                | F::LockWaits
                | F::BusyDisk(_)
                | F::OneProcessor
                | F::MigrationScan
        )
    }

    /// The word of a verdict that is this finding.
    pub(super) fn verdict(&self) -> &'static str {
        use FoundKind as F;
        match self {
            F::Exits(_)
            | F::OtherExits(_)
            | F::HaltsReturn
            | F::VmscapeBarrier
            | F::EmulatedIommu
            | F::PassedThroughRegisters
            | F::SlowRegisters
            | F::Xapic
            | F::ApicvInhibited(_)
            | F::Mitigations => "exits",
            F::HostPolls | F::GuestPolls => "polling",
            F::LineTimer(_) | F::PeriodicTimer { .. } => "wake-ups",
            F::Contention(_) | F::OneProcessor | F::IpiWaits | F::MmuLock => "contention",
            F::NoKvm => "no-kvm",
            F::LockWaits | F::BusyDisk(_) | F::MigrationScan | F::HostKernel | F::Named(_) => {
                "undecided"
            }
            F::StealCounter
            | F::Message(_)
            | F::StuckIn(_)
            | F::HostStuckIn(_)
            | F::BlockedIn(_)
            | F::VmmBlockedIn(_) => "message",
            F::BootGaps(_) => "start",
            F::IdleInside => "idle",
            F::SlowFunction(
                TimedFunction::NumaBalancing
                | TimedFunction::EndDirtyLogging
                | TimedFunction::ClearDirtyLog
                | TimedFunction::MarkIdle,
            ) => "memory",
            F::SlowFunction(_) => "start",
            F::BounceBuffer => "bounce-buffer",
            F::BranchMisses => "branch-misses",
            F::Recovery(_) => "results",
            F::FaultsWait
            | F::Compaction
            | F::PageMerging
            | F::Reclaim
            | F::MigrationBehind
            | F::RemoteMemory
            | F::SpreadMemory
            | F::TlbMisses
            | F::ShatteredRegions
            | F::SmallPages { .. }
            | F::GuestNuma => "memory",
        }
    }

    /// Its word. These words never change.
    pub fn id(&self) -> &'static str {
        match self {
            FoundKind::Exits(subject) => subject.name(),
            FoundKind::OtherExits(_) => Subject::Other.name(),
            FoundKind::FaultsWait => Subject::MemoryFaults.name(),
            FoundKind::HaltsReturn => "halts-return",
            FoundKind::PeriodicTimer { .. } | FoundKind::LineTimer(_) => "periodic-timer",
            FoundKind::ApicvInhibited(_) => "apicv-inhibited",
            FoundKind::SlowRegisters => "slow-registers",
            FoundKind::Compaction => "compaction",
            FoundKind::PageMerging => "page-merging",
            FoundKind::VmscapeBarrier => "vmscape-barrier",
            FoundKind::HostPolls => "host-polls",
            FoundKind::Xapic => "xapic",
            FoundKind::Reclaim => "reclaim",
            FoundKind::NoKvm => "no-kvm",
            FoundKind::StealCounter => "steal-counter",
            FoundKind::IdleInside => "idle-inside",
            FoundKind::MigrationBehind => "migration-behind",
            FoundKind::StuckIn(_) => "stuck-function",
            FoundKind::HostStuckIn(_) => "host-stuck",
            FoundKind::BlockedIn(_) | FoundKind::VmmBlockedIn(_) => "blocked-function",
            FoundKind::BootGaps(_) => "boot-gaps",
            FoundKind::Named(_) => "named-cost",
            FoundKind::SlowFunction(TimedFunction::NumaBalancing) => "numa-balancing",
            FoundKind::SlowFunction(TimedFunction::IrqBypass) => "irq-bypass",
            FoundKind::SlowFunction(TimedFunction::WorkerThread | TimedFunction::CreateVm) => {
                "create-vm"
            }
            FoundKind::SlowFunction(TimedFunction::SwapSlots | TimedFunction::CreateSlot) => {
                "memory-slots"
            }
            FoundKind::SlowFunction(TimedFunction::UnregisterDevice | TimedFunction::Ioeventfd) => {
                "ioeventfds"
            }
            FoundKind::SlowFunction(TimedFunction::Keyboard | TimedFunction::ClockProbe) => {
                "boot-probe"
            }
            FoundKind::SlowFunction(TimedFunction::Fsync) => "slow-fsync",
            FoundKind::SlowFunction(
                TimedFunction::EndDirtyLogging | TimedFunction::ClearDirtyLog,
            ) => "dirty-log",
            FoundKind::SlowFunction(TimedFunction::MarkIdle) => "access-tracking",
            FoundKind::Mitigations => "mitigations",
            FoundKind::HostKernel => "host-kernel",
            FoundKind::Message(message) => message.name(),
            FoundKind::Contention(_) => "contention",
            FoundKind::GuestPolls => "guest-polls",
            FoundKind::BounceBuffer => "bounce-buffer",
            FoundKind::BranchMisses => "branch-misses",
            FoundKind::RemoteMemory | FoundKind::SpreadMemory => "remote-memory",
            FoundKind::MmuLock => "mmu-lock",
            FoundKind::LockWaits => "lock-waits",
            FoundKind::BusyDisk(_) => "busy-disk",
            FoundKind::OneProcessor => "one-processor",
            FoundKind::MigrationScan => "migration-scan",
            FoundKind::TlbMisses => "tlb-misses",
            FoundKind::ShatteredRegions => "shattered-regions",
            FoundKind::SmallPages { .. } => "small-pages",
            FoundKind::EmulatedIommu => "emulated-iommu",
            FoundKind::PassedThroughRegisters => "passed-through-registers",
            FoundKind::IpiWaits => "ipi-waits",
            FoundKind::GuestNuma => "guest-numa-balancing",
            FoundKind::Recovery(_) => "results",
        }
    }
}

/// The first few of a list, and how many more there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Most<T> {
    /// The first.
    pub named: Vec<T>,
    /// The number of the others.
    pub more: usize,
}

impl<T> Most<T> {
    /// At most `limit` of `all`.
    pub(super) fn of(mut all: Vec<T>, limit: usize) -> Most<T> {
        let more = all.len().saturating_sub(limit);
        all.truncate(limit);
        Most { named: all, more }
    }
}

/// What a count of TLB misses is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerWork {
    /// A thousand instructions.
    ThousandInstructions,
    /// Nothing: instructions were not counted.
    Recording,
}

/// How an instruction meets memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// It accesses memory.
    Own,
    /// It is right behind a load, where a profiler that is late sees the wait.
    BehindLoad,
    /// Neither.
    None,
}

/// Page walks of one step of a matrix product whose inner loop goes down a column: the lab's suite `paging`, whose test holds these numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedWalks {
    /// The simulated processor.
    pub processor: &'static str,
    /// Walks of a step where the guest's pages or the host's have 4 KiB.
    pub small: f64,
    /// Where both have 2 MiB.
    pub large: f64,
    /// Entries of page tables that a walk reads where the frames of small pages are contiguous.
    pub contiguous: f64,
    /// Where they are scattered over 24 GiB.
    pub scattered: f64,
}

/// On Zen 4.
pub const SIMULATED_WALKS: SimulatedWalks = SimulatedWalks {
    processor: "AMD Zen 4",
    small: 0.9778,
    large: 0.00004,
    contiguous: 2.00,
    scattered: 3.51,
};

/// A line of evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// Exits of a subject.
    Exits {
        /// How many.
        count: u64,
        /// Exits of all subjects.
        total: u64,
        /// Most frequent first.
        reasons: Most<Reason>,
        /// How many a second and vCPU, where times are known.
        rate: Option<f64>,
        /// Their time and that of all exits that do not halt, ns, where the running time is unknown.
        spent_ns: Option<(u64, u64)>,
    },
    /// What exits accessed, how often, and how long on average where that is known, ns: what takes most first.
    Details(Isa, Most<(Detail, u64, Option<u64>)>),
    /// Host interrupts take this long on average, and the scheduler was not recorded, ns.
    LongInterrupts(u64),
    /// Interrupts of the guest's own that are injected by exits.
    InjectedInterrupts(u64),
    /// Host interrupts a second and vCPU: more than a tick.
    InterruptRate(f64),
    /// Halts that end within KVM's polling time.
    ShortHalts {
        /// Of them.
        short: u64,
        /// All that blocked.
        all: u64,
        /// KVM's polling time.
        within_ns: u64,
        /// What polling for all of them costs at most, as a share of the wall time.
        polling: f64,
    },
    /// Notifications take this long on average, ns: too short for an exit to the VMM.
    ShortNotifications(u64),
    /// Page faults take this long on average, ns.
    LongFaults(u64),
    /// Most faults are in regions of 2 MiB that have more of them than pages.
    Refaults {
        /// Faults in these regions.
        faults: u64,
        /// The regions.
        regions: u64,
    },
    /// Something takes pages away, or write-protects them.
    PagesTaken,
    /// Regions of 2 MiB that fault often.
    FaultyRegions {
        /// Of them.
        often: usize,
        /// All that fault.
        all: usize,
        /// Faults from which on it is often.
        faults: u64,
    },
    /// Event selects change at each tick.
    RotatedCounters,
    /// No vCPU was preempted.
    NoPreemption,
    /// Accesses of the VMCS for each entry of L2: so few that a shadow VMCS must be in use.
    ShadowedVmcs(f64),
    /// So few writes to a debug port as a release build of the firmware does at a boot.
    FewDebugWrites(u64),
    /// So few exits that nothing is advised.
    TooFewExits(u64),
    /// Accesses of the APIC's page, and none of an x2APIC MSR.
    ApicInMemory(u64),
    /// Time that vCPUs waited for a processor.
    Preempted {
        /// Waited, ns.
        ns: u64,
        /// Not halted, ns.
        running_ns: u64,
    },
    /// Time in which the recorder itself had the processors that vCPUs waited for: no part of the finding.
    Recorder {
        /// It ran, ns.
        ns: u64,
        /// Not halted, ns.
        running_ns: u64,
    },
    /// Threads that had the processors, and their share of the waiting. Hostile text.
    Takers(Vec<(String, f64)>),
    /// The vCPU that waits most, and the share of its running time.
    WorstVcpu(u32, f64),
    /// A counter beside the base's.
    Counter {
        /// Its name.
        name: &'static str,
        /// In the recording.
        here: f64,
        /// In the base.
        base: f64,
    },
    /// A part of a profile's samples, and its functions with their own shares. Hostile text.
    Samples(ProfileOrigin, f64, Vec<(String, f64)>),
    /// Counters of KVM, beside its exits.
    KvmCounters {
        /// All exits.
        exits: f64,
        /// The counters.
        counters: Vec<(&'static str, f64)>,
    },
    /// Page faults that follow conversions.
    ConversionFaults {
        /// Conversions.
        conversions: u64,
        /// Faults.
        faults: u64,
        /// Regions of 2 MiB that have them.
        regions: usize,
        /// Each has at least so many.
        each: u64,
    },
    /// Memory that is mapped in pages of 4 KiB, by KVM's counters.
    MappedSmall {
        /// The share of the mapped memory.
        share: f64,
        /// The mapped memory, bytes.
        all: f64,
        /// The share in the base.
        base: Option<f64>,
    },
    /// The kind of VM, whose memory is private.
    PrivateMemory(VmKind),
    /// What small pages cost a simulated processor.
    SimulatedWalks(&'static SimulatedWalks),
    /// Misses of the TLB beside the base's. Hostile text.
    MoreMisses {
        /// The counter.
        name: String,
        /// In the recording.
        here: f64,
        /// In the base.
        base: f64,
        /// What they are over.
        per: PerWork,
    },
    /// What TDCALL is of, by the host's kernel; `None`: which way it reports is not known.
    Tdcalls(Option<&'static vmtax_events::tdx::Reporting>),
    /// The plain VM's timer ticks and interrupts of the host, a second, which together are as many as the TD's interrupts.
    TicksOfBase {
        /// Interrupts of the TD.
        here: f64,
        /// Exits of the plain VM's timer.
        ticks: f64,
        /// Interrupts of the plain VM.
        interrupts: f64,
    },
    /// The TD's requests and the plain VM's MSR writes, a second: as many.
    ArmsOfBase {
        /// TDCALLs.
        here: f64,
        /// MSR writes of the plain VM.
        base: f64,
    },
    /// The memory comes from guest_memfd.
    GuestMemfd,
    /// A part of a benchmark's loss that was got back. Hostile text.
    RecoveredPart {
        /// The workload.
        workload: String,
        /// The part.
        part: f64,
        /// The category that lost.
        category: String,
        /// What it lost.
        loss: f64,
    },
    /// What an option costs in other workloads. Hostile text.
    Harm {
        /// The workload in which it costs most.
        workload: String,
        /// The category that has it.
        category: String,
        /// What it loses.
        loss: f64,
        /// Further workloads.
        more: usize,
    },
    /// The arithmetic of the exit tax.
    ExitTax {
        /// The tax.
        tax: f64,
        /// Time in exits, ns.
        exits_ns: u64,
        /// Not halted, ns.
        running_ns: u64,
    },
    /// The exit tax if the unknown time held no exits, and if it held nothing else.
    TaxRange(f64, f64),
    /// A stretch in which exits take most of the time.
    Burst(Burst),
    /// An access that takes the VMM this long on average, ns.
    SlowAccess(Isa, Detail, u64),
    /// Halts, their mean time and the shortest, ns, and all other exits.
    HaltsAtOnce {
        /// Halts.
        count: u64,
        /// Their mean, ns.
        mean_ns: u64,
        /// The shortest, ns.
        min_ns: u64,
        /// Exits that do not halt.
        others: u64,
    },
    /// Wake-ups a second and vCPU, and how often the guest arms its timers, at intervals that are alike.
    PeriodicWakeUps(f64, f64),
    /// What interrupts the guest, and how often a second.
    Wakers(Most<(Detail, f64)>),
    /// What a tool shows.
    Observed(Observed),
    /// Halts that end, a second.
    HaltsEnd(f64),
    /// A timer of the PC is what ends the halts: polling would not end them earlier.
    TimerWakes(LineTimer),
    /// What inhibits APICv or AVIC: KVM's numbers, and what they mean.
    Inhibits(Vec<(u64, Option<ApicvInhibit>)>),
    /// Exits of causes that are compared together, beside the base's.
    CausesCompared {
        /// The causes.
        causes: Vec<Cause>,
        /// In the recording.
        here: u64,
        /// In the base.
        base: u64,
        /// What that shows.
        verdict: diff::DiffVerdict,
    },
    /// Exits of a cause.
    CauseCount {
        /// The cause.
        cause: Cause,
        /// How many.
        count: u64,
        /// Their share of the time in exits.
        share: Option<f64>,
    },
    /// Exits of L1 for each exit of L2.
    Ancillary {
        /// Their reason.
        reason: Reason,
        /// What they access; 0 for nothing.
        value: u64,
        /// How many for each.
        each: f64,
    },
    /// A function of a profile. Hostile text.
    Function {
        /// Its name.
        name: String,
        /// Its share.
        here: FunctionShare,
        /// In the base.
        base: Option<FunctionShare>,
    },
    /// A hot instruction. Hostile text.
    Instruction {
        /// It is one of the base.
        of_base: bool,
        /// As objdump writes it.
        text: String,
        /// Its share of the function.
        share: f64,
        /// How it meets memory.
        access: MemoryAccess,
    },
    /// A counter of TLB misses. Hostile text.
    Misses {
        /// It is the base's.
        of_base: bool,
        /// Its name.
        name: String,
        /// Its value.
        value: f64,
        /// What that is over.
        per: PerWork,
    },
    /// Mapped memory, of either side.
    Mapped {
        /// It is the base's.
        of_base: bool,
        /// The share in pages of 4 KiB.
        share: f64,
        /// All, bytes.
        all: f64,
    },
    /// Faults in the nested page tables, and how many a second.
    Faults(Isa, u64, Option<f64>),
    /// The results of a workload.
    Workload(Arc<WorkloadResults>),
}

/// A function's share of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FunctionShare {
    /// Of the function itself.
    pub own: f64,
    /// With what it calls.
    pub total: f64,
}

/// Something that was found.
pub struct Finding {
    /// What.
    pub found: FoundKind,
    /// How sure it is.
    pub certainty: Certainty,
    /// What it rests on, with numbers and addresses.
    pub evidence: Vec<Evidence>,
    /// What it costs.
    pub cost: FindingCost,
    /// What may help.
    pub remedies: Vec<Advice>,
    /// What does not help here, and why: remedies that others would name.
    pub refused: Vec<(RemedyId, &'static str)>,
    /// What it is ranked by.
    pub(super) weight: f64,
}

impl Finding {
    pub(super) fn new(found: FoundKind, certainty: Certainty) -> Finding {
        Finding {
            found,
            certainty,
            evidence: Vec::new(),
            cost: FindingCost::Unknown,
            remedies: Vec::new(),
            refused: Vec::new(),
            weight: 0.0,
        }
    }

    /// Its word. These words never change.
    pub fn id(&self) -> &'static str {
        self.found.id()
    }

    /// Adds remedies as their conditions allow.
    pub(super) fn advise(&mut self, ids: &[RemedyId], context: &Context) {
        let of_isa = |remedy: &&Remedy| remedy.is_of(context.vendor);
        for remedy in ids.iter().map(|id| id.row()).filter(of_isa) {
            match remedy.applies_to(context) {
                Applies::Yes => self.remedies.push(Advice { remedy, condition: None }),
                Applies::If(condition) => {
                    self.remedies.push(Advice { remedy, condition: Some(condition) });
                }
                Applies::No(why) => self.refused.push((remedy.id, why)),
            }
        }
    }
}
