//! The table: what is looked at, and what each setting changes.
//!
//! `docs/doctor-settings.md` shows it with the words of `vmtax-report`; a test holds the two together.

use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Outcome, arm, svm, vmx, words};

use super::{
    AuditRule, Check, Isas, Judge, Removes, arm64, counters, devices, features, host_pages, idle,
    interrupts, nested, pages, placement, power, start, timers, versions, windows,
};
use crate::table::cause_of;

const fn check(id: CheckId, files: &'static str, judge: Judge) -> Check {
    Check {
        id,
        files,
        causes: &[],
        removes: Removes::Nothing,
        confidential: false,
        isas: Isas::Any,
        judge,
    }
}

impl Check {
    const fn causes(mut self, causes: &'static [Cause]) -> Check {
        self.causes = causes;
        self
    }

    const fn removes(mut self, wanted: fn(&ExitKey) -> bool) -> Check {
        self.removes = Removes::Exits(wanted);
        self
    }

    const fn x86(mut self) -> Check {
        self.isas = Isas::X86;
        self
    }

    const fn arm64(mut self) -> Check {
        self.isas = Isas::Arm64;
        self
    }

    const fn confidential(mut self) -> Check {
        self.confidential = true;
        self
    }
}

/// Of memory that is not mapped: how large pages are does not change the others.
fn memory_faults(key: &ExitKey) -> bool {
    let is_mapped = matches!(key.detail.kind, DetailKind::MappedFault | DetailKind::MappedFetch);
    cause_of(key) == Cause::MemoryFault && !is_mapped
}

fn pauses(key: &ExitKey) -> bool {
    key.reason.is(vmx::PAUSE_INSTRUCTION, svm::PAUSE)
}

/// The host's tick, and what else interrupts it: a timer that KVM runs on VMX's stays.
fn host_interrupts(key: &ExitKey) -> bool {
    key.reason.is(vmx::EXTERNAL_INTERRUPT, svm::INTR)
}

/// AMD's exits have no vectors: no share of theirs is known.
fn device_interrupts(key: &ExitKey) -> bool {
    cause_of(key) == Cause::HostDevice
}

fn timer_arms(key: &ExitKey) -> bool {
    cause_of(key) == Cause::TimerArm
}

fn ipis(key: &ExitKey) -> bool {
    cause_of(key) == Cause::Ipi
}

fn apic_work(key: &ExitKey) -> bool {
    matches!(cause_of(key), Cause::Apic | Cause::Ipi | Cause::IrqWindow)
}

fn apic_accesses(key: &ExitKey) -> bool {
    matches!(cause_of(key), Cause::Apic | Cause::Ipi)
}

/// Device accesses that the VMM handles; notifications are among them.
fn to_the_vmm(key: &ExitKey) -> bool {
    matches!(cause_of(key), Cause::DeviceMmio | Cause::DevicePio)
        && matches!(key.outcome, Outcome::User | Outcome::Unknown)
}

/// Reading the HPET (0xfed00000) or the ACPI timer where QEMU's machines have it (q35 0x608, pc 0xb008).
fn clock_readings(key: &ExitKey) -> bool {
    let Detail { kind, value, .. } = key.detail;
    match kind {
        DetailKind::MmioRead => (0xfed0_0000..0xfed0_0400).contains(&value),
        DetailKind::PortIn => matches!(value, 0x608 | 0xb008),
        _ => false,
    }
}

fn pmu_work(key: &ExitKey) -> bool {
    cause_of(key) == Cause::Pmu
}

fn vmcs_accesses(key: &ExitKey) -> bool {
    key.reason.is(vmx::VMREAD, None) || key.reason.is(vmx::VMWRITE, None)
}

fn vmload_vmsave(key: &ExitKey) -> bool {
    key.reason.is(None, svm::VMLOAD) || key.reason.is(None, svm::VMSAVE)
}

fn gif_changes(key: &ExitKey) -> bool {
    key.reason.is(None, svm::STGI) || key.reason.is(None, svm::CLGI)
}

/// A vCPU that spins in WFE.
fn wfes(key: &ExitKey) -> bool {
    key.detail == Detail::new(DetailKind::Wait, arm::WFE)
}

fn nmi_windows(key: &ExitKey) -> bool {
    key.reason.is(None, svm::IRET)
}

words! {
    /// A row of the table.
    pub enum RuleId {
        Thp = "thp",
        MappedPages = "mapped-pages",
        PrivatePages = "private-pages",
        HostPages = "host-pages",
        NxHugePages = "nx-huge-pages",
        HaltPoll = "halt-poll",
        GuestHaltpoll = "guest-haltpoll",
        GuestIdlePoll = "guest-idle-poll",
        Isolation = "isolation",
        Power = "power",
        Placement = "placement",
        PreemptionTimer = "preemption-timer",
        TscDeadline = "tsc-deadline",
        VirtualApic = "virtual-apic",
        IpiAndSpinning = "ipi-and-spinning",
        Virtio = "virtio",
        Swiotlb = "swiotlb",
        Clocksource = "clocksource",
        Pmu = "pmu",
        KsmAndMitigations = "ksm-and-mitigations",
        Nesting = "nesting",
        NestedPaging = "nested-paging",
        Windows = "windows",
        Versions = "versions",
        Start = "start",
        Machine = "machine",
        KvmArmMode = "kvm-arm-mode",
        ArmTraps = "arm-traps",
    }
}

words! {
    /// A check of a rule.
    pub enum CheckId {
        ThpEnabled = "thp-enabled",
        ThpDefrag = "thp-defrag",
        ThpShmem = "thp-shmem",
        ThpBacking = "thp-backing",
        MappedPages = "mapped-pages",
        PrivatePages = "private-pages",
        HostPages = "host-pages",
        NxHugePages = "nx-huge-pages",
        HaltPoll = "halt-poll",
        GuestHaltpoll = "guest-haltpoll",
        GuestIdlePoll = "guest-idle-poll",
        NohzFull = "nohz-full",
        Isolcpus = "isolcpus",
        GuestNohzFull = "guest-nohz-full",
        RcuNocbs = "rcu-nocbs",
        Governor = "governor",
        Turbo = "turbo",
        IdleStates = "idle-states",
        VcpuPinning = "vcpu-pinning",
        IothreadPinning = "iothread-pinning",
        DeviceInterrupts = "device-interrupts",
        Numa = "numa",
        PreemptionTimer = "preemption-timer",
        TscDeadline = "tsc-deadline",
        X2apic = "x2apic",
        Apicv = "apicv",
        Ipiv = "ipiv",
        Avic = "avic",
        AvicInhibit = "avic-inhibit",
        SplitIrqchip = "split-irqchip",
        PvIpi = "pv-ipi",
        Ple = "ple",
        Vhost = "vhost",
        Ioeventfd = "ioeventfd",
        Iothread = "iothread",
        Swiotlb = "swiotlb",
        HostClocksource = "host-clocksource",
        GuestClocksource = "guest-clocksource",
        EnablePmu = "enable-pmu",
        NmiWatchdog = "nmi-watchdog",
        GuestNmiWatchdog = "guest-nmi-watchdog",
        Ksm = "ksm",
        Mitigations = "mitigations",
        Nested = "nested",
        ShadowVmcs = "shadow-vmcs",
        Vls = "vls",
        Vgif = "vgif",
        Vnmi = "vnmi",
        Kernel = "kernel",
        Microcode = "microcode",
        TdxModule = "tdx-module",
        SnpFirmware = "snp-firmware",
        NestedPaging = "nested-paging",
        Vpid = "vpid",
        TdpMmu = "tdp-mmu",
        HvEnlightenments = "hv-enlightenments",
        WindowsCpu = "windows-cpu",
        HvFrequencies = "hv-frequencies",
        RtcCatchUp = "rtc-catch-up",
        CgroupMoves = "cgroup-moves",
        SlotWaits = "slot-waits",
        Mbec = "mbec",
        MediatedPmu = "mediated-pmu",
        EmulatedDevices = "emulated-devices",
        DiskFormat = "disk-format",
        DiskCache = "disk-cache",
        Build = "build",
        QueuePair = "queue-pair",
        Random = "random",
        Acceleration = "acceleration",
        Hpet = "hpet",
        GuestTick = "guest-tick",
        Swapped = "swapped",
        KvmArmMode = "kvm-arm-mode",
        PageSize = "page-size",
        WfeTraps = "wfe-traps",
        GicTraps = "gic-traps",
        Gicv4 = "gicv4",
        StealTime = "steal-time",
    }
}

/// Every row.
pub const RULES: &[AuditRule] = &[
    AuditRule {
        id: RuleId::Thp,
        checks: &[
            check(CheckId::ThpEnabled, "/sys/kernel/mm/transparent_hugepage/enabled", Judge::Host(pages::thp_enabled))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check(CheckId::ThpDefrag, "/sys/kernel/mm/transparent_hugepage/defrag", Judge::Host(pages::thp_defrag))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check(CheckId::ThpShmem, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", Judge::Host(pages::thp_shmem))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check(CheckId::ThpBacking, "/proc/PID/smaps", Judge::Vm(pages::thp_backing))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
        ],
    },
    AuditRule {
        id: RuleId::MappedPages,
        checks: &[check(CheckId::MappedPages, "debugfs kvm/PID-FD/pages_{4k,2m,1g}", Judge::Vm(pages::mapped_pages)).x86()
            .causes(&[Cause::MemoryFault])
            .removes(memory_faults)],
    },
    AuditRule {
        id: RuleId::PrivatePages,
        checks: &[check(
            CheckId::PrivatePages,
            "/proc/sys/kernel/osrelease, debugfs kvm/PID-FD/pages_{4k,2m,1g}",
            Judge::Vm(pages::private_pages),
        ).x86()
        .causes(&[Cause::MemoryFault])
        .confidential()],
    },
    AuditRule {
        id: RuleId::HostPages,
        checks: &[check(CheckId::HostPages, "times of loads in the guest", Judge::Inside(host_pages::check))],
    },
    AuditRule {
        id: RuleId::NxHugePages,
        checks: &[check(CheckId::NxHugePages, "/sys/module/kvm/parameters/nx_huge_pages", Judge::Host(pages::nx_huge_pages)).x86()
            .causes(&[Cause::MemoryFault])
            .removes(memory_faults)],
    },
    AuditRule {
        id: RuleId::HaltPoll,
        checks: &[check(CheckId::HaltPoll, "/sys/module/kvm/parameters/halt_poll_ns", Judge::Host(idle::halt_poll))
            .causes(&[Cause::Idle])],
    },
    AuditRule {
        id: RuleId::GuestHaltpoll,
        checks: &[check(
            CheckId::GuestHaltpoll,
            "/sys/devices/system/cpu/cpuidle/current_driver",
            Judge::Guest(idle::guest_haltpoll),
        ).x86()
        // The halts go, and as many interrupts of the host come, which wake the vCPU that polls: see the trial of the remedy.
        .causes(&[Cause::Idle])],
    },
    AuditRule {
        id: RuleId::GuestIdlePoll,
        checks: &[check(CheckId::GuestIdlePoll, "/proc/cmdline", Judge::Guest(idle::guest_idle_poll)).x86()
            .causes(&[Cause::Idle])],
    },
    AuditRule {
        id: RuleId::Isolation,
        checks: &[
            check(CheckId::NohzFull, "/sys/devices/system/cpu/nohz_full", Judge::Vm(placement::nohz_full))
                .causes(&[Cause::HostTick, Cause::HostInterrupt])
                .removes(host_interrupts),
            Check {
                removes: Removes::Preemption,
                ..check(CheckId::Isolcpus, "/sys/devices/system/cpu/isolated", Judge::Vm(placement::isolcpus))
            },
            check(
                CheckId::GuestNohzFull,
                "/sys/devices/system/cpu/nohz_full",
                Judge::Guest(placement::guest_nohz_full),
            )
            .causes(&[Cause::TimerArm, Cause::TimerTick]),
            check(CheckId::GuestTick, "/proc/cmdline", Judge::Guest(idle::guest_tick))
                .causes(&[Cause::TimerArm, Cause::TimerTick, Cause::Idle]),
            check(CheckId::RcuNocbs, "/proc/cmdline", Judge::Vm(placement::rcu_nocbs))
                .causes(&[Cause::HostTick, Cause::HostInterrupt])
                .removes(host_interrupts),
        ],
    },
    AuditRule {
        id: RuleId::Power,
        checks: &[
            check(CheckId::Governor, "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", Judge::Host(power::governor)),
            check(CheckId::Turbo, "/sys/devices/system/cpu/intel_pstate/no_turbo, cpufreq/boost", Judge::Host(power::turbo)),
            check(CheckId::IdleStates, "/sys/devices/system/cpu/cpu0/cpuidle/state*", Judge::Host(power::idle_states))
                .causes(&[Cause::Idle]),
        ],
    },
    AuditRule {
        id: RuleId::Placement,
        checks: &[
            Check {
                removes: Removes::Preemption,
                ..check(CheckId::VcpuPinning, "/proc/PID/task/TID/status", Judge::Vm(placement::vcpu_pinning))
            },
            Check {
                removes: Removes::Preemption,
                ..check(CheckId::IothreadPinning, "/proc/PID/task/TID/status", Judge::Vm(placement::iothread_pinning))
            },
            check(
                CheckId::DeviceInterrupts,
                "/sys/kernel/irq/*/{actions,per_cpu_count}, /proc/irq/*/effective_affinity_list, /proc/uptime",
                Judge::Vm(placement::device_interrupts),
            )
            .causes(&[Cause::HostDevice, Cause::HostInterrupt])
            .removes(device_interrupts),
            check(CheckId::Numa, "/proc/PID/numa_maps, /sys/devices/system/node/node*/cpulist", Judge::Vm(placement::numa)),
        ],
    },
    AuditRule {
        id: RuleId::PreemptionTimer,
        checks: &[check(
            CheckId::PreemptionTimer,
            "/sys/module/kvm_intel/parameters/preemption_timer",
            Judge::Host(timers::preemption_timer),
        ).x86()
        .causes(&[Cause::TimerTick])
        ],
    },
    AuditRule {
        id: RuleId::TscDeadline,
        checks: &[check(CheckId::TscDeadline, "/proc/cpuinfo", Judge::Guest(timers::tsc_deadline)).x86()
            .causes(&[Cause::TimerArm])
            .removes(timer_arms)],
    },
    AuditRule {
        id: RuleId::VirtualApic,
        checks: &[
            check(CheckId::X2apic, "/proc/cpuinfo", Judge::Guest(interrupts::x2apic)).x86()
                .causes(&[Cause::Apic, Cause::Ipi])
                .removes(apic_accesses),
            check(CheckId::Apicv, "/sys/module/kvm_intel/parameters/enable_apicv", Judge::Host(interrupts::apicv)).x86()
                .causes(&[Cause::Apic, Cause::Ipi, Cause::IrqWindow])
                .removes(apic_work),
            check(CheckId::Ipiv, "/sys/module/kvm_intel/parameters/enable_ipiv", Judge::Host(interrupts::ipiv)).x86()
                .causes(&[Cause::Ipi])
                .removes(ipis),
            check(CheckId::Avic, "/sys/module/kvm_amd/parameters/avic", Judge::Host(interrupts::avic)).x86()
                .causes(&[Cause::Apic, Cause::Ipi, Cause::IrqWindow])
                .removes(apic_work),
            check(CheckId::AvicInhibit, "/proc/PID/cmdline", Judge::Vm(interrupts::avic_inhibit)).x86()
                .causes(&[Cause::Apic, Cause::Ipi, Cause::IrqWindow])
                .removes(apic_work),
        ],
    },
    AuditRule {
        id: RuleId::IpiAndSpinning,
        checks: &[
            check(CheckId::PvIpi, "/proc/PID/cmdline", Judge::Vm(interrupts::pv_ipi)).x86().causes(&[Cause::Ipi]).removes(ipis),
            check(
                CheckId::Ple,
                "/sys/module/kvm_intel/parameters/ple_{gap,window}, kvm_amd pause_filter_{thresh,count}",
                Judge::Host(interrupts::ple),
            ).x86()
            .causes(&[Cause::Idle])
            .removes(pauses),
        ],
    },
    AuditRule {
        id: RuleId::Machine,
        checks: &[
            check(CheckId::Acceleration, "/proc/PID/cmdline", Judge::Vm(devices::acceleration)),
            check(CheckId::SplitIrqchip, "/proc/PID/cmdline", Judge::Vm(interrupts::split_irqchip)).causes(&[Cause::Apic]),
            check(CheckId::Build, "/proc/PID/cmdline", Judge::Vm(devices::build)),
            check(CheckId::Random, "/proc/PID/cmdline, /proc/sys/kernel/osrelease", Judge::Vm(devices::random)),
            check(CheckId::DiskFormat, "/proc/PID/cmdline", Judge::Vm(devices::disk_format)),
            check(CheckId::DiskCache, "/proc/PID/cmdline", Judge::Vm(devices::disk_cache)),
            check(CheckId::Hpet, "/proc/PID/cmdline", Judge::Vm(timers::hpet)).x86(),
        ],
    },
    AuditRule {
        id: RuleId::Virtio,
        checks: &[
            check(CheckId::EmulatedDevices, "/proc/PID/cmdline", Judge::Vm(devices::emulated))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio])
                .removes(to_the_vmm),
            check(CheckId::Vhost, "/proc/PID/fd, /proc/PID/cmdline", Judge::Vm(devices::vhost))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio])
                .removes(to_the_vmm),
            check(CheckId::QueuePair, "/proc/PID/cmdline", Judge::Vm(devices::queue_pair)),
            check(CheckId::Ioeventfd, "/proc/PID/cmdline", Judge::Vm(devices::ioeventfd))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio])
                .removes(to_the_vmm),
            check(CheckId::Iothread, "/proc/PID/cmdline", Judge::Vm(devices::iothread))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio]),
        ],
    },
    AuditRule {
        id: RuleId::Swiotlb,
        checks: &[check(CheckId::Swiotlb, "debugfs swiotlb/io_tlb_{nslabs,used_hiwater}", Judge::Guest(devices::swiotlb))
            .confidential()],
    },
    AuditRule {
        id: RuleId::Clocksource,
        checks: &[
            check(
                CheckId::HostClocksource,
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                Judge::Host(timers::host_clocksource),
            ),
            check(
                CheckId::GuestClocksource,
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                Judge::Guest(timers::guest_clocksource),
            )
            .causes(&[Cause::DeviceMmio, Cause::DevicePio])
            .removes(clock_readings),
        ],
    },
    AuditRule {
        id: RuleId::Pmu,
        checks: &[
            check(
                CheckId::MediatedPmu,
                "/sys/module/kvm_{intel,amd}/parameters/enable_mediated_pmu",
                Judge::Host(features::mediated_pmu),
            ).x86()
            .causes(&[Cause::Pmu]),
            check(CheckId::EnablePmu, "/sys/module/kvm/parameters/enable_pmu", Judge::Host(counters::enable_pmu)).x86()
                .causes(&[Cause::Pmu])
                .removes(pmu_work),
            check(CheckId::NmiWatchdog, "/proc/sys/kernel/nmi_watchdog", Judge::Host(counters::nmi_watchdog)),
            check(CheckId::GuestNmiWatchdog, "/proc/sys/kernel/nmi_watchdog", Judge::Guest(counters::guest_nmi_watchdog))
                .causes(&[Cause::Pmu])
                .removes(pmu_work),
        ],
    },
    AuditRule {
        id: RuleId::KsmAndMitigations,
        checks: &[
            check(CheckId::Swapped, "/proc/PID/smaps", Judge::Vm(pages::swapped)).causes(&[Cause::MemoryFault]),
            check(CheckId::Ksm, "/sys/kernel/mm/ksm/run", Judge::Host(pages::ksm))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check(CheckId::Mitigations, "/sys/devices/system/cpu/vulnerabilities/*", Judge::Host(versions::mitigations)),
        ],
    },
    AuditRule {
        id: RuleId::Nesting,
        checks: &[
            check(CheckId::Nested, "/sys/module/kvm_{intel,amd}/parameters/nested", Judge::Host(nested::nested)).x86(),
            check(
                CheckId::ShadowVmcs,
                "/sys/module/kvm_intel/parameters/enable_shadow_vmcs",
                Judge::Host(nested::shadow_vmcs),
            ).x86()
            .causes(&[Cause::NestedAncillary])
            .removes(vmcs_accesses),
            check(CheckId::Vls, "/sys/module/kvm_amd/parameters/vls", Judge::Host(nested::vls)).x86()
                .causes(&[Cause::NestedAncillary])
                .removes(vmload_vmsave),
            check(CheckId::Vgif, "/sys/module/kvm_amd/parameters/vgif", Judge::Host(nested::vgif)).x86()
                .causes(&[Cause::NestedAncillary])
                .removes(gif_changes),
            check(CheckId::Vnmi, "/sys/module/kvm_amd/parameters/vnmi", Judge::Host(nested::vnmi)).x86()
                .causes(&[Cause::IrqWindow])
                .removes(nmi_windows),
        ],
    },
    AuditRule {
        id: RuleId::NestedPaging,
        checks: &[
            check(
                CheckId::NestedPaging,
                "/sys/module/kvm_intel/parameters/ept, kvm_amd/parameters/npt",
                Judge::Host(features::nested_paging),
            ).x86(),
            check(CheckId::Vpid, "/sys/module/kvm_intel/parameters/vpid", Judge::Host(features::vpid)).x86(),
            check(CheckId::TdpMmu, "/sys/module/kvm/parameters/tdp_mmu", Judge::Host(features::tdp_mmu)).x86(),
        ],
    },
    AuditRule {
        id: RuleId::Windows,
        checks: &[
            check(CheckId::HvEnlightenments, "/proc/PID/cmdline", Judge::Vm(windows::enlightenments)).x86().causes(&[
                Cause::DevicePio,
                Cause::DeviceMmio,
                Cause::Apic,
                Cause::Ipi,
            ]),
            check(CheckId::HvFrequencies, "/proc/PID/cmdline", Judge::Vm(windows::frequencies)).x86(),
            check(CheckId::RtcCatchUp, "/proc/PID/cmdline", Judge::Vm(timers::rtc_catch_up)).x86(),
            check(CheckId::WindowsCpu, "/proc/PID/cmdline, /proc/cpuinfo", Judge::Vm(windows::windows_cpu)).x86(),
            check(CheckId::Mbec, "/sys/module/kvm_intel/parameters/mbec, kvm_amd/parameters/gmet", Judge::Host(nested::mbec)).x86(),
        ],
    },
    AuditRule {
        id: RuleId::Start,
        checks: &[
            check(
                CheckId::CgroupMoves,
                "/proc/mounts, /proc/sys/kernel/osrelease, /proc/cmdline, /sys/module/kvm/parameters/nx_huge_pages",
                Judge::Host(start::cgroup_moves),
            ).x86(),
            check(
                CheckId::SlotWaits,
                "/proc/sys/kernel/osrelease, /sys/module/kvm_amd/parameters/avic",
                Judge::Host(start::slot_waits),
            ).x86(),
        ],
    },
    AuditRule {
        id: RuleId::Versions,
        checks: &[
            check(CheckId::Kernel, "/proc/sys/kernel/osrelease", Judge::Host(versions::kernel)).x86(),
            check(
                CheckId::Microcode,
                "/proc/cpuinfo, /sys/devices/system/cpu/vulnerabilities/old_microcode",
                Judge::Host(versions::microcode),
            ).x86(),
            check(CheckId::TdxModule, "/sys/devices/faux/tdx_host/version", Judge::Host(versions::tdx_module)).x86().confidential(),
            check(CheckId::SnpFirmware, "/sys/module/kvm_amd/parameters/sev_snp", Judge::Host(versions::snp_firmware)).x86()
                .confidential(),
        ],
    },
    AuditRule {
        id: RuleId::KvmArmMode,
        checks: &[
            check(CheckId::KvmArmMode, "/proc/cmdline", Judge::Host(arm64::mode)).arm64(),
            check(
                CheckId::PageSize,
                "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
                Judge::Host(arm64::page_size),
            )
            .arm64(),
        ],
    },
    AuditRule {
        id: RuleId::ArmTraps,
        checks: &[
            check(CheckId::WfeTraps, "/proc/cmdline", Judge::Host(arm64::wfe_traps)).causes(&[Cause::Idle]).removes(wfes).arm64(),
            check(CheckId::GicTraps, "/proc/cmdline", Judge::Host(arm64::gic_traps)).causes(&[Cause::Apic, Cause::Ipi]).arm64(),
            check(CheckId::Gicv4, "/proc/cmdline, /proc/PID/cmdline", Judge::Host(arm64::gicv4)).causes(&[Cause::HostInterrupt]).arm64(),
            check(CheckId::StealTime, "/proc/PID/cmdline", Judge::Vm(arm64::steal_time)).arm64(),
        ],
    },
];
