//! What exits are about: each exit has one subject, so that costs of subjects add up to the exit tax and to no more.
//!
//! The subject follows from what an exit IS (its address, port, MSR, hypercall, reason), for every vendor alike; the table
//! lists for each which remedies there are.

use vmtax_events::device::{looks_like_doorbell, looks_like_notification};
use vmtax_events::{
    Cause, Detail, DetailKind, Device, ExitKey, Level, Outcome, apic, arm, svm, vmx,
};

use crate::remedy::RemedyId;
use crate::table::cause_of;

vmtax_events::words! {
    /// What an exit is about. Alphabetical by word, which orders subjects of equal cost.
    pub enum Subject {
        /// ACPI registers other than the timer.
        Acpi = "acpi",
        /// Writes of the APIC timer's count.
        ApicTimer = "apic-timer",
        /// Reads of a clock that is a device or an MSR.
        ClockReads = "clock-reads",
        /// Conversions of memory between private and shared.
        Conversions = "conversions",
        /// Performance counters.
        Counters = "counters",
        /// CPUID.
        Cpuid = "cpuid",
        /// Data aborts on arm64 whose addresses are not known.
        DataAborts = "data-aborts",
        /// Writes to a debug port.
        DebugConsole = "debug-console",
        /// Registers of a device at an address of the guest's choice.
        DeviceRegisters = "device-registers",
        /// PML_FULL.
        DirtyLogging = "dirty-logging",
        /// Registers and memory of a VGA.
        Display = "display",
        /// Instruction fetches that fault on mapped memory on arm64.
        ExecFaults = "exec-faults",
        /// QEMU's firmware configuration.
        FirmwareConfig = "firmware-config",
        /// Registers of the interrupt controller of arm64.
        Gic = "gic",
        /// STGI and CLGI of L1.
        Gif = "gif",
        /// Arming and expiry of the guest's timers.
        GuestTimer = "guest-timer",
        /// Halts.
        Halts = "halts",
        /// Programming of the HPET's event timers.
        HpetTimer = "hpet-timer",
        /// Interrupts of the host by devices.
        HostDevices = "host-devices",
        /// Interrupts of the host whose vectors are not known.
        HostInterrupts = "host-interrupts",
        /// Interrupts of the host by its other CPUs.
        HostIpis = "host-ipis",
        /// Interrupts of the host on arm64, of which nothing says more.
        HostIrqs = "host-irqs",
        /// Interrupts of the host by its timer.
        HostTick = "host-tick",
        /// Other hypercalls.
        Hypercalls = "hypercalls",
        /// Hyper-V's MSRs for EOI, ICR and TPR.
        HypervApic = "hyperv-apic",
        /// Registers of an IDE disk.
        IdeDisk = "ide-disk",
        /// Writes to port 0x80.
        IoDelay = "io-delay",
        /// Interrupts between vCPUs.
        Ipi = "ipi",
        /// Accesses of the PS/2 controller.
        Keyboard = "keyboard",
        /// Old devices of the PC.
        LegacyDevice = "legacy-device",
        /// The 8259 interrupt controllers.
        LegacyPic = "legacy-pic",
        /// The I/O APIC, EOIs of level-triggered interrupts, and what their handlers read: the APIC's trigger modes (TMR), a virtio
        /// device's interrupt status.
        LevelInterrupts = "level-interrupts",
        /// Faults on memory that is mapped.
        MappedFaults = "mapped-faults",
        /// Instruction fetches that fault on memory that is mapped.
        MappedFetches = "mapped-fetches",
        /// Faults on memory that is not mapped.
        MemoryFaults = "memory-faults",
        /// Nested page faults whose addresses are not known.
        MemoryOrDevice = "memory-or-device",
        /// Device registers on arm64 that the kernel handles, or whose handler is not known.
        Mmio = "mmio",
        /// Other MSRs.
        Msr = "msr",
        /// Other work of a nested hypervisor.
        Nesting = "nesting",
        /// Work of a nested hypervisor on arm64.
        NestingEl2 = "nesting-el2",
        /// APIC accesses and interrupt windows.
        NoVirtualApic = "no-virtual-apic",
        /// Queue notifications that the kernel handles.
        Notifications = "notifications",
        /// Queue notifications that the VMM handles.
        NotificationsToVmm = "notifications-to-vmm",
        /// Doorbells of an NVMe controller.
        NvmeDoorbells = "nvme-doorbells",
        /// Everything else.
        Other = "other",
        /// PCI configuration space.
        PciConfig = "pci-config",
        /// Programming of the PIT.
        PitTimer = "pit-timer",
        /// Queue notifications; who handles them is not known.
        QueueNotifications = "queue-notifications",
        /// Requests of a confidential guest without a code.
        Requests = "requests",
        /// Accesses of the real-time clock.
        Rtc = "rtc",
        /// Accesses of a serial port.
        SerialConsole = "serial-console",
        /// What nested paging makes superfluous.
        ShadowPaging = "shadow-paging",
        /// Calls by HVC and SMC.
        Smccc = "smccc",
        /// Hypercalls of contended locks.
        SpinlockKicks = "spinlock-kicks",
        /// PAUSE.
        Spinning = "spinning",
        /// Faults on arm64 on memory that is not mapped.
        Stage2Faults = "stage2-faults",
        /// Other system registers of arm64.
        Sysreg = "sysreg",
        /// Device accesses without an address.
        UnnamedDevice = "unnamed-device",
        /// MSRs without their numbers.
        UnnamedMsr = "unnamed-msr",
        /// System registers whose encoding is not known.
        UnnamedSysreg = "unnamed-sysreg",
        /// VMREAD and VMWRITE of L1.
        VmcsAccesses = "vmcs-accesses",
        /// VMLOAD and VMSAVE of L1.
        VmloadVmsave = "vmload-vmsave",
        /// VMware's backdoor port.
        VmwarePort = "vmware-port",
        /// Waits for an event (WFE).
        Wfe = "wfe",
    }
}

impl Subject {
    /// Remedies that may help, the first one first.
    pub fn remedies(self) -> &'static [RemedyId] {
        match self {
            Subject::ClockReads => &[RemedyId::GuestClocksource],
            Subject::PitTimer | Subject::HpetTimer => {
                &[RemedyId::GuestLapicTimer, RemedyId::HvStimer]
            }
            Subject::SerialConsole => &[RemedyId::SerialConsole],
            Subject::DebugConsole => &[RemedyId::ReleaseFirmware],
            Subject::IdeDisk => &[RemedyId::VirtioDisk],
            Subject::Display => &[RemedyId::VirtioDisplay],
            Subject::Keyboard => &[RemedyId::NoI8042],
            Subject::LegacyPic => &[RemedyId::GuestApic],
            Subject::LevelInterrupts => &[RemedyId::Msi],
            Subject::NotificationsToVmm => &[RemedyId::Ioeventfd, RemedyId::Vhost],
            Subject::NvmeDoorbells => &[RemedyId::ParavirtualDevice],
            Subject::DeviceRegisters => &[RemedyId::ParavirtualDevice, RemedyId::Ioeventfd],
            Subject::ApicTimer => &[RemedyId::TscDeadline],
            Subject::GuestTimer => &[RemedyId::GuestNohzFull],
            Subject::HostDevices => &[RemedyId::IrqAffinity],
            Subject::HostTick => &[RemedyId::HostNohzFull],
            Subject::HostInterrupts => &[RemedyId::HostNohzFull, RemedyId::IrqAffinity],
            Subject::Rtc => &[RemedyId::HvStimer, RemedyId::RtcReads],
            Subject::HypervApic => &[RemedyId::HvApicv, RemedyId::NoHvVapic],
            Subject::Ipi => &[RemedyId::Ipiv, RemedyId::Avic],
            Subject::NoVirtualApic => {
                &[RemedyId::Apicv, RemedyId::Avic, RemedyId::PvEoi, RemedyId::HvVapic]
            }
            Subject::Halts => &[RemedyId::HaltPoll, RemedyId::GuestHaltpoll],
            Subject::Spinning => &[RemedyId::SpinPinning],
            Subject::MemoryFaults => &[RemedyId::HugePages],
            Subject::ShadowPaging => &[RemedyId::Ept, RemedyId::Npt],
            Subject::SpinlockKicks => &[RemedyId::PvSpinHint],
            Subject::Counters => &[RemedyId::GuestNmiWatchdog, RemedyId::FewerEvents],
            Subject::VmcsAccesses => &[RemedyId::ShadowVmcs],
            Subject::VmloadVmsave => &[RemedyId::Vls],
            Subject::Gif => &[RemedyId::Vgif],
            Subject::IoDelay
            | Subject::VmwarePort
            | Subject::PciConfig
            | Subject::FirmwareConfig
            | Subject::Acpi
            | Subject::LegacyDevice
            | Subject::Notifications
            | Subject::QueueNotifications
            | Subject::UnnamedDevice
            | Subject::MappedFaults
            | Subject::MappedFetches
            | Subject::DirtyLogging
            | Subject::Cpuid
            | Subject::Msr
            | Subject::Hypercalls
            | Subject::HostIpis
            | Subject::MemoryOrDevice
            | Subject::UnnamedMsr
            | Subject::Conversions
            | Subject::Requests
            | Subject::Nesting
            | Subject::DataAborts
            | Subject::ExecFaults
            | Subject::Gic
            | Subject::HostIrqs
            | Subject::Mmio
            | Subject::NestingEl2
            | Subject::Smccc
            | Subject::Stage2Faults
            | Subject::Sysreg
            | Subject::UnnamedSysreg
            | Subject::Wfe
            | Subject::Other => &[],
        }
    }
}

/// MSRs that clocks read: HV_X64_MSR_TIME_REF_COUNT (Hyper-V TLFS, "Partition reference counter"). No clock reads IA32_TSC
/// (0x10) by RDMSR: RDTSC needs no exit.
const CLOCK_MSRS: [u64; 1] = [0x4000_0020];

/// HV_X64_MSR_EOI, _ICR and _TPR (Hyper-V TLFS, "Virtual interrupts"): MSRs of Hyper-V's interface, for which KVM always needs an
/// exit (Linux arch/x86/kvm/hyperv.c, `kvm_hv_set_msr`). APICv and AVIC virtualize the APIC's own registers alone.
const HYPERV_APIC: std::ops::RangeInclusive<u64> = 0x4000_0070..=0x4000_0072;

/// IA32_X2APIC_TMR0 to _TMR7, and the same registers in memory: Linux reads them at the end of a level-triggered interrupt
/// (arch/x86/kernel/apic/io_apic.c, `ioapic_ack_level`).
const TMR_MSRS: std::ops::RangeInclusive<u64> = 0x818..=0x81f;
const TMR: std::ops::RangeInclusive<u64> = 0x180..=0x1ff;

/// Configuration, comparators and routes of the HPET's timers (IA-PC HPET specification 1.0a, 2.3): what is below is the counter
/// and what concerns all of it.
const HPET_TIMERS: std::ops::RangeInclusive<u64> = 0xfed0_0100..=0xfed0_03ff;

/// An exit's subject, by itself: [`super::beside`] has what others say of it.
pub(super) fn subject_of(key: &ExitKey) -> Subject {
    let subject = by_rules(key);
    if key.reason.isa.facts().is_x86() { subject } else { elsewhere(subject, key) }
}

/// The subject elsewhere than on x86, where that of x86 says what is not so, or names what is not there.
fn elsewhere(subject: Subject, key: &ExitKey) -> Subject {
    match subject {
        Subject::MemoryOrDevice => Subject::DataAborts,
        Subject::MemoryFaults => Subject::Stage2Faults,
        Subject::MappedFetches => Subject::ExecFaults,
        Subject::NoVirtualApic => Subject::Gic,
        Subject::HostInterrupts => Subject::HostIrqs,
        Subject::Hypercalls | Subject::Conversions => Subject::Smccc,
        Subject::Nesting => Subject::NestingEl2,
        Subject::Notifications | Subject::DeviceRegisters if key.outcome != Outcome::User => {
            Subject::Mmio
        }
        Subject::Halts if key.detail == Detail::new(DetailKind::Wait, arm::WFE) => Subject::Wfe,
        other => other,
    }
}

fn by_rules(key: &ExitKey) -> Subject {
    if key.ancillary_of.is_some() || key.level == Level::L2 && key.outcome == Outcome::L1 {
        return of_nesting(key);
    }
    let device = Device::of(key.reason.isa, key.detail);
    if let Some(subject) = device.and_then(|device| of_device(device, key.detail)) {
        return subject;
    }
    if let Some(word) = of_reason(key) {
        return word;
    }
    match key.detail.kind {
        DetailKind::MsrRead if CLOCK_MSRS.contains(&key.detail.value) => {
            return Subject::ClockReads;
        }
        DetailKind::MsrRead if TMR_MSRS.contains(&key.detail.value) => {
            return Subject::LevelInterrupts;
        }
        DetailKind::MsrRead | DetailKind::MsrWrite if HYPERV_APIC.contains(&key.detail.value) => {
            return Subject::HypervApic;
        }
        // With nested paging no access of CR3 is an exit (Linux arch/x86/kvm/svm/svm.c, `init_vmcb`; vmx.c, `vmx_set_cr0`).
        DetailKind::CrRead | DetailKind::CrWrite if key.detail.value == 3 => {
            return Subject::ShadowPaging;
        }
        _ if register_in_memory(key.detail).is_some_and(|register| TMR.contains(&register)) => {
            return Subject::LevelInterrupts;
        }
        _ => {}
    }
    match cause_of(key) {
        Cause::TimerArm if arms_by_counter(key) => Subject::ApicTimer,
        Cause::TimerArm => Subject::GuestTimer,
        Cause::TimerTick => Subject::GuestTimer,
        Cause::HostTick => Subject::HostTick,
        Cause::HostIpi => Subject::HostIpis,
        Cause::HostDevice => Subject::HostDevices,
        Cause::HostInterrupt => Subject::HostInterrupts,
        Cause::MemoryOrDevice => Subject::MemoryOrDevice,
        Cause::Ipi => Subject::Ipi,
        Cause::Idle => Subject::Halts,
        Cause::MemoryFault if key.detail.is_conversion() => Subject::Conversions,
        Cause::MemoryFault => of_fault(key.detail.kind),
        Cause::DeviceMmio | Cause::DevicePio => of_unknown_device(key),
        Cause::Apic | Cause::IrqWindow => Subject::NoVirtualApic,
        Cause::Msr if key.detail.kind == DetailKind::None => Subject::UnnamedMsr,
        Cause::Msr => Subject::Msr,
        Cause::Sysreg if key.detail.kind == DetailKind::None => Subject::UnnamedSysreg,
        Cause::Sysreg => Subject::Sysreg,
        Cause::Cpuid => Subject::Cpuid,
        Cause::Pmu => Subject::Counters,
        Cause::NestedEntry | Cause::NestedAncillary => of_nesting(key),
        Cause::Hypercall => of_hypercall(key),
        Cause::Other => Subject::Other,
    }
}

fn of_reason(key: &ExitKey) -> Option<Subject> {
    if key.reason.is(vmx::PAUSE_INSTRUCTION, svm::PAUSE) {
        return Some(Subject::Spinning);
    }
    if key.reason.is(vmx::PML_FULL, None) {
        return Some(Subject::DirtyLogging);
    }
    let cr3 = key.reason.is(None, svm::READ_CR3) || key.reason.is(None, svm::WRITE_CR3);
    if key.reason.is(vmx::INVLPG, svm::INVLPG) || key.reason.is(None, svm::PF_EXCP) || cr3 {
        return Some(Subject::ShadowPaging);
    }
    if key.reason.is(vmx::EOI_INDUCED, None) {
        return Some(Subject::LevelInterrupts);
    }
    None
}

/// A page that is mapped faults for other reasons than one that is not.
fn of_fault(kind: DetailKind) -> Subject {
    match kind {
        DetailKind::MappedFault => Subject::MappedFaults,
        DetailKind::MappedFetch => Subject::MappedFetches,
        _ => Subject::MemoryFaults,
    }
}

fn of_nesting(key: &ExitKey) -> Subject {
    if key.reason.is(vmx::VMREAD, None) || key.reason.is(vmx::VMWRITE, None) {
        Subject::VmcsAccesses
    } else if key.reason.is(None, svm::VMLOAD) || key.reason.is(None, svm::VMSAVE) {
        Subject::VmloadVmsave
    } else if key.reason.is(None, svm::STGI) || key.reason.is(None, svm::CLGI) {
        Subject::Gif
    } else {
        Subject::Nesting
    }
}

fn of_device(device: Device, detail: Detail) -> Option<Subject> {
    let reads = detail.is_write() == Some(false);
    Some(match device {
        Device::Hpet if HPET_TIMERS.contains(&detail.value) => Subject::HpetTimer,
        Device::PmTimer | Device::Hpet => Subject::ClockReads,
        Device::Pit if reads => Subject::ClockReads,
        Device::Pit => Subject::PitTimer,
        Device::Rtc => Subject::Rtc,
        Device::Serial => Subject::SerialConsole,
        Device::DebugConsole => Subject::DebugConsole,
        Device::PostCode => Subject::IoDelay,
        Device::Ide => Subject::IdeDisk,
        Device::Vga => Subject::Display,
        Device::Ps2 => Subject::Keyboard,
        Device::PciConfig => Subject::PciConfig,
        Device::FwCfg => Subject::FirmwareConfig,
        Device::Acpi => Subject::Acpi,
        Device::Pic => Subject::LegacyPic,
        Device::VmwareBackdoor => Subject::VmwarePort,
        Device::IoApic => Subject::LevelInterrupts,
        Device::Parallel
        | Device::Floppy
        | Device::Dma
        | Device::Tpm
        | Device::Flash
        | Device::ChipSet => Subject::LegacyDevice,
        Device::VirtUart => Subject::SerialConsole,
        Device::VirtPciConfig => Subject::PciConfig,
        Device::VirtFwCfg => Subject::FirmwareConfig,
        Device::VirtAcpi => Subject::Acpi,
        Device::VirtGic | Device::VirtGicV2m | Device::VirtIts => Subject::Gic,
        Device::VirtRtc => Subject::Rtc,
        // Who handles the access says more.
        Device::VirtGpio
        | Device::VirtSmmu
        | Device::VirtioMmio
        | Device::VirtPlatformBus
        | Device::VirtPciMemory
        | Device::VirtPciPorts => return None,
    })
}

/// Of a device whose address was given out at boot.
fn of_unknown_device(key: &ExitKey) -> Subject {
    match key.outcome {
        Outcome::Kernel if key.detail.is_write() == Some(true) => Subject::Notifications,
        _ if looks_like_notification(key.reason.isa, key.detail) => match key.outcome {
            Outcome::User => Subject::NotificationsToVmm,
            _ => Subject::QueueNotifications,
        },
        _ if looks_like_doorbell(key.reason.isa, key.detail) => Subject::NvmeDoorbells,
        // Without an address there is no device to name, and nothing to change.
        _ if !matches!(
            key.detail.kind,
            DetailKind::PortIn | DetailKind::PortOut | DetailKind::MmioRead | DetailKind::MmioWrite
        ) =>
        {
            Subject::UnnamedDevice
        }
        _ => Subject::DeviceRegisters,
    }
}

fn of_hypercall(key: &ExitKey) -> Subject {
    match (key.detail.kind, key.detail.value) {
        (DetailKind::Hypercall, 5) | (DetailKind::HypervHypercall, 8) => Subject::SpinlockKicks,
        _ if key.detail.is_conversion() => Subject::Conversions,
        _ if key.reason.is(vmx::TDCALL, svm::VMGEXIT) => Subject::Requests,
        _ => Subject::Hypercalls,
    }
}

/// The register of the APIC's page that an exit is about.
pub(super) fn register_in_memory(detail: Detail) -> Option<u64> {
    match detail.kind {
        DetailKind::ApicRead | DetailKind::ApicWrite => Some(detail.value),
        DetailKind::MmioRead | DetailKind::MmioWrite => {
            detail.value.checked_sub(apic::XAPIC_BASE).filter(|offset| *offset < 0x1000)
        }
        _ => None,
    }
}

/// A write of the APIC timer's initial count.
pub(super) fn arms_by_counter(key: &ExitKey) -> bool {
    let Detail { kind, value } = key.detail;
    let in_memory = register_in_memory(key.detail) == Some(u64::from(apic::TMICT));
    key.detail.is_write() == Some(true) && in_memory
        || kind == DetailKind::MsrWrite && value == 0x838
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A remedy that removes exits removes those of the subjects that offer it, and no others.
    #[test]
    fn remedies_remove_what_their_subject_is() {
        use vmtax_events::{Isa, Reason};
        let is_offered = |id: RemedyId, by: &dyn Fn(Subject) -> bool| {
            Subject::ALL.into_iter().any(|subject| by(subject) && subject.remedies().contains(&id))
        };
        for isa in Isa::ALL {
            for code in 0..0x404 {
                let reason = Reason { isa, code, flags: 0 };
                let key = ExitKey {
                    vm: 0,
                    vcpu: 0,
                    level: Level::L1,
                    reason,
                    detail: Detail::NONE,
                    outcome: Outcome::Kernel,
                    ancillary_of: None,
                };
                let subject = subject_of(&key);
                for remedy in crate::remedy::REMEDIES {
                    let removes = remedy.removes.is_some_and(|removes| removes(&key));
                    if removes && is_offered(remedy.id, &|_| true) {
                        assert!(
                            is_offered(remedy.id, &|one| one == subject),
                            "{} removes {} of {subject}",
                            remedy.id,
                            reason.name()
                        );
                    }
                }
            }
        }
    }
}
