//! `vmtax lab compare`: compares runs of the lab.

use std::path::Path;

use vmtax_analyse::operations::Operations;
use vmtax_analyse::{Filter, Ledger};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_cli::progress::ReadingProgress;
use vmtax_report::operations::compared::Comparison;
use vmtax_report::text::Text;
use vmtax_runs::{Input, budget, ledger};

use super::args::CompareArgs;
use crate::flags::{Color, TableFormat, color, width};

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let mut ledgers = Vec::new();
    for path in &args.runs {
        let Input::Run(run) = Input::open(path)? else {
            return fail(
                Code::Usage,
                format!("{}: is a recording; give runs of `vmtax lab run -o`", path.display()),
            );
        };
        let ledger = ledger::of_run(&run, Filter::default(), &ReadingProgress::default())?;
        if Operations::new(&ledger).rows.is_empty() {
            return fail(
                Code::Data,
                format!("{}: has no operations; give runs of `vmtax lab run -o`", path.display()),
            );
        }
        let name = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        ledgers.push((name, ledger));
    }
    let columns: Vec<(String, &Ledger)> =
        ledgers.iter().map(|(name, ledger)| (name.clone(), ledger)).collect();
    show(&columns, args.to.format, args.to.output.as_deref())
}

/// Writes the comparison.
pub(super) fn show(
    runs: &[(String, &Ledger)],
    format: TableFormat,
    to: Option<&Path>,
) -> anyhow::Result<()> {
    let mut emulated = runs.iter().map(|(_, ledger)| ledger.recording.emulated.is_some());
    let first = emulated.next();
    if emulated.any(|one| Some(one) != first) {
        return fail(
            Code::Data,
            "some of these runs are emulated and some are not: their paths cannot be compared",
        );
    }
    let comparison = Comparison::new(runs, budget::steady_exits);
    output::write(to, |out| {
        match format {
            TableFormat::Text => {
                let look = Text { color: color(Color::Auto, to), width: width(to) };
                comparison.text(out, look)?;
            }
            TableFormat::Csv => comparison.csv(out)?,
            TableFormat::Html => comparison.html(out, env!("CARGO_PKG_VERSION"))?,
            TableFormat::Json => comparison.json(out)?,
        }
        Ok(())
    })
}
