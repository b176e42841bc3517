//! `vmtax predict`: a run's exits -> what they would cost elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};
use vmtax_analyse::predict::{Prediction, To};
use vmtax_report::Subject;
use vmtax_report::predict::Predicted;

use crate::cli::{Color, ReadingArgs};
use crate::{output, report};

/// Say what this VM's exits would cost as a confidential or a nested guest, from published costs of an exit.
///
/// Little is published. Where nothing is, the answer is "unknown".
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax predict perf.data --to snp
  vmtax predict run --to nested --format json")]
pub(crate) struct PredictArgs {
    /// Run folder or recording of the VM as it runs now.
    #[arg(value_name = "RUN|FILE", value_hint = ValueHint::AnyPath)]
    run: PathBuf,

    /// Where it would run.
    #[arg(long, value_name = "snp|tdx|nested", value_parser = to_parser())]
    to: To,

    /// How long a recording took that does not say it (a dump of counts): 10s, 500ms, ...
    #[arg(long, value_name = "TIME", value_parser = crate::cli::duration)]
    length: Option<Duration>,

    /// How to write it.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    #[command(flatten)]
    reading: ReadingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a terminal.
    Text,
    /// For programs; docs/json.md.
    Json,
    /// One row for each kind of exit or cause.
    Csv,
    /// One page that opens offline.
    Html,
}

fn to_parser() -> impl TypedValueParser<Value = To> {
    PossibleValuesParser::new(To::ALL.map(To::name))
        .map(|word| To::ALL.into_iter().find(|to| to.name() == word).unwrap_or(To::Snp))
}

pub(crate) fn run(args: &PredictArgs) -> anyhow::Result<()> {
    let to = args.output.as_deref();
    output::check(&[args.run.as_path()], to)?;
    let ledger = report::ledger(&args.run, &args.reading, Default::default())?;
    report::check_isa(&args.run.display().to_string(), &ledger)?;
    let seconds = args.length.map(|length| length.as_secs_f64());
    let prediction = Prediction::new(&ledger, args.to, seconds);
    let source = args.run.display().to_string();
    let predicted = Predicted {
        tool_version: env!("CARGO_PKG_VERSION"),
        run: Subject { source: &source, ledger: &ledger },
        prediction: &prediction,
    };
    output::write(to, |out| {
        match args.format {
            Format::Text => {
                predicted.text(report::color(Color::Auto, to), report::width(to), out)?;
            }
            Format::Json => predicted.json(out)?,
            Format::Csv => predicted.csv(out)?,
            Format::Html => predicted.html(out)?,
        }
        Ok(())
    })
}
