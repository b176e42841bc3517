//! Exits of a benchmark by reason, each category beside its baseline.

use vmtax_analyse::reasons::{Guest, ReasonRow};

use crate::names;
use crate::table::{CSV, Cell, Column, JSON, PEOPLE, Table};

/// The heading.
pub(crate) const TITLE: &str = "Exits by reason, beside the baseline";

/// Said with the table.
pub(crate) const NOTE: &str = "Of one operation of built-in workloads, of the whole recorded run of others; means of the repeats. Where the category \
                               is a nested guest (L2) and the baseline the VM around it (L1), the exits of the hypervisor in that VM (L1) are those it takes to \
                               run its guest, and which MSR an exit of L2 is about is not recorded; `vmtax report RUN --event nested` divides them by the exit of L2 that they handle.";

/// The table, with a group for each workload and category.
pub(crate) fn table(rows: &[ReasonRow]) -> Table {
    let data = |key| Column::data(key).only(CSV | JSON);
    let mut table = Table::new(vec![
        data("workload"),
        data("category"),
        data("baseline"),
        data("unit"),
        Column::words("guest", "exits of"),
        Column::words("reason", "reason"),
        Column::number("exits_baseline", "baseline"),
        Column::number("exits", "category"),
        Column::number("ratio", "ratio"),
        Column::number("", "% of all").only(PEOPLE),
    ]);
    let mut all = 0.0;
    let mut last = None;
    for row in rows {
        if row.guest == Guest::All {
            all = row.own;
        }
        let cells = cells(row, all);
        let key = (&row.workload, &row.category);
        if last == Some(key) {
            table.row(cells);
        } else {
            let unit = if row.of_operation { "for each operation" } else { "in a run" };
            table.first_of(
                format!("{} in {}, beside {}, {unit}", row.workload, row.category, row.baseline),
                cells,
            );
        }
        last = Some(key);
    }
    table
}

fn cells(row: &ReasonRow, all: f64) -> Vec<Cell> {
    let guest = match row.guest {
        Guest::All => "all",
        Guest::Workload => "workload's guest",
        Guest::Hypervisor => "its hypervisor",
    };
    let reason = row.what.map_or("all".to_owned(), |(reason, detail)| {
        [names::reason(reason), names::detail(detail)].join(" ").trim_end().to_owned()
    });
    let unit = if row.of_operation { "exits an operation" } else { "exits" };
    vec![
        Cell::Name(row.workload.clone()),
        Cell::Name(row.category.clone()),
        Cell::Name(row.baseline.clone()),
        Cell::Word(unit),
        Cell::Word(guest),
        Cell::Name(reason),
        Cell::of(row.base, Cell::Number),
        Cell::Number(row.own),
        Cell::of(row.ratio(), Cell::Number),
        Cell::of((all > 0.0).then_some(row.own / all), Cell::Percent),
    ]
}
