//! The rows of `vmtax lab remedy`.

use vmtax_analyse::remedy::{RemedyId, TrialUnit};
use vmtax_lab::HostKind;

use super::{RemedyRow, TrialLoad, VmsHost};

const fn row(
    remedy: RemedyId,
    workload: &'static str,
    vms: [&'static str; 2],
    finding: &'static str,
) -> RemedyRow {
    workloads(remedy, [(workload, vms[0]), (workload, vms[1])], finding)
}

/// A workload without the remedy, and another with it.
const fn workloads(
    remedy: RemedyId,
    vms: [(&'static str, &'static str); 2],
    finding: &'static str,
) -> RemedyRow {
    let (load, finding) = (TrialLoad::Vms(vms, VmsHost::ONE), Some(finding));
    RemedyRow { remedy, load, finding, is_named: true, unit: TrialUnit::Exits, spread: 0.0 }
}

/// An operation without and with options of the host's kernel.
const fn option(
    remedy: RemedyId,
    host: HostKind,
    operation: &'static str,
    [without, with]: [&'static [&'static str]; 2],
) -> RemedyRow {
    operations(remedy, host, [(operation, without), (operation, with)])
}

const fn operations(
    remedy: RemedyId,
    host: HostKind,
    sides: [(&'static str, &'static [&'static str]); 2],
) -> RemedyRow {
    let load = TrialLoad::Operations(host, None, sides);
    RemedyRow { remedy, load, finding: None, is_named: false, unit: TrialUnit::Exits, spread: 0.0 }
}

const fn finds(finding: &'static str, row: RemedyRow) -> RemedyRow {
    RemedyRow { finding: Some(finding), is_named: true, ..row }
}

const fn in_unit(unit: TrialUnit, row: RemedyRow) -> RemedyRow {
    RemedyRow { unit, ..row }
}

const fn varying(row: RemedyRow) -> RemedyRow {
    RemedyRow { spread: 0.1, ..row }
}

const fn of_two(row: RemedyRow) -> RemedyRow {
    match row.load {
        TrialLoad::Vms(vms, _) => RemedyRow { load: TrialLoad::Vms(vms, VmsHost::TWO), ..row },
        TrialLoad::Operations(..) => row,
    }
}

const fn with_kernel(kernel: &'static str, row: RemedyRow) -> RemedyRow {
    let load = match row.load {
        TrialLoad::Operations(host, _, sides) => TrialLoad::Operations(host, Some(kernel), sides),
        TrialLoad::Vms(vms, host) => TrialLoad::Vms(vms, VmsHost { kernel: Some(kernel), ..host }),
    };
    RemedyRow { load, ..row }
}

/// Its exits are too few for an explanation.
const fn silent(row: RemedyRow) -> RemedyRow {
    RemedyRow { finding: None, is_named: false, ..row }
}

const fn unnamed(row: RemedyRow) -> RemedyRow {
    RemedyRow { is_named: false, ..row }
}

/// Every row. What each does to the count is said by [`RemedyId::trial`].
pub const ROWS: &[RemedyRow] = &[
    row(RemedyId::VirtioDisk, "read", ["plain+pc+ide", "plain+pc"], "ide-disk"),
    row(RemedyId::GuestClocksource, "clock", ["plain+pc+acpi-pm", "plain+pc"], "clock-reads"),
    row(RemedyId::HugePages, "touch", ["plain-thp", "plain"], "memory-faults"),
    row(RemedyId::ParavirtualDevice, "request", ["plain+pc+e1000", "plain+pc"], "device-registers"),
    row(RemedyId::Msi, "read", ["plain+pc+nomsi", "plain+pc"], "level-interrupts"),
    row(RemedyId::GuestLapicTimer, "timer", ["plain+pc+hpet-timer", "plain+pc"], "hpet-timer"),
    row(RemedyId::Ioeventfd, "read", ["plain-ioeventfd", "plain"], "notifications-to-vmm"),
    row(RemedyId::PvEoi, "timer", ["plain", "plain+pv-eoi"], "no-virtual-apic"),
    row(
        RemedyId::HvVapic,
        "timer",
        ["plain+pc+hyperv", "plain+pc+hyperv+hv-vapic"],
        "no-virtual-apic",
    ),
    // Both sides have the same exits, and each varies with where the host's ticks fall.
    varying(row(RemedyId::TscDeadline, "timer", ["plain-tsc-deadline", "plain"], "apic-timer")),
    row(RemedyId::X2apic, "timer", ["plain-x2apic", "plain"], "xapic"),
    unnamed(row(RemedyId::HaltPoll, "short-timer", ["plain", "plain+halt_poll_ns"], "halts")),
    unnamed(row(RemedyId::GuestIdlePoll, "short-timer", ["plain", "plain+poll"], "halts")),
    in_unit(
        TrialUnit::Instructions,
        unnamed(row(RemedyId::NoHaltPoll, "short-timer", ["plain+halt_poll_ns", "plain"], "halts")),
    ),
    in_unit(
        TrialUnit::Waiting,
        row(RemedyId::FewerVcpus, "compute", ["plain+smp", "plain"], "contention"),
    ),
    in_unit(
        TrialUnit::Waiting,
        row(RemedyId::KsmOff, "compute", ["plain+ksm", "plain"], "contention"),
    ),
    unnamed(row(
        RemedyId::ResidentMemory,
        "again",
        ["plain-thp+swapped", "plain-thp+locked+swapped"],
        "memory-faults",
    )),
    unnamed(row(
        RemedyId::NoKvmapf,
        "again",
        ["plain-thp+swapped", "plain-thp-kvmapf+swapped"],
        "memory-faults",
    )),
    unnamed(row(
        RemedyId::BounceSize,
        "send",
        ["plain+swiotlb-small", "plain+swiotlb"],
        "notifications",
    )),
    unnamed(row(
        RemedyId::HvTlbflush,
        "protect",
        ["plain+pc+smp+hyperv", "plain+pc+smp+hyperv+hv-tlbflush"],
        "contention",
    )),
    varying(unnamed(row(
        RemedyId::PvIpi,
        "barrier",
        ["plain+smp4-pv-ipi", "plain+smp4"],
        "contention",
    ))),
    unnamed(row(
        RemedyId::HugetlbMemory,
        "touch",
        ["plain+fragmented+thp-defer", "plain+fragmented+thp-defer+hugetlb"],
        "memory-faults",
    )),
    of_two(in_unit(
        TrialUnit::Waiting,
        row(
            RemedyId::VcpuPinning,
            "compute",
            ["plain+smp+vcpus-on-0", "plain+smp+vcpus-apart"],
            "contention",
        ),
    )),
    of_two(in_unit(
        TrialUnit::Waiting,
        row(
            RemedyId::CpuIsolation,
            "compute",
            ["plain+rival+rival-on-0+vcpus-on-0", "plain+rival+rival-on-0+vcpu0-on-1"],
            "contention",
        ),
    )),
    of_two(in_unit(
        TrialUnit::Waiting,
        row(
            RemedyId::IothreadPinning,
            "request",
            ["plain+poll+io-on-0+vcpus-on-0", "plain+poll+io-on-0+vcpu0-on-1"],
            "contention",
        ),
    )),
    of_two(varying(silent(row(
        RemedyId::PvSpinHint,
        "barrier",
        ["plain+smp+vcpus-apart", "plain+smp+vcpus-apart+spin-hint"],
        "",
    )))),
    of_two(in_unit(
        TrialUnit::Interrupts,
        unnamed(row(
            RemedyId::HostNohzFull,
            "compute",
            ["plain+vcpus-on-0", "plain+vcpu0-on-1"],
            "host-interrupts",
        )),
    )),
    of_two(unnamed(row(
        RemedyId::GuestNohzFull,
        "compute",
        ["plain+smp+vcpus-apart", "plain+smp+vcpus-apart+nohz-full"],
        "guest-timer",
    ))),
    of_two(in_unit(
        TrialUnit::Interrupts,
        unnamed(row(
            RemedyId::IrqAffinity,
            "compute",
            ["plain+vcpus-on-0+device-on-0", "plain+vcpus-on-0+device-on-1"],
            "host-interrupts",
        )),
    )),
    // What QEMU's VMs show beside the rows above.
    unnamed(row(RemedyId::NoIdlePoll, "short-timer", ["plain+poll", "plain"], "host-interrupts")),
    unnamed(row(RemedyId::Vhost, "request", ["plain", "plain+vhost"], "notifications")),
    unnamed(row(RemedyId::NoForcedBounce, "send", ["plain+swiotlb", "plain"], "notifications")),
    row(RemedyId::GuestApic, "read", ["plain+pc+ide+noapic", "plain+pc+ide"], "legacy-pic"),
    unnamed(row(
        RemedyId::NoHvVapic,
        "timer",
        ["plain+pc+hyperv+hv-vapic", "plain+pc+hyperv"],
        "guest-timer",
    )),
    unnamed(row(
        RemedyId::HvStimer,
        "timer",
        ["plain+pc+hyperv+hv-vapic", "plain+pc+hyperv+hv-vapic+hv-stimer"],
        "guest-timer",
    )),
    unnamed(row(
        RemedyId::HvIpi,
        "barrier",
        ["plain+pc+smp+hyperv", "plain+pc+smp+hyperv+hv-ipi"],
        "contention",
    )),
    unnamed(row(
        RemedyId::HvFrequencies,
        "boot",
        ["plain+pc+hyperv", "plain+pc+hyperv+hv-frequencies"],
        "clock-reads",
    )),
    in_unit(
        TrialUnit::Instructions,
        silent(row(
            RemedyId::ThpDefer,
            "touch",
            ["plain+fragmented", "plain+fragmented+thp-defer"],
            "",
        )),
    ),
    unnamed(row(
        RemedyId::NoNumaBalancing,
        "again",
        ["plain-thp+poll+numa-balancing", "plain-thp+poll-numa-balancing"],
        "memory-faults",
    )),
    workloads(RemedyId::RtcReads, [("rtc", "plain+pc+rtc"), ("clock", "plain+pc+rtc")], "rtc"),
    row(RemedyId::SerialConsole, "console", ["plain", "plain+hvc"], "serial-console"),
    row(RemedyId::VirtioDisplay, "display", ["plain+pc+vga", "plain+pc"], "display"),
    in_unit(
        TrialUnit::Accesses,
        silent(row(RemedyId::NoI8042, "boot", ["plain+pc+psmouse", "plain+pc+psmouse-i8042"], "")),
    ),
    in_unit(
        TrialUnit::Waiting,
        row(RemedyId::CpuQuota, "compute", ["plain+quota", "plain"], "contention"),
    ),
    unnamed(row(
        RemedyId::HvTime,
        "clock",
        ["plain+pc+hyperv+acpi-pm", "plain+pc+hyperv"],
        "clock-reads",
    )),
    // The governor, which Linux 6.1 of Debian has not.
    with_kernel(
        "debian:6.12",
        unnamed(row(RemedyId::GuestHaltpoll, "short-timer", ["plain", "plain+hpoll"], "halts")),
    ),
    // Parameters of modules, with the lab's VMM.
    finds(
        "shadow-paging",
        option(RemedyId::Npt, HostKind::Amd, "invlpg", [&["kvm_amd.npt=0"], &[]]),
    ),
    finds("gif", option(RemedyId::Vgif, HostKind::Amd, "stgi", [&["kvm_amd.vgif=0"], &[]])),
    finds(
        "shadow-paging",
        option(RemedyId::Ept, HostKind::Intel, "invlpg", [&["kvm_intel.ept=0"], &[]]),
    ),
    finds(
        "vmcs-accesses",
        option(
            RemedyId::ShadowVmcs,
            HostKind::Intel,
            "cpuid@L2",
            [&["kvm_intel.enable_shadow_vmcs=0"], &[]],
        ),
    ),
    // KVM takes the timer of a slower TSC alone (`vmtax_lab::TSC_KHZ`).
    in_unit(
        TrialUnit::Instructions,
        option(
            RemedyId::PreemptionTimer,
            HostKind::Intel,
            "tsc-deadline",
            [&["tsc_early_khz=400000", "kvm_intel.preemption_timer=0"], &["tsc_early_khz=400000"]],
        ),
    ),
    // What a guest or its VMM does otherwise.
    finds(
        "counters",
        operations(
            RemedyId::FewerEvents,
            HostKind::Amd,
            [("perf-multiplex", &[]), ("perf-none", &[])],
        ),
    ),
    finds(
        "counters",
        operations(
            RemedyId::GuestNmiWatchdog,
            HostKind::Amd,
            [("perf-sample", &[]), ("perf-none", &[])],
        ),
    ),
    in_unit(
        TrialUnit::Waited,
        operations(
            RemedyId::FavorDynmods,
            HostKind::Amd,
            [("start-irqchip-first", &[]), ("start-favordynmods", &[])],
        ),
    ),
    in_unit(
        TrialUnit::Waited,
        operations(
            RemedyId::RcuExpedited,
            HostKind::Amd,
            [("start-irqchip-first", &[]), ("start-rcu-expedited", &[])],
        ),
    ),
    in_unit(
        TrialUnit::Waited,
        option(
            RemedyId::NxHugePagesNever,
            HostKind::Amd,
            "start-irqchip-first",
            [&[], &["kvm.nx_huge_pages=never"]],
        ),
    ),
    with_kernel(
        GRACE_PERIODS,
        in_unit(
            TrialUnit::Waited,
            operations(
                RemedyId::SlotsFirst,
                HostKind::Amd,
                [("start-irqchip-first", &[]), ("start-memory-first", &[])],
            ),
        ),
    ),
    with_kernel(
        GUEST_MEMFD,
        in_unit(
            TrialUnit::Faults,
            operations(
                RemedyId::PreFault,
                HostKind::Amd,
                [("touch-4k-guest-memfd", &[]), ("touch-4k-guest-memfd-prefault", &[])],
            ),
        ),
    ),
    with_kernel(
        GRACE_PERIODS,
        in_unit(
            TrialUnit::Waited,
            operations(
                RemedyId::FewerIoeventfds,
                HostKind::Amd,
                [("ioeventfd-8-pairs", &[]), ("ioeventfd-deassign", &[])],
            ),
        ),
    ),
];

/// A kernel with guest_memfd that an ordinary VM maps.
const GUEST_MEMFD: &str = "debian:7.3";
/// A kernel with 7d9a0273c459, whose slots wait for devices.
const GRACE_PERIODS: &str = "debian:6.18";
