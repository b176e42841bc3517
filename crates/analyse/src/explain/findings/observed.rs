//! What texts of ordinary tools show.

use vmtax_events::observed::{KernelThread, LogMessage, Observed, TimedFunction};

use super::super::certainty::Certainty;
use super::super::finding::{Advice, CpuHolder, Evidence, Finding, FoundKind};
use super::super::interrupts::LineTimer;
use super::super::subject::Subject;
use super::super::sums::TAX_MATTERS;
use super::contention;
use crate::Ledger;
use crate::remedy::{Applies, Context, RemedyId};

/// A part of a processor from which on a thread of the kernel matters.
const BUSY: f64 = 0.10;
/// KiB a second from which on swapping matters: 256 pages.
const SWAPPING: f64 = 1024.0;

/// A part of the changes of interrupt lines from which on a device's line matters.
const OFTEN: f64 = 0.30;

/// A part of a VMM's memory on other nodes from which on it matters.
const ELSEWHERE: f64 = 0.10;

/// A function that takes as long at its slowest is slow: KVM_CREATE_VM takes 0.3 ms, a registration some microseconds.
const LONG_NS: u64 = 1_000_000;

/// Waiting for locks, of one thread, from which on it matters.
const WAITS_NS: u64 = 100_000_000;

/// A wait of a vCPU that can run from which on it matters by itself, however rare: longer than a turn of the scheduler (Linux kernel/sched/fair.c,
/// sysctl_sched_base_slice: 0.7 ms times 1 + log2 of the processors), and what programs notice.
const LATE_NS: u64 = 10_000_000;

/// A disk is busy from this part of the time on, and its requests wait from so many milliseconds on: a disk that moves its heads takes half as long.
const BUSY_DISK: f64 = 0.9;
const AWAIT_MS: f64 = 20.0;

/// A part of a processor's time in the kernel from which on it matters: it is more than the guest's.
const IN_KERNEL: f64 = 0.5;

/// What one thing means, the remedies, and what must hold for them beside their own conditions.
type Means = (FoundKind, &'static [RemedyId], Option<&'static str>);

fn meaning(observed: Observed) -> Option<Means> {
    use RemedyId as R;
    Some(match observed {
        Observed::Steal(share) if share >= TAX_MATTERS => (
            FoundKind::Contention(CpuHolder::Host),
            &[R::FewerVcpus, R::CpuQuota],
            Some("you run the host; of a rented VM only its provider can"),
        ),
        Observed::Throttled { throttled, periods }
            if periods > 0 && throttled as f64 >= periods as f64 * TAX_MATTERS =>
        {
            (FoundKind::Contention(CpuHolder::Quota), &[R::CpuQuota], None)
        }
        Observed::Clock(_) => (
            FoundKind::Exits(Subject::ClockReads),
            &[R::GuestClocksource],
            Some("it is the guest's clock, and not its host's"),
        ),
        Observed::Line { rtc, .. } => (
            FoundKind::LineTimer(if rtc { LineTimer::Rtc } else { LineTimer::PitOrHpet }),
            &[],
            None,
        ),
        Observed::Thread(thread, share) if share >= BUSY => match thread {
            KernelThread::Ksmd => (FoundKind::PageMerging, &[R::KsmOff], None),
            KernelThread::Kcompactd => {
                (FoundKind::Compaction, &[R::ThpDefer, R::HugetlbMemory], None)
            }
            KernelThread::Khugepaged => return None,
            KernelThread::Kswapd => (FoundKind::Reclaim, &[R::ResidentMemory], None),
            KernelThread::KvmPit => (FoundKind::LineTimer(LineTimer::Pit), &[], None),
        },
        Observed::Swapping { out, back } if out + back >= SWAPPING => {
            (FoundKind::Reclaim, &[R::ResidentMemory], None)
        }
        Observed::NoKvm => (FoundKind::NoKvm, &[], None),
        Observed::IdleInside { .. } => (FoundKind::IdleInside, &[], None),
        Observed::MigrationBehind { .. } => (FoundKind::MigrationBehind, &[], None),
        Observed::StealCounter | Observed::StealFalls => (FoundKind::StealCounter, &[], None),
        Observed::StuckIn(function) => (FoundKind::StuckIn(function), &[], None),
        Observed::HostStuckIn(work) => (FoundKind::HostStuckIn(work), &[], None),
        Observed::BlockedIn(function) => (FoundKind::BlockedIn(function), &[], None),
        Observed::VmmBlockedIn(function) => (FoundKind::VmmBlockedIn(function), &[], None),
        Observed::BootGaps { before, .. } => (FoundKind::BootGaps(before), &[], None),
        Observed::Named(cost, _) => (FoundKind::Named(cost), &[], None),
        Observed::Timed(function, ns) if ns >= LONG_NS => {
            let remedies: &[RemedyId] = match function {
                TimedFunction::NumaBalancing => &[R::NoNumaBalancing],
                TimedFunction::WorkerThread | TimedFunction::CreateVm => {
                    &[R::FavorDynmods, R::RcuExpedited, R::NxHugePagesNever]
                }
                TimedFunction::SwapSlots | TimedFunction::CreateSlot => &[R::SlotsFirst],
                TimedFunction::UnregisterDevice | TimedFunction::Ioeventfd => &[R::FewerIoeventfds],
                TimedFunction::Keyboard => &[R::NoI8042],
                TimedFunction::IrqBypass
                | TimedFunction::ClockProbe
                | TimedFunction::Fsync
                | TimedFunction::EndDirtyLogging
                | TimedFunction::ClearDirtyLog
                | TimedFunction::MarkIdle => &[],
            };
            (FoundKind::SlowFunction(function), remedies, None)
        }
        Observed::Mitigation(_) => (FoundKind::Mitigations, &[], None),
        Observed::LockWaits { most_ns, .. } if most_ns >= WAITS_NS => {
            (FoundKind::LockWaits, &[], None)
        }
        Observed::OneProcessor { .. } => (FoundKind::OneProcessor, &[], None),
        Observed::Disk { name, busy, await_ms } if busy >= BUSY_DISK && await_ms >= AWAIT_MS => {
            (FoundKind::BusyDisk(name), &[], None)
        }
        Observed::HostKernel(share) if share >= IN_KERNEL => (FoundKind::HostKernel, &[], None),
        Observed::Nodes { elsewhere, .. } if elsewhere >= ELSEWHERE => (
            FoundKind::SpreadMemory,
            &[R::NumaNode],
            Some(
                "the VM fits into one node, and its vCPUs run on that one; a VM that needs several has nodes of its own, each bound to one of the host's",
            ),
        ),
        Observed::DeviceLine { share, .. } if share >= OFTEN => {
            (FoundKind::Exits(Subject::LevelInterrupts), &[R::Msi], None)
        }
        Observed::Message(message) => {
            let remedies: &[RemedyId] = match message {
                LogMessage::VhostFallback => &[R::Vhost],
                LogMessage::OutOfMemory => &[R::ResidentMemory],
                _ => &[],
            };
            (FoundKind::Message(message), remedies, None)
        }
        _ => return None,
    })
}

/// The findings.
pub(in crate::explain) fn of_observed(ledger: &Ledger, context: &Context) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    // How late they are stands behind what it costs.
    let is_late = |one: &&Observed| matches!(one, Observed::LateRuns { .. });
    let (late, others): (Vec<&Observed>, Vec<&Observed>) =
        ledger.observed.iter().partition(is_late);
    for observed in others.into_iter().chain(late) {
        let is_contention = |one: &&mut Finding| matches!(one.found, FoundKind::Contention(_));
        if is_late(&observed)
            && let Some(known) = all.iter_mut().find(is_contention)
        {
            known.evidence.push(Evidence::Observed(*observed));
            continue;
        }
        let waits = match *observed {
            Observed::Delayed(share) => share >= TAX_MATTERS,
            Observed::LateRuns { most_ns, .. } => most_ns >= LATE_NS,
            _ => false,
        };
        if waits {
            let evidence = Evidence::Observed(*observed);
            let mut finding = contention::without_exits(ledger, context);
            finding.evidence.insert(0, evidence);
            finding.weight = weight(*observed);
            all.push(finding);
            continue;
        }
        let Some((found, remedies, condition)) = meaning(*observed) else { continue };
        let evidence = Evidence::Observed(*observed);
        if let Some(known) = all.iter_mut().find(|one| one.found == found) {
            known.evidence.push(evidence);
            continue;
        }
        let mut finding = Finding::new(found, Certainty::Likely);
        finding.evidence.push(evidence);
        finding.weight = weight(*observed);
        for remedy in remedies.iter().map(|id| id.row()) {
            match remedy.applies_to(context) {
                Applies::No(why) => finding.refused.push((remedy.id, why)),
                Applies::If(own) => finding
                    .remedies
                    .push(Advice { remedy, condition: Some(condition.unwrap_or(own)) }),
                Applies::Yes => finding.remedies.push(Advice { remedy, condition }),
            }
        }
        all.push(finding);
    }
    all
}

fn weight(observed: Observed) -> f64 {
    match observed {
        Observed::Steal(share) | Observed::Delayed(share) | Observed::Thread(_, share) => {
            share.min(1.0)
        }
        Observed::Throttled { throttled, periods } => throttled as f64 / periods.max(1) as f64,
        Observed::DeviceLine { share, .. } | Observed::HostKernel(share) => share.min(1.0),
        Observed::Nodes { elsewhere, .. } => elsewhere.min(1.0),
        Observed::NoKvm => 1.0,
        Observed::IdleInside { busy, .. } => busy.min(1.0),
        // More than the message that a CPU is stuck.
        Observed::HostStuckIn(_) => 0.3,
        Observed::StuckIn(_) | Observed::BlockedIn(_) | Observed::VmmBlockedIn(_) => 0.2,
        Observed::MigrationBehind { .. } => 1.0,
        Observed::Named(..) => 0.0,
        _ => 0.1,
    }
}
