//! The rows of the table.

use vmtax_events::setting::files;
use vmtax_events::{ExitKey, Isa, svm, vmx};

use super::conditions::{
    always, amd_virtual_apic, intel_ipi, intel_virtual_apic, kvm_polling, memory_to_map_first,
    not_where_contended, on_amd, on_intel, one_task, ordinary_memory, plain_bounce, plain_x2apic,
    preemption_timer, tsc_deadline, virtual_gif, virtual_vmload,
};
use super::context::Applies;
use super::row::{Place, Remedy, row};

fn is(key: &ExitKey, on_vmx: u32, on_svm: u32) -> bool {
    match key.reason.isa {
        Isa::Vmx => key.reason.code == on_vmx,
        Isa::Svm => key.reason.code == on_svm,
        Isa::Unknown => false,
    }
}

fn pauses(key: &ExitKey) -> bool {
    is(key, vmx::PAUSE_INSTRUCTION, svm::PAUSE)
}

fn halts(key: &ExitKey) -> bool {
    is(key, vmx::HLT, svm::HLT)
}

/// Every remedy, by word.
pub const REMEDIES: &[Remedy] = &[
    row("vcpu-pinning", Place::Host, "give each vCPU thread a processor of its own (taskset -pc CPU TID, virsh vcpupin)", always)
        .of_contention(),
    row("cpu-isolation", Place::Host, "keep other tasks off the vCPUs' processors: cgroup v2 `cpuset.cpus.partition = isolated` (isolcpus= is deprecated)", always)
        .of_contention(),
    row("iothread-pinning", Place::Host, "run the VMM's I/O and vhost threads on other processors than the vCPUs", always)
        .of_contention(),
    row("irq-threads", Place::Host, "move the interrupts whose handlers run there to other processors: /proc/irq/*/smp_affinity_list, irqbalance --banirq", always)
        .of_contention(),
    row("fewer-vcpus", Place::Host, "run fewer vCPUs than processors, or move a VM to another host", always).of_contention(),
    row("cpu-quota", Place::Host, "raise the CPU quota of the VM's cgroup, or remove it: cpu.max (libvirt: virsh schedinfo --set vcpu_quota=-1)", |_| {
        Applies::If("cpu.stat of its cgroup counts nr_throttled up")
    })
    .of_contention(),
    row("ksm-off", Place::Host, "stop page merging: echo 2 > /sys/kernel/mm/ksm/run", always).file(files::KSM_RUN, "2").of_contention(),
    row("host-nohz-full", Place::Host, "stop the host's tick on the vCPUs' processors: nohz_full=CPUS on the host's command line", one_task),
    row("guest-nohz-full", Place::Guest, "stop the guest's tick on busy CPUs: nohz_full=CPUS on the guest's command line", one_task),
    row("irq-affinity", Place::Host, "move device interrupts off the vCPUs' processors: /proc/irq/*/smp_affinity_list, irqbalance --banirq", |_| {
        Applies::If("/proc/interrupts shows device interrupts there")
    }),
    row("halt-poll", Place::Host, "let KVM poll before a halted vCPU sleeps: echo 200000 > /sys/module/kvm/parameters/halt_poll_ns", kvm_polling).file(files::HALT_POLL, "200000"),
    row("guest-haltpoll", Place::Guest, "let the guest poll before it halts: cpuidle_haltpoll.force=Y on its command line", not_where_contended).kernel("cpuidle_haltpoll.force=Y")
        .removes(halts),
    row("guest-idle-poll", Place::Guest, "let the guest never halt: idle=poll on its command line", not_where_contended).removes(halts),
    row("no-idle-poll", Place::Guest, "let idle CPUs halt: take idle=poll off the guest's command line (cpuidle_haltpoll polls for a while, then halts)", always),
    row("guest-clocksource", Place::Guest, "use a clock that is read without an exit: clocksource=kvm-clock, or tsc (Windows: -cpu ...,hv-time)", always),
    row("serial-console", Place::Guest, "write less to the serial console (quiet, loglevel=), or use a virtio console (console=hvc0)", always),
    row("release-firmware", Place::Vmm, "use a release build of the firmware: a debug build writes to this port", always),
    row("io-delay", Place::Guest, "do not wait by writing to port 0x80: io_delay=none or io_delay=udelay on the guest's command line", always),
    row("virtio-disk", Place::Vmm, "give the guest a paravirtual disk in place of IDE: virtio-blk or virtio-scsi", always),
    row("virtio-display", Place::Vmm, "give the guest no emulated VGA: virtio-gpu, or no display at all", always),
    row("no-i8042", Place::Vmm, "take the PS/2 controller away, or use virtio-input (QEMU: -machine i8042=off)", always),
    row("no-vmport", Place::Vmm, "take VMware's port away (QEMU: -machine vmport=off)", always),
    row("guest-apic", Place::Guest, "let the guest use its APIC: take noapic or nolapic off its command line", always),
    row("guest-lapic-timer", Place::Guest, "let the guest use its APIC's timer in place of the PIT: take nolapic_timer or noapictimer off its command line", always),
    row("msi", Place::Guest, "let devices signal by MSI: take pci=nomsi off the guest's command line, or use devices that have MSI-X", always),
    row("ioeventfd", Place::Vmm, "let notifications wake a thread in place of the VMM's vCPU loop (QEMU: ioeventfd=on, its default; for disks an iothread)", |_| {
        Applies::If("the register is a virtio queue's notification")
    }).qemu("-device virtio-...,ioeventfd=on", "ioeventfd=on"),
    row("vhost", Place::Vmm, "let the host's kernel serve the network queues (QEMU: -netdev tap,vhost=on)", |_| {
        Applies::If("the queues are virtio-net's")
    }).qemu("-netdev tap,id=n0,vhost=on -device virtio-net-pci,netdev=n0", "vhost=on"),
    row("paravirtual-device", Place::Vmm, "use a virtio model in place of the emulated device", |_| {
        Applies::If("the address is an emulated disk's or network card's: `lspci -v` in the guest names its owner")
    }),
    row("tsc-deadline", Place::Vmm, "give the guest the TSC-deadline timer (QEMU: -cpu ...,+tsc-deadline), and do not boot it with lapic=notscdeadline", tsc_deadline).qemu("-cpu ...,+tsc-deadline", "+tsc-deadline"),
    row("x2apic", Place::Vmm, "give the guest x2APIC (QEMU: -cpu ...,+x2apic), and do not boot it with nox2apic", plain_x2apic).qemu("-cpu ...,+x2apic", "+x2apic"),
    row("apicv", Place::Host, "let the processor virtualize the APIC: kvm_intel.enable_apicv=1", intel_virtual_apic).module("kvm_intel", "enable_apicv=1"),
    row("avic", Place::Host, "let the processor virtualize the APIC: kvm_amd.avic=1", amd_virtual_apic).module("kvm_amd", "avic=1"),
    row("ipiv", Place::Host, "let the processor deliver IPIs: kvm_intel.enable_ipiv=1", intel_ipi).module("kvm_intel", "enable_ipiv=1"),
    row("pv-spin-hint", Place::Vmm, "tell the guest that its vCPUs are not preempted (QEMU: -cpu ...,kvm-hint-dedicated=on)", |context| {
        if context.is_contended {
            Applies::No("its vCPUs are preempted")
        } else {
            Applies::If("each vCPU has a processor of its own")
        }
    }),
    row("huge-pages", Place::Host, "back the memory with huge pages: THP (madvise or always), or hugetlbfs with pages reserved first (vm.nr_hugepages)", ordinary_memory),
    row("pre-fault", Place::Vmm, "map the memory before the guest runs: KVM_PRE_FAULT_MEMORY moves its faults to the start; the pages stay 4 KiB", memory_to_map_first),
    row("convert-regions", Place::Guest, "convert whole regions of 2 MiB, and keep what is shared (swiotlb, rings) in regions of its own", always),
    row("resident-memory", Place::Host, "keep the guest's memory in the host's: more memory, fewer VMs, or lock it (QEMU: -overcommit mem-lock=on)", |_| {
        Applies::If("VmSwap of the VMM's process (/proc/PID/status) is not 0, or its major faults count up")
    }),
    row("numa-node", Place::Host, "keep vCPUs and memory on one NUMA node (virsh numatune and vcpupin; numactl --membind, taskset)", |_| {
        Applies::If("/proc/PID/numa_maps of the VMM shows memory on another node than its vCPUs'")
    }),
    row("ept", Place::Host, "load kvm_intel with ept=1", on_intel),
    row("npt", Place::Host, "load kvm_amd with npt=1", on_amd),
    row("shadow-vmcs", Place::Host, "load L0's kvm_intel with enable_shadow_vmcs=1", on_intel).module("kvm_intel", "enable_shadow_vmcs=1"),
    row("vls", Place::Host, "load L0's kvm_amd with vls=1, its default", virtual_vmload).module("kvm_amd", "vls=1"),
    row("vgif", Place::Host, "load L0's kvm_amd with vgif=1, its default", virtual_gif).module("kvm_amd", "vgif=1"),
    row("preemption-timer", Place::Host, "load kvm_intel with preemption_timer=1", preemption_timer).module("kvm_intel", "preemption_timer=1"),
    row("guest-nmi-watchdog", Place::Guest, "stop the guest's NMI watchdog: sysctl kernel.nmi_watchdog=0", |_| {
        Applies::If("the guest's watchdog is what uses the counters")
    }).file(files::NMI_WATCHDOG, "0"),
    row("fewer-events", Place::Guest, "count fewer events at a time; kernel.nmi_watchdog=0 frees a counter", |_| {
        Applies::If("perf runs in the guest")
    }),
    row("no-forced-bounce", Place::Guest, "take swiotlb=force off the guest's command line", plain_bounce),
    row("bounce-size", Place::Guest, "make the bounce buffer larger: swiotlb=SLOTS on the guest's command line", |_| {
        Applies::If("io_tlb_used_hiwater reached io_tlb_nslabs (debugfs swiotlb/)")
    }),
    row("spin-pinning", Place::Host, "give each vCPU a processor of its own", |context| {
        if context.is_contended {
            Applies::Yes
        } else {
            Applies::If("its vCPUs are preempted: sched:sched_switch beside the exits shows it")
        }
    }).removes(pauses),
];

/// Settings of Linux guests, most of them words of the kernel's command line.
pub(super) const OF_LINUX: &[&str] = &[
    "guest-nohz-full",
    "guest-haltpoll",
    "guest-idle-poll",
    "no-idle-poll",
    "io-delay",
    "guest-apic",
    "guest-lapic-timer",
    "msi",
    "guest-nmi-watchdog",
    "fewer-events",
    "no-forced-bounce",
    "bounce-size",
];

/// Remedies that undo each other, or of which one is wrong where the other is right.
pub(super) const OPPOSITES: &[(&str, &str)] = &[
    ("guest-idle-poll", "no-idle-poll"),
    ("guest-haltpoll", "no-idle-poll"),
    ("halt-poll", "no-idle-poll"),
    // A guest with the hint that its vCPUs are never preempted spins where it should yield.
    ("pv-spin-hint", "fewer-vcpus"),
    ("pv-spin-hint", "cpu-quota"),
    // Polling takes processor time, which a quota counts and others lack.
    ("guest-idle-poll", "cpu-quota"),
    ("guest-haltpoll", "cpu-quota"),
    ("halt-poll", "cpu-quota"),
    ("guest-idle-poll", "fewer-vcpus"),
    ("guest-haltpoll", "fewer-vcpus"),
    ("halt-poll", "fewer-vcpus"),
    // Memory that is locked or waits for its content is not what larger pages help.
    ("huge-pages", "resident-memory"),
];
