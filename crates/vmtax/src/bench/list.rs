//! `vmtax bench list`: what a matrix can name.

use serde_json::Value;
use vmtax_bench::adapter::ADAPTERS;
use vmtax_lab::category::{KINDS, PARTS};
use vmtax_lab::network::WORKLOADS;
use vmtax_machine::programs;
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Tables, TitledTable};

use super::args::ListArgs;

pub(super) fn run(args: &ListArgs) -> anyhow::Result<()> {
    let tables = Tables {
        command: "bench list",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: Vec::new(),
        answer: Vec::new(),
        emulation: None,
        sections: vec![categories(), workloads(), traffic()],
        json: Value::default(),
    };
    args.to.write(&tables.with_rows_as_json("vmtax-bench-list-1")?)
}

fn categories() -> TitledTable {
    let kinds = KINDS.iter().map(|kind| (kind, false));
    let parts = PARTS.iter().map(|part| (part, true));
    let table = Table::of(kinds.chain(parts))
        .column(Column::short("category", "category"), |(part, _)| Cell::Word(part.name))
        .column(Column::data("is_part"), |(_, is_part)| Cell::Flag(*is_part))
        .column(Column::short("inside", "vmm = \"qemu\""), |(part, _)| Cell::Flag(part.inside))
        .column(Column::words("about", "about"), |(part, _)| Cell::Word(part.about))
        .table();
    let note =
        "A kind of VM, and what is added to it: plain+swiotlb+poll. Also host, and names of ssh.";
    let (id, title) = ("categories", "Categories".to_owned());
    TitledTable { id, title, notes: vec![note.to_owned()], table }
}

fn traffic() -> TitledTable {
    let table = Table::of(&WORKLOADS)
        .column(Column::short("workload", "workload"), |it| Cell::Word(it.name))
        .column(Column::words("operation", "one operation is a"), |it| Cell::Word(it.operation))
        .column(Column::short("has_client", "client"), |it| Cell::Flag(it.has_client()))
        .table();
    let note =
        "Of a matrix whose VMs are QEMU's on an emulated host (accel = \"amd\", vmm = \"qemu\").";
    let (id, title) = ("traffic", "Traffic with VMs of QEMU on an emulated host".to_owned());
    TitledTable { id, title, notes: vec![note.to_owned()], table }
}

fn workloads() -> TitledTable {
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
    TitledTable { id, title, notes: vec![note.to_owned()], table }
}
