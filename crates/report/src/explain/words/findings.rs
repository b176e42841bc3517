//! What a finding means, what would disprove it, and what to record next.

use vmtax_analyse::explain::{CpuHolder, FoundKind, LineTimer, Subject};
use vmtax_events::apicv::ApicvInhibit;

use super::observed::{
    boot_gaps, host_stuck_in, message, named_cost, slow_function, stuck_in, vmm_blocked_in,
};
use super::phrases::{REPETITIONS_OF_EACH, SMALL_PAGES, reasons};

/// A finding in words.
pub(crate) struct FindingWords {
    /// What it means, without its full stop.
    pub(crate) means: String,
    /// What would show that it is not so.
    pub(crate) disproof: &'static str,
    /// What to record to know more.
    pub(crate) next: &'static str,
}

const WHO: &str = "who does it: `perf record -e kvm:kvm_exit -g` on the host names the guest's rip; a profile of the guest names the program";
const WHOSE: &str = "whose register it is: `lspci -v` in the guest, or QEMU's `info mtree`";
const SAME: &str = "the same workload without these accesses is as slow";

/// What exits of a subject mean, what disproves it, what to record next.
fn of_subject(subject: Subject) -> FindingWords {
    let (means, disproof, next) = match subject {
        Subject::ClockReads => (
            "the guest reads its clock from a device, and each reading is an exit",
            "the guest's current_clocksource is tsc or kvm-clock: then a program reads the device",
            WHO,
        ),
        Subject::Rtc => (
            "the guest reads or programs its real-time clock",
            "the guest does not open /dev/rtc",
            WHO,
        ),
        Subject::PitTimer => (
            "the guest runs its timer on the PIT",
            "the guest's current clock event device is lapic",
            WHO,
        ),
        Subject::HpetTimer => (
            "the guest runs its timer on the HPET",
            "the guest's current clock event device is lapic",
            "/sys/devices/system/clockevents/clockevent*/current_device and the command line of the guest",
        ),
        Subject::SerialConsole => ("the guest writes to a serial port, byte by byte", SAME, WHO),
        Subject::DebugConsole => {
            ("firmware or a guest writes to a debug port", "the firmware is a release build", WHO)
        }
        Subject::IoDelay => ("the guest waits by writing to port 0x80", SAME, WHO),
        Subject::IdeDisk => (
            "the guest drives an emulated IDE disk by its registers",
            "the guest's disk is not on IDE",
            WHO,
        ),
        Subject::Display => ("the guest draws through an emulated VGA", "nothing is drawn", WHO),
        Subject::Keyboard => (
            "the guest polls an emulated keyboard or mouse controller",
            "the guest has no i8042 driver",
            WHO,
        ),
        Subject::PciConfig => {
            ("the guest keeps reading PCI configuration space", "it ends with the boot", WHO)
        }
        Subject::FirmwareConfig => {
            ("the guest reads QEMU's firmware configuration", "it ends with the boot", WHO)
        }
        Subject::Acpi => ("the guest uses ACPI registers", SAME, WHO),
        Subject::LegacyPic => (
            "the guest uses the 8259 interrupt controllers",
            "the guest's interrupts go by the I/O APIC or MSI",
            WHO,
        ),
        Subject::VmwarePort => ("the guest uses VMware's backdoor port 0x5658", SAME, WHO),
        Subject::LegacyDevice => ("the guest uses an old device of the PC", SAME, WHO),
        Subject::LevelInterrupts => (
            "devices use level-triggered interrupts, whose handlers read the APIC's trigger modes and each device's status",
            "/proc/interrupts in the guest shows no IO-APIC-fasteoi that counts up",
            WHO,
        ),
        Subject::NotificationsToVmm => (
            "notifications of virtio queues go to the VMM, which handles them in the vCPU's thread",
            "the addresses are no virtio device's",
            WHOSE,
        ),
        Subject::Notifications => (
            "queue notifications that the kernel handles (ioeventfd, kvm_fast_mmio): the VMM is not involved, and only fewer notifications would cost less",
            "the addresses are no device's queue",
            WHOSE,
        ),
        Subject::QueueNotifications => (
            "the guest notifies queues of devices; without kvm_userspace_exit the recording does not show whether the kernel (ioeventfd) or the VMM handles that",
            "the addresses are no device's queue",
            "kvm:kvm_userspace_exit beside the exits",
        ),
        Subject::NvmeDoorbells => (
            "the guest writes doorbells of an emulated NVMe disk: two for each request",
            "the addresses are no NVMe controller's",
            WHOSE,
        ),
        Subject::DeviceRegisters => (
            "the VMM emulates a device: each register access is an exit",
            "the addresses are not an emulated device's",
            WHOSE,
        ),
        Subject::UnnamedDevice => (
            "the guest accesses devices; the recording does not contain their addresses",
            "they are over when the guest has booted",
            "kvm:kvm_pio, kvm:kvm_mmio and kvm:kvm_userspace_exit beside the exits (`perf record -a -e 'kvm:*'`), which contain the addresses: 0x70 and 0x71 are the RTC, which Windows uses without hv-stimer, 0x608 and 0xb008 the PM timer",
        ),
        Subject::ApicTimer => (
            "the guest arms its timer through the APIC's counter and not by the TSC deadline",
            "tsc_deadline_timer is in the guest's /proc/cpuinfo, and it arms by choice",
            "/proc/cpuinfo in the guest",
        ),
        Subject::GuestTimer => (
            "the guest arms its timers, and they expire",
            "the rate is not that of a tick (100 to 1,000 a second and vCPU): then programs arm timers",
            "which timers: perf record -e timer:hrtimer_start in the guest",
        ),
        Subject::HostInterrupts => (
            "host interrupts while the guest runs: the host's tick, devices, IPIs, expired guest timers",
            "the host's /proc/interrupts does not count up on these processors",
            "which: perf record -e irq_vectors:*,irq:irq_handler_entry on the vCPUs' processors; Rescheduling interrupts (0xfd, RES in /proc/interrupts) are kicks of vCPUs, as KVM needs them where APICv or AVIC is off or inhibited (enable_apicv, kvm:kvm_apicv_inhibit_changed)",
        ),
        Subject::HostTick => (
            "the host's timer interrupts the guest: the host's tick, or timers of the guest that KVM runs on it",
            "the rate is not that of a tick (100 to 1,000 a second and vCPU)",
            "LOC in the host's /proc/interrupts on the vCPUs' processors; what runs there beside the vCPU",
        ),
        Subject::HostIpis => (
            "other CPUs of the host interrupt the guest: to kick the vCPU (an iothread or vhost delivers an interrupt, which posted interrupts do without an exit), or to wake threads that run there",
            "RES and CAL in the host's /proc/interrupts stand still on the vCPUs' processors",
            "who sends them: `perf record -a -g -e ipi:ipi_send_cpu -e sched:sched_waking` (Linux 6.4 or later)",
        ),
        Subject::HostDevices => (
            "devices of the host interrupt the guest: their interrupts go to the vCPUs' processors",
            "the host's /proc/interrupts does not count up on these processors",
            "which: the vectors in /sys/kernel/debug/irq/irqs/*, or `perf record -a -e irq:irq_handler_entry`",
        ),
        Subject::HypervApic => (
            "Windows ends interrupts by Hyper-V's own MSRs (0x40000070 to 0x40000072), which no virtual APIC of the processor takes over",
            "the exits stay without hv-vapic, or with hv-apicv",
            "the VM's -cpu options; kvm:kvm_apicv_inhibit_changed; /sys/module/kvm_*/parameters",
        ),
        Subject::MemoryOrDevice => (
            "the guest touches memory that the host has not mapped, or registers of devices; the recording does not contain the addresses",
            SAME,
            "kvm:kvm_page_fault and kvm:kvm_mmio beside the exits (`perf record -a -e 'kvm:*'`), which tell the two apart",
        ),
        Subject::UnnamedMsr => (
            "the guest accesses MSRs; the recording does not contain their numbers",
            SAME,
            "kvm:kvm_msr beside the exits (`perf record -a -e 'kvm:*'`): 0x6e0 and 0x838 arm timers, 0x830 sends IPIs, 0x80b ends interrupts; 0x40000070 is the EOI of Windows with hv-vapic, which hv-apicv avoids",
        ),
        Subject::Ipi => (
            "vCPUs interrupt each other",
            SAME,
            "why: a profile of the guest (TLB shootdowns, wake-ups)",
        ),
        Subject::NoVirtualApic => (
            "the APIC is not virtualized: EOI writes, task priority and interrupt windows are exits",
            "enable_apicv or avic is on and nothing inhibits it",
            "kvm:kvm_apicv_inhibit_changed; /sys/module/kvm_*/parameters",
        ),
        Subject::Halts => (
            "the guest halts, and handling the halt costs time beside the wait",
            "halts are longer than any polling",
            "kvm:kvm_vcpu_wakeup, kvm:kvm_halt_poll_ns",
        ),
        Subject::Spinning => (
            "vCPUs spin on PAUSE: on a lock whose owner does not run, or by idle=poll",
            "no vCPU is preempted, and the guest has no idle=poll",
            "sched:sched_switch of all processors; the guest's command line",
        ),
        Subject::MemoryFaults => (
            "the guest touches memory that the host has not mapped: not yet, or no more (NUMA balancing, KSM, reclaim); exits alone do not tell which",
            "each region of 2 MiB faults once: then it is first use",
            "how numa_pte_updates and numa_hint_faults in the host's /proc/vmstat grow meanwhile (kernel.numa_balancing=0 for a trial); `vmtax doctor --pages` on the host; kvm:kvm_page_fault",
        ),
        Subject::MappedFaults => (
            "the guest accesses pages that are mapped, but not for that: most often it writes pages that KVM or the host write-protects (a migration or a checkpoint tracks writes, KSM shares pages, the VMM was forked)",
            "no migration or checkpoint runs, and the host shares no page of the VM",
            "QEMU's `info migrate`; /sys/kernel/mm/ksm/pages_sharing",
        ),
        Subject::MappedFetches => (
            "the guest executes code in pages that are mapped without execution: kvm.nx_huge_pages splits each huge page that is executed",
            "kvm.nx_huge_pages is off",
            "/sys/module/kvm/parameters/nx_huge_pages, and how nx_lpage_splits grows in KVM's debugfs",
        ),
        Subject::DirtyLogging => (
            "KVM logs written pages: a migration or a checkpoint runs",
            "no migration runs",
            "QEMU's `info migrate`",
        ),
        Subject::ShadowPaging => (
            "KVM keeps shadow page tables: nested paging is off, or the guest runs guests of its own",
            "kvm_intel.ept or kvm_amd.npt is on",
            "/sys/module/kvm_*/parameters",
        ),
        Subject::Cpuid => ("a program in the guest keeps executing CPUID", SAME, WHO),
        Subject::Msr => ("the guest reads or writes MSRs that KVM intercepts", SAME, WHO),
        Subject::Hypercalls => (
            "the guest calls the hypervisor",
            SAME,
            "which calls: kvm:kvm_hypercall, kvm:kvm_hv_hypercall",
        ),
        Subject::SpinlockKicks => (
            "vCPUs wake each other for contended locks (KVM_HC_KICK_CPU, HvCallNotifyLongSpinWait)",
            "no lock is contended in the guest's profile",
            "a profile of the guest",
        ),
        Subject::Conversions => (
            "the guest converts memory between private and shared",
            SAME,
            "which: kvm:kvm_hypercall (12), kvm_vmgexit_enter, kvm_userspace_exit (39); `vmtax report --event conversion`",
        ),
        Subject::Requests => (
            "requests of a confidential guest whose kind was not recorded",
            SAME,
            "kvm:kvm_vmgexit_enter, kvm_msr, kvm_pio, kvm_mmio, kvm_cpuid",
        ),
        Subject::Counters => (
            "the guest uses performance counters",
            "perf does not run in the guest, and its watchdog is off",
            "ps and sysctl kernel.nmi_watchdog in the guest",
        ),
        Subject::VmcsAccesses => (
            "VMREAD and VMWRITE of L1 exit to L0",
            "enable_shadow_vmcs is on",
            "which fields: `vmtax record` names them",
        ),
        Subject::VmloadVmsave => (
            "VMLOAD and VMSAVE of L1 exit to L0",
            "kvm_amd.vls is on",
            "/sys/module/kvm_amd/parameters",
        ),
        Subject::Gif => (
            "STGI and CLGI of L1 exit to L0",
            "kvm_amd.vgif is on",
            "/sys/module/kvm_amd/parameters",
        ),
        Subject::Nesting => (
            "the guest runs nested guests: entries of L2, and the exits of L1 that each exit of L2 causes",
            SAME,
            "kvm:kvm_nested_vmexit",
        ),
        Subject::DataAborts => (
            "the guest touches unmapped memory or registers of devices; the recording does not contain the addresses",
            SAME,
            "kvm:kvm_guest_fault and kvm:kvm_mmio beside the exits (`perf record -a -e 'kvm:*'`), which tell the two apart",
        ),
        Subject::ExecFaults => (
            "the guest executes code in pages that are mapped without execution: KVM makes them executable at the first fetch",
            "the same regions fault again and again",
            "kvm:kvm_guest_fault, which has the addresses",
        ),
        Subject::Gic => (
            "the guest uses registers of its interrupt controller that KVM emulates",
            "they are over when the guest has booted",
            "which: kvm:kvm_handle_sys_reg and kvm:kvm_mmio",
        ),
        Subject::HostIrqs => (
            "interrupts while the guest runs: the host's timer, devices, other CPUs, expired timers of the guest; the exits do not say which",
            "the host's /proc/interrupts does not count up on these processors",
            "which: `perf record -a -e irq:irq_handler_entry -e ipi:*` on the vCPUs' processors",
        ),
        Subject::Mmio => (
            "the guest accesses device registers: of the GIC or a queue's notification where the kernel handles them, of others where the VMM does",
            "they are over when the guest has booted",
            "kvm:kvm_userspace_exit beside the exits shows what the VMM handles",
        ),
        Subject::NestingEl2 => (
            "the guest runs nested guests: returns into L2 (ERET), and the registers of EL2 that L1 uses for each exit of L2",
            SAME,
            "kvm:kvm_nested_eret and kvm:kvm_inject_nested_exception, which tell L1 and L2 apart",
        ),
        Subject::Smccc => (
            "the guest calls the hypervisor or firmware (HVC, SMC)",
            SAME,
            "which calls: kvm:kvm_hvc_arm64 has the function of an HVC",
        ),
        Subject::Stage2Faults => (
            "the guest touches memory that the host had not mapped",
            "each region faults once: then it is first use",
            "kvm:kvm_guest_fault, which has the addresses; the sizes of the host's pages (getconf PAGESIZE, AnonHugePages in the VMM's smaps_rollup)",
        ),
        Subject::Sysreg => (
            "the guest reads or writes system registers that KVM traps",
            SAME,
            "who does it: vcpu_pc of kvm:kvm_exit; a profile of the guest names the program",
        ),
        Subject::UnnamedSysreg => (
            "the guest accesses system registers; the recording does not say which",
            SAME,
            "kvm:kvm_handle_sys_reg beside the exits (`perf record -a -e 'kvm:*'`), which has the register: of a timer, an IPI, the GIC or another",
        ),
        Subject::Wfe => (
            "vCPUs wait for an event (WFE): for a lock, or for another CPU",
            SAME,
            "a profile of the guest; sched:sched_switch of all processors",
        ),
        Subject::Other => {
            ("other exits", SAME, "kvm:* (perf record -e 'kvm:*'), which shows their subject")
        }
    };
    FindingWords { means: means.to_owned(), disproof, next }
}

/// The words of a finding.
pub(crate) fn finding(found: &FoundKind) -> FindingWords {
    let words =
        |means: &str, disproof, next| FindingWords { means: means.to_owned(), disproof, next };
    match found {
        FoundKind::Exits(subject) => of_subject(*subject),
        FoundKind::OtherExits(most) => {
            let means = format!("exits without a rule: {}", reasons(most));
            FindingWords { means, ..of_subject(Subject::Other) }
        }
        FoundKind::FaultsWait => words(
            "the guest touches memory whose content the host must fetch first: from swap, a migration's source, a file",
            "the VMM's major faults (/proc/PID/stat) stand still, and it uses no userfaultfd",
            "VmSwap in /proc/PID/status of the VMM; `vmstat 1` (si, so); QEMU's `info migrate`",
        ),
        FoundKind::HaltsReturn => words(
            "halts return at once: an event is pending that the guest does not take, so the vCPU never sleeps",
            "kvm:kvm_vcpu_wakeup shows that the vCPU sleeps",
            "what is pending: kvm:kvm_apic_accept_irq, kvm:kvm_async_pf_ready; the guest's /proc/interrupts (asynchronous page faults of KVM are one such event)",
        ),
        FoundKind::PeriodicTimer { armed: false } => words(
            "a timer in periodic mode wakes the guest: nobody arms it for each wake-up",
            "kvm:kvm_set_irq shows interrupts of a device at that rate",
            "which: kvm:kvm_set_irq (gsi 0 is the PIT, whose thread is kvm-pit/PID, and gsi 8 the RTC), kvm:kvm_apic_accept_irq (the APIC's timer)",
        ),
        FoundKind::PeriodicTimer { armed: true } => words(
            "a timer that the guest arms each time wakes it: its tick, or programs that sleep",
            "its command line has neither nohz=off nor highres=off: then a program sleeps at that rate",
            "the guest's command line; `perf record -e timer:hrtimer_start` in it",
        ),
        FoundKind::LineTimer(timer) => line_timer(*timer),
        FoundKind::ApicvInhibited(inhibit) => FindingWords {
            means: match inhibit {
                Some(inhibit) => format!("KVM keeps APICv or AVIC off: {}", inhibited(*inhibit)),
                None => "KVM keeps APICv or AVIC off; what the number of the reason means depends on the kernel".to_owned(),
            },
            disproof: "kvm:kvm_apicv_inhibit_changed clears the last reason later",
            next: "`enum kvm_apicv_inhibit` in arch/x86/include/asm/kvm_host.h of the host's kernel",
        },
        FoundKind::SlowRegisters => words(
            "the VMM takes long for a register access, far longer than for others",
            "it takes as long with another VMM, or other registers of the device do too",
            "what the VMM does there: `perf record -g -t TID` or `strace -T -p TID` of the vCPU's thread",
        ),
        FoundKind::Compaction => words(
            "the host moves pages to make huge ones, as when a guest first touches its memory",
            "compact_stall in the host's /proc/vmstat stands still",
            "compact_* and thp_fault_* in the host's /proc/vmstat while it is slow; /sys/kernel/mm/transparent_hugepage/defrag",
        ),
        FoundKind::Reclaim => words(
            "memory is short: pages go to swap and come back, and who touches them waits",
            "si and so of `vmstat 1` stay 0 while it is slow",
            "`vmstat 1` on the host and in the guest; VmSwap in /proc/PID/status of the VMM; how much memory all VMs have together",
        ),
        FoundKind::NoKvm => words(
            "KVM does not run the guest: QEMU translates each instruction (TCG), which is many times slower",
            "`info kvm` in QEMU's monitor says that KVM is enabled",
            "whether the guest's architecture is the host's: TCG alone runs others; /dev/kvm; vmx or svm in /proc/cpuinfo; virtualization in the firmware's setup; nested in the parameters of the outer host's module",
        ),
        FoundKind::StealCounter => words(
            "the guest's counter of stolen time is wrong: it falls, or holds more than the guest has run; it shows nothing of steal",
            "the counter grows, and no faster than the clock",
            "whether the VM was migrated: kernels before \"KVM: x86: move steal time initialization to vcpu entry time\" (Linux 4.4) let it overflow then; -cpu ...,-kvm-steal-time hides it",
        ),
        FoundKind::IdleInside => words(
            "a processor of the host is busy for a guest that is idle by its own counters: its idle loop spins (idle=poll, haltpoll, a kernel that does not halt), KVM polls for it, or the VMM works; the text does not show which",
            "the guest's processes, or steal and interrupts, take the time after all",
            "which of them: `perf kvm stat record -a sleep 10` on the host, and `perf top -p PID` of the VMM (guest code, kvm_vcpu_halt, or the VMM's own); /proc/cmdline and /sys/devices/system/cpu/cpuidle/current_driver in the guest",
        ),
        FoundKind::MigrationBehind => words(
            "the guest dirties memory about as fast as its migration sends it: precopy repeats its rounds and does not end by itself",
            "the rest falls from round to round (`info migrate`: remaining ram, dirty sync count)",
            "which of both can change: a faster link, more of it (max-bandwidth, multifd), a guest that writes less for as long; auto-converge (slows the vCPUs), postcopy and a longer downtime-limit end it at a price for the guest",
        ),
        FoundKind::StuckIn(function) => stuck_in(function.as_str(), false),
        FoundKind::HostStuckIn(work) => host_stuck_in(*work),
        FoundKind::VmmBlockedIn(function) => vmm_blocked_in(function.as_str()),
        FoundKind::BlockedIn(function) => stuck_in(function.as_str(), true),
        FoundKind::BootGaps(before) => boot_gaps(before.as_str()),
        FoundKind::Named(cost) => named_cost(*cost),
        FoundKind::SlowFunction(function) => slow_function(*function),
        FoundKind::Mitigations => words(
            "entries and exits are dear: mitigations of the host's processor run at each of them",
            "the same with mitigations=off on the host's command line, for a trial, is as slow",
            "`perf kvm stat record -a`: exits times their cost; a newer processor needs fewer mitigations, and mitigations=off suits only hosts whose guests are all trusted",
        ),
        FoundKind::HostKernel => words(
            "the host's kernel takes more of a processor than the guest: KVM polls for halted vCPUs, or handles exits",
            "no VM runs on that processor, or another thread does",
            "what the kernel does there: `perf top -C CPU` on the host (kvm_vcpu_halt and kvm_vcpu_check_block are polling: the parameter halt_poll_ns of kvm, and halt_poll_fail_ns in its debugfs), and `perf kvm stat record -a`",
        ),
        FoundKind::Message(one) => message(*one),
        FoundKind::PageMerging => words(
            "the host's ksmd compares pages, to merge equal ones",
            "/sys/kernel/mm/ksm/run is 0",
            "/sys/kernel/mm/ksm/{run,pages_to_scan,sleep_millisecs,pages_sharing}",
        ),
        FoundKind::VmscapeBarrier => words(
            "exits to the VMM are dear: a barrier of the host's mitigation of VMSCAPE before each return to user space",
            "/sys/devices/system/cpu/vulnerabilities/vmscape says that the processor is not affected",
            "kvm:kvm_userspace_exit beside the exits, which shows what goes to the VMM",
        ),
        FoundKind::HostPolls => words(
            "KVM polls for halted vCPUs: their threads are busy on the host while the guest is idle",
            "halt_poll_success_ns and halt_poll_fail_ns in KVM's debugfs stand still",
            "halt_poll_success_ns and halt_poll_fail_ns in /sys/kernel/debug/kvm; kvm:kvm_halt_poll_ns",
        ),
        FoundKind::Xapic => words(
            "the guest uses its APIC through memory (xAPIC): each access that exits is decoded",
            "the guest's /proc/cpuinfo has x2apic",
            "/proc/cpuinfo and the command line of the guest",
        ),
        FoundKind::Contention(holder) => contention(*holder),
        FoundKind::GuestPolls => words(
            "the guest is idle and polls: its processors are busy, and nothing is waited for by exits",
            "the guest has work all the time",
            "the guest's command line (idle=), its cpuidle driver",
        ),
        FoundKind::BounceBuffer => words(
            "the guest copies what its devices read and write through the bounce buffer (swiotlb)",
            "the same load without the buffer is as slow",
            "debugfs swiotlb/io_tlb_{nslabs,used_hiwater} in the guest, at high and at low load",
        ),
        FoundKind::BranchMisses => words(
            "the guest's branches are predicted worse than in the base: not a cost of exits",
            "the same number of instructions was not run on both sides",
            "mitigations in both guests (/sys/devices/system/cpu/vulnerabilities/*); perf record -e branch-misses in both",
        ),
        FoundKind::RemoteMemory => words(
            "the guest's loads go to memory of another NUMA node more often than in the base: each takes longer",
            "numa_maps of the VMM's process shows the memory on the node of its vCPUs",
            "/proc/PID/numa_maps of the VMM; `vmtax doctor` compares it with the vCPUs' processors",
        ),
        FoundKind::SpreadMemory => words(
            "the VMM's memory is on more than one NUMA node: loads from the other one take longer",
            "the guest has NUMA nodes of its own, and each lies on the one where its vCPUs run",
            "where the vCPUs run: `vmtax doctor` on the host compares it; /proc/PID/numa_maps of the VMM",
        ),
        FoundKind::MmuLock => words(
            "vCPUs wait for the lock of KVM's page tables (mmu_lock): faults of a guest with shadow pages, as a nested guest has them, take it one after the other; with EPT or NPT alone they share it",
            "the guest runs no guests of its own and has EPT or NPT: then the lock is held for another reason (dirty logging, memory that is taken away)",
            "who holds it: `perf lock contention -ab`; fewer faults of the nested guest: huge pages for its memory on the outer host and in L1, memory that is not given back; fewer vCPUs in it",
        ),
        FoundKind::LockWaits => words(
            "much time goes into waiting for locks; whose is not shown",
            "the callers of these functions hold no lock that a vCPU waits for",
            "who takes the lock: `perf record -a -g -- sleep 10`, then `perf report --stdio --no-children`, which vmtax reads; below KVM's page faults it is mmu_lock, below futex of QEMU's threads QEMU's own (BQL). Who holds it: `perf lock contention -ab`",
        ),
        FoundKind::OneProcessor => words(
            "all vCPUs of the VM that are shown were on one processor of the host: where they are busy at once they wait for each other",
            "a second look shows other processors, or the VM was idle: one processor is enough then",
            "the same again while the VM is busy; `taskset -cp TID` of each vCPU's thread; isolated processors (isolcpus) are not balanced, so that threads stay where they start: pin each vCPU to one, or use a cpuset that is balanced",
        ),
        FoundKind::BusyDisk(disk) => FindingWords {
            means: format!("the disk {} is busy nearly all of the time, and requests wait for it: what uses it, a VM or all VMs of a host, waits too", disk.as_str()),
            disproof: "the load does not wait for this disk: its VMs' I/O goes elsewhere, or is not what is slow",
            next: "who writes: `iotop -oPa` or `pidstat -d 1` on the host; flushes (f/s of `iostat -x`); the cache mode of the VMs' disks (cache=writeback keeps writes in the host's memory, cache=unsafe drops flushes and data with them); a faster disk, or fewer VMs on it",
        },
        FoundKind::MigrationScan => words(
            "the migration's one thread compares each page with zero before it is sent: live_migration",
            "`info migrate` shows few duplicate pages, or the network is full",
            "with multifd, zero-page-detection=multifd (QEMU 9.0 and later) does that in the channels' threads; without, `migrate_set_capability multifd on` at both ends; a migration that waits for the network gains nothing",
        ),
        FoundKind::TlbMisses => words(
            "the guest's TLB misses more often than in the base: it waits for page walks",
            "the two did not do the same work, or the guest's own pages differ (THP in the guest)",
            "`vmtax doctor --pages` on the host while each VM runs; AnonHugePages in /proc/meminfo of both guests",
        ),
        FoundKind::ShatteredRegions => words(
            "conversions of single pages break up huge pages: KVM maps a region of 2 MiB that is private in part in pages of 4 KiB",
            "pages_2m of `vmtax doctor --pages` does not fall while the guest converts, or there were no 2M pages before",
            "`vmtax doctor --pages` before and after the conversions; `vmtax lab run --operation shatter,shatter-back` shows the same on an emulated host",
        ),
        FoundKind::SmallPages { private } => words(
            if *private {
                "the guest's memory is private, which Linux maps in pages of 4 KiB"
            } else {
                SMALL_PAGES
            },
            "`vmtax doctor --pages` shows 2M and 1G",
            "`vmtax doctor --pages` on the host while the VM runs; `vmtax doctor` in the guest, which times what a load pays there; dTLB-load-misses and perf annotate of its hottest function",
        ),
        FoundKind::EmulatedIommu => words(
            "the guest maps and unmaps each transfer in an IOMMU that the VMM emulates: each change is an exit to it, and with a passed-through device a change of the host's mappings",
            "the guest's kernel command line has iommu=pt, or the VM has no emulated IOMMU",
            "the same with iommu=pt on the guest's kernel command line, which maps its memory once; without the emulated IOMMU (QEMU's -device intel-iommu, libvirt's <iommu>) where nothing needs it",
        ),
        FoundKind::PassedThroughRegisters => words(
            "accesses to registers of a passed-through device go through the VMM (vfio): the device's ROM runs in the guest's firmware, or its registers are not mapped into the guest",
            "the device's registers are mapped into the guest, and the accesses do not come again while it is slow",
            "the same with rombar=0 for the device (QEMU's -device vfio-pci,...,rombar=0, libvirt's <rom bar='off'/>), if it is slow while it starts; kvm:kvm_mmio for the addresses",
        ),
        FoundKind::GuestNuma => words(
            "the kernel of the profile moves pages between its NUMA nodes (NUMA balancing), and each move flushes the TLBs of its processors by interrupts",
            "numa_pages_migrated in its /proc/vmstat hardly grows while it is slow",
            "kernel.numa_balancing=0 there and the same load; of a guest: whether it needs virtual nodes, and its threads memory of one",
        ),
        FoundKind::IpiWaits => words(
            "the guest's vCPUs wait until others take an IPI (flushes of TLBs, calls of functions): one that has no processor on the host cannot",
            "steal in the guest's /proc/stat stands still: then the guest sends too many IPIs",
            "steal in the guest, and `vmtax doctor` on the host: fewer vCPUs, or VMs that share no processors; QEMU's kvm-pv-tlb-flush (the guest's dmesg: KVM setup pv remote TLB flush), and Linux 5.4 or later on the host, which lets such vCPUs run first (d73eb57b80b9)",
        ),
        FoundKind::Recovery(option) => words(
            &format!("{option} recovers losses in the categories that have it"),
            "with five runs of each the values overlap",
            REPETITIONS_OF_EACH,
        ),
    }
}

fn contention(holder: CpuHolder) -> FindingWords {
    let means = match holder {
        CpuHolder::Quota => {
            "vCPUs are held back while their processors are idle, as by a CPU quota (cpu.max): not a cost of exits"
        }
        CpuHolder::OwnVcpus => {
            "vCPUs of the VM share processors and wait for each other: not a cost of exits"
        }
        CpuHolder::Host => {
            "the host gives the guest's processors to others, as its steal shows: not a cost of exits"
        }
        CpuHolder::Threads => {
            "vCPUs wait for a processor that other threads occupy: not a cost of exits"
        }
        CpuHolder::Unknown => {
            "vCPUs wait for a processor; who has it, or whether a quota holds them back, is not shown: not a cost of exits"
        }
    };
    let next = match holder {
        CpuHolder::Quota => {
            "nr_throttled and throttled_usec in cpu.stat of the VM's cgroup and of those above it"
        }
        CpuHolder::Host => {
            "on the host: `perf record -a -e 'kvm:*' -e sched:sched_switch`, which names who runs; `vmtax doctor` shows how VMs share processors"
        }
        CpuHolder::Unknown => {
            "sched:sched_switch of all processors (perf record -a), which names the running threads"
        }
        CpuHolder::OwnVcpus | CpuHolder::Threads => "`vmtax doctor` shows how the vCPUs are pinned",
    };
    let disproof = "the vCPU threads' nonvoluntary_ctxt_switches stand still";
    FindingWords { means: means.to_owned(), disproof, next }
}

/// A timer on a line of the PC.
fn line_timer(timer: LineTimer) -> FindingWords {
    let (means, next) = match timer {
        LineTimer::Pit => (
            "KVM's PIT interrupts the guest in periodic mode: nobody stopped it, or the guest has no better timer",
            "the guest's /proc/interrupts (line 0) and current_clockevent of /sys/devices/system/clockevents; a VMM without a PIT: QEMU's -machine pit=off",
        ),
        LineTimer::PitOrHpet => (
            "the line of the PIT interrupts the guest by itself; the HPET can take it over",
            "who raises gsi 0: a thread kvm-pit/PID is the PIT; the guest's /proc/interrupts and /sys/devices/system/clockevents",
        ),
        LineTimer::Rtc => (
            "the real-time clock interrupts the guest periodically; in legacy mode the HPET takes over its line",
            "who set it: `fuser /dev/rtc0` in a Linux guest; Windows does it itself if it lacks Hyper-V's timers",
        ),
    };
    FindingWords {
        means: means.to_owned(),
        disproof: "kvm:kvm_set_irq shows no interrupts at that rate on the line",
        next,
    }
}

/// What a reason of KVM's to inhibit APICv means.
fn inhibited(inhibit: ApicvInhibit) -> &'static str {
    match inhibit {
        ApicvInhibit::Disabled => "the module's parameter is off, or the processor lacks it",
        ApicvInhibit::Hyperv => "the guest uses AutoEOI of Hyper-V's SynIC",
        ApicvInhibit::Absent => "the VMM emulates the APIC (kernel-irqchip)",
        ApicvInhibit::BlockIrq => "a debugger of the VMM blocks interrupts",
        ApicvInhibit::PhysicalIdAliased => "vCPUs share an APIC id",
        ApicvInhibit::ApicIdModified => "the guest changed an APIC id",
        ApicvInhibit::ApicBaseModified => "the guest moved its APIC's page",
        ApicvInhibit::Nested => "the vCPU runs a nested guest",
        ApicvInhibit::IrqWindow => "KVM waits until the guest takes an interrupt",
        ApicvInhibit::PitReinject => "the PIT reinjects ticks that were lost",
        ApicvInhibit::X2apic => "the guest has x2APIC",
        ApicvInhibit::Sev => "the guest's memory is encrypted",
        ApicvInhibit::LogicalIdAliased => "vCPUs share a logical APIC id",
        ApicvInhibit::PhysicalIdTooBig => "a vCPU's APIC id is larger than AVIC has",
    }
}
