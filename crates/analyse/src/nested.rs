//! Nested virtualization: what one exit of L2 costs in exits of L1.
//!
//! An exit of L2 that the host hands to L1 makes L1 run; every exit that L1 takes until it resumes
//! L2 is an *ancillary exit* of that L2 exit. One VM entry (vmrun, VMRESUME) is the minimum.

use std::collections::BTreeMap;

use vmtax_events::{Detail, Level, Outcome, Reason, Tally};

use crate::Ledger;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nested {
    /// The recording can tell L1 from L2. Without that the rows are empty and mean nothing.
    pub known: bool,
    /// One row per reason of an L2 exit, most exits first.
    pub rows: Vec<NestedRow>,
}

/// What exits of L2 for one reason led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedRow {
    /// Why L2 exited.
    pub reason: Reason,
    /// All exits of L2 for it.
    pub l2: Tally,
    /// Those that were forwarded to L1; the others the host handled alone.
    pub to_l1: u64,
    /// Exits of L1 on their behalf, most first.
    pub ancillary: Vec<Ancillary>,
}

/// Exits of L1 of one reason and detail, on behalf of L2 exits of one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancillary {
    /// Why L1 exited.
    pub reason: Reason,
    pub detail: Detail,
    pub tally: Tally,
}

impl NestedRow {
    /// All exits of L1 on their behalf.
    pub fn all_ancillary(&self) -> Tally {
        let mut all = Tally::default();
        self.ancillary.iter().for_each(|one| all.merge(&one.tally));
        all
    }

    /// Ancillary exits per L2 exit that was forwarded to L1. `None` if none was.
    pub fn ancillary_per_exit(&self) -> Option<f64> {
        (self.to_l1 > 0).then(|| self.all_ancillary().count as f64 / self.to_l1 as f64)
    }
}

impl Nested {
    /// From the ledger's exits.
    pub fn new(ledger: &Ledger) -> Nested {
        let mut l2: BTreeMap<Reason, (Tally, u64)> = BTreeMap::new();
        let mut ancillary: BTreeMap<Reason, BTreeMap<(Reason, Detail), Tally>> = BTreeMap::new();
        for (key, tally) in &ledger.exits {
            if key.level == Level::L2 {
                let (all, to_l1) = l2.entry(key.reason).or_default();
                all.merge(tally);
                if key.outcome == Outcome::L1 {
                    *to_l1 = to_l1.saturating_add(tally.count);
                }
            }
            if let Some(of) = key.ancillary_of {
                let rows = ancillary.entry(of).or_default();
                rows.entry((key.reason, key.detail)).or_default().merge(tally);
            }
        }
        let reasons: Vec<Reason> = {
            let mut all: Vec<Reason> = l2.keys().chain(ancillary.keys()).copied().collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let mut rows: Vec<NestedRow> = reasons
            .into_iter()
            .map(|reason| {
                let (l2, to_l1) = l2.remove(&reason).unwrap_or_default();
                let mut ancillary: Vec<Ancillary> = ancillary
                    .remove(&reason)
                    .unwrap_or_default()
                    .into_iter()
                    .map(|((reason, detail), tally)| Ancillary { reason, detail, tally })
                    .collect();
                ancillary.sort_by(|a, b| {
                    b.tally.count.cmp(&a.tally.count).then(a.reason.cmp(&b.reason))
                });
                NestedRow { reason, l2, to_l1, ancillary }
            })
            .collect();
        rows.sort_by(|a, b| b.l2.count.cmp(&a.l2.count).then(a.reason.cmp(&b.reason)));
        Nested { known: ledger.recording.coverage.nested, rows }
    }
}

/// Whether it is the exit of CPUID.
pub(crate) fn is_cpuid(reason: Reason) -> bool {
    reason.isa.facts().cpuid() == Some(reason.code)
}

#[cfg(test)]
mod tests {
    use vmtax_events::{DetailKind, ExitKey, ExitRow, Isa, Losses, Recording};

    use super::*;
    use crate::{Filter, LedgerBuilder};

    /// Counts of a stored run can be anything.
    #[test]
    fn huge_counts_are_not_rounded() {
        let reason = Reason { isa: Isa::Svm, code: 0x72, flags: 0 };
        let mut builder = LedgerBuilder::new(Filter::default(), 1);
        for (level, of) in [(Level::L2, None), (Level::L1, Some(reason))] {
            for value in [1, 2] {
                let detail = Detail::new(DetailKind::Cpuid, value);
                let (outcome, ancillary_of) = (Outcome::L1, of);
                let key = ExitKey { vm: 1, vcpu: 0, level, reason, detail, outcome, ancillary_of };
                let mut tally = Tally::default();
                tally.add_untimed(u64::MAX);
                builder.exit(&ExitRow { interval_start_ns: 0, key, tally });
            }
        }
        let mut recording = Recording::default();
        recording.coverage.nested = true;
        let nested = Nested::new(&builder.finish(recording, Losses::default(), true));
        assert_eq!(nested.rows[0].to_l1, u64::MAX);
        assert_eq!(nested.rows[0].ancillary_per_exit(), Some(1.0));
    }
}
