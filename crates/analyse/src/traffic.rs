//! Recorded exits of a benchmark's operations by cause: for each workload and category, and of a nested VM for each level.

use std::collections::BTreeMap;

use vmtax_events::{Cause, ExitKey, Level, Outcome, Sample};

use crate::Ledger;
use crate::bench::{AN_OPERATION, EXITS};
use crate::cause::cause_of;
use crate::reasons::vm_name;

/// Exits of an operation in one category, means of the repeats.
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
    pub causes: BTreeMap<Cause, f64>,
    /// Exits that the VMM handled, in user space.
    pub to_vmm: f64,
    /// How often the VMM's main loop got a processor, vhost's worker, and the VMM's thread for the disk's queue; `None` if the run does not say.
    pub turns: [Option<f64>; 3],
}

impl TrafficRow {
    pub fn exits(&self) -> f64 {
        self.causes.values().sum()
    }

    /// Exits of this cause.
    pub fn cause(&self, cause: Cause) -> f64 {
        self.causes.get(&cause).copied().unwrap_or(0.0)
    }
}

/// Metrics of threads that serve queues.
const TURNS: [&str; 3] = [Sample::VMM_TURNS, Sample::VHOST_TURNS, Sample::IO_TURNS];

/// The rows of a benchmark, by workload, in its order; empty where no exits of operations were recorded.
pub fn traffic(ledger: &Ledger) -> Vec<TrafficRow> {
    let mut rows: Vec<TrafficRow> = Vec::new();
    let of_operation = |sample: &&Sample| sample.metric == EXITS && sample.unit == AN_OPERATION;
    for sample in ledger.samples.iter().filter(of_operation) {
        let is_same = |row: &TrafficRow| {
            (&row.workload, &row.category) == (&sample.workload, &sample.category)
        };
        if !rows.iter().any(is_same) {
            rows.extend(of_category(ledger, sample));
        }
    }
    let mut workloads: Vec<String> = Vec::new();
    for row in &rows {
        if !workloads.contains(&row.workload) {
            workloads.push(row.workload.clone());
        }
    }
    rows.sort_by_key(|row| workloads.iter().position(|workload| *workload == row.workload));
    rows
}

/// A row for each level of the VM, the innermost first.
fn of_category(ledger: &Ledger, first: &Sample) -> Vec<TrafficRow> {
    let Sample { workload, category, .. } = first;
    let of_metric = |metric: &str| -> Vec<&Sample> {
        let is_same =
            |s: &&Sample| (&s.workload, &s.category, &*s.metric) == (workload, category, metric);
        ledger.samples.iter().filter(is_same).collect()
    };
    let samples = of_metric(EXITS);
    // Number of the VM, and the part of an operation that each of its exits is, in the mean.
    let vms: BTreeMap<u32, f64> = samples
        .iter()
        .filter_map(|sample| {
            let name = vm_name(workload, category, sample.repeat);
            let vm = ledger.recording.vms.iter().find(|vm| vm.name == name)?.id;
            let of_vm = ledger.exits.iter().filter(|(key, _)| key.vm == vm);
            let all = of_vm.map(|(_, tally)| tally.count).fold(0, u64::saturating_add);
            (all > 0).then(|| (vm, sample.value / all as f64 / samples.len() as f64))
        })
        .collect();
    let vms = &vms;
    let exits = || ledger.exits.iter().filter(move |(key, _)| vms.contains_key(&key.vm));
    if exits().next().is_none() {
        return Vec::new();
    }
    let is_nested = exits().any(|(key, _)| key.level == Level::L2);
    let turns = TURNS.map(|metric| {
        let values = of_metric(metric);
        let sum: f64 = values.iter().map(|sample| sample.value).sum();
        (!values.is_empty()).then(|| sum / values.len() as f64)
    });
    let row = |level| TrafficRow {
        workload: workload.clone(),
        category: category.clone(),
        level,
        is_nested,
        causes: BTreeMap::new(),
        to_vmm: 0.0,
        // The host's QEMU runs L1.
        turns: if level == Level::L1 { turns } else { [None; 3] },
    };
    let levels = if is_nested { &[Level::L2, Level::L1][..] } else { &[Level::L1] };
    let mut rows: Vec<TrafficRow> = levels.iter().copied().map(row).collect();
    for (key, tally) in exits() {
        let is_inner = is_nested && key.level == Level::L2;
        let found = if is_inner { rows.first_mut() } else { rows.last_mut() };
        let (Some(row), Some(each)) = (found, vms.get(&key.vm)) else { continue };
        let count = tally.count as f64 * each;
        // What L1 does for its guest is told apart as what a guest does is.
        let own = ExitKey { ancillary_of: None, ..*key };
        *row.causes.entry(column(cause_of(&own))).or_default() += count;
        if key.outcome == Outcome::User {
            row.to_vmm += count;
        }
    }
    rows
}

/// Interrupts of the host are one column, whoever sends them.
fn column(cause: Cause) -> Cause {
    match cause {
        Cause::HostTick | Cause::HostIpi | Cause::HostDevice => Cause::HostInterrupt,
        other => other,
    }
}
