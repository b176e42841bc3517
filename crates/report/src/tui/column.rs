//! The columns of a view and the cells of its rows, described as in any other table.

use vmtax_analyse::{ledger, statistics};
use vmtax_events::{Coverage, TimeRow};

use super::rows::{RowSums, View};
use crate::numbers;
use crate::table::{Carrying, Cell, Column, sort_key};

/// The key of the first order of rows.
pub(super) const TAX: &str = "tax";
/// The key of the order among equal rows.
pub(super) const EXITS: &str = "exits";
/// Sorted by these, rows are read like a list.
pub(super) const ID: &str = "id";
pub(super) const NAME: &str = "name";

/// What a row is measured by.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowMeasure {
    /// Rates are over it; `None` shows counts.
    pub(super) length_ns: Option<u64>,
    /// Known time not halted of all vCPUs.
    pub(super) base_ns: u64,
    pub(super) coverage: Coverage,
}

/// A row of a view.
#[derive(Clone, Copy)]
pub(super) struct ScreenLine<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) sums: &'a RowSums,
}

/// The columns of a view, in the order of the screen. `time` is that of all rows.
pub(super) fn columns<'a>(
    view: View,
    measure: RowMeasure,
    time: &TimeRow,
) -> Vec<Carrying<'a, ScreenLine<'a>>> {
    let rare = if view.has_time() { 110 } else { 0 };
    let exits = if measure.length_ns.is_some() { "EXITS/s" } else { "EXITS" };
    let mut columns: Vec<Carrying<'a, ScreenLine<'a>>> = Vec::new();
    if view.has_time() {
        let column = Column::number(ID, "ID").screen(7, 0);
        columns.push(column.of(|line: &ScreenLine<'_>| Cell::Name(line.id.to_owned())));
    }
    columns.extend([
        Column::number(TAX, "TAX%").screen(5, 0).of(move |line: &ScreenLine<'a>| {
            let row = line.sums;
            let tax = match view.has_time() {
                true => ledger::tax(&row.time),
                false => numbers::share(row.taxed_ns, measure.base_ns).filter(|_| row.has_taxed),
            };
            Cell::of(tax, Cell::Percent)
        }),
        Column::number(EXITS, exits)
            .screen(10, 0)
            .of(move |line: &ScreenLine<'a>| exits_cell(line.sums, measure)),
        Column::number("mean", "MEAN").screen(7, 0).of(|line: &ScreenLine<'a>| {
            Cell::of(statistics::mean_ns(&line.sums.tally), Cell::Mean)
        }),
        Column::number("p99", "P99").screen(7, rare).of(|line: &ScreenLine<'a>| {
            let slow = statistics::quantile(&line.sums.tally, 0.99);
            Cell::of(slow, |within| Cell::Quantile(within.low_ns, within.high_ns))
        }),
        Column::number("max", "MAX").screen(7, rare).of(|line: &ScreenLine<'a>| {
            let tally = &line.sums.tally;
            Cell::of((tally.timed > 0).then_some(tally.max_ns), Cell::Time)
        }),
    ]);
    if view.has_time() {
        columns.extend(parts(time).zip(TimeRow::PARTS).map(|(column, part)| {
            column.of(move |line: &ScreenLine<'a>| {
                let ns = part.told(&line.sums.time, &measure.coverage);
                let share = ns.and_then(|ns| numbers::share(ns, line.sums.time.wall_ns));
                Cell::of(share, Cell::Percent)
            })
        }));
    }
    if view == View::Vms {
        let column = Column::number("vcpus", "VCPUS").screen(5, 90);
        columns.push(column.of(|line: &ScreenLine<'a>| Cell::Count(line.sums.vcpus as u64)));
    }
    let name = Column::words(NAME, view.name());
    columns.push(name.of(|line: &ScreenLine<'a>| Cell::Name(line.name.to_owned())));
    columns
}

/// A count of exits, or their rate.
fn exits_cell(row: &RowSums, measure: RowMeasure) -> Cell {
    let count = row.tally.count;
    let per_second = |ns: u64| count as f64 * 1e9 / ns.max(1) as f64;
    let (number, text) = match measure.length_ns {
        Some(ns) => (per_second(ns), rate(per_second(ns))),
        None => (count as f64, fitting_count(count)),
    };
    Cell::Written(text, sort_key(number))
}

/// The parts of time. Of those outside the guest the largest always has room.
fn parts(time: &TimeRow) -> impl Iterator<Item = Column> {
    // In the order in which they give way where they are equal: the first is unknown time.
    let outside = TimeRow::whole_parts().skip(1).collect::<Vec<_>>().into_iter().rev();
    let outside: Vec<_> = outside.map(|part| (part.name, (part.of)(time))).collect();
    let largest = outside.iter().max_by_key(|(_, ns)| ns);
    let first = outside.first();
    let dispensable = match largest {
        Some((name, 1..)) if first.is_some_and(|(first, _)| first == name) => {
            outside.iter().min_by_key(|(_, ns)| ns)
        }
        _ => first,
    };
    let dispensable = dispensable.map(|(name, _)| *name);
    TimeRow::PARTS.iter().enumerate().map(move |(at, part)| {
        // Time in the guest is mostly the largest part: a digit more.
        let width = if at == 0 { 6 } else { 5 };
        let name = part.name.trim_start_matches("exit-").to_uppercase();
        let letters: String = name.chars().take(width - 1).collect();
        let is_optional = part.within.is_some() || dispensable == Some(part.name);
        let from = if is_optional { 130 } else { 0 };
        Column::number(part.column, format!("{letters}%")).screen(width, from)
    })
}

/// The columns that a terminal has room for, and the others.
pub(super) fn fitting(columns: &[Column], width: u16) -> (Vec<&Column>, Vec<&Column>) {
    columns.iter().partition(|column| width >= column.screen.from)
}

/// Exits a second.
pub(super) fn rate(rate: f64) -> String {
    if rate < 9.95 && rate > 0.0 {
        return if rate < 0.05 { "<0.1".to_owned() } else { format!("{rate:.1}") };
    }
    fitting_count(rate.round() as u64)
}

/// A count that has room in its column.
fn fitting_count(count: u64) -> String {
    match count {
        0..=99_999_999 => numbers::count(count),
        _ => format!("{:.3e}", count as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_part_has_room_and_the_rest_is_named() {
        let counts = RowMeasure { length_ns: None, base_ns: 0, coverage: Coverage::default() };
        let parts = || (1..TimeRow::PARTS.len()).filter(|at| TimeRow::PARTS[*at].within.is_none());
        for largest in parts() {
            let mut time = TimeRow::default();
            for (n, at) in (1..).zip(parts()) {
                *(TimeRow::PARTS[at].of_mut)(&mut time) = if at == largest { 500 } else { 10 * n };
            }
            for (width, view) in (80..200).flat_map(|width| View::ALL.map(|view| (width, view))) {
                let all = columns(view, counts, &time);
                let all: Vec<Column> = all.into_iter().map(|(column, _)| column).collect();
                let (shown, left_out) = fitting(&all, width);
                let has = |key: &str| shown.iter().any(|column| column.key == key);
                let part = TimeRow::PARTS[largest].column;
                assert!(!view.has_time() || has(part), "{width} {view:?}");
                assert!(has(NAME) && has(TAX));
                let room: usize = shown.iter().map(|column| column.screen.width + 1).sum();
                assert!(room < usize::from(width), "{width} {view:?}: {shown:?}");
                assert!(left_out.iter().all(|column| !has(column.key)));
                let expected = if view.has_time() { 7 + TimeRow::PARTS.len() } else { 6 };
                assert_eq!(all.len(), expected + usize::from(view == View::Vms));
            }
        }
    }

    #[test]
    fn headings_of_parts() {
        let headings: Vec<String> =
            super::parts(&TimeRow::default()).map(|part| part.title.into_owned()).collect();
        assert_eq!(headings, ["GUEST%", "L2%", "KERN%", "USER%", "HALT%", "PREE%", "UNKN%"]);
    }
}
