//! `vmtax lab compare`: compares runs of the lab.

use std::collections::BTreeMap;

use vmtax_analyse::Ledger;
use vmtax_analyse::operations::Operations;
use vmtax_cli::exit::{Code, fail};
use vmtax_report::operations::compared::OperationsComparison;
use vmtax_runs::{Input, budget, ledger};

use super::args::LabCompareArgs;
use crate::flags::OutputArgs;

pub(crate) fn run(args: &LabCompareArgs) -> anyhow::Result<()> {
    let (mut ledgers, mut labels) = (Vec::new(), Vec::new());
    for path in &args.runs {
        let Input::Run(run) = Input::open(path)? else {
            return fail(
                Code::Usage,
                format!("{}: is a recording; give runs of `vmtax lab run -o`", path.display()),
            );
        };
        let ledger = ledger::of_whole_run(&run)?;
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
        labels.push(run.manifest().labels.clone());
    }
    let columns: Vec<(String, &Ledger)> =
        ledgers.iter().map(|(name, ledger)| (name.clone(), ledger)).collect();
    show(&columns, labels, &args.to)
}

/// Writes the comparison; labels of the runs where they are known.
pub(super) fn show(
    runs: &[(String, &Ledger)],
    labels: Vec<BTreeMap<String, String>>,
    to: &OutputArgs,
) -> anyhow::Result<()> {
    let mut emulated = runs.iter().map(|(_, ledger)| ledger.recording.emulated.is_some());
    let first = emulated.next();
    if emulated.any(|one| Some(one) != first) {
        return fail(
            Code::Data,
            "some of these runs are emulated and some are not: their paths cannot be compared",
        );
    }
    to.write(&OperationsComparison::new(runs, budget::steady_exits).labelled(labels))
}
