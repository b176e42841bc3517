//! Names in prose, call chains and excerpts that are known costs of VMs. A name shows no cost: what it may mean is said, and what to measure.

use vmtax_events::observed::{NamedCost, Observed, ShortName};

use super::{lines, number};

/// Names, each with its source. More than one of a text is said.
const NAMES: &[(&str, NamedCost)] = &[
    // Linux Documentation/admin-guide/mm/userfaultfd.rst.
    ("userfaultfd", NamedCost::Userfaultfd),
    ("--uffd", NamedCost::Userfaultfd),
    // Linux drivers/iommu/iommufd/ioas.c, drivers/vfio/vfio_iommu_type1.c.
    ("IOMMU_IOAS_MAP", NamedCost::IommuMap),
    ("VFIO_IOMMU_MAP_DMA", NamedCost::IommuMap),
    ("vfio_pin_pages_remote", NamedCost::IommuMap),
    ("vfio_pin_map_dma", NamedCost::IommuMap),
    // Intel, TDX module: TDG.MEM.PAGE.ACCEPT; Linux drivers/firmware/efi/unaccepted_memory.c; AMD APM, PVALIDATE.
    ("TDG.MEM.PAGE.ACCEPT", NamedCost::AcceptMemory),
    ("TDH.MEM.PAGE.AUG", NamedCost::AcceptMemory),
    ("accept_memory", NamedCost::AcceptMemory),
    ("unaccepted memory", NamedCost::AcceptMemory),
    ("PVALIDATE", NamedCost::AcceptMemory),
    // Linux arch/x86/kvm/vmx/vmx.c, svm/svm.c, mmu/mmu.c.
    ("handle_ept_violation", NamedCost::HostFaults),
    ("npf_interception", NamedCost::HostFaults),
    ("kvm_mmu_faultin_pfn", NamedCost::HostFaults),
    ("kvm_tdp_page_fault", NamedCost::HostFaults),
    // Linux kernel/fork.c.
    ("dup_mmap", NamedCost::Fork),
    // Linux arch/x86/kernel/cpu/bus_lock.c.
    ("split_lock_warn", NamedCost::SplitLocks),
    // Linux Documentation/admin-guide/serial-console.rst; an emulated 8250 exits at each access.
    ("console=ttyS", NamedCost::SerialConsole),
    // Linux drivers/virtio/virtio_balloon.c.
    ("virtio_balloon", NamedCost::Balloon),
    ("virtio-balloon", NamedCost::Balloon),
    ("balloon-worker", NamedCost::Balloon),
    ("4 KiB pages", NamedCost::SmallPages),
    ("4KiB pages", NamedCost::SmallPages),
    ("4 KB pages", NamedCost::SmallPages),
    ("4K pages", NamedCost::SmallPages),
    // Linux Documentation/filesystems/proc.rst on /proc/stat.
    ("steal time", NamedCost::Steal),
    ("CPU steal", NamedCost::Steal),
    ("%steal", NamedCost::Steal),
    // Linux arch/x86/kvm/svm/svm.c and vmx/vmx.c: module parameters.
    ("npt=0", NamedCost::ShadowPaging),
    ("ept=0", NamedCost::ShadowPaging),
    ("npt=N", NamedCost::ShadowPaging),
    ("ept=N", NamedCost::ShadowPaging),
    // Linux arch/x86/kvm/mmu/mmu.c and virt/kvm/kvm_main.c.
    ("kvm_unmap_hva_range", NamedCost::Unmapping),
    ("kvm_mmu_notifier_invalidate_range", NamedCost::Unmapping),
    ("kvm_mmu_unmap_gfn_range", NamedCost::Unmapping),
    // Linux Documentation/filesystems/9p.rst; QEMU qemu-options.hx, -virtfs.
    ("Plan 9 File Protocol", NamedCost::Plan9),
    ("9p mount", NamedCost::Plan9),
    ("9p-mounted", NamedCost::Plan9),
    ("9p share", NamedCost::Plan9),
    ("virtio-9p", NamedCost::Plan9),
    ("-virtfs", NamedCost::Plan9),
    // numa(7), numactl(8).
    ("NUMA node", NamedCost::Numa),
    ("NUMA placement", NamedCost::Numa),
    ("numactl", NamedCost::Numa),
    // Linux Documentation/virt/kvm/api.rst, KVM_GET_DIRTY_LOG and KVM_MEM_LOG_DIRTY_PAGES.
    ("KVM_GET_DIRTY_LOG", NamedCost::DirtyLogging),
    ("KVM_CLEAR_DIRTY_LOG", NamedCost::DirtyLogging),
    ("dirty_log", NamedCost::DirtyLogging),
    ("dirty logging", NamedCost::DirtyLogging),
    // Linux arch/x86/kernel/tsc.c, mark_tsc_unstable.
    ("TSC is unstable", NamedCost::UnstableTsc),
    ("TSC unstable", NamedCost::UnstableTsc),
    ("TSC as unstable", NamedCost::UnstableTsc),
    // Linux Documentation/scheduler/sched-bwc.rst.
    ("nr_throttled", NamedCost::Quota),
    ("throttled_usec", NamedCost::Quota),
    ("cfs_quota", NamedCost::Quota),
    // Linux Documentation/admin-guide/kernel-parameters.txt, idle=.
    ("idle=poll", NamedCost::IdleSpin),
    ("PAUSE-spin", NamedCost::IdleSpin),
    ("idle loop never halts", NamedCost::IdleSpin),
    // QEMU docs/system/cpu-models-x86.rst.inc.
    ("-cpu EPYC", NamedCost::CpuModel),
    ("-cpu Skylake", NamedCost::CpuModel),
    ("-cpu Haswell", NamedCost::CpuModel),
    ("-cpu Cascadelake", NamedCost::CpuModel),
    ("-cpu Icelake", NamedCost::CpuModel),
    ("-cpu SapphireRapids", NamedCost::CpuModel),
    ("-cpu kvm64", NamedCost::CpuModel),
    ("-cpu qemu64", NamedCost::CpuModel),
    // Intel SDM, volume 3, VMREAD and VMWRITE.
    ("vmread", NamedCost::Nested),
    ("vmwrite", NamedCost::Nested),
    // Linux Documentation/virt/kvm/x86/nested-vmx.rst.
    ("L1-hypervisor", NamedCost::Nested),
    ("L1 hypervisor", NamedCost::Nested),
    // QEMU qemu-options.hx, -drive aio=.
    ("aio=io_uring", NamedCost::IoUring),
    // QEMU docs/devel/tcg.rst, qemu-options.hx on -accel.
    ("accel=tcg", NamedCost::Tcg),
    ("-accel tcg", NamedCost::Tcg),
    ("under TCG", NamedCost::Tcg),
    ("with TCG", NamedCost::Tcg),
    // Linux Documentation/virt/kvm/locking.rst on mmu_lock.
    ("MMU lock", NamedCost::MmuLock),
    ("mmu_lock", NamedCost::MmuLock),
    // Linux Documentation/core-api/swiotlb.rst.
    ("swiotlb", NamedCost::BounceBuffers),
    ("SWIOTLB", NamedCost::BounceBuffers),
    ("bounce buffer", NamedCost::BounceBuffers),
    // Linux Documentation/virt/kvm/x86/timekeeping.rst, msr.rst.
    ("kvmclock", NamedCost::KvmClock),
    ("pvclock_vcpu_time_info", NamedCost::KvmClock),
    ("kvm-clock", NamedCost::KvmClock),
    // Linux drivers/ptp/ptp_kvm_common.c; QEMU docs on -rtc.
    ("CONFIG_PTP_1588_CLOCK_KVM", NamedCost::WallClock),
    ("ptp_kvm", NamedCost::WallClock),
    ("timedrift", NamedCost::WallClock),
    ("clock drift", NamedCost::WallClock),
    ("time drift", NamedCost::WallClock),
    ("clock skew", NamedCost::WallClock),
    ("guest time", NamedCost::WallClock),
    // chrony's log and `chronyc tracking`.
    ("seconds slow of true", NamedCost::WallClock),
    ("seconds fast of true", NamedCost::WallClock),
    ("slow of NTP time", NamedCost::WallClock),
    ("fast of NTP time", NamedCost::WallClock),
    // VirtualBox src/VBox/VMM/VMMR3/TM.cpp.
    ("Giving up catch-up attempt", NamedCost::WallClock),
    // Linux Documentation/admin-guide/hw_random.rst, random(4).
    ("virtio-rng", NamedCost::Entropy),
    ("hw_random", NamedCost::Entropy),
    ("entropy_avail", NamedCost::Entropy),
    ("read random data", NamedCost::Entropy),
    // VirtualBox src/VBox/VMM/VMMR3/NEMR3Native-win.cpp; Microsoft on WHPX.
    ("WHPX", NamedCost::OnHyperV),
    ("NEM", NamedCost::OnHyperV),
    ("wall clock lags", NamedCost::WallClock),
    // QEMU docs/system/i386/pc.rst, hw/timer/hpet.c.
    ("HPET", NamedCost::Hpet),
    ("hpet", NamedCost::Hpet),
    // QEMU docs/system/i386/hyperv.rst.
    ("hv_stimer", NamedCost::HyperV),
    ("hv-stimer", NamedCost::HyperV),
    ("stimer", NamedCost::HyperV),
    ("hv_time", NamedCost::HyperV),
    ("hv-time", NamedCost::HyperV),
    ("hypervclock", NamedCost::HyperV),
    ("hv_relaxed", NamedCost::HyperV),
    ("hv_vapic", NamedCost::HyperV),
    ("enlightenment", NamedCost::HyperV),
    ("enlightenments", NamedCost::HyperV),
    // QEMU hw/char/serial.c; Linux drivers/tty/serial/8250/8250_port.c.
    ("serial8250", NamedCost::Uart),
    ("isa-serial", NamedCost::Uart),
    ("16550A", NamedCost::Uart),
    ("8250", NamedCost::Uart),
    ("UART", NamedCost::Uart),
    // Linux kernel/smp.c.
    ("smp_call_function_many", NamedCost::Ipis),
    ("IPI", NamedCost::Ipis),
    ("IPIs", NamedCost::Ipis),
    ("flush_tlb_others", NamedCost::Ipis),
    ("TLB shootdown", NamedCost::Ipis),
    ("TLB shootdowns", NamedCost::Ipis),
    // Linux Documentation/virt/kvm/halt-polling.rst, Documentation/virt/guest-halt-polling.rst.
    ("halt_poll_ns", NamedCost::HaltPolling),
    ("halt-polling", NamedCost::HaltPolling),
    ("halt polling", NamedCost::HaltPolling),
    ("haltpoll", NamedCost::HaltPolling),
    ("guest_halt_poll_ns", NamedCost::HaltPolling),
    // Intel SDM volume 3, PAUSE-loop exiting; Linux arch/x86/kvm/vmx/vmx.c, ple_gap; kernel/locking/qspinlock_paravirt.h.
    ("PLE", NamedCost::PauseLoops),
    ("ple_gap", NamedCost::PauseLoops),
    ("pause_filter_count", NamedCost::PauseLoops),
    ("PAUSE_INSTRUCTION", NamedCost::PauseLoops),
    ("pvspinlock", NamedCost::PauseLoops),
    ("paravirt spinlock", NamedCost::PauseLoops),
    ("PV spinlocks", NamedCost::PauseLoops),
    ("qspinlock", NamedCost::PauseLoops),
    ("native_queued_spin_lock_slowpath", NamedCost::PauseLoops),
    // Linux arch/x86/kvm/svm/avic.c, vmx/vmx.c, kvm_host.h on APICV_INHIBIT_REASON.
    ("APICv", NamedCost::Apicv),
    ("AVIC", NamedCost::Apicv),
    ("apicv", NamedCost::Apicv),
    ("posted interrupt", NamedCost::Apicv),
    ("posted interrupts", NamedCost::Apicv),
    ("posted-interrupt", NamedCost::Apicv),
    // Linux Documentation/admin-guide/hw-vuln/index.rst.
    ("mitigations=off", NamedCost::Vulnerabilities),
    ("Meltdown", NamedCost::Vulnerabilities),
    ("Spectre", NamedCost::Vulnerabilities),
    ("spectre_v2", NamedCost::Vulnerabilities),
    ("retbleed", NamedCost::Vulnerabilities),
    ("Retbleed", NamedCost::Vulnerabilities),
    ("SRSO", NamedCost::Vulnerabilities),
    ("IBRS", NamedCost::Vulnerabilities),
    ("KPTI", NamedCost::Vulnerabilities),
    ("nx_huge_pages", NamedCost::Vulnerabilities),
    ("l1tf", NamedCost::Vulnerabilities),
    // QEMU docs/tools/virtiofsd.rst; virtio-fs.gitlab.io.
    ("virtiofs", NamedCost::Virtiofs),
    ("virtiofsd", NamedCost::Virtiofs),
    ("virtio-fs", NamedCost::Virtiofs),
    // QEMU qemu-options.hx on cache=; fsync(2).
    ("cache=none", NamedCost::DiskCache),
    ("cache=writethrough", NamedCost::DiskCache),
    ("cache=directsync", NamedCost::DiskCache),
    ("cache=writeback", NamedCost::DiskCache),
    ("cache=unsafe", NamedCost::DiskCache),
    // QEMU docs/qcow2-cache.txt, docs/interop/qcow2.txt.
    ("qcow2", NamedCost::ImageFormat),
    ("l2-cache-size", NamedCost::ImageFormat),
    ("cluster_size", NamedCost::ImageFormat),
    ("extended_l2", NamedCost::ImageFormat),
    ("backing file", NamedCost::ImageFormat),
    // QEMU docs/devel/multiple-iothreads.rst.
    ("iothread", NamedCost::Iothreads),
    ("iothreads", NamedCost::Iothreads),
    ("io_thread", NamedCost::Iothreads),
    ("main loop", NamedCost::Iothreads),
    ("main-loop", NamedCost::Iothreads),
    ("BQL", NamedCost::Iothreads),
    ("big QEMU lock", NamedCost::Iothreads),
    // Linux drivers/vhost/net.c; QEMU qemu-options.hx on vhost=.
    ("vhost=on", NamedCost::Vhost),
    ("vhost_net", NamedCost::Vhost),
    ("vhost-net", NamedCost::Vhost),
    ("vhost_worker", NamedCost::Vhost),
    ("vhost-user", NamedCost::Vhost),
    // Linux Documentation/networking/scaling.rst; QEMU num-queues=, mq=on.
    ("multiqueue", NamedCost::Queues),
    ("multi-queue", NamedCost::Queues),
    ("num-queues", NamedCost::Queues),
    ("num_queues", NamedCost::Queues),
    ("mq=on", NamedCost::Queues),
    // Linux Documentation/networking/segmentation-offloads.rst.
    ("TSO", NamedCost::Offloads),
    ("GSO", NamedCost::Offloads),
    ("GRO", NamedCost::Offloads),
    ("LRO", NamedCost::Offloads),
    ("tx-checksumming", NamedCost::Offloads),
    ("checksum offload", NamedCost::Offloads),
    ("checksum offloading", NamedCost::Offloads),
    ("ethtool -K", NamedCost::Offloads),
    ("hw_csum", NamedCost::Offloads),
    // QEMU docs/system/devices; virtio's specification, section 1.
    ("e1000", NamedCost::EmulatedCards),
    ("e1000e", NamedCost::EmulatedCards),
    ("rtl8139", NamedCost::EmulatedCards),
    ("pcnet", NamedCost::EmulatedCards),
    ("ide-hd", NamedCost::EmulatedCards),
    ("if=ide", NamedCost::EmulatedCards),
    // Linux Documentation/admin-guide/mm/concepts.rst.
    ("swappiness", NamedCost::Swapping),
    ("swapped out", NamedCost::Swapping),
    ("swapping", NamedCost::Swapping),
    ("kswapd", NamedCost::Swapping),
    ("VmSwap", NamedCost::Swapping),
    ("zram", NamedCost::Swapping),
    // cpuset(7), taskset(1); libvirt's formatdomain on cputune.
    ("isolcpus", NamedCost::Pinning),
    ("taskset", NamedCost::Pinning),
    ("vcpupin", NamedCost::Pinning),
    ("emulatorpin", NamedCost::Pinning),
    ("cpuset", NamedCost::Pinning),
    ("CPU pinning", NamedCost::Pinning),
    ("pinned to", NamedCost::Pinning),
    // Linux arch/x86/kvm/pmu.c, Documentation/virt/kvm/x86/msr.rst.
    ("vPMU", NamedCost::Pmu),
    ("PMU", NamedCost::Pmu),
    ("RDPMC", NamedCost::Pmu),
    ("rdpmc", NamedCost::Pmu),
    ("PERF_GLOBAL_CTRL", NamedCost::Pmu),
    // Intel SDM volume 3, System Management Mode; Linux arch/x86/kvm/smm.c.
    ("SMM", NamedCost::Smm),
    ("SMI", NamedCost::Smm),
    ("EFI_SMM", NamedCost::Smm),
    // Linux arch/arm64/kvm/handle_exit.c, kvm_handle_wfx.
    ("WFI", NamedCost::ArmWaits),
    ("WFE", NamedCost::ArmWaits),
    ("WFx", NamedCost::ArmWaits),
    ("kvm_handle_wfx", NamedCost::ArmWaits),
    ("TWI", NamedCost::ArmWaits),
    ("TWE", NamedCost::ArmWaits),
    // Linux arch/x86/kvm/lapic.c; Intel SDM volume 3 on the APIC timer.
    ("TSC-deadline", NamedCost::Timers),
    ("tsc_deadline", NamedCost::Timers),
    ("TSC_DEADLINE", NamedCost::Timers),
    ("LAPIC timer", NamedCost::Timers),
    ("lapic timer", NamedCost::Timers),
    ("preemption timer", NamedCost::Timers),
    ("nohz_full", NamedCost::Timers),
    ("nohz=off", NamedCost::Timers),
    ("nested VM", NamedCost::Nested),
    ("nested virtualization", NamedCost::Nested),
    ("L2 guest", NamedCost::Nested),
];

/// Each selftest of KVM begins with what its guest is (Linux tools/testing/selftests/kvm/lib/kvm_util.c): its own pages, not those of the memory.
const GUEST_MODE: &str = "Testing guest mode: ";

/// What each guest's kernel logs at its boot: Linux arch/x86/kernel/kvmclock.c, kernel/time/clocksource.c, kernel/dma/swiotlb.c.
const ORDINARY: [&str; 7] = [
    "kvm-clock: Using msrs",
    "kvm-clock: using sched offset",
    "kvm-clock: cpu ",
    "clocksource: kvm-clock: mask",
    "Switched to clocksource kvm-clock",
    "software IO TLB:",
    "Using software bounce buffering",
];

/// More names of a text say nothing.
const MOST: usize = 4;

/// The costs that a text names, each once.
pub(super) fn costs(text: &str) -> Vec<Observed> {
    // Names may be marked as code (`` `TSC` is unstable ``).
    let told: Vec<String> = lines(text)
        .filter(|line| !line.contains(GUEST_MODE))
        .filter(|line| !ORDINARY.iter().any(|words| line.contains(words)))
        .map(|line| line.replace('`', ""))
        .collect();
    let mut named: Vec<(NamedCost, ShortName, usize)> = Vec::new();
    for (words, cost) in NAMES {
        let mut of_line = told.iter().filter_map(|line| in_line(line, words));
        let Some(word) = of_line.next() else { continue };
        let count = 1 + of_line.count();
        match named.iter_mut().find(|(of, ..)| of == cost) {
            Some((.., lines)) => *lines += count,
            None => named.push((*cost, word, count)),
        }
    }
    // What most lines name comes first.
    named.sort_by_key(|(.., count)| std::cmp::Reverse(*count));
    named.truncate(MOST);
    let mut found: Vec<Observed> =
        named.into_iter().map(|(cost, word, _)| Observed::Named(cost, word)).collect();
    if measures_host_cache(text) {
        found.extend(
            ShortName::new("benchmark").map(|word| Observed::Named(NamedCost::HostCache, word)),
        );
    }
    // L2 is a cache, too.
    let is_of_kvm = |line: &str| line.contains("from L2") && line.contains("KVM");
    if !found.iter().any(|one| matches!(one, Observed::Named(NamedCost::Nested, _)))
        && lines(text).any(is_of_kvm)
    {
        found.extend(ShortName::new("L2").map(|word| Observed::Named(NamedCost::Nested, word)));
    }
    if let Some(word) = clock_calls(text) {
        found.push(Observed::Named(NamedCost::ClockCalls, word));
    }
    if let Some(word) = idle_windows(text) {
        found.push(Observed::Named(NamedCost::IdleWindows, word));
    }
    found
}

/// A line of strace with a call for the time, or its table (`-c`) with many of them beside the others. vdso(7): strace does not see calls that the vDSO
/// answers.
fn clock_calls(text: &str) -> Option<ShortName> {
    /// Fewer may be those of a program's start.
    const MANY: u64 = 100;
    let is_call = |line: &str| line.contains("clock_gettime(CLOCK_") && line.contains(") = 0");
    if lines(text).any(is_call) {
        return ShortName::new("clock_gettime");
    }
    // Share, seconds, microseconds of each, calls, errors if any, name.
    let row = |line| {
        let words: Vec<&str> = str::split_whitespace(line).collect();
        let [share, seconds, each, calls, .., name] = words[..] else { return None };
        let are_numbers = [share, seconds, each].iter().all(|word| number(word).is_some());
        let is_row = are_numbers && words.len() <= 6 && name != "total";
        is_row.then(|| Some((calls.parse::<u64>().ok()?, name)))?
    };
    let behind = lines(text).skip_while(|line| !line.contains("usecs/call"));
    let rows: Vec<(u64, &str)> = behind.filter_map(row).collect();
    let most = rows.iter().map(|(calls, _)| *calls).max()?;
    let is_time = |name: &str| ["clock_gettime", "gettimeofday", "time"].contains(&name);
    let found = rows
        .iter()
        .find(|(calls, name)| is_time(name) && *calls >= MANY && calls.saturating_mul(10) >= most);
    found.and_then(|(_, name)| ShortName::new(name))
}

/// The word by which a line has these words: of them the longest, whole.
fn in_line(plain: &str, words: &str) -> Option<ShortName> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    // Not within another word: ept=0 is no part of intercept=0, PLE none of PLEASE.
    let is_whole = |at: usize| {
        let is_letter = |c: char| c.is_ascii_alphanumeric();
        let rest = &plain[at + words.len()..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let ends =
            !rest.starts_with(|c: char| c.is_ascii_alphabetic()) || !words.ends_with(is_letter);
        ends && (!plain[..at].ends_with(is_letter) || !words.starts_with(is_letter))
    };
    let from = plain.match_indices(words).map(|(at, _)| at).find(|at| is_whole(*at))?;
    let longest = words.split(|c| !is_of_name(c)).max_by_key(|word| word.len())?;
    let at = from + words.rfind(longest)?;
    let start = plain[..at].rfind(|c| !is_of_name(c)).map_or(0, |at| at + 1);
    let rest = &plain[at..];
    let end = at + rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
    let own = |text: &str| ShortName::new(text.trim_matches(|c: char| ".:-".contains(c)));
    // A character of several bytes may stand before it.
    plain.get(start..end).and_then(own).or_else(|| own(longest))
}

/// A line on a Windows that is idle and takes processor time: `Windows guest idles at 30% CPU`; Windows may be named on the line before.
fn idle_windows(text: &str) -> Option<ShortName> {
    /// Words from `idle` to the share, and from there to the processor.
    const NEAR: usize = 8;
    const OF_TIME: [&str; 4] = ["cpu", "load", "core", "processor"];
    /// Another system's idling, Windows as the host, and Windows' own name for idle time.
    const OTHERS: [&str; 6] = ["linux", "host", "process", "timeout", "memory", "ubuntu"];
    let mut before = String::new();
    for line in lines(text) {
        let line = line.to_lowercase();
        let both = format!("{before} {line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let bare =
            |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%').to_owned();
        let is_share = |word: &str| {
            bare(word)
                .strip_suffix('%')
                .is_some_and(|number| number.ends_with(|c: char| c.is_ascii_digit()))
        };
        let idle = words.iter().position(|word| bare(word).starts_with("idl"));
        let near = |at: usize| &words[at..words.len().min(at + NEAR)];
        let is_near = idle.is_some_and(|at| {
            let near = near(at);
            near.iter().any(|word| is_share(word))
                && near.iter().any(|word| OF_TIME.iter().any(|name| bare(word).contains(name)))
        });
        let others = both.split(|c: char| !c.is_alphanumeric()).any(|word| OTHERS.contains(&word));
        if is_near && both.contains("windows") && !others {
            return ShortName::new("Windows");
        }
        before = line;
    }
    None
}

/// A benchmark of a disk in a text that shows the VMM's command line: QEMU's default is cache=writeback (qemu-options.hx), Cloud Hypervisor's direct=off
/// (docs/device_model.md).
fn measures_host_cache(text: &str) -> bool {
    let is_benchmark = lines(text).any(|line| {
        line.contains("READ: bw=") || line.contains("WRITE: bw=") || line.contains(" copied, ")
    });
    let is_cached = |line: &str| {
        let of_qemu =
            line.contains("qemu-system-") && line.contains("-drive") && line.contains("file=");
        let of_cloud =
            line.contains("cloud-hypervisor") && line.contains("--disk") && line.contains("path=");
        let passes = ["cache=none", "cache=directsync", "cache.direct=on", "direct=on"];
        (of_qemu || of_cloud) && !passes.iter().any(|word| line.contains(word))
    };
    is_benchmark && lines(text).any(is_cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_calls_for_the_time_in_a_table_of_strace() {
        const HEAD: &str = "% time     seconds  usecs/call     calls    errors syscall\n";
        let row =
            |calls: u64, name: &str| format!("  0.10    0.000900           9 {calls}     {name}\n");
        let found = |rows: &[String]| clock_calls(&rows.concat());
        let head = HEAD.to_owned();
        let time = ShortName::new("gettimeofday");
        assert_eq!(found(&[head.clone(), row(100, "gettimeofday")]), time);
        assert_eq!(found(&[head.clone(), row(100, "gettimeofday"), row(1000, "read")]), time);
        assert_eq!(found(&[head.clone(), row(100, "gettimeofday"), row(1001, "read")]), None);
        assert_eq!(found(&[head, row(99, "gettimeofday")]), None);
        assert_eq!(found(&[row(100, "gettimeofday")]), None);
    }

    #[test]
    fn names_are_said_once() {
        let named = |text: &str| -> Vec<String> {
            let shown = |one| match one {
                Observed::Named(cost, word) => format!("{cost} {}", word.as_str()),
                other => format!("{other:?}"),
            };
            costs(text).into_iter().map(shown).collect()
        };
        for (text, expected) in [
            ("dup_mm -> dup_mmap\n dup_mmap\n", vec!["fork dup_mmap"]),
            (
                "all of it in ioctl(9, VFIO_IOMMU_MAP_DMA, x)\n",
                vec!["iommu-map VFIO_IOMMU_MAP_DMA"],
            ),
            (
                "a clone by userfaultfd, whose memory has 4 KiB pages\n",
                vec!["userfaultfd userfaultfd", "pages-of-4-kib pages"],
            ),
            ("we loaded kvm_amd with npt=0\n", vec!["nested-paging-off npt"]),
            ("kvm_stat: 9000 kvm_unmap_hva_range/s\n", vec!["unmapping kvm_unmap_hva_range"]),
            ("then the `TSC` is unstable, it says\n", vec!["unstable-tsc unstable"]),
            ("`nr_throttled 7` in the VM's group\n", vec!["quota-in-words nr_throttled"]),
            ("\u{201c}nr_throttled\u{201d} grows\n", vec!["quota-in-words nr_throttled"]),
            ("with -cpu EPYC-v4, slower\n", vec!["cpu-model EPYC-v4"]),
            ("the end of it, stop_dirty_log(), waits\n", vec!["dirty-logging stop_dirty_log"]),
            ("Windows 10 here\nidles at 30%, all of one CPU\n", vec!["idle-windows Windows"]),
            ("PLE\nthen IPIs\nand an IPI\n", vec!["ipis IPIs", "pause-loops PLE"]),
            ("with console=ttyS0\n", vec!["serial-port console"]),
        ] {
            assert_eq!(named(text), expected, "{text}");
        }
        let line = "qemu-system-x86_64 -drive file=a.img,if=virtio -m 1G\n";
        let fio = "READ: bw=131MiB/s (137MB/s), 131MiB/s-131MiB/s\n";
        assert_eq!(named(&format!("{line}{fio}")), ["host-page-cache benchmark"]);
        let none: [&str; 0] = [];
        let direct = line.replace("a.img", "a.img,cache=none");
        assert_eq!(named(&format!("{direct}{fio}")), ["disk-cache cache"]);
        assert_eq!(named(line), none);
        for text in [
            "",
            "hello\n",
            "a page of 4 KiB\n",
            "PLEASE help, ZIPIT\n",
            "we steal ideas\n",
            "clock_gettime\n",
            "the balloon rises\n",
            "a stable TSC\n",
            "an idle loop\n",
            "9 people\n",
            "Windows 10 idles\n",
            "the rest is served from L2\n",
            "perf: intercept=0 accept=0\n",
            "clock_gettime(CLOCK_MONOTONIC, &start);\n",
            "Windows is fine\nthe Linux guest idles at 2% CPU\n",
            "Windows: System Idle Process 97% CPU\n",
            "on a Windows host VirtualBox idles at 30% CPU\n",
            "Windows 10\n\nit\nidles at 30% CPU\n",
            "the host idles at 30% CPU\n",
        ] {
            assert_eq!(named(text), none, "{text}");
        }
    }
}
