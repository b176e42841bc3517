//! `vmtax bench list`: what a matrix can name.

use serde_json::Value;
use vmtax_bench::adapter::ADAPTERS;
use vmtax_bench::category::{KINDS, PARTS};
use vmtax_machine::programs;
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Section, Tables};

use super::args::ListArgs;

pub(super) fn run(args: &ListArgs) -> anyhow::Result<()> {
    let tables = Tables {
        command: "bench list",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: Vec::new(),
        answer: Vec::new(),
        emulation: None,
        sections: vec![categories(), workloads()],
        json: Value::default(),
    };
    args.to.write(&tables.with_rows_as_json("vmtax-bench-list-1")?)
}

fn categories() -> Section {
    let kinds = KINDS.iter().map(|kind| (kind.name.to_owned(), false, kind.about));
    let parts = PARTS.iter().map(|part| (format!("+{}", part.name), true, part.about));
    let table = Table::of(kinds.chain(parts))
        .column(Column::short("category", "category"), |(name, ..)| Cell::Name(name.clone()))
        .column(Column::data("is_part"), |(_, is_part, _)| Cell::Flag(*is_part))
        .column(Column::words("about", "about"), |(.., about)| Cell::Word(about))
        .table();
    let note =
        "A kind of VM, and what is added to it: plain+swiotlb+poll. Also host, and names of ssh.";
    let (id, title) = ("categories", "Categories".to_owned());
    Section { id, title, notes: vec![note.to_owned()], table }
}

fn workloads() -> Section {
    let table = Table::of(ADAPTERS)
        .column(Column::short("workload", "workload"), |it| Cell::Word(it.name))
        .column(Column::words("about", "about"), |it| Cell::Word(it.about))
        .column(Column::short("metric", "first metric"), |it| Cell::Word(it.headline))
        .column(Column::short("missing", "not installed here"), |it| {
            let missing = it.programs.iter().find(|name| programs::find(name).is_none());
            missing.map_or(Cell::Empty, |name| Cell::Word(name))
        })
        .column(Column::list("parameters", "parameters"), |it| {
            let parameters = it.parameters.iter().map(|(name, value)| format!("{name}={value}"));
            Cell::Words(parameters.collect())
        })
        .table();
    let note = "A matrix can also have commands of its own (docs/bench.md).";
    let (id, title) = ("workloads", "Workloads".to_owned());
    Section { id, title, notes: vec![note.to_owned()], table }
}
