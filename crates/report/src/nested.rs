//! Exits of L2 and the exits of L1 that handling them took, described once.

use vmtax_analyse::{Ancillary, Nested, NestedRow, Ratio, statistics};
use vmtax_events::{Detail, Level, Reason, Tally};

use crate::exits::{tally_cells, tally_columns, tally_fields};
use crate::keys::{detail_cells, detail_columns, reason_cells, reason_columns};
use crate::names;
use crate::numbers::share;
use crate::table::{CSV, Cell, Column, JSON, PAGE, PEOPLE, TEXT, Table};

/// For text and CSV: an exit of L2, then the exits of L1 for it.
pub(crate) fn lines(nested: &Nested) -> Table {
    let csv = ["table", "l2_reason", "reason", "level", "to_l1"];
    let mut columns: Vec<Column> = csv.map(|key| Column::data(key).only(CSV)).to_vec();
    columns.extend(detail_columns());
    columns.extend(tally_columns("", false).into_iter().map(|column| column.shown_if(false)));
    columns.extend(
        [
            Column::words("", "L2 exit / L1 exits"),
            Column::number("", "exits"),
            Column::number("", "to L1"),
            Column::number("", "per exit"),
            Column::minor("", "time", 1),
            Column::minor("", "mean", 2),
            Column::minor("", "max", 3),
        ]
        .map(|column| column.only(TEXT)),
    );
    let mut table = Table::new(columns);
    for row in &nested.rows {
        table.strong(cells(row, &Exit::of_l2(row)));
        row.ancillary.iter().for_each(|one| table.row(cells(row, &Exit::of_l1(row, one))));
    }
    table
}

/// What a line is about.
struct Exit<'a> {
    name: String,
    reason: Reason,
    level: Level,
    detail: Detail,
    to_l1: Cell,
    each: Option<f64>,
    tally: &'a Tally,
}

impl<'a> Exit<'a> {
    fn of_l2(row: &'a NestedRow) -> Exit<'a> {
        Exit {
            name: names::reason(row.reason),
            reason: row.reason,
            level: Level::L2,
            detail: Detail::NONE,
            to_l1: Cell::Count(row.to_l1),
            each: row.ancillary_per_exit(),
            tally: &row.l2,
        }
    }

    fn of_l1(row: &NestedRow, one: &'a Ancillary) -> Exit<'a> {
        let detail = Some(names::detail(one.detail)).filter(|detail| !detail.is_empty());
        let detail = detail.map_or_else(String::new, |detail| format!(": {detail}"));
        Exit {
            name: format!("  {}{detail}", names::reason(one.reason)),
            reason: one.reason,
            level: Level::L1,
            detail: one.detail,
            to_l1: Cell::Empty,
            each: share(one.tally.count, row.to_l1),
            tally: &one.tally,
        }
    }
}

fn cells(row: &NestedRow, exit: &Exit<'_>) -> Vec<Cell> {
    let tally = exit.tally;
    let time = |ns: u64| if tally.timed > 0 { Cell::Time(ns) } else { Cell::Absent };
    let mut cells = vec![
        Cell::Word("nested"),
        Cell::Name(names::reason(row.reason)),
        Cell::Name(names::reason(exit.reason)),
        Cell::Word(exit.level.name()),
        exit.to_l1.clone(),
    ];
    cells.extend(detail_cells(exit.detail));
    cells.extend(tally_cells(tally, tally));
    cells.extend([
        Cell::Name(exit.name.clone()),
        Cell::Count(tally.count),
        exit.to_l1.clone(),
        Cell::of(exit.each, Cell::Quotient),
        time(tally.time_ns),
        Cell::of(statistics::mean_ns(tally), Cell::Mean),
        time(tally.max_ns),
    ]);
    cells
}

/// For JSON and pages: a row for each reason of L2.
pub(crate) fn reasons(nested: &Nested) -> Table {
    let page = |column: Column| column.only(PAGE);
    let mut columns = reason_columns().map(|column| column.only(JSON)).to_vec();
    let others = ["l2", "to_l1", "ancillary_per_exit", "ancillary"];
    columns.extend(others.map(|key| Column::data(key).only(JSON)));
    columns.extend(
        [
            Column::words("", "exit of L2"),
            Column::number("", "exits").sorted(),
            Column::number("", "% of the count").barred(),
            Column::number("", "time"),
            Column::number("", "forwarded to L1"),
            Column::number("", "ancillary exits"),
            Column::number("", "ancillary per forwarded exit").strong(),
            Column::number("", "ancillary time"),
        ]
        .map(page),
    );
    let mut table = Table::new(columns);
    let exits = nested.rows.iter().map(|row| row.l2.count).fold(0, u64::saturating_add);
    for row in &nested.rows {
        let exits_of_l1 = ancillary(row);
        let objects = exits_of_l1.rows.iter().map(|row| exits_of_l1.object(row)).collect();
        let all = row.all_ancillary();
        let time = |tally: &Tally| match tally.timed {
            0 => Cell::Absent,
            _ => Cell::Time(tally.time_ns),
        };
        let mut cells = reason_cells(row.reason).to_vec();
        cells.extend([
            Cell::Object(tally_fields(&row.l2)),
            Cell::Count(row.to_l1),
            Cell::of(row.ancillary_per_exit(), Cell::Number),
            Cell::List(objects),
            Cell::Name(names::reason(row.reason)),
            Cell::Count(row.l2.count),
            Cell::of(share(row.l2.count, exits), Cell::Percent),
            time(&row.l2),
            Cell::Count(row.to_l1),
            Cell::Count(all.count),
            Cell::Ratio(Ratio { part: all.count, whole: row.to_l1 }),
            time(&all),
        ]);
        table.row(cells);
    }
    table
}

/// For JSON and pages: the exits of L1 that handling exits of L2 for one reason took.
pub(crate) fn ancillary(row: &NestedRow) -> Table {
    let mut columns = reason_columns().map(|column| column.only(JSON)).to_vec();
    columns.push(detail_columns()[0].clone());
    columns.extend([
        Column::words("", "exit of L1").only(PAGE),
        Column::words("", "about").only(PAGE),
        Column::number("", "per forwarded exit").only(PAGE),
    ]);
    let is_timed = row.ancillary.iter().any(|one| one.tally.timed > 0);
    columns.extend(tally_columns("exits", is_timed).into_iter().map(|column| {
        let is_short = ["count", "time_ns"].contains(&column.key);
        let column = if column.key == "count" { column.sorted() } else { column };
        column.without(if is_short { CSV | TEXT } else { CSV | PEOPLE })
    }));
    let mut table = Table::new(columns);
    let all = row.all_ancillary();
    for one in &row.ancillary {
        let mut cells = reason_cells(one.reason).to_vec();
        let about = names::detail(one.detail);
        cells.extend([
            detail_cells(one.detail)[0].clone(),
            Cell::Name(names::reason(one.reason)),
            if about.is_empty() { Cell::Absent } else { Cell::Name(about) },
            Cell::Ratio(Ratio { part: one.tally.count, whole: row.to_l1 }),
        ]);
        cells.extend(tally_cells(&one.tally, &all));
        table.row(cells);
    }
    table
}
