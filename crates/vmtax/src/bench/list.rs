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
    let mut table = Table::new(vec![
        Column::short("category", "category"),
        Column::data("is_part"),
        Column::words("about", "about"),
    ]);
    for kind in KINDS {
        table.row(vec![Cell::Word(kind.name), Cell::Flag(false), Cell::Word(kind.about)]);
    }
    for part in PARTS {
        let name = Cell::Name(format!("+{}", part.name));
        table.row(vec![name, Cell::Flag(true), Cell::Word(part.about)]);
    }
    let note =
        "A kind of VM, and what is added to it: plain+swiotlb+poll. Also host, and names of ssh.";
    let (id, title) = ("categories", "Categories".to_owned());
    Section { id, title, notes: vec![note.to_owned()], table }
}

fn workloads() -> Section {
    let mut table = Table::new(vec![
        Column::short("workload", "workload"),
        Column::words("about", "about"),
        Column::short("metric", "first metric"),
        Column::short("missing", "not installed here"),
        Column::list("parameters", "parameters"),
    ]);
    for adapter in ADAPTERS {
        let missing = adapter.programs.iter().find(|name| programs::find(name).is_none());
        let parameters = adapter.parameters.iter().map(|(name, value)| format!("{name}={value}"));
        table.row(vec![
            Cell::Word(adapter.name),
            Cell::Word(adapter.about),
            Cell::Word(adapter.headline),
            missing.map_or(Cell::Empty, |name| Cell::Word(name)),
            Cell::Words(parameters.collect()),
        ]);
    }
    let note = "A matrix can also have commands of its own (docs/bench.md).";
    let (id, title) = ("workloads", "Workloads".to_owned());
    Section { id, title, notes: vec![note.to_owned()], table }
}
