//! The table: what is looked at, what is wanted, why, and what each setting changes.
//!
//! `docs/doctor-settings.md` shows it; a test holds the two together. Figures are those of the source that is named;
//! none was measured by this project.

use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Isa, Outcome, svm, vmx};

use super::{
    Check, Judge, Removes, Rule, counters, devices, idle, interrupts, memory, nested, placement,
    power, timers, versions,
};
use crate::table::cause_of;

const ONEDNN: &str = "performance tuning for oneDNN on TDX (Linux 6.8-rc5)";
const VPMU_AND_ONEDNN: &str = "performance tuning for oneDNN on TDX (Linux 6.8-rc5); of the watchdog: Intel vPMU (LKML, Linux 5.0)";
const CVM: &str = "performance analysis of confidential VMs (TU Munich, 2024)";
const CVM_NETWORK: &str =
    "CVM_eval, network results of April 2025 (TU Munich; EPYC 7713P, Linux 6.8-rc5)";
const NESTED: &str = "profiling nested KVM (KVM Forum 2017)";

const fn check(id: &'static str, files: &'static str, judge: Judge) -> Check {
    Check { id, files, causes: &[], removes: Removes::Nothing, confidential: false, judge }
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

fn halts(key: &ExitKey) -> bool {
    cause_of(key) == Cause::Idle && !pauses(key)
}

fn pauses(key: &ExitKey) -> bool {
    is(key, vmx::PAUSE_INSTRUCTION, svm::PAUSE)
}

/// The host's tick, and what else interrupts it: a timer that KVM runs on VMX's stays.
fn host_interrupts(key: &ExitKey) -> bool {
    is(key, vmx::EXTERNAL_INTERRUPT, svm::INTR)
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
    is(key, vmx::VMREAD, u32::MAX) || is(key, vmx::VMWRITE, u32::MAX)
}

fn vmload_vmsave(key: &ExitKey) -> bool {
    is(key, u32::MAX, svm::VMLOAD) || is(key, u32::MAX, svm::VMSAVE)
}

fn gif_changes(key: &ExitKey) -> bool {
    is(key, u32::MAX, svm::STGI) || is(key, u32::MAX, svm::CLGI)
}

fn nmi_windows(key: &ExitKey) -> bool {
    is(key, u32::MAX, svm::IRET)
}

fn is(key: &ExitKey, on_vmx: u32, on_svm: u32) -> bool {
    match key.reason.isa {
        Isa::Vmx => key.reason.code == on_vmx,
        Isa::Svm => key.reason.code == on_svm,
        Isa::Unknown => false,
    }
}

/// Every row.
pub const RULES: &[Rule] = &[
    Rule {
        id: "thp",
        title: "transparent huge pages",
        wanted: "madvise or always; for shared memory (memfd) shmem_enabled too",
        why: "pages of 2M save page walks: with a kernel that maps private memory at 2M they closed the gap between a TDX guest and a plain VM; TLB misses are not exits, so their cost is not part of the gain shown here",
        source: Some(ONEDNN),
        checks: &[
            check("thp-enabled", "/sys/kernel/mm/transparent_hugepage/enabled", Judge::Host(memory::thp_enabled))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check("thp-defrag", "/sys/kernel/mm/transparent_hugepage/defrag", Judge::Host(memory::thp_defrag))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check("thp-shmem", "/sys/kernel/mm/transparent_hugepage/shmem_enabled", Judge::Host(memory::thp_shmem))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check("thp-backing", "/proc/PID/smaps", Judge::Vm(memory::thp_backing))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
        ],
    },
    Rule {
        id: "mapped-pages",
        title: "size of mapped pages",
        wanted: "2M and 1G dominate in EPT or NPT",
        why: "a cargo build in an L2 guest took 12 minutes with pages of 4K and 84 s with 2M; TLB misses are not exits, so their cost is not part of the gain shown here",
        source: None,
        checks: &[check("mapped-pages", "debugfs kvm/PID-FD/pages_{4k,2m,1g}", Judge::Vm(memory::mapped_pages))
            .causes(&[Cause::MemoryFault])
            .removes(memory_faults)],
    },
    Rule {
        id: "private-pages",
        title: "pages of private memory (TDX, SEV-SNP)",
        wanted: "2M; mainline Linux up to 7.3 maps TDX and guest_memfd at 4K",
        why: "the change that closed the gap of a TDX guest is not in mainline Linux, so THP does not help",
        source: Some(ONEDNN),
        checks: &[check(
            "private-pages",
            "/proc/sys/kernel/osrelease, debugfs kvm/PID-FD/pages_{4k,2m,1g}",
            Judge::Vm(memory::private_pages),
        )
        .causes(&[Cause::MemoryFault])
        .confidential()],
    },
    Rule {
        id: "nx-huge-pages",
        title: "splitting of executable huge pages",
        wanted: "off where the processor is not affected by iTLB multihit",
        why: "pages that a guest executes are mapped at 4K, with one exit per page",
        source: None,
        checks: &[check("nx-huge-pages", "/sys/module/kvm/parameters/nx_huge_pages", Judge::Host(memory::nx_huge_pages))
            .causes(&[Cause::MemoryFault])
            .removes(memory_faults)],
    },
    Rule {
        id: "halt-poll",
        title: "KVM's halt polling",
        wanted: "0 if the guest polls; otherwise depending on the length of halts",
        why: "polling removes most of the overhead of confidential VMs: UDP 0.591 Gb/s to 3.05 with halt polling \
              on SEV-SNP (one run each); polling avoids late wake-ups, which exits do not show",
        source: Some(CVM_NETWORK),
        checks: &[check("halt-poll", "/sys/module/kvm/parameters/halt_poll_ns", Judge::Host(idle::halt_poll))
            .causes(&[Cause::Idle])],
    },
    Rule {
        id: "guest-haltpoll",
        title: "the guest's polling before it halts",
        wanted: "on for guests that wait for wake-ups, and for confidential ones",
        why: "a ping-pong between two guest threads reached 95.7 % of the host's speed",
        source: None,
        checks: &[check(
            "guest-haltpoll",
            "/sys/devices/system/cpu/cpuidle/current_driver",
            Judge::Guest(idle::guest_haltpoll),
        )
        .causes(&[Cause::Idle])
        .removes(halts)],
    },
    Rule {
        id: "guest-idle-poll",
        title: "idle=poll in the guest",
        wanted: "on dedicated CPUs only",
        why: "it removes all halts (UDP on SEV-SNP 0.591 Gb/s to 3.25, one run each) and uses each CPU fully",
        source: Some(CVM_NETWORK),
        checks: &[check("guest-idle-poll", "/proc/cmdline", Judge::Guest(idle::guest_idle_poll))
            .causes(&[Cause::Idle])],
    },
    Rule {
        id: "isolation",
        title: "the host's tick and tasks on vCPUs' CPUs",
        wanted: "nohz_full, isolcpus and rcu_nocbs on the CPUs of pinned vCPUs",
        why: "nohz_full removed most timer exits",
        source: Some(ONEDNN),
        checks: &[
            check("nohz-full", "/sys/devices/system/cpu/nohz_full", Judge::Vm(placement::nohz_full))
                .causes(&[Cause::TimerTick])
                .removes(host_interrupts),
            Check {
                removes: Removes::Preemption,
                ..check("isolcpus", "/sys/devices/system/cpu/isolated", Judge::Vm(placement::isolcpus))
            },
            check(
                "guest-nohz-full",
                "/sys/devices/system/cpu/nohz_full",
                Judge::Guest(placement::guest_nohz_full),
            )
            .causes(&[Cause::TimerArm, Cause::TimerTick]),
            check("rcu-nocbs", "/proc/cmdline", Judge::Vm(placement::rcu_nocbs))
                .causes(&[Cause::TimerTick])
                .removes(host_interrupts),
        ],
    },
    Rule {
        id: "power",
        title: "frequency and idle states of the host",
        wanted: "governor performance; turbo and idle states are recorded for comparisons",
        why: "the published measurements fix them: governor performance, turbo off, states deeper than C1 off",
        source: Some(ONEDNN),
        checks: &[
            check("governor", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", Judge::Host(power::governor)),
            check("turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo, cpufreq/boost", Judge::Host(power::turbo)),
            check("idle-states", "/sys/devices/system/cpu/cpu0/cpuidle/state*", Judge::Host(power::idle_states))
                .causes(&[Cause::Idle]),
        ],
    },
    Rule {
        id: "placement",
        title: "placement of vCPUs, iothreads and memory",
        wanted: "each vCPU on its own CPU, iothreads on other CPUs, all on one NUMA node",
        why: "a vCPU that waits for its CPU loses time; cache misses to another node's memory are slow",
        source: None,
        checks: &[
            Check {
                removes: Removes::Preemption,
                ..check("vcpu-pinning", "/proc/PID/task/TID/status", Judge::Vm(placement::vcpu_pinning))
            },
            Check {
                removes: Removes::Preemption,
                ..check("iothread-pinning", "/proc/PID/task/TID/status", Judge::Vm(placement::iothread_pinning))
            },
            check("numa", "/proc/PID/numa_maps, /sys/devices/system/node/node*/cpulist", Judge::Vm(placement::numa)),
        ],
    },
    Rule {
        id: "preemption-timer",
        title: "VMX's preemption timer",
        wanted: "on; TDs cannot use it",
        why: "a plain VM took 142,929 cheap preemption timer exits in 10 s; a TD took external interrupts instead, and each arming was a TDCALL and a host timer",
        source: Some(ONEDNN),
        checks: &[check(
            "preemption-timer",
            "/sys/module/kvm_intel/parameters/preemption_timer",
            Judge::Host(timers::preemption_timer),
        )
        .causes(&[Cause::TimerTick])
        ],
    },
    Rule {
        id: "tsc-deadline",
        title: "the guest's TSC deadline timer",
        wanted: "present; QEMU masks it for SEV-SNP",
        why: "without it a TDX guest takes nearly twice the exits",
        source: Some(CVM),
        checks: &[check("tsc-deadline", "/proc/cpuinfo", Judge::Guest(timers::tsc_deadline))
            .causes(&[Cause::TimerArm])
            .removes(timer_arms)],
    },
    Rule {
        id: "virtual-apic",
        title: "x2APIC, APICv, IPI virtualization, AVIC",
        wanted: "on, and not inhibited (by PIT reinjection, Hyper-V's SynIC, nesting, SEV)",
        why: "cycles of an IPI fell by 16 to 22 %",
        source: None,
        checks: &[
            check("x2apic", "/proc/cpuinfo", Judge::Guest(interrupts::x2apic))
                .causes(&[Cause::Apic, Cause::Ipi])
                .removes(apic_accesses),
            check("apicv", "/sys/module/kvm_intel/parameters/enable_apicv", Judge::Host(interrupts::apicv))
                .causes(&[Cause::Apic, Cause::Ipi, Cause::IrqWindow])
                .removes(apic_work),
            check("ipiv", "/sys/module/kvm_intel/parameters/enable_ipiv", Judge::Host(interrupts::ipiv))
                .causes(&[Cause::Ipi])
                .removes(ipis),
            check("avic", "/sys/module/kvm_amd/parameters/avic", Judge::Host(interrupts::avic))
                .causes(&[Cause::Apic, Cause::Ipi, Cause::IrqWindow])
                .removes(apic_work),
            check("avic-inhibit", "/proc/PID/cmdline", Judge::Vm(interrupts::avic_inhibit))
                .causes(&[Cause::Apic, Cause::Ipi, Cause::IrqWindow])
                .removes(apic_work),
        ],
    },
    Rule {
        id: "ipi-and-spinning",
        title: "paravirtual IPIs, exits of spinning vCPUs",
        wanted: "paravirtual IPIs if there is no IPI virtualization; the kernel's defaults for spinning vCPUs",
        why: "one hypercall sends an IPI to many vCPUs; a vCPU that spins while the lock holder is preempted yields",
        source: None,
        checks: &[
            check("pv-ipi", "/proc/PID/cmdline", Judge::Vm(interrupts::pv_ipi)).causes(&[Cause::Ipi]).removes(ipis),
            check(
                "ple",
                "/sys/module/kvm_intel/parameters/ple_{gap,window}, kvm_amd pause_filter_{thresh,count}",
                Judge::Host(interrupts::ple),
            )
            .causes(&[Cause::Idle])
            .removes(pauses),
        ],
    },
    Rule {
        id: "virtio",
        title: "vhost, ioeventfd, iothreads",
        wanted: "on",
        why: "many exits to the VMM on one address mean that one of them is missing",
        source: None,
        checks: &[
            check("vhost", "/proc/PID/fd, /proc/PID/cmdline", Judge::Vm(devices::vhost))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio])
                .removes(to_the_vmm),
            check("ioeventfd", "/proc/PID/cmdline", Judge::Vm(devices::ioeventfd))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio])
                .removes(to_the_vmm),
            check("iothread", "/proc/PID/cmdline", Judge::Vm(devices::iothread))
                .causes(&[Cause::DeviceMmio, Cause::DevicePio]),
        ],
    },
    Rule {
        id: "swiotlb",
        title: "the guest's bounce buffer",
        wanted: "its peak use is below its size",
        why: "up to 80 % of throughput is lost if it is too small; its copies take guest time",
        source: None,
        checks: &[check("swiotlb", "debugfs swiotlb/io_tlb_{nslabs,used_hiwater}", Judge::Guest(devices::swiotlb))
            .confidential()],
    },
    Rule {
        id: "clocksource",
        title: "clocks",
        wanted: "tsc, in a guest tsc or kvm-clock",
        why: "other clocks are device registers: each read in a guest is an exit",
        source: None,
        checks: &[
            check(
                "host-clocksource",
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                Judge::Host(timers::host_clocksource),
            ),
            check(
                "guest-clocksource",
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                Judge::Guest(timers::guest_clocksource),
            )
            .causes(&[Cause::DeviceMmio, Cause::DevicePio])
            .removes(clock_readings),
        ],
    },
    Rule {
        id: "pmu",
        title: "performance counters and the NMI watchdog",
        wanted: "off when unused, in the guest too",
        why: "switching MSRs at each entry (add_atomic_switch_msr) took 10 % of the host's profile; a watchdog occupies a counter",
        source: Some(VPMU_AND_ONEDNN),
        checks: &[
            check("enable-pmu", "/sys/module/kvm/parameters/enable_pmu", Judge::Host(counters::enable_pmu))
                .causes(&[Cause::Pmu])
                .removes(pmu_work),
            check("nmi-watchdog", "/proc/sys/kernel/nmi_watchdog", Judge::Host(counters::nmi_watchdog)),
            check("guest-nmi-watchdog", "/proc/sys/kernel/nmi_watchdog", Judge::Guest(counters::guest_nmi_watchdog))
                .causes(&[Cause::Pmu])
                .removes(pmu_work),
        ],
    },
    Rule {
        id: "ksm-and-mitigations",
        title: "page merging, mitigations",
        wanted: "reported",
        why: "writes to merged pages fault; mitigations have a cost, and comparisons need the same ones",
        source: None,
        checks: &[
            check("ksm", "/sys/kernel/mm/ksm/run", Judge::Host(memory::ksm))
                .causes(&[Cause::MemoryFault])
                .removes(memory_faults),
            check("mitigations", "/sys/devices/system/cpu/vulnerabilities/*", Judge::Host(versions::mitigations)),
        ],
    },
    Rule {
        id: "nesting",
        title: "features that make nesting cheaper",
        wanted: "on if a guest runs guests",
        why: "one exit of L2 took six exits of L1, three of them VMREAD and VMWRITE",
        source: Some(NESTED),
        checks: &[
            check("nested", "/sys/module/kvm_{intel,amd}/parameters/nested", Judge::Host(nested::nested)),
            check(
                "shadow-vmcs",
                "/sys/module/kvm_intel/parameters/enable_shadow_vmcs",
                Judge::Host(nested::shadow_vmcs),
            )
            .causes(&[Cause::NestedAncillary])
            .removes(vmcs_accesses),
            check("vls", "/sys/module/kvm_amd/parameters/vls", Judge::Host(nested::vls))
                .causes(&[Cause::NestedAncillary])
                .removes(vmload_vmsave),
            check("vgif", "/sys/module/kvm_amd/parameters/vgif", Judge::Host(nested::vgif))
                .causes(&[Cause::NestedAncillary])
                .removes(gif_changes),
            check("vnmi", "/sys/module/kvm_amd/parameters/vnmi", Judge::Host(nested::vnmi))
                .causes(&[Cause::IrqWindow])
                .removes(nmi_windows),
        ],
    },
    Rule {
        id: "versions",
        title: "kernel, microcode, firmware",
        wanted: "recent",
        why: "a TD that was 14 times slower had old firmware",
        source: None,
        checks: &[
            check("kernel", "/proc/sys/kernel/osrelease", Judge::Host(versions::kernel)),
            check(
                "microcode",
                "/proc/cpuinfo, /sys/devices/system/cpu/vulnerabilities/old_microcode",
                Judge::Host(versions::microcode),
            ),
            check("tdx-module", "/sys/devices/faux/tdx_host/version", Judge::Host(versions::tdx_module)).confidential(),
            check("snp-firmware", "/sys/module/kvm_amd/parameters/sev_snp", Judge::Host(versions::snp_firmware))
                .confidential(),
        ],
    },
];
