//! The findings of a lab run: how much was measured, what costs most, what nesting costs.

use vmtax_analyse::{OperationRow, Operations, Path};
use vmtax_events::Level;

use crate::numbers::{counted, ratio};
use crate::operations::{self, are_recorded, factor, name};

/// Operations that a level's sentence names.
const COSTLIEST: usize = 3;

pub(super) fn sentences(operations: &Operations) -> Vec<String> {
    let rows = &operations.rows;
    let mut said = vec![extent(rows)];
    said.extend([Level::L1, Level::L2].into_iter().filter_map(|level| costliest(rows, level)));
    said.extend(nesting(rows));
    said
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
    let mut ratios: Vec<(f64, &OperationRow)> =
        rows.iter().filter_map(|row| Some((row.l2_over_l1?, row))).collect();
    ratios.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (least, most) = (ratios.first()?, ratios.last()?);
    let one = |(n, row): &(f64, &OperationRow)| format!("{} ({})", factor(*n), name(row));
    Some(match ratios.len() {
        1 => format!("Path at L2 over path at L1: {}.", one(least)),
        n => format!(
            "Path at L2 over path at L1: from {} to {}, median {}.",
            one(least),
            one(most),
            factor(ratios[n / 2].0)
        ),
    })
}
