//! Call trees of operations: instructions by function, with and without what a function calls; the same by level; differences.
//!
//! Left out on purpose: how a tree is made (`vmtax-lab`), and pictures.

pub mod artefact;
pub mod beside;
pub mod difference;
mod tree;

use std::collections::HashSet;

use vmtax_events::{Level, Sample};

pub use tree::{Arranged, CallNode, CallTree, FunctionCost, NodeLabel};

use crate::Ledger;
use crate::operations::{L2_SUFFIX, Operations, Waited};
use crate::reasons::vm_name;

/// An operation with its call tree.
#[derive(Clone, Debug)]
pub struct ProfiledOperation<'a> {
    /// The operation. Hostile text.
    pub name: String,
    /// Workload and category of a benchmark's cell. Hostile text.
    pub cell: Option<(&'a str, &'a str)>,
    /// Where it was executed.
    pub level: Level,
    /// How often, in the batch that the tree is of.
    pub operations: u64,
    /// Instructions that began in the batch.
    pub begun: u64,
    /// Those of them that were not done.
    pub undone: u64,
    /// Those of the loop.
    pub around: u64,
    /// Nanoseconds without instructions.
    pub idle: u64,
    /// How long and where it waits, of a step of a VM's life.
    pub waited: Option<Waited>,
    pub tree: &'a CallTree,
}

impl ProfiledOperation<'_> {
    /// Instructions of one operation.
    pub fn of_one(&self, instructions: u64) -> f64 {
        instructions as f64 / self.operations.max(1) as f64
    }
}

/// The profiled operations of a ledger, in the order of its operations, then the cells of a benchmark; and a sentence for each that does not add up.
pub fn profiled<'a>(ledger: &'a Ledger) -> (Vec<ProfiledOperation<'a>>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    if ledger.calls.is_empty() {
        return (found, problems);
    }
    let mut seen = HashSet::new();
    let mut add = |key: String, one: Option<ProfiledOperation<'a>>| {
        let Some(one) = one.filter(|_| seen.insert(key.clone())) else { return };
        let sum = [one.tree.total(), one.undone, one.around];
        let sum = sum.into_iter().try_fold(0, u64::checked_add);
        if one.tree.damaged || one.operations == 0 || sum != Some(one.begun) {
            problems.push(format!("the call tree of {key} does not add up, and is not shown"));
        } else {
            found.push(one);
        }
    };
    for row in Operations::new(ledger).rows {
        let suffix = if row.level == Level::L2 { L2_SUFFIX } else { "" };
        let workload = format!("{}{suffix}", row.name);
        let is_of = |sample: &Sample| sample.workload == workload;
        let one = one(ledger, &workload, &is_of).map(|one| ProfiledOperation {
            name: row.name,
            level: row.level,
            waited: row.waited,
            ..one
        });
        add(workload, one);
    }
    for cell in ledger.samples.iter().filter(|sample| sample.metric == Sample::PROFILED) {
        let key = vm_name(&cell.workload, &cell.category, cell.repeat);
        let is_of = |sample: &Sample| {
            (&sample.workload, &sample.category, sample.repeat)
                == (&cell.workload, &cell.category, cell.repeat)
        };
        let one = one(ledger, &key, &is_of).map(|one| {
            let is_nested = one.tree.levels().contains_key(&2);
            let level = if is_nested { Level::L2 } else { Level::L1 };
            let cell = Some((&*cell.workload, &*cell.category));
            ProfiledOperation { name: key.clone(), cell, level, ..one }
        });
        add(key, one);
    }
    (found, problems)
}

/// The tree of this name, with the figures of these samples.
fn one<'a>(
    ledger: &'a Ledger,
    key: &str,
    is_of: &dyn Fn(&Sample) -> bool,
) -> Option<ProfiledOperation<'a>> {
    let figure = |metric: &str| {
        let of = |sample: &&Sample| sample.metric == metric && is_of(sample);
        ledger.samples.iter().find(of).map_or(0, |sample| sample.value as u64)
    };
    Some(ProfiledOperation {
        name: String::new(),
        cell: None,
        level: Level::Unknown,
        operations: figure(Sample::PROFILED),
        begun: figure(Sample::PROFILE_BEGUN),
        undone: figure(Sample::PROFILE_UNDONE),
        around: figure(Sample::PROFILE_LOOP),
        idle: figure(Sample::PROFILE_IDLE),
        waited: None,
        tree: ledger.calls.get(key)?,
    })
}
