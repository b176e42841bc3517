//! `vmtax vpmu selftest`: the gates of precision.

use vmtax_cli::exit::{Code, Fault};
use vmtax_cli::output;
use vmtax_report::html::{TablePage, TableSection};
use vmtax_vpmu_bench::gates;

use super::args::SelftestArgs;
use crate::flags::TableFormat;

pub(super) fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let gates = gates::run()?;
    let table = gates::table(&gates);
    output::write(args.to.output.as_deref(), |out| {
        match args.to.format {
            TableFormat::Text => write!(out, "{}", gates::text(&gates))?,
            TableFormat::Json => writeln!(out, "{:#}", gates::json(&gates))?,
            TableFormat::Csv => table.csv(out)?,
            TableFormat::Html => {
                let holding = gates.len() - gates::broken(&gates).len();
                let page = TablePage {
                    command: "vpmu selftest",
                    tool_version: env!("CARGO_PKG_VERSION"),
                    facts: vec![("Gates that hold", format!("{holding} of {}", gates.len()))],
                    notice: None,
                };
                let (id, title, notes) = ("gates", "Gates", Vec::new());
                page.write(&[TableSection { id, title, notes, table: &table }], out)?;
            }
        }
        Ok(())
    })?;
    match gates::broken(&gates) {
        broken if broken.is_empty() => Ok(()),
        broken => {
            let message = format!("{} of {} gates do not hold", broken.len(), gates.len());
            Err(Fault::new(Code::Breach, message).detailed(broken).into())
        }
    }
}
