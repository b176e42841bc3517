//! `vmtax lab list`.

use vmtax_cli::output;
use vmtax_events::Isa;
use vmtax_lab::suite::{Definition, SUITES};
use vmtax_report::html::{TablePage, TableSection};
use vmtax_report::table::{CSV, Cell, Column, JSON, PAGE, Table};
use vmtax_report::text::Text;

use super::args::ListArgs;
use crate::flags::{Color, TableFormat, color, width};

/// Schema of the JSON; docs/json.md.
const SCHEMA: &str = "vmtax-lab-list-1";

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    let to = args.to.output.as_deref();
    let table = operations();
    output::write(to, |out| {
        match args.to.format {
            TableFormat::Text => {
                table.terminal(Text { color: color(Color::Auto, to), width: width(to) }, out)?;
            }
            TableFormat::Csv => table.csv(out)?,
            TableFormat::Json => {
                let document = serde_json::json!({ "schema": SCHEMA, "operations": table });
                serde_json::to_writer_pretty(&mut *out, &document)?;
                writeln!(out)?;
            }
            TableFormat::Html => {
                let page = TablePage {
                    command: "lab list",
                    tool_version: env!("CARGO_PKG_VERSION"),
                    facts: vec![("Suites", SUITES.map(|suite| suite.name).join(", "))],
                    notice: None,
                };
                let section = TableSection {
                    id: "operations",
                    title: "Operations",
                    notes: Vec::new(),
                    table: &table,
                };
                page.write(&[section], out)?;
            }
        }
        Ok(())
    })
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
    let hosts = [(Isa::Svm, "amd"), (Isa::Vmx, "intel")];
    let at = |level: u8| -> Vec<&'static str> {
        hosts.iter().filter(|(isa, _)| one.is_for(*isa, level)).map(|(_, host)| *host).collect()
    };
    let hosts = at(1);
    let only = match hosts.as_slice() {
        ["amd"] => " (AMD)",
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
