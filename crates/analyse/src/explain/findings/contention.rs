//! Who has the processors that vCPUs wait for.

use super::super::{Certainty, percent};
use super::{Cost, Finding, WORTH};
use crate::Ledger;
use crate::ledger::{Taken, running_ns};
use crate::remedy::Context;

/// Part of the taken time from which on a class of threads counts, and from which on it is most of it.
const PART: f64 = 0.2;
const MOST: f64 = 0.8;
const HALF: f64 = 0.5;

/// Below this much waiting nothing is concluded: the scheduler gives a thread some milliseconds at once (Linux kernel/sched/fair.c,
/// sysctl_sched_base_slice: 0.7 ms times 1 + log2 of the processors), so that it is a handful of turns.
const SOME_SLICES_NS: u64 = 10_000_000;

/// The part of the taken time in which threads of these names ran.
fn part(takers: &[(&str, Taken)], is: impl Fn(&str) -> bool) -> f64 {
    let ns = |is: &dyn Fn(&str) -> bool| -> f64 {
        takers.iter().filter(|(name, _)| is(name)).map(|(_, taken)| taken.time_ns as f64).sum()
    };
    ns(&is) / ns(&|_| true).max(1.0)
}

/// The idle task of a processor (Linux kernel/sched/idle.c): no thread runs. A runnable vCPU beside it is throttled, which the
/// scheduler does where a cgroup's quota is used up.
fn is_idle_task(name: &str) -> bool {
    name == "swapper" || name.starts_with("swapper/")
}

/// Whether vCPUs are held back while their processors are idle.
pub(in crate::explain) fn is_throttled(takers: &[(&str, Taken)]) -> bool {
    part(takers, is_idle_task) >= MOST
}

/// What classes of threads take processors.
fn remedies_of_takers(takers: &[(&str, Taken)]) -> Vec<&'static str> {
    if is_throttled(takers) {
        return vec!["cpu-quota"];
    }
    let part = |is: fn(&str) -> bool| part(takers, is) >= PART;
    let is_vcpu = |name: &str| {
        name.starts_with("CPU ") && name.contains("/KVM")
            || name.starts_with("vcpu")
            || name.starts_with("fc_vcpu")
            || name.starts_with("crosvm_vcpu")
    };
    let is_io = |name: &str| {
        name.starts_with("vhost-")
            || name.starts_with("IO ")
            || name.starts_with("iothread")
            || name.starts_with("qemu")
            || name.starts_with("worker")
    };
    let is_ksm = |name: &str| name == "ksmd";
    let mut ids = vec!["vcpu-pinning"];
    if part(is_vcpu) {
        ids.push("fewer-vcpus");
    }
    if part(is_io) {
        ids.push("iothread-pinning");
    }
    if part(is_ksm) {
        ids.push("ksm-off");
    }
    if takers.is_empty() || part(|name| !name.starts_with("CPU ") && !is_idle_task(name)) {
        ids.push("cpu-isolation");
    }
    if part(is_idle_task) {
        ids.push("cpu-quota");
    }
    // What takes most comes first.
    let first = [(is_io as fn(&str) -> bool, "iothread-pinning"), (is_ksm, "ksm-off")];
    if let Some((_, id)) = first.iter().find(|(is, _)| self::part(takers, is) >= HALF) {
        ids.sort_by_key(|one| one != id);
    }
    ids
}

/// vCPUs wait for processors.
pub(in crate::explain) fn contention(ledger: &Ledger, context: &Context) -> Option<Finding> {
    let share = ledger.contention()?;
    // Who runs on an emulated host is real; for how long goes by the emulator's clock, and a little of it is the recorder's.
    let emulated = ledger.recording.emulated.is_some();
    if share < if emulated { super::super::TAX_MATTERS } else { WORTH } {
        return None;
    }
    let time = ledger.time_total();
    if time.preempted_ns < SOME_SLICES_NS {
        return None;
    }
    let takers = ledger.takers();
    let count = takers.iter().map(|(_, taken)| taken.count).sum();
    let throttled = is_throttled(&takers);
    let means = if throttled {
        "vCPUs are held back while their processors are idle, as by a CPU quota (cpu.max): not a cost of exits"
    } else {
        "vCPUs wait for a processor that other threads occupy: not a cost of exits"
    };
    let certainty = if emulated { Certainty::Likely } else { Certainty::Certain };
    let mut finding = Finding::new("contention", means, certainty);
    let named: Vec<String> = takers
        .iter()
        .take(3)
        .map(|(name, taken)| {
            format!("{name} {}", percent(taken.time_ns as f64 / time.preempted_ns.max(1) as f64))
        })
        .collect();
    finding.evidence.push(format!(
        "preempted {} ms of {} ms that the vCPUs were not halted",
        time.preempted_ns / 1_000_000,
        running_ns(&time) / 1_000_000
    ));
    if !named.is_empty() {
        finding.evidence.push(format!("their processors ran: {}", named.join(", ")));
    }
    let worst = ledger.time.iter().filter_map(|((_, vcpu), t)| Some((t.contention()?, vcpu)));
    if let Some((most, vcpu)) = worst.max_by(|a, b| a.0.total_cmp(&b.0))
        && ledger.time.len() > 1
    {
        finding.evidence.push(format!("most: vCPU {vcpu}, {}", percent(most)));
    }
    let time_ns = time.preempted_ns;
    finding.cost =
        Cost::Time { low_ns: time_ns, high_ns: time_ns, base_ns: running_ns(&time), count };
    finding.weight = share;
    finding.disproof = "the vCPU threads' nonvoluntary_ctxt_switches stand still";
    finding.next = if throttled {
        "nr_throttled and throttled_usec in cpu.stat of the VM's cgroup and of those above it"
    } else if takers.is_empty() {
        "sched:sched_switch of all processors (perf record -a), which names the running threads"
    } else {
        "`vmtax doctor` says how the vCPUs are pinned"
    };
    finding.advise(&remedies_of_takers(&takers), context);
    Some(finding)
}
