//! What a trial of a remedy showed: counts before and after it, and what came instead; or why there was no trial.
//!
//! A trial is run and not argued: the same load in two VMs on an emulated host, one with the symptom and one with the remedy, its exits
//! counted by the host's kernel. `vmtax lab remedy` repeats those of [`TrialVmm::Qemu`].

use vmtax_events::words;

use super::id::RemedyId;

words! {
    /// The emulated host of a trial.
    pub enum TrialHost {
        /// QEMU TCG.
        Amd = "AMD",
        /// Bochs.
        Intel = "Intel",
    }
}

words! {
    /// What ran the VM of a trial.
    pub enum TrialVmm {
        /// QEMU with a Linux guest.
        Qemu = "QEMU 7.2",
        /// The lab's own, with a payload for the operation.
        Lab = "the lab's VMM",
    }
}

words! {
    /// What a trial counts.
    pub enum TrialUnit {
        Exits = "exits",
        /// Accesses of the PS/2 controller, of all exits of a boot.
        Accesses = "accesses",
        /// Faults of the nested page tables.
        Faults = "page faults",
        /// Exits by interrupts of the host, where the others vary with the time that a host of two processors takes.
        Interrupts = "host interrupts",
        /// Instructions of the host, of a step that takes one exit in both; or of the vCPUs' threads.
        Instructions = "instructions",
        /// Time in which the processor is idle while a step waits, which is none of its instructions.
        Waited = "ms waited",
        /// The part of the running time in which a vCPU waits for a processor.
        Waiting = "% of the running time waited",
    }
}

words! {
    /// What the remedy did to the count.
    pub enum TrialEffect {
        Fewer = "fewer",
        /// It is the same, as far as repetitions of one VM differ.
        Same = "same",
        More = "more",
    }
}

words! {
    /// Why a remedy was not tried.
    pub enum Untried {
        /// A HPET's, 4,000 times a second: 0.9 % of the running time waited.
        DeviceHandlers = "it needs a device whose handlers take time, and those of an emulated host take next to none",
        /// QEMU's TCG has none.
        PauseFilter = "no open emulator of a host with two processors has the PAUSE filter",
        /// AVIC; APICv by Bochs 3.0 ends a Linux guest.
        VirtualApic = "no open emulator has an APIC virtualization that a Linux guest survives",
        IpiVirtualization = "no open emulator has IPI virtualization",
        VirtualVmload = "no open emulator has virtual VMLOAD and VMSAVE",
        NodeDistance = "it changes no exit, and no emulator has the time of a remote access",
        /// With HVCI, or Hyper-V in it.
        Windows = "it needs Windows with Hyper-V in the guest",
        /// No distribution has one.
        DebugFirmware = "no distribution has a debug build of firmware; SeaBIOS's release build writes 145 to 712 times at a boot",
        /// A series of patches.
        NoKernel = "no released kernel has it",
    }
}

/// The least and the most of some repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub least: f64,
    pub most: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    pub host: TrialHost,
    /// The release of its kernel.
    pub kernel: &'static str,
    /// What ran the VM.
    pub vmm: TrialVmm,
    pub unit: TrialUnit,
    /// For each of what: "read of 4 KiB".
    pub per: &'static str,
    pub before: Figures,
    pub after: Figures,
    /// What else it changed, what came instead, or how the trial differs from the advice.
    pub note: Option<&'static str>,
}

/// A trial, or why there was none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trial {
    Tried(Tried),
    /// Why there was none.
    Untried(Untried),
}

/// Repetitions of one VM differ by this part: exits of sleeps by 5 %, of clock readings by 1.5 %, of disks not at all.
const SPREAD: f64 = 0.05;

impl TrialEffect {
    /// What these counts show.
    pub fn of(before: Figures, after: Figures) -> TrialEffect {
        if after.most < before.least * (1.0 - SPREAD) {
            TrialEffect::Fewer
        } else if after.least > before.most * (1.0 + SPREAD) {
            TrialEffect::More
        } else {
            TrialEffect::Same
        }
    }
}

impl Tried {
    /// What the remedy did to the count.
    pub fn effect(&self) -> TrialEffect {
        TrialEffect::of(self.before, self.after)
    }

    /// On the Intel host, where the lab's VMM runs.
    const fn on_intel(self) -> Tried {
        Tried { host: TrialHost::Intel, ..self }
    }

    /// On a host of two processors, whose instructions are not counted.
    const fn on_two(self) -> Tried {
        self.with("6.1.0").note("a host of two processors, whose instructions are not counted")
    }

    const fn by_lab(self) -> Tried {
        Tried { vmm: TrialVmm::Lab, ..self }
    }

    const fn with(self, kernel: &'static str) -> Tried {
        Tried { kernel, ..self }
    }

    const fn note(self, note: &'static str) -> Tried {
        Tried { note: Some(note), ..self }
    }

    const fn done(self) -> Trial {
        Trial::Tried(self)
    }
}

const fn trial(unit: TrialUnit, per: &'static str, before: [f64; 2], after: [f64; 2]) -> Tried {
    let [before, after] = [
        Figures { least: before[0], most: before[1] },
        Figures { least: after[0], most: after[1] },
    ];
    let (host, vmm, kernel) = (TrialHost::Amd, TrialVmm::Qemu, "6.12.117");
    Tried { host, kernel, vmm, unit, per, before, after, note: None }
}

/// Exits of the AMD host with QEMU, by repetitions.
const fn exits(per: &'static str, before: [f64; 2], after: [f64; 2]) -> Tried {
    trial(TrialUnit::Exits, per, before, after)
}

/// The same, of one run or of some that are equal.
const fn exact(per: &'static str, before: f64, after: f64) -> Tried {
    exits(per, [before; 2], [after; 2])
}

/// Of a load, the part of the running time in which its vCPUs wait.
const fn waiting(per: &'static str, before: [f64; 2], after: [f64; 2]) -> Tried {
    trial(TrialUnit::Waiting, per, before, after)
}

const SLEEP: &str = "sleep of 1 ms";
const SHORT_SLEEP: &str = "sleep of 50 us";
const READ: &str = "read of 4 KiB";
const REQUEST: &str = "request of 64 B";
const BOOT: &str = "boot";
const LOAD: &str = "busy loop";
const TOUCHED: &str = "MiB first touched";
const AGAIN: &str = "MiB touched again";
const TICK: &str = "tick";
const START: &str = "start of a VM";

impl RemedyId {
    /// Its trial, or why there was none.
    pub const fn trial(self) -> Trial {
        use RemedyId as R;
        use Trial::Untried as No;
        match self {
            R::IrqThreads => No(Untried::DeviceHandlers),
            R::IrqAffinity => trial(TrialUnit::Interrupts, LOAD, [4.35, 9.15], [1.05, 1.93])
                .with("6.1.0")
                .note("a HPET that interrupts 4,000 times a second, on the vCPU's processor and then on the other; a host of two processors, whose instructions are not counted")
                .done(),
            R::SpinPinning => No(Untried::PauseFilter),
            R::Avic | R::HvApicv | R::PitDiscard => No(Untried::VirtualApic),
            R::Ipiv => No(Untried::IpiVirtualization),
            R::Vls => No(Untried::VirtualVmload),
            R::NumaNode => No(Untried::NodeDistance),
            R::HvEvmcs | R::NestedMbec => No(Untried::Windows),
            R::ReleaseFirmware => No(Untried::DebugFirmware),
            R::HvFrequencies => exits(BOOT, [14_287.0, 14_319.0], [7_375.0, 7_404.0])
                .with("6.1.0")
                .note("Linux with kvm=off: readings of port 0x61, 6,766 of them, become two of MSR 0x40000022")
                .done(),
            R::FavorDynmods => trial(TrialUnit::Waited, START, [11.3; 2], [0.0; 2])
                .by_lab()
                .with("6.1.0")
                .note("by a process in a cgroup of cgroup2, where KVM_CREATE_VM waits for the cgroups' lock")
                .done(),
            R::RcuExpedited => trial(TrialUnit::Waited, START, [11.3; 2], [0.0; 2])
                .by_lab()
                .with("6.1.0")
                .note("with Linux 6.18, whose slots wait for devices, 7.18 stays of 7.29")
                .done(),
            R::NxHugePagesNever => {
                trial(TrialUnit::Waited, START, [11.3; 2], [0.0; 2]).by_lab().with("6.1.0").done()
            }
            R::SlotsFirst => trial(TrialUnit::Waited, START, [7.29; 2], [0.0; 2])
                .by_lab()
                .with("6.18.15")
                .note("without AVIC, which the emulated processor lacks; the Intel host still waits, 7.31 -> 6.37, in the first KVM_CREATE_VCPU")
                .done(),
            R::FewerIoeventfds => {
                trial(TrialUnit::Waited, "VM whose ioeventfds are removed", [63.3; 2], [5.34, 5.81])
                    .by_lab()
                    .with("6.18.15")
                    .note("eight of them, each assigned and removed, then one; with Linux 6.17 none waits")
                    .done()
            }
            R::NoNumaBalancing => exits(AGAIN, [48.7, 119.4], [0.06, 0.31])
                .with("6.1.0")
                .note("two NUMA nodes, the VM on one; pages of 4 KiB, at which the host looks each 100 ms of a vCPU's time, and otherwise each second or less often")
                .done(),
            R::PrivateHugePages => No(Untried::NoKernel),
            R::VcpuPinning => waiting(LOAD, [41.6, 48.2], [0.04, 1.5]).on_two().done(),
            R::IothreadPinning => waiting(REQUEST, [22.7, 43.5], [0.0, 0.08])
                .with("6.1.0")
                .note("idle=poll, and QEMU's main loop on the vCPU's processor, then on the other; a host of two processors, whose instructions are not counted")
                .done(),
            R::HostNohzFull => trial(TrialUnit::Interrupts, LOAD, [0.70, 0.80], [0.45, 0.50])
                .with("6.1.0")
                .note("a host of two processors, whose instructions are not counted: on the first, then on the second with nohz_full=1; the guest's own tick stays")
                .done(),
            R::CpuIsolation => waiting(LOAD, [48.9, 49.9], [0.3, 4.2]).on_two().done(),
            R::FewerVcpus => waiting(LOAD, [47.0, 49.4], [0.05; 2])
                .with("6.1.0")
                .note("two vCPUs on one processor, then one")
                .done(),
            R::KsmOff => waiting(LOAD, [24.1; 2], [0.05; 2])
                .with("6.1.0")
                .note("ksmd without a pause, on the only processor")
                .done(),
            R::CpuQuota => waiting(LOAD, [88.8, 89.9], [0.05; 2])
                .with("6.1.0")
                .note("10 % of a processor, then no quota")
                .done(),
            R::GuestNohzFull => exits(LOAD, [4.25, 4.80], [3.00, 3.10])
                .with("6.1.0")
                .note("a host of two processors, whose instructions are not counted, one for each vCPU; where both share one it took more, 951 to 962 -> 1,124 to 1,352 (Linux 6.12)")
                .done(),
            R::HaltPoll => exits(SHORT_SLEEP, [3.98, 4.02], [4.06, 4.09])
                .with("6.1.0")
                .note("the wait gets shorter, which is no exit")
                .done(),
            R::NoHaltPoll => trial(TrialUnit::Instructions, SHORT_SLEEP, [117_943.0, 118_587.0], [39_841.0, 40_120.0])
                .with("6.1.0")
                .note("of the vCPU's thread: it removes no exit")
                .done(),
            R::GuestHaltpoll => exits(SHORT_SLEEP, [3.99, 4.00], [4.11, 4.14])
                .with("6.12.118")
                .note("HLT 1.00 -> 0.01, host interrupts 0 -> 1.00, which wake the vCPU that polls")
                .done(),
            R::GuestIdlePoll => exits(SHORT_SLEEP, [3.98, 4.02], [4.03, 4.04])
                .with("6.1.0")
                .note("HLT 1.0 -> 0, host interrupts 0 -> 1.03, which wake the vCPU that polls; Linux 6.12 took more, 4.7 -> 5.8")
                .done(),
            R::NoIdlePoll => exits(SHORT_SLEEP, [4.02, 4.03], [4.00, 4.04])
                .with("6.1.0")
                .note("host interrupts 1.03 -> 0, HLT 0 -> 1.0; Linux 6.12 took fewer, 5.8 -> 4.7")
                .done(),
            R::GuestClocksource => exits("clock reading", [1.031, 1.032], [0.003; 2])
                .with("6.1.0")
                .note("acpi_pm, then kvm-clock; with Linux 6.12 the HPET 1.10, the TSC 0")
                .done(),
            R::SerialConsole => exits("line of 63 characters", [98.2, 98.5], [6.30, 6.40])
                .with("6.1.0")
                .note("ttyS0, then hvc0")
                .done(),
            R::VirtioDisk => exits(READ, [28.3; 2], [2.85, 2.86])
                .with("6.1.0")
                .note("16 accesses of IDE and 10 of bus mastering become a notification")
                .done(),
            R::VirtioDisplay => exits("character of its text", [1.01, 1.02], [0.006, 0.012])
                .with("6.1.0")
                .note("with no VGA at all")
                .done(),
            R::NoI8042 => trial(TrialUnit::Accesses, BOOT, [84.0; 2], [0.0; 2])
                .with("6.1.0")
                .note("of ports 0x60 and 0x64, by a kernel with psmouse")
                .done(),
            R::GuestApic => exits(READ, [32.4; 2], [28.3, 28.4])
                .with("6.1.0")
                .note("noapic, and a disk on IDE: accesses of the PIC 5.0 -> 0")
                .done(),
            R::GuestLapicTimer => exits(SLEEP, [9.87, 10.12], [4.96, 5.00])
                .with("6.1.0")
                .note("nolapic_timer: the HPET; without a HPET too the guest hangs")
                .done(),
            R::Msi => exits(READ, [4.13, 4.16], [2.85, 2.86])
                .with("6.1.0")
                .note("virtio-blk: readings of the APIC's trigger mode 1.0 -> 0, of the interrupt status 1.0 -> 0")
                .done(),
            R::Ioeventfd => exits(READ, [2.10, 2.12], [2.54; 2])
                .with("6.1.0")
                .note("shortens each: exits to the VMM 1.0 -> 0, and the vCPU halts, 0 -> 0.42")
                .done(),
            R::Vhost => exits(REQUEST, [4.10, 4.12], [4.08; 2])
                .with("6.1.0")
                .note("notifications stay, and QEMU's turns go, 2.0 -> 0")
                .done(),
            R::ParavirtualDevice => exits(REQUEST, [9.25, 9.28], [4.21, 4.34])
                .with("6.1.0")
                .note("e1000, then virtio-net; a read of 4 KiB 3.44 to 3.46 (NVMe) -> 2.85 to 2.86 (virtio-blk)")
                .done(),
            R::TscDeadline => exits(SLEEP, [4.84, 4.95], [4.81, 4.94])
                .with("6.1.0")
                .note("an arming is one exit either way")
                .done(),
            R::X2apic => exits(SLEEP, [4.91, 4.95], [4.81, 4.94])
                .with("6.1.0")
                .note("shortens each: an MSR in place of an access that is decoded")
                .done(),
            R::Apicv => exact("reading of an APIC register", 1.0, 0.0)
                .on_intel()
                .by_lab()
                .note("Bochs 3.0, whose interrupts end a guest")
                .done(),
            R::HugePages => exits(TOUCHED, [190.7, 191.5], [1.88, 1.97])
                .with("6.1.0")
                .note("THP never, then always: page faults 189 -> 0.38")
                .done(),
            R::ResidentMemory => exits(AGAIN, [279.8, 280.5], [0.19; 2])
                .with("6.1.0")
                .note("pages of 4 KiB in swap (zram), and locked memory, which the host does not write there")
                .done(),
            R::NoKvmapf => exits(AGAIN, [279.8, 280.5], [279.8, 280.8])
                .with("6.1.0")
                .note("pages of 4 KiB in swap (zram), which is read at once; not the interrupt that the guest cannot take")
                .done(),
            R::ThpDefer => trial(TrialUnit::Instructions, TOUCHED, [1_398_462.0, 1_575_438.0], [2_499_718.0, 2_595_163.0])
                .with("6.1.0")
                .note("of the vCPU's thread, in fragmented memory: the compaction goes, and faults of 4 KiB come, 0.38 -> 151 to 168; where fewer regions are in pieces 1,400,012 to 1,400,056 -> 1,566,196 to 1,606,197, faults 0.38 -> 43")
                .done(),
            R::HugetlbMemory => exits(TOUCHED, [34.7, 170.3], [1.81, 1.88])
                .with("6.1.0")
                .note("fragmented memory, with defrag=defer in both; how much of it is in pieces differs between hosts")
                .done(),
            R::PreFault => trial(TrialUnit::Faults, "4 KiB of guest_memfd first touched", [1.0; 2], [0.0; 2])
                .by_lab()
                .with("7.3.4")
                .done(),
            R::ConvertRegions => {
                let each = 14_990.0 * 512.0;
                trial(TrialUnit::Instructions, "2 MiB made shared", [each; 2], [1_311_088.0; 2])
                    .by_lab()
                    .note("512 hypercalls, then one")
                    .done()
            }
            R::Ept => exact("INVLPG", 1.0, 0.0)
                .on_intel()
                .by_lab()
                .with("6.1.0")
                .note("a first touch is one exit either way, 8,503 -> 6,380 instructions")
                .done(),
            R::Npt => exact("INVLPG", 1.0, 0.0)
                .by_lab()
                .with("6.1.0")
                .note("with Linux 6.12 in the VM a context switch 4.10 -> 0.62, a MiB touched 608 -> 33 page faults")
                .done(),
            R::ShadowVmcs => exact("CPUID of L2", 11.0, 4.0)
                .on_intel()
                .by_lab()
                .note("24,061 -> 17,099 instructions")
                .done(),
            R::Vgif => exact("CPUID of L2", 8.0, 6.0)
                .by_lab()
                .note("36,450 -> 30,261 instructions")
                .done(),
            R::PreemptionTimer => trial(TrialUnit::Instructions, "arming of a timer", [1723.0; 2], [1305.0; 2])
                .on_intel()
                .by_lab()
                .with("6.1.0")
                .note("removes no exit: an expiry is one either way; the kernel is told of a slower TSC (tsc_early_khz), as KVM takes no timer of 1 GHz")
                .done(),
            R::NoForcedBounce => exits("KiB sent", [0.257, 0.258], [0.129, 0.130])
                .with("6.1.0")
                .note("a read takes more without it, 2.09 -> 2.58: the vCPU halts again")
                .done(),
            R::BounceSize => exits("KiB sent", [0.257, 0.258], [0.258, 0.259])
                .with("6.1.0")
                .note("2 MiB, then 16 MiB; with 512 KiB the network card gets no buffers, and the VM does not answer")
                .done(),
            R::FewerEvents => exact(TICK, 11.0, 3.0)
                .by_lab()
                .with("6.1.0")
                .note("four events that take turns on two counters, then two that stay: accesses of the counters' MSRs 8.0 -> 0")
                .done(),
            R::GuestNmiWatchdog => exact("tick with two overflows of its counter", 7.0, 3.0)
                .by_lab()
                .with("6.1.0")
                .note("a payload that does what Linux's handler does: RDMSR and WRMSR of the counter")
                .done(),
            R::PvSpinHint => exits("barrier of the other vCPU", [1.75, 16.2], [11.2, 15.5])
                .with("6.1.0")
                .note("a host of two processors, whose instructions are not counted, one for each vCPU; four vCPUs that share a processor did not end with it")
                .done(),
            R::PvIpi => exits("barrier of two other vCPUs", [32.8, 38.4], [33.3, 38.9])
                .with("6.1.0")
                .note("four vCPUs on one processor, whose turns are most exits: writes of the ICR 3.0 -> 1.6 to 2.4; to one vCPU, or to all others, it is one exit either way")
                .done(),
            R::HvTlbflush => exits("page that is protected", [33.3, 33.9], [3.75, 5.30])
                .with("6.1.0")
                .note("Linux with kvm=off, two vCPUs on one processor: IPIs 2.2 -> 0.2, hypercalls 0 -> 2.1, and no vCPU waits for the other's turn")
                .done(),
            R::NoHvVapic => exits(SLEEP, [3.73, 3.78], [4.94, 4.99])
                .with("6.1.0")
                .note("without APICv and AVIC, where it is the wrong way: ends of interrupts come back")
                .done(),
            R::HvVapic => exits(SLEEP, [4.89, 4.93], [3.74, 3.78])
                .with("6.1.0")
                .note("Linux with kvm=off: ends of interrupts 1.25 -> 0")
                .done(),
            R::HvStimer => exits(SLEEP, [3.73, 3.78], [5.00, 5.01])
                .with("6.1.0")
                .note("Linux with kvm=off and hv-stimer-direct, in place of the TSC deadline: ends of interrupts come back")
                .done(),
            R::HvTime => exits("clock reading", [1.030, 1.035], [0.003, 0.006])
                .with("6.1.0")
                .note("Linux with kvm=off, acpi_pm, then the reference TSC page")
                .done(),
            R::HvIpi => exits("barrier of the other vCPU", [17.7; 2], [18.3; 2])
                .with("6.1.0")
                .note("Linux with kvm=off, one target; with Linux 6.12 a hand-over between two vCPUs 3.78 to 4.36 -> 4.07 to 4.62, writes of the ICR 1.09 -> hypercalls 1.24")
                .done(),
            R::PvEoi => exits(SLEEP, [4.81, 4.94], [3.63, 3.68])
                .with("6.1.0")
                .note("ends of interrupts 1.25 -> 0")
                .done(),
            R::RtcReads => exits("reading of the time", [22.1, 22.4], [0.15, 0.30])
                .with("6.1.0")
                .note("RTC_RD_TIME, then the system's clock")
                .done(),
        }
    }
}
