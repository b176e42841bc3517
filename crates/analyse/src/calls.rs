//! Call trees of operations: instructions by function, with and without what a function calls; the same by level; differences.
//!
//! Left out on purpose: how a tree is made (`vmtax-lab`), and pictures.

pub mod artefact;
pub mod difference;
mod tree;

use std::collections::HashSet;

use vmtax_events::{Level, Sample};

pub use tree::{Arranged, CallNode, CallTree, FunctionCost, NodeLabel};

use crate::Ledger;
use crate::operations::{L2_SUFFIX, Operations, Waited};

/// An operation with its call tree.
#[derive(Clone, Debug)]
pub struct ProfiledOperation<'a> {
    /// The operation. Hostile text.
    pub name: String,
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

/// The profiled operations of a ledger, in the order of its operations, and a sentence for each that does not add up.
pub fn profiled(ledger: &Ledger) -> (Vec<ProfiledOperation<'_>>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    if ledger.calls.is_empty() {
        return (found, problems);
    }
    let mut seen = HashSet::new();
    for row in Operations::new(ledger).rows {
        let suffix = if row.level == Level::L2 { L2_SUFFIX } else { "" };
        let workload = format!("{}{suffix}", row.name);
        let Some(tree) = ledger.calls.get(&workload).filter(|_| seen.insert(workload.clone()))
        else {
            continue;
        };
        let figure = |metric: &str| {
            let of = |sample: &&Sample| sample.workload == workload && sample.metric == metric;
            ledger.samples.iter().find(of).map(|sample| sample.value as u64)
        };
        let one = ProfiledOperation {
            name: row.name,
            level: row.level,
            operations: figure(Sample::PROFILED).unwrap_or(0),
            begun: figure(Sample::PROFILE_BEGUN).unwrap_or(0),
            undone: figure(Sample::PROFILE_UNDONE).unwrap_or(0),
            around: figure(Sample::PROFILE_LOOP).unwrap_or(0),
            idle: figure(Sample::PROFILE_IDLE).unwrap_or(0),
            waited: row.waited,
            tree,
        };
        let sum = [tree.total(), one.undone, one.around].into_iter().try_fold(0, u64::checked_add);
        if tree.damaged || one.operations == 0 || sum != Some(one.begun) {
            problems.push(format!("the call tree of {workload} does not add up, and is not shown"));
        } else {
            found.push(one);
        }
    }
    (found, problems)
}
