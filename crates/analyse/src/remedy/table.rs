//! The rows of the table.

use vmtax_events::setting::files;
use vmtax_events::{ExitKey, Isa, svm, vmx};

use super::conditions::{
    GRACE_PERIODS, always, amd_virtual_apic, beside_virtual_apic, ends_in_memory, guest_polling,
    intel_ipi, intel_virtual_apic, ipis_of_windows, kvm_polling, memory_to_map_first, of_windows,
    on_amd, on_intel, one_task, ordinary_memory, plain_bounce, plain_x2apic, preemption_timer,
    private_in_large_pages, slots_first, tsc_deadline, virtual_gif, virtual_vmload,
    windows_on_intel, windows_timers, without_virtual_apic,
};
use super::context::Applies;
use super::id::RemedyId;
use super::row::{Remedy, RemedyPlace, row};

fn pauses(key: &ExitKey) -> bool {
    key.reason.is(vmx::PAUSE_INSTRUCTION, svm::PAUSE)
}

/// Remedies that are the same on every ISA: settings of schedulers, VMMs and devices. The others are settings of x86's KVM, CPUs
/// or Linux, or nobody has shown that they help elsewhere.
pub(super) const OF_ANY_ISA: &[RemedyId] = &[
    RemedyId::VcpuPinning,
    RemedyId::CpuIsolation,
    RemedyId::IothreadPinning,
    RemedyId::IrqThreads,
    RemedyId::FewerVcpus,
    RemedyId::CpuQuota,
    RemedyId::KsmOff,
    RemedyId::HaltPoll,
    RemedyId::NoHaltPoll,
    RemedyId::SerialConsole,
    RemedyId::Ioeventfd,
    RemedyId::Vhost,
    RemedyId::ParavirtualDevice,
    RemedyId::ResidentMemory,
    RemedyId::NumaNode,
    RemedyId::ThpDefer,
    RemedyId::HugetlbMemory,
];

/// Every remedy, in the order of [`RemedyId`].
pub const REMEDIES: &[Remedy] = &[
    row(RemedyId::VcpuPinning, RemedyPlace::Host, "give each vCPU thread a processor of its own (taskset -pc CPU TID, virsh vcpupin)", always)
        .of_contention(),
    row(RemedyId::CpuIsolation, RemedyPlace::Host, "keep other tasks off the vCPUs' processors: cgroup v2 `cpuset.cpus.partition = isolated` (isolcpus= is deprecated)", always)
        .of_contention(),
    row(RemedyId::IothreadPinning, RemedyPlace::Host, "run the VMM's I/O and vhost threads on other processors than the vCPUs", always)
        .of_contention(),
    row(RemedyId::IrqThreads, RemedyPlace::Host, "move the interrupts whose handlers run there to other processors: /proc/irq/*/smp_affinity_list, irqbalance --banirq", always)
        .of_contention(),
    row(RemedyId::FewerVcpus, RemedyPlace::Host, "run fewer vCPUs than processors, or move a VM to another host", always).of_contention(),
    row(RemedyId::CpuQuota, RemedyPlace::Host, "raise the CPU quota of the VM's cgroup, or remove it: cpu.max (libvirt: virsh schedinfo --set vcpu_quota=-1)", |_| {
        Applies::If("cpu.stat of its cgroup counts nr_throttled up")
    })
    .of_contention(),
    row(RemedyId::KsmOff, RemedyPlace::Host, "stop page merging: echo 2 > /sys/kernel/mm/ksm/run", always).file(files::KSM_RUN, "2").of_contention(),
    row(RemedyId::HostNohzFull, RemedyPlace::Host, "stop the host's tick on the vCPUs' processors: nohz_full=CPUS on the host's command line", one_task),
    row(RemedyId::GuestNohzFull, RemedyPlace::Guest, "stop the guest's tick on busy CPUs: nohz_full=CPUS on the guest's command line", one_task),
    row(RemedyId::IrqAffinity, RemedyPlace::Host, "move device interrupts off the vCPUs' processors: /proc/irq/*/smp_affinity_list, irqbalance --banirq", |_| {
        Applies::If("/proc/interrupts shows device interrupts there")
    }),
    row(RemedyId::HaltPoll, RemedyPlace::Host, "let KVM poll before a halted vCPU sleeps: echo 200000 > /sys/module/kvm/parameters/halt_poll_ns", kvm_polling).file(files::HALT_POLL, "200000"),
    row(RemedyId::GuestHaltpoll, RemedyPlace::Guest, "let the guest poll before it halts: cpuidle_haltpoll.force=Y on its command line", guest_polling).kernel("cpuidle_haltpoll.force=Y"),
    row(RemedyId::GuestIdlePoll, RemedyPlace::Guest, "let the guest never halt: idle=poll on its command line", guest_polling),
    row(RemedyId::NoIdlePoll, RemedyPlace::Guest, "let idle CPUs halt: take idle=poll off the guest's command line (cpuidle_haltpoll polls for a while, then halts)", always),
    row(RemedyId::GuestClocksource, RemedyPlace::Guest, "use a clock that is read without an exit: clocksource=kvm-clock, or tsc (Windows: -cpu ...,hv-time)", always),
    row(RemedyId::SerialConsole, RemedyPlace::Guest, "write less to the serial console (quiet, loglevel=), or use a virtio console (console=hvc0)", always),
    row(RemedyId::ReleaseFirmware, RemedyPlace::Vmm, "use a release build of the firmware: a debug build writes to this port", |_| {
        Applies::If("they go on after the boot: a release build, too, writes some hundred times at each")
    }),
    row(RemedyId::VirtioDisk, RemedyPlace::Vmm, "give the guest a paravirtual disk in place of IDE: virtio-blk or virtio-scsi", always),
    row(RemedyId::VirtioDisplay, RemedyPlace::Vmm, "give the guest no emulated VGA: virtio-gpu, or no display at all", always),
    row(RemedyId::NoI8042, RemedyPlace::Vmm, "take the PS/2 controller away, or use virtio-input (QEMU: -machine i8042=off)", always),
    row(RemedyId::GuestApic, RemedyPlace::Guest, "let the guest use its APIC: take noapic or nolapic off its command line", always),
    row(RemedyId::GuestLapicTimer, RemedyPlace::Guest, "let the guest use its APIC's timer in place of the PIT or the HPET: take nolapic_timer or noapictimer off its command line", always),
    row(RemedyId::Msi, RemedyPlace::Guest, "let devices signal by MSI: take pci=nomsi off the guest's command line, or use devices that have MSI-X", always),
    row(RemedyId::Ioeventfd, RemedyPlace::Vmm, "let notifications wake a thread in place of the VMM's vCPU loop (QEMU: ioeventfd=on, its default; for disks an iothread)", |_| {
        Applies::If("the register is a virtio queue's notification")
    }).qemu("-device virtio-...,ioeventfd=on", "ioeventfd=on"),
    row(RemedyId::Vhost, RemedyPlace::Vmm, "let the host's kernel serve the network queues (QEMU: -netdev tap,vhost=on)", |_| {
        Applies::If("the queues are virtio-net's")
    }).qemu("-netdev tap,id=n0,vhost=on -device virtio-net-pci,netdev=n0", "vhost=on"),
    row(RemedyId::ParavirtualDevice, RemedyPlace::Vmm, "use a virtio model in place of the emulated device", |_| {
        Applies::If("the address is an emulated disk's or network card's: `lspci -v` in the guest names its owner")
    }),
    row(RemedyId::TscDeadline, RemedyPlace::Vmm, "give the guest the TSC-deadline timer (QEMU: -cpu ...,+tsc-deadline), and do not boot it with lapic=notscdeadline", tsc_deadline).qemu("-cpu ...,+tsc-deadline", "+tsc-deadline"),
    row(RemedyId::X2apic, RemedyPlace::Vmm, "give the guest x2APIC (QEMU: -cpu ...,+x2apic), and do not boot it with nox2apic", plain_x2apic).qemu("-cpu ...,+x2apic", "+x2apic"),
    row(RemedyId::Apicv, RemedyPlace::Host, "let the processor virtualize the APIC: kvm_intel.enable_apicv=1", intel_virtual_apic).module("kvm_intel", "enable_apicv=1"),
    row(RemedyId::Avic, RemedyPlace::Host, "let the processor virtualize the APIC: kvm_amd.avic=1", amd_virtual_apic).module("kvm_amd", "avic=1"),
    row(RemedyId::Ipiv, RemedyPlace::Host, "let the processor deliver IPIs: kvm_intel.enable_ipiv=1", intel_ipi).module("kvm_intel", "enable_ipiv=1"),
    row(RemedyId::PvSpinHint, RemedyPlace::Vmm, "tell the guest that its vCPUs are not preempted (QEMU: -cpu ...,kvm-hint-dedicated=on)", |context| {
        if context.is_contended {
            Applies::No("its vCPUs are preempted")
        } else {
            Applies::If("each vCPU has a processor of its own")
        }
    }),
    row(RemedyId::HugePages, RemedyPlace::Host, "back the memory with huge pages: THP (madvise or always), or hugetlbfs with pages reserved first (vm.nr_hugepages)", ordinary_memory),
    row(RemedyId::PreFault, RemedyPlace::Vmm, "map the memory before the guest runs: KVM_PRE_FAULT_MEMORY moves its faults to the start; the pages stay 4 KiB", memory_to_map_first),
    // lore.kernel.org/kvm, "[PATCH v3 00/24] KVM: TDX huge page support for private memory", 6 January 2026; guest_memfd.c of Linux 7.3.
    row(RemedyId::PrivateHugePages, RemedyPlace::Host, "run a kernel that maps a TD's private memory in 2 MiB: no released one does; the series \"KVM: TDX huge page support for private memory\" (v3, 24 patches, 6 January 2026) is not merged in Linux 7.3", private_in_large_pages),
    row(RemedyId::ConvertRegions, RemedyPlace::Guest, "convert whole regions of 2 MiB, and keep what is shared (swiotlb, rings) in regions of its own", always),
    row(RemedyId::ResidentMemory, RemedyPlace::Host, "keep the guest's memory in the host's: more memory, fewer VMs, or lock it (QEMU: -overcommit mem-lock=on)", |_| {
        Applies::If("VmSwap of the VMM's process (/proc/PID/status) is not 0, or its major faults count up")
    }),
    row(RemedyId::NumaNode, RemedyPlace::Host, "keep vCPUs and memory on one NUMA node (virsh numatune and vcpupin; numactl --membind, taskset)", |_| {
        Applies::If("/proc/PID/numa_maps of the VMM shows memory on another node than its vCPUs'")
    }),
    row(RemedyId::Ept, RemedyPlace::Host, "load kvm_intel with ept=1", on_intel).module("kvm_intel", "ept=1"),
    row(RemedyId::Npt, RemedyPlace::Host, "load kvm_amd with npt=1", on_amd).module("kvm_amd", "npt=1"),
    row(RemedyId::ShadowVmcs, RemedyPlace::Host, "load L0's kvm_intel with enable_shadow_vmcs=1", on_intel).module("kvm_intel", "enable_shadow_vmcs=1"),
    row(RemedyId::Vls, RemedyPlace::Host, "load L0's kvm_amd with vls=1, its default", virtual_vmload).module("kvm_amd", "vls=1"),
    row(RemedyId::Vgif, RemedyPlace::Host, "load L0's kvm_amd with vgif=1, its default", virtual_gif).module("kvm_amd", "vgif=1"),
    row(RemedyId::PreemptionTimer, RemedyPlace::Host, "load kvm_intel with preemption_timer=1", preemption_timer).module("kvm_intel", "preemption_timer=1"),
    row(RemedyId::GuestNmiWatchdog, RemedyPlace::Guest, "stop the guest's NMI watchdog: sysctl kernel.nmi_watchdog=0", |_| {
        Applies::If("the guest's watchdog is what uses the counters")
    }).file(files::NMI_WATCHDOG, "0"),
    row(RemedyId::FewerEvents, RemedyPlace::Guest, "count fewer events at a time; kernel.nmi_watchdog=0 frees a counter", |_| {
        Applies::If("perf runs in the guest")
    }),
    row(RemedyId::NoForcedBounce, RemedyPlace::Guest, "take swiotlb=force off the guest's command line", plain_bounce),
    row(RemedyId::BounceSize, RemedyPlace::Guest, "make the bounce buffer larger: swiotlb=SLOTS on the guest's command line", |_| {
        Applies::If("io_tlb_used_hiwater reached io_tlb_nslabs (debugfs swiotlb/)")
    }),
    row(RemedyId::SpinPinning, RemedyPlace::Host, "give each vCPU a processor of its own", |context| {
        if context.is_contended {
            Applies::Yes
        } else {
            Applies::If("its vCPUs are preempted: sched:sched_switch beside the exits shows it")
        }
    }).removes(pauses),
    // QEMU docs/system/i386/hyperv.rst: "hv-avic (hv-apicv)", and of hardware without APICv or AVIC that it may harm.
    row(RemedyId::HvApicv, RemedyPlace::Vmm, "let Windows use the virtual APIC beside SynIC (QEMU 6.2 or later: -cpu ...,hv-apicv=on, the same as hv-avic)", beside_virtual_apic)
        .qemu("-cpu ...,hv-apicv=on", "hv-apicv=on"),
    // QEMU docs/system/i386/hyperv.rst: hv-evmcs and hv-syndbg require hv-vapic. kvm@vger, "About the performance of hyper-v", June 2021.
    row(RemedyId::NoHvVapic, RemedyPlace::Vmm, "do not offer Hyper-V's APIC registers (QEMU: -cpu ...,hv-vapic=off), so that Windows uses the APIC's own", beside_virtual_apic),
    // QEMU docs/system/i386/hyperv.rst, "hv-stimer": without it Windows uses HPET or RTC. kvm@vger, "Optimized clocksource with AMD AVIC
    // enabled for Windows guest", February 2021: I/O exits fell by 90.7 %.
    row(RemedyId::HvStimer, RemedyPlace::Vmm, "give Windows Hyper-V's timers (QEMU: -cpu ...,hv-vpindex,hv-synic,hv-time,hv-stimer; libvirt: <stimer state='on'/> with vpindex and synic)", windows_timers)
        .qemu("-cpu ...,hv-vpindex,hv-synic,hv-time,hv-stimer", "hv-stimer"),
    // QEMU docs/system/i386/hyperv.rst, "hv-time": readings of the reference TSC page need no exit.
    row(RemedyId::HvTime, RemedyPlace::Vmm, "give Windows Hyper-V's clock (QEMU: -cpu ...,hv-time; libvirt: <timer name='hypervclock' present='yes'/>)", of_windows)
        .qemu("-cpu ...,hv-time", "hv-time"),
    // QEMU docs/system/i386/hyperv.rst, "hv-tlbflush": one hypercall in place of IPIs; requires hv-vpindex.
    row(RemedyId::HvTlbflush, RemedyPlace::Vmm, "let Windows flush TLBs by hypercall in place of IPIs (QEMU: -cpu ...,hv-vpindex,hv-tlbflush)", of_windows)
        .qemu("-cpu ...,hv-vpindex,hv-tlbflush", "hv-tlbflush"),
    // QEMU docs/system/i386/hyperv.rst, "hv-ipi": one hypercall for many vCPUs; requires hv-vpindex. For one target it saves nothing:
    // tried on an emulated host (Linux 6.12, WRMSR 1.09 -> VMMCALL 1.24 per IPI).
    row(RemedyId::HvIpi, RemedyPlace::Vmm, "let Windows send IPIs to many vCPUs by one hypercall (QEMU: -cpu ...,hv-vpindex,hv-ipi)", ipis_of_windows)
        .qemu("-cpu ...,hv-vpindex,hv-ipi", "hv-ipi"),
    // QEMU docs/system/i386/hyperv.rst, "hv-evmcs": Intel alone, requires hv-vapic, disables posted interrupts. LKML, 2025-12-22: Windows 11
    // with HVCI 1.2 M exits a second, 200 k with it.
    row(RemedyId::HvEvmcs, RemedyPlace::Vmm, "let Hyper-V and KVM share an enlightened VMCS (QEMU: -cpu ...,hv-vapic,hv-evmcs)", windows_on_intel)
        .qemu("-cpu ...,hv-vapic,hv-evmcs", "hv-evmcs"),
    // Parameters mbec of kvm_intel and gmet of kvm_amd in Linux 7.2. LKML, 2025-12-22: 1.2 M exits a second, 50 k with it.
    row(RemedyId::NestedMbec, RemedyPlace::Host, "run a host kernel that gives guests mode-based execute control (kvm_intel.mbec, kvm_amd.gmet; Linux 7.2)", |context| {
        if context.is_windows {
            Applies::If("memory integrity (HVCI) is on in the guest, and the processor has it")
        } else {
            Applies::No("it helps Hyper-V with memory integrity (HVCI) as a guest")
        }
    }),
    // Linux Documentation/admin-guide/kernel-parameters.txt, "no-kvmapf". firecracker-microvm/firecracker issue 3043.
    row(RemedyId::NoKvmapf, RemedyPlace::Guest, "do without asynchronous page faults: no-kvmapf on the guest's command line, or a host kernel of Linux 5.13 or later", |_| {
        Applies::If("an interrupt for asynchronous page faults is pending that the guest cannot take: its local APIC is disabled by software")
    }),
    // Linux arch/x86/kernel/kvm.c, `kvm_send_ipi_mask`: one hypercall for up to 128 vCPUs.
    row(RemedyId::PvIpi, RemedyPlace::Vmm, "let the guest send IPIs to many vCPUs by one hypercall (QEMU: -cpu ...,kvm-pv-ipi=on)", |context| {
        if context.is_windows {
            return Applies::No("the guest uses Hyper-V's interface: hv-ipi is its own");
        }
        Applies::If("the IPIs go to many vCPUs at once: one target costs as much by hypercall")
    }).qemu("-cpu ...,kvm-pv-ipi=on", "kvm-pv-ipi=on"),
    // Linux Documentation/admin-guide/mm/transhuge.rst, "defrag". linux-mm, September 2012, on slow starts of VMs: "compaction is now definitely top".
    row(RemedyId::ThpDefer, RemedyPlace::Host, "let khugepaged make huge pages, not the faults of the VM: echo defer > /sys/kernel/mm/transparent_hugepage/defrag", ordinary_memory)
        .file(files::THP_DEFRAG, "defer"),
    // The same, and Documentation/admin-guide/mm/hugetlbpage.rst.
    row(RemedyId::HugetlbMemory, RemedyPlace::Host, "reserve huge pages before memory is fragmented (vm.nr_hugepages at boot), and back the memory with them (hugetlbfs)", ordinary_memory),
    // Linux Documentation/virt/kvm/halt-polling.rst, "Further Notes": a CPU that polls is seen as busy.
    row(RemedyId::NoHaltPoll, RemedyPlace::Host, "let halted vCPUs sleep at once: echo 0 > /sys/module/kvm/parameters/halt_poll_ns", |_| {
        Applies::If("the host's processor time matters more than how soon the guest wakes up")
    }).file(files::HALT_POLL, "0"),
    // Linux arch/x86/kvm/lapic.c, `apic_sync_pv_eoi_to_guest`: the guest clears a bit in its memory in place of a write that exits.
    row(RemedyId::PvEoi, RemedyPlace::Vmm, "let the guest end interrupts in its memory (QEMU: -cpu ...,kvm-pv-eoi=on, its default)", ends_in_memory)
        .qemu("-cpu ...,kvm-pv-eoi=on", "kvm-pv-eoi=on"),
    // QEMU docs/system/i386/hyperv.rst, "hv-vapic": the guest ends interrupts in a page that it shares with KVM.
    row(RemedyId::HvVapic, RemedyPlace::Vmm, "let Windows end interrupts in its memory (QEMU: -cpu ...,hv-vapic)", without_virtual_apic)
        .qemu("-cpu ...,hv-vapic", "hv-vapic"),
    // Linux drivers/char/rtc.c, drivers/rtc/rtc-mc146818-lib.c, `mc146818_get_time`: ten registers, some of them twice.
    row(RemedyId::RtcReads, RemedyPlace::Guest, "read the system's clock in place of /dev/rtc: `fuser /dev/rtc0` names the program", |_| {
        Applies::If("a program of a Linux guest keeps reading the time from it")
    }),
    // QEMU docs/system/i386/hyperv.rst, "hv-frequencies": MSRs 0x40000022 and 0x40000023 in place of measurements.
    row(RemedyId::HvFrequencies, RemedyPlace::Vmm, "let Windows read the frequencies of TSC and APIC timer, in place of measuring them at each boot (QEMU: -cpu ...,hv-frequencies)", |context| {
        if context.is_windows {
            Applies::If("the exits are those of its boot, and the VM does not have it yet")
        } else {
            Applies::If("the guest is Windows, the exits are those of its boot, and the VM does not have it yet")
        }
    })
        .qemu("-cpu ...,hv-frequencies", "hv-frequencies"),
    // Linux arch/x86/kvm/i8254.c, `kvm_pit_set_reinject`: APICV_INHIBIT_REASON_PIT_REINJ while it reinjects.
    row(RemedyId::PitDiscard, RemedyPlace::Vmm, "let the PIT drop ticks that were lost (QEMU: -global kvm-pit.lost_tick_policy=discard), or do without it (-machine pit=off)", |context| {
        if context.vendor == Isa::Vmx { Applies::No("it inhibits AVIC alone, and the processor is Intel's") } else { Applies::Yes }
    })
        .qemu("-global kvm-pit.lost_tick_policy=discard", "kvm-pit.lost_tick_policy=discard"),
    // Linux kernel/cgroup/cgroup.c, `cgroup_favor_dynmods`. firecracker docs/prod-host-setup.md, "Linux 6.1 boot time regressions".
    row(RemedyId::FavorDynmods, RemedyPlace::Host, "let threads change their cgroup at once: mount -o remount,favordynmods /sys/fs/cgroup; with cgroup v1, change to v2", |_| {
        Applies::If("the host runs Linux 6.0 to 6.12 with cgroup2, or mounts cgroup v1")
    }),
    // Linux Documentation/admin-guide/sysctl/kernel.rst, "numa_balancing". kvm@vger, January 2024, "Temporary KVM guest hangs connected to KSM and NUMA balancer".
    row(RemedyId::NoNumaBalancing, RemedyPlace::Host, "stop NUMA balancing: sysctl kernel.numa_balancing=0", |_| {
        Applies::If("memory and vCPUs of the VMs are on one node each, or the hangs are worse than memory of other nodes")
    }),
    // Linux Documentation/admin-guide/kernel-parameters.txt, "rcupdate.rcu_expedited".
    row(RemedyId::RcuExpedited, RemedyPlace::Host, "shorten grace periods of RCU: echo 1 > /sys/kernel/rcu_expedited; each interrupts all CPUs", |_| {
        Applies::If("the host runs Linux 6.0 to 6.12, and no thread on it suffers from interrupts of other CPUs")
    }).file("/sys/kernel/rcu_expedited", "1"),
    // Linux arch/x86/kvm/mmu/mmu.c, kvm_mmu_post_init_vm: no thread with `nx_hugepage_mitigation_hard_disabled`.
    row(RemedyId::NxHugePagesNever, RemedyPlace::Host, "start no thread for each VM that recovers huge pages: load kvm with nx_huge_pages=never", |_| {
        Applies::If("the host runs Linux 6.0 to 6.12, and /sys/devices/system/cpu/vulnerabilities/itlb_multihit says \"Not affected\": else a guest can crash the host")
    }).module("kvm", "nx_huge_pages=never"),
    // Linux 7d9a0273c459, kvm_io_bus_register_dev: the next synchronize_srcu_expedited waits for the grace period of its call_srcu.
    row(RemedyId::SlotsFirst, RemedyPlace::Vmm, "create memory slots before the irqchip, the PIT and ioeventfds (KVM_SET_USER_MEMORY_REGION before KVM_CREATE_IRQCHIP)", slots_first),
    row(RemedyId::FewerIoeventfds, RemedyPlace::Vmm, "use fewer ioeventfds, and do not remove them while the VM runs or resets", |_| Applies::If(GRACE_PERIODS)),
];

// Each remedy has its row.
const _: () = {
    let mut at = 0;
    while at < REMEDIES.len() {
        assert!(REMEDIES[at].id as usize == at);
        at += 1;
    }
    assert!(at == RemedyId::ALL.len());
};

/// Settings of Linux guests, most of them words of the kernel's command line.
pub(super) const OF_LINUX: &[RemedyId] = &[
    RemedyId::GuestNohzFull,
    RemedyId::GuestHaltpoll,
    RemedyId::GuestIdlePoll,
    RemedyId::NoIdlePoll,
    RemedyId::GuestApic,
    RemedyId::GuestLapicTimer,
    RemedyId::Msi,
    RemedyId::GuestNmiWatchdog,
    RemedyId::FewerEvents,
    RemedyId::NoForcedBounce,
    RemedyId::BounceSize,
    RemedyId::NoKvmapf,
    RemedyId::PvEoi,
    RemedyId::RtcReads,
];

/// Remedies that undo each other, or of which one is wrong where the other is right.
pub(super) const OPPOSITES: &[(RemedyId, RemedyId)] = &[
    (RemedyId::GuestIdlePoll, RemedyId::NoIdlePoll),
    (RemedyId::GuestHaltpoll, RemedyId::NoIdlePoll),
    (RemedyId::HaltPoll, RemedyId::NoIdlePoll),
    (RemedyId::HaltPoll, RemedyId::NoHaltPoll),
    // A guest with the hint that its vCPUs are never preempted spins where it should yield.
    (RemedyId::PvSpinHint, RemedyId::FewerVcpus),
    (RemedyId::PvSpinHint, RemedyId::CpuQuota),
    // Polling takes processor time, which a quota counts and others lack.
    (RemedyId::GuestIdlePoll, RemedyId::CpuQuota),
    (RemedyId::GuestHaltpoll, RemedyId::CpuQuota),
    (RemedyId::HaltPoll, RemedyId::CpuQuota),
    (RemedyId::GuestIdlePoll, RemedyId::FewerVcpus),
    (RemedyId::GuestHaltpoll, RemedyId::FewerVcpus),
    (RemedyId::HaltPoll, RemedyId::FewerVcpus),
    // Memory that is locked or waits for its content is not what larger pages help.
    (RemedyId::HugePages, RemedyId::ResidentMemory),
    // Beside a virtual APIC Hyper-V's page costs what it saves without.
    (RemedyId::HvVapic, RemedyId::NoHvVapic),
];
