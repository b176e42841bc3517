//! `vmtax bench compare` and `import`: the table of a run, or of two runs compared.

use std::collections::BTreeMap;
use std::path::Path;

use vmtax_analyse::bench::{BenchTable, between, other_path, table};
use vmtax_analyse::calls::beside::beside;
use vmtax_analyse::explain::Explanation;
use vmtax_analyse::faults;
use vmtax_analyse::reasons::reasons;
use vmtax_analyse::traffic::traffic;
use vmtax_analyse::{DiffSide, Filter, Ledger, recorded};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_report::bench::{Benchmark, parts};
use vmtax_report::explain::Results;
use vmtax_runs::ReadOptions;

use super::args::{BenchImportArgs, CompareArgs};
use crate::flags::{OutputArgs, ReadingArgs};
use crate::import::{self, ProfileArgs};

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let mut inputs = vec![args.run.as_path()];
    inputs.extend(args.other.as_deref());
    inputs.extend(args.faults.as_deref());
    output::check(&inputs, args.to.output.as_deref())?;
    let ledger = ledger(&args.run)?;
    let mut bench = of(&args.run, &ledger)?;
    let mut source = args.run.display().to_string();
    let mut results = of_kinds((&source, &ledger), &bench, args.all);
    let mut shares = Vec::new();
    let mut limits = Vec::new();
    let of_faults = match &args.faults {
        Some(lab) => of_faults((&args.run, &ledger, &bench), lab)?,
        None => Vec::new(),
    };
    // The recorded exits are of a later run of the client, when the memory had been touched.
    let is_of_exits = |one: &recorded::OverheadParts| {
        let alike = |other: &faults::FaultParts| {
            (&other.workload, &other.category) == (&one.workload, &one.category)
        };
        !of_faults.iter().any(alike)
    };
    let of_exits = recorded::parts(&bench).into_iter().filter(is_of_exits);
    shares.extend(of_exits.map(|one| parts::by_exits(&one)));
    shares.extend(of_faults.iter().map(parts::by_faults));
    if !of_faults.is_empty() {
        shares.extend(parts::of_faults_assume());
    }
    if let Some(path) = &args.other {
        let other = self::ledger(path)?;
        if ledger.recording.emulated.is_some() != other.recording.emulated.is_some() {
            return fail(
                Code::Data,
                "one of these runs is emulated and the other is not: their times cannot be compared",
            );
        }
        let others = of(path, &other)?;
        let apart = other_path(&bench, &others).map(|found| parts::other_path(&found));
        bench = between(&source, &bench, others);
        if bench.rows.iter().all(|row| row.against.is_none()) {
            let why = apart.unwrap_or_else(|| "no cell is in both".to_owned());
            return fail(Code::Data, format!("{source} and {}: {why}", path.display()));
        }
        source = path.display().to_string();
        results = Results::default();
        shares.clear();
        limits.extend(apart);
    }
    let by_reason = match &args.other {
        Some(_) => Vec::new(),
        None => reasons(&ledger),
    };
    if args.exits && by_reason.is_empty() && traffic(&ledger).is_empty() {
        return fail(
            Code::Data,
            format!(
                "{source}: has no workload with recorded exits in a category and its baseline; VMs on an emulated host (accel = \"amd\" or \"arm\") have them"
            ),
        );
    }
    let by_function = match &args.other {
        Some(_) => Vec::new(),
        None => beside(&ledger),
    };
    if args.functions && by_function.is_empty() {
        return fail(
            Code::Data,
            format!(
                "{source}: has no workload with call trees in a category and its baseline; `vmtax bench run MATRIX --profile -o RUN` makes them of VMs on emulated hosts"
            ),
        );
    }
    let shown = Benchmark {
        source: &source,
        tool_version: env!("CARGO_PKG_VERSION"),
        bench: &bench,
        ledger: &ledger,
        results: &results,
        parts: &shares,
        limits: &limits,
        of_runs: args.other.is_some(),
        reasons: &by_reason,
        by_reason: args.exits,
        functions: &by_function,
        by_function: args.functions,
        all: args.all,
    };
    args.to.write(&shown)
}

/// The table of a run just made.
pub(super) fn show_run(folder: &Path) -> anyhow::Result<()> {
    let args = CompareArgs {
        run: folder.to_owned(),
        other: None,
        all: false,
        faults: None,
        exits: false,
        functions: false,
        to: OutputArgs::default(),
    };
    run(&args)
}

/// Imports a table of results, or only shows it.
pub(crate) fn import(args: &BenchImportArgs) -> anyhow::Result<()> {
    let Some(folder) = &args.output else { return show_run(&args.table) };
    // Check that it is a table of results before the run folder is created.
    of(&args.table, &ledger(&args.table)?)?;
    import::run(&import::ImportArgs {
        inputs: vec![args.table.clone()],
        output: folder.clone(),
        raw: false,
        labels: Vec::new(),
        profiles: ProfileArgs::default(),
        reading: ReadingArgs::default(),
    })?;
    show_run(folder)
}

fn ledger(path: &Path) -> anyhow::Result<Ledger> {
    let ledger = vmtax_runs::ledger::of_path(path, &ReadOptions::default(), Filter::default())?;
    match recorded::of_traffic(&ledger) {
        // A table of exact counts shows none of a damaged run.
        Some(traffic) => vmtax_runs::ledger::whole(traffic),
        None => Ok(ledger),
    }
}

fn of(path: &Path, ledger: &Ledger) -> anyhow::Result<BenchTable> {
    let of_lab = recorded::samples(ledger);
    let samples = if of_lab.is_empty() { &ledger.samples } else { &of_lab };
    match table(samples, ledger.recording.emulated.is_some()) {
        Some(bench) => Ok(bench),
        None => fail(
            Code::Data,
            format!(
                "{}: has no results; give a run of `vmtax bench run` or a table of results",
                path.display()
            ),
        ),
    }
}

/// What is found of kinds of VM and their options, by the metrics that are shown.
fn of_kinds((source, ledger): (&str, &Ledger), bench: &BenchTable, all: bool) -> Results {
    let labels = BTreeMap::new();
    let side = DiffSide { source, ledger, labels: &labels, seconds: None };
    let is_shown = |name: &str| {
        all || bench.shown(false).iter().any(|rows| {
            rows.first().is_some_and(|row| name == format!("{} {}", row.workload, row.metric))
        })
    };
    vmtax_report::explain::results(&Explanation::new(&side, None), is_shown)
}

/// Overheads as page faults and the rest, with the costs of a lab run.
fn of_faults(
    (path, ledger, bench): (&Path, &Ledger, &BenchTable),
    lab: &Path,
) -> anyhow::Result<Vec<faults::FaultParts>> {
    let measured = vmtax_runs::ledger::whole(self::ledger(lab)?)?;
    let costs = faults::FaultCosts::of_lab(&measured);
    if costs.is_empty() {
        return fail(
            Code::Data,
            format!(
                "{}: has no page faults of the suite memory; give a run of `vmtax lab run --suite memory`",
                lab.display()
            ),
        );
    }
    same_host((path, ledger), (lab, &measured))?;
    let parts = faults::parts(bench, &costs);
    if parts.is_empty() {
        return fail(
            Code::Data,
            format!(
                "{}: has no workload in plain and in plain+gmem or private with counted page faults whose cost {} has",
                path.display(),
                lab.display()
            ),
        );
    }
    Ok(parts)
}

/// Refuses costs of another kernel or host.
fn same_host(
    (path, bench): (&Path, &Ledger),
    (lab, measured): (&Path, &Ledger),
) -> anyhow::Result<()> {
    let facts =
        vmtax_durable::read_small(&path.join("facts/plain.json"), 1 << 20).unwrap_or_default();
    let facts: BTreeMap<String, String> = serde_json::from_slice(&facts).unwrap_or_default();
    let kernel = facts.get("kernel").map_or("an unknown kernel", String::as_str);
    let emulator = |ledger: &Ledger| ledger.recording.emulated.clone().unwrap_or_default();
    let host = |ledger: &Ledger| match emulator(ledger) {
        name if name.contains("Bochs") && name.contains("ryzen") => "the AMD host on Bochs",
        name if name.contains("Bochs") => "the Intel host",
        name if name.contains("QEMU") => "the AMD host",
        _ => "no emulated host",
    };
    let other = &measured.recording.kernel;
    if kernel == other && host(bench) == host(measured) {
        return Ok(());
    }
    fail(
        Code::Data,
        format!(
            "{} is of {kernel} on {} and {} of {other} on {}; give a lab run of the same kernel on the same emulated host",
            path.display(),
            host(bench),
            lab.display(),
            host(measured)
        ),
    )
}
