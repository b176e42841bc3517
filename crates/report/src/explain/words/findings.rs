//! What a finding means, what would disprove it, and what to record next.

use vmtax_analyse::explain::{Found, Holder};

use super::phrases::{REPETITIONS_OF_EACH, SMALL_PAGES, reasons};

/// A finding in words.
pub(crate) struct Words {
    /// What it means, without its full stop.
    pub(crate) means: String,
    /// What would show that it is not so.
    pub(crate) disproof: &'static str,
    /// What to record to know more.
    pub(crate) next: &'static str,
}

/// The words of a subject of exits.
struct Row {
    /// Of [`vmtax_analyse::explain::subject::SUBJECTS`].
    subject: &'static str,
    means: &'static str,
    disproof: &'static str,
    next: &'static str,
}

const fn row(
    subject: &'static str,
    means: &'static str,
    disproof: &'static str,
    next: &'static str,
) -> Row {
    Row { subject, means, disproof, next }
}

const WHO: &str = "who does it: `perf record -e kvm:kvm_exit -g` on the host names the guest's rip; a profile of the guest names the program";
const WHOSE: &str = "whose register it is: `lspci -v` in the guest, or QEMU's `info mtree`";
const SAME: &str = "the same workload without these accesses is as slow";

const SUBJECTS: &[Row] = &[
    row(
        "clock-reads",
        "the guest reads its clock from a device, and each reading is an exit",
        "the guest's current_clocksource is tsc or kvm-clock: then a program reads the device",
        WHO,
    ),
    row(
        "rtc",
        "the guest reads or programs its real-time clock",
        "the guest does not open /dev/rtc",
        WHO,
    ),
    row(
        "pit-timer",
        "the guest runs its timer on the PIT",
        "the guest's current clock event device is lapic",
        WHO,
    ),
    row("serial-console", "the guest writes to a serial port, byte by byte", SAME, WHO),
    row(
        "debug-console",
        "firmware or a guest writes to a debug port",
        "the firmware is a release build",
        WHO,
    ),
    row("io-delay", "the guest waits by writing to port 0x80", SAME, WHO),
    row(
        "ide-disk",
        "the guest drives an emulated IDE disk by its registers",
        "the guest's disk is not on IDE",
        WHO,
    ),
    row("display", "the guest draws through an emulated VGA", "nothing is drawn", WHO),
    row(
        "keyboard",
        "the guest polls an emulated keyboard or mouse controller",
        "the guest has no i8042 driver",
        WHO,
    ),
    row(
        "pci-config",
        "the guest keeps reading PCI configuration space",
        "it ends with the boot",
        WHO,
    ),
    row(
        "firmware-config",
        "the guest reads QEMU's firmware configuration",
        "it ends with the boot",
        WHO,
    ),
    row("acpi", "the guest uses ACPI registers", SAME, WHO),
    row(
        "legacy-pic",
        "the guest uses the 8259 interrupt controllers",
        "the guest's interrupts go by the I/O APIC or MSI",
        WHO,
    ),
    row("vmware-port", "the guest uses VMware's backdoor port", SAME, WHO),
    row("legacy-device", "the guest uses an old device of the PC", SAME, WHO),
    row(
        "level-interrupts",
        "devices use level-triggered interrupts of the I/O APIC",
        "/proc/interrupts in the guest shows no IO-APIC-fasteoi that counts up",
        WHO,
    ),
    row(
        "notifications-to-vmm",
        "notifications of virtio queues go to the VMM, which handles them in the vCPU's thread",
        "the addresses are no virtio device's",
        WHOSE,
    ),
    row(
        "notifications",
        "queue notifications that the kernel handles (ioeventfd, kvm_fast_mmio): the VMM is not involved, and only fewer notifications would cost less",
        "the addresses are no device's queue",
        WHOSE,
    ),
    row(
        "queue-notifications",
        "the guest notifies queues of devices; without kvm_userspace_exit the recording does not show whether the kernel (ioeventfd) or the VMM handles that",
        "the addresses are no device's queue",
        "kvm:kvm_userspace_exit beside the exits",
    ),
    row(
        "device-registers",
        "the VMM emulates a device: each register access is an exit",
        "the addresses are not an emulated device's",
        WHOSE,
    ),
    row(
        "unnamed-device",
        "the guest accesses devices; the recording does not contain their addresses",
        "they are over when the guest has booted",
        "kvm:kvm_pio, kvm:kvm_mmio and kvm:kvm_userspace_exit beside the exits (`perf record -a -e 'kvm:*'`), which contain the addresses; of the recording of a table, the text of `perf kvm stat report --event=ioport` and `--event=mmio` in the same file",
    ),
    row(
        "apic-timer",
        "the guest arms its timer through the APIC's counter and not by the TSC deadline",
        "tsc_deadline_timer is in the guest's /proc/cpuinfo, and it arms by choice",
        "/proc/cpuinfo in the guest",
    ),
    row(
        "guest-timer",
        "the guest arms its timers, and they expire",
        "the rate is not that of a tick (100 to 1,000 a second and vCPU): then programs arm timers",
        "which timers: perf record -e timer:hrtimer_start in the guest",
    ),
    row(
        "host-interrupts",
        "host interrupts while the guest runs: the host's tick, devices, IPIs, expired guest timers",
        "the host's /proc/interrupts does not count up on these processors",
        "which: perf record -e irq_vectors:*,irq:irq_handler_entry on the vCPUs' processors",
    ),
    row(
        "ipi",
        "vCPUs interrupt each other",
        SAME,
        "why: a profile of the guest (TLB shootdowns, wake-ups)",
    ),
    row(
        "no-virtual-apic",
        "the APIC is not virtualized: EOI writes, task priority and interrupt windows are exits",
        "enable_apicv or avic is on and nothing inhibits it",
        "kvm:kvm_apicv_inhibit_changed; /sys/module/kvm_*/parameters",
    ),
    row(
        "halts",
        "the guest halts, and handling the halt costs time beside the wait",
        "halts are longer than any polling",
        "kvm:kvm_vcpu_wakeup, kvm:kvm_halt_poll_ns",
    ),
    row(
        "spinning",
        "vCPUs spin on PAUSE: on a lock whose owner does not run, or by idle=poll",
        "no vCPU is preempted, and the guest has no idle=poll",
        "sched:sched_switch of all processors; the guest's command line",
    ),
    row(
        "memory-faults",
        "the guest touches memory that the host has not mapped",
        "each region of 2 MiB faults once: then it is first use",
        "`vmtax pages` on the host; kvm:kvm_page_fault",
    ),
    row(
        "mapped-faults",
        "the guest accesses pages that are mapped, but not for that: most often it writes pages that KVM or the host write-protects (a migration or a checkpoint tracks writes, KSM shares pages, the VMM was forked)",
        "no migration or checkpoint runs, and the host shares no page of the VM",
        "QEMU's `info migrate`; /sys/kernel/mm/ksm/pages_sharing",
    ),
    row(
        "mapped-fetches",
        "the guest executes code in pages that are mapped without execution: kvm.nx_huge_pages splits each huge page that is executed",
        "kvm.nx_huge_pages is off",
        "/sys/module/kvm/parameters/nx_huge_pages, and how nx_lpage_splits grows in KVM's debugfs",
    ),
    row(
        "dirty-logging",
        "KVM logs written pages: a migration or a checkpoint runs",
        "no migration runs",
        "QEMU's `info migrate`",
    ),
    row(
        "shadow-paging",
        "KVM keeps shadow page tables: the processor's nested paging is not used",
        "kvm_intel.ept or kvm_amd.npt is on",
        "/sys/module/kvm_*/parameters",
    ),
    row("cpuid", "a program in the guest keeps executing CPUID", SAME, WHO),
    row("msr", "the guest reads or writes MSRs that KVM intercepts", SAME, WHO),
    row(
        "hypercalls",
        "the guest calls the hypervisor",
        SAME,
        "which calls: kvm:kvm_hypercall, kvm:kvm_hv_hypercall",
    ),
    row(
        "spinlock-kicks",
        "vCPUs wake each other for contended locks (KVM_HC_KICK_CPU, HvCallNotifyLongSpinWait)",
        "no lock is contended in the guest's profile",
        "a profile of the guest",
    ),
    row(
        "conversions",
        "the guest converts memory between private and shared",
        SAME,
        "which: kvm:kvm_hypercall (12), kvm_vmgexit_enter, kvm_userspace_exit (39); `vmtax report --event conversion`",
    ),
    row(
        "requests",
        "requests of a confidential guest whose kind was not recorded",
        SAME,
        "kvm:kvm_vmgexit_enter, kvm_msr, kvm_pio, kvm_mmio, kvm_cpuid",
    ),
    row(
        "counters",
        "the guest uses performance counters",
        "perf does not run in the guest, and its watchdog is off",
        "ps and sysctl kernel.nmi_watchdog in the guest",
    ),
    row(
        "vmcs-accesses",
        "VMREAD and VMWRITE of L1 exit to L0",
        "enable_shadow_vmcs is on",
        "which fields: `vmtax record` names them",
    ),
    row(
        "vmload-vmsave",
        "VMLOAD and VMSAVE of L1 exit to L0",
        "kvm_amd.vls is on",
        "/sys/module/kvm_amd/parameters",
    ),
    row(
        "gif",
        "STGI and CLGI of L1 exit to L0",
        "kvm_amd.vgif is on",
        "/sys/module/kvm_amd/parameters",
    ),
    row(
        "nesting",
        "the guest runs nested guests: entries of L2, and the exits of L1 that each exit of L2 causes",
        SAME,
        "kvm:kvm_nested_vmexit",
    ),
    row("other", "other exits", SAME, "kvm:* (perf record -e 'kvm:*'), which shows their subject"),
];

/// The words of a finding.
pub(crate) fn finding(found: &Found) -> Words {
    let words = |means: &str, disproof, next| Words { means: means.to_owned(), disproof, next };
    match found {
        Found::Exits(subject) => of_subject(subject),
        Found::OtherExits(most) => {
            let means = format!("exits without a rule: {}", reasons(most));
            Words { means, ..of_subject("other") }
        }
        Found::FaultsWait => words(
            "the guest touches memory whose content the host must fetch first: from swap, a migration's source, a file",
            "the VMM's major faults (/proc/PID/stat) stand still, and it uses no userfaultfd",
            "VmSwap in /proc/PID/status of the VMM; `vmstat 1` (si, so); QEMU's `info migrate`",
        ),
        Found::Xapic => words(
            "the guest uses its APIC through memory (xAPIC): each access that exits is decoded",
            "the guest's /proc/cpuinfo has x2apic",
            "/proc/cpuinfo and the command line of the guest",
        ),
        Found::Contention(holder) => contention(*holder),
        Found::GuestPolls => words(
            "the guest is idle and polls: its processors are busy, and nothing is waited for by exits",
            "the guest has work all the time",
            "the guest's command line (idle=), its cpuidle driver",
        ),
        Found::BounceBuffer => words(
            "the guest copies what its devices read and write through the bounce buffer (swiotlb)",
            "the same load without the buffer is as slow",
            "debugfs swiotlb/io_tlb_{nslabs,used_hiwater} in the guest, at high and at low load",
        ),
        Found::BranchMisses => words(
            "the guest's branches are predicted worse than in the base: not a cost of exits",
            "the same number of instructions was not run on both sides",
            "mitigations in both guests (/sys/devices/system/cpu/vulnerabilities/*); perf record -e branch-misses in both",
        ),
        Found::RemoteMemory => words(
            "the guest's loads go to memory of another NUMA node more often than in the base: each takes longer",
            "numa_maps of the VMM's process shows the memory on the node of its vCPUs",
            "/proc/PID/numa_maps of the VMM; `vmtax doctor` compares it with the vCPUs' processors",
        ),
        Found::TlbMisses => words(
            "the guest's TLB misses more often than in the base: it waits for page walks",
            "the two did not do the same work, or the guest's own pages differ (THP in the guest)",
            "`vmtax pages` on the host while each VM runs; AnonHugePages in /proc/meminfo of both guests",
        ),
        Found::ShatteredRegions => words(
            "conversions of single pages break up huge pages: KVM maps a region of 2 MiB that is private in part in pages of 4 KiB",
            "pages_2m of `vmtax pages` does not fall while the guest converts, or there were no 2M pages before",
            "`vmtax pages` before and after the conversions; `vmtax lab run --operation shatter,shatter-back` shows the same on an emulated host",
        ),
        Found::SmallPages { private } => words(
            if *private {
                "the guest's memory is private, which Linux maps in pages of 4 KiB"
            } else {
                SMALL_PAGES
            },
            "`vmtax pages` shows 2M and 1G",
            "`vmtax pages` on the host while the VM runs; dTLB-load-misses in the guest; perf annotate of its hottest function",
        ),
        Found::Recovery(option) => words(
            &format!("{option} recovers losses in the categories that have it"),
            "with five runs of each the values overlap",
            REPETITIONS_OF_EACH,
        ),
    }
}

fn of_subject(subject: &str) -> Words {
    let row = SUBJECTS.iter().find(|row| row.subject == subject);
    let (means, disproof, next) =
        row.map_or((subject, "", ""), |row| (row.means, row.disproof, row.next));
    Words { means: means.to_owned(), disproof, next }
}

fn contention(holder: Holder) -> Words {
    let means = match holder {
        Holder::Quota => {
            "vCPUs are held back while their processors are idle, as by a CPU quota (cpu.max): not a cost of exits"
        }
        Holder::OwnVcpus => {
            "vCPUs of the VM share processors and wait for each other: not a cost of exits"
        }
        Holder::Threads | Holder::Unknown => {
            "vCPUs wait for a processor that other threads occupy: not a cost of exits"
        }
    };
    let next = match holder {
        Holder::Quota => {
            "nr_throttled and throttled_usec in cpu.stat of the VM's cgroup and of those above it"
        }
        Holder::Unknown => {
            "sched:sched_switch of all processors (perf record -a), which names the running threads"
        }
        Holder::OwnVcpus | Holder::Threads => "`vmtax doctor` shows how the vCPUs are pinned",
    };
    let disproof = "the vCPU threads' nonvoluntary_ctxt_switches stand still";
    Words { means: means.to_owned(), disproof, next }
}

#[cfg(test)]
mod tests {
    use vmtax_analyse::explain::subject;

    use super::*;

    #[test]
    fn each_subject_has_words() {
        let subjects: Vec<&str> = subject::SUBJECTS.iter().map(|subject| subject.id).collect();
        let rows: Vec<&str> = SUBJECTS.iter().map(|row| row.subject).collect();
        assert_eq!(rows, subjects);
    }
}
