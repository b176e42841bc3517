//! Functions of a workload in a category, beside those in its baseline: L2 beside L1.
//!
//! Left out on purpose: what a function calls; trees have that.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{CallKind, Level};

use super::{CallTree, profiled};
use crate::bench::baseline;
use crate::{Ledger, ProfiledOperation};

/// What programs are called in trees.
const PROGRAM: &str = "[program]";

/// Whose code it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CodeOf {
    /// Of the host, L0.
    Host,
    /// Of the hypervisor in the VM, L1.
    Hypervisor,
    /// Of the guest in which the workload runs: L1, or L2.
    Guest,
}

/// A function of a workload: instructions and calls of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionRow {
    pub workload: String,
    pub category: String,
    pub baseline: String,
    pub of: CodeOf,
    /// Hostile text; `None` for all functions of this code.
    pub function: Option<String>,
    /// Hostile text.
    pub module: String,
    /// In the baseline; `None` for code that it cannot have.
    pub base: Option<f64>,
    pub own: f64,
    pub calls: f64,
    /// All instructions of one operation in the category.
    pub all: f64,
}

/// By function and module; without a function all of them.
type Functions = BTreeMap<(CodeOf, Option<String>, String), (f64, f64)>;

/// The rows of all workloads and categories with call trees whose baseline has them, too: sums first, then those with most instructions.
pub fn beside(ledger: &Ledger) -> Vec<FunctionRow> {
    let mut cells: BTreeMap<(&str, &str), Vec<(Functions, bool)>> = BTreeMap::new();
    let trees = profiled(ledger).0;
    let mut order = Vec::new();
    for one in &trees {
        let Some((workload, category)) = one.cell else { continue };
        if !order.contains(&(workload, category)) {
            order.push((workload, category));
        }
        let cell = (functions(one), one.level == Level::L2);
        cells.entry((workload, category)).or_default().push(cell);
    }
    let mut rows = Vec::new();
    for (workload, category) in order {
        let there: BTreeSet<&str> =
            cells.keys().filter(|key| key.0 == workload).map(|key| key.1).collect();
        let Some(base_name) = baseline(category, &there) else { continue };
        let (Some(own), Some(base)) =
            (cells.get(&(workload, category)), cells.get(&(workload, base_name)))
        else {
            continue;
        };
        let base_is_nested = base.iter().any(|(_, is_nested)| *is_nested);
        let (own, base) = (mean(own), mean(base));
        let all = all(&own);
        let of = |key: &(CodeOf, Option<String>, String)| {
            let (code, function, module) = key;
            let has_base = *code != CodeOf::Hypervisor || base_is_nested;
            let (own, calls) = own.get(key).copied().unwrap_or_default();
            FunctionRow {
                workload: workload.to_owned(),
                category: category.to_owned(),
                baseline: base_name.to_owned(),
                of: *code,
                function: function.clone(),
                module: module.clone(),
                base: has_base.then(|| base.get(key).map_or(0.0, |(base, _)| *base)),
                own,
                calls,
                all,
            }
        };
        let keys: BTreeSet<_> = own.keys().chain(base.keys()).collect();
        let mut found: Vec<FunctionRow> = keys.into_iter().map(of).collect();
        let size = |row: &FunctionRow| row.own.max(row.base.unwrap_or(0.0));
        found.sort_by(|a, b| {
            let sums = a.function.is_some().cmp(&b.function.is_some());
            sums.then(size(b).total_cmp(&size(a)))
        });
        rows.extend(found);
    }
    rows
}

/// Instructions of all functions.
fn all(functions: &Functions) -> f64 {
    let sums = functions.iter().filter(|((_, function, _), _)| function.is_none());
    sums.map(|(_, (own, _))| own).sum()
}

/// A workload's functions, for one operation. Programs are told apart by the threads that execute them.
fn functions(one: &ProfiledOperation<'_>) -> Functions {
    let mut found = Functions::new();
    let tops = tops(one.tree);
    let is_nested = one.level == Level::L2;
    for (node, top) in one.tree.nodes.iter().zip(tops) {
        if node.label.kind != CallKind::Function && !node.label.kind.is_part() {
            continue;
        }
        let code = match (node.label.level, is_nested) {
            (0, _) => CodeOf::Host,
            (1, true) => CodeOf::Hypervisor,
            _ => CodeOf::Guest,
        };
        let name = match &one.tree.nodes[top].label {
            // A guest has other threads at L1 than at L2, and the same programs.
            top if node.label.name == PROGRAM
                && top.kind == CallKind::Thread
                && code != CodeOf::Guest =>
            {
                format!("{PROGRAM} of {}", top.name)
            }
            _ => node.label.name.clone(),
        };
        for (name, module) in [(Some(name), node.label.module.clone()), (None, String::new())] {
            let (own, calls) = found.entry((code, name, module)).or_default();
            *own += one.of_one(node.own);
            *calls += one.of_one(node.calls);
        }
    }
    found
}

/// The topmost node above each.
fn tops(tree: &CallTree) -> Vec<usize> {
    let mut tops: Vec<usize> = Vec::with_capacity(tree.nodes.len());
    for (index, node) in tree.nodes.iter().enumerate() {
        let top = node.parent.and_then(|parent| tops.get(parent)).copied();
        tops.push(top.unwrap_or(index));
    }
    tops
}

fn mean(repeats: &[(Functions, bool)]) -> Functions {
    let mut sums = Functions::new();
    let part = |value: f64| value / repeats.len() as f64;
    for (key, (own, calls)) in repeats.iter().flat_map(|(functions, _)| functions) {
        let sum = sums.entry(key.clone()).or_default();
        *sum = (sum.0 + part(*own), sum.1 + part(*calls));
    }
    sums
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Better, CallRow, Losses, Recording, Sample};

    use super::*;
    use crate::reasons::vm_name;
    use crate::{Filter, LedgerBuilder};

    /// Two operations, at L1 and at L2: thread, level, function, instructions.
    fn ledger() -> Ledger {
        let builder = LedgerBuilder::new(Filter::default(), 1);
        let mut ledger = builder.finish(Recording::default(), Losses::default(), true);
        for (category, nodes) in [
            ("plain", &[(0, "svm_vcpu_run", 20), (1, "memcpy", 10)][..]),
            (
                "plain+nested",
                &[
                    (0, "svm_vcpu_run", 60),
                    (0, PROGRAM, 4),
                    (1, "svm_vcpu_run", 30),
                    (2, "memcpy", 12),
                    (2, PROGRAM, 2),
                ],
            ),
        ] {
            let mut tree = CallTree::default();
            let row = |node, parent, kind, level, name: &str, instructions| CallRow {
                workload: vm_name("ping", category, 0),
                node,
                parent,
                kind,
                level,
                name: name.to_owned(),
                module: String::new(),
                calls: 2,
                instructions,
            };
            tree.push(&row(0, None, CallKind::Thread, 0, "L0 vCPU threads", 0));
            for (index, (level, name, count)) in nodes.iter().enumerate() {
                tree.push(&row(
                    index as u32 + 1,
                    Some(0),
                    CallKind::Function,
                    *level,
                    name,
                    *count,
                ));
            }
            let begun: u64 = nodes.iter().map(|node| node.2).sum();
            for (metric, value) in [(Sample::PROFILED, 2), (Sample::PROFILE_BEGUN, begun)] {
                ledger.samples.push(Sample {
                    workload: "ping".to_owned(),
                    category: category.to_owned(),
                    repeat: 0,
                    metric: metric.to_owned(),
                    unit: "count".to_owned(),
                    value: value as f64,
                    better: Better::Neither,
                });
            }
            ledger.calls.insert(vm_name("ping", category, 0), tree.summed());
        }
        ledger
    }

    #[test]
    fn l2_is_beside_l1() {
        let rows = beside(&ledger());
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.of, row.function.as_deref().unwrap_or("all"), row.base, row.own))
            .collect();
        assert_eq!(
            shown,
            [
                (CodeOf::Host, "all", Some(10.0), 32.0),
                (CodeOf::Hypervisor, "all", None, 15.0),
                (CodeOf::Guest, "all", Some(5.0), 7.0),
                (CodeOf::Host, "svm_vcpu_run", Some(10.0), 30.0),
                (CodeOf::Hypervisor, "svm_vcpu_run", None, 15.0),
                (CodeOf::Guest, "memcpy", Some(5.0), 6.0),
                (CodeOf::Host, "[program] of L0 vCPU threads", Some(0.0), 2.0),
                (CodeOf::Guest, "[program]", Some(0.0), 1.0),
            ]
        );
        assert_eq!((rows[0].all, rows[0].category.as_str()), (54.0, "plain+nested"));
    }

    #[test]
    fn a_tree_that_does_not_add_up_is_not_shown() {
        let mut ledger = ledger();
        ledger.samples.iter_mut().for_each(|sample| sample.value += 1.0);
        assert!(beside(&ledger).is_empty());
        assert_eq!(profiled(&ledger).1.len(), 2);
    }
}
