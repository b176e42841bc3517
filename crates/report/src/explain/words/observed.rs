//! Words for what texts of ordinary tools show.

use vmtax_events::observed::{KvmWork, LogMessage, NamedCost, TimedFunction};

use super::findings::FindingWords;

/// A function of the host's kernel that takes long.
pub(super) fn slow_function(function: TimedFunction) -> FindingWords {
    let (means, next) = match function {
        TimedFunction::NumaBalancing => (
            "NUMA balancing unmaps the VM's memory to see who uses it, and vCPUs that fault meanwhile wait",
            "the same with kernel.numa_balancing=0; Linux 6.9 retries such faults without the lock",
        ),
        TimedFunction::IrqBypass => (
            "each irqfd of a VM walks one list of all VMs' interrupts under one lock: starts take longer the more VMs run",
            "Linux 6.17, which has an xarray there; no setting shortens the list",
        ),
        TimedFunction::WorkerThread | TimedFunction::CreateVm => (
            "KVM_CREATE_VM waits: the thread that KVM starts for each VM joins the VMM's cgroup",
            "`vmtax doctor` on the host (cgroup-moves); cgroup v1 in place of v2; kvm.nx_huge_pages=never where the processor is not affected",
        ),
        TimedFunction::SwapSlots | TimedFunction::CreateSlot => (
            "a new memory slot waits for a grace period of SRCU: on Linux 6.18 or later for that of a device that was registered before, else for vCPUs that run",
            "`vmtax doctor` on the host (slot-waits); `vmtax lab run --suite start --kernel IMAGE` with the host's kernel names the function that waits",
        ),
        TimedFunction::UnregisterDevice | TimedFunction::Ioeventfd => (
            "an ioeventfd that is removed waits for a grace period of SRCU: on Linux 6.18 or later for that of a device that was registered before",
            "`vmtax doctor` on the host (slot-waits); `vmtax lab run --suite start --kernel IMAGE` with the host's kernel names the function that waits",
        ),
        TimedFunction::Keyboard => (
            "the guest's boot probes a keyboard controller (i8042), which costs it time whether there is one or not",
            "the same with i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd on the guest's command line, or without i8042 (QEMU: -machine ...,i8042=off) where nobody types",
        ),
        TimedFunction::ClockProbe => (
            "the guest's boot probes an RTC (rtc_cmos) that answers slowly or is not there",
            "the same with an RTC (QEMU: -machine microvm,rtc=on), or a guest's kernel without rtc_cmos",
        ),
        TimedFunction::EndDirtyLogging => (
            "the end of dirty logging takes long: KVM walks the VM's page tables to make huge pages of small ones again, or frees the small ones",
            "the same with another kernel, and with kvm.tdp_mmu=N where it can be changed; `perf record -a -g` while it lasts names the function",
        ),
        TimedFunction::ClearDirtyLog => (
            "clearing the dirty log takes long: KVM protects each page that was written again, and flushes TLBs",
            "the same with another kernel; PML where the processor has it (kvm_intel.pml); `perf record -a -g` while it lasts names the function",
        ),
        TimedFunction::MarkIdle => (
            "marking memory idle takes long: the host clears the accessed bit of each page in the VM's page tables, and flushes its TLBs",
            "who asks: page_idle, DAMON, the multi-generational LRU (/sys/kernel/mm/lru_gen/enabled); larger pages have fewer entries; `perf record -a -g` while it lasts names the function",
        ),
        TimedFunction::Fsync => (
            "an fsync waits until the disk has what was written: of a file that was just copied, all of it",
            "the size of what is written (`grep Dirty /proc/meminfo` before it); for images of VMs a reflink (cp --reflink) or an overlay (qemu-img create -b), which have nothing to write; which process waits: `strace -f -T -e fsync`",
        ),
    };
    let disproof =
        "`bpftrace` or `strace -T -e ioctl` shows that it returns at once while it is slow";
    FindingWords { means: means.to_owned(), disproof, next }
}

/// A message of QEMU or of a kernel.
pub(super) fn message(message: LogMessage) -> FindingWords {
    let (means, next) = match message {
        LogMessage::VhostSections => (
            "vhost loses parts of the guest's memory: pages of Hyper-V's SynIC cut its sections of 2 MiB",
            "QEMU 5.0 or later (commit 76525114736e); before it, no huge pages, or vhost=off, or no hv-synic",
        ),
        LogMessage::VhostFallback => (
            "QEMU moves the packets itself: vhost was asked for and did not start",
            "/dev/vhost-net: the module vhost_net, and who may open it",
        ),
        LogMessage::NoTopoext => (
            "the guest does not see which of its vCPUs are threads of one core: its scheduler places work badly",
            "-cpu host,topoext=on, or -cpu EPYC (QEMU 3.0 or later), and threads=2 in -smp with vCPUs pinned alike",
        ),
        LogMessage::TscScaling => (
            "the guest's TSC has another frequency than the host's, and the processor cannot scale it: the guest may leave tsc as its clock",
            "current_clocksource in the guest",
        ),
        LogMessage::UnstableTsc => (
            "the host's TSC is unstable, so its guests cannot rely on theirs: kvm-clock needs updates, or the clock is a device",
            "current_clocksource on the host and in the guest; `dmesg | grep -i tsc` on the host",
        ),
        LogMessage::FastApicTimer => (
            "the guest asks for an APIC timer that is faster than KVM allows",
            "which timer: kvm:kvm_apic in a recording; the parameter min_timer_period_us of kvm",
        ),
        LogMessage::Stall => (
            "a CPU did not run, or was stuck, for seconds (soft lockup or RCU stall); whether it was stuck or had no processor, the log does not show",
            "steal in the guest's /proc/stat; on the host `perf record -a -e 'kvm:*' -e sched:sched_switch` while it happens",
        ),
        LogMessage::OutOfMemory => (
            "memory ran out, and the kernel ended a process",
            "whose log it is: of the host, it has too little memory for its VMs; `free -m`, VmSwap in /proc/PID/status of the VMM",
        ),
        LogMessage::BadGso => (
            "the guest drops packets of virtio-net whose headers do not fit what is in them: the host's network card or its driver merged them wrongly",
            "the same with `ethtool -K NIC rx-gro-hw off` on the host; with bnxt_en Linux 6.12.6 or 6.14 (commit de37faf41ac5) on the host",
        ),
        LogMessage::UnknownMsrs => (
            "guests read or write MSRs that KVM does not have: each access is an exit, and KVM writes a line of the log for it",
            "who does it in the guest (0x19c is a temperature, as agents read it); kvm.ignore_msrs=1 with kvm.report_ignored_msrs=0 on the host writes no lines",
        ),
        LogMessage::TscJump => (
            "the TSC jumped, as a guest's does when the VM is migrated or stands still: the kernel takes tsc for unstable",
            "whether the VM was migrated or paused then; current_clocksource in the guest (kvm-clock needs no exits); QEMU 2.1 or later, whose kvm-clock does not go back at a migration (commit 9a48bcd1b824)",
        ),
        LogMessage::TscUnused => (
            "the TSC is taken for unstable, as after a migration, but kvm-clock is the clock in use: reading it needs no exits",
            "current_clocksource in the guest, if it is to be sure; look for the slowness elsewhere",
        ),
        LogMessage::TscMarked => (
            "the kernel does not trust the TSC any more; if its clock is then a device (hpet, acpi_pm), each reading of the time by a guest is an exit. Which clock it has, the text does not show",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource where the message comes from: hpet or acpi_pm there is the cause, tsc or kvm-clock is not; on the host `dmesg | grep -i tsc` too",
        ),
        LogMessage::TapOffloads => (
            "the tap has no segmentation and no checksum offload: each packet of 1500 bytes passes the host by itself, where one of 64 KiB would",
            "the same with `ethtool -K TAP tx on tso on`; who turned them off: the VMM (QEMU's vnet_hdr=off of the tap, csum=off or guest_tso4=off of the card; a guest whose driver does not take them) or the network's setup",
        ),
        LogMessage::DefaultCpu => (
            "the guest has one of QEMU's basic processor models: it lacks AVX and more of what the host's has, most of them AES too, so programs take their slow ways",
            "the same with -cpu host (libvirt: <cpu mode='host-passthrough'/>, Proxmox: cpu: host), or with a named model that all hosts share if the VM migrates between different ones; both need KVM",
        ),
        LogMessage::SlowHpet => (
            "reading the HPET takes so long that the kernel cannot check its TSC by it: in a VM the HPET is the VMM's, and each reading is an exit, of a nested one several",
            "current_clocksource where the message comes from: with hpet each reading of the time costs as much, with tsc or kvm-clock the checks alone; of a guest, a VM without HPET (QEMU's -machine hpet=off)",
        ),
        LogMessage::LongTimerInterrupt => (
            "the interrupt of a timer took long once: a guest's CPU had no processor meanwhile, or a timer's function is slow, or the kernel was traced",
            "steal in the guest's /proc/stat while it is slow; on the host `vmtax doctor`, which shows how VMs share processors",
        ),
        LogMessage::UnregisteredMmio => (
            "the guest writes to an address where Cloud Hypervisor has no device: each write is an exit to it, and a line of its log; memory that KVM maps read-only (pmem, discard_writes=on) does that",
            "which memory has the address: /proc/iomem in the guest, and its writes there; Cloud Hypervisor with pull request 1796, which maps such a pmem privately in place of read-only; how many: kvm:kvm_mmio on the host",
        ),
        LogMessage::AsyncPageFault => (
            "a task of the guest waits in an asynchronous page fault: the host fetches the page, from swap, from the file of a snapshot or over a network",
            "VmSwap and the major faults of the VMM on the host, and where a restored VM's memory comes from; a task that waits for ever: whether the VM was restored without the MSRs of asynchronous page faults (MSR_KVM_ASYNC_PF_*)",
        ),
        LogMessage::BrokenRing => (
            "QEMU refuses a request to a virtio device (bogus descriptor or out of resources) and stops the device until the guest resets it: the guest waits for requests that never end. Its ring or its buffers' addresses are wrong, or QEMU cannot map them",
            "the guest's kernel and its driver (which changed last), the same with another version of it; with a bounce buffer or an IOMMU (iommu_platform=on) whether the addresses are below the VM's memory; QEMU's trace events virtqueue_*",
        ),
        LogMessage::CardHangs => (
            "an emulated network card did not send for seconds, and the guest resets it: whether the VMM did not run or its network took no packets, the log does not show",
            "on the host whether the VMM gets its processors (`vmtax doctor`), and packets that the tap drops (`ip -s link`); the same with virtio-net, whose packets take fewer exits than those of an emulated card",
        ),
        LogMessage::OneQueue => (
            "the network card has one queue: one CPU takes all its interrupts and packets; the driver makes as many as there are CPUs when it starts",
            "/proc/interrupts in the guest, and `ethtool -l`; a VM that starts with one CPU and gets more later: the driver again after that (unbind and bind, or modprobe), or the CPUs from the start",
        ),
        LogMessage::BounceBufferFull => (
            "the guest's bounce buffer (swiotlb) is full: devices wait for room in it, or their requests fail; in a confidential VM all I/O passes it",
            "swiotlb=SLOTS on the guest's command line (slots of 2 KiB; `vmtax doctor` in the guest shows how full it was), smaller or fewer requests at once; /sys/kernel/debug/swiotlb/io_tlb_used while it is slow",
        ),
        LogMessage::WaitsForRandom => (
            "a task of the guest waits until its kernel has entropy for random numbers: a VM has few sources of it",
            "virtio-rng (QEMU: -object rng-builtin,id=rng0 -device virtio-rng-pci,rng=rng0), or a guest's kernel that trusts the processor's (random.trust_cpu=on); the guest's log: \"crng init done\" comes when it ends",
        ),
        LogMessage::UncachedFiles => (
            "the guest's files come by 9p without a cache (no cache=, or cache=none): each access of a file is a request to the VMM",
            "the same mount with cache=mmap or cache=fscache, if the host does not change the files meanwhile; or virtiofs; msize= of 131072 or more",
        ),
        LogMessage::NoCoalescing => (
            "virtio-net offers the guest no coalescing of what it receives (Capability): each packet of 1500 bytes passes by itself",
            "the command line of the VM's card: guest_tso4, guest_tso6 and host offloads that are off, a backend that has none (-netdev user); `Get-NetAdapterRsc` again after that",
        ),
        LogMessage::VcpuBlocked => (
            "a vCPU's thread waited in the host's kernel for minutes (its name is CPU 0/KVM or its like): the guest's CPU stood still",
            "what it waits for: the functions below schedule and io_schedule in the log's Call Trace; the same with `cat /proc/TID/stack` on the host while it hangs; dmesg of the host on its disks and memory",
        ),
        LogMessage::VcpuInReclaim => (
            "a vCPU's thread waited for minutes while the host's kernel took memory back (its name is CPU 0/KVM or its like): the host has too little of it, or waits for a page that another task has locked",
            "`free -m` and /proc/pressure/memory on the host, VmSwap and VmLck in /proc/PID/status of the VMM; with deferred_split_scan in the log Linux 4.17 or later, which does not wait for such pages",
        ),
        LogMessage::SlotWaits => (
            "the VMM waited for minutes in KVM while it changed the VM's memory (synchronize_srcu in kvm_swap_active_memslots): KVM waits until no vCPU uses the old memory slots, and one did not end",
            "which vCPU does not end: /proc/PID/task/*/stack of the VMM on the host while it hangs; a newer kernel: a vCPU that sleeps or loops while it holds the slots is an error of its KVM (RISC-V's before 5.19: commit be82abe6a76b)",
        ),
        LogMessage::TimerMissed => (
            "the guest's log says that a timer of its kernel did not fire for seconds (timer wakeup didn't happen): the host did not deliver the interrupt of the timer, or did not run the vCPU then",
            "steal in the guest's /proc/stat: if it stands still while this happens, the timer was lost and the host's kernel or VMM is to be looked at (kvm:kvm_exit, kvm:kvm_vcpu_wakeup and timer events on the host); if it grows, the vCPU had no processor",
        ),
        LogMessage::SplitLocks => (
            "programs lock memory that crosses cache lines (split locks): the host traps each such access, delays the thread that makes it, and logs it; if that is a vCPU's, a program of its guest does",
            "what makes them: the thread that the log names (CPU 0/KVM and its like: a guest); a host booted with split_lock_detect=off traps none, and the sysctl kernel.split_lock_mitigate=0 ends the delay alone",
        ),
        LogMessage::NotifyHangs => (
            "a CPU is stuck in a notification of a virtio device: the write to its register does not return, or is repeated for ever",
            "the host's kernel: before Linux 4.16 KVM skips such a write wrongly where it runs nested (commit d391f1207067); on the host `perf kvm stat live` while it hangs",
        ),
    };
    FindingWords {
        means: means.to_owned(),
        disproof: "the message does not come again while it is slow",
        next,
    }
}

/// Functions in which CPUs are stuck or below which tasks are blocked, what they wait for, and what to look at.
const WAITS: &[(&[&str], &str, &str)] = &[
    // Linux drivers/net/virtio_net.c, `virtnet_send_command`: it spins until the device answers.
    (
        &["virtnet_send_command"],
        "while the network device does not answer a command on its control queue",
        "which features the VMM offers (the guest's /sys/bus/virtio/devices/*/features, VIRTIO_NET_F_CTRL_VQ and VIRTIO_NET_F_CTRL_GUEST_OFFLOADS) and the VMM's log; the same with a newer kernel or VMM",
    ),
    // Linux kernel/smp.c: the sender waits until each receiver has run the function.
    (
        &[
            "smp_call_function",
            "csd_lock_wait",
            "generic_exec_single",
            "flush_tlb_",
            "native_flush_tlb",
            "on_each_cpu",
        ],
        "while other CPUs do not answer its interrupts (IPIs)",
        "steal of all CPUs in the guest's /proc/stat: a vCPU that the host does not run does not answer; on the host `perf record -a -e 'kvm:*' -e sched:sched_switch` while it happens",
    ),
    // Linux kernel/locking/qspinlock.c.
    (
        &[
            "native_queued_spin_lock_slowpath",
            "queued_spin_lock_slowpath",
            "__pv_queued_spin_lock_slowpath",
            "_raw_spin_lock",
            "queued_read_lock_slowpath",
            "queued_write_lock_slowpath",
        ],
        "while another CPU holds a lock",
        "steal in the guest's /proc/stat: if it grows, the holder has no processor (contention); if not, the functions below this one in the log's Call Trace name the lock",
    ),
    // Linux kernel/stop_machine.c, `multi_cpu_stop`.
    (
        &["multi_cpu_stop", "stop_machine"],
        "while not all CPUs have stopped for a change of the kernel",
        "steal of all CPUs in the guest's /proc/stat: a vCPU that the host does not run holds up all others",
    ),
    // Linux drivers/tty/serial/8250: each access of a port of an emulated UART is an exit.
    (
        &[
            "serial8250_",
            "io_serial_in",
            "io_serial_out",
            "wait_for_xmitr",
            "wait_for_lsr",
            "univ8250_console_write",
        ],
        "while it writes to a serial port",
        "the same without console=ttyS0 on the guest's command line, or with quiet; who reads the port on the host; `perf kvm stat record -a` on the host counts the exits",
    ),
    // Linux mm: the host gives memory at the first write.
    (
        &["clear_page", "clear_huge_page", "clear_highpage", "memset_", "copy_page"],
        "while it writes to memory that the host may have to give first",
        "VmSwap and the major faults of the VMM on the host, `free -m` and /proc/pressure/memory there",
    ),
    // Linux drivers/firmware/efi/unaccepted_memory.c, arch/x86/coco.
    (
        &["accept_memory", "try_accept", "tdx_accept_memory", "snp_accept_memory", "pvalidate"],
        "while it accepts memory of a confidential VM",
        "a firmware and a kernel that accept memory when it is used (CONFIG_UNACCEPTED_MEMORY); accept_memory= on the guest's command line",
    ),
    // Linux arch/x86/pci, drivers/pci/access.c: the VMM answers.
    (
        &[
            "pci_conf1_read",
            "pci_conf1_write",
            "pci_mmcfg_read",
            "pci_mmcfg_write",
            "pci_bus_read_config",
            "pci_user_read_config",
            "raw_pci_read",
        ],
        "while it accesses a PCI device's configuration",
        "which device: the lines before it in the log, `lspci -v`; on the host `perf kvm stat record -a` while it happens",
    ),
    // Linux net/9p, fs/fuse: the host's server answers.
    (
        &["p9_client_rpc", "p9_virtio_request"],
        "while the host's 9p server does not answer",
        "what the VMM's 9p threads wait for: `cat /proc/TID/stack` on the host; the file system behind it",
    ),
    (
        &["request_wait_answer", "fuse_simple_request", "__fuse_simple_request"],
        "while a FUSE server, of virtiofs the host's, does not answer",
        "virtiofsd's log, and what its threads wait for: `cat /proc/TID/stack` on the host",
    ),
    // Linux fs/jbd2, block, fs/xfs, mm/filemap.c.
    (
        &[
            "jbd2_",
            "blk_",
            "submit_bio_wait",
            "xfs_",
            "ext4_",
            "btrfs_",
            "wait_on_page",
            "folio_wait",
            "wait_on_buffer",
            "__wait_on_buffer",
            "dm_",
            "scsi_",
            "nvme_",
            "virtblk_",
        ],
        "while a disk or its file system does not answer",
        "`iostat -x 1` in the guest and on the host, and the host's log and storage at that time; whether the VM was paused, saved or migrated then",
    ),
    // Linux net/sunrpc/sched.c.
    (
        &["rpc_wait_bit_killable"],
        "while an NFS server does not answer",
        "the server and the network to it",
    ),
];

/// A function in which a CPU is stuck, or below which a task is blocked. Hostile name.
pub(super) fn stuck_in(function: &str, blocked: bool) -> FindingWords {
    let known = WAITS.iter().find(|(names, ..)| {
        names.iter().any(|name| function == *name || name.len() > 3 && function.starts_with(name))
    });
    let what = if blocked { "a task was blocked for minutes in" } else { "a CPU did not leave" };
    let end = if blocked { "" } else { " for seconds" };
    let (means, next) = match known {
        Some((_, waits, next)) => (
            format!(
                "{what} {function}{end} {waits}; if the host did not run the VM then, it only stood there"
            ),
            *next,
        ),
        None => (
            format!(
                "{what} {function}{end}: whether it waits there or the host did not run it, the log does not show"
            ),
            "steal in the guest's /proc/stat while it happens; the functions below it in the log's Call Trace; on the host `perf record -a -e 'kvm:*' -e sched:sched_switch`",
        ),
    };
    FindingWords {
        means,
        disproof: "the message comes again with other functions each time: then the CPU had no processor",
        next,
    }
}

/// What KVM or VFIO did all the time that a CPU of the host was stuck.
pub(super) fn host_stuck_in(work: KvmWork) -> FindingWords {
    const PAGES: &str = "whether a newer kernel of the host does it too; whether the VM's memory has huge pages, which are 512 times fewer (`vmtax doctor --pages`)";
    let (what, next) = match work {
        KvmWork::EncryptedMemory => (
            "KVM gave the encrypted memory of a confidential VM back, page by page, at the VM's end",
            "whether a newer kernel of the host does it too; how long the end takes by the VM's memory",
        ),
        KvmWork::DeviceUnmapping => (
            "VFIO unmapped a VM's memory from a passed-through device, page by page",
            "whether a newer kernel of the host does it too; huge pages for the VM's memory, which are 512 times fewer; fewer VMs with such devices that end at once",
        ),
        KvmWork::DeviceMapping => (
            "VFIO pinned and mapped a VM's memory for a passed-through device",
            "whether a newer kernel of the host does it too; huge pages for the VM's memory, which are 512 times fewer",
        ),
        KvmWork::DirtyLog => (
            "KVM went through a VM's memory for its log of written pages, as a migration or a snapshot has it",
            PAGES,
        ),
        KvmWork::MemorySlot => (
            "KVM changed a VM's memory slots (a device's memory that moves, hot-plug, dirty logging)",
            PAGES,
        ),
        KvmWork::EndOfVm => ("KVM freed a VM's page tables at the VM's end", PAGES),
        KvmWork::Unmapping => (
            "KVM took pages from a guest that the host moves, shares or frees",
            "which of NUMA balancing, KSM, compaction, swap and a balloon does it: the rest of the stack; `grep -E 'numa_|ksm|compact|pswp' /proc/vmstat` twice",
        ),
        KvmWork::NxRecovery => (
            "KVM made huge pages of small ones again (the mitigation of iTLB multihit)",
            "kvm.nx_huge_pages_recovery_ratio and _period_ms; kvm.nx_huge_pages=never where the guests are trusted (`vmtax doctor`)",
        ),
    };
    FindingWords {
        means: format!("a CPU of the host was stuck for seconds as {what}"),
        disproof: "the host ran under a hypervisor itself, and its own CPU had no processor then",
        next,
    }
}

/// A thread of QEMU that waits in its host's kernel. Hostile name.
pub(super) fn vmm_blocked_in(function: &str) -> FindingWords {
    FindingWords {
        means: format!(
            "a thread of QEMU was blocked for minutes in the host's kernel, below {function}: what it does for the guest (its disks, its monitor) waits as long"
        ),
        disproof: "the host's log names other tasks, and never QEMU's",
        next: "what the rest of the stack is of. A file system or a block device: `iostat -x 1` on the host while it happens, and an I/O thread of QEMU for that disk (-object iothread), which leaves the main loop free. handle_userfault: where the VM's memory comes from; vfio: pinned memory; kvm_destroy_vm: the VM's end",
    }
}

/// Gaps of a boot before lines of a driver. Hostile name.
pub(super) fn boot_gaps(before: &str) -> FindingWords {
    let (why, next) = match before {
        // Linux 6.14, "PCI: Batch BAR sizing operations": memory decoding is turned off and on around each BAR, and the VMM maps them anew.
        "pci" | "pcieport" | "vfio-pci" | "pci_bus" => (
            "; with passed-through devices of large BARs each BAR that is sized lets the VMM unmap and map them",
            "which device: `lspci -vv` in the guest shows its BARs; the same without that device; Linux 6.14 or later in the guest sizes all BARs of a device at once; `perf kvm stat record -a` on the host during the boot",
        ),
        _ => (
            "; a gap shows when nothing was printed, and not why (and of an excerpt not even that)",
            "initcall_debug on the guest's command line, which times each call (`dmesg | grep initcall`); `perf kvm stat record -a` on the host during the boot; the guest's steal",
        ),
    };
    FindingWords {
        means: format!("the boot's log stands still before lines of {before}{why}"),
        disproof: "initcall_debug shows that the calls return at once: then printing itself is slow (a serial console)",
        next,
    }
}

/// What a text names.
pub(super) fn named_cost(cost: NamedCost) -> FindingWords {
    let (means, next) = match cost {
        NamedCost::Userfaultfd => (
            "the text names userfaultfd and does not show what it costs; if it serves the VM's memory, each first access to a page waits for a process of the host",
            "how many and how long: `perf trace -F all -p PID` of the VMM or kvm:kvm_page_fault on the host; the server's counters; the same with memory that is there from the start",
        ),
        NamedCost::IommuMap => (
            "the text names the mapping of the VM's memory for a passed-through device and does not show what it costs; it pins all of it, and takes longer with more memory and smaller pages",
            "`strace -f -T -e ioctl` of the VMM at its start (VFIO_IOMMU_MAP_DMA, IOMMU_IOAS_MAP), and the same with huge pages",
        ),
        NamedCost::AcceptMemory => (
            "the text names the acceptance of a confidential VM's memory and does not show what it costs; each page is accepted once, by the firmware or at first use",
            "the time of each stage of the boot; a firmware and a kernel that accept at first use (CONFIG_UNACCEPTED_MEMORY); `perf kvm stat record -a` on the host during the boot",
        ),
        NamedCost::HostFaults => (
            "the text names functions by which KVM maps memory at first touch and does not show what they cost; each page is mapped once, or again after it was taken",
            "how many: `perf kvm stat record -a sleep 10` on the host; minor and major faults of the VMM (`pidstat -r -p PID 1`)",
        ),
        NamedCost::Fork => (
            "the text names dup_mmap and does not show what it costs; a large process that forks copies its page tables under the lock of its memory",
            "`strace -f -T -e clone,clone3,fork,vfork,execve` of the process that starts VMMs, and its size (VmRSS); the same with vfork or posix_spawn",
        ),
        NamedCost::SplitLocks => (
            "the text names the host's handling of split locks and does not show what it costs; it delays the thread of a vCPU whose guest locks across cache lines",
            "`dmesg | grep split` on the host; the same with the sysctl kernel.split_lock_mitigate=0, which ends the delay alone",
        ),
        NamedCost::SerialConsole => (
            "the text names console=ttyS and does not show what it costs; the port is emulated, and each byte of the kernel's console is an exit or several",
            "the boot's time without console=ttyS0 or with quiet, and `perf kvm stat record -a` on the host during it",
        ),
        NamedCost::Balloon => (
            "the text names a balloon and does not show what it costs; while it inflates or deflates the guest's pages are given back and faulted in again",
            "`virsh dommemstat VM` or QEMU's `info balloon` over time beside the work; a profile of the guest at that time",
        ),
        NamedCost::SmallPages => (
            "the text names pages of 4 KiB, of the VM's memory or of something else, and does not show what they cost; a VM with such memory has more faults and longer page walks than with 2 MiB",
            "`vmtax doctor --pages` on the host while the VM runs; the same load with huge pages",
        ),
        NamedCost::Steal => (
            "the text names steal and does not show what it costs; it is the guest's processor time that its host gave to others, where the counter is right",
            "`vmstat 1` or `mpstat 1` in the guest while it is slow, as text to `vmtax explain`; on the host `perf sched record`",
        ),
        NamedCost::ClockCalls => (
            "strace shows calls for the time as system calls and not what they cost; a clock that can be read without a system call is answered by the vDSO, and strace does not see that",
            "current_clocksource in the guest: tsc, kvm-clock and Hyper-V's need no call; with another one `strace -c` counts the calls",
        ),
        NamedCost::HostCache => (
            "the text has a benchmark and a VMM's command line that opens the disk's file without O_DIRECT; what it measures may be the host's page cache",
            "the same with cache=none (QEMU) or direct=on (Cloud Hypervisor), and with a file larger than the host's memory; direct=1 in the guest passes the guest's cache alone",
        ),
        NamedCost::ShadowPaging => (
            "the text names nested paging (NPT, EPT) that is off and does not show what that costs; without it each change of the guest's page tables is an exit, and what is faster so may have been slow for another reason",
            "the same load with and without it, each with `perf kvm stat record -a sleep 10` on the host, and `vmtax diff` of the two; `vmtax doctor` shows whether it is on",
        ),
        NamedCost::Unmapping => (
            "the text names functions by which KVM gives up pages of the guest's memory (kvm_unmap_hva_range and its callers) because the host moves, shares or takes them; it does not show what that costs",
            "who does it: numa_pages_migrated, pgmigrate_success, thp_split_page and pswpout of the host's /proc/vmstat over time, and /sys/kernel/mm/ksm/pages_shared; the same with the sysctl kernel.numa_balancing=0",
        ),
        NamedCost::Plan9 => (
            "the text names files that a VM has of its host by 9p and does not show what they cost; each operation is a request to the VMM, which makes the call in the guest's place",
            "the operations: `strace -f -c -p PID` of the VMM, and `perf top -p PID`; the same files by virtiofs or on a disk of the VM; msize=, cache= and the number of open files of the mount",
        ),
        NamedCost::Numa => (
            "the text names NUMA and does not show what it costs; memory of another node takes longer, and vCPUs that are kept on one node share its processors",
            "`numastat -p PID` of the VMM, `virsh vcpuinfo VM` and `lscpu -e` on the host: whose memory, how many vCPUs for each core; `perf sched record` for waits",
        ),
        NamedCost::DirtyLogging => (
            "the text names the tracking of written pages (dirty logging) and does not show what it costs; while it is on, huge pages are mapped in small ones and first writes exit, and its start and its end walk all of the VM's memory",
            "`perf trace -s -p PID` or `strace -f -T -e ioctl` of the VMM for KVM_SET_USER_MEMORY_REGION and KVM_GET_DIRTY_LOG; `perf kvm stat record -a sleep 10` while it is on and while it is off",
        ),
        NamedCost::UnstableTsc => (
            "the text names an unstable TSC and does not show which clock is in use; a kernel that distrusts its TSC takes another clock, and where that is a device (HPET, ACPI PM) each reading is an exit",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource in the guest and on the host, as text to `vmtax explain`; `dmesg | grep -i tsc` of both",
        ),
        NamedCost::Quota => (
            "the text names a CPU quota or its counters (nr_throttled, throttled_usec), and not of how many periods; once it is used up, by vCPUs or by the VMM's other threads, all of them wait until the period ends",
            "cpu.stat of the VM's cgroup, whole, as text to `vmtax explain`; the same load with a larger quota or a burst (cpu.max, cpu.max.burst)",
        ),
        NamedCost::IdleSpin => (
            "the text names a guest whose idle processors spin, and does not show what that costs; each of them takes a processor of the host all the time, whatever it has to do",
            "`top -H -p PID` of the VMM while the guest is idle; the same with an idle loop that halts; which processors the vCPUs share (`vmtax doctor` on the host)",
        ),
        NamedCost::CpuModel => (
            "the text names a model of processor for the VM and does not show what it costs; instructions that the host has and the model lacks are hidden (AES, AVX-512), and programs take slower code",
            "the flags line of /proc/cpuinfo in the guest beside the host's; the same with -cpu host",
        ),
        NamedCost::IdleWindows => (
            "the text names a Windows that is idle and takes processor time, and does not show for what; without Hyper-V's enlightenments its timers are devices (RTC, HPET) that interrupt it thousands of times a second",
            "`perf kvm stat record -a sleep 10` on the host while it is idle; `vmtax doctor` on the host checks hv_stimer, hv_time and their like",
        ),
        NamedCost::IoUring => (
            "the text names QEMU's aio=io_uring and does not show what it costs; QEMU's loop waits for its rings, and versions differ in when it wakes",
            "the same with aio=native (cache=none) and with aio=threads; `strace -f -T -p PID` of QEMU while a request waits",
        ),
        NamedCost::Tcg => (
            "the text names TCG, by which QEMU translates a guest's instructions, and does not show what it costs; it is many times slower than KVM, and timeouts that fit a processor may not fit it",
            "`info kvm` in QEMU's monitor, and /dev/kvm on the host; the same with -accel kvm",
        ),
        NamedCost::MmuLock => (
            "the text names the lock of KVM's page tables (MMU lock) and not who holds it; faults of many vCPUs at once, dirty logging and memory that is taken away take it",
            "`perf lock contention -ab` on the host, and `perf record -a -g -- sleep 10`, whose `perf report --stdio --no-children` vmtax reads; which Linux: since 5.10 faults of TDP share it",
        ),
        NamedCost::BounceBuffers => (
            "the text names bounce buffers (swiotlb) and does not show what they cost; each request is copied through them, and a lock protects the free ones (since Linux 6.0 one for each area)",
            "`perf record -a -g` in the guest: swiotlb_* and memcpy; the same without swiotlb=force, if the guest is not confidential; /sys/kernel/debug/swiotlb/io_tlb_used",
        ),
        NamedCost::KvmClock => (
            "the text names kvm-clock and does not show what is wrong with it; where KVM updates its master clock (a vCPU is added, a migration), its time may jump by what both ways of counting differ",
            "current_clocksource in the guest, `dmesg | grep -i clock`, and the guest's time beside the host's before and after; the same with tsc, where it is stable",
        ),
        NamedCost::WallClock => (
            "the text names a guest's time of day and does not show why it is behind or ahead; a guest that was paused or restored goes on with the old time until somebody sets it, and lost ticks of an emulated timer make it slow",
            "`date` in the guest and on the host before and after a pause; chrony with /dev/ptp0 (ptp_kvm) or the guest agent's guest-set-time; a Windows' clock source",
        ),
        NamedCost::Hpet => (
            "the text names the HPET and does not show what it costs; it is emulated, each access to it is an exit to the VMM, and as a periodic timer it wakes the VMM",
            "current_clocksource in the guest; `perf kvm stat record -a sleep 10` on the host and its MMIO accesses (0xfed00000); the same with -machine hpet=off, a Windows with hv_time and hv_stimer",
        ),
        NamedCost::HyperV => (
            "the text names Hyper-V's enlightenments and does not show what they change; without hv_time and hv_stimer a Windows reads emulated clocks and is woken by emulated timers, and some versions are slower with one of them",
            "`vmtax doctor` on the host checks which are on; `perf kvm stat record -a sleep 10` with and without the one that is suspected",
        ),
        NamedCost::Uart => (
            "the text names an emulated serial port and does not show what it costs; each byte is an exit or several, and whoever writes much to it waits",
            "`perf kvm stat record -a sleep 10` on the host while it is slow (ports 0x3f8 and 0x2f8); the same with a virtio console, or less output",
        ),
        NamedCost::Ipis => (
            "the text names interrupts between vCPUs (IPIs) and does not show what they cost; where the processor does not deliver them by itself (AVIC, IPI virtualization) each is an exit, and the sender may wait for a vCPU that does not run",
            "`perf kvm stat record -a sleep 10` on the host (writes of the ICR, AVIC's incomplete IPIs); CAL and TLB in the guest's /proc/interrupts before and after; steal in the guest",
        ),
        NamedCost::HaltPolling => (
            "the text names halt polling and does not show what it gains or costs; it takes a processor's time so that a vCPU that halts for a short time wakes sooner",
            "halt_poll_* and halt_wait_* of `kvm_stat -1` on the host, how long halts last (`perf kvm stat record -a sleep 10`), and the processor's time of idle vCPUs",
        ),
        NamedCost::PauseLoops => (
            "the text names vCPUs that spin for locks and does not show for whom they wait; where the holder of a lock does not run, all others spin",
            "steal in the guest (`mpstat -P ALL 1`); vCPUs of all VMs and processors of the host; PAUSE exits in `perf kvm stat record -a sleep 10`",
        ),
        NamedCost::Apicv => (
            "the text names APICv, AVIC or posted interrupts and does not show whether they are at work; where something inhibits them each interrupt and each EOI may be an exit",
            "`vmtax doctor` on the host; kvm:kvm_apicv_inhibit_changed; `perf kvm stat record -a sleep 10` (APIC_ACCESS, EOI_INDUCED, AVIC_*)",
        ),
        NamedCost::Vulnerabilities => (
            "the text names mitigations of processor bugs and does not show what they cost; some act at each exit or each switch, in the host, the guest or both",
            "lscpu of host and guest (Vulnerability lines), as text to `vmtax explain`; the same load with one of them off, where that is allowed",
        ),
        NamedCost::Virtiofs => (
            "the text names files by virtiofs and does not show what they cost; each operation that no cache answers is a request to virtiofsd",
            "virtiofsd's --cache and --thread-pool-size, and `strace -f -c -p PID` of it; the same files on a disk of the VM",
        ),
        NamedCost::DiskCache => (
            "the text names a disk's cache mode or flushes and does not show what they cost; with writethrough and directsync each write waits for the host's disk, with the others each flush does",
            "flushes and waits of the host's disk: `iostat -x 1`, whose output vmtax reads; fio with --fsync=1 in the guest and on the host; the same with another cache mode",
        ),
        NamedCost::ImageFormat => (
            "the text names a disk image (qcow2 and its like) and does not show what it costs; first writes allocate clusters, and tables that are not in QEMU's cache are read for requests",
            "the same load on a raw file or device; `qemu-img check` and the image's size beside l2-cache-size; a second run over the same blocks",
        ),
        NamedCost::Iothreads => (
            "the text names QEMU's main loop or I/O threads and does not show what they do; devices without an I/O thread of their own share the main loop and its lock",
            "`top -H -p PID` of QEMU while it is slow, as text to `vmtax explain`; `perf record -g -p PID`; the same with an iothread for the disk",
        ),
        NamedCost::Vhost => (
            "the text names vhost and does not show what it costs; its thread serves the device's queues on one processor of the host, which others may want",
            "`top -H` on the host (vhost-PID), the processors of that thread and of the vCPUs (`vmtax doctor`), and `perf kvm stat record -a sleep 10`",
        ),
        NamedCost::Queues => (
            "the text names queues of a device and does not show whether they are too few; one queue has its interrupts on one vCPU",
            "`ethtool -l` or /sys/block/*/mq in the guest; its /proc/interrupts before and after; processors' time by vCPU",
        ),
        NamedCost::Offloads => (
            "the text names offloads of a network card and does not show what they change; without them each packet of 1,500 bytes is work of its own, and large ones may not pass every network",
            "`ethtool -k` of guest, tap and bridge, as text to `vmtax explain`; packets a second (`sar -n DEV 1`); iperf3 with and without",
        ),
        NamedCost::EmulatedCards => (
            "the text names an emulated card or disk and does not show what it costs; each access to its registers is an exit to the VMM",
            "`perf kvm stat record -a sleep 10` on the host (MMIO and ports by address); the same with virtio, where the guest has drivers",
        ),
        NamedCost::Swapping => (
            "the text names swap and does not show what it costs; a page of a guest that the host has swapped out is a fault that waits for a disk",
            "si and so of `vmstat 1` on the host and in the guest, as text to `vmtax explain`; VmSwap of the VMM",
        ),
        NamedCost::Pinning => (
            "the text names pinning and does not show what it changes; vCPUs on one core or beside other work wait for each other, and isolated processors are not balanced",
            "`vmtax doctor` on the host, which compares all VMs' processors; steal in the guest; `perf sched record` on the host",
        ),
        NamedCost::Pmu => (
            "the text names performance counters of a guest and does not show what they cost; each write of their registers is an exit, by which KVM makes events of the host again",
            "`perf kvm stat record -a sleep 10` on the host, MSRs by number; the same with pmu=off, or without the profiler in the guest",
        ),
        NamedCost::Smm => (
            "the text names SMM and does not show what it costs; each entry and exit of it rebuilds KVM's page tables for the vCPU",
            "kvm:kvm_enter_smm beside the exits; which calls of the firmware the guest makes; the same with smm=off, where no Secure Boot needs it",
        ),
        NamedCost::ArmWaits => (
            "the text names WFI or WFE and does not show what they cost; each that traps is an exit, after which the vCPU may go to sleep",
            "kvm:kvm_wfx_arm64 and kvm:kvm_exit on the host; wfi_exit_stat and wfe_exit_stat of `kvm_stat -1`",
        ),
        NamedCost::Timers => (
            "the text names a guest's timers and does not show what they cost; each that is set may be an exit, and each that expires wakes a vCPU",
            "`perf kvm stat record -a sleep 10` on the host (MSRs, PREEMPTION_TIMER, halts); LOC of the guest's /proc/interrupts before and after",
        ),
        NamedCost::Entropy => (
            "the text names random numbers that a guest waits for, and does not show how long; a guest without RDRAND and without a driver for virtio-rng collects them slowly at its boot",
            "`dmesg | grep -i crng` in the guest: when it was ready; rdrand in the flags of /proc/cpuinfo; /sys/devices/virtual/misc/hw_random/rng_current; CONFIG_HW_RANDOM_VIRTIO of its kernel",
        ),
        NamedCost::OnHyperV => (
            "the text names a VMM that runs above Hyper-V (VirtualBox with NEM, QEMU with WHPX) and does not show what that costs; each exit goes through Hyper-V's interface, which is slower than VT-x or SVM by itself",
            "the VMM's log: whether it has VT-x or AMD-V itself; the same with Hyper-V, VBS and memory integrity off, where the host's owner allows that",
        ),
        NamedCost::Nested => (
            "the text names a guest of a guest and does not show what it costs; each exit of it is several of the outer guest",
            "`perf kvm stat record -a sleep 10` on the outermost host, and `vmtax explain` of it",
        ),
    };
    FindingWords {
        means: means.to_owned(),
        disproof: "a measurement shows that it takes no time here",
        next,
    }
}
