//! What a check found, in words: one match for each type, so that a finding without words does not compile.

mod host_pages;
mod rules;

use vmtax_analyse::audit::{
    CheckFound, Fix, FoundSetting, Inhibit, ManualAdvice, QemuStart, Refused, SeenSetting, Vendor,
};
use vmtax_events::setting::MemoryBacking;

use super::audit::{module_file, shell_pattern};
use crate::names::printable;
use crate::numbers::{count, size};

pub use rules::{RuleWords, rule};

/// What was found, in one sentence without its full stop. Hostile text.
pub fn found(found: &CheckFound) -> String {
    let what = what(&found.what);
    match found.refused {
        None => what,
        Some(Refused::OtherVmm) => {
            format!("{what}; the option is known for QEMU alone, and this is another VMM")
        }
        Some(Refused::Remedy(why)) => format!("{what}; {why}"),
    }
}

fn what(what: &FoundSetting) -> String {
    match what {
        FoundSetting::Unread(None) => "the setting could not be read: ".into(),
        FoundSetting::Unread(Some(why)) => format!("the setting could not be read: {why}"),
        FoundSetting::Strange => "the setting has an unknown value".into(),
        FoundSetting::NoMemoryTouched => "the VM has touched no memory yet".into(),
        FoundSetting::OtherVendor(Vendor::Intel) => "the processor is not Intel's".into(),
        FoundSetting::OtherVendor(Vendor::Amd) => "the processor is not AMD's".into(),
        FoundSetting::NoParameter(module) => format!("this kernel's {module} has no such parameter"),
        FoundSetting::ServedByOther { other, module } => format!("KVM is served by {other}, not by {module}"),
        FoundSetting::BuiltInUnused(module) => format!("{module} is built into the kernel, and the processor cannot run it"),
        FoundSetting::ParametersElsewhere(module) => format!("{module} is loaded, and its parameters are not among these files"),
        FoundSetting::NotLoaded(module) => format!("the module {module} is not loaded"),
        FoundSetting::CountersUsed(exits) => format!("guests use their performance counters: {} exits in the run", count(*exits)),
        FoundSetting::NoCounters => "guests have no performance counters".into(),
        FoundSetting::CountersOffInAllVms => "all VMs are started without performance counters (pmu=off)".into(),
        FoundSetting::CountersPerhapsUsed => "guests have performance counters; a run shows whether they use them".into(),
        FoundSetting::CountersUnused => "guests have performance counters and did not touch them in the run: KVM switches them at each entry".into(),
        FoundSetting::NoWatchdog => "no watchdog occupies a counter".into(),
        FoundSetting::NoSuchWatchdog => "the kernel has no such watchdog".into(),
        FoundSetting::HostWatchdog => "the watchdog occupies one counter of each CPU, and interrupts guests with NMIs".into(),
        FoundSetting::GuestWatchdog => "the guest's watchdog keeps a counter of each vCPU busy: exits to arm it, and counters that KVM must switch".into(),
        FoundSetting::BounceBufferUsed { most, size } => format!("at most {} of the bounce buffer was in use", share(*most, *size)),
        FoundSetting::DevicesOfOtherVmm => "devices are read from QEMU's command line, and this is another VMM".into(),
        FoundSetting::NoVirtioNet => "the VM has no virtio-net device".into(),
        FoundSetting::NetworkOutsideVmm => "the network's data path is not in the VMM".into(),
        FoundSetting::VhostNotOpened => "vhost=on, and yet the VMM moves every packet of the network: QEMU could not open /dev/vhost-net".into(),
        FoundSetting::NetworkInVmm => "the VMM moves every packet of the network: each notification is an exit to it".into(),
        FoundSetting::NoVirtio => "the VM has no virtio device".into(),
        FoundSetting::Ioeventfd => "notifications of virtio devices wake a thread (the default)".into(),
        FoundSetting::NoIoeventfd => "every notification of the device waits for the VMM in the vCPU's thread".into(),
        FoundSetting::NoVirtioDisk => "the VM has no virtio disk".into(),
        FoundSetting::DisksWithThread => "disks have their own thread".into(),
        FoundSetting::DisksWithoutThread => "disks share the VMM's main thread with everything else".into(),
        FoundSetting::NoBounceBufferSeen => "the guest has no bounce buffer, or its debugfs is not mounted".into(),
        FoundSetting::BouncePeakUnknown => "peak use is unknown: the guest's kernel is older than 6.4".into(),
        FoundSetting::BounceCountersImpossible => "the counters have impossible values".into(),
        FoundSetting::NoBounceBuffer => "the guest has no bounce buffer".into(),
        FoundSetting::BounceBufferFull => "the bounce buffer was full: I/O waited or failed".into(),
        FoundSetting::ShortHalts { short, all } => format!("off, and {} of {} halts of the run were shorter than KVM's usual polling time", count(*short), count(*all)),
        FoundSetting::FewShortHalts { short, all } => format!("off, and only {} of {} halts of the run were short", count(*short), count(*all)),
        FoundSetting::NotYetPolled(ns) => format!("KVM polls up to {} ns before a vCPU sleeps; none has yet", count(*ns)),
        FoundSetting::PollingUnknown(ns) => format!("KVM polls up to {} ns before a vCPU sleeps; its success is unknown", count(*ns)),
        FoundSetting::GuestAndKvmPoll => "the guest polls by itself; KVM's polling adds host CPU time, unless the guest has switched it off".into(),
        FoundSetting::GuestPollingUnknown => "it is unknown whether the guest polls by itself".into(),
        FoundSetting::OnlyGuestPolls => "off, as the guest polls by itself".into(),
        FoundSetting::NobodyPolls => "off, and the guest does not poll; a run with halts shows whether polling would help".into(),
        FoundSetting::KvmPollingOff => "off; correct if the guest polls by itself; --guest checks this".into(),
        FoundSetting::PollingWasted => "KVM polls before a vCPU sleeps, and most of that time was wasted: host CPU time, not the guest's".into(),
        FoundSetting::PollingSuccessful => "KVM polls before a vCPU sleeps, mostly successfully".into(),
        FoundSetting::GuestHasIdlePoll => "the guest has idle=poll".into(),
        FoundSetting::GuestPolls => "the guest polls before it halts".into(),
        FoundSetting::HaltpollOfZero => "haltpoll is in use, and its polling time is 0: it never polls".into(),
        FoundSetting::ConfidentialGuestHalts => "a confidential guest that halts at once: each halt costs an expensive exit and a late wake-up".into(),
        FoundSetting::GuestHalts => "the guest halts at once; polling helps if it waits for wake-ups, which a run shows".into(),
        FoundSetting::NoIdlePoll => "the guest has no idle=poll".into(),
        FoundSetting::IdlePollOfSomeVm => "idle=poll, which needs a dedicated CPU for each vCPU; select its VM with -p to check that".into(),
        FoundSetting::IdlePollPinned => "idle=poll, and each vCPU has its own CPU".into(),
        FoundSetting::IdlePollShared => "idle=poll on shared CPUs: polling vCPUs take time from the other threads there".into(),
        FoundSetting::IdlePollUnknown => "idle=poll; it is unknown whether its vCPUs are pinned".into(),
        FoundSetting::ApicOfVmm(vm) => format!("the interrupt controllers of VM {vm} are emulated by the VMM: each interrupt, EOI and access to one goes to it"),
        FoundSetting::AvicInhibited(all) => format!("inhibits AVIC: {}", inhibits(all)),
        FoundSetting::X2apic => "the guest has the x2APIC".into(),
        FoundSetting::Xapic => "the guest reaches its APIC through memory: each access that is not virtualized is decoded".into(),
        FoundSetting::NoFeature => "the processor does not support it".into(),
        FoundSetting::OffFeatureUnknown => "off; it is unknown whether the processor supports it".into(),
        FoundSetting::ApicVirtual => "interrupts reach vCPUs without exits".into(),
        FoundSetting::ApicExits => "each interrupt, EOI and access to the APIC is an exit".into(),
        FoundSetting::NotForTds => "TDs cannot use it".into(),
        FoundSetting::IpisVirtual => "IPIs between vCPUs take no exit".into(),
        FoundSetting::IpiExits => "each IPI between vCPUs is an exit".into(),
        FoundSetting::InhibitedBySev => "SEV guests inhibit it".into(),
        FoundSetting::Avic => "interrupts reach vCPUs without exits, unless a VM inhibits it (avic-inhibit)".into(),
        FoundSetting::NoAvic => "each interrupt, EOI and IPI is an exit".into(),
        FoundSetting::AvicOff => "AVIC is off; see avic".into(),
        FoundSetting::AvicOfOtherVmm => "the VMM's settings determine whether AVIC is inhibited, and only QEMU's are known; record kvm:kvm_apicv_inhibit_changed".into(),
        FoundSetting::AvicNotInhibited => "nothing on the command line inhibits AVIC".into(),
        FoundSetting::IpisOfProcessor => "the processor virtualizes IPIs".into(),
        FoundSetting::PvIpisOfOtherVmm => "paravirtual IPIs are a setting of the VMM, and only QEMU's are known".into(),
        FoundSetting::NoPvIpis => "the guest cannot send many IPIs with one hypercall".into(),
        FoundSetting::PvIpisOffered => "offered to the guest (QEMU's default); no file shows whether it is used".into(),
        FoundSetting::SpinningYields => "spinning vCPUs yield, by the kernel's defaults".into(),
        FoundSetting::SpinningNotDetected => "the processor cannot detect a spinning vCPU".into(),
        FoundSetting::SpinningNeverYields => "spinning vCPUs do not yield: correct only if each has its own CPU".into(),
        FoundSetting::SpinningChanged => "spinning vCPUs do not yield by the kernel's defaults".into(),
        FoundSetting::Thp(word) => format!("transparent huge pages: {word}"),
        FoundSetting::ThpDefrag(word) => format!("memory is compacted for huge pages: {word}"),
        FoundSetting::ThpShmem(word) => format!("transparent huge pages of shared memory: {word}"),
        FoundSetting::PrivateBacking(kind) => format!("private memory ({kind}) comes from guest_memfd"),
        FoundSetting::HugePages(backing) => format!("{} of the memory is in huge pages", share(backing.large(), backing.resident)),
        FoundSetting::FewHugePages(backing) => few_huge_pages(backing),
        FoundSetting::SeePrivatePages(kind) => format!("private memory ({kind}): see private-pages"),
        FoundSetting::MappedLarge(mapped) => format!("{} is mapped in pages of 2M and 1G", share(mapped.large(), mapped.total())),
        FoundSetting::MappedSmall(mapped) => format!("only {} is mapped in pages of 2M and 1G, the rest in 4K", share(mapped.large(), mapped.total())),
        FoundSetting::PrivateLarge(kind) => format!("{kind}: most of it is mapped in pages of 2M and 1G"),
        FoundSetting::PrivateSmall(kind) => format!("{kind}: most of it is mapped in 4K; no setting changes that (mainline Linux up to 7.3 maps private memory so), and THP does not"),
        FoundSetting::PrivateSmallByKernel(kind) => format!("{kind}: mainline Linux up to 7.3 maps private memory at 4K; no setting changes that, and THP does not"),
        FoundSetting::PrivateUnknown(kind) => format!("{kind}: how this kernel maps private memory is not known (known: up to 7.3)"),
        FoundSetting::HostPages(found) => host_pages::found(found),
        FoundSetting::NoThp => "this kernel has no transparent huge pages; hugetlbfs gives large ones".into(),
        FoundSetting::AllPrivate => "all VMs have private memory, which comes from guest_memfd and never uses these pages".into(),
        FoundSetting::AllOnHugetlbfs => "the memory of all VMs is on hugetlbfs, already in large pages".into(),
        FoundSetting::ThpNever => "guest memory gets no transparent huge pages".into(),
        FoundSetting::ThpDefragNever => "a fault gets a huge page only if one is free".into(),
        FoundSetting::SharedMemoryUnknown => "whether a VM has shared memory (memfd) is not known: some could not be read".into(),
        FoundSetting::NoSharedMemory => "no running VM has shared memory (memfd)".into(),
        FoundSetting::ThpShmemNever => "a VM's shared memory (memfd) gets no transparent huge pages".into(),
        FoundSetting::DebugfsDenied => "KVM's counters are in debugfs, which only root may read".into(),
        FoundSetting::DebugfsMissing => "KVM's counters are missing: debugfs is not mounted, or the kernel is older than 5.15".into(),
        FoundSetting::NothingMapped => "nothing is mapped, or KVM uses shadow paging".into(),
        FoundSetting::PrivacyUnknown => "whether the VM has private memory is in its command line, which cannot be read".into(),
        FoundSetting::NoPrivateMemory => "the VM has no private memory (TDX, SEV-SNP)".into(),
        FoundSetting::NxOff => "executable huge pages stay whole".into(),
        FoundSetting::NxNeedless => "KVM splits huge pages that guests execute, to mitigate an erratum that this processor does not have".into(),
        FoundSetting::NxNeeded => "KVM splits huge pages that guests execute, as this processor needs".into(),
        FoundSetting::NxSpikes => "KVM splits huge pages that guests execute, as this processor needs; each split holds its vCPU up for about 100 µs, which guests on isolated processors may notice: nx_huge_pages=off there only if their kernels are trusted".into(),
        FoundSetting::NxNeedUnknown => "it is unknown whether the processor needs it".into(),
        FoundSetting::KsmOff => "same pages are not merged".into(),
        FoundSetting::Ksm => "KSM merges pages of VMs: it splits huge pages, and a write to a merged page faults".into(),
        FoundSetting::NoKsm => "this kernel cannot merge pages".into(),
        FoundSetting::Nesting => "guests may run guests".into(),
        FoundSetting::NestingOff => "nesting is disabled".into(),
        FoundSetting::NobodyNests => "no VM runs guests of its own".into(),
        FoundSetting::OffNestingUnknown => "off; this only matters if a guest runs guests, which is unknown".into(),
        FoundSetting::ShadowVmcs => "most VMREADs and VMWRITEs of L1 take no exit".into(),
        FoundSetting::NoShadowVmcs => "each VMREAD and VMWRITE of L1 is an exit".into(),
        FoundSetting::Vls => "VMLOAD and VMSAVE of L1 take no exit".into(),
        FoundSetting::NoVls => "each VMLOAD and VMSAVE of L1 is an exit".into(),
        FoundSetting::Vgif => "STGI and CLGI of L1 take no exit".into(),
        FoundSetting::NoVgif => "each STGI and CLGI of L1 is an exit".into(),
        FoundSetting::Vnmi => "NMIs need no single steps".into(),
        FoundSetting::NoVnmi => "each NMI of a guest takes exits to detect when it can be delivered".into(),
        FoundSetting::NestedPaging => "guest memory is translated by the processor".into(),
        FoundSetting::NoNestedPaging => "KVM keeps shadow page tables: page faults and TLB flushes of guests are exits".into(),
        FoundSetting::Vpid => "TLB entries of guests outlive exits".into(),
        FoundSetting::NoVpid => "each exit and entry flushes the TLB".into(),
        FoundSetting::TdpMmu => "faults of several vCPUs are handled at once".into(),
        FoundSetting::NoTdpMmu => "faults of a VM's vCPUs wait for one lock".into(),
        FoundSetting::TdpMmuNeedsNestedPaging => "KVM has nested paging off, or does not have it here".into(),
        FoundSetting::MediatedPmu => "guests have the processor's counters to themselves while they run".into(),
        FoundSetting::MediatedPmuOff => "off, the default; on, it makes sampling in guests cheaper and each entry and exit dearer".into(),
        FoundSetting::CountersEmulated => "guests count by events of the host's perf: sampling in a guest cost 33.62 %, and 6.21 % with the mediated PMU (Linux commit bf2c3138ae36)".into(),
        FoundSetting::Mbec => "Hyper-V guests with memory integrity (HVCI) need no exits to switch between kernel and user pages".into(),
        FoundSetting::NoMbec => "Hyper-V guests with memory integrity (HVCI) take an exit at each switch between kernel and user pages: 1.2 M a second, 50 k with it (LKML, 2025-12-22)".into(),
        FoundSetting::WindowsOfOtherVmm => "Hyper-V's enlightenments are read from QEMU's command line, and this is another VMM".into(),
        FoundSetting::PerhapsWindows => "the guest keeps local time as Windows does, or is named as Windows, and has no Hyper-V enlightenments: if it is Windows, its timers are the RTC and the HPET".into(),
        FoundSetting::PerhapsWindowsOfPart => "the guest keeps local time as Windows does, or is named as Windows: if it is Windows and the rest of its configuration has no Hyper-V timers (stimer, which needs synic and vpindex), its timers are the RTC and the HPET".into(),
        FoundSetting::NotWindows => "nothing on the command line says that the guest is Windows".into(),
        FoundSetting::WindowsTimers => "without Hyper-V's timers Windows uses the HPET or the RTC, whose accesses are exits to the VMM, also while it is idle".into(),
        FoundSetting::SynicBesideApic(apic) => format!("SynIC and the virtual APIC page keep Windows from {apic}: it ends interrupts by MSRs that exit"),
        FoundSetting::WindowsIpis => "Windows flushes TLBs and wakes vCPUs by one IPI for each".into(),
        FoundSetting::OldWindowsOnUefi => "Windows 7 and Server 2008 R2 do not get through their boot with UEFI firmware (OVMF) and Hyper-V's enlightenments (Launchpad bug 1593605)".into(),
        FoundSetting::RtcCatchesUp => "after a pause (the host was suspended, a snapshot was reverted) QEMU makes up for all ticks of the RTC that were missed, at 100 % of a processor (Launchpad bugs 1174654, 1505041)".into(),
        FoundSetting::RtcDoesNot => "nothing on the command line makes QEMU make up for ticks of the RTC".into(),
        FoundSetting::WindowsCalibrates => "Windows measures the frequencies of its TSC and its APIC timer at each boot; while it runs this costs nothing".into(),
        FoundSetting::WindowsReadsFrequencies => "Windows reads the frequencies of its TSC and its APIC timer".into(),
        FoundSetting::CpuOverridden => "of several -cpu the last is in force, and it has no enlightenment: what the others ask for is lost".into(),
        FoundSetting::Accelerated => "KVM runs the guest".into(),
        FoundSetting::AccelerationNotSaid => "the configuration does not say whether KVM runs the guest".into(),
        FoundSetting::NotAccelerated => "no KVM: QEMU translates each instruction of the guest, which is many times slower".into(),
        FoundSetting::DebugBuild => "the VMM is a debug build (target/debug): its code is not optimized, and what it does for devices is many times slower".into(),
        FoundSetting::NoDebugBuild => "the VMM's path is not that of a debug build".into(),
        FoundSetting::NoVirtioRng => "the guest has no virtio-rng".into(),
        FoundSetting::RandomNeverWaits => "what virtio-rng reads does not wait for entropy".into(),
        FoundSetting::RandomWaits => "virtio-rng reads the host's /dev/random, which waits for entropy before Linux 5.6: a guest can wait minutes in its boot".into(),
        FoundSetting::RandomMayWait => "virtio-rng may read the host's /dev/random (QEMU before 4.1 by default), which waits for entropy before Linux 5.6: if a boot of the guest stands still, give it /dev/urandom".into(),
        FoundSetting::OneVcpuOneQueuePair => "one vCPU needs one pair of network queues".into(),
        FoundSetting::OneQueuePair => "virtio-net has one pair of queues: one vCPU and one thread of the host handle all its packets, and either can be the limit (queues=N with mq=on spreads them)".into(),
        FoundSetting::SeveralQueuePairs => "virtio-net has several pairs of queues".into(),
        FoundSetting::QueuePairsLost => "virtio-net is to have several pairs of queues (mq=on), and its backend offers one (no queues=): one vCPU and one thread of the host handle all packets".into(),
        FoundSetting::QueuePairsNotSaid => "how many pairs of queues virtio-net has is not said".into(),
        FoundSetting::QueuePairsImpossible => "the network backend has one pair of queues (several need tap, vhost-user or vhost-vdpa)".into(),
        FoundSetting::OwnDiskFormats => "no disk has a format of another hypervisor".into(),
        FoundSetting::ForeignDiskFormat => "a disk has a format of another hypervisor, whose driver in QEMU is made for conversion".into(),
        FoundSetting::NoDiskCache => "no disk names a cache mode (QEMU's default is writeback)".into(),
        FoundSetting::DiskCacheDirect => "no disk goes through the host's page cache".into(),
        FoundSetting::DiskCacheOfHost => "a disk goes through the host's page cache: the same data may be in memory twice, and a benchmark in the guest can measure that cache in place of the disk; cache=none with aio=native passes it by".into(),
        FoundSetting::DiskCacheWaits => "each write to a disk waits until it is on the host's storage (cache mode): writes of a guest that flushes by itself need not".into(),
        FoundSetting::NoHpet => "QEMU emulates no HPET, or whether it does is not known".into(),
        FoundSetting::HpetOn => "QEMU emulates an HPET: if firmware or the guest leaves its timer running, QEMU wakes up to 1,000 times a second for an idle guest".into(),
        FoundSetting::HpetOfWindows => "a Windows guest: its timers decide whether it uses the HPET".into(),
        FoundSetting::ModelNotSaid => "the configuration does not say which processor the guest has".into(),
        FoundSetting::SplitIrqchip => "the I/O APIC is the VMM's: each EOI of a level-triggered interrupt is an exit to it".into(),
        FoundSetting::SplitIrqchipOfTd => "a TD has no other: its I/O APIC is the VMM's".into(),
        FoundSetting::SplitIrqchipForIommu => "the I/O APIC is the VMM's, which an IOMMU that remaps interrupts needs".into(),
        FoundSetting::IrqchipInKernel => "the I/O APIC is KVM's".into(),
        FoundSetting::IrqchipOfOtherVmm => "whose the I/O APIC is cannot be told of this VMM".into(),
        FoundSetting::Enlightened => "Windows has Hyper-V's timers, clock and hypercalls".into(),
        FoundSetting::NamedModel => "the processor model hides the host's flags".into(),
        FoundSetting::NothingToMitigate => "Windows sees no flag of a processor that needs mitigations".into(),
        FoundSetting::WindowsMayMitigate => "if the host's processor has md_clear or flush_l1d (its /proc/cpuinfo), Windows sees them and mitigates in the guest what the host mitigates already".into(),
        FoundSetting::WindowsMitigates => "Windows sees md_clear or flush_l1d and mitigates in the guest what the host mitigates already".into(),
        FoundSetting::CpusShared { cpus, names } => format!("CPUs {cpus} of its vCPUs serve threads of other VMs too: {}", names.join(", ")),
        FoundSetting::NotSwapped => "the VM's memory is not in swap".into(),
        FoundSetting::Swapped(bytes) => format!("{} of the VM's memory are in the host's swap", size(*bytes)),
        FoundSetting::EmulatedDevices => "devices are emulated models of hardware: each register access is an exit to the VMM".into(),
        FoundSetting::NoEmulatedDevices => "no device is an emulated model of hardware".into(),
        FoundSetting::TickWhileIdle => "the guest's tick does not stop in idle CPUs".into(),
        FoundSetting::TickStops => "the guest's tick stops in idle CPUs, unless its kernel cannot".into(),
        FoundSetting::IothreadsShare(cpus) => format!("iothreads may run on CPUs {cpus} of vCPUs"),
        FoundSetting::DeviceInterrupts(cpus) => format!("devices of the host interrupt the vCPUs on CPUs {cpus}"),
        FoundSetting::FewDeviceInterrupts => "hardly any device interrupts go to the vCPUs' CPUs".into(),
        FoundSetting::ManyNodes(nodes) => format!("vCPUs may run on nodes {nodes}"),
        FoundSetting::FarMemory { far, all } => format!("{} of the memory is on another node than the vCPUs", share(*far, *all)),
        FoundSetting::OnNode(node) => format!("vCPUs and memory are on node {node}"),
        FoundSetting::HostTick(cpus) => format!("the host's tick interrupts vCPUs: CPUs {cpus}"),
        FoundSetting::NotIsolated(cpus) => format!("the scheduler may put other tasks on vCPUs' CPUs: CPUs {cpus}"),
        FoundSetting::RcuInterrupts(cpus) => format!("RCU's callbacks interrupt vCPUs: CPUs {cpus}"),
        FoundSetting::VcpusUnnamed => "the vCPU threads cannot be identified (QEMU: -name NAME,debug-threads=on)".into(),
        FoundSetting::VcpusPinned => "each vCPU has its own CPU".into(),
        FoundSetting::VcpusMove => "vCPUs share CPUs or may move between them".into(),
        FoundSetting::NoIothread => "the VM has no iothread".into(),
        FoundSetting::VcpusNotPinned => "the vCPUs are not pinned; see vcpu-pinning".into(),
        FoundSetting::IothreadsApart => "iothreads do not run on the vCPUs' CPUs".into(),
        FoundSetting::NoNuma => "the host has no NUMA nodes".into(),
        FoundSetting::NumaUnknown => "the host's NUMA nodes cannot be read".into(),
        FoundSetting::OneNode => "the host has one NUMA node".into(),
        FoundSetting::GuestTick => "the guest's tick interrupts its busy CPUs; nohz_full= on its command line stops it on CPUs with one task".into(),
        FoundSetting::GuestNohz => "the guest has CPUs without a tick".into(),
        FoundSetting::GuestWithoutNohz => "the guest's kernel cannot stop its tick (CONFIG_NO_HZ_FULL)".into(),
        FoundSetting::HostNohz => "the vCPUs' CPUs have no tick while one task runs".into(),
        FoundSetting::Isolated => "the scheduler puts nothing else on the vCPUs' CPUs".into(),
        FoundSetting::RcuElsewhere => "RCU's callbacks run elsewhere".into(),
        FoundSetting::Turbo(true) => "turbo is on (recorded, because it must be equal in comparisons)".into(),
 FoundSetting::Turbo(false) => "turbo is off (recorded, because it must be equal in comparisons)".into(),
        FoundSetting::NoFrequencies => "the host does not set its processors' frequency".into(),
        FoundSetting::HighestFrequency => "processors run at their highest frequency".into(),
        FoundSetting::FrequencyOfLoad => "the processors' frequency follows the load, which idle vCPUs hide".into(),
        FoundSetting::NoTurboSwitch => "the host has no switch for turbo".into(),
        FoundSetting::NoIdleStates => "the host does not control its processors' idle states".into(),
        FoundSetting::IdleStates => "idle states (recorded, because they must be equal in comparisons)".into(),
        FoundSetting::Clock(name) => format!("the clock is {name}"),
        FoundSetting::TdTimer => "TDs cannot use it: each arming of their timer is a TDCALL and a host timer".into(),
        FoundSetting::PreemptionTimer => "guests' timers run on VMX's preemption timer".into(),
        FoundSetting::NoPreemptionTimer => "the processor has none".into(),
        FoundSetting::HostTimers => "guests' timers are timers of the host: each expiry is an interrupt of the host".into(),
        FoundSetting::TscDeadline => "the guest arms its timer with one MSR".into(),
        FoundSetting::MaskedTscDeadline => "the guest arms its timer through APIC registers; QEMU masks the TSC deadline for SEV-SNP, so polling (guest-haltpoll) helps instead".into(),
        FoundSetting::NoTscDeadline => "the guest arms its timer through APIC registers, with more and costlier exits".into(),
        FoundSetting::DeviceClock => "every read of the clock is a device access".into(),
        FoundSetting::OneClock => "the kernel has one clock".into(),
        FoundSetting::Backport { kind, first: (major, minor) } => format!("{kind} came to mainline Linux with {major}.{minor}: this kernel has a backport, to which these checks may not apply"),
        FoundSetting::KernelRuns(kind) => format!("has {kind} as mainline Linux does"),
        FoundSetting::KernelNeedUnknown => "it is unknown whether a VM needs a certain kernel: some could not be read".into(),
        FoundSetting::NoKernelNeeded => "no running VM needs a certain kernel; no file shows whether there is a better one".into(),
        FoundSetting::MicrocodeDiffers => "processors have different microcode: an update was applied to some of them".into(),
        FoundSetting::MicrocodeCurrent => "not older than the version known to the kernel".into(),
        FoundSetting::MicrocodeOld => "older than the version known to the kernel".into(),
        FoundSetting::MicrocodeOfHost => "the host is a VM itself: its microcode is its host's".into(),
        FoundSetting::MicrocodeUnknown => "this kernel does not show whether there is a newer one (Linux 6.16 does)".into(),
        FoundSetting::KernelWithoutTdx => "this kernel cannot run TDs: it was built without CONFIG_INTEL_TDX_HOST or CONFIG_KVM_INTEL_TDX".into(),
        FoundSetting::NoTds => "this host runs no TDs".into(),
        FoundSetting::TdxModule => "compare it with Intel's releases of the TDX module: no file shows the latest version".into(),
        FoundSetting::TdxModuleUnknown => "this kernel does not show the version of the TDX module, and an old one made a TD 14 times slower; dmesg | grep -i 'tdx module' may show it".into(),
        FoundSetting::SnpFirmware => "no file shows its version; snphost ok, or dmesg | grep -i 'sev api', does".into(),
        FoundSetting::NoSnp => "this host runs no SEV-SNP guests".into(),
        FoundSetting::NoVulnerabilities => "this kernel does not list the processor's vulnerabilities".into(),
        FoundSetting::CgroupMovesWait => "KVM_CREATE_VM waits for a grace period of RCU each time: a kernel thread joins the VMM's cgroup".into(),
        FoundSetting::CgroupMovesQuick => "KVM_CREATE_VM does not wait for a move between cgroups".into(),
        FoundSetting::CgroupOne => "no cgroup2 is mounted".into(),
        FoundSetting::StartsWithoutMove => "starting a VM moves no thread between cgroups on this kernel, or nothing makes that quicker".into(),
        FoundSetting::StartsUnknown => "whether this kernel waits for a move between cgroups when a VM starts depends on its patch level".into(),
        FoundSetting::SlotsWait => "a memory slot that is created after the irqchip, and each removal of an ioeventfd, waits for a grace period of SRCU (commit 7d9a0273c459), unless the kernel has \"KVM: Expedite SRCU callbacks\"; on Intel, and with AVIC, the first KVM_CREATE_VCPU does, whatever the order".into(),
        FoundSetting::SlotsWithoutDevices => "memory slots wait for no device that was registered before on this kernel".into(),
        FoundSetting::SlotsUnknown => "whether memory slots wait for devices that were registered before is known up to Linux 7.3; `vmtax lab run --suite start --kernel IMAGE` measures it".into(),
        FoundSetting::KvmAtEl2 => "the host runs at EL2 (VHE) where the processor has it, which is the default".into(),
        FoundSetting::KvmNested => "the host runs at EL2 (VHE), and VMs may have EL2 of their own".into(),
        FoundSetting::HostAtEl1 => "the host runs at EL1: KVM switches from EL2 to it and back at each exit".into(),
        FoundSetting::ProtectedHost => "EL2 is kept apart from the host (pKVM): each exit of each VM passes through it".into(),
        FoundSetting::KvmOff => "KVM is off".into(),
        FoundSetting::PageSize { page, huge } => format!("pages are of {}, so that a transparent huge page has {}", size(*page), size(*huge)),
        FoundSetting::WfeByTasks => "WFE is an exit only where other tasks wait for the CPU (the kernel's default)".into(),
        FoundSetting::WfeNeverTraps => "WFE is no exit".into(),
        FoundSetting::WfeAlwaysTraps => "each WFE of a guest is an exit, also where no other task waits for the CPU".into(),
        FoundSetting::GicTraps => "accesses of the GIC's CPU interface are exits".into(),
        FoundSetting::NoGicTraps => "no word lets accesses of the GIC's CPU interface be exits (a defect of the processor may: the kernel's log says it)".into(),
        FoundSetting::Gicv4 => "KVM may let a GICv4 deliver interrupts of passed-through devices".into(),
        FoundSetting::NoGicv4 => "KVM delivers interrupts of passed-through devices itself; whether the GIC could (GICv4) is in the kernel's log alone".into(),
        FoundSetting::NothingPassedThrough => "no VM has a passed-through device".into(),
        FoundSetting::PerhapsPassedThrough => "it is unknown whether a VM has a passed-through device".into(),
        FoundSetting::StealTimeOfOtherVmm => "the option is known for QEMU alone, and this is another VMM".into(),
        FoundSetting::NoStealTime => "the guest is not told how long its vCPUs wait for CPUs: it takes that for its own time".into(),
        FoundSetting::StealTime => "the guest is told how long its vCPUs wait for CPUs (QEMU's default)".into(),
        FoundSetting::Mitigations => "recorded, because they must be equal in comparisons".into(),
    }
}

fn few_huge_pages(backing: &MemoryBacking) -> String {
    let half = backing.resident / 2;
    let why = match (backing.not_eligible > half, backing.shared > half) {
        (true, true) => "; the kernel does not allow them for most of it (shared memory)",
        (true, false) => "; the kernel does not allow them for most of it",
        _ => "",
    };
    let share = share(backing.large(), backing.resident);
    format!("only {share} of the memory is in huge pages{why}")
}

fn inhibits(all: &[Inhibit]) -> String {
    let name = |inhibit: &Inhibit| match inhibit {
        Inhibit::Sev => "SEV",
        Inhibit::SynIc => "Hyper-V's SynIC",
        Inhibit::PitReinjection => "the PIT's reinjection",
    };
    all.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// `whole` is not 0.
fn share(part: u64, whole: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / whole as f64)
}

/// A setting as it was seen. Hostile text.
pub(super) fn seen(seen: &SeenSetting) -> String {
    let listed = |all: &[String]| all.join(" | ");
    match seen {
        SeenSetting::Text(text) => text.clone(),
        SeenSetting::Without(word) => format!("no {word}"),
        SeenSetting::Flag(flag, true) => format!("flags with {flag}"),
        SeenSetting::Flag(flag, false) => format!("flags without {flag}"),
        SeenSetting::Devices { option, without, types } => {
            format!("{}{option}: {}", if *without { "no " } else { "" }, types.join(", "))
        }
        SeenSetting::Lacks(words) => format!("no {}", words.join(", ")),
        SeenSetting::NotQemu => "not QEMU".to_owned(),
        SeenSetting::Inhibits(all) if all.is_empty() => "no inhibit".to_owned(),
        SeenSetting::Inhibits(all) => inhibits(all),
        SeenSetting::VhostNet(true) => "/dev/vhost-net open".to_owned(),
        SeenSetting::VhostNet(false) => "/dev/vhost-net not open".to_owned(),
        SeenSetting::NoVcpuThread => "no thread is named as a vCPU".to_owned(),
        SeenSetting::VcpusOn(all) => {
            let more = if all.len() > 16 { " ..." } else { "" };
            format!("vCPUs may run on {}{more}", listed(&all[..all.len().min(16)]))
        }
        SeenSetting::IothreadsOn(all) => format!("iothreads may run on {}", listed(all)),
        SeenSetting::Interrupts { devices, cpu, rate } => {
            format!("{devices}: {} a second on CPU {cpu} since the boot", count(*rate))
        }
        SeenSetting::Favordynmods(true) => "cgroup2 is mounted with favordynmods".to_owned(),
        SeenSetting::Favordynmods(false) => "cgroup2 is mounted without favordynmods".to_owned(),
        SeenSetting::Nodes(nodes) => {
            joined(nodes, |(id, bytes)| format!("node {id} {}", size(*bytes)))
        }
        SeenSetting::Governors(cpus) => joined(cpus, |(name, n)| format!("{name} on {n} CPUs")),
        SeenSetting::IdleStates(states) => {
            joined(states, |(name, off)| format!("{name}{}", if *off { " (off)" } else { "" }))
        }
        SeenSetting::Backing(backing) => format!(
            "AnonHugePages {}, ShmemPmdMapped {}, hugetlbfs {}, resident {}",
            size(backing.anon_thp),
            size(backing.shmem_thp),
            size(backing.hugetlb),
            size(backing.resident),
        ),
        SeenSetting::Swap(bytes) => format!("Swap {}", size(*bytes)),
        SeenSetting::Mapped(mapped) => {
            let [k4, m2, g1] = mapped.bytes().map(size);
            format!("4K {k4}, 2M {m2}, 1G {g1}")
        }
        SeenSetting::HostPages(seen) => host_pages::seen(seen),
        SeenSetting::SignOfVm => "a sign of a VM".to_owned(),
        SeenSetting::Polled(successful, wasted) => {
            format!("{} ns successful, {} ns wasted", count(*successful), count(*wasted))
        }
        SeenSetting::NestedExits => "has exits of L2".to_owned(),
        SeenSetting::NestedEntries(entries) => format!("{} entries of L2", count(*entries)),
        SeenSetting::Microcode(versions) => format!("microcode {}", versions.join(", ")),
        SeenSetting::Mitigated(some, all) => format!("{some} of {all} mitigated"),
    }
}

fn joined<T>(all: impl IntoIterator<Item = T>, words: impl Fn(T) -> String) -> String {
    all.into_iter().map(words).collect::<Vec<_>>().join(", ")
}

/// A fix in one line, as a command where it is one. Printable.
pub fn fix_line(fix: &Fix) -> String {
    let line = match fix {
        Fix::Write { path, value } => format!("echo {value} > {path}"),
        Fix::WriteEach { pattern, value } => {
            format!("for f in {}; do echo {value} > \"$f\"; done", shell_pattern(pattern))
        }
        Fix::Module { module, option } => {
            format!(
                "echo 'options {module} {option}' > {}; load the module again",
                module_file(module, option)
            )
        }
        Fix::Kernel(words) => format!("add to the kernel's command line: {words}"),
        Fix::Vmm(how) => format!("start the VM with: {}", start(*how)),
        Fix::Pin(tids) => {
            let shown: Vec<String> = tids.iter().take(16).map(u32::to_string).collect();
            let more = if tids.len() > 16 { " ..." } else { "" };
            format!("taskset -pc CPU TID, for the threads {}{more}", shown.join(" "))
        }
        Fix::Advice(advice) => self::advice(*advice),
    };
    printable(&line)
}

fn start(how: QemuStart) -> &'static str {
    match how {
        QemuStart::With(words) => words,
        QemuStart::OnHugetlbfs => {
            "pages reserved on the host first (sysctl vm.nr_hugepages = its memory / 2 MiB), then -object memory-backend-file,id=mem,size=...,mem-path=/dev/hugepages,share=on -machine memory-backend=mem"
        }
        QemuStart::InHugePages => host_pages::REMEDY,
        QemuStart::InHugePagesUnlessSnp => host_pages::REMEDY_UNLESS_SNP,
        QemuStart::WithoutInhibits => {
            "-machine pit=off (or -global kvm-pit.lost_tick_policy=discard), and -cpu with hv-avic beside hv-synic"
        }
        QemuStart::KernelIrqchip => "-machine ...,kernel-irqchip=on (the default)",
    }
}

fn advice(advice: ManualAdvice) -> String {
    let text = match advice {
        ManualAdvice::OpenVhost => "modprobe vhost_net, and let the VMM open /dev/vhost-net",
        ManualAdvice::PinOrHaltpoll => {
            "pin the vCPUs to their own CPUs, or use haltpoll instead of idle=poll"
        }
        ManualAdvice::DefaultSpinning => {
            "take ple_gap, ple_window, pause_filter_thresh and pause_filter_count out of modprobe.d"
        }
        ManualAdvice::PlaceOnOneNode => {
            "pin the VM's vCPUs to the CPUs of one node, and bind its memory to it (numactl, virsh numatune)"
        }
        ManualAdvice::MoveMemory => {
            "move the memory to the vCPUs' node: migratepages PID FROM TO, or virsh numatune"
        }
        ManualAdvice::IsolatedPartition => {
            "put the vCPUs' CPUs into an isolated partition: cgroup v2, cpuset.cpus.partition = isolated"
        }
        ManualAdvice::PinApart => {
            "give the VMs' vCPUs CPUs of their own, or leave their placement to the scheduler (LXD: limits.cpu.pin_strategy=none)"
        }
        ManualAdvice::MoveInterrupts => {
            "move them to other CPUs: echo CPUS > /proc/irq/IRQ/smp_affinity_list, irqbalance --banirq=IRQ (the kernel refuses it of interrupts that it manages itself, such as those of NVMe's queues)"
        }
        ManualAdvice::BuildForRelease => {
            "build the VMM with cargo build --release, and start target/release"
        }
        ManualAdvice::ConvertDisk => {
            "convert the disk: qemu-img convert -O qcow2 OLD NEW, or to raw"
        }
        ManualAdvice::PinInConfiguration => {
            "give each vCPU a CPU of its own, apart from iothreads: <cputune> with <vcpupin>, <emulatorpin> and <iothreadpin>"
        }
        ManualAdvice::OneCpuOption => "put the model and all hv- words into one -cpu option",
        ManualAdvice::FavorDynmods => "mount -o remount,favordynmods /sys/fs/cgroup",
        ManualAdvice::SlotsFirst => {
            "have the VMM create memory slots before the irqchip, the PIT and ioeventfds, and use fewer ioeventfds"
        }
        ManualAdvice::FewerIoeventfds => {
            "have the VMM use fewer ioeventfds, and not remove them while the VM runs or resets"
        }
        ManualAdvice::LessMemory => {
            "free memory: fewer or smaller VMs, or have guests give back what they do not use (QEMU: -device virtio-balloon,free-page-reporting=on)"
        }
        ManualAdvice::UseVirtio => {
            "give the guest virtio-blk or virtio-scsi, virtio-net and virtio-tablet in their place"
        }
        ManualAdvice::StopTick => "take nohz=off and highres=off off the guest's command line",
        ManualAdvice::UpdateMicrocode => {
            "install the distribution's microcode package, or a newer firmware, and boot"
        }
        ManualAdvice::Unprotected => {
            "take kvm-arm.mode off the host's kernel command line, unless VMs have to be protected from the host"
        }
        ManualAdvice::WithoutWord(word) => {
            return format!("take {word} off the host's kernel command line");
        }
    };
    text.to_owned()
}
