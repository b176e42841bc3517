//! What exits are about: each exit has one subject, so that costs of subjects add up to the exit tax and to no more.
//!
//! The subject follows from what an exit IS (its address, port, MSR, hypercall, reason), for every vendor alike; the table
//! says for each what it means, which remedies there are, what would disprove it, and what to record next.

use vmtax_events::device::looks_like_notification;
use vmtax_events::{
    Cause, Detail, DetailKind, Device, ExitKey, Isa, Level, Outcome, apic, svm, vmx,
};

use crate::table::cause_of;

/// A row of the table.
pub struct Subject {
    /// Its word. These words never change.
    pub id: &'static str,
    /// What it means, to follow a colon.
    pub means: &'static str,
    /// Words of [`crate::remedy::REMEDIES`] that may help.
    pub remedies: &'static [&'static str],
    /// What would show that it is not so.
    pub disproof: &'static str,
    /// What to record to know more.
    pub next: &'static str,
}

const fn row(
    id: &'static str,
    means: &'static str,
    remedies: &'static [&'static str],
    disproof: &'static str,
    next: &'static str,
) -> Subject {
    Subject { id, means, remedies, disproof, next }
}

const WHO: &str = "who does it: `perf record -e kvm:kvm_exit -g` on the host names the guest's rip; a profile of the guest names the program";
const WHOSE: &str = "whose register it is: `lspci -v` in the guest, or QEMU's `info mtree`";
const SAME: &str = "the same workload without these accesses is as slow";

/// Every subject.
pub const SUBJECTS: &[Subject] = &[
    row(
        "clock-reads",
        "the guest reads its clock from a device, and each reading is an exit",
        &["guest-clocksource"],
        "the guest's current_clocksource is tsc or kvm-clock: then a program reads the device",
        WHO,
    ),
    row(
        "rtc",
        "the guest reads or programs its real-time clock",
        &[],
        "the guest does not open /dev/rtc",
        WHO,
    ),
    row(
        "pit-timer",
        "the guest runs its timer on the PIT",
        &["guest-lapic-timer"],
        "the guest's current clock event device is lapic",
        WHO,
    ),
    row(
        "serial-console",
        "the guest writes to a serial port, byte by byte",
        &["serial-console"],
        SAME,
        WHO,
    ),
    row(
        "debug-console",
        "firmware or a guest writes to a debug port",
        &["release-firmware"],
        "the firmware is a release build",
        WHO,
    ),
    row("io-delay", "the guest waits by writing to port 0x80", &["io-delay"], SAME, WHO),
    row(
        "ide-disk",
        "the guest drives an emulated IDE disk by its registers",
        &["virtio-disk"],
        "the guest's disk is not on IDE",
        WHO,
    ),
    row(
        "display",
        "the guest draws through an emulated VGA",
        &["virtio-display"],
        "nothing is drawn",
        WHO,
    ),
    row(
        "keyboard",
        "the guest polls an emulated keyboard or mouse controller",
        &["no-i8042"],
        "the guest has no i8042 driver",
        WHO,
    ),
    row(
        "pci-config",
        "the guest keeps reading PCI configuration space",
        &[],
        "it ends with the boot",
        WHO,
    ),
    row(
        "firmware-config",
        "the guest reads QEMU's firmware configuration",
        &[],
        "it ends with the boot",
        WHO,
    ),
    row("acpi", "the guest uses ACPI registers", &[], SAME, WHO),
    row(
        "legacy-pic",
        "the guest uses the 8259 interrupt controllers",
        &["guest-apic"],
        "the guest's interrupts go by the I/O APIC or MSI",
        WHO,
    ),
    row("vmware-port", "the guest uses VMware's backdoor port", &["no-vmport"], SAME, WHO),
    row("legacy-device", "the guest uses an old device of the PC", &[], SAME, WHO),
    row(
        "level-interrupts",
        "devices use level-triggered interrupts of the I/O APIC",
        &["msi"],
        "/proc/interrupts in the guest shows no IO-APIC-fasteoi that counts up",
        WHO,
    ),
    row(
        "notifications-to-vmm",
        "notifications of virtio queues go to the VMM, which handles them in the vCPU's thread",
        &["ioeventfd", "vhost"],
        "the addresses are no virtio device's",
        WHOSE,
    ),
    row(
        "notifications",
        "queue notifications that the kernel handles (ioeventfd, kvm_fast_mmio): the VMM is not involved, and only fewer notifications would cost less",
        &[],
        "the addresses are no device's queue",
        WHOSE,
    ),
    row(
        "queue-notifications",
        "the guest notifies queues of devices; without kvm_userspace_exit the recording does not show whether the kernel (ioeventfd) or the VMM handles that",
        &[],
        "the addresses are no device's queue",
        "kvm:kvm_userspace_exit beside the exits",
    ),
    row(
        "device-registers",
        "the VMM emulates a device: each register access is an exit",
        &["paravirtual-device", "ioeventfd"],
        "the addresses are not an emulated device's",
        WHOSE,
    ),
    row(
        "unnamed-device",
        "the guest accesses devices; the recording does not contain their addresses",
        &[],
        "they are over when the guest has booted",
        "kvm:kvm_pio, kvm:kvm_mmio and kvm:kvm_userspace_exit beside the exits (`perf record -a -e 'kvm:*'`), which contain the addresses",
    ),
    row(
        "apic-timer",
        "the guest arms its timer through the APIC's counter and not by the TSC deadline",
        &["tsc-deadline"],
        "tsc_deadline_timer is in the guest's /proc/cpuinfo, and it arms by choice",
        "/proc/cpuinfo in the guest",
    ),
    row(
        "guest-timer",
        "the guest arms its timers, and they expire",
        &["guest-nohz-full"],
        "the rate is not that of a tick (100 to 1,000 a second and vCPU): then programs arm timers",
        "which timers: perf record -e timer:hrtimer_start in the guest",
    ),
    row(
        "host-interrupts",
        "host interrupts while the guest runs: the host's tick, devices, IPIs, expired guest timers",
        &["host-nohz-full", "irq-affinity"],
        "the host's /proc/interrupts does not count up on these processors",
        "which: perf record -e irq_vectors:*,irq:irq_handler_entry on the vCPUs' processors",
    ),
    row(
        "ipi",
        "vCPUs interrupt each other",
        &["ipiv", "avic"],
        SAME,
        "why: a profile of the guest (TLB shootdowns, wake-ups)",
    ),
    row(
        "no-virtual-apic",
        "the APIC is not virtualized: EOI writes, task priority and interrupt windows are exits",
        &["apicv", "avic"],
        "enable_apicv or avic is on and nothing inhibits it",
        "kvm:kvm_apicv_inhibit_changed; /sys/module/kvm_*/parameters",
    ),
    row(
        "halts",
        "the guest halts, and handling the halt costs time beside the wait",
        &["halt-poll", "guest-haltpoll"],
        "halts are longer than any polling",
        "kvm:kvm_vcpu_wakeup, kvm:kvm_halt_poll_ns",
    ),
    row(
        "spinning",
        "vCPUs spin on PAUSE: on a lock whose owner does not run, or by idle=poll",
        &["spin-pinning"],
        "no vCPU is preempted, and the guest has no idle=poll",
        "sched:sched_switch of all processors; the guest's command line",
    ),
    row(
        "memory-faults",
        "the guest touches memory that the host has not mapped",
        &["huge-pages"],
        "each region of 2 MiB faults once: then it is first use",
        "`vmtax pages` on the host; kvm:kvm_page_fault",
    ),
    row(
        "dirty-logging",
        "KVM logs written pages: a migration or a checkpoint runs",
        &[],
        "no migration runs",
        "QEMU's `info migrate`",
    ),
    row(
        "shadow-paging",
        "KVM keeps shadow page tables: the processor's nested paging is not used",
        &["ept", "npt"],
        "kvm_intel.ept or kvm_amd.npt is on",
        "/sys/module/kvm_*/parameters",
    ),
    row("cpuid", "a program in the guest keeps executing CPUID", &[], SAME, WHO),
    row("msr", "the guest reads or writes MSRs that KVM intercepts", &[], SAME, WHO),
    row(
        "hypercalls",
        "the guest calls the hypervisor",
        &[],
        SAME,
        "which calls: kvm:kvm_hypercall, kvm:kvm_hv_hypercall",
    ),
    row(
        "spinlock-kicks",
        "vCPUs wake each other for contended locks (KVM_HC_KICK_CPU, HvCallNotifyLongSpinWait)",
        &["pv-spin-hint"],
        "no lock is contended in the guest's profile",
        "a profile of the guest",
    ),
    row(
        "conversions",
        "the guest converts memory between private and shared",
        &[],
        SAME,
        "which: kvm:kvm_hypercall (12), kvm_vmgexit_enter, kvm_userspace_exit (39); `vmtax report --event conversion`",
    ),
    row(
        "requests",
        "requests of a confidential guest whose kind was not recorded",
        &[],
        SAME,
        "kvm:kvm_vmgexit_enter, kvm_msr, kvm_pio, kvm_mmio, kvm_cpuid",
    ),
    row(
        "counters",
        "the guest uses performance counters",
        &["guest-nmi-watchdog", "fewer-events"],
        "perf does not run in the guest, and its watchdog is off",
        "ps and sysctl kernel.nmi_watchdog in the guest",
    ),
    row(
        "vmcs-accesses",
        "VMREAD and VMWRITE of L1 exit to L0",
        &["shadow-vmcs"],
        "enable_shadow_vmcs is on",
        "which fields: `vmtax record` names them",
    ),
    row(
        "vmload-vmsave",
        "VMLOAD and VMSAVE of L1 exit to L0",
        &["vls"],
        "kvm_amd.vls is on",
        "/sys/module/kvm_amd/parameters",
    ),
    row(
        "gif",
        "STGI and CLGI of L1 exit to L0",
        &["vgif"],
        "kvm_amd.vgif is on",
        "/sys/module/kvm_amd/parameters",
    ),
    row(
        "nesting",
        "the guest runs nested guests: entries of L2, and the exits of L1 that each exit of L2 causes",
        &[],
        SAME,
        "kvm:kvm_nested_vmexit",
    ),
    row(
        "other",
        "other exits",
        &[],
        SAME,
        "kvm:* (perf record -e 'kvm:*'), which shows their subject",
    ),
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
        Cause::MemoryFault => "memory-faults",
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
