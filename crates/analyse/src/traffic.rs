//! Traffic between an emulated host and a VM of QEMU (`vmtax lab network`): exits of one operation by cause, for each VM.
//!
//! An operation is a request to a server or to the disk, a KiB of a stream, or a sleep. A workload with one VM is a VM of the run, called `request plain+vhost`. One with
//! `+nested` is a guest's guest: its exits (L2), and those of the VM that it runs in (L1), are two rows.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Level, Outcome, Reason, Sample};

use crate::Ledger;
use crate::cause::cause_of;
use crate::operations::{OperationRow, Operations};

/// One workload with one VM.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficRow {
    /// The workload. Hostile text.
    pub workload: String,
    /// The category of the VM. Hostile text.
    pub category: String,
    /// Whose exits they are: L1's, or L2's of a nested VM.
    pub level: Level,
    /// The VM is nested: its exits are two rows.
    pub is_nested: bool,
    /// Operations in the recording, at least one.
    pub count: u64,
    /// Exits by cause.
    pub causes: BTreeMap<Cause, u64>,
    /// Exits that the VMM handled, in user space.
    pub to_vmm: u64,
    /// How often the VMM's main loop got a processor; `None` if the run does not say.
    pub vmm_turns: Option<f64>,
    /// How often vhost's worker in the host's kernel got a processor.
    pub vhost_turns: Option<f64>,
    /// How often the VMM's thread for the disk's queue got a processor; `None` of runs before there was a disk.
    pub io_turns: Option<f64>,
    /// Run time by the host's clock, ns.
    pub elapsed_ns: Option<f64>,
}

impl TrafficRow {
    /// All exits.
    pub fn exits(&self) -> u64 {
        self.causes.values().sum()
    }

    /// So many for each operation.
    pub fn each(&self, count: f64) -> f64 {
        count / self.count as f64
    }

    /// Exits of this cause for each operation.
    pub fn cause(&self, cause: Cause) -> f64 {
        self.each(self.causes.get(&cause).copied().unwrap_or(0) as f64)
    }
}

/// The traffic of a run, in its order; empty for any other run.
pub fn traffic(ledger: &Ledger) -> Vec<TrafficRow> {
    operations(ledger).iter().flat_map(|operation| of_levels(ledger, operation)).collect()
}

/// A VM of the run with its traffic.
struct Passage {
    workload: String,
    category: String,
    operation: OperationRow,
    vm: u32,
}

fn operations(ledger: &Ledger) -> Vec<Passage> {
    let is_traffic = |operation: &OperationRow| {
        operation.count > 0 && value(ledger, &operation.name, Sample::VMM_TURNS).is_some()
    };
    let passage = |operation: OperationRow| {
        let (workload, category) = operation.name.split_once(' ')?;
        let (workload, category) = (workload.to_owned(), category.to_owned());
        Some(Passage { workload, category, vm: operation.vm?, operation })
    };
    let rows = Operations::new(ledger).rows.into_iter();
    rows.filter(is_traffic).filter_map(passage).collect()
}

fn value(ledger: &Ledger, workload: &str, metric: &str) -> Option<f64> {
    let found = ledger.samples.iter().find(|s| s.workload == workload && s.metric == metric);
    found.map(|sample| sample.value).filter(|value| value.is_finite())
}

/// A row for each level of the VM, the innermost first.
fn of_levels(ledger: &Ledger, passage: &Passage) -> Vec<TrafficRow> {
    let is_nested = passage.operation.level == Level::L2;
    let levels = if is_nested { &[Level::L2, Level::L1][..] } else { &[Level::L1] };
    let mut rows: Vec<TrafficRow> =
        levels.iter().map(|level| empty(ledger, passage, *level, is_nested)).collect();
    for (key, tally) in ledger.exits.iter().filter(|(key, _)| key.vm == passage.vm) {
        let is_inner = is_nested && key.level == Level::L2;
        let Some(row) = (if is_inner { rows.first_mut() } else { rows.last_mut() }) else {
            continue;
        };
        // What L1 does for its guest is told apart as what a guest does is.
        let own = ExitKey { ancillary_of: None, ..*key };
        let count = row.causes.entry(column(cause_of(&own))).or_default();
        *count = count.saturating_add(tally.count);
        if key.outcome == Outcome::User {
            row.to_vmm = row.to_vmm.saturating_add(tally.count);
        }
    }
    rows
}

fn empty(ledger: &Ledger, passage: &Passage, level: Level, is_nested: bool) -> TrafficRow {
    let name = &passage.operation.name;
    // The host's QEMU runs L1.
    let turns = |metric: &str| value(ledger, name, metric).filter(|_| level == Level::L1);
    TrafficRow {
        workload: passage.workload.clone(),
        category: passage.category.clone(),
        level,
        is_nested,
        count: passage.operation.count,
        causes: BTreeMap::new(),
        to_vmm: 0,
        vmm_turns: turns(Sample::VMM_TURNS),
        vhost_turns: turns(Sample::VHOST_TURNS),
        io_turns: turns(Sample::IO_TURNS),
        elapsed_ns: value(ledger, name, Sample::ELAPSED),
    }
}

/// Exits of one kind for each operation of a nested VM, and of the same VM that is not nested.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelsRow {
    /// The workload. Hostile text.
    pub workload: String,
    /// The category of the nested VM. Hostile text.
    pub category: String,
    /// Reason, and the MSR if it is about one; `None` for all rare ones together.
    pub exit: Option<(Reason, Detail)>,
    /// Of the VM that is a guest of the host; `None` if the runs have no such VM.
    pub alone: Option<f64>,
    /// Of the guest's guest.
    pub l2: f64,
    /// Of the VM that it runs in.
    pub l1: f64,
}

/// The part of a category's name that divides L1's parts from those of the VM.
const NESTED: &str = "+nested";
/// Kinds of exits that are rarer than this for each operation at all levels are one row.
const RARE: f64 = 0.01;

/// Exits of nested VMs by level and reason, side by side with those of the same VMs that are not nested.
pub fn levels(ledgers: &[Ledger]) -> Vec<LevelsRow> {
    let all: Vec<(&Ledger, Passage)> = ledgers
        .iter()
        .flat_map(|ledger| operations(ledger).into_iter().map(move |passage| (ledger, passage)))
        .collect();
    let nested = all.iter().filter(|(_, passage)| passage.operation.level == Level::L2);
    nested.flat_map(|(ledger, passage)| levels_of(ledger, passage, &all)).collect()
}

/// Exits of an operation by kind.
type Kinds = BTreeMap<(Reason, Detail), f64>;

fn levels_of(ledger: &Ledger, passage: &Passage, all: &[(&Ledger, Passage)]) -> Vec<LevelsRow> {
    let same = same_at_l1(&passage.category);
    let of_same = |(_, other): &&(&Ledger, Passage)| {
        other.workload == passage.workload && same.contains(&other.category)
    };
    let found: Vec<Kinds> =
        all.iter().filter(of_same).map(|(ledger, other)| kinds(ledger, other, |_| true)).collect();
    let alone = (!same.is_empty() && found.len() == same.len()).then(|| sum(found));
    let [l2, l1] =
        [true, false].map(|is_l2| kinds(ledger, passage, |key| (key.level == Level::L2) == is_l2));
    let of = |kinds: &Kinds, kind: &(Reason, Detail)| kinds.get(kind).copied().unwrap_or(0.0);
    let names: BTreeSet<_> =
        alone.iter().flatten().chain(&l2).chain(&l1).map(|(kind, _)| *kind).collect();
    let row = |kind: &(Reason, Detail)| LevelsRow {
        workload: passage.workload.clone(),
        category: passage.category.clone(),
        exit: Some(*kind),
        alone: alone.as_ref().map(|alone| of(alone, kind)),
        l2: of(&l2, kind),
        l1: of(&l1, kind),
    };
    sorted(names.iter().map(row).collect())
}

/// The category of the VM that is not nested. Of one with a peer it is two: both VMs are in the same L1, whose exits are those of both.
fn same_at_l1(category: &str) -> Vec<String> {
    let Some((_, own)) = category.split_once(NESTED) else { return Vec::new() };
    let vm = format!("plain{own}");
    match vm.strip_suffix(Sample::WITH_PEER) {
        Some(alone) => vec![format!("{}{alone}", Sample::PEER_OF), vm],
        None => vec![vm],
    }
}

fn sum(all: Vec<Kinds>) -> Kinds {
    let mut sum = Kinds::new();
    for (kind, each) in all.into_iter().flatten() {
        *sum.entry(kind).or_default() += each;
    }
    sum
}

/// Most frequent first, and rare ones as one row at the end.
fn sorted(mut rows: Vec<LevelsRow>) -> Vec<LevelsRow> {
    let most = |row: &LevelsRow| row.l2.max(row.l1).max(row.alone.unwrap_or(0.0));
    rows.sort_by(|a, b| most(b).total_cmp(&most(a)));
    let rare = rows.split_off(rows.partition_point(|row| most(row) >= RARE));
    rows.extend(rare.into_iter().reduce(|sum, row| LevelsRow {
        exit: None,
        alone: sum.alone.zip(row.alone).map(|(a, b)| a + b),
        l2: sum.l2 + row.l2,
        l1: sum.l1 + row.l1,
        ..sum
    }));
    if let Some(last) = rows.last_mut().filter(|row| most(row) < RARE) {
        last.exit = None;
    }
    rows
}

/// Exits of one operation by reason, and by MSR.
fn kinds(ledger: &Ledger, passage: &Passage, wanted: impl Fn(&ExitKey) -> bool) -> Kinds {
    let mut counts: BTreeMap<(Reason, Detail), u64> = BTreeMap::new();
    let of_vm = |key: &ExitKey| key.vm == passage.vm && wanted(key);
    for (key, tally) in ledger.exits.iter().filter(|(key, _)| of_vm(key)) {
        let detail = match key.detail.kind {
            DetailKind::MsrRead | DetailKind::MsrWrite => key.detail,
            _ => Detail::NONE,
        };
        let count = counts.entry((key.reason, detail)).or_default();
        *count = count.saturating_add(tally.count);
    }
    let operations = passage.operation.count as f64;
    counts.into_iter().map(|(kind, count)| (kind, count as f64 / operations)).collect()
}

/// Interrupts of the host are one column, whoever sends them.
fn column(cause: Cause) -> Cause {
    match cause {
        Cause::HostTick | Cause::HostIpi | Cause::HostDevice => Cause::HostInterrupt,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_vm_has_the_same_vm_at_l1() {
        let same = |category: &str| same_at_l1(category).join(", ");
        assert_eq!(same("plain-x2apic+nested+vhost"), "plain+vhost");
        assert_eq!(same("plain+nested with peer"), "peer of plain, plain with peer");
        assert_eq!(same("plain"), "");
    }

    #[test]
    fn rare_kinds_are_one_row() {
        let row = |code, l1| LevelsRow {
            workload: "request".to_owned(),
            category: "plain+nested".to_owned(),
            exit: Some((Reason::from_trace(vmtax_events::Isa::Svm, code), Detail::NONE)),
            alone: Some(0.0),
            l2: 0.0,
            l1,
        };
        let rows = sorted(vec![row(1, 0.004), row(2, 2.0), row(3, 0.003)]);
        let shown: Vec<_> =
            rows.iter().map(|row| (row.exit.is_some(), (row.l1 * 1000.0).round())).collect();
        assert_eq!(shown, [(true, 2000.0), (false, 7.0)]);
    }
}
