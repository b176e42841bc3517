//! What a check found: values. Their words are `vmtax-report`'s.

use std::collections::BTreeMap;

use vmtax_events::setting::{Fact, Kvm, KvmMapped, MemoryBacking, Unknown};
use vmtax_events::words;

use super::host_pages::{PagesFound, PagesSeen};
use crate::remedy::{RemedyId, Setting, VmKind};

words! {
    /// What a check says of a setting.
    pub enum CheckVerdict {
        /// It costs time, or may.
        Costs = "costs you",
        Unknown = "unknown",
        /// It is as wanted.
        Ok = "ok",
        /// It does not matter here.
        NotApplicable = "not applicable",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    Intel,
    /// AMD's, or Hygon's.
    Amd,
}

/// What was found. Texts in it are hostile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundSetting {
    // What several checks find.
    Unread(Option<Unknown>),
    Strange,
    NoMemoryTouched,
    // KVM's modules.
    OtherVendor(Vendor),
    NoParameter(&'static str),
    ServedByOther {
        other: String,
        module: &'static str,
    },
    BuiltInUnused(&'static str),
    ParametersElsewhere(&'static str),
    NotLoaded(&'static str),
    // Performance counters.
    CountersUsed(u64),
    NoCounters,
    CountersOffInAllVms,
    CountersPerhapsUsed,
    CountersUnused,
    NoWatchdog,
    NoSuchWatchdog,
    HostWatchdog,
    GuestWatchdog,
    // Devices.
    BounceBufferUsed {
        most: u64,
        size: u64,
    },
    DevicesOfOtherVmm,
    NoVirtioNet,
    NetworkOutsideVmm,
    VhostNotOpened,
    NetworkInVmm,
    NoVirtio,
    Ioeventfd,
    NoIoeventfd,
    NoVirtioDisk,
    DisksWithThread,
    DisksWithoutThread,
    NoBounceBufferSeen,
    BouncePeakUnknown,
    BounceCountersImpossible,
    NoBounceBuffer,
    BounceBufferFull,
    // Waiting.
    ShortHalts {
        short: u64,
        all: u64,
    },
    FewShortHalts {
        short: u64,
        all: u64,
    },
    NotYetPolled(u64),
    PollingUnknown(u64),
    GuestAndKvmPoll,
    GuestPollingUnknown,
    OnlyGuestPolls,
    NobodyPolls,
    KvmPollingOff,
    PollingWasted,
    PollingSuccessful,
    GuestHasIdlePoll,
    GuestPolls,
    HaltpollOfZero,
    ConfidentialGuestHalts,
    GuestHalts,
    NoIdlePoll,
    IdlePollOfSomeVm,
    IdlePollPinned,
    IdlePollShared,
    IdlePollUnknown,
    // Interrupt controllers, IPIs, spinning.
    ApicOfVmm(String),
    SplitIrqchip,
    SplitIrqchipForIommu,
    SplitIrqchipOfTd,
    IrqchipInKernel,
    IrqchipOfOtherVmm,
    AvicInhibited(Vec<Inhibit>),
    X2apic,
    Xapic,
    NoFeature,
    OffFeatureUnknown,
    ApicVirtual,
    ApicExits,
    NotForTds,
    IpisVirtual,
    IpiExits,
    InhibitedBySev,
    Avic,
    NoAvic,
    AvicOff,
    AvicOfOtherVmm,
    AvicNotInhibited,
    IpisOfProcessor,
    PvIpisOfOtherVmm,
    NoPvIpis,
    PvIpisOffered,
    SpinningYields,
    SpinningNotDetected,
    SpinningNeverYields,
    SpinningChanged,
    // Pages.
    Thp(String),
    ThpDefrag(String),
    ThpShmem(String),
    PrivateBacking(VmKind),
    HugePages(MemoryBacking),
    FewHugePages(MemoryBacking),
    SeePrivatePages(VmKind),
    MappedLarge(KvmMapped),
    MappedSmall(KvmMapped),
    PrivateLarge(VmKind),
    PrivateSmall(VmKind),
    PrivateSmallByKernel(VmKind),
    PrivateUnknown(VmKind),
    HostPages(PagesFound),
    NoThp,
    AllPrivate,
    AllOnHugetlbfs,
    ThpNever,
    ThpDefragNever,
    SharedMemoryUnknown,
    NoSharedMemory,
    ThpShmemNever,
    DebugfsDenied,
    DebugfsMissing,
    NothingMapped,
    PrivacyUnknown,
    NoPrivateMemory,
    NxOff,
    NxNeedless,
    NxNeeded,
    NxNeedUnknown,
    /// KVM splits huge pages as the processor needs, on a host whose isolated processors suggest guests that must not wait.
    NxSpikes,
    KsmOff,
    Ksm,
    NoKsm,
    // Nesting.
    Nesting,
    NestingOff,
    NobodyNests,
    OffNestingUnknown,
    ShadowVmcs,
    NoShadowVmcs,
    Vls,
    NoVls,
    Vgif,
    NoVgif,
    Vnmi,
    NoVnmi,
    NestedPaging,
    NoNestedPaging,
    Vpid,
    NoVpid,
    TdpMmu,
    NoTdpMmu,
    TdpMmuNeedsNestedPaging,
    MediatedPmu,
    MediatedPmuOff,
    CountersEmulated,
    Mbec,
    NoMbec,
    // Windows.
    WindowsOfOtherVmm,
    PerhapsWindows,
    /// The same of a part of a configuration: the rest may have enlightenments.
    PerhapsWindowsOfPart,
    NotWindows,
    WindowsTimers,
    SynicBesideApic(&'static str),
    WindowsIpis,
    /// Windows measures its clocks at each boot.
    WindowsCalibrates,
    /// Windows 7 with UEFI firmware and enlightenments.
    OldWindowsOnUefi,
    /// QEMU makes up for ticks of the RTC.
    RtcCatchesUp,
    /// It does not, or that is not known.
    RtcDoesNot,
    WindowsReadsFrequencies,
    Enlightened,
    CpuOverridden,
    Accelerated,
    AccelerationNotSaid,
    NotAccelerated,
    DebugBuild,
    NoDebugBuild,
    NoVirtioRng,
    RandomNeverWaits,
    RandomWaits,
    RandomMayWait,
    OneVcpuOneQueuePair,
    OneQueuePair,
    SeveralQueuePairs,
    QueuePairsLost,
    QueuePairsNotSaid,
    QueuePairsImpossible,
    OwnDiskFormats,
    ForeignDiskFormat,
    NoDiskCache,
    DiskCacheDirect,
    DiskCacheOfHost,
    DiskCacheWaits,
    NoHpet,
    HpetOn,
    HpetOfWindows,
    ModelNotSaid,
    NamedModel,
    NothingToMitigate,
    WindowsMitigates,
    /// The same, where the host's processor is not known.
    WindowsMayMitigate,
    // Placement.
    CpusShared {
        cpus: String,
        names: Vec<String>,
    },
    NotSwapped,
    Swapped(u64),
    EmulatedDevices,
    NoEmulatedDevices,
    TickWhileIdle,
    TickStops,
    IothreadsShare(String),
    DeviceInterrupts(String),
    FewDeviceInterrupts,
    ManyNodes(String),
    FarMemory {
        far: u64,
        all: u64,
    },
    OnNode(String),
    HostTick(String),
    NotIsolated(String),
    RcuInterrupts(String),
    VcpusUnnamed,
    VcpusPinned,
    VcpusMove,
    NoIothread,
    VcpusNotPinned,
    IothreadsApart,
    NoNuma,
    NumaUnknown,
    OneNode,
    GuestTick,
    GuestNohz,
    GuestWithoutNohz,
    HostNohz,
    Isolated,
    RcuElsewhere,
    // Frequency and idle states.
    Turbo(bool),
    NoFrequencies,
    HighestFrequency,
    FrequencyOfLoad,
    NoTurboSwitch,
    NoIdleStates,
    IdleStates,
    // Timers and clocks.
    Clock(String),
    TdTimer,
    PreemptionTimer,
    NoPreemptionTimer,
    HostTimers,
    TscDeadline,
    MaskedTscDeadline,
    NoTscDeadline,
    DeviceClock,
    OneClock,
    // Versions.
    Backport {
        kind: VmKind,
        first: (u32, u32),
    },
    KernelRuns(VmKind),
    KernelNeedUnknown,
    NoKernelNeeded,
    MicrocodeDiffers,
    MicrocodeCurrent,
    MicrocodeOld,
    MicrocodeOfHost,
    MicrocodeUnknown,
    KernelWithoutTdx,
    NoTds,
    TdxModule,
    TdxModuleUnknown,
    SnpFirmware,
    NoSnp,
    NoVulnerabilities,
    Mitigations,
    // Starting VMs.
    CgroupMovesWait,
    CgroupMovesQuick,
    CgroupOne,
    StartsWithoutMove,
    StartsUnknown,
    SlotsWait,
    SlotsWithoutDevices,
    SlotsUnknown,
    // arm64.
    KvmAtEl2,
    KvmNested,
    HostAtEl1,
    ProtectedHost,
    KvmOff,
    PageSize {
        page: u64,
        huge: u64,
    },
    WfeByTasks,
    WfeNeverTraps,
    WfeAlwaysTraps,
    GicTraps,
    NoGicTraps,
    Gicv4,
    NoGicv4,
    NothingPassedThrough,
    PerhapsPassedThrough,
    StealTimeOfOtherVmm,
    NoStealTime,
    StealTime,
}

/// Why KVM does not use AVIC for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inhibit {
    Sev,
    SynIc,
    PitReinjection,
}

/// A setting that a verdict rests on. Texts in it are hostile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenSetting {
    /// As it was read.
    Text(String),
    /// A list of words does not have this one.
    Without(&'static str),
    /// The processor's flags have this one, or not.
    Flag(&'static str, bool),
    /// Devices of these types have an option, or lack it.
    Devices {
        option: &'static str,
        /// They lack it.
        without: bool,
        types: Vec<String>,
    },
    /// The VM lacks these words of its processor.
    Lacks(Vec<&'static str>),
    /// The command line of another VMM than QEMU.
    NotQemu,
    /// What on the command line inhibits AVIC.
    Inhibits(Vec<Inhibit>),
    /// The VMM has `/dev/vhost-net` open, or not.
    VhostNet(bool),
    /// No thread has the name of a vCPU's.
    NoVcpuThread,
    /// The CPUs that each vCPU may run on.
    VcpusOn(Vec<String>),
    /// The CPUs that each iothread may run on.
    IothreadsOn(Vec<String>),
    /// Interrupts of these devices at a CPU, a second.
    Interrupts {
        devices: String,
        cpu: u32,
        /// How many a second since the boot.
        rate: u64,
    },
    /// How cgroup2 is mounted: with favordynmods, or without.
    Favordynmods(bool),
    /// Memory by node, bytes.
    Nodes(BTreeMap<u32, u64>),
    /// Number of CPUs by their governor.
    Governors(BTreeMap<String, usize>),
    /// Idle states, and whether each is off.
    IdleStates(Vec<(String, bool)>),
    /// Kinds of a VM's memory.
    Backing(MemoryBacking),
    /// Memory in the host's swap, bytes.
    Swap(u64),
    /// Sizes of the pages that KVM mapped.
    Mapped(KvmMapped),
    /// Times of loads in a guest.
    HostPages(Box<PagesSeen>),
    /// The file is there, or names a VM.
    SignOfVm,
    /// Time that KVM polled successfully, and in vain, ns.
    Polled(u64, u64),
    /// Exits of L2 are in the run.
    NestedExits,
    /// Entries of L2 that KVM counted.
    NestedEntries(u64),
    /// Versions of microcode.
    Microcode(Vec<String>),
    /// Vulnerabilities that are mitigated, of all.
    Mitigated(usize, usize),
}

impl From<String> for SeenSetting {
    fn from(text: String) -> SeenSetting {
        SeenSetting::Text(text)
    }
}

/// How to change a setting. Every text in it is of this program, but for paths and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Write a value into a file, now.
    Write { path: String, value: &'static str },
    /// Write a value into each file of a pattern of [`vmtax_events::setting::files`], now.
    WriteEach { pattern: &'static str, value: &'static str },
    /// An option of a kernel module, from when it is loaded next.
    Module { module: &'static str, option: &'static str },
    /// Words for the kernel's command line, from the next boot.
    Kernel(String),
    /// How the VM is to be started.
    Vmm(QemuStart),
    /// Give each of these threads a CPU of its own.
    Pin(Vec<u32>),
    /// Something else to do.
    Advice(ManualAdvice),
}

/// How QEMU is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QemuStart {
    /// With these words.
    With(&'static str),
    /// With its memory in reserved huge pages.
    OnHugetlbfs,
    /// With its memory in huge pages of any kind; which VMM starts it is not known.
    InHugePages,
    /// The same, if it is no SEV-SNP guest.
    InHugePagesUnlessSnp,
    /// Without the options that inhibit AVIC.
    WithoutInhibits,
    /// With KVM's interrupt controllers.
    KernelIrqchip,
}

/// What to do by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManualAdvice {
    OpenVhost,
    PinOrHaltpoll,
    DefaultSpinning,
    PlaceOnOneNode,
    MoveMemory,
    IsolatedPartition,
    UpdateMicrocode,
    PinApart,
    MoveInterrupts,
    FavorDynmods,
    SlotsFirst,
    FewerIoeventfds,
    OneCpuOption,
    BuildForRelease,
    ConvertDisk,
    PinInConfiguration,
    LessMemory,
    UseVirtio,
    StopTick,
    Unprotected,
    /// A word of the host's kernel command line.
    WithoutWord(&'static str),
}

impl Fix {
    /// The setting of this row of the table of remedies.
    pub(super) fn of_remedy(id: RemedyId) -> Option<Fix> {
        id.row().setting.map(Fix::of_setting)
    }

    fn of_setting(setting: Setting) -> Fix {
        match setting {
            Setting::File { path, value } => Fix::Write { path: path.to_owned(), value },
            Setting::Module { module, option } => Fix::Module { module, option },
            Setting::Kernel(word) => Fix::Kernel(word.to_owned()),
            Setting::Qemu { words, .. } => Fix::Vmm(QemuStart::With(words)),
        }
    }

    /// The option of a module that is built in belongs on the kernel's command line.
    pub(super) fn for_kernel(self, kvm: &Kvm) -> Fix {
        match self {
            Fix::Module { module, option }
                if kvm.module(module).is_some_and(|module| module.built_in) =>
            {
                Fix::Kernel(format!("{module}.{option}"))
            }
            fix => fix,
        }
    }
}

/// Why a fix is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The option is QEMU's, and the VMM is another.
    OtherVmm,
    /// The table of remedies rules it out, with this reason.
    Remedy(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFound {
    pub verdict: CheckVerdict,
    pub what: FoundSetting,
    /// The settings that it rests on.
    pub evidence: Vec<Fact<SeenSetting>>,
    /// How to change it.
    pub fix: Option<Fix>,
    /// Why there is no fix, though one is known.
    pub refused: Option<Refused>,
}

impl CheckFound {
    fn new(verdict: CheckVerdict, what: FoundSetting) -> CheckFound {
        CheckFound { verdict, what, evidence: Vec::new(), fix: None, refused: None }
    }

    pub(super) fn ok(what: FoundSetting) -> CheckFound {
        CheckFound::new(CheckVerdict::Ok, what)
    }

    pub(super) fn costs(what: FoundSetting) -> CheckFound {
        CheckFound::new(CheckVerdict::Costs, what)
    }

    pub(super) fn unknown(what: FoundSetting) -> CheckFound {
        CheckFound::new(CheckVerdict::Unknown, what)
    }

    pub(super) fn not_applicable(what: FoundSetting) -> CheckFound {
        CheckFound::new(CheckVerdict::NotApplicable, what)
    }

    pub(super) fn seen(mut self, fact: Fact<impl Into<SeenSetting>>) -> CheckFound {
        self.evidence.push(fact.map(Into::into));
        self
    }

    pub(super) fn remedy(mut self, id: RemedyId) -> CheckFound {
        self.fix = Fix::of_remedy(id);
        self
    }

    pub(super) fn fix(mut self, fix: Fix) -> CheckFound {
        self.fix = Some(fix);
        self
    }

    pub(super) fn refuse(&mut self, why: Refused) {
        (self.fix, self.refused) = (None, Some(why));
    }

    /// A setting could not be read.
    pub(super) fn unread(fact: Fact<impl Into<SeenSetting>>) -> CheckFound {
        CheckFound::unknown(FoundSetting::Unread(fact.value.as_ref().err().cloned())).seen(fact)
    }

    /// A setting says something that it should not.
    pub(super) fn strange(fact: Fact<impl Into<SeenSetting>>) -> CheckFound {
        CheckFound::unknown(FoundSetting::Strange).seen(fact)
    }
}
