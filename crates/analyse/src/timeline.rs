//! Exits over time, at a resolution that stays bounded however long the recording is.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Cause, Detail, ExitRow, Reason};

/// At most this many slots; beyond, pairs of slots are joined.
const MAX_SLOTS: u64 = 600;

/// Limit of distinct kinds of exits: a damaged file can contain any number.
const MAX_KINDS: usize = 1024;

/// Exits per cause and per kind in equal slots of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Width of a slot, ns; 0 when there are no rows.
    pub step_ns: u64,
    /// Slots by start time on the recorder's clock, ns, aligned to multiples of `step_ns`. Slots without exits are absent.
    pub slots: BTreeMap<u64, Slot>,
    /// The kinds that slots tell apart.
    kinds: BTreeSet<Kind>,
    /// There were more kinds than that.
    pub more_kinds: bool,
}

/// The key of exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The cause.
    pub cause: Cause,
    /// The reason.
    pub reason: Reason,
    /// The detail.
    pub detail: Detail,
}

/// What ended in one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// (count, time in ns) by cause.
    pub by_cause: BTreeMap<Cause, (u64, u64)>,
    /// Count by kind.
    pub by_kind: BTreeMap<Kind, u64>,
}

impl Timeline {
    pub(crate) fn new(interval_ns: u64) -> Timeline {
        Timeline { step_ns: interval_ns.max(1), ..Timeline::default() }
    }

    pub(crate) fn add(&mut self, row: &ExitRow, cause: Cause) {
        let start = row.interval_start_ns - row.interval_start_ns % self.step_ns;
        let slot = self.slots.entry(start).or_default();
        let (count, time) = slot.by_cause.entry(cause).or_default();
        *count = count.saturating_add(row.tally.count);
        *time = time.saturating_add(row.tally.time_ns);
        let kind = Kind { cause, reason: row.key.reason, detail: row.key.detail };
        if self.kinds.contains(&kind) || self.kinds.len() < MAX_KINDS {
            self.kinds.insert(kind);
            let of_kind = slot.by_kind.entry(kind).or_default();
            *of_kind = of_kind.saturating_add(row.tally.count);
        } else {
            self.more_kinds = true;
        }
        self.coarsen();
    }

    /// A number of each slot from the first to the last, slots without exits included. The first and the last are left
    /// out: the recording may cover them in part.
    pub fn series(&self, number: impl Fn(&Slot) -> u64) -> Vec<f64> {
        let (Some((first, _)), Some((last, _))) =
            (self.slots.first_key_value(), self.slots.last_key_value())
        else {
            return Vec::new();
        };
        let whole = (last - first) / self.step_ns.max(1);
        (1..whole)
            .map(|i| {
                let slot = first.checked_add(i * self.step_ns).and_then(|at| self.slots.get(&at));
                slot.map_or(0, &number) as f64
            })
            .collect()
    }

    fn coarsen(&mut self) {
        while let (Some((first, _)), Some((last, _))) =
            (self.slots.first_key_value(), self.slots.last_key_value())
        {
            if (last - first) / self.step_ns < MAX_SLOTS {
                break;
            }
            let Some(step) = self.step_ns.checked_mul(2) else { break };
            self.step_ns = step;
            for (start, slot) in std::mem::take(&mut self.slots) {
                let into = self.slots.entry(start - start % step).or_default();
                for (cause, (count, time)) in slot.by_cause {
                    let (c, t) = into.by_cause.entry(cause).or_default();
                    *c = c.saturating_add(count);
                    *t = t.saturating_add(time);
                }
                for (kind, count) in slot.by_kind {
                    let c = into.by_kind.entry(kind).or_default();
                    *c = c.saturating_add(count);
                }
            }
        }
    }
}
