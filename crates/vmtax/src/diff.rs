//! `vmtax diff`: two runs or recordings -> what differs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use vmtax_analyse::{By, Diff, DiffSide, Filter, Ledger, Operations, Per, diff};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::flags::duration;
use vmtax_cli::output;
use vmtax_report::csv::Csv;
use vmtax_report::html::Html;
use vmtax_report::json::Json;
use vmtax_report::text::TextLayout;
use vmtax_report::{Compares, Comparison, RunSubject};
use vmtax_runs::{Input, ReadOptions, input, ledger};

use crate::flags::{Color, OutputArgs, ReadingArgs, TableFormat, color, one_of, width};

/// Compare two runs or recordings: which exits OTHER takes more or less often than BASE.
///
/// Differences between the two setups are listed first. The first table is by cause, because the same guest takes exits
/// for other reasons on other processors and in confidential VMs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax diff plain.perf.data tdx.perf.data
  vmtax diff run-6.1 run-6.9 --by reason,detail --strict
  vmtax diff plain.txt td.txt --isa intel --length 10s           dumps of counts of 10 s each")]
pub(crate) struct DiffArgs {
    /// Baseline: a run folder or recording.
    #[arg(value_name = "BASE", value_hint = ValueHint::AnyPath)]
    pub(crate) base: PathBuf,

    /// Run folder or recording to compare with the baseline.
    #[arg(value_name = "OTHER", value_hint = ValueHint::AnyPath)]
    pub(crate) other: PathBuf,

    /// Normalization unit. [default: operation for lab runs, else second, else recording]
    #[arg(long, value_name = "second|l2-exit|operation|recording", value_parser = one_of(Per::ALL, Per::name))]
    pub(crate) per: Option<Per>,

    /// Show one table, grouped by these columns, separated by commas. [default: a table by cause, and one by cause and
    /// reason]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(comparable(), By::name))]
    pub(crate) by: Vec<By>,

    /// Duration of recordings that do not contain it (dumps of counts): 10s, 500ms, ...
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) length: Option<Duration>,

    /// Exit with code 4, after the report, if the setups differ.
    #[arg(long)]
    pub(crate) strict: bool,

    #[command(flatten)]
    pub(crate) to: OutputArgs,

    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// VM ids of two recordings are unrelated, so `vm` and `vcpu` are not offered.
fn comparable() -> impl Iterator<Item = By> {
    By::ALL.into_iter().filter(|by| !matches!(by, By::Vm | By::Vcpu))
}

pub(crate) fn run(args: &DiffArgs) -> anyhow::Result<()> {
    output::check(&[args.base.as_path(), args.other.as_path()], args.to.output.as_deref())?;
    input::check_read_once(&[args.base.as_path(), args.other.as_path()])?;
    let reading = args.reading.reading();
    let (base, other) =
        ledger::both(|| read(&reading, &args.base), || read(&reading, &args.other))?;
    for one in [&base, &other] {
        ledger::check_isa(&one.source, &one.ledger)?;
        ledger::check_exits(&one.source, &one.ledger)?;
        check_recorded(&one.source, &one.ledger)?;
    }
    let seconds = args.length.map(|length| length.as_secs_f64());
    let (base_side, other_side) = (base.side(seconds), other.side(seconds));
    let per = args.per.unwrap_or_else(|| diff::suitable(&base_side, &other_side));
    let diff = match Diff::new(&base_side, &other_side, per, &args.by) {
        Ok(diff) => diff,
        Err(source) => return fail(Code::Data, no_unit(source, per)),
    };
    let differing = diff.setup.len();
    let comparison = Comparison {
        base: RunSubject { source: &base.source, ledger: &base.ledger },
        other: RunSubject { source: &other.source, ledger: &other.ledger },
        tool_version: env!("CARGO_PKG_VERSION"),
        diff,
    };
    let writer: Box<dyn Compares> = match args.to.format {
        TableFormat::Json => Box::new(Json),
        TableFormat::Csv => Box::new(Csv),
        TableFormat::Html => Box::new(Html),
        TableFormat::Text => {
            let output = args.to.output.as_deref();
            Box::new(TextLayout { color: color(args.color, output), width: width(output) })
        }
    };
    output::write(args.to.output.as_deref(), |out| Ok(writer.compare(&comparison, out)?))?;
    if args.strict && differing > 0 {
        return fail(
            Code::Data,
            format!(
                "the setups differ in {differing} points, listed above; make them equal, or leave --strict out"
            ),
        );
    }
    Ok(())
}

/// Exits that were not recorded are unknown, not zero.
fn check_recorded(source: &str, ledger: &Ledger) -> anyhow::Result<()> {
    if ledger.recording.coverage.exits || !ledger.exits.is_empty() {
        return Ok(());
    }
    let source = vmtax_events::printable(source);
    // The operations of a lab run are samples too.
    if !ledger.samples.is_empty() && Operations::new(ledger).rows.is_empty() {
        let text = format!(
            "{source}: has results of benchmarks and no exits; `vmtax explain OTHER --against BASE` compares results"
        );
        return fail(Code::Data, text);
    }
    fail(Code::Data, format!("{source}: exits were not recorded, so there is nothing to compare"))
}

fn no_unit(source: &str, per: Per) -> String {
    let why = match per {
        Per::Second => "does not say how long it took; give --length, or --per recording",
        Per::L2Exit => "has no exit of L2; use --per second",
        Per::Operation => "is no lab run, so it has no operations; use --per second",
        Per::Recording => "cannot be compared",
    };
    format!("{}: {why}", vmtax_events::printable(source))
}

/// An input, read.
struct OpenedInput {
    source: String,
    ledger: Ledger,
    labels: BTreeMap<String, String>,
}

impl OpenedInput {
    fn side(&self, seconds: Option<f64>) -> DiffSide<'_> {
        DiffSide { source: &self.source, ledger: &self.ledger, labels: &self.labels, seconds }
    }
}

fn read(reading: &ReadOptions, path: &Path) -> anyhow::Result<OpenedInput> {
    let source = path.display().to_string();
    match Input::open(path)? {
        Input::Run(run) => {
            let labels = run.manifest().labels.clone();
            Ok(OpenedInput {
                source,
                ledger: ledger::of_run(&run, Filter::default(), &reading.progress)?,
                labels,
            })
        }
        Input::Recording(recording) => {
            let ledger = ledger::of_recording(recording, reading, Filter::default())?;
            Ok(OpenedInput { source, ledger, labels: BTreeMap::new() })
        }
    }
}
