//! `vmtax lab list`.

use serde_json::Value;
use vmtax_lab::HostKind;
use vmtax_lab::suite::{Definition, SUITES, Suite};
use vmtax_report::table::{CSV, Cell, Column, JSON, PAGE, Table};
use vmtax_report::tables::{Tables, TitledTable};

use super::args::LabListArgs;

pub(crate) fn run(args: &LabListArgs) -> anyhow::Result<()> {
    let (id, title) = ("operations", "Operations".to_owned());
    let tables = Tables {
        command: "lab list",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("Suites", SUITES.map(|suite| suite.name).join(", "))],
        answer: Vec::new(),
        emulation: None,
        sections: vec![TitledTable { id, title, notes: Vec::new(), table: operations() }],
        json: Value::default(),
    };
    args.to.write(&tables.with_rows_as_json("vmtax-lab-list-1")?)
}

fn operations() -> Table {
    let all = |column: Column| column.only(PAGE | CSV | JSON);
    let hosts = |one: &Definition, level: u8| -> Vec<&'static str> {
        let hosts = HostKind::ALL.into_iter().filter(|host| *host != HostKind::Kvm);
        hosts.filter(|host| one.is_for(*host, level)).map(|host| host.name()).collect()
    };
    let rows = |suite: &'static Suite| suite.operations.iter().map(move |one| (suite, one));
    Table::of(SUITES.iter().flat_map(rows))
        .grouped(|(suite, _)| format!("{}: {}", suite.name, suite.summary))
        .column(Column::words("operation", "operation"), |(_, one)| Cell::Word(one.name))
        .column(Column::list("summary", "what the guest does"), |(_, one)| {
            let only = match hosts(one, 1).as_slice() {
                ["amd", "amd-bochs"] => " (AMD)",
                ["intel"] => " (Intel)",
                ["arm"] => " (arm64)",
                _ => "",
            };
            let summary = format!("{}{only}", one.summary);
            Cell::Words(summary.split(' ').map(str::to_owned).collect())
        })
        .column(all(Column::words("suite", "suite")), |(suite, _)| Cell::Word(suite.name))
        .column(Column::data("suite_summary"), |(suite, _)| Cell::Word(suite.summary))
        .column(all(Column::words("hosts", "hosts")), |(_, one)| {
            Cell::Name(hosts(one, 1).join(" "))
        })
        .column(all(Column::words("levels", "levels")), |(suite, one)| {
            Cell::Word(if suite.nests && !hosts(one, 2).is_empty() { "L1 L2" } else { "L1" })
        })
        .column(all(Column::number("count", "in a batch")), |(_, one)| {
            Cell::Count(u64::from(one.count))
        })
        .column(
            all(Column::words("waits", "waits")).help("such an operation has no path"),
            |(_, one)| Cell::Flag(one.waits()),
        )
        .table()
}
