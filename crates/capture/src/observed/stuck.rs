//! The function in which a CPU is stuck, or below which a task is blocked, by the stack that the kernel prints behind its message.

use vmtax_events::observed::{KvmWork, Observed, ShortName};
use vmtax_events::setting::host_pages::VIRTUAL;
use vmtax_events::{is_idle_function, is_vcpu_thread};

use super::lines;

/// Linux kernel/watchdog.c, kernel/rcu/tree_stall.h.
const STUCK: [&str; 4] = [
    "soft lockup - CPU#",
    "self-detected stall on CPU",
    "detected stalls on CPUs/tasks",
    "hard LOCKUP on cpu",
];
/// Linux kernel/hung_task.c.
const BLOCKED: &str = " blocked for more than ";
/// Lines of registers and of a stack.
const STACK: usize = 80;

/// Linux arch/x86/kernel/kvm.c: a vCPU that waits for a lock halts there.
const WAITS_FOR_LOCK: &str = "kvm_wait";

/// What waits for another function's sake: Linux kernel/sched, kernel/locking, lib.
const WAITS: [&str; 33] = [
    "preempt_schedule_common",
    "down_read_killable",
    "down_write_killable",
    "mutex_lock_killable",
    "__wait_rcu_gp",
    // Of OpenZFS: module/os/linux/spl/spl-condvar.c.
    "cv_wait_common",
    "__cv_wait",
    "schedule",
    "__schedule",
    "schedule_timeout",
    "io_schedule",
    "io_schedule_timeout",
    "schedule_preempt_disabled",
    "__switch_to",
    "context_switch",
    "wait_for_completion",
    "wait_for_completion_io",
    "__wait_for_common",
    "wait_for_common",
    "do_wait_for_common",
    "bit_wait",
    "bit_wait_io",
    "__wait_on_bit",
    "__wait_on_bit_lock",
    "out_of_line_wait_on_bit",
    "rwsem_down_read_slowpath",
    "rwsem_down_write_slowpath",
    "__mutex_lock",
    "__mutex_lock_slowpath",
    "mutex_lock",
    "down_read",
    "down_write",
    "wait_for_completion_timeout",
];

/// What enters the kernel: a stack that names no function above it shows nothing. Linux arch/x86/entry, arch/x86/kernel/process.c.
const ENTRIES: [&str; 4] = ["entry_", "do_syscall_", "ret_from_fork", "kthread"];

/// Functions of Linux by the work that goes through them; the first row of which a function is on a stack names it.
const WORKS: [(KvmWork, &[&str]); 8] = [
    // arch/x86/kvm/svm/sev.c, arch/x86/kvm/vmx/tdx.c.
    (
        KvmWork::EncryptedMemory,
        &["sev_unpin_memory", "__unregister_enc_region_locked", "sev_vm_destroy", "tdx_vm_destroy"],
    ),
    // drivers/vfio/vfio_iommu_type1.c.
    (
        KvmWork::DeviceUnmapping,
        &["vfio_remove_dma", "vfio_unmap_unpin", "vfio_iommu_type1_detach_group"],
    ),
    (
        KvmWork::DeviceMapping,
        &["vfio_pin_pages_remote", "vfio_pin_map_dma", "vfio_dma_do_map", "vfio_iommu_map"],
    ),
    // virt/kvm/kvm_main.c, arch/x86/kvm/mmu/mmu.c.
    (
        KvmWork::DirtyLog,
        &[
            "kvm_get_dirty_log_protect",
            "kvm_vm_ioctl_get_dirty_log",
            "kvm_clear_dirty_log_protect",
            "kvm_vm_ioctl_clear_dirty_log",
            "kvm_mmu_slot_remove_write_access",
            "kvm_mmu_slot_leaf_clear_dirty",
            "kvm_mmu_slot_try_split_huge_pages",
            "kvm_mmu_zap_collapsible_sptes",
            "kvm_mmu_recover_huge_pages",
        ],
    ),
    (
        KvmWork::MemorySlot,
        &["kvm_set_memslot", "__kvm_set_memory_region", "kvm_arch_flush_shadow_memslot"],
    ),
    (
        KvmWork::EndOfVm,
        &[
            "kvm_destroy_vm",
            "kvm_arch_destroy_vm",
            "kvm_mmu_notifier_release",
            "kvm_arch_flush_shadow_all",
            "kvm_flush_shadow_all",
        ],
    ),
    (
        KvmWork::Unmapping,
        &["kvm_mmu_notifier_invalidate_range_start", "kvm_unmap_hva_range", "kvm_gmem_punch_hole"],
    ),
    (
        KvmWork::NxRecovery,
        &[
            "kvm_recover_nx_huge_pages",
            "kvm_recover_nx_lpages",
            "kvm_nx_lpage_recovery_worker",
            "kvm_nx_huge_page_recovery_worker",
        ],
    ),
];

/// A CPU that waits there waits for others: what goes on below says nothing of them.
const OTHERS: [&str; 8] = [
    "kvm_wait",
    "spin_lock_slowpath",
    "_raw_spin_lock",
    "_raw_read_lock",
    "_raw_write_lock",
    "_lock_slowpath",
    "smp_call_function",
    "csd_lock_wait",
];
/// Interrupts whose work is none of what they interrupted: Linux kernel/softirq.c, net/core/dev.c.
const SOFTIRQ: [&str; 4] = ["__do_softirq", "handle_softirqs", "net_rx_action", "__napi_poll"];
/// Products beside those of [`VIRTUAL`] that are VMs where the line names no metal: a log has vendor and product in one.
const ALSO_VIRTUAL: [&str; 5] =
    ["Amazon EC2", "Virtual Machine", "Bochs", "Alibaba Cloud", "DigitalOcean"];

/// The number behind these words.
fn number(line: &str, words: &str) -> Option<u32> {
    let rest = line.split_once(words)?.1.trim_start_matches('#');
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The name of a line of a stack that holds nothing else: `func+0x12/0x34 [module]`, behind a log's marks. `None` of other lines, and of what is old on the stack.
fn frame(line: &str) -> Option<&str> {
    let line = line.rsplit_once("kernel: ").map_or(line, |(_, frame)| frame);
    let frame = line.trim().rsplit("] ").find(|part| part.contains("+0x")).unwrap_or(line.trim());
    let mut words = frame.split([' ', '\t']).filter(|word| !word.is_empty() && *word != ">");
    let name = words.next()?;
    // `[kvm BUILD-ID]`, and arm64's `(P)`.
    let is_module = |word: &str| word.starts_with(['[', '(']) || word.ends_with(']');
    let is_whole = name.split_once("+0x").is_some_and(|(_, rest)| rest.contains("/0x"));
    (is_whole && words.all(is_module)).then(|| function(name)).flatten()
}

/// The work of KVM or VFIO in which the CPU of a message is, by the first stack behind it; `lines` begin with the message.
fn work(lines: &[&str]) -> Option<KvmWork> {
    let (message, rest) = lines.split_first()?;
    // What a kernel prints, and no words about it.
    let lockup = number(message, "soft lockup - CPU");
    let is_message = lockup.is_some() && message.contains(" stuck for ")
        || message.contains("rcu: INFO: ")
        || message.contains("INFO: rcu_")
        || number(message, "hard LOCKUP on cpu ").is_some();
    if !is_message {
        return None;
    }
    let (mut stack, mut is_open) = (Vec::new(), false);
    // Functions of interrupts that came on top.
    let (mut interrupts, mut in_interrupt) = (Vec::new(), false);
    for line in rest.iter().take(STACK) {
        // Also before a function in the same line: kernels before 4.10.
        if ["</IRQ>", "<EOI>"].iter().any(|mark| line.contains(mark)) {
            in_interrupt = false;
        } else if line.contains("<IRQ>") {
            in_interrupt = true;
        }
        let of_other = number(line, "NMI backtrace for cpu ")
            .is_some_and(|cpu| lockup.is_some_and(|stuck| stuck != cpu));
        let is_virtual = line.contains("Hardware name:")
            && !line.contains(".metal")
            && VIRTUAL.iter().chain(&ALSO_VIRTUAL).any(|name| line.contains(name));
        let ends = is_other_message(line)
            || STUCK.iter().any(|words| line.contains(words))
            || of_other
            || is_virtual
            || line.contains("Tasks blocked on")
            || line.contains("kthread");
        if ends {
            break;
        }
        match frame(line) {
            Some(name) if in_interrupt => interrupts.push(name),
            Some(name) => stack.push(name),
            None => {
                if let Some(name) = at(line) {
                    // The register is of what the marks below say.
                    stack.push(name);
                } else if line.contains("all Trace:") {
                    // The second stack is of another message.
                    if is_open {
                        break;
                    }
                    is_open = true;
                } else if is_open && !line.trim().is_empty() {
                    let known = [
                        "TASK>", "IRQ>", "EOI>", "NMI>", "...", " ? ", "RIP:", "RSP:", "Code:",
                        "RA", "RB", "RD", "R0", "R1",
                    ];
                    let is_old = line.starts_with("? ");
                    if !is_old && !known.iter().any(|word| line.contains(word)) {
                        break;
                    }
                }
            }
        }
    }
    let waits = |name: &&str| OTHERS.iter().any(|other| name.contains(other));
    if stack.iter().take(4).any(waits) || interrupts.iter().any(|name| SOFTIRQ.contains(name)) {
        return None;
    }
    let found = WORKS.iter().find(|(_, names)| names.iter().any(|name| stack.contains(name)));
    found.map(|(work, _)| *work)
}

/// A line that begins another message than a stack's.
fn is_other_message(line: &str) -> bool {
    ["WARNING: ", "BUG: ", "INFO: ", "---[ end trace"].iter().any(|word| line.contains(word))
}

/// The lines of a message, up to the next one.
fn stack_of<'a, 'b>(lines: &'b [&'a str]) -> &'b [&'a str] {
    let end = lines.iter().position(|line| is_other_message(line)).unwrap_or(lines.len());
    &lines[..end.min(STACK)]
}

/// The name in `func+0x12/0x34 [module]`, or before it addresses of older kernels.
fn function(line: &str) -> Option<&str> {
    let word = line.split([' ', '\t']).find(|word| word.contains("+0x"))?;
    let name = word.split("+0x").next()?;
    // The compiler's parts of a function have its name.
    let name = [".part.", ".isra.", ".constprop.", ".cold"]
        .iter()
        .fold(name, |name, part| name.split(part).next().unwrap_or(name));
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_').then_some(name)
}

/// Where a CPU was: the register of instructions on x86, arm64, PowerPC, RISC-V and s390.
fn at(line: &str) -> Option<&str> {
    const REGISTERS: [&str; 7] =
        ["RIP: 0010:", "RIP: e030:", "pc : ", "EIP is at ", "EIP: ", "epc : ", "NIP ["];
    REGISTERS.iter().find_map(|register| function(line.split_once(register)?.1))
}

/// Whether each CPU of a text that is stuck is in work of KVM or VFIO: none of them lacked a processor.
pub(super) fn all_in_work(text: &str) -> bool {
    let all: Vec<&str> = lines(text).collect();
    let is_stuck = |line: &str| STUCK.iter().any(|words| line.contains(words));
    let mut stuck = (0..all.len()).filter(|at| is_stuck(all[*at])).peekable();
    stuck.peek().is_some() && stuck.all(|at| work(&all[at..]).is_some())
}

pub(super) fn functions(text: &str) -> Option<Vec<Observed>> {
    let mut found: Vec<Observed> = Vec::new();
    let mut add = |observed: Observed| {
        if !found.contains(&observed) && found.len() < 4 {
            found.push(observed);
        }
    };
    // Lines that are left of the last message's stack, and of the last blocked task's.
    let (mut stuck, mut blocked) = (0usize, 0usize);
    let mut of_vmm = false;
    let all: Vec<&str> = lines(text).collect();
    for (at_line, line) in all.iter().copied().enumerate() {
        if STUCK.iter().any(|words| line.contains(words)) {
            (stuck, blocked) = (STACK, 0);
            if let Some(work) = work(&all[at_line..]) {
                stuck = 0;
                add(Observed::HostStuckIn(work));
            }
        } else if let Some((_, task)) = line.split_once("INFO: task ") {
            // Threads of vCPUs are of a host, and have a finding of their own.
            let name = task.split_once(BLOCKED).and_then(|(name, _)| name.rsplit_once(':'));
            let name = name.map_or("", |(name, _)| name);
            let is_read = !name.is_empty() && !is_vcpu_thread(name);
            (stuck, blocked) = (0, if is_read { STACK } else { 0 });
            // QEMU's own names, cut to 15 characters; its agent (qemu-ga) runs in guests, and qemu-img is no VM's.
            of_vmm = name.starts_with("qemu-system") || ["qemu-kvm", "kvm"].contains(&name);
            let is_vcpu = |line: &&str| line.contains("kvm_arch_vcpu_ioctl_run+");
            if of_vmm && stack_of(&all[at_line + 1..]).iter().any(is_vcpu) {
                blocked = 0;
            }
        } else if stuck > 0 {
            stuck -= 1;
            if let Some(name) = at(line) {
                stuck = 0;
                if let Some(name) = ShortName::new(name)
                    .filter(|_| !is_idle_function(name) && name != WAITS_FOR_LOCK)
                {
                    add(Observed::StuckIn(name));
                }
            }
        } else if blocked > 0 {
            blocked = if is_other_message(line) { 0 } else { blocked - 1 };
            // What is old on a stack has a mark.
            let name = function(line).filter(|name| {
                !line.contains(" ? ") && !line.starts_with("? ") && !WAITS.contains(name)
            });
            if let Some(name) = name.filter(|_| blocked > 0 && !line.contains("RIP:")) {
                blocked = 0;
                let is_entry = ENTRIES.iter().any(|entry| name.starts_with(entry));
                if let Some(name) = ShortName::new(name).filter(|_| !is_entry) {
                    add(if of_vmm {
                        Observed::VmmBlockedIn(name)
                    } else {
                        Observed::BlockedIn(name)
                    });
                }
            }
        }
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let name = |one: &Observed| match one {
            Observed::StuckIn(name) => format!("stuck {}", name.as_str()),
            Observed::BlockedIn(name) => format!("blocked {}", name.as_str()),
            Observed::VmmBlockedIn(name) => format!("QEMU {}", name.as_str()),
            Observed::HostStuckIn(work) => format!("host {}", work.name()),
            other => format!("{other:?}"),
        };
        functions(text).unwrap_or_default().iter().map(name).collect()
    }

    #[test]
    fn the_function_is_named() {
        let lockup = "[ 60.1] watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [kworker/3:1:77]\n";
        for (stack, expected) in [
            (
                "[ 60.1] RIP: 0010:smp_call_function_many_cond+0x12c/0x390\n",
                "stuck smp_call_function_many_cond",
            ),
            (
                "[ 60.1] RIP: 0010:[<ffffffff810e2>]  [<ffffffff810e2>] multi_cpu_stop+0x52/0xf0\n",
                "stuck multi_cpu_stop",
            ),
            (
                "[ 60.1] pc : queued_spin_lock_slowpath+0x64/0x3a0\n",
                "stuck queued_spin_lock_slowpath",
            ),
            ("[ 60.1] RIP: 0010:clear_page_erms.part.0+0x7/0x10\n", "stuck clear_page_erms"),
        ] {
            assert_eq!(
                said(&format!("{lockup}[ 60.1] Modules linked in: x\n{stack}")),
                [expected],
                "{stack}"
            );
        }
        let idle = "[ 60.1] RIP: 0010:native_safe_halt+0xe/0x10\n";
        assert_eq!(said(&format!("{lockup}{idle}")), Vec::<String>::new());
        assert_eq!(said(&format!("{lockup}[ 60.1] RIP: 0033:0x7f21\n")), Vec::<String>::new());
        assert_eq!(said("[ 60.1] RIP: 0010:multi_cpu_stop+0x52/0xf0\n"), Vec::<String>::new());
    }

    #[test]
    fn work_of_a_host_is_named_by_its_stack() {
        let lockup = "watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [qemu:77]\nRIP: 0010:free_unref_page_list+0x1/0x2\nCall Trace:\n";
        for (stack, expected) in [
            (
                " sev_unpin_memory+0x2c/0x50 [kvm_amd]\n kvm_arch_destroy_vm+0x1/0x2\n",
                "host encrypted-memory",
            ),
            (" kvm_mmu_zap_all_fast+0x1/0x2\n kvm_set_memslot+0x1/0x2\n", "host memory-slot"),
            (" kvm_mmu_zap_all+0x1/0x2\n kvm_destroy_vm+0x1/0x2\n", "host end-of-vm"),
            (
                " vfio_remove_dma+0x38/0x124 [vfio_iommu_type1]\n kvm_destroy_vm+0x1/0x2\n",
                "host device-unmapping",
            ),
            // Old words on the stack say nothing.
            (" ? kvm_set_memslot+0x1/0x2\n", "stuck free_unref_page_list"),
            (" release_pages+0x1/0x2\n", "stuck free_unref_page_list"),
            // Another message begins, another CPU's stack, a second stack.
            ("WARNING: CPU: 1 at x.c:1\n kvm_set_memslot+0x1/0x2\n", "stuck free_unref_page_list"),
            (
                " release_pages+0x1/0x2\nNMI backtrace for cpu 1\nCall Trace:\n kvm_set_memslot+0x1/0x2\n",
                "stuck free_unref_page_list",
            ),
            (
                " release_pages+0x1/0x2\nCPU: 1 PID: 9 Comm: x\nCall Trace:\n kvm_destroy_vm+0x1/0x2\n",
                "stuck free_unref_page_list",
            ),
            // It waits for others; an interrupt's work.
            (
                " _raw_spin_lock+0x1/0x2\n kvm_mmu_notifier_invalidate_range_start+0x1/0x2\n",
                "stuck free_unref_page_list",
            ),
            (
                " <IRQ>\n ixgbe_poll+0x1/0x2\n net_rx_action+0x1/0x2\n </IRQ>\n kvm_set_memslot+0x1/0x2\n",
                "stuck free_unref_page_list",
            ),
            // No lines of a stack.
            ("kvm_set_memslot+0x12/0x300 is not on the stack.\n", "stuck free_unref_page_list"),
            (" #0: (slots_lock), at: kvm_set_memslot+0x1/0x2\n", "stuck free_unref_page_list"),
        ] {
            assert_eq!(said(&format!("{lockup}{stack}")), [expected], "{stack}");
        }
        for none in [
            " kvm_set_memslot+0x1/0x2\n",
            "I grepped for 'soft lockup - CPU#' in vain\n kvm_set_memslot+0x1/0x2\n",
            "there is no \"self-detected stall on CPU\"\n kvm_set_memslot+0x1/0x2\n",
            // The host of nested guests is a guest.
            "watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [q:7]\nHardware name: QEMU Standard PC\nCall Trace:\n kvm_set_memslot+0x1/0x2\n",
        ] {
            assert_eq!(said(none), Vec::<String>::new(), "{none}");
        }
    }

    #[test]
    fn a_blocked_task_is_below_a_function() {
        let task = "INFO: task jbd2/vda1-8:277 blocked for more than 120 seconds.\n";
        let stack = "Call Trace:\n __schedule+0x2e3/0x740\n schedule+0x42/0xb0\n ? old+0x1/0x2\n io_schedule+0x12/0x40\n jbd2_journal_commit_transaction+0x25f/0x17e0\n";
        assert_eq!(said(&format!("{task}{stack}")), ["blocked jbd2_journal_commit_transaction"]);
        assert_eq!(said(stack), Vec::<String>::new());
        let vcpu = "INFO: task CPU 0/KVM:277 blocked for more than 120 seconds.\n";
        assert_eq!(said(&format!("{vcpu}{stack}")), Vec::<String>::new());
        let qemu = "INFO: task qemu-kvm:277 blocked for more than 120 seconds.\n";
        assert_eq!(said(&format!("{qemu}{stack}")), ["QEMU jbd2_journal_commit_transaction"]);
        let agent = "INFO: task qemu-ga:277 blocked for more than 120 seconds.\n";
        assert_eq!(said(&format!("{agent}{stack}")), ["blocked jbd2_journal_commit_transaction"]);
        let runs = format!("{qemu}{stack} kvm_arch_vcpu_ioctl_run+0x1/0x2\n");
        assert_eq!(said(&runs), Vec::<String>::new());
        let waits = "Call Trace:\n schedule+0x1/0x2\n entry_SYSCALL_64_after_hwframe+0x1/0x2\n";
        assert_eq!(said(&format!("{task}{waits}{stack}")), Vec::<String>::new());
        let other = "Call Trace:\n schedule+0x1/0x2\nWARNING: CPU: 1 PID: 2 at x.c:1\n usb_submit_urb+0x1/0x2\n";
        assert_eq!(said(&format!("{task}{other}")), Vec::<String>::new());
    }
}
