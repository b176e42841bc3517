//! Exits of a benchmark's cells by reason, each category beside its baseline. Where a category is a nested guest and its baseline the VM around it,
//! this is the table of a workload at L1 and at L2.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Detail, DetailKind, ExitKey, Level, Reason, Sample};

use crate::Ledger;
use crate::bench::{AN_OPERATION, EXITS, baseline};

/// Exits of one reason in a category.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasonRow {
    /// What ran. Hostile text.
    pub workload: String,
    /// In which category. Hostile text.
    pub category: String,
    /// The category that it is compared with. Hostile text.
    pub baseline: String,
    /// Whether the counts are of one operation; else of a whole run.
    pub of_operation: bool,
    pub guest: ExitGuest,
    /// Why, and about which MSR or address; `None` for all exits of this guest.
    pub what: Option<(Reason, Detail)>,
    /// Exits in the baseline: mean of the repeats. `None` for exits that the baseline cannot have.
    pub base: Option<f64>,
    /// Exits in the category.
    pub own: f64,
}

impl ReasonRow {
    /// Exits in the category over those in the baseline.
    pub fn ratio(&self) -> Option<f64> {
        self.base.filter(|base| *base > 0.0).map(|base| self.own / base)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitGuest {
    /// Of all, together.
    All,
    /// Of the guest in which the workload runs.
    Workload,
    /// Of the hypervisor in the VM, which runs that guest.
    Hypervisor,
}

/// Name of the VM that has the exits of a cell.
pub fn vm_name(workload: &str, category: &str, repeat: u32) -> String {
    format!("{workload} in {category} (repeat {repeat})")
}

/// Exits by guest and reason.
type ReasonCounts = BTreeMap<(ExitGuest, Option<(Reason, Detail)>), f64>;

/// The rows of all workloads and categories with recorded exits whose baseline has them, too: sums first, then the most frequent.
pub fn reasons(ledger: &Ledger) -> Vec<ReasonRow> {
    let mut cells: BTreeMap<(&str, &str), (Vec<ReasonCounts>, bool)> = BTreeMap::new();
    let mut order: Vec<(&str, &str)> = Vec::new();
    for sample in ledger.samples.iter().filter(|sample| sample.metric == EXITS) {
        let Some(counts) = counts(ledger, sample) else { continue };
        let key = (sample.workload.as_str(), sample.category.as_str());
        let cell = cells.entry(key).or_insert_with(|| {
            order.push(key);
            (Vec::new(), sample.unit == AN_OPERATION)
        });
        cell.0.push(counts);
    }
    let mut workloads: Vec<&str> = Vec::new();
    for (workload, _) in &order {
        if !workloads.contains(workload) {
            workloads.push(workload);
        }
    }
    order.sort_by_key(|(workload, _)| workloads.iter().position(|one| one == workload));
    let mut rows = Vec::new();
    for (workload, category) in order {
        let there: BTreeSet<&str> =
            cells.keys().filter(|key| key.0 == workload).map(|key| key.1).collect();
        let Some(base_name) = baseline(category, &there) else { continue };
        let (Some((own, of_operation)), Some((base, base_of_operation))) =
            (cells.get(&(workload, category)), cells.get(&(workload, base_name)))
        else {
            continue;
        };
        if of_operation != base_of_operation {
            continue;
        }
        let (mut own, mut base) = (mean(own), mean(base));
        // A nested VM and its peer are in one L1, whose exits are those of both.
        let peer = format!("{}{base_name}", Sample::PEER_OF);
        if own.keys().any(|(guest, _)| *guest == ExitGuest::Hypervisor)
            && let Some((peer, _)) = cells.get(&(workload, peer.as_str()))
        {
            for (key, count) in mean(peer) {
                *base.entry(key).or_default() += count;
            }
        }
        let is_nested =
            |of: &ReasonCounts| of.keys().any(|(guest, _)| *guest == ExitGuest::Hypervisor);
        let base_is_nested = is_nested(&base);
        let nested = base_is_nested || is_nested(&own);
        if nested {
            // The host hands an exit of L2 on to L1, and does not see which MSR it is about.
            own = without_details(own);
            base = without_details(base);
        }
        // Without a nested guest all exits are the workload's.
        let is_twice = |key: &(ExitGuest, _)| *key == (ExitGuest::Workload, None) && !nested;
        let keys: BTreeSet<_> = own.keys().chain(base.keys()).copied().collect();
        let mut found: Vec<ReasonRow> = keys
            .into_iter()
            .filter(|key| !is_twice(key))
            .map(|(guest, what)| {
                let value = |of: &ReasonCounts| of.get(&(guest, what)).copied().unwrap_or(0.0);
                let has_base = guest != ExitGuest::Hypervisor || base_is_nested;
                ReasonRow {
                    workload: workload.to_owned(),
                    category: category.to_owned(),
                    baseline: base_name.to_owned(),
                    of_operation: *of_operation,
                    guest,
                    what,
                    base: has_base.then(|| value(&base)),
                    own: value(&own),
                }
            })
            .collect();
        let size = |row: &ReasonRow| row.own.max(row.base.unwrap_or(0.0));
        found.sort_by(|a, b| {
            let sums = (a.guest, a.what.is_some()).cmp(&(b.guest, b.what.is_some()));
            sums.then(size(b).total_cmp(&size(a)))
        });
        rows.extend(found);
    }
    rows
}

/// The exits of one cell, of an operation or of the whole run.
fn counts(ledger: &Ledger, sample: &Sample) -> Option<ReasonCounts> {
    let name = vm_name(&sample.workload, &sample.category, sample.repeat);
    let vm = ledger.recording.vms.iter().find(|vm| vm.name == name)?.id;
    let of_vm = || ledger.exits.iter().filter(move |(key, _)| key.vm == vm);
    let all = of_vm().map(|(_, tally)| tally.count).fold(0, u64::saturating_add);
    if all == 0 {
        return None;
    }
    let is_nested = of_vm().any(|(key, _)| key.level == Level::L2);
    let each = if sample.unit == AN_OPERATION { sample.value / all as f64 } else { 1.0 };
    let mut counts = ReasonCounts::new();
    for (key, tally) in of_vm() {
        let guest = match is_nested && key.level != Level::L2 {
            true => ExitGuest::Hypervisor,
            false => ExitGuest::Workload,
        };
        let count = tally.count as f64 * each;
        for key in [(ExitGuest::All, None), (guest, None), (guest, Some(what(key)))] {
            *counts.entry(key).or_default() += count;
        }
    }
    Some(counts)
}

/// Reason and MSR. Addresses of memory are left out: there are as many as pages.
fn what(key: &ExitKey) -> (Reason, Detail) {
    let detail = match key.detail.kind {
        DetailKind::MsrRead | DetailKind::MsrWrite => key.detail,
        _ => Detail::NONE,
    };
    (key.reason, detail)
}

/// The exits of the workload's guest by reason alone.
fn without_details(counts: ReasonCounts) -> ReasonCounts {
    let mut sums = ReasonCounts::new();
    for ((guest, what), count) in counts {
        let what = match guest {
            ExitGuest::Workload => what.map(|(reason, _)| (reason, Detail::NONE)),
            ExitGuest::All | ExitGuest::Hypervisor => what,
        };
        *sums.entry((guest, what)).or_default() += count;
    }
    sums
}

fn mean(repeats: &[ReasonCounts]) -> ReasonCounts {
    let mut sums = ReasonCounts::new();
    for (key, count) in repeats.iter().flatten() {
        *sums.entry(*key).or_default() += count / repeats.len() as f64;
    }
    sums
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Better, Isa, Losses, Outcome, Recording, Tally, Vm, svm};

    use super::*;
    use crate::{Filter, LedgerBuilder};

    fn sample(category: &str, value: f64) -> Sample {
        Sample {
            workload: "ping".to_owned(),
            category: category.to_owned(),
            repeat: 0,
            metric: EXITS.to_owned(),
            unit: AN_OPERATION.to_owned(),
            value,
            better: Better::Lower,
        }
    }

    /// 10 operations in both: 20 writes of an MSR at L1; 30 at L2, where its number is not known, with 90 VMRUNs of L1.
    fn ledger() -> Ledger {
        let builder = LedgerBuilder::new(Filter::default(), 1);
        let mut ledger = builder.finish(Recording::default(), Losses::default(), true);
        ledger.samples = vec![sample("plain", 2.0), sample("plain+nested", 12.0)];
        for (id, category) in [(1, "plain"), (2, "plain+nested")] {
            let name = vm_name("ping", category, 0);
            ledger.recording.vms.push(Vm { id, name, inferred: false, ..Vm::default() });
        }
        let msr = Detail { kind: DetailKind::MsrWrite, value: 0x6e0 };
        for (vm, level, code, detail, count) in [
            (1, Level::L1, svm::MSR, msr, 20),
            (2, Level::L2, svm::MSR, Detail::NONE, 30),
            (2, Level::L1, svm::VMRUN, Detail::NONE, 90),
        ] {
            let key = ExitKey {
                level,
                detail,
                outcome: Outcome::Unknown,
                ..ExitKey::of(vm, Reason::from_trace(Isa::Svm, code))
            };
            ledger.exits.insert(key, Tally { count, ..Tally::default() });
        }
        ledger
    }

    #[test]
    fn a_nested_guest_is_beside_the_vm_around_it() {
        let rows = reasons(&ledger());
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.guest, row.what.map(|(reason, _)| reason.code), row.base, row.own))
            .collect();
        assert_eq!(
            shown,
            [
                (ExitGuest::All, None, Some(2.0), 12.0),
                (ExitGuest::Workload, None, Some(2.0), 3.0),
                (ExitGuest::Workload, Some(svm::MSR), Some(2.0), 3.0),
                (ExitGuest::Hypervisor, None, None, 9.0),
                (ExitGuest::Hypervisor, Some(svm::VMRUN), None, 9.0),
            ]
        );
        assert_eq!(
            (rows[0].ratio(), rows[2].ratio(), rows[4].ratio()),
            (Some(6.0), Some(1.5), None)
        );
    }

    #[test]
    fn cells_without_recorded_exits_or_baseline_have_no_rows() {
        let mut one = ledger();
        one.samples.remove(0);
        assert!(reasons(&one).is_empty());
        let mut unnamed = ledger();
        unnamed.recording.vms.clear();
        assert!(reasons(&unnamed).is_empty());
    }
}
