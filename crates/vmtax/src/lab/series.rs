//! `vmtax lab series`: kernels, hosts and options -> a folder of runs, and a page of what changes between them.

mod config;
mod plan;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, Fault, fail, say};
use vmtax_cli::output;
use vmtax_lab::{Plan, Setup};
use vmtax_machine::kernel::{self, Kernel};
use vmtax_report::kernels::{Point, Series};
use vmtax_report::text::Text;
use vmtax_runs::lab::{Work, fault, measure};
use vmtax_runs::{budget, ledger, write_fault};
use vmtax_store::{Claim, Run, is_run};

use self::plan::{Stored, StoredRun, Wanted, order, slug};
use super::args::{HostWord, SeriesArgs};
use super::kernel::{DEBIAN, is_image};
use crate::flags::{Color, TableFormat, color, width};

/// The files that are written beside the runs.
const PAGE: &str = "index.html";
const CSV: &str = "series.csv";
const JSON: &str = "series.json";
/// All of Debian's kernels.
const ALL: &str = "all";
/// Attempts at a run: a machine can fail by chance (docs/lab-method.md).
const TRIES: u32 = 2;

/// A kernel of the series.
struct Candidate {
    /// Its name in the series and in folders.
    label: String,
    kernel: Kernel,
}

pub(crate) fn run(args: &SeriesArgs) -> anyhow::Result<()> {
    check(args)?;
    let folder = &args.output;
    fs::create_dir_all(folder)
        .map_err(|e| output::cannot_write(&folder.display().to_string(), &e))?;
    let mut stored = Stored::open(folder, &wanted(args))?;
    let mut failures = Vec::new();
    if !args.no_run {
        let candidates = candidates(args, &mut failures)?;
        fill(args, &candidates, &mut stored, &mut failures)?;
    }
    show(args, &stored, &failures)?;
    match failures.len() {
        0 => Ok(()),
        many => {
            let what = format!(
                "{many} of the series could not be measured; the same command tries again:"
            );
            Err(Fault::new(Code::Machine, what).detailed(failures).into())
        }
    }
}

fn check(args: &SeriesArgs) -> anyhow::Result<()> {
    let images = args.kernel.iter().filter(|kernel| is_given(kernel)).count();
    if args.tree.is_none() && !args.modules.is_empty() && args.modules.len() != images {
        return fail(
            Code::Usage,
            format!(
                "--modules was given {} times for {images} kernel images; give one for each image",
                args.modules.len()
            ),
        );
    }
    if args.no_run {
        return Ok(());
    }
    if args.profile && args.host.contains(&HostWord::Kvm) {
        return fail(
            Code::Usage,
            "--profile: cannot record instructions on --host kvm; use an emulated host: amd, amd-bochs or intel",
        );
    }
    for host in &args.host {
        vmtax_machine::check(host.host().emulator()).map_err(|e| fault(e.into(), None))?;
    }
    Ok(())
}

/// An image, in place of a name or a version.
fn is_given(kernel: &Path) -> bool {
    is_image(kernel) && version(kernel).is_none()
}

/// `6.12` for `6.12` and `debian:6.12`.
fn version(kernel: &Path) -> Option<&str> {
    let word = kernel.to_str()?;
    let plain = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    word.strip_prefix(DEBIAN).or_else(|| (plain && !word.contains('/')).then_some(word))
}

/// What each run of the series has in common.
fn wanted(args: &SeriesArgs) -> Wanted {
    Wanted {
        suites: if args.operation.is_empty() {
            args.suite.iter().map(|suite| suite.name.to_owned()).collect()
        } else {
            Vec::new()
        },
        operations: args.operation.iter().map(|one| one.name.to_owned()).collect(),
        nested: args.nested,
        profile: args.profile,
        batches: args.batches,
    }
}

/// The kernels, in the order of their names. One that cannot be had is a failure, and the others go on.
fn candidates(args: &SeriesArgs, failures: &mut Vec<String>) -> anyhow::Result<Vec<Candidate>> {
    let cache = kernel::cache_folder();
    let mut names: Vec<PathBuf> = Vec::new();
    for name in &args.kernel {
        if args.tree.is_none() && version(name) == Some(ALL) {
            let (versions, problem) =
                kernel::debian_versions(&cache).map_err(|e| fault(e.into(), None))?;
            if let Some(problem) = problem {
                say(&format!("only kernels that were fetched before are used: {problem}"));
            }
            names
                .extend(versions.iter().map(|version| PathBuf::from(format!("{DEBIAN}{version}"))));
        } else {
            names.push(name.clone());
        }
    }
    let mut modules = args.modules.iter();
    let mut found: Vec<Candidate> = Vec::new();
    for name in &names {
        let kernel = match (&args.tree, version(name)) {
            (Some(tree), _) => tree::kernel(tree, &name.to_string_lossy(), args),
            (None, Some(version)) => {
                kernel::debian(version, &cache).map_err(|e| fault(e.into(), None))
            }
            (None, None) => super::kernel::kernel(name, &mut modules),
        };
        match kernel {
            Ok(kernel) => found.push(candidate(args, name, kernel)?),
            Err(error) => failures.push(format!("{}: {error:#}", name.display())),
        }
    }
    Ok(found)
}

/// A kernel with its label: a tag of a tree; the release; of an image also a part of its checksum, because builds share a release.
fn candidate(args: &SeriesArgs, name: &Path, kernel: Kernel) -> anyhow::Result<Candidate> {
    let release = kernel.release.strip_suffix("-amd64").unwrap_or(&kernel.release);
    let label = match args.tree {
        Some(_) => name.to_string_lossy().into_owned(),
        None if is_given(name) => {
            let digest =
                kernel.digest(&["kvm_amd", "kvm_intel"]).map_err(|e| fault(e.into(), None))?;
            format!("{release}-{}", &digest[..8])
        }
        None => release.to_owned(),
    };
    Ok(Candidate { label, kernel })
}

/// The sets of options: those of `--option`, with each combination of `--vary`.
fn variants(args: &SeriesArgs) -> Vec<Vec<String>> {
    let mut all = vec![args.option.clone()];
    for (name, values) in &args.vary {
        let with = |before: &Vec<String>, value: &String| {
            before.iter().cloned().chain([format!("{name}={value}")]).collect()
        };
        all = all
            .iter()
            .flat_map(|before| values.iter().map(|value| with(before, value)).collect::<Vec<_>>())
            .collect();
    }
    all
}

/// Makes the runs that are not there yet.
fn fill(
    args: &SeriesArgs,
    candidates: &[Candidate],
    stored: &mut Stored,
    failures: &mut Vec<String>,
) -> anyhow::Result<()> {
    let mut waiting = Vec::new();
    for host in &args.host {
        for one in candidates {
            for options in variants(args) {
                let point = stored.point(&one.label, host.host().name(), &options.join(" "));
                let is_there =
                    Run::open(&args.output.join(&point)).is_ok_and(|run| run.is_complete());
                if !is_there {
                    waiting.push((*host, one, options, point));
                }
            }
        }
    }
    // A run is in the list before it is made, so that a series that was killed says what it lacks.
    stored.write(&args.output)?;
    let all = waiting.len();
    for (number, (host, one, options, point)) in waiting.into_iter().enumerate() {
        let started = Instant::now();
        let made = attempts(args, host, &one.kernel, &options, &args.output.join(&point));
        let time = started.elapsed().as_secs();
        match made {
            Ok(()) => say(&format!("{} of {all}: {point}, {time} s", number + 1)),
            Err(error) => {
                // A full disk or a folder of another process's ends the series; a kernel that does not boot does not.
                let code = error.downcast_ref::<Fault>().map(Fault::code);
                if !matches!(code, Some(Code::Machine | Code::Data)) {
                    return Err(error);
                }
                say(&format!("{} of {all}: {point} failed after {time} s", number + 1));
                failures.push(format!("{point}: {error:#}"));
            }
        }
    }
    Ok(())
}

/// Makes one run, again if the machine failed.
fn attempts(
    args: &SeriesArgs,
    host: HostWord,
    kernel: &Kernel,
    options: &[String],
    folder: &Path,
) -> anyhow::Result<()> {
    for last in (0..TRIES).rev() {
        // What a killed series left of it.
        if is_run(folder) {
            vmtax_durable::remove_folder(folder)
                .map_err(|e| output::cannot_write(&folder.display().to_string(), &e))?;
        }
        let claim = Claim::new(folder).map_err(write_fault)?;
        let setup = |cache: PathBuf, console: PathBuf| Setup {
            nested: args.nested,
            options: options.to_vec(),
            profile: args.profile,
            limit: args.limit,
            ..Setup::plain(host.host(), kernel.clone(), cache, console)
        };
        let suites = if args.operation.is_empty() {
            args.suite.clone()
        } else {
            vmtax_lab::suite::SUITES.iter().collect()
        };
        let plan = Plan { suites, only: args.operation.clone(), batches: args.batches };
        match measure(host.host(), setup, Work::Operations(&plan), Some(claim)) {
            Ok(_) => return config::keep(kernel, folder),
            Err(error) => {
                let code = error.downcast_ref::<Fault>().map(Fault::code);
                if last == 0 || code != Some(Code::Machine) {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Writes the files of the series, and prints it.
fn show(args: &SeriesArgs, stored: &Stored, failures: &[String]) -> anyhow::Result<()> {
    let mut ledgers: BTreeMap<usize, Ledger> = BTreeMap::new();
    let mut missing: Vec<String> = failures.to_vec();
    for (at, one) in stored.runs.iter().enumerate() {
        match Run::open(&args.output.join(&one.run)) {
            Ok(run) if run.is_complete() => {
                let ledger = ledger::of_whole_run(&run)?;
                let lost = ledger
                    .losses
                    .notes
                    .iter()
                    .filter_map(|note| note.strip_prefix("not measured: "));
                missing.extend(lost.map(|note| format!("{}: {note}", one.run)));
                ledgers.insert(at, ledger);
            }
            _ if failures.iter().any(|failure| failure.starts_with(&format!("{}: ", one.run))) => {}
            _ => missing.push(format!("{}: was not run", one.run)),
        }
    }
    let points = order(&stored.runs).into_iter().filter_map(|at| {
        let one = &stored.runs[at];
        let ledger = ledgers.get(&at)?;
        Some(Point {
            kernel: one.kernel.clone(),
            host: one.host.clone(),
            options: one.options.clone(),
            folder: one.run.clone(),
            ledger,
        })
    });
    let points: Vec<Point<'_>> = points.collect();
    if points.is_empty() {
        if failures.is_empty() {
            return fail(Code::Data, format!("{}: has no run of a series", args.output.display()));
        }
        return Ok(());
    }
    let series = Series::new(points, missing, budget::steady_exits);
    let version = env!("CARGO_PKG_VERSION");
    let write = |name: &str, text: &dyn Fn(&mut dyn std::io::Write) -> std::io::Result<()>| {
        output::write(Some(&args.output.join(name)), |out| Ok(text(out)?))
    };
    write(PAGE, &|out| series.html(out, version))?;
    write(CSV, &|out| series.csv(out))?;
    write(JSON, &|out| series.json(out))?;
    for (name, page) in series.steps(version)? {
        write(&slug(&name), &|out| out.write_all(&page))?;
    }
    let runs: Vec<&StoredRun> = order(&stored.runs).iter().map(|at| &stored.runs[*at]).collect();
    let configurations = config::steps(&args.output, &runs)?;
    output::write(None, |out| {
        match args.format {
            TableFormat::Text => {
                let look = Text { color: color(Color::Auto, None), width: width(None) };
                series.text(out, look)?;
                if !configurations.is_empty() {
                    writeln!(out, "\nConfigurations")?;
                }
                for line in &configurations {
                    writeln!(out, "  {line}")?;
                }
                writeln!(out, "\n{}", args.output.join(PAGE).display())?;
            }
            TableFormat::Csv => series.csv(out)?,
            TableFormat::Html => series.html(out, version)?,
            TableFormat::Json => series.json(out)?,
        }
        Ok(())
    })
}
