//! Exits of L2 and the exits of L1 that handling them took, described once.

use vmtax_analyse::{Ancillary, Nested, NestedRow, Ratio, statistics};
use vmtax_events::{Detail, Level, Reason, Tally};

use crate::exits::{ExitCounts, tally_columns, tally_fields, time};
use crate::keys::{detail_columns, reason_columns};
use crate::names;
use crate::numbers::share;
use crate::table::{CSV, Cell, Column, JSON, PAGE, PEOPLE, TEXT, Table, changed};

/// For text and CSV: an exit of L2, then the exits of L1 for it.
pub(crate) fn lines(nested: &Nested) -> Table {
    let csv = |key| Column::data(key).only(CSV);
    let exits = nested.rows.iter().flat_map(|row| {
        let ancillary = row.ancillary.iter().map(move |one| NestedExit::of_l1(row, one));
        std::iter::once(NestedExit::of_l2(row)).chain(ancillary)
    });
    Table::of(exits)
        .strong(|exit| exit.level == Level::L2)
        .column(csv("table"), |_| Cell::Word("nested"))
        .column(csv("l2_reason"), |exit| Cell::Name(names::reason(exit.of)))
        .column(csv("reason"), |exit| Cell::Name(names::reason(exit.reason)))
        .column(csv("level"), |exit| Cell::Word(exit.level.name()))
        .column(csv("to_l1"), |exit| exit.to_l1.clone())
        .columns(detail_columns(), |exit| Some(exit.detail))
        .columns(changed(tally_columns("", false), |column| column.shown_if(false)), |exit| {
            ExitCounts { tally: exit.tally, whole: exit.tally }
        })
        .column(Column::words("", "L2 exit / L1 exits").only(TEXT), |exit| {
            Cell::Name(exit.name.clone())
        })
        .column(Column::number("", "exits").only(TEXT), |exit| Cell::Count(exit.tally.count))
        .column(Column::number("", "to L1").only(TEXT), |exit| exit.to_l1.clone())
        .column(Column::number("", "per exit").only(TEXT), |exit| {
            Cell::of(exit.each, Cell::Quotient)
        })
        .column(Column::minor("", "time", 1).only(TEXT), |exit| {
            time(exit.tally, exit.tally.time_ns)
        })
        .column(Column::minor("", "mean", 2).only(TEXT), |exit| {
            Cell::of(statistics::mean_ns(exit.tally), Cell::Mean)
        })
        .column(Column::minor("", "max", 3).only(TEXT), |exit| time(exit.tally, exit.tally.max_ns))
        .table()
}

/// What a line is about.
struct NestedExit<'a> {
    /// The exit of L2 that it belongs to.
    of: Reason,
    name: String,
    reason: Reason,
    level: Level,
    detail: Detail,
    to_l1: Cell,
    each: Option<f64>,
    tally: &'a Tally,
}

impl<'a> NestedExit<'a> {
    fn of_l2(row: &'a NestedRow) -> NestedExit<'a> {
        NestedExit {
            of: row.reason,
            name: names::reason(row.reason),
            reason: row.reason,
            level: Level::L2,
            detail: Detail::NONE,
            to_l1: Cell::Count(row.to_l1),
            each: row.ancillary_per_exit(),
            tally: &row.l2,
        }
    }

    fn of_l1(row: &'a NestedRow, one: &'a Ancillary) -> NestedExit<'a> {
        let detail = Some(names::detail(one.detail)).filter(|detail| !detail.is_empty());
        let detail = detail.map_or_else(String::new, |detail| format!(": {detail}"));
        NestedExit {
            of: row.reason,
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

/// For JSON and pages: a row for each reason of L2.
pub(crate) fn reasons(nested: &Nested) -> Table {
    let exits = nested.rows.iter().map(|row| row.l2.count).fold(0, u64::saturating_add);
    let json = |key| Column::data(key).only(JSON);
    let number = |title: &'static str| Column::number("", title).only(PAGE);
    let ancillary_objects = |row: &NestedRow| {
        let table = ancillary(row);
        Cell::List(table.rows.iter().map(|row| table.object(row)).collect())
    };
    Table::of(nested.rows.iter().map(|row| (row, row.all_ancillary())))
        .columns(changed(reason_columns(), |column| column.only(JSON)), |(row, _)| Some(row.reason))
        .column(json("l2"), |(row, _)| Cell::Object(tally_fields(&row.l2)))
        .column(json("to_l1"), |(row, _)| Cell::Count(row.to_l1))
        .column(json("ancillary_per_exit"), |(row, _)| {
            Cell::of(row.ancillary_per_exit(), Cell::Number)
        })
        .column(json("ancillary"), |(row, _)| ancillary_objects(row))
        .column(Column::words("", "exit of L2").only(PAGE), |(row, _)| {
            Cell::Name(names::reason(row.reason))
        })
        .column(number("exits").sorted(), |(row, _)| Cell::Count(row.l2.count))
        .column(number("% of the count").barred(), |(row, _)| {
            Cell::of(share(row.l2.count, exits), Cell::Percent)
        })
        .column(number("time"), |(row, _)| time(&row.l2, row.l2.time_ns))
        .column(number("forwarded to L1"), |(row, _)| Cell::Count(row.to_l1))
        .column(number("ancillary exits"), |(_, all)| Cell::Count(all.count))
        .column(number("ancillary per forwarded exit").strong(), |(row, all)| {
            Cell::Ratio(Ratio { part: all.count, whole: row.to_l1 })
        })
        .column(number("ancillary time"), |(_, all)| time(all, all.time_ns))
        .table()
}

/// For JSON and pages: the exits of L1 that handling exits of L2 for one reason took.
pub(crate) fn ancillary(row: &NestedRow) -> Table {
    let all = row.all_ancillary();
    let is_timed = row.ancillary.iter().any(|one| one.tally.timed > 0);
    let short = |column: Column| {
        let is_short = ["count", "time_ns"].contains(&column.key);
        let column = if column.key == "count" { column.sorted() } else { column };
        column.without(if is_short { CSV | TEXT } else { CSV | PEOPLE })
    };
    Table::of(&row.ancillary)
        .columns(changed(reason_columns(), |column| column.only(JSON)), |one| Some(one.reason))
        .columns(detail_columns().into_iter().take(1), |one| Some(one.detail))
        .column(Column::words("", "exit of L1").only(PAGE), |one| {
            Cell::Name(names::reason(one.reason))
        })
        .column(Column::words("", "about").only(PAGE), |one| match names::detail(one.detail) {
            about if about.is_empty() => Cell::Absent,
            about => Cell::Name(about),
        })
        .column(Column::number("", "per forwarded exit").only(PAGE), |one| {
            Cell::Ratio(Ratio { part: one.tally.count, whole: row.to_l1 })
        })
        .columns(changed(tally_columns("exits", is_timed), short), |one| ExitCounts {
            tally: &one.tally,
            whole: &all,
        })
        .table()
}
