//! Exits over time, at a resolution that stays bounded however long the recording is.
//!
//! Kinds of exits are numbered in the order in which they appear, and a slot is an array of counts by that number: its size does
//! not depend on how many intervals it joins, and no more than 5 MB are ever kept.

use std::collections::BTreeMap;

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
    /// The kinds that slots tell apart, with their numbers.
    kinds: BTreeMap<TimelineKey, usize>,
    /// There were more kinds than that.
    pub more_kinds: bool,
}

/// The key of exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimelineKey {
    pub cause: Cause,
    pub reason: Reason,
    pub detail: Detail,
}

/// What ended in one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// (count, time in ns) by cause.
    pub by_cause: BTreeMap<Cause, (u64, u64)>,
    /// Counts by the number of the kind. Those behind the end are 0.
    by_kind: Vec<u64>,
}

impl Slot {
    /// Adds to the kind with this number, of `kinds`.
    fn add_kind(&mut self, number: usize, kinds: usize, count: u64) {
        if self.by_kind.len() <= number {
            self.by_kind.reserve_exact(kinds - self.by_kind.len());
            self.by_kind.resize(kinds, 0);
        }
        if let Some(sum) = self.by_kind.get_mut(number) {
            *sum = sum.saturating_add(count);
        }
    }

    fn merge(&mut self, other: Slot) {
        for (cause, (count, time)) in other.by_cause {
            let (c, t) = self.by_cause.entry(cause).or_default();
            *c = c.saturating_add(count);
            *t = t.saturating_add(time);
        }
        let kinds = other.by_kind.len();
        for (number, count) in other.by_kind.into_iter().enumerate() {
            self.add_kind(number, kinds, count);
        }
    }
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
        let kind = TimelineKey { cause, reason: row.key.reason, detail: row.key.detail };
        let next = self.kinds.len();
        let number = match self.kinds.get(&kind) {
            Some(&number) => Some(number),
            None if next < MAX_KINDS => {
                self.kinds.insert(kind, next);
                Some(next)
            }
            None => None,
        };
        match number {
            Some(number) => slot.add_kind(number, self.kinds.len(), row.tally.count),
            None => self.more_kinds = true,
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

    /// The most frequent kind of a slot, of those that are wanted.
    pub fn most_frequent(
        &self,
        slot: &Slot,
        wanted: impl Fn(&TimelineKey) -> bool,
    ) -> Option<TimelineKey> {
        let count = |number: usize| slot.by_kind.get(number).copied().unwrap_or(0);
        let kinds = self.kinds.iter().filter(|(kind, number)| wanted(kind) && count(**number) > 0);
        kinds.max_by_key(|(_, number)| count(**number)).map(|(kind, _)| *kind)
    }

    /// Exits of the kinds that are wanted, as [`Timeline::series`].
    pub fn series_of_kinds(&self, wanted: impl Fn(&TimelineKey) -> bool) -> Vec<f64> {
        let numbers: Vec<usize> =
            self.kinds.iter().filter(|(kind, _)| wanted(kind)).map(|(_, &number)| number).collect();
        self.series(|slot| {
            let counts = numbers.iter().filter_map(|&number| slot.by_kind.get(number));
            counts.fold(0, |sum: u64, &count| sum.saturating_add(count))
        })
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
                self.slots.entry(start - start % step).or_default().merge(slot);
            }
        }
    }
}
