//! The findings of a lab run: how much was measured, what costs most, what nesting costs.

use vmtax_analyse::{OperationRow, Operations, Path};
use vmtax_events::Level;

use crate::numbers::{counted, ratio};
use crate::operations::{self, are_recorded, factor, name};
use crate::paging;

/// Operations that a level's sentence names.
const COSTLIEST: usize = 3;

pub(super) fn sentences(operations: &Operations) -> Vec<String> {
    let rows = &operations.rows;
    let mut said: Vec<String> = nested(rows).map(|(row, _)| conclusion(row)).into_iter().collect();
    said.extend(paging::sentences(operations));
    said.push(extent(rows));
    // Accesses to memory have one instruction and no exit.
    if said.len() == 1 || rows.iter().any(|row| row.paging.is_none()) {
        said.extend([Level::L1, Level::L2].into_iter().filter_map(|level| costliest(rows, level)));
    }
    said.extend(nesting(rows));
    said
}

/// The operation that stands for what nesting costs, and its factor: CPUID, which does nothing but exit, or the median.
pub(crate) fn nested(rows: &[OperationRow]) -> Option<(&OperationRow, f64)> {
    let mut ratios = ratios(rows);
    ratios.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let cpuid = ratios.iter().find(|(row, _)| row.name == "cpuid");
    cpuid.or_else(|| ratios.get(ratios.len() / 2)).copied()
}

fn ratios(rows: &[OperationRow]) -> Vec<(&OperationRow, f64)> {
    rows.iter().filter_map(|row| Some((row, row.l2_over_l1?))).collect()
}

/// What nesting costs.
fn conclusion(row: &OperationRow) -> String {
    let times = row.l2_over_l1.map_or_else(String::new, factor);
    let path = row.path.map_or_else(String::new, |path| operations::path(&path));
    let exits = row.exits_per_operation();
    let exits = match row.recorded {
        true => {
            format!(" and {} exit{}", ratio(exits), if exits.exact() == Some(1) { "" } else { "s" })
        }
        false => String::new(),
    };
    format!(
        "A nested {} takes {times} times the instructions of one at L1: {path} instructions{exits}.",
        name(row)
    )
}

fn extent(rows: &[OperationRow]) -> String {
    let at = |level| rows.iter().filter(|row| row.level == level).count() as u64;
    let who = match (at(Level::L1), at(Level::L2)) {
        (n, 0) => format!("{} ran at L1", counted(n, "operation")),
        (0, n) => format!("{} ran at L2", counted(n, "operation")),
        (l1, l2) => format!("{} ran at L1 and {l2} at L2", counted(l1, "operation")),
    };
    if !are_recorded(rows) {
        return format!("{who}; exits were not recorded.");
    }
    let exits = rows.iter().flat_map(|row| &row.exits).map(|exit| exit.count);
    let exits = exits.fold(0, u64::saturating_add);
    let executed = rows.iter().map(|row| row.count).fold(0, u64::saturating_add);
    format!("{who}: {} in all took {}.", counted(executed, "execution"), counted(exits, "exit"))
}

fn costliest(rows: &[OperationRow], level: Level) -> Option<String> {
    let mut rows: Vec<(&OperationRow, Path)> = rows
        .iter()
        .filter(|row| row.level == level)
        .filter_map(|row| Some((row, row.path?)))
        .collect();
    rows.sort_by(|(_, a), (_, b)| b.median.total_cmp(&a.median));
    let named: Vec<String> = rows
        .iter()
        .take(COSTLIEST)
        .map(|(row, path)| {
            let exits = row.exits_per_operation();
            let (path, plural) = (operations::path(path), |one: bool| if one { "" } else { "s" });
            let exits = match row.recorded {
                true => format!(", {} exit{}", ratio(exits), plural(exits.exact() == Some(1))),
                false => String::new(),
            };
            format!("{} ({path} instruction{}{exits})", name(row), plural(path == "1"))
        })
        .collect();
    (!named.is_empty()).then(|| format!("Costliest at {}: {}.", level.name(), named.join(", ")))
}

/// What the same operation costs at L2.
fn nesting(rows: &[OperationRow]) -> Option<String> {
    let mut ratios = ratios(rows);
    ratios.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let (least, most) = (ratios.first()?, ratios.last()?);
    let one = |(row, n): &(&OperationRow, f64)| format!("{} ({})", factor(*n), name(row));
    // Of a single one the first sentence says it.
    (ratios.len() > 1).then(|| {
        format!(
            "Path at L2 over path at L1: from {} to {}, median {}.",
            one(least),
            one(most),
            factor(ratios[ratios.len() / 2].1)
        )
    })
}
