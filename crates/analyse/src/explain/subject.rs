//! What exits are about: each exit has one subject, so that costs of subjects add up to the exit tax and to no more.
//!
//! The subject follows from what an exit IS (its address, port, MSR, hypercall, reason), for every vendor alike; the table
//! lists for each which remedies there are.

use vmtax_events::device::looks_like_notification;
use vmtax_events::{
    Cause, Detail, DetailKind, Device, ExitKey, Isa, Level, Outcome, apic, svm, vmx,
};

use crate::table::cause_of;

/// A row of the table.
pub struct Subject {
    /// Its word. These words never change.
    pub id: &'static str,
    /// Words of [`crate::remedy::REMEDIES`] that may help.
    pub remedies: &'static [&'static str],
}

const fn row(id: &'static str, remedies: &'static [&'static str]) -> Subject {
    Subject { id, remedies }
}

/// Every subject, in the order of its devices and causes. Its words are in `vmtax-report`.
pub const SUBJECTS: &[Subject] = &[
    row("clock-reads", &["guest-clocksource"]),
    row("rtc", &[]),
    row("pit-timer", &["guest-lapic-timer"]),
    row("serial-console", &["serial-console"]),
    row("debug-console", &["release-firmware"]),
    row("io-delay", &["io-delay"]),
    row("ide-disk", &["virtio-disk"]),
    row("display", &["virtio-display"]),
    row("keyboard", &["no-i8042"]),
    row("pci-config", &[]),
    row("firmware-config", &[]),
    row("acpi", &[]),
    row("legacy-pic", &["guest-apic"]),
    row("vmware-port", &["no-vmport"]),
    row("legacy-device", &[]),
    row("level-interrupts", &["msi"]),
    row("notifications-to-vmm", &["ioeventfd", "vhost"]),
    row("notifications", &[]),
    row("queue-notifications", &[]),
    row("device-registers", &["paravirtual-device", "ioeventfd"]),
    row("unnamed-device", &[]),
    row("apic-timer", &["tsc-deadline"]),
    row("guest-timer", &["guest-nohz-full"]),
    row("host-interrupts", &["host-nohz-full", "irq-affinity"]),
    row("ipi", &["ipiv", "avic"]),
    row("no-virtual-apic", &["apicv", "avic"]),
    row("halts", &["halt-poll", "guest-haltpoll"]),
    row("spinning", &["spin-pinning"]),
    row("memory-faults", &["huge-pages"]),
    row("mapped-faults", &[]),
    row("mapped-fetches", &[]),
    row("dirty-logging", &[]),
    row("shadow-paging", &["ept", "npt"]),
    row("cpuid", &[]),
    row("msr", &[]),
    row("hypercalls", &[]),
    row("spinlock-kicks", &["pv-spin-hint"]),
    row("conversions", &[]),
    row("requests", &[]),
    row("counters", &["guest-nmi-watchdog", "fewer-events"]),
    row("vmcs-accesses", &["shadow-vmcs"]),
    row("vmload-vmsave", &["vls"]),
    row("gif", &["vgif"]),
    row("nesting", &[]),
    row("other", &[]),
];

/// The row of this word.
pub fn find(id: &str) -> &'static Subject {
    SUBJECTS.iter().find(|subject| subject.id == id).unwrap_or(&SUBJECTS[SUBJECTS.len() - 1])
}

fn is(key: &ExitKey, on_vmx: u32, on_svm: u32) -> bool {
    match key.reason.isa {
        Isa::Vmx => key.reason.code == on_vmx,
        Isa::Svm => key.reason.code == on_svm,
        Isa::Unknown => false,
    }
}

/// No code of that vendor.
const NONE: u32 = u32::MAX - 1;

/// MSRs that clocks read: HV_X64_MSR_TIME_REF_COUNT (Hyper-V TLFS, "Partition reference counter"). No clock reads IA32_TSC
/// (0x10) by RDMSR: RDTSC needs no exit.
const CLOCK_MSRS: [u64; 1] = [0x4000_0020];

/// The word of an exit's subject.
pub fn of(key: &ExitKey) -> &'static str {
    if key.ancillary_of.is_some() || key.level == Level::L2 && key.outcome == Outcome::L1 {
        return of_nesting(key);
    }
    if let Some(device) = Device::of(key.detail) {
        return of_device(device, key.detail);
    }
    if let Some(word) = of_reason(key) {
        return word;
    }
    if key.detail.kind == DetailKind::MsrRead && CLOCK_MSRS.contains(&key.detail.value) {
        return "clock-reads";
    }
    match cause_of(key) {
        Cause::TimerArm if arms_by_counter(key) => "apic-timer",
        Cause::TimerArm => "guest-timer",
        Cause::TimerTick if is(key, vmx::PREEMPTION_TIMER, NONE) => "guest-timer",
        Cause::TimerTick => "host-interrupts",
        Cause::Ipi => "ipi",
        Cause::Idle => "halts",
        Cause::MemoryFault if key.detail.is_conversion() => "conversions",
        Cause::MemoryFault => of_fault(key.detail.kind),
        Cause::DeviceMmio | Cause::DevicePio => of_unknown_device(key),
        Cause::Apic | Cause::IrqWindow => "no-virtual-apic",
        Cause::Msr => "msr",
        Cause::Cpuid => "cpuid",
        Cause::Pmu => "counters",
        Cause::NestedEntry | Cause::NestedAncillary => of_nesting(key),
        Cause::Hypercall => of_hypercall(key),
        Cause::Other => "other",
    }
}

fn of_reason(key: &ExitKey) -> Option<&'static str> {
    if is(key, vmx::PAUSE_INSTRUCTION, svm::PAUSE) {
        return Some("spinning");
    }
    if is(key, vmx::PML_FULL, NONE) {
        return Some("dirty-logging");
    }
    if is(key, vmx::INVLPG, svm::INVLPG) || is(key, NONE, svm::PF_EXCP) {
        return Some("shadow-paging");
    }
    if is(key, vmx::EOI_INDUCED, NONE) {
        return Some("level-interrupts");
    }
    None
}

/// A page that is mapped faults for other reasons than one that is not.
fn of_fault(kind: DetailKind) -> &'static str {
    match kind {
        DetailKind::MappedFault => "mapped-faults",
        DetailKind::MappedFetch => "mapped-fetches",
        _ => "memory-faults",
    }
}

fn of_nesting(key: &ExitKey) -> &'static str {
    if is(key, vmx::VMREAD, NONE) || is(key, vmx::VMWRITE, NONE) {
        "vmcs-accesses"
    } else if is(key, NONE, svm::VMLOAD) || is(key, NONE, svm::VMSAVE) {
        "vmload-vmsave"
    } else if is(key, NONE, svm::STGI) || is(key, NONE, svm::CLGI) {
        "gif"
    } else {
        "nesting"
    }
}

fn of_device(device: Device, detail: Detail) -> &'static str {
    let reads = detail.is_write() == Some(false);
    match device {
        Device::PmTimer | Device::Hpet => "clock-reads",
        Device::Pit if reads => "clock-reads",
        Device::Pit => "pit-timer",
        Device::Rtc => "rtc",
        Device::Serial => "serial-console",
        Device::DebugConsole => "debug-console",
        Device::PostCode => "io-delay",
        Device::Ide => "ide-disk",
        Device::Vga => "display",
        Device::Ps2 => "keyboard",
        Device::PciConfig => "pci-config",
        Device::FwCfg => "firmware-config",
        Device::Acpi => "acpi",
        Device::Pic => "legacy-pic",
        Device::VmwareBackdoor => "vmware-port",
        Device::IoApic => "level-interrupts",
        Device::Parallel
        | Device::Floppy
        | Device::Dma
        | Device::Tpm
        | Device::Flash
        | Device::ChipSet => "legacy-device",
    }
}

/// Of a device whose address was given out at boot.
fn of_unknown_device(key: &ExitKey) -> &'static str {
    match key.outcome {
        Outcome::Kernel if key.detail.is_write() == Some(true) => "notifications",
        _ if looks_like_notification(key.detail) => match key.outcome {
            Outcome::User => "notifications-to-vmm",
            _ => "queue-notifications",
        },
        // Without an address there is no device to name, and nothing to change.
        _ if !matches!(
            key.detail.kind,
            DetailKind::PortIn | DetailKind::PortOut | DetailKind::MmioRead | DetailKind::MmioWrite
        ) =>
        {
            "unnamed-device"
        }
        _ => "device-registers",
    }
}

fn of_hypercall(key: &ExitKey) -> &'static str {
    match (key.detail.kind, key.detail.value) {
        (DetailKind::Hypercall, 5) | (DetailKind::HypervHypercall, 8) => "spinlock-kicks",
        _ if key.detail.is_conversion() => "conversions",
        _ if is(key, vmx::TDCALL, svm::VMGEXIT) => "requests",
        _ => "hypercalls",
    }
}

/// The register of the APIC's page that an exit is about.
pub fn register_in_memory(detail: Detail) -> Option<u64> {
    match detail.kind {
        DetailKind::ApicRead | DetailKind::ApicWrite => Some(detail.value),
        DetailKind::MmioRead | DetailKind::MmioWrite => {
            detail.value.checked_sub(apic::XAPIC_BASE).filter(|offset| *offset < 0x1000)
        }
        _ => None,
    }
}

/// A write of the APIC timer's initial count.
pub fn arms_by_counter(key: &ExitKey) -> bool {
    let Detail { kind, value } = key.detail;
    let in_memory = register_in_memory(key.detail) == Some(u64::from(apic::TMICT));
    key.detail.is_write() == Some(true) && in_memory
        || kind == DetailKind::MsrWrite && value == 0x838
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_name_remedies_of_the_table() {
        for subject in SUBJECTS {
            for id in subject.remedies {
                assert!(crate::remedy::find(id).is_some(), "{id}");
            }
        }
    }

    /// A remedy that removes exits removes those of the subjects that offer it, and no others.
    #[test]
    fn remedies_remove_what_their_subject_is() {
        use vmtax_events::Reason;
        for isa in [Isa::Vmx, Isa::Svm] {
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
                let subject = find(of(&key));
                for remedy in crate::remedy::REMEDIES {
                    let offered = subject.remedies.contains(&remedy.id);
                    let others = SUBJECTS.iter().any(|other| other.remedies.contains(&remedy.id));
                    if remedy.removes.is_some_and(|removes| removes(&key)) && others {
                        assert!(
                            offered,
                            "{} removes {} of {}",
                            remedy.id,
                            reason.name(),
                            subject.id
                        );
                    }
                }
            }
        }
    }
}
