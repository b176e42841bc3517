//! Who has the processors that vCPUs wait for.

use vmtax_events::is_vcpu_thread;

use super::super::certainty::Certainty;
use super::super::finding::{CpuHolder, Evidence, Finding, FindingCost, FoundKind};
use super::super::sums::{TAX_MATTERS, WORTH, total};
use crate::Ledger;
use crate::ledger::{TakenTime, Taker, running_ns};
use crate::remedy::{Context, RemedyId};

/// Part of the taken time from which on a class of threads counts, and from which on it is most of it.
const PART: f64 = 0.2;
const MOST: f64 = 0.8;
const HALF: f64 = 0.5;
/// Threads that are named.
const NAMED: usize = 3;

/// Below this much waiting nothing is concluded: the scheduler gives a thread some milliseconds at once (Linux kernel/sched/fair.c,
/// sysctl_sched_base_slice: 0.7 ms times 1 + log2 of the processors), so that it is a handful of turns.
const SOME_SLICES_NS: u64 = 10_000_000;

/// The part of the taken time in which such threads ran.
fn part(takers: &[(&Taker, TakenTime)], is: impl Fn(&Taker) -> bool) -> f64 {
    let ns = |is: &dyn Fn(&Taker) -> bool| -> f64 {
        let wanted = takers.iter().filter(|(taker, _)| is(taker));
        wanted.map(|(_, taken)| taken.time_ns as f64).sum()
    };
    ns(&is) / ns(&|_| true).max(1.0)
}

/// The idle task of a processor (Linux kernel/sched/idle.c): no thread runs. A runnable vCPU beside it is throttled, which the
/// scheduler does where a cgroup's quota is used up.
fn is_idle_task(taker: &Taker) -> bool {
    &*taker.name == "swapper" || taker.name.starts_with("swapper/")
}

/// A vCPU's thread: the recording has its exits, or it has the name of one.
fn is_vcpu(taker: &Taker) -> bool {
    taker.vcpu.is_some() || is_vcpu_thread(&taker.name)
}

fn is_io(taker: &Taker) -> bool {
    let names = ["vhost-", "IO ", "iothread", "qemu", "worker"];
    !is_vcpu(taker) && names.iter().any(|start| taker.name.starts_with(start))
}

/// Threads that handle interrupts of devices (Linux kernel/irq/manage.c, kernel/softirq.c).
fn is_irq(taker: &Taker) -> bool {
    taker.name.starts_with("irq/") || taker.name.starts_with("ksoftirqd/")
}

fn is_ksm(taker: &Taker) -> bool {
    &*taker.name == "ksmd"
}

/// Whether vCPUs are held back while their processors are idle.
pub(in crate::explain) fn is_throttled(takers: &[(&Taker, TakenTime)]) -> bool {
    part(takers, is_idle_task) >= MOST
}

/// Whether threads that do the VMM's I/O are what vCPUs wait for.
pub(in crate::explain) fn is_of_io(takers: &[(&Taker, TakenTime)]) -> bool {
    part(takers, is_io) >= HALF
}

/// What classes of threads take processors.
fn remedies_of_takers(ledger: &Ledger, takers: &[(&Taker, TakenTime)]) -> Vec<RemedyId> {
    if is_throttled(takers) {
        return vec![RemedyId::CpuQuota];
    }
    let takes = |is: fn(&Taker) -> bool| part(takers, is) >= PART;
    let mut ids = vec![RemedyId::VcpuPinning];
    if takes(is_vcpu) {
        ids.push(RemedyId::FewerVcpus);
    }
    if takes(is_io) {
        ids.push(RemedyId::IothreadPinning);
    }
    if takes(is_ksm) {
        ids.push(RemedyId::KsmOff);
    }
    // Softirqs beside other threads are mostly work of those.
    if part(takers, is_irq) >= HALF {
        ids.push(RemedyId::IrqThreads);
    }
    // Isolation keeps other tasks away: no vCPU, and nothing that is placed by a remedy of its own.
    if takers.is_empty() || takes(|taker| !is_vcpu(taker) && !is_idle_task(taker)) {
        ids.push(RemedyId::CpuIsolation);
    }
    if takes(is_idle_task) {
        ids.push(RemedyId::CpuQuota);
    }
    // What takes most comes first. With more vCPUs than processors no pinning parts them.
    let crowded = takes(is_vcpu) && has_too_many_vcpus(ledger);
    let first = [
        (is_of_io(takers), RemedyId::IothreadPinning),
        (part(takers, is_ksm) >= HALF, RemedyId::KsmOff),
        (part(takers, is_irq) >= HALF, RemedyId::IrqThreads),
        (crowded, RemedyId::FewerVcpus),
    ];
    if let Some((_, id)) = first.iter().find(|(is_first, _)| *is_first) {
        ids.sort_by_key(|one| one != id);
    }
    ids
}

/// Time that vCPUs waited while others than the recorder had their processors, ns: the recorder's own is a cost of recording.
fn waited_ns(ledger: &Ledger) -> u64 {
    ledger.time_total().preempted_ns.saturating_sub(ledger.recorder_ns())
}

/// The VM has more vCPUs than the computer has processors.
fn has_too_many_vcpus(ledger: &Ledger) -> bool {
    let cpus = ledger.recording.cpus as usize;
    cpus > 0 && ledger.time.len() > cpus
}

/// The part of the running time in which vCPUs wait for processors that others than the recorder have, if it is more than some turns.
pub(in crate::explain) fn lasting_contention(ledger: &Ledger) -> Option<f64> {
    ledger.contention()?;
    let waited_ns = waited_ns(ledger);
    let running_ns = running_ns(&ledger.time_total());
    (waited_ns >= SOME_SLICES_NS).then(|| waited_ns as f64 / running_ns.max(1) as f64)
}

fn holder(takers: &[(&Taker, TakenTime)]) -> CpuHolder {
    if is_throttled(takers) {
        CpuHolder::Quota
    } else if part(takers, |taker| taker.is_own) >= MOST {
        CpuHolder::OwnVcpus
    } else if takers.is_empty() {
        CpuHolder::Unknown
    } else {
        CpuHolder::Threads
    }
}

/// Who had the processors for most of this time, ns.
fn named(ledger: &Ledger, takers: &[(&Taker, TakenTime)], waited_ns: u64) -> Option<Evidence> {
    let name = |(taker, taken): &(&Taker, TakenTime)| {
        (taker.label(&ledger.recording), taken.time_ns as f64 / waited_ns.max(1) as f64)
    };
    (!takers.is_empty()).then(|| Evidence::Takers(takers.iter().take(NAMED).map(name).collect()))
}

/// The scheduler alone was recorded, or a text shows what its threads waited: who has the processors, where that is known.
pub(super) fn without_exits(ledger: &Ledger, context: &Context) -> Finding {
    let takers = ledger.takers();
    let mut finding = Finding::new(FoundKind::Contention(holder(&takers)), Certainty::Likely);
    if !takers.is_empty() {
        let waited_ns = total(takers.iter().map(|(_, taken)| taken.time_ns));
        finding.evidence.extend(named(ledger, &takers, waited_ns));
        finding.advise(&remedies_of_takers(ledger, &takers), context);
    }
    finding
}

/// vCPUs wait for processors.
pub(in crate::explain) fn contention(ledger: &Ledger, context: &Context) -> Option<Finding> {
    let share = lasting_contention(ledger)?;
    // Who runs on an emulated host is real; for how long goes by the emulator's clock.
    let emulated = ledger.recording.emulated.is_some();
    if share < if emulated { TAX_MATTERS } else { WORTH } {
        return None;
    }
    let time = ledger.time_total();
    let all = ledger.takers();
    let takers: Vec<(&Taker, TakenTime)> =
        all.iter().filter(|(taker, _)| !taker.is_recorder(&ledger.recording)).copied().collect();
    let count = total(takers.iter().map(|(_, taken)| taken.count));
    let certainty = if emulated { Certainty::Likely } else { Certainty::Certain };
    let mut finding = Finding::new(FoundKind::Contention(holder(&takers)), certainty);
    let (time_ns, running_ns) = (waited_ns(ledger), running_ns(&time));
    finding.evidence.push(Evidence::Preempted { ns: time_ns, running_ns });
    finding.evidence.extend(named(ledger, &all, time.preempted_ns));
    if ledger.recorder_ns() > 0 {
        finding.evidence.push(Evidence::Recorder { ns: ledger.recorder_ns(), running_ns });
    }
    let worst = ledger.time.iter().filter_map(|((_, vcpu), t)| Some((t.contention()?, vcpu)));
    if let Some((most, vcpu)) = worst.max_by(|a, b| a.0.total_cmp(&b.0))
        && ledger.time.len() > 1
    {
        finding.evidence.push(Evidence::WorstVcpu(*vcpu, most));
    }
    finding.cost =
        FindingCost::Time { low_ns: time_ns, high_ns: time_ns, base_ns: running_ns, count };
    finding.weight = share;
    finding.advise(&remedies_of_takers(ledger, &takers), context);
    Some(finding)
}
