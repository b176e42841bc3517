//! The table of rules in words: what is looked at, what is wanted, and why. Figures are those of the source that is
//! named; none was measured by this project.

use vmtax_analyse::audit::RuleId;

const ONEDNN: &str = "performance tuning for oneDNN on TDX (Linux 6.8-rc5)";
const VPMU_AND_ONEDNN: &str = "performance tuning for oneDNN on TDX (Linux 6.8-rc5); of the watchdog: Intel vPMU (LKML, Linux 5.0)";
const CVM: &str = "performance analysis of confidential VMs (TU Munich, 2024)";
const CVM_NETWORK: &str =
    "CVM_eval, network results of April 2025 (TU Munich; EPYC 7713P, Linux 6.8-rc5)";
const WINDOWS: &str = "optimized clocksource with AMD AVIC enabled for Windows guest (kvm@vger, February 2021); QEMU docs/system/i386/hyperv.rst";
const NESTED: &str = "profiling nested KVM (KVM Forum 2017)";

pub struct RuleWords {
    /// What is looked at.
    pub title: &'static str,
    pub wanted: &'static str,
    /// Why, and how much it was measured to matter.
    pub why: &'static str,
    pub source: Option<&'static str>,
}

/// The words of a rule.
pub fn rule(rule: RuleId) -> RuleWords {
    match rule {
        RuleId::ArmTraps => RuleWords {
            title: "traps of KVM on arm64",
            wanted: "the kernel's defaults; for passed-through devices GICv4 where the GIC has it",
            why: "a trap that is not needed is an exit more; without steal time the guest's scheduler takes waiting for running",
            source: None,
        },
        RuleId::KvmArmMode => RuleWords {
            title: "mode of KVM on arm64, and the size of pages",
            wanted: "VHE (the default); the size of pages is only listed",
            why: "an HVC takes 1,681 instructions with VHE, 2,513 with the host at EL1, and 13,630 on a protected host",
            source: Some(
                "instructions on an emulated host, QEMU 11.1 -cpu max, Linux 7.3; no times",
            ),
        },
        RuleId::Thp => RuleWords {
            title: "transparent huge pages",
            wanted: "madvise or always; for shared memory (memfd) shmem_enabled too",
            why: "pages of 2M save page walks: with a kernel that maps private memory at 2M they closed the gap between a TDX guest and a plain VM; TLB misses are not exits, so their cost is not part of the gain shown here",
            source: Some(ONEDNN),
        },
        RuleId::MappedPages => RuleWords {
            title: "size of mapped pages",
            wanted: "2M and 1G dominate in EPT or NPT",
            why: "a cargo build in an L2 guest took 12 minutes with pages of 4K and 84 s with 2M; TLB misses are not exits, so their cost is not part of the gain shown here",
            source: None,
        },
        RuleId::PrivatePages => RuleWords {
            title: "pages of private memory (TDX, SEV-SNP)",
            wanted: "2M; mainline Linux up to 7.3 maps TDX and guest_memfd at 4K",
            why: "the change that closed the gap of a TDX guest is not in mainline Linux, so THP does not help",
            source: Some(ONEDNN),
        },
        RuleId::HostPages => RuleWords {
            title: "pages in which the host maps this guest, measured inside it",
            wanted: "as large as the guest's huge pages",
            why: "a TLB entry covers at most the smaller of the guest's and the host's page: with small pages on the host, huge pages of the guest do not reduce TLB misses; they are not exits, so no gain is shown here",
            source: None,
        },
        RuleId::NxHugePages => RuleWords {
            title: "splitting of executable huge pages",
            wanted: "off where the processor is not affected by iTLB multihit",
            why: "pages that a guest executes are mapped at 4K, with one exit per page",
            source: None,
        },
        RuleId::HaltPoll => RuleWords {
            title: "KVM's halt polling",
            wanted: "0 if the guest polls; otherwise depending on the length of halts",
            why: "it begins after the guest's halt has left it, so it removes no exit: a halt that ends while KVM polls is spared \
              the sleep of its thread and the late wake-up, which exits do not show",
            source: None,
        },
        RuleId::GuestHaltpoll => RuleWords {
            title: "the guest's polling before it halts",
            wanted: "on for guests that wait for wake-ups, and for confidential ones",
            why: "it removes halts, and most of the overhead of a confidential VM whose programs wait (UDP on SEV-SNP 0.591 Gb/s to 3.05, one run each)",
            source: Some(CVM_NETWORK),
        },
        RuleId::GuestIdlePoll => RuleWords {
            title: "idle=poll in the guest",
            wanted: "on dedicated CPUs only",
            why: "it removes all halts (UDP on SEV-SNP 0.591 Gb/s to 3.25, one run each) and uses each CPU fully",
            source: Some(CVM_NETWORK),
        },
        RuleId::Isolation => RuleWords {
            title: "the host's tick and tasks on vCPUs' CPUs",
            wanted: "nohz_full, isolcpus and rcu_nocbs on the CPUs of pinned vCPUs",
            why: "nohz_full removed most timer exits",
            source: Some(ONEDNN),
        },
        RuleId::Power => RuleWords {
            title: "frequency and idle states of the host",
            wanted: "governor performance; turbo and idle states are recorded for comparisons",
            why: "the published measurements fix them: governor performance, turbo off, states deeper than C1 off",
            source: Some(ONEDNN),
        },
        RuleId::Placement => RuleWords {
            title: "placement of vCPUs, iothreads and memory",
            wanted: "each vCPU on its own CPU, iothreads on other CPUs, all on one NUMA node",
            why: "a vCPU that waits for its CPU loses time; cache misses to another node's memory are slow",
            source: None,
        },
        RuleId::PreemptionTimer => RuleWords {
            title: "VMX's preemption timer",
            wanted: "on; TDs cannot use it",
            why: "a plain VM took 142,929 cheap preemption timer exits in 10 s; a TD took external interrupts instead, and each arming was a TDCALL and a host timer",
            source: Some(ONEDNN),
        },
        RuleId::TscDeadline => RuleWords {
            title: "the guest's TSC deadline timer",
            wanted: "present; QEMU masks it for SEV-SNP",
            why: "without it a TDX guest takes nearly twice the exits",
            source: Some(CVM),
        },
        RuleId::VirtualApic => RuleWords {
            title: "x2APIC, APICv, IPI virtualization, AVIC",
            wanted: "on, and not inhibited (by PIT reinjection, Hyper-V's SynIC, nesting, SEV)",
            why: "cycles of an IPI fell by 16 to 22 %",
            source: None,
        },
        RuleId::IpiAndSpinning => RuleWords {
            title: "paravirtual IPIs, exits of spinning vCPUs",
            wanted: "paravirtual IPIs if there is no IPI virtualization; the kernel's defaults for spinning vCPUs",
            why: "one hypercall sends an IPI to many vCPUs; a vCPU that spins while the lock holder is preempted yields",
            source: None,
        },
        RuleId::Virtio => RuleWords {
            title: "device models, vhost, ioeventfd, iothreads",
            wanted: "virtio, with all of them on",
            why: "many exits to the VMM on one address mean that one of them is missing",
            source: None,
        },
        RuleId::Swiotlb => RuleWords {
            title: "the guest's bounce buffer",
            wanted: "its peak use is below its size",
            why: "up to 80 % of throughput is lost if it is too small; its copies take guest time",
            source: None,
        },
        RuleId::Clocksource => RuleWords {
            title: "clocks",
            wanted: "tsc, in a guest tsc or kvm-clock",
            why: "other clocks are device registers: each read in a guest is an exit",
            source: None,
        },
        RuleId::Pmu => RuleWords {
            title: "performance counters and the NMI watchdog",
            wanted: "off when unused, in the guest too",
            why: "switching MSRs at each entry (add_atomic_switch_msr) took 10 % of the host's profile; a watchdog occupies a counter",
            source: Some(VPMU_AND_ONEDNN),
        },
        RuleId::KsmAndMitigations => RuleWords {
            title: "swap, page merging, mitigations",
            wanted: "reported",
            why: "writes to merged pages fault; mitigations have a cost, and comparisons need the same ones",
            source: None,
        },
        RuleId::Nesting => RuleWords {
            title: "features that make nesting cheaper",
            wanted: "on if a guest runs guests",
            why: "one exit of L2 took six exits of L1, three of them VMREAD and VMWRITE",
            source: Some(NESTED),
        },
        RuleId::NestedPaging => RuleWords {
            title: "nested paging and its TLB",
            wanted: "ept or npt, vpid and tdp_mmu on, their defaults",
            why: "with shadow page tables a first touch took 608 exits per MiB, and 33 with npt (an emulated host)",
            source: None,
        },
        RuleId::Windows => RuleWords {
            title: "Windows guests: Hyper-V's enlightenments, the processor model",
            wanted: "hv-time, hv-vpindex, hv-synic, hv-stimer; hv-apicv beside APICv or AVIC; hv-tlbflush and hv-ipi with several vCPUs; hv-frequencies",
            why: "with hv-stimer and hv-synic I/O exits of a Windows guest fell by 90.7 %",
            source: Some(WINDOWS),
        },
        RuleId::Machine => RuleWords {
            title: "how QEMU is started",
            wanted: "KVM, interrupt controllers in KVM, disks in QEMU's own formats, no HPET that nobody needs",
            why: "what the VMM emulates takes an exit to it, or its time while the guest is idle",
            source: None,
        },
        RuleId::Start => RuleWords {
            title: "starting a VM",
            wanted: "where many VMs start: cgroup2 mounted with favordynmods on Linux 6.0 to 6.11; slots before devices on Linux 6.18 to 7.3",
            why: "KVM_CREATE_VM took 0.285 ms with favordynmods and 11 ms without (an emulated host, Linux 6.1); 27 to 70 ms were reported on hardware. A memory slot after the irqchip waited 7 ms (an emulated host, Linux 6.18), and 21 ms on hardware with HZ=100",
            source: Some(
                "of hardware: firecracker issue 2129 and pull request 5678, AMDESE/AMDSEV issue 145",
            ),
        },
        RuleId::Versions => RuleWords {
            title: "kernel, microcode, firmware",
            wanted: "recent",
            why: "a TD that was 14 times slower had old firmware",
            source: None,
        },
    }
}
