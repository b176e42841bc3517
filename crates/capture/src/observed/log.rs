//! Lines of kernels' and VMMs' logs, and of what a guest's own tools print, that say one thing each.

use vmtax_events::is_vcpu_thread;
use vmtax_events::observed::{LogMessage, Observed, TimedFunction};

use super::devices::{HOSTS_TSC, clock};
use super::{lines, stuck};

/// Lines of logs that say one thing alone: Linux arch/x86/kvm/vmx/vmx.c and svm/svm.c ("disabled by bios"), QEMU accel/kvm/kvm-all.c ("Could not access
/// KVM kernel module"), softmmu/vl.c ("falling back to tcg") and accel/tcg (`info jit`: "Translation buffer state:"); dockur/windows's container, which says why in the brackets.
const NO_KVM: [&str; 12] = [
    "KVM acceleration is not available (",
    "kvm: disabled by bios",
    "Could not access KVM kernel module",
    "failed to initialize kvm",
    "falling back to tcg",
    "Translation buffer state:",
    // People tell that message in the past.
    "fell back to TCG",
    "fell back to tcg",
    "TCG software emulation",
    "software emulation (TCG)",
    "KVM acceleration can NOT be used",
    "TCG doesn't support requested feature",
];

/// Linux kernel/rcu/tree_stall.h, `rcu_check_gp_kthread_expired_fqs_timer`.
const TIMER_MISSED: &str = "kthread timer wakeup didn't happen for";

/// The same of others, each with its source.
const MESSAGES: &[(&str, LogMessage)] = &[
    // QEMU hw/virtio/vhost.c, `vhost_region_add_section`.
    ("Overlapping but not coherent sections", LogMessage::VhostSections),
    ("Section rounded to 0 prior to previous", LogMessage::VhostSections),
    // QEMU hw/net/vhost_net.c, hw/net/virtio-net.c.
    ("falling back on userspace virtio", LogMessage::VhostFallback),
    ("vhost-net requested but could not be initialized", LogMessage::VhostFallback),
    // QEMU target/i386/cpu.c.
    ("AMD CPU doesn't support hyperthreading", LogMessage::NoTopoext),
    // QEMU target/i386/kvm/kvm.c.
    ("TSC frequency mismatch between VM", LogMessage::TscScaling),
    // Linux arch/x86/kvm/x86.c, `kvm_arch_vcpu_create`.
    (HOSTS_TSC, LogMessage::UnstableTsc),
    // Linux arch/x86/kvm/lapic.c, `limit_periodic_timer_frequency`.
    ("lapic timer period limited to", LogMessage::FastApicTimer),
    // Linux kernel/watchdog.c, kernel/rcu/tree_stall.h.
    ("soft lockup - CPU#", LogMessage::Stall),
    ("self-detected stall on CPU", LogMessage::Stall),
    ("detected stalls on CPUs/tasks", LogMessage::Stall),
    // Linux kernel/workqueue.c, `wq_watchdog_timer_fn`.
    ("BUG: workqueue lockup - pool", LogMessage::Stall),
    // Linux mm/oom_kill.c.
    ("Out of memory: Kill", LogMessage::OutOfMemory),
    ("invoked oom-killer: gfp_mask=", LogMessage::OutOfMemory),
    // systemd src/core/unit.c, `unit_log_failure` and its neighbours.
    ("has been killed by the OOM killer", LogMessage::OutOfMemory),
    // Linux kernel/time/clocksource.c, `__clocksource_unstable` and `clocksource_watchdog`.
    ("Clocksource tsc unstable (delta", LogMessage::TscJump),
    ("'kvm-clock' (not 'tsc') is current clocksource", LogMessage::TscUnused),
    // Linux arch/x86/kernel/tsc.c, `mark_tsc_unstable`; kernel/time/clocksource.c.
    (TSC_MARKED, LogMessage::TscMarked),
    ("Marking clocksource 'tsc", LogMessage::TscMarked),
    // QEMU target/i386/cpu.c: qemu64, qemu32, kvm64 and kvm32; docs/system/cpu-models-x86.rst.inc on their use.
    ("QEMU Virtual CPU version", LogMessage::DefaultCpu),
    ("Common KVM processor", LogMessage::DefaultCpu),
    ("Common 32-bit KVM processor", LogMessage::DefaultCpu),
    // Linux kernel/time/clocksource.c.
    ("Watchdog hpet read timed out", LogMessage::SlowHpet),
    ("hpet read-back delay of", LogMessage::SlowHpet),
    ("hpet wd-wd read-back delay of", LogMessage::SlowHpet),
    // Linux kernel/time/hrtimer.c, `hrtimer_interrupt`, which has the three reasons.
    ("hrtimer: interrupt took", LogMessage::LongTimerInterrupt),
    // Cloud Hypervisor vmm/src/vm.rs; Linux Documentation/virt/kvm/api.rst on KVM_MEM_READONLY.
    ("Guest MMIO write to unregistered address", LogMessage::UnregisteredMmio),
    // Linux arch/x86/kernel/kvm.c; without the mark of what is old on a stack.
    ("] kvm_async_pf_task_wait_schedule+0x", LogMessage::AsyncPageFault),
    ("] kvm_async_pf_task_wait+0x", LogMessage::AsyncPageFault),
    // Linux kernel/dma/swiotlb.c, `swiotlb_tbl_map_single`.
    ("swiotlb buffer is full (sz:", LogMessage::BounceBufferFull),
    // Linux drivers/char/random.c; without the mark of what is old on a stack.
    ("] wait_for_random_bytes+0x", LogMessage::WaitsForRandom),
    // Linux arch/x86/kernel/cpu/bus_lock.c, `split_lock_warn`.
    ("took a split_lock trap at address: 0x", LogMessage::SplitLocks),
    // Linux drivers/net/ethernet/intel/iavf/iavf_main.c.
    ("Multiqueue Disabled: Queue pair count = 1", LogMessage::OneQueue),
];

/// What many logs have by the way: beside others they say nothing.
const WEAK: [LogMessage; 3] =
    [LogMessage::LongTimerInterrupt, LogMessage::DefaultCpu, LogMessage::TscMarked];

/// The same where a single line says nothing: some come at each start of a VM.
const FLOODS: &[(&str, LogMessage)] = &[
    // Linux include/linux/virtio_net.h and drivers/net/virtio_net.c, `receive_buf`.
    (": bad gso: type: ", LogMessage::BadGso),
    // Linux arch/x86/kvm/x86.c, `kvm_msr_ignored_check` and `kvm_get_msr_common`.
    (" unhandled rdmsr: 0x", LogMessage::UnknownMsrs),
    (" unhandled wrmsr: 0x", LogMessage::UnknownMsrs),
    (" ignored rdmsr: 0x", LogMessage::UnknownMsrs),
    (" ignored wrmsr: 0x", LogMessage::UnknownMsrs),
    (" disabled perfctr wrmsr: 0x", LogMessage::UnknownMsrs),
];
const FLOOD: usize = 5;

/// Where a guest writes to the register of a virtio device (Linux drivers/virtio/virtio_pci_common.c).
const NOTIFIES: &str = "vp_notify+0x";

/// What a kernel says of its TSC; its clock may be another one anyway.
const TSC_MARKED: &str = "Marking TSC unstable due to";
/// A guest of Hyper-V has that one's clock.
const ON_HYPERV: &str = "due to running on Hyper-V";

/// QEMU's accel/tcg/tcg-accel-ops-mttcg.c and tcg-accel-ops-rr.c name their threads `CPU 0/TCG` and `ALL CPUs/TCG`.
fn is_of_tcg(line: &str) -> bool {
    // The model of the processor `max` without an accelerator (target/i386/tcg/tcg-cpu.c), where a kernel or lscpu names it.
    if let Some((before, after)) = line.split_once("QEMU TCG CPU version ") {
        let before = before.to_lowercase();
        let names = ["smpboot: cpu0:", "model name", "cpu0:", "cpu:"];
        return names.iter().any(|name| before.contains(name))
            && after.starts_with(|c: char| c.is_ascii_digit());
    }
    let Some((before, after)) = line.split_once("/TCG") else { return false };
    let is_vcpu = before
        .rsplit_once("CPU ")
        .is_some_and(|(_, id)| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()));
    let is_whole = !after.starts_with(|c: char| c.is_ascii_alphanumeric());
    (is_vcpu || before.ends_with("ALL CPUs")) && is_whole
}

/// Linux kernel/hung_task.c, `check_hung_task`: `INFO: task NAME:PID blocked for more than 120 seconds.` of a vCPU's thread, and what its stack shows.
fn blocked(text: &str) -> Option<LogMessage> {
    let is_of_vcpu = |line: &str| {
        let (_, task) = line.split_once("INFO: task ")?;
        let (name, _) = task.split_once(" blocked for more than ")?;
        is_vcpu_thread(name.rsplit_once(':')?.0).then_some(())
    };
    let mut rest = lines(text).skip_while(|line| is_of_vcpu(line).is_none()).peekable();
    rest.peek()?;
    // The stack of the first one: the next task's begins with such a line. "? " marks what is old on it.
    let mut stack = rest.skip(1).take_while(|line| !line.contains("blocked for more than"));
    let is_reclaim = |line: &str| {
        let words = ["deferred_split_scan+", "shrink_", "try_to_free_", "do_try_to_free_pages+"];
        words.iter().any(|word| line.contains(word))
    };
    let in_reclaim = stack.any(is_reclaim);
    Some(if in_reclaim { LogMessage::VcpuInReclaim } else { LogMessage::VcpuBlocked })
}

/// The same of a VMM whose change of a memory slot waits for readers of the old slots: Linux virt/kvm/kvm_main.c, `kvm_swap_active_memslots` (before 5.17
/// `install_new_memslots`), which calls `synchronize_srcu_expedited`.
fn slot_waits(text: &str) -> bool {
    let mut stack = lines(text)
        .skip_while(|line| !line.contains(" blocked for more than "))
        .skip_while(|line| !line.contains("synchronize_srcu"));
    stack.any(|line| {
        ["kvm_swap_active_memslots+", "install_new_memslots+"]
            .iter()
            .any(|name| line.contains(name))
    })
}

/// Linux net/sched/sch_generic.c, `dev_watchdog`, of a card that VMMs emulate, and the warning's own lines say that its machine is one of QEMU's: machines have such
/// cards too, and their driver's name is the same. A guest with a passed-through device may have one.
fn card_hangs(text: &str) -> bool {
    const DRIVERS: [&str; 5] = ["(e1000)", "(e1000e)", "(8139cp)", "(8139too)", "(pcnet32)"];
    /// Lines from the message to its machine's name.
    const WITHIN: usize = 20;
    let is_passed_through = text.contains("vfio") || text.contains("passthrough");
    let is_of_driver = |line: &str| DRIVERS.iter().any(|driver| line.contains(driver));
    let is_hang = |line: &&str| line.contains("NETDEV WATCHDOG: ") && is_of_driver(line);
    let machine = lines(text)
        .skip_while(|line| !is_hang(line))
        .take(WITHIN)
        .find_map(|line| line.split_once("Hardware name: "));
    !is_passed_through && machine.is_some_and(|(_, name)| name.starts_with("QEMU "))
}

/// QEMU hw/virtio/virtio.c, `virtqueue_map_desc`: `virtio_error` marks the device as broken. A line of QEMU's: its name, and the message.
fn breaks_ring(text: &str) -> bool {
    lines(text).any(|line| {
        line.split_once(": virtio: bogus descriptor or out of resources").is_some_and(
            |(before, after)| {
                let program = before.rsplit(' ').next().unwrap_or_default();
                program.starts_with("qemu-") && !after.starts_with(['"', '\'', '`', '\\'])
            },
        )
    })
}

pub(super) fn messages(text: &str) -> Option<Vec<Observed>> {
    let is_said = |words: &str| lines(text).any(|line| line.contains(words));
    let mut found = Vec::new();
    if NO_KVM.iter().any(|words| is_said(words)) || lines(text).any(is_of_tcg) {
        found.push(Observed::NoKvm);
    }
    for (words, message) in MESSAGES {
        let observed = Observed::Message(*message);
        if !found.contains(&observed) && is_said(words) {
            found.push(observed);
        }
    }
    for (words, message) in FLOODS {
        let observed = Observed::Message(*message);
        let is_flood = lines(text).filter(|line| line.contains(words)).take(FLOOD).count() == FLOOD;
        if is_flood && !found.contains(&observed) {
            found.push(observed);
        }
    }
    found.extend(card_hangs(text).then_some(Observed::Message(LogMessage::CardHangs)));
    found.extend(breaks_ring(text).then_some(Observed::Message(LogMessage::BrokenRing)));
    found.extend(blocked(text).map(Observed::Message));
    found.extend(slot_waits(text).then_some(Observed::Message(LogMessage::SlotWaits)));
    // x86-64-v3 and its like have the default's name.
    let has_avx = |line: &str| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|name| name.trim_end_matches(':').eq_ignore_ascii_case("flags"))
            && words.any(|word| word == "avx")
    };
    // A program that has found AES (gocryptfs) is not in the default model.
    let says_more = ["x86-64-v3", "x86-64-v4", "with AES acceleration"].map(is_said);
    if says_more.contains(&true) || lines(text).any(has_avx) {
        found.retain(|one| *one != Observed::Message(LogMessage::DefaultCpu));
    }
    let is_no_mark = is_said(ON_HYPERV) || clock(text).is_some();
    for weak in WEAK {
        if found.len() > 1 || weak == LogMessage::TscMarked && is_no_mark {
            found.retain(|one| *one != Observed::Message(weak));
        }
    }
    // What the CPU that is stuck does says more than that it is.
    if stuck::all_in_work(text) && !is_said("BUG: workqueue lockup - pool") {
        found.retain(|one| *one != Observed::Message(LogMessage::Stall));
    }
    if let Some(stall) = found.iter_mut().find(|one| **one == Observed::Message(LogMessage::Stall))
    {
        if is_said(NOTIFIES) {
            *stall = Observed::Message(LogMessage::NotifyHangs);
        } else if is_said(TIMER_MISSED) {
            *stall = Observed::Message(LogMessage::TimerMissed);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// `mount` of a guest whose files come by 9p without a cache: Linux Documentation/filesystems/9p.rst, "cache=none" is the default.
pub(super) fn mounts(text: &str) -> Option<Vec<Observed>> {
    let mounts: Vec<Vec<&str>> = lines(text).filter_map(by_9p).collect();
    if mounts.is_empty() {
        return None;
    }
    let is_uncached = |options: &Vec<&str>| {
        options
            .iter()
            .find_map(|one| one.strip_prefix("cache="))
            .is_none_or(|cache| cache == "none")
    };
    let message = Observed::Message(LogMessage::UncachedFiles);
    Some(mounts.iter().any(is_uncached).then_some(message).into_iter().collect())
}

/// The options of a mount that goes to the VMM.
fn by_9p(line: &str) -> Option<Vec<&str>> {
    let (_, rest) = line.split_once(" type 9p (")?;
    let options: Vec<&str> = rest.split(')').next()?.split(',').collect();
    options.contains(&"trans=virtio").then_some(options)
}

/// Windows's `Get-NetAdapterRsc | Format-List` of virtio-net: receive segments are not coalesced, because the device does not offer it
/// (Microsoft, MSFT_NetAdapterRscSettingData: its failure reason is Capability).
pub(super) fn coalescing(text: &str) -> Option<Vec<Observed>> {
    let value = |name: &str| {
        lines(text).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then_some(value.trim())
        })
    };
    let reason = value("IPv4FailureReason")?;
    let is_virtio = value("InterfaceDescription")?.starts_with("Red Hat VirtIO Ethernet");
    let lacks = is_virtio && reason == "Capability";
    Some(lacks.then_some(Observed::Message(LogMessage::NoCoalescing)).into_iter().collect())
}

/// The log of a guest's boot: what Linux's `initcall_debug` timed (init/main.c, drivers/base/dd.c), and the time before the keyboard is found.
pub(super) fn boot(text: &str) -> Option<Vec<Observed>> {
    /// Names of initcalls and of drivers, and whose they are.
    const KNOWN: [(&str, TimedFunction); 4] = [
        ("cmos_init", TimedFunction::ClockProbe),
        ("rtc_cmos", TimedFunction::ClockProbe),
        ("i8042_init", TimedFunction::Keyboard),
        ("i8042", TimedFunction::Keyboard),
    ];
    let mut most: Vec<(TimedFunction, f64)> = Vec::new();
    let mut keep = |function: TimedFunction, ns: f64| {
        if !(0.0..=1e12).contains(&ns) {
            return;
        }
        match most.iter_mut().find(|(known, _)| *known == function) {
            Some((_, longest)) => *longest = longest.max(ns),
            None => most.push((function, ns)),
        }
    };
    let mut before: Option<f64> = None;
    for line in lines(text) {
        let Some((stamp, rest)) = line.strip_prefix('[').and_then(|line| line.split_once("] "))
        else {
            continue;
        };
        let Ok(at) = stamp.trim().parse::<f64>() else { continue };
        if let Some(call) =
            rest.strip_prefix("initcall ").or_else(|| rest.strip_prefix("probe of "))
            && let Some((name, time)) = call.split_once(" returned ")
        {
            let name = name.split(['+', ' ']).next().unwrap_or_default();
            let known = KNOWN.iter().find(|(known, _)| *known == name);
            let micros = time
                .split_once(" after ")
                .and_then(|(_, time)| time.strip_suffix(" usecs")?.trim().parse::<f64>().ok());
            if let (Some((_, function)), Some(micros)) = (known, micros) {
                keep(*function, micros * 1e3);
            }
        } else if rest.starts_with("input: ")
            && rest.contains("/i8042/serio")
            && let Some(before) = before
        {
            keep(TimedFunction::Keyboard, (at - before) * 1e9);
        }
        before = Some(at);
    }
    (!most.is_empty()).then(|| {
        most.into_iter().map(|(function, ns)| Observed::Timed(function, ns as u64)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_says_why() {
        let said = |text: &str| messages(text).unwrap_or_default();
        let is = |message| vec![Observed::Message(message)];
        let stall = "rcu: INFO: rcu_sched self-detected stall on CPU\n";
        assert_eq!(said(stall), is(LogMessage::Stall));
        let missed = "rcu: rcu_sched kthread timer wakeup didn't happen for 26092 jiffies! g-367\n";
        assert_eq!(said(&format!("{stall}{missed}")), is(LogMessage::TimerMissed));
        assert_eq!(said(missed), []);
        let container = "ERROR: KVM acceleration is not available (no write access), this will cause the machine to run about 10 times slower.\n";
        assert_eq!(said(container), [Observed::NoKvm]);
        let jit = "Translation buffer state:\ngen code size       810926227/1073659904\n";
        assert_eq!(said(jit), [Observed::NoKvm]);
        let of_kvm = "JIT information is only available with accel=tcg\n";
        assert_eq!(said(of_kvm), []);
        assert_eq!(said("It also runs where KVM acceleration is not available.\n"), []);
        let model = "cpu: QEMU Virtual CPU version 2.5+\n";
        assert_eq!(said(model), is(LogMessage::DefaultCpu));
        assert_eq!(said("cpu: QEMU Virtual CPU version 2.5+; with AES acceleration\n"), []);
        assert_eq!(said(&format!("a guest of x86-64-v3:\n{model}")), []);
        let blocked = "INFO: task qemu-system-ris:1765 blocked for more than 120 seconds.\n";
        let waits =
            "[] __synchronize_srcu.part.0+0x88/0xe2\n[] kvm_swap_active_memslots+0x186/0x1ea\n";
        assert_eq!(said(&format!("{blocked}{waits}")), is(LogMessage::SlotWaits));
        assert_eq!(said(waits), []);
        assert_eq!(said(&format!("{blocked}[] synchronize_srcu+0x1/0x2\n")), []);
    }

    #[test]
    fn boots_and_tools_of_guests_say_one_thing_each() {
        let said = |message| vec![Observed::Message(message)];
        let keyboard = |ns| vec![Observed::Timed(TimedFunction::Keyboard, ns)];
        for (text, reader, expected) in [
            (
                "mount0 on /mnt type 9p (rw,relatime,access=client,msize=131072,trans=virtio)\n",
                mounts as fn(&str) -> Option<Vec<Observed>>,
                Some(said(LogMessage::UncachedFiles)),
            ),
            (
                "mount0 on /mnt type 9p (rw,relatime,cache=mmap,trans=virtio)\n",
                mounts,
                Some(vec![]),
            ),
            ("C:\\ on /mnt/c type 9p (rw,trans=fd)\n", mounts, None),
            (
                "InterfaceDescription : Red Hat VirtIO Ethernet Adapter\nIPv4FailureReason : Capability\n",
                coalescing,
                Some(said(LogMessage::NoCoalescing)),
            ),
            (
                "InterfaceDescription : Red Hat VirtIO Ethernet Adapter\nIPv4FailureReason : NoFailure\n",
                coalescing,
                Some(vec![]),
            ),
            (
                "[    0.032] bootserver=1\n[    0.544] input: AT Raw Set 2 keyboard as /devices/platform/i8042/serio0/input/input0\n",
                boot,
                Some(keyboard(512_000_000)),
            ),
            (
                "[ 1.0] probe of i8042 returned 0 after 400000 usecs\n[ 1.1] initcall i8042_init+0x0/0x1 returned 0 after 500000 usecs\n",
                boot,
                Some(keyboard(500_000_000)),
            ),
            (
                "[ 2.4] probe of rtc_cmos returned 6 after 1108478 usecs\n",
                boot,
                Some(vec![Observed::Timed(TimedFunction::ClockProbe, 1_108_478_000)]),
            ),
            ("[ 2.4] probe of eth0 returned 6 after 1108478 usecs\n", boot, None),
            (
                "virtio-pci 0000:00:02.0: swiotlb buffer is full (sz: 262144 bytes),\ntotal 524288 (slots), used 523564 (slots)\n",
                messages,
                Some(said(LogMessage::BounceBufferFull)),
            ),
            (
                "[<0>] wait_for_random_bytes+0x57/0x60\n",
                messages,
                Some(said(LogMessage::WaitsForRandom)),
            ),
        ] {
            assert_eq!(reader(text), expected, "{text}");
        }
    }

    #[test]
    fn a_broken_ring_is_a_line_of_qemus() {
        let message = "virtio: bogus descriptor or out of resources";
        assert!(breaks_ring(&format!("qemu-system-x86_64: {message}][eta 22m]\n")));
        for told in [
            format!("there is no \"{message}\" in its log\n"),
            format!("virtio_error(vdev, \"{message}\");\n"),
            format!("grep \"qemu-kvm: {message}\" log\n"),
        ] {
            assert!(!breaks_ring(&told), "{told}");
        }
    }

    #[test]
    fn a_card_that_hangs_is_one_of_qemus() {
        let text = |driver: &str, machine: &str| {
            format!(
                "[ 24.0] NETDEV WATCHDOG: eth0 ({driver}): transmit queue 0 timed out\n[ 24.0] Hardware name: {machine}\n"
            )
        };
        let qemu = "QEMU Standard PC (i440FX + PIIX, 1996)";
        assert!(card_hangs(&text("e1000", qemu)));
        assert!(!card_hangs(&text("virtio_net", qemu)));
        // A host's card, beside its guest's log; a passed-through one.
        assert!(!card_hangs(&(text("e1000e", "Dell Inc. PowerEdge") + &text("igb", qemu))));
        assert!(!card_hangs(&format!("-device vfio-pci\n{}", text("e1000e", qemu))));
    }
}
