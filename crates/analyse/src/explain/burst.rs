//! A stretch in which exits take most of the time, in a recording whose mean hides it.

use vmtax_events::Cause;

use crate::Ledger;
use crate::timeline::{Slot, TimelineKey};

/// Part of an interval that exits take from which on it is a stall, and how many times the mean that must be.
const STALL: f64 = 0.25;
const TIMES_MEAN: f64 = 5.0;
/// A stretch longer than this part of the recording is no exception.
const EXCEPTION: f64 = 0.25;
/// Preempted time from which on that of an interval's exits may be it, as a part of all time in exits.
const PREEMPTED: f64 = 0.05;

/// The worst interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// When it began, ns since the start of the recording.
    pub at_ns: u64,
    /// The length of the interval, ns.
    pub step_ns: u64,
    /// Intervals in a row that are at least half as bad, ns.
    pub length_ns: u64,
    /// The part of the vCPUs' time that exits took in it.
    pub worst: f64,
    /// The same of the whole recording.
    pub mean: f64,
    /// The exits that are most frequent in it, of the cause that takes most of its time.
    pub kind: TimelineKey,
}

/// The worst interval, if it stands out.
pub(super) fn burst(ledger: &Ledger) -> Option<Burst> {
    let time = ledger.time_total();
    let exits_ns = time.exit_kernel_ns.saturating_add(time.exit_user_ns);
    let is_preempted = time.preempted_ns as f64 > exits_ns as f64 * PREEMPTED;
    if ledger.recording.emulated.is_some() || time.wall_ns == 0 || is_preempted {
        return None;
    }
    let timeline = &ledger.timeline;
    let vcpus = ledger.time.values().filter(|time| time.sum.wall_ns > 0).count();
    let room = timeline.step_ns.saturating_mul(vcpus as u64).max(1) as f64;
    let part = |slot: &Slot| (in_exits_ns(slot) as f64 / room).min(1.0);
    let (at, slot) = timeline.slots.iter().max_by(|a, b| part(a.1).total_cmp(&part(b.1)))?;
    let worst = part(slot);
    let mean = exits_ns as f64 / time.wall_ns as f64;
    let of_exits = slot.by_cause.iter().filter(|(cause, _)| **cause != Cause::Idle);
    let (cause, _) = of_exits.max_by_key(|(_, (_, ns))| *ns)?;
    let kind = timeline.most_frequent(slot, |kind| kind.cause == *cause)?;
    let steps = |mut at: u64, step: &dyn Fn(u64) -> Option<u64>| {
        let mut count = 0;
        while let Some(next) = step(at)
            && timeline.slots.get(&next).is_some_and(|slot| part(slot) >= worst / 2.0)
        {
            (at, count) = (next, count + 1);
        }
        count
    };
    let length_ns = timeline.step_ns.saturating_mul(
        1 + steps(*at, &|at| at.checked_add(timeline.step_ns))
            + steps(*at, &|at| at.checked_sub(timeline.step_ns)),
    );
    let all_ns = ledger.end_ns.saturating_sub(ledger.start_ns);
    let is_exception = length_ns as f64 <= all_ns as f64 * EXCEPTION;
    let stands_out = worst >= STALL && worst >= mean * TIMES_MEAN && is_exception;
    stands_out.then(|| Burst {
        at_ns: at.saturating_sub(ledger.start_ns),
        step_ns: timeline.step_ns,
        length_ns,
        worst,
        mean,
        kind,
    })
}

/// Time in exits of an interval, halts left out, ns.
fn in_exits_ns(slot: &Slot) -> u64 {
    let exits = slot.by_cause.iter().filter(|(cause, _)| **cause != Cause::Idle);
    exits.fold(0, |sum, (_, (_, ns))| sum.saturating_add(*ns))
}
