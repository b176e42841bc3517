//! Runs of the lab as benchmarks: what its operations are as workloads in categories of VM, with the exits that were recorded.
//!
//! An emulated host counts exits and instructions exactly. What an option of a VM changes, its operations have apart: a timer
//! whose guest halts or polls, a ring with or without the copy into a bounce buffer. So overhead there comes apart too:
//!
//! ```text
//! instructions more than the baseline = exits more x instructions of an exit + the rest
//! ```
//! A matrix whose VMs ran on an emulated host, or were recorded on a real one, comes apart the same way: there the time of an
//! operation is its instructions, and the cost of an exit is the time of the workload `cpuid` in the plain VM.

use vmtax_events::{Better, Level, Sample};

use crate::bench::{AN_OPERATION, BenchTable, EXITS, ResultRow, TURNS_OF_OPERATION};
use crate::reasons::vm_name;
use crate::{Ledger, Operations};

/// Operation, workload, category. An operation at L2 is the same in `plain+nested`.
const RECORDED: [(&str, &str, &str); 17] = [
    (YARDSTICK, YARDSTICK, "plain"),
    ("hypercall", "hypercall", "plain"),
    ("rdmsr", "rdmsr", "plain"),
    ("pio-user", "pio-user", "plain"),
    ("mmio-user", "mmio-user", "plain"),
    ("touch-4k", "touch-4k", "plain"),
    ("touch-2m", "touch-2m", "plain"),
    ("context-switch", "ipi", "plain"),
    ("deadline-x2apic-hlt", "timer", "plain"),
    ("deadline-x2apic-poll", "timer", "plain+poll"),
    ("deadline-x2apic-haltpoll", "timer", "plain+hpoll"),
    ("short-x2apic-hlt", "timer-5us", "plain"),
    ("short-x2apic-haltpoll", "timer-5us", "plain+hpoll"),
    ("ring-direct", "ring", "plain"),
    ("ring-bounced", "ring", "plain+swiotlb"),
    ("ring-direct-16", "ring-16", "plain"),
    ("ring-bounced-16", "ring-16", "plain+swiotlb"),
];

/// The operation whose path is what an exit costs.
const YARDSTICK: &str = "cpuid";

/// Samples of a benchmark; none when the ledger is not that of a lab run.
pub fn samples(ledger: &Ledger) -> Vec<Sample> {
    let operations = Operations::new(ledger);
    let mut samples = Vec::new();
    for (operation, workload, category) in RECORDED {
        for row in operations.rows.iter().filter(|row| row.name == operation && row.count > 0) {
            let category = match row.level {
                Level::L1 => category.to_owned(),
                Level::L2 => format!("{category}+nested"),
                Level::Unknown => continue,
            };
            let sample = |repeat: usize, metric: &str, unit: &str, value: f64| Sample {
                workload: workload.to_owned(),
                category: category.clone(),
                repeat: u32::try_from(repeat).unwrap_or(u32::MAX),
                metric: metric.to_owned(),
                unit: unit.to_owned(),
                value,
                better: Better::Lower,
            };
            let name = if row.level == Level::L2 {
                format!("{operation}@L2")
            } else {
                operation.to_owned()
            };
            let paths =
                ledger.samples.iter().filter(|s| s.workload == name && s.metric == Sample::PATH);
            samples.extend(
                paths
                    .enumerate()
                    .map(|(at, path)| sample(at, Sample::PATH, &path.unit, path.value)),
            );
            if let Some(exits) = row.exits_per_operation().value() {
                samples.push(sample(0, EXITS, AN_OPERATION, exits));
            }
        }
    }
    samples
}

/// A run of `vmtax lab remedy`, or of `vmtax lab network` of former versions, as a benchmark: its VMs are called `request plain+vhost`. `None`
/// for any other ledger.
pub fn of_traffic(ledger: &Ledger) -> Option<Ledger> {
    let mut found = Ledger { samples: Vec::new(), ..ledger.clone() };
    for row in Operations::new(ledger).rows.iter().filter(|row| row.count > 0) {
        let (Some(id), Some((workload, category))) = (row.vm, row.name.split_once(' ')) else {
            continue;
        };
        let alone = category.strip_suffix(Sample::WITH_PEER);
        let has_peer = alone.is_some() || category.starts_with(Sample::PEER_OF);
        let workload = format!("{workload}{}", if has_peer { Sample::WITH_PEER } else { "" });
        let category = alone.unwrap_or(category);
        let sample = |metric: &str, unit: &str, value: f64, better| Sample {
            workload: workload.clone(),
            category: category.to_owned(),
            repeat: 0,
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            value,
            better,
        };
        let turns = [Sample::VMM_TURNS, Sample::VHOST_TURNS, Sample::IO_TURNS].map(|metric| {
            let is_it = |s: &&Sample| s.workload == row.name && s.metric == metric;
            let count = ledger.samples.iter().find(is_it)?.value / row.count as f64;
            Some(sample(metric, TURNS_OF_OPERATION, count, Better::Neither))
        });
        let (Some(exits), [Some(_), ..]) = (row.exits_per_operation().value(), &turns) else {
            continue;
        };
        found.samples.push(sample(EXITS, AN_OPERATION, exits, Better::Lower));
        found.samples.extend(turns.into_iter().flatten());
        let name = vm_name(&workload, category, 0);
        for vm in found.recording.vms.iter_mut().filter(|vm| vm.id == id) {
            vm.name.clone_from(&name);
        }
    }
    (!found.samples.is_empty()).then_some(found)
}

/// An overhead in parts, of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OverheadParts {
    pub workload: String,
    pub category: String,
    pub baseline: String,
    /// Instructions or nanoseconds more than the baseline.
    pub difference: f64,
    /// Which of the two.
    pub unit: String,
    /// Exits more than the baseline.
    pub exits: f64,
    /// One exit's: of a CPUID exit in the plain VM of the same run.
    pub cost: f64,
}

impl OverheadParts {
    /// What the exits come to.
    pub fn of_exits(&self) -> f64 {
        self.exits * self.cost
    }

    /// What they do not explain.
    pub fn rest(&self) -> f64 {
        self.difference - self.of_exits()
    }
}

/// What an operation costs: instructions, or time.
const COSTS: [(&str, &str); 2] = [(Sample::PATH, "instructions"), ("time", "ns")];

/// Takes each overhead apart where exits and costs of operations are known.
pub fn parts(bench: &BenchTable) -> Vec<OverheadParts> {
    COSTS.iter().flat_map(|cost| parts_of(bench, *cost)).collect()
}

fn parts_of(bench: &BenchTable, (metric, unit): (&str, &str)) -> Vec<OverheadParts> {
    let row = |workload: &str, category: &str, metric: &str, unit: &str| {
        bench.rows.iter().find(|row| {
            (&*row.workload, &*row.category, &*row.metric, &*row.unit)
                == (workload, category, metric, unit)
        })
    };
    let of_plain =
        |metric: &str, unit: &str| Some(row(YARDSTICK, "plain", metric, unit)?.median.value);
    let Some((cost, exits)) =
        of_plain(metric, unit).zip(of_plain(EXITS, AN_OPERATION)).filter(|(_, exits)| *exits > 0.0)
    else {
        return Vec::new();
    };
    let in_parts = |found: &ResultRow| {
        let against = found.against.as_ref()?;
        let of_exits =
            row(&found.workload, &found.category, EXITS, AN_OPERATION)?.against.as_ref()?;
        Some(OverheadParts {
            workload: found.workload.clone(),
            category: found.category.clone(),
            baseline: against.baseline.clone(),
            difference: against.shift.value,
            unit: unit.to_owned(),
            exits: of_exits.shift.value,
            cost: cost / exits,
        })
    };
    let costs = bench.rows.iter().filter(|row| (&*row.metric, &*row.unit) == (metric, unit));
    costs.filter_map(in_parts).collect()
}
