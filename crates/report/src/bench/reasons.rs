//! Exits of a benchmark by reason, each category beside its baseline.

use vmtax_analyse::reasons::{ExitGuest, ReasonRow};

use crate::names;
use crate::table::{CSV, Cell, Column, JSON, PEOPLE, Table};

pub(crate) const TITLE: &str = "Exits by reason, beside the baseline";

/// Said with the table.
pub(crate) const NOTE: &str = "Of one operation of built-in workloads, of the whole recorded run of others; means of the repeats. Where the category \
                               is a nested guest (L2) and the baseline the VM around it (L1), the exits of the hypervisor in that VM (L1) are those it takes to \
                               run its guest, and which MSR an exit of L2 is about is not recorded; `vmtax report RUN --event nested` divides them by the exit of L2 that they handle.";

/// The table, with a group for each workload and category.
pub(crate) fn table(rows: &[ReasonRow]) -> Table {
    let data = |key| Column::data(key).only(CSV | JSON);
    let mut all = 0.0;
    // The row of all exits is in front of those that are its parts.
    let rows = rows.iter().map(|row| {
        if row.guest == ExitGuest::All {
            all = row.own;
        }
        (row, all)
    });
    Table::of(rows)
        .grouped(|(row, _)| {
            let unit = if row.of_operation { "for each operation" } else { "in a run" };
            format!("{} in {}, beside {}, {unit}", row.workload, row.category, row.baseline)
        })
        .column(data("workload"), |(row, _)| Cell::Name(row.workload.clone()))
        .column(data("category"), |(row, _)| Cell::Name(row.category.clone()))
        .column(data("baseline"), |(row, _)| Cell::Name(row.baseline.clone()))
        .column(data("unit"), |(row, _)| {
            Cell::Word(if row.of_operation { "exits an operation" } else { "exits" })
        })
        .column(Column::words("guest", "exits of"), |(row, _)| {
            Cell::Word(match row.guest {
                ExitGuest::All => "all",
                ExitGuest::Workload => "workload's guest",
                ExitGuest::Hypervisor => "its hypervisor",
            })
        })
        .column(Column::words("reason", "reason"), |(row, _)| {
            Cell::Name(row.what.map_or("all".to_owned(), |(reason, detail)| {
                [names::reason(reason), names::detail(detail)].join(" ").trim_end().to_owned()
            }))
        })
        .column(Column::number("exits_baseline", "baseline"), |(row, _)| {
            Cell::of(row.base, Cell::Number)
        })
        .column(Column::number("exits", "category"), |(row, _)| Cell::Number(row.own))
        .column(Column::number("ratio", "ratio"), |(row, _)| Cell::of(row.ratio(), Cell::Number))
        .column(Column::number("", "% of all").only(PEOPLE), |(row, all)| {
            Cell::of((*all > 0.0).then_some(row.own / all), Cell::Percent)
        })
        .table()
}
