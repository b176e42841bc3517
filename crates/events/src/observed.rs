//! What texts of ordinary tools show of a VM or its host: no exits, and no profile.

use crate::words::words;

words! {
    /// A clock that is a device: each reading by a guest is an exit.
    pub enum DeviceClock {
        Hpet = "hpet",
        /// The ACPI PM timer.
        AcpiPm = "acpi_pm",
    }
}

words! {
    /// A thread of a host's kernel that works for VMs, or against them.
    pub enum KernelThread {
        /// Merges pages.
        Ksmd = "ksmd",
        /// Moves pages to make huge ones.
        Kcompactd = "kcompactd",
        /// Makes huge pages of small ones.
        Khugepaged = "khugepaged",
        /// Takes memory back.
        Kswapd = "kswapd",
        /// Ticks of KVM's PIT.
        KvmPit = "kvm-pit",
    }
}

words! {
    /// What KVM or VFIO does for a VM at once, in the kernel of its host.
    pub enum KvmWork {
        /// Gives the memory of an SEV guest, or of a TD, back.
        EncryptedMemory = "encrypted-memory",
        /// Unmaps memory from a passed-through device.
        DeviceUnmapping = "device-unmapping",
        /// Pins and maps memory for a passed-through device.
        DeviceMapping = "device-mapping",
        /// Starts, reads or ends the log of written pages.
        DirtyLog = "dirty-log",
        /// Changes a memory slot of the VM.
        MemorySlot = "memory-slot",
        /// Ends a VM.
        EndOfVm = "end-of-vm",
        /// Takes pages from the guest which the host moves, shares or frees.
        Unmapping = "unmapping",
        /// Makes huge pages of small ones again that were executed.
        NxRecovery = "nx-recovery",
    }
}

words! {
    /// A function of the host's kernel that was timed.
    pub enum TimedFunction {
        /// Scanning of NUMA balancing.
        NumaBalancing = "task_numa_work",
        /// Registering an interrupt that may bypass KVM.
        IrqBypass = "irq_bypass_register_consumer",
        /// The thread that KVM starts for each VM.
        WorkerThread = "kvm_vm_create_worker_thread",
        /// KVM_CREATE_VM as a whole.
        CreateVm = "KVM_CREATE_VM",
        /// A memory slot comes into use, or goes.
        SwapSlots = "kvm_swap_active_memslots",
        /// A new memory slot as a whole.
        CreateSlot = "KVM_SET_USER_MEMORY_REGION",
        /// A device leaves a VM's bus.
        UnregisterDevice = "kvm_io_bus_unregister_dev",
        /// An ioeventfd comes or goes.
        Ioeventfd = "KVM_IOEVENTFD",
        /// A guest's keyboard controller is probed in its boot.
        Keyboard = "i8042",
        /// A guest's RTC is probed in its boot.
        ClockProbe = "rtc_cmos",
        /// A file is written to the disk.
        Fsync = "fsync",
        /// KVM's tracking of written pages ends: a step of its selftest dirty_log_perf_test, as are these.
        EndDirtyLogging = "Disabling dirty logging",
        /// Pages that were written are tracked anew.
        ClearDirtyLog = "clear dirty log",
        /// The host asks which pages were accessed: a step of access_tracking_perf_test.
        MarkIdle = "Mark memory idle",
    }
}

words! {
    /// A mitigation of the host's processor that makes entries and exits, or what the host does behind them, dearer.
    pub enum HostMitigation {
        /// IBRS at each entry of the kernel.
        Ibrs = "retbleed: IBRS",
        /// A page table for each side.
        Pti = "meltdown: PTI",
        /// Flushes of the first cache at entries of the guest.
        L1Flush = "l1tf: cache flushes",
        /// Buffers are cleared at entries of the guest.
        ClearBuffers = "mds: clear CPU buffers",
        /// The predictors of branches are flushed at each exit.
        ExitBarrier = "IBPB at each exit",
        /// They are flushed before the VMM goes on behind an exit.
        UserBarrier = "vmscape: IBPB before the VMM runs",
    }
}

words! {
    /// A message of QEMU or of a kernel that says one thing.
    pub enum LogMessage {
        /// vhost lost memory sections: those of Hyper-V's SynIC cut them.
        VhostSections = "vhost-sections",
        /// QEMU fell back to its own network.
        VhostFallback = "vhost-fallback",
        /// The guest of an AMD host does not see its threads.
        NoTopoext = "no-topoext",
        /// The guest's TSC has another frequency than the host's.
        TscScaling = "tsc-scaling",
        /// The host's TSC is unstable.
        UnstableTsc = "unstable-tsc",
        /// The guest asks for a timer of its APIC that is too fast.
        FastApicTimer = "fast-apic-timer",
        /// A vCPU did not run, or was stuck, for seconds.
        Stall = "soft-lockup-or-rcu-stall",
        OutOfMemory = "out-of-memory",
        /// The guest drops packets whose headers of virtio-net are wrong.
        BadGso = "bad-gso",
        /// Guests access MSRs that KVM does not have, and each access is logged.
        UnknownMsrs = "unknown-msrs",
        TscJump = "tsc-jump",
        /// The TSC jumped, and kvm-clock is the clock in use.
        TscUnused = "tsc-unused",
        /// A notification of a virtio device does not return.
        NotifyHangs = "notify-hangs",
        /// The kernel takes the TSC for unstable, and which clock it took instead is not in the text.
        TscMarked = "tsc-marked",
        /// A VM's tap has no offloads of segmentation and checksums.
        TapOffloads = "tap-offloads",
        /// The guest's processor is QEMU's default model, or its like.
        DefaultCpu = "default-cpu",
        /// Readings of the HPET are too slow for the watchdog of clocks.
        SlowHpet = "slow-hpet",
        /// The interrupt of a timer took long.
        LongTimerInterrupt = "long-timer-interrupt",
        /// The guest writes to addresses that no device of Cloud Hypervisor has.
        UnregisteredMmio = "unregistered-mmio",
        /// A task of the guest waits for memory that the host fetches.
        AsyncPageFault = "async-page-fault",
        /// A network card was set up with one queue.
        OneQueue = "one-queue",
        /// A guest's bounce buffer is full.
        BounceBufferFull = "bounce-buffer-full",
        /// A task of the guest waits until there are random numbers.
        WaitsForRandom = "waits-for-random",
        /// A guest's files come by 9p without a cache.
        UncachedFiles = "uncached-files",
        /// virtio-net of Windows cannot coalesce what it receives.
        NoCoalescing = "no-coalescing",
        /// A vCPU's thread waited in the host's kernel for minutes.
        VcpuBlocked = "vcpu-blocked",
        /// It waited there while the host took memory back.
        VcpuInReclaim = "vcpu-in-reclaim",
        /// A VMM's change of a memory slot waited for minutes for readers of the old slots.
        SlotWaits = "slot-waits",
        /// A kernel's log says that a timer of its own did not wake it.
        TimerMissed = "timer-missed",
        /// A request to a virtio device has descriptors that QEMU refuses: it stops the device.
        BrokenRing = "broken-ring",
        /// A network card that a VMM emulates did not send for seconds.
        CardHangs = "card-hangs",
        /// The host traps accesses with a lock that cross cache lines, and delays who makes them.
        SplitLocks = "split-locks",
    }
}

words! {
    /// Something that a text names in words and that is a known cost of VMs; whether it is the cost here, the text does not show.
    pub enum NamedCost {
        /// Memory comes by a process of the host.
        Userfaultfd = "userfaultfd",
        /// The guest's memory is mapped and pinned for a passed-through device.
        IommuMap = "iommu-map",
        /// A confidential guest accepts its memory.
        AcceptMemory = "memory-acceptance",
        /// The guest's memory is mapped at first touch.
        HostFaults = "host-faults",
        /// The page tables of a large process are copied.
        Fork = "fork",
        /// The host delays who makes split locks.
        SplitLocks = "split-lock-delay",
        /// The guest's kernel writes to a serial port.
        SerialConsole = "serial-port",
        Balloon = "balloon",
        /// The guest's memory has pages of 4 KiB.
        SmallPages = "pages-of-4-kib",
        /// Processor time that the host gave to others.
        Steal = "steal-in-words",
        /// System calls for the time.
        ClockCalls = "clock-calls",
        /// A guest of a guest.
        Nested = "nested",
        /// A guest's disk is a file that goes through the host's page cache.
        HostCache = "host-page-cache",
        /// The guest's memory is mapped by shadow page tables, or was for a trial.
        ShadowPaging = "nested-paging-off",
        /// The host takes pages of the guest's memory away, to move or to share them.
        Unmapping = "unmapping",
        /// Files of the host by 9p.
        Plan9 = "9p",
        /// Memory or processors of several NUMA nodes.
        Numa = "numa",
        /// KVM tracks which pages of the guest are written.
        DirtyLogging = "dirty-logging",
        /// A kernel does not trust its TSC.
        UnstableTsc = "unstable-tsc",
        /// The CPU quota of a cgroup.
        Quota = "quota-in-words",
        /// A guest whose idle processors spin.
        IdleSpin = "idle-spin",
        /// A named model of processor, which may lack instructions that the host has.
        CpuModel = "cpu-model",
        /// A Windows that is idle and takes processor time.
        IdleWindows = "idle-windows",
        /// QEMU's disks by io_uring.
        IoUring = "io-uring",
        /// A guest whose instructions QEMU translates.
        Tcg = "tcg",
        /// The lock of KVM's page tables.
        MmuLock = "mmu-lock-in-words",
        /// Buffers that a guest copies its I/O through.
        BounceBuffers = "bounce-buffers",
        /// KVM's paravirtual clock.
        KvmClock = "kvm-clock",
        /// A guest's time of day.
        WallClock = "wall-clock",
        /// Random numbers that a guest waits for.
        Entropy = "random-numbers",
        /// A VMM of Windows above Hyper-V.
        OnHyperV = "above-hyper-v",
        /// The HPET, which VMMs emulate.
        Hpet = "hpet",
        /// What a Windows is told of its hypervisor.
        HyperV = "hyper-v-enlightenments",
        /// A serial port of the VM.
        Uart = "serial-port-emulated",
        /// Interrupts between vCPUs.
        Ipis = "ipis",
        /// Polling before a vCPU halts.
        HaltPolling = "halt-polling",
        /// vCPUs that spin for a lock.
        PauseLoops = "pause-loops",
        /// Interrupts that the processor delivers by itself.
        Apicv = "apicv",
        /// What kernels do against speculation.
        Vulnerabilities = "mitigations-in-words",
        /// Files of the host by virtiofs.
        Virtiofs = "virtiofs",
        /// How QEMU opens a disk's file, and flushes.
        DiskCache = "disk-cache",
        /// The format of a disk's image.
        ImageFormat = "disk-image",
        /// QEMU's threads that serve devices.
        Iothreads = "qemu-main-loop",
        /// virtio devices that the host's kernel serves.
        Vhost = "vhost-in-words",
        /// The queues of a device.
        Queues = "device-queues",
        /// What a network card does in place of the kernel.
        Offloads = "offloads",
        /// Cards and disks that no guest needs.
        EmulatedCards = "emulated-devices",
        /// Memory that is on a disk.
        Swapping = "swap",
        /// Which processors vCPUs may use.
        Pinning = "pinning",
        /// A guest's performance counters.
        Pmu = "vpmu",
        /// The processor's mode of the firmware.
        Smm = "smm",
        /// WFI and WFE of arm64.
        ArmWaits = "wfi",
        /// A guest's timers.
        Timers = "timer-in-words",
    }
}

/// A name that is short: of a function, of a driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortName {
    bytes: [u8; ShortName::MOST],
    length: u8,
}

impl ShortName {
    /// Bytes that it has at most.
    pub const MOST: usize = 48;

    /// `None` if it is longer, empty, or has other characters than those of names.
    pub fn new(name: &str) -> Option<ShortName> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        let length = u8::try_from(name.len()).ok()?;
        let mut bytes = [0; ShortName::MOST];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        (length > 0 && name.bytes().all(is_of_name)).then_some(ShortName { bytes, length })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl std::fmt::Debug for ShortName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self.as_str(), f)
    }
}

/// One thing that a text shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observed {
    /// The part of a guest's processor time that its host gave to others.
    Steal(f64),
    /// Periods of a CPU quota, and those in which it was used up.
    Throttled {
        /// In which it was used up.
        throttled: u64,
        periods: u64,
    },
    /// The clock that is in use is a device.
    Clock(DeviceClock),
    /// A thread of the kernel takes this part of a processor.
    Thread(KernelThread, f64),
    /// Memory that goes to swap and comes back, KiB a second.
    Swapping {
        /// To swap.
        out: f64,
        /// From swap.
        back: f64,
    },
    /// The part of a guest's interrupts that are on the PIT's line, or on the RTC's, of so many.
    Line {
        /// The RTC's; else the PIT's.
        rtc: bool,
        count: u64,
        /// Of all lines and vectors.
        all: u64,
    },
    /// KVM cannot be used.
    NoKvm,
    /// The counter of stolen time shows more than there was.
    StealCounter,
    /// The counter of stolen time falls.
    StealFalls,
    /// A guest is idle in this part of its time by its own counters, and its host has so many processors busy for it.
    IdleInside { idle: f64, busy: f64 },
    /// KVM changed for how long it polls for a halted vCPU: so often, and to this at most, ns.
    HaltPolls { changes: u64, most_ns: u64 },
    /// A guest writes pages again about as fast as its migration sends them, both a second, and the pause that is allowed; 0 where it is not known.
    MigrationBehind { dirtied: f64, sent: f64, limit_ms: f64 },
    /// A CPU did not leave this function for seconds.
    StuckIn(ShortName),
    /// A CPU of a host did not leave this work for seconds.
    HostStuckIn(KvmWork),
    /// A task was blocked for minutes below this function.
    BlockedIn(ShortName),
    /// The same of a thread of QEMU that is no vCPU's.
    VmmBlockedIn(ShortName),
    /// Gaps of a boot's log, the lines behind which are mostly of one driver or subsystem.
    BootGaps {
        count: u32,
        /// Of them all, ns.
        ns: u64,
        /// From the first line to the last, ns.
        all_ns: u64,
        before: ShortName,
    },
    /// A text names it, by this word.
    Named(NamedCost, ShortName),
    /// The threads of so many vCPUs of one VM, all that are shown, ran on this processor last.
    OneProcessor { vcpus: u32, processor: u32 },
    /// A disk, by its name, is busy in this part of the time, and a request to it takes so many milliseconds.
    Disk { name: ShortName, busy: f64, await_ms: f64 },
    /// A function took this long at most, ns.
    Timed(TimedFunction, u64),
    /// A mitigation is at work.
    Mitigation(HostMitigation),
    /// vCPUs were ready and waited for a processor, in this part of the time in which they ran or were ready.
    Delayed(f64),
    /// vCPUs' threads that could run again waited for a processor: so often, this long on average and at most, ns.
    LateRuns { count: u64, mean_ns: u64, most_ns: u64 },
    /// vCPUs' threads waited for locks so often, and the one that waited most for so long, ns.
    LockWaits {
        /// Of all of them.
        count: u64,
        /// Of one.
        most_ns: u64,
    },
    /// vCPUs' threads in a list of what runs: how many, the most that one has of a processor, and the number of its vCPU (QEMU's `CPU 0/KVM`).
    Vcpus(u32, f64, Option<u32>),
    /// The most that the kernel has of a processor of a host that runs guests.
    HostKernel(f64),
    /// A message was found.
    Message(LogMessage),
    /// A VMM's memory is on more than one NUMA node.
    Nodes {
        /// The node that has most of it.
        most: u32,
        /// The node that has most of the rest.
        next: u32,
        /// The part that is not on the first.
        elsewhere: f64,
    },
    /// A pin of the I/O APIC is raised and lowered for a device.
    DeviceLine {
        gsi: u32,
        /// Its part of all changes of lines.
        share: f64,
    },
}
