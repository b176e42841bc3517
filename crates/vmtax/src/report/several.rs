//! `vmtax report A B ...`: several runs or recordings -> their tables side by side.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use vmtax_analyse::{By, Operations, TableKind, recorded};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_report::several::{NamedRecording, Several, short_names};
use vmtax_report::tables::AllFormats;
use vmtax_report::text::TextLayout;
use vmtax_runs::{Input, ReadOptions, input, ledger};

use super::args::{EventTable, ReportArgs};
use crate::flags::{TableFormat, color, width};

/// The tables that are shown if none are named.
const USUAL: [TableKind; 2] = [TableKind::Cause, TableKind::Vmexit];

pub(super) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let paths: Vec<&Path> = args.inputs.iter().map(PathBuf::as_path).collect();
    input::check_read_once(&paths)?;
    let (format, kinds) = (format(args)?, kinds(args)?);
    if let Some(by) = args.by.iter().find(|by| matches!(by, By::Vm | By::Vcpu)) {
        let text = format!(
            "--by {}: VMs of different recordings are unrelated; select those to compare with --vm, or report each recording alone",
            by.name()
        );
        return fail(Code::Usage, text);
    }
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let reading = args.reading.reading();
    let mut recordings = Vec::new();
    for (path, name) in paths.into_iter().zip(short_names(&names)) {
        recordings.push(NamedRecording { name, ledger: read(args, path, &reading)? });
    }
    let shown = Several::new(&recordings, &kinds, &args.by, env!("CARGO_PKG_VERSION"));
    let to = args.output.as_deref();
    let look = TextLayout { color: color(args.color, to), width: width(to) };
    output::write(to, |out| {
        Ok(match format {
            TableFormat::Text => shown.text(look, out),
            TableFormat::Json => shown.json(out),
            TableFormat::Csv => shown.csv(out),
            TableFormat::Html => shown.html(out),
        }?)
    })
}

fn format(args: &ReportArgs) -> anyhow::Result<TableFormat> {
    if let Some(format) = args.format.of_tables() {
        return Ok(format);
    }
    let word = args.format.to_possible_value();
    let word = word.as_ref().map_or("", PossibleValue::get_name);
    let text = format!(
        "--format {word}: takes one recording, and {} are named; several have text, json, csv and html",
        args.inputs.len()
    );
    fail(Code::Usage, text)
}

fn kinds(args: &ReportArgs) -> anyhow::Result<Vec<TableKind>> {
    if args.event.is_empty() {
        return Ok(USUAL.to_vec());
    }
    if args.event.iter().any(|event| event.kind().is_none()) {
        let names = TableKind::ALL.map(TableKind::name).join(", ");
        let text = format!(
            "--event: several recordings have the tables {names}; `vmtax lab compare` compares operations and functions"
        );
        return fail(Code::Usage, text);
    }
    Ok(args.event.iter().copied().filter_map(EventTable::kind).collect())
}

fn read(
    args: &ReportArgs,
    path: &Path,
    reading: &ReadOptions,
) -> anyhow::Result<vmtax_analyse::Ledger> {
    let filter = ledger::filter(path, &args.vm, &args.vcpu, reading)?;
    let input = Input::open(path)?;
    ledger::check_reading(reading, &input)?;
    let ledger = ledger::of_input(input, reading, filter.clone())?;
    ledger::check_filter(&filter, &ledger)?;
    let source = vmtax_events::printable(&path.display().to_string());
    ledger::check_isa(&source, &ledger)?;
    if !Operations::new(&ledger).rows.is_empty() {
        let command = match recorded::of_traffic(&ledger) {
            Some(_) => "bench compare",
            None => "lab compare",
        };
        let text =
            format!("{source}: is a run of the lab; `vmtax {command}` shows several of them");
        return fail(Code::Data, text);
    }
    if ledger.exits.is_empty() && !ledger.recording.coverage.exits {
        return fail(Code::Data, format!("{source}: exits were not recorded; leave it out"));
    }
    Ok(ledger)
}
