//! `vmtax diff`: two runs or recordings -> what differs.

use std::collections::BTreeMap;
use std::path::Path;

use vmtax_analyse::{Diff, Filter, Ledger, Side, diff};
use vmtax_report::csv::Csv;
use vmtax_report::html::Html;
use vmtax_report::json::Json;
use vmtax_report::text::Text;
use vmtax_report::{Compares, Comparison, Subject};

use crate::cli::{DiffArgs, DiffFormat};
use crate::exit::{Code, fail};
use crate::input::Input;
use crate::{output, report};

pub(crate) fn run(args: &DiffArgs) -> anyhow::Result<()> {
    output::check(&[args.base.as_path(), args.other.as_path()], args.output.as_deref())?;
    let (base, other) = (read(args, &args.base)?, read(args, &args.other)?);
    for one in [&base, &other] {
        report::check_isa(&one.source, &one.ledger)?;
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
        base: Subject { source: &base.source, ledger: &base.ledger },
        other: Subject { source: &other.source, ledger: &other.ledger },
        tool_version: env!("CARGO_PKG_VERSION"),
        diff,
    };
    let writer: Box<dyn Compares> = match args.format {
        DiffFormat::Json => Box::new(Json),
        DiffFormat::Csv => Box::new(Csv),
        DiffFormat::Html => Box::new(Html),
        DiffFormat::Text => {
            let output = args.output.as_deref();
            Box::new(Text {
                color: report::color(args.color, output),
                width: report::width(output),
            })
        }
    };
    output::write(args.output.as_deref(), |out| Ok(writer.compare(&comparison, out)?))?;
    if args.strict && differing > 0 {
        return fail(
            Code::Data,
            format!(
                "the set-ups differ in {differing} points, listed above; make them equal, or leave --strict out"
            ),
        );
    }
    Ok(())
}

/// Exits that were not recorded are unknown: they are not fewer than those of the other side.
fn check_recorded(source: &str, ledger: &Ledger) -> anyhow::Result<()> {
    if ledger.recording.coverage.exits || !ledger.exits.is_empty() {
        return Ok(());
    }
    let source = vmtax_report::names::printable(source);
    fail(Code::Data, format!("{source}: exits were not recorded, so there is nothing to compare"))
}

fn no_unit(source: &str, per: vmtax_analyse::Per) -> String {
    use vmtax_analyse::Per;
    let why = match per {
        Per::Second => "does not say how long it took; give --length, or --per recording",
        Per::L2Exit => "has no exit of L2; use --per second",
        Per::Operation => "is no lab run, so it has no operations; use --per second",
        Per::Recording => "cannot be compared",
    };
    format!("{}: {why}", vmtax_report::names::printable(source))
}

/// One of the two, read.
struct Opened {
    source: String,
    ledger: Ledger,
    labels: BTreeMap<String, String>,
}

impl Opened {
    fn side(&self, seconds: Option<f64>) -> Side<'_> {
        Side { source: &self.source, ledger: &self.ledger, labels: &self.labels, seconds }
    }
}

fn read(args: &DiffArgs, path: &Path) -> anyhow::Result<Opened> {
    let source = path.display().to_string();
    match Input::open(path)? {
        Input::Run(run) => {
            let labels = run.manifest().labels.clone();
            Ok(Opened { source, ledger: report::of_run(&run, Filter::default())?, labels })
        }
        Input::Recording(recording) => {
            let ledger = report::of_recording(recording, &args.reading, Filter::default())?;
            Ok(Opened { source, ledger, labels: BTreeMap::new() })
        }
    }
}
