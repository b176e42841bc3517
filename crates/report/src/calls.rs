//! Call trees of operations: a table of functions, and the formats of other programs' flame graphs.
//!
//! | format | opened by | numbers |
//! |---|---|---|
//! | folded | flamegraph.pl, inferno, speedscope | instructions of the batch |
//! | pprof | pprof, `go tool pprof` | instructions of the batch, the operation as a label |

pub mod difference;
pub mod folded;
pub mod pprof;

use std::collections::BTreeMap;

use vmtax_analyse::calls::artefact::{ArtefactFound, artefacts};
use vmtax_analyse::calls::{CallNode, FunctionCost, NodeLabel, profiled};
use vmtax_analyse::{Arranged, CallTree, Ledger, ProfiledOperation};
use vmtax_events::{CallKind, Level};

use crate::names::printable;
use crate::numbers::instructions;
use crate::numbers::percent;
use crate::operations::place;
use crate::table::{Cell, Column, Table};

/// What a report shows of call trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownCalls {
    /// How trees are arranged.
    pub arranged: Arranged,
    /// Functions of each operation.
    pub most: usize,
}

/// `cpuid L2`.
pub(crate) fn title(one: &ProfiledOperation<'_>) -> String {
    format!("{} {}", one.name, one.level.name())
}

/// What is known of a path: `27,806 instructions = L0 25,050 + L1 2,756; 5 more were intercepted; not on hardware 18,477 (66 %):
/// instruction decode 10,631, ...`. Printable.
pub(crate) fn summary(one: &ProfiledOperation<'_>, emulator: Option<&str>) -> String {
    let shown = |n: u64| instructions(one.of_one(n));
    let levels: Vec<String> =
        one.tree.levels().iter().map(|(level, n)| format!("L{level} {}", shown(*n))).collect();
    let total = one.tree.total();
    let mut text = format!("{} instructions", shown(total));
    if !levels.is_empty() {
        text += &format!(" = {}", levels.join(" + "));
    }
    if one.undone > 0 {
        text += &format!("; not counted: {} intercepted or restarted", shown(one.undone));
    }
    if one.idle > 0 {
        let place = one.waited.as_ref().and_then(place).map(|place| format!(" in {place}"));
        text += &format!("; {} ns of waiting{}", shown(one.idle), place.unwrap_or_default());
    }
    let found = artefacts(one, emulator);
    let sum: u64 = found.iter().map(|found| found.instructions).sum();
    if sum > 0 && total > 0 {
        let list: Vec<String> = found
            .iter()
            .map(|found| format!("{} {}", found.artefact.name, shown(found.instructions)))
            .collect();
        let share = percent(sum as f64 / total as f64);
        text +=
            &format!("; of which not on hardware {} ({share}): {}", shown(sum), list.join(", "));
    }
    text
}

/// Instructions of one operation that hardware does not execute, by name and level of the operation, where its call tree has any.
pub(crate) fn not_on_hardware(ledger: &Ledger) -> BTreeMap<(String, Level), f64> {
    let emulator = ledger.recording.emulated.as_deref();
    let sum = |one: &ProfiledOperation<'_>| {
        artefacts(one, emulator).iter().map(|found| found.instructions).sum::<u64>()
    };
    let all = profiled(ledger).0.into_iter().map(|one| (sum(&one), one));
    all.filter(|(sum, _)| *sum > 0)
        .map(|(sum, one)| ((one.name.clone(), one.level), one.of_one(sum)))
        .collect()
}

/// Why artefacts are there, a sentence for each that some tree has.
pub(crate) fn artefact_notes(all: &[ProfiledOperation<'_>], emulator: Option<&str>) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for ArtefactFound { artefact, .. } in all.iter().flat_map(|one| artefacts(one, emulator)) {
        let note =
            format!("{}: {}; gone since {}.", artefact.name, artefact.cause, artefact.gone_since);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// A frame of a stack: the level before a function's name, which pictures use for colours. Printable, and without what folded
/// stacks give a meaning.
pub(crate) fn frame(label: &NodeLabel) -> String {
    let name = match label.kind {
        CallKind::Function => format!("L{} {}", label.level, printable(&label.name)),
        CallKind::Cause => format!("L{} [{}]", label.level, printable(&label.name)),
        CallKind::Thread | CallKind::Line | CallKind::Instruction => printable(&label.name),
    };
    name.replace(';', ",")
}

/// The functions of all operations: instructions of a guest with all that handles them first, then functions by their own instructions.
pub fn table(ledger: &Ledger, shown: ShownCalls) -> Table {
    table_of(&profiled(ledger).0, shown)
}

/// The same of these operations.
pub(crate) fn table_of(all: &[ProfiledOperation<'_>], shown: ShownCalls) -> Table {
    let rows =
        all.iter().flat_map(|one| costs(one.tree, shown).into_iter().map(move |cost| (one, cost)));
    Table::of(rows)
        .column(Column::data("operation"), |(one, _)| Cell::Name(one.name.clone()))
        .column(Column::data("level"), |(one, _)| Cell::Word(one.level.name()))
        .column(
            Column::number("self", "self")
                .help("instructions of one operation in the function itself"),
            |(one, cost)| Cell::Instructions(one.of_one(cost.own)),
        )
        .column(Column::number("total", "total").help("and in what it calls"), |(one, cost)| {
            Cell::Instructions(one.of_one(cost.total))
        })
        .column(Column::number("share", "% of path").help("total over the path"), |(one, cost)| {
            Cell::Share(cost.total as f64 / one.tree.total().max(1) as f64)
        })
        .column(Column::minor("calls", "calls", 1).help("in one operation"), |(one, cost)| {
            Cell::Instructions(one.of_one(cost.calls))
        })
        .column(
            Column::words("code_level", "level").help("whose code: L0 is the host"),
            |(_, cost)| {
                Cell::Word(["L0", "L1", "L2"].get(usize::from(cost.label.level)).unwrap_or(&"?"))
            },
        )
        .column(Column::data("kind"), |(_, cost)| Cell::Word(cost.label.kind.name()))
        .column(Column::words("function", "function"), |(_, cost)| match cost.label.kind {
            CallKind::Cause => Cell::Name(format!("[{}]", cost.label.name)),
            _ => Cell::Name(cost.label.name.clone()),
        })
        .column(Column::data("module"), |(_, cost)| Cell::Name(cost.label.module.clone()))
        .table()
}

/// The line of one operation above its functions. Printable.
pub(crate) fn heading(one: &ProfiledOperation<'_>, emulator: Option<&str>) -> String {
    format!("{}: {}", printable(&title(one)), summary(one, emulator))
}

/// Causes by total, functions by self, and source lines where they are known; by level the functions and lines of each level. Last the
/// instructions of annotated functions, all of them, in the order of their addresses.
fn costs(tree: &CallTree, shown: ShownCalls) -> Vec<FunctionCost> {
    let functions = tree.costs(CallKind::Function, false);
    let lines = tree.costs(CallKind::Line, false);
    let mut instructions = tree.costs(CallKind::Instruction, false);
    instructions
        .sort_by(|a, b| (a.label.level, &a.label.name).cmp(&(b.label.level, &b.label.name)));
    let mut costs: Vec<FunctionCost> = match shown.arranged {
        Arranged::ByCause => {
            let causes = tree.costs(CallKind::Cause, true).into_iter().take(shown.most);
            let functions = functions.into_iter().take(shown.most);
            causes.chain(functions).chain(lines.into_iter().take(shown.most)).collect()
        }
        Arranged::ByLevel => {
            let of = |level: u8| {
                let all = |costs: &[FunctionCost]| {
                    let here = costs.iter().filter(|cost| cost.label.level == level);
                    here.take(shown.most).cloned().collect::<Vec<_>>()
                };
                [all(&functions), all(&lines)].concat()
            };
            (0..=2).flat_map(of).collect()
        }
    };
    costs.extend(instructions);
    costs
}

/// Nodes with instructions of their own, each with its stack.
pub(crate) fn leaves(tree: &CallTree) -> impl Iterator<Item = (Vec<&NodeLabel>, &CallNode)> {
    let nodes = tree.nodes.iter().enumerate().filter(|(_, node)| node.own > 0);
    nodes.map(|(index, node)| (tree.stack(index), node))
}
