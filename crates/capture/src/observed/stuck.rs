//! The function in which a CPU is stuck, or below which a task is blocked, by the stack that the kernel prints behind its message.

use vmtax_events::observed::{Observed, ShortName};
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
const WAITS: [&str; 28] = [
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
    for line in lines(text) {
        if STUCK.iter().any(|words| line.contains(words)) {
            (stuck, blocked) = (STACK, 0);
        } else if let Some((_, task)) = line.split_once("INFO: task ") {
            // Threads of vCPUs are of a host, and have a finding of their own.
            let name = task.split_once(BLOCKED).and_then(|(name, _)| name.rsplit_once(':'));
            let name = name.map_or("", |(name, _)| name);
            (stuck, blocked) = (0, if is_vcpu_thread(name) { 0 } else { STACK });
            of_vmm = name.starts_with("qemu");
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
            blocked -= 1;
            // What is old on a stack has a mark.
            let name = function(line).filter(|name| {
                !line.contains(" ? ") && !line.starts_with("? ") && !WAITS.contains(name)
            });
            if let Some(name) = name.filter(|_| !line.contains("RIP:")) {
                blocked = 0;
                if let Some(name) = ShortName::new(name) {
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
    fn a_blocked_task_is_below_a_function() {
        let task = "INFO: task jbd2/vda1-8:277 blocked for more than 120 seconds.\n";
        let stack = "Call Trace:\n __schedule+0x2e3/0x740\n schedule+0x42/0xb0\n ? old+0x1/0x2\n io_schedule+0x12/0x40\n jbd2_journal_commit_transaction+0x25f/0x17e0\n";
        assert_eq!(said(&format!("{task}{stack}")), ["blocked jbd2_journal_commit_transaction"]);
        assert_eq!(said(stack), Vec::<String>::new());
        let vcpu = "INFO: task CPU 0/KVM:277 blocked for more than 120 seconds.\n";
        assert_eq!(said(&format!("{vcpu}{stack}")), Vec::<String>::new());
        let qemu = "INFO: task qemu-kvm:277 blocked for more than 120 seconds.\n";
        assert_eq!(said(&format!("{qemu}{stack}")), ["QEMU jbd2_journal_commit_transaction"]);
    }
}
