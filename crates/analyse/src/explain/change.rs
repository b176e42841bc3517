//! What a change removed and what came instead: two recordings of one load, before the change and after it.
//!
//! Exits are told apart by what they are about, as in an explanation: the registers of an IDE disk and the notifications of a
//! virtio queue are rows of their own. Counts are put over an operation of the load where somebody says how many there were.
//!
//! Left out on purpose: whether both did the same work, which counts do not show.

use std::collections::BTreeSet;

use vmtax_events::{Detail, words};

use super::subject::Subject;
use super::sums::{FEW, RecordingSums, SubjectSum};
use crate::diff::{ABOUT_EQUAL, DiffCell, DiffSide, Per, suitable};

/// A rate below this part of the other side's is next to none.
const NEXT_TO_NONE: f64 = 0.05;

words! {
    /// What became of exits.
    pub enum Fate {
        /// None are left, or next to none.
        Gone = "gone",
        /// There are fewer.
        Fewer = "fewer",
        /// There were none before, or next to none.
        Instead = "came instead",
        /// There are more.
        More = "more",
        /// As many, as far as two recordings tell.
        Same = "same",
    }
}

/// Two recordings of one load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadChange {
    /// What the rates are over.
    pub per: Per,
    /// So many of these in each.
    pub units: [f64; 2],
    /// All exits, before and after.
    pub total: [DiffCell; 2],
    /// By subject: what changed most first.
    pub rows: Vec<ChangeRow>,
    /// Times of both are those of hardware, as far as the recordings show.
    pub timed: bool,
}

/// Exits of one subject in both.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeRow {
    /// What they are about; `None`: the subjects with few exits in both, together.
    pub subject: Option<Subject>,
    /// Before.
    pub before: DiffCell,
    /// After.
    pub after: DiffCell,
    /// What most of them access, on the side that has more.
    pub detail: Option<Detail>,
}

impl ChangeRow {
    /// What became of them.
    pub fn fate(&self) -> Fate {
        let (before, after) = (self.before.rate, self.after.rate);
        if after < before * NEXT_TO_NONE {
            Fate::Gone
        } else if before < after * NEXT_TO_NONE {
            Fate::Instead
        } else if (after - before).abs() <= before.max(after) * ABOUT_EQUAL {
            Fate::Same
        } else if after < before {
            Fate::Fewer
        } else {
            Fate::More
        }
    }

    /// After minus before.
    pub fn difference(&self) -> f64 {
        self.after.rate - self.before.rate
    }
}

impl LoadChange {
    /// Compares. `operations` is how many the load did in each; without it rates are over what both recordings know.
    pub fn new(before: &DiffSide<'_>, after: &DiffSide<'_>, operations: Option<u64>) -> LoadChange {
        let per = operations.map_or_else(|| suitable(before, after), |_| Per::Operation);
        let units = [before, after].map(|side| {
            operations.map(|count| count as f64).or_else(|| side.units(per)).unwrap_or(1.0)
        });
        let sums = [before, after].map(|side| RecordingSums::new(side.ledger));
        let timed = sums.iter().all(|sums| sums.timed);
        let cell = |at: usize, count: u64, ns: u64| DiffCell {
            count,
            rate: count as f64 / units[at],
            time_ns: timed.then(|| ns as f64 / units[at]),
        };
        let of = |at: usize, subject: Subject| {
            let sum = sums[at].by_subject.get(&subject);
            sum.map_or(cell(at, 0, 0), |sum| cell(at, sum.count, sum.high_ns))
        };
        let subjects: BTreeSet<Subject> =
            sums.iter().flat_map(|sums| sums.by_subject.keys().copied()).collect();
        let mut few = [(0u64, 0u64); 2];
        let mut rows = Vec::new();
        for subject in subjects {
            let [before, after] = [of(0, subject), of(1, subject)];
            if before.count.max(after.count) < FEW {
                for (at, few) in few.iter_mut().enumerate() {
                    let sum = sums[at].by_subject.get(&subject);
                    few.0 = few.0.saturating_add(sum.map_or(0, |sum| sum.count));
                    few.1 = few.1.saturating_add(sum.map_or(0, |sum| sum.high_ns));
                }
                continue;
            }
            let most = usize::from(after.rate > before.rate);
            let detail = sums[most].by_subject.get(&subject).and_then(most_accessed);
            rows.push(ChangeRow { subject: Some(subject), before, after, detail });
        }
        rows.sort_by(|a, b| b.difference().abs().total_cmp(&a.difference().abs()));
        if few.iter().any(|few| few.0 > 0) {
            let [before, after] = [cell(0, few[0].0, few[0].1), cell(1, few[1].0, few[1].1)];
            rows.push(ChangeRow { subject: None, before, after, detail: None });
        }
        let total = [0, 1].map(|at| {
            let ns = sums[at].by_subject.values().map(|sum| sum.high_ns);
            cell(at, sums[at].total, ns.fold(0, u64::saturating_add))
        });
        LoadChange { per, units, total, rows, timed }
    }

    /// Exits after, as a part of those before; `None` without any before.
    pub fn remaining(&self) -> Option<f64> {
        let [before, after] = self.total;
        (before.rate > 0.0).then(|| after.rate / before.rate)
    }
}

/// What exits access most often.
fn most_accessed(sum: &SubjectSum) -> Option<Detail> {
    let most =
        sum.details.iter().max_by_key(|(detail, (count, _))| (*count, std::cmp::Reverse(*detail)));
    most.map(|(detail, _)| *detail)
}
