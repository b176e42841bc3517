//! `vmtax report`: a run or a recording -> a report.

mod args;
mod several;

use std::path::{Path, PathBuf};

use vmtax_analyse::calls::profiled;
use vmtax_analyse::{
    Arranged, By, CallTree, Filter, Ledger, Nested, Operations, ProfiledOperation, SortedTable,
    TableKind,
};
use vmtax_cli::exit::{Code, fail, say};
use vmtax_cli::output::{self, OutputPlace};
use vmtax_report::budget::KeptBudget;
use vmtax_report::calls;
use vmtax_report::csv::Csv;
use vmtax_report::html::Html;
use vmtax_report::json::Json;
use vmtax_report::openmetrics::OpenMetrics;
use vmtax_report::text::TextLayout;
use vmtax_report::{Document, Renderer};
use vmtax_runs::{Input, ReadOptions, ledger, timeline};
use vmtax_store::Run;

use crate::flags::{OutputArgs, TableFormat, color, width};
use args::EventTable;
pub(crate) use args::{ReportArgs, ReportFormat};

pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    check_by(args)?;
    let inputs: Vec<&Path> = args.inputs.iter().map(PathBuf::as_path).collect();
    output::check(&inputs, args.output.as_deref())?;
    if inputs.len() > 1 {
        return several::run(args);
    }
    if args.event.contains(&EventTable::Starts) {
        return starts(args);
    }
    let reading = args.reading.reading();
    let filter = ledger::filter(args.input(), &args.vm, &args.vcpu, &reading)?;
    let input = Input::open(args.input())?;
    ledger::check_reading(&reading, &input)?;
    if args.format == ReportFormat::Perfetto {
        return perfetto(args, input, &reading, filter);
    }
    let ledger = ledger::of_input(input, &reading, filter.clone())?;
    ledger::check_filter(&filter, &ledger)?;
    render(args, ledger, None)
}

/// How long VMs took to start, by the recording's system calls.
fn starts(args: &ReportArgs) -> anyhow::Result<()> {
    let others = !args.by.is_empty() || !args.vm.is_empty() || !args.vcpu.is_empty();
    if args.event.len() > 1 || others {
        return fail(
            Code::Usage,
            "--event starts: has tables of its own, without other tables, --by, --vm and --vcpu",
        );
    }
    let Some(format) = args.format.of_tables() else {
        return fail(Code::Usage, "--event starts: is written as text, json, csv or html");
    };
    let reading = args.reading.reading();
    let input = Input::open(args.input())?;
    ledger::check_reading(&reading, &input)?;
    if let Input::Run(run) = &input {
        check_raw(run)?;
    }
    let recorded = vmtax_runs::starts::of_input(input, &reading)?;
    let to = OutputArgs { format, output: args.output.clone() };
    to.write(&vmtax_report::starts::tables(&recorded, format == TableFormat::Text)?)
}

/// Writes a ledger in the format of the flags.
pub(crate) fn render(
    args: &ReportArgs,
    ledger: Ledger,
    budget: Option<KeptBudget>,
) -> anyhow::Result<()> {
    if let ReportFormat::Folded | ReportFormat::Pprof = args.format {
        return call_trees(args, &ledger);
    }
    let document = Document { budget, ..document(args, ledger) };
    let renderer: Box<dyn Renderer> = match args.format {
        ReportFormat::Json => Box::new(Json),
        ReportFormat::Csv => Box::new(Csv),
        ReportFormat::Html => Box::new(Html),
        ReportFormat::Prometheus => Box::new(OpenMetrics),
        _ => {
            let output = args.output.as_deref();
            Box::new(TextLayout { color: color(args.color, output), width: width(output) })
        }
    };
    output::write(args.output.as_deref(), |out| Ok(renderer.render(&document, out)?))
}

/// Call trees in a format of another program.
fn call_trees(args: &ReportArgs, ledger: &Ledger) -> anyhow::Result<()> {
    let (all, problems) = profiled(ledger);
    for problem in problems {
        say(&problem);
    }
    let all: Vec<(ProfiledOperation<'_>, CallTree)> = all
        .into_iter()
        .map(|one| {
            let tree = one.tree.arranged(arranged(args));
            (one, tree)
        })
        .collect();
    if all.is_empty() {
        return fail(
            Code::Data,
            format!(
                "{}: has no call trees; `vmtax lab run --profile -o RUN` makes them",
                vmtax_events::printable(&args.input().display().to_string())
            ),
        );
    }
    let output = args.output.as_deref();
    let place = match args.format {
        ReportFormat::Pprof => OutputPlace::open_binary(output, "--format pprof")?,
        _ => OutputPlace::open(output)?,
    };
    place.write(|out| {
        match args.format {
            ReportFormat::Pprof => calls::pprof::write(&all, out)?,
            _ => calls::folded::write(&all, out)?,
        }
        Ok(())
    })
}

/// How `--by` arranges call trees.
fn arranged(args: &ReportArgs) -> Arranged {
    if args.by.contains(&By::Level) { Arranged::ByLevel } else { Arranged::ByCause }
}

/// Functions shown per operation: for few operations, for many, and on request.
const FUNCTIONS: [usize; 3] = [12, 3, 40];
const FEW: usize = 4;

/// Refuses a column of `--by` that none of the selected tables has.
fn check_by(args: &ReportArgs) -> anyhow::Result<()> {
    let kinds: Vec<TableKind> = match args.event.as_slice() {
        [] => TableKind::ALL.to_vec(),
        events => events.iter().filter_map(|e| e.kind()).collect(),
    };
    let functions = args.event.contains(&EventTable::Functions);
    for by in &args.by {
        if functions && matches!(by, By::Level | By::Cause) {
            continue;
        }
        if !kinds.iter().any(|kind| kind.allows(*by)) {
            let others = TableKind::ALL.into_iter().filter(|kind| kind.allows(*by));
            let others: Vec<&str> = others.map(TableKind::name).collect();
            return fail(
                Code::Usage,
                format!(
                    "--by {}: none of the selected tables has this column; add one of --event {}",
                    by.name(),
                    others.join(",")
                ),
            );
        }
    }
    Ok(())
}

fn document(args: &ReportArgs, ledger: Ledger) -> Document {
    let operations = Operations::new(&ledger);
    let asked: Vec<EventTable> = if args.event.is_empty() {
        default_tables(args.format, &ledger, !operations.rows.is_empty())
    } else {
        args.event.clone()
    };
    let tables =
        asked.iter().filter_map(|e| e.kind()).map(|kind| SortedTable::new(&ledger, kind, &args.by));
    let tables = tables.collect();
    let nested = asked.contains(&EventTable::Nested).then(|| Nested::new(&ledger));
    let operations = asked.contains(&EventTable::Operations).then_some(operations);
    let most = match (args.event.is_empty(), ledger.calls.len() <= FEW) {
        (true, true) => FUNCTIONS[0],
        (true, false) => FUNCTIONS[1],
        (false, _) => FUNCTIONS[2],
    };
    let calls = asked
        .contains(&EventTable::Functions)
        .then(|| calls::ShownCalls { arranged: arranged(args), most });
    Document {
        source: args.input().display().to_string(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        ledger,
        tables,
        operations,
        nested,
        calls,
        budget: None,
    }
}

/// Text shows a summary, the other formats all tables that have rows. For a lab run the table of operations replaces the others, which
/// would add operations up; only pages have both.
fn default_tables(format: ReportFormat, ledger: &Ledger, is_lab: bool) -> Vec<EventTable> {
    use EventTable as E;
    // Causes first.
    let mut all = TableKind::ALL;
    all.sort_by_key(|kind| *kind != TableKind::Cause);
    let is_wanted = |kind: &TableKind| match format {
        ReportFormat::Html => true,
        _ if is_lab => false,
        ReportFormat::Text => kind.is_exits(),
        _ => true,
    };
    let has_rows = |kind: &TableKind| !SortedTable::new(ledger, *kind, &[]).rows.is_empty();
    let wanted = all.into_iter().filter(is_wanted);
    let mut tables: Vec<EventTable> =
        wanted.filter(|kind| kind.is_exits() || has_rows(kind)).map(E::Of).collect();
    if is_lab {
        tables.insert(0, E::Operations);
    }
    if !ledger.calls.is_empty() {
        tables.push(E::Functions);
    }
    if ledger.has_nesting() {
        tables.push(E::Nested);
    }
    tables
}

/// Every single exit, as a timeline.
fn perfetto(
    args: &ReportArgs,
    input: Input,
    reading: &ReadOptions,
    filter: Filter,
) -> anyhow::Result<()> {
    if let Input::Run(run) = &input {
        check_raw(run)?;
    }
    let source = args.input().display().to_string();
    let place = OutputPlace::open_binary(args.output.as_deref(), "--format perfetto")?;
    place.write(|out| timeline::write(input, reading, filter, &source, out))
}

fn check_raw(run: &Run) -> anyhow::Result<()> {
    if ledger::has_events(run) {
        return Ok(());
    }
    fail(
        Code::Data,
        format!(
            "{}: has no single events; create the run with `vmtax import --raw` or `vmtax record --raw`",
            run.folder().display()
        ),
    )
}
