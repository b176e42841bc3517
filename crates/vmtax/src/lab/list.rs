//! `vmtax lab list`.

use serde_json::Value;
use vmtax_lab::Host;
use vmtax_lab::suite::{Definition, SUITES};
use vmtax_report::table::{CSV, Cell, Column, JSON, PAGE, Table};
use vmtax_report::tables::{Section, Tables};

use super::args::ListArgs;

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    let (id, title) = ("operations", "Operations".to_owned());
    let tables = Tables {
        command: "lab list",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("Suites", SUITES.map(|suite| suite.name).join(", "))],
        answer: Vec::new(),
        emulation: None,
        sections: vec![Section { id, title, notes: Vec::new(), table: operations() }],
        json: Value::default(),
    };
    args.to.write(&tables.with_rows_as_json("vmtax-lab-list-1")?)
}

fn operations() -> Table {
    let mut table = Table::new(vec![
        Column::words("operation", "operation"),
        Column::list("summary", "what the guest does"),
        Column::words("suite", "suite").only(PAGE | CSV | JSON),
        Column::data("suite_summary"),
        Column::words("hosts", "hosts").only(PAGE | CSV | JSON),
        Column::words("levels", "levels").only(PAGE | CSV | JSON),
        Column::number("count", "in a batch").only(PAGE | CSV | JSON),
        Column::words("waits", "waits")
            .help("such an operation has no path")
            .only(PAGE | CSV | JSON),
    ]);
    for suite in &SUITES {
        for (number, one) in suite.operations.iter().enumerate() {
            let cells = row(one, (suite.name, suite.summary), suite.nests);
            let group = format!("{}: {}", suite.name, suite.summary);
            if number == 0 { table.first_of(group, cells) } else { table.row(cells) }
        }
    }
    table
}

fn row(one: &Definition, suite: (&'static str, &'static str), nests: bool) -> Vec<Cell> {
    let hosts = [Host::Amd, Host::AmdBochs, Host::Intel];
    let at = |level: u8| -> Vec<&'static str> {
        hosts.iter().filter(|host| one.is_for(**host, level)).map(|host| host.name()).collect()
    };
    let hosts = at(1);
    let only = match hosts.as_slice() {
        ["amd", "amd-bochs"] => " (AMD)",
        ["intel"] => " (Intel)",
        _ => "",
    };
    let summary = format!("{}{only}", one.summary);
    vec![
        Cell::Word(one.name),
        Cell::Words(summary.split(' ').map(str::to_owned).collect()),
        Cell::Word(suite.0),
        Cell::Word(suite.1),
        Cell::Name(hosts.join(" ")),
        Cell::Word(if nests && !at(2).is_empty() { "L1 L2" } else { "L1" }),
        Cell::Count(u64::from(one.count)),
        Cell::Flag(one.waits()),
    ]
}
