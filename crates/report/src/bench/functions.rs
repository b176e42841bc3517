//! Functions that a benchmark's workloads execute, each category beside its baseline.

use vmtax_analyse::calls::beside::{CodeOf, FunctionRow};

use crate::table::{CSV, Cell, Column, JSON, PEOPLE, Table};

pub(crate) const TITLE: &str = "Instructions by function, beside the baseline";

/// Said with the table.
pub(crate) const NOTE: &str = "Instructions of one operation that an emulated host executed at all levels, counted exactly while the workload ran once more without \
                               recording exits; means of the repeats. Of each code the functions with most are shown, --format csv has all; \
                               `vmtax report RUN --format folded` has what calls them.";

/// Functions shown of each workload and category.
const SHOWN: usize = 20;

/// Sums, and the functions with most instructions of each workload and category.
pub(crate) fn most(rows: &[FunctionRow]) -> Vec<FunctionRow> {
    let is_same =
        |a: &FunctionRow, b: &FunctionRow| (&a.workload, &a.category) == (&b.workload, &b.category);
    let groups = rows.chunk_by(is_same);
    let shown = groups.flat_map(|group| {
        let sums = group.iter().take_while(|row| row.function.is_none()).count();
        group.iter().take(sums + SHOWN)
    });
    shown.cloned().collect()
}

/// The table, with a group for each workload and category.
pub(crate) fn table(rows: &[FunctionRow]) -> Table {
    let data = |key| Column::data(key).only(CSV | JSON);
    Table::of(rows.iter())
        .grouped(|row| {
            format!(
                "{} in {}, beside {}, for each operation",
                row.workload, row.category, row.baseline
            )
        })
        .column(data("workload"), |row| Cell::Name(row.workload.clone()))
        .column(data("category"), |row| Cell::Name(row.category.clone()))
        .column(data("baseline"), |row| Cell::Name(row.baseline.clone()))
        .column(Column::words("code", "code of"), |row| {
            Cell::Word(match row.of {
                CodeOf::Host => "host",
                CodeOf::Hypervisor => "hypervisor in the VM",
                CodeOf::Guest => "workload's guest",
            })
        })
        .column(Column::words("function", "function"), |row| {
            Cell::Name(row.function.clone().unwrap_or_else(|| "all".to_owned()))
        })
        .column(data("module"), |row| Cell::Name(row.module.clone()))
        .column(Column::number("instructions_baseline", "baseline"), |row| {
            Cell::of(row.base, Cell::Instructions)
        })
        .column(Column::number("instructions", "category"), |row| Cell::Instructions(row.own))
        .column(Column::minor("calls", "calls", 1).help("in one operation"), |row| {
            Cell::Instructions(row.calls)
        })
        .column(Column::number("", "% of all").only(PEOPLE), |row| {
            Cell::of((row.all > 0.0).then_some(row.own / row.all), Cell::Percent)
        })
        .table()
}
