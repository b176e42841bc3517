//! A series of runs: kernels, hosts and options -> a folder with a run of each.

mod config;
mod plan;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, CodedError, say};
use vmtax_cli::output;
use vmtax_lab::suite::{Definition, Suite};
use vmtax_lab::{HostKind, HostSetup, LabPlan};
use vmtax_machine::kernel::{self, Architecture, Kernel};
use vmtax_store::{Claim, Run, is_run};

use self::plan::{StoredPlan, WantedRuns, order};
use crate::kernels::{self, DEBIAN};
use crate::lab::{HostWork, fault, measure};
use crate::{ledger, write_fault};

pub use self::plan::{StoredRun, slug};

/// All of Debian's kernels.
const ALL: &str = "all";
/// Attempts at a run: a machine can fail by chance (docs/measured/lab-method.md).
const TRIES: u32 = 2;

/// What is measured, on which kernels and hosts.
#[derive(Clone, Debug)]
pub struct SeriesSpec {
    /// The folder of the series.
    pub folder: PathBuf,
    /// Versions in Debian's archive, images, `distribution`, `host`; commits if there is a tree.
    pub kernels: Vec<PathBuf>,
    /// Folders of modules, one for each image.
    pub modules: Vec<PathBuf>,
    /// The tree of the commits.
    pub tree: Option<GitTree>,
    pub hosts: Vec<HostKind>,
    /// Suites; not used if there are operations.
    pub suites: Vec<&'static Suite>,
    pub operations: Vec<&'static Definition>,
    /// Also at L2.
    pub nested: bool,
    pub profile: bool,
    /// Options of all runs.
    pub options: Vec<String>,
    /// Options with several values; each combination is a run.
    pub vary: Vec<(String, Vec<String>)>,
    /// Processors of each host.
    pub processors: u32,
    /// Batches of each operation.
    pub batches: u32,
    /// Timeout of one host.
    pub limit: Duration,
}

impl SeriesSpec {
    /// The architecture of the kernels: that of all hosts.
    fn architecture(&self) -> Architecture {
        self.hosts.first().map_or(Architecture::Amd64, |host| host.architecture())
    }
}

/// A git tree whose commits are built.
#[derive(Clone, Debug)]
pub struct GitTree {
    pub folder: PathBuf,
    /// The shell command that builds a commit.
    pub build: String,
}

/// A folder of runs.
#[derive(Debug)]
pub struct Series<'a> {
    spec: &'a SeriesSpec,
    stored: StoredPlan,
    /// Kernels that could not be had and runs that failed, with the reason.
    pub failures: Vec<String>,
}

/// A run that is complete.
#[derive(Debug)]
pub struct CompleteRun<'a> {
    /// Its place in the series.
    pub run: &'a StoredRun,
    pub ledger: Ledger,
}

/// A kernel of the series.
struct Candidate {
    /// Its name in the series and in folders.
    label: String,
    kernel: Kernel,
}

impl<'a> Series<'a> {
    /// Opens the folder, which is made if it is missing.
    ///
    /// # Errors
    /// When it holds something else, or a series made with other flags.
    pub fn open(spec: &'a SeriesSpec) -> anyhow::Result<Series<'a>> {
        let folder = &spec.folder;
        fs::create_dir_all(folder)
            .map_err(|e| output::cannot_write(&folder.display().to_string(), &e))?;
        let stored = StoredPlan::open(folder, &wanted(spec))?;
        Ok(Series { spec, stored, failures: Vec::new() })
    }

    /// Makes the runs that are not there yet. A kernel that cannot be had or does not boot is a failure, and the others go on.
    ///
    /// # Errors
    /// When no run can be made: the disk is full, or another process writes the series.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let candidates = candidates(self.spec, &mut self.failures)?;
        fill(self.spec, &candidates, &mut self.stored, &mut self.failures)
    }

    /// The complete runs, in the order in which they are shown.
    pub fn points(&self) -> anyhow::Result<Vec<CompleteRun<'_>>> {
        let mut points = Vec::new();
        for run in self.runs() {
            match Run::open(&self.spec.folder.join(&run.run)) {
                Ok(opened) if opened.is_complete() => {
                    points.push(CompleteRun { run, ledger: ledger::of_whole_run(&opened)? });
                }
                _ => {}
            }
        }
        Ok(points)
    }

    /// What the series lacks: failures, runs that were not made, operations that were not measured.
    pub fn missing(&self, points: &[CompleteRun<'_>]) -> Vec<String> {
        let mut missing = self.failures.clone();
        for one in &self.stored.runs {
            let start = format!("{}: ", one.run);
            match points.iter().find(|point| point.run == one) {
                Some(point) => {
                    let notes = point.ledger.losses.notes.iter();
                    let lost = notes.filter_map(|note| note.strip_prefix("not measured: "));
                    missing.extend(lost.map(|note| format!("{start}{note}")));
                }
                None if self.failures.iter().any(|failure| failure.starts_with(&start)) => {}
                None => missing.push(format!("{start}was not run")),
            }
        }
        missing
    }

    /// A line for each step between kernels whose configurations differ; all options are written to a file of the series.
    pub fn configurations(&self) -> anyhow::Result<Vec<String>> {
        config::steps(&self.spec.folder, &self.runs())
    }

    fn runs(&self) -> Vec<&StoredRun> {
        order(&self.stored.runs).iter().map(|at| &self.stored.runs[*at]).collect()
    }
}

/// What each run of the series has in common.
fn wanted(spec: &SeriesSpec) -> WantedRuns {
    WantedRuns {
        suites: if spec.operations.is_empty() {
            spec.suites.iter().map(|suite| suite.name.to_owned()).collect()
        } else {
            Vec::new()
        },
        operations: spec.operations.iter().map(|one| one.name.to_owned()).collect(),
        nested: spec.nested,
        profile: spec.profile,
        processors: spec.processors,
        batches: spec.batches,
    }
}

/// The kernels, in the order of their names. One that cannot be had is a failure, and the others go on.
fn candidates(spec: &SeriesSpec, failures: &mut Vec<String>) -> anyhow::Result<Vec<Candidate>> {
    let cache = kernel::cache_folder();
    let mut names: Vec<PathBuf> = Vec::new();
    for name in &spec.kernels {
        if spec.tree.is_none() && kernels::version(name) == Some(ALL) {
            let (versions, problem) = kernel::debian_versions(spec.architecture(), &cache)
                .map_err(|e| fault(e.into(), None))?;
            if let Some(problem) = problem {
                say(&format!("only kernels that were fetched before are used: {problem}"));
            }
            names
                .extend(versions.iter().map(|version| PathBuf::from(format!("{DEBIAN}{version}"))));
        } else {
            names.push(name.clone());
        }
    }
    let mut modules = spec.modules.iter();
    let mut found: Vec<Candidate> = Vec::new();
    for name in &names {
        let kernel = match &spec.tree {
            Some(tree) => tree::kernel(tree, &name.to_string_lossy(), &spec.folder),
            None => kernels::named(spec.architecture(), name, &mut modules),
        };
        match kernel {
            Ok(kernel) => found.push(candidate(spec, name, kernel)?),
            Err(error) => failures.push(format!("{}: {error:#}", name.display())),
        }
    }
    Ok(found)
}

/// A kernel with its label: a tag of a tree; the release; of an image also a part of its checksum, because builds share a release.
fn candidate(spec: &SeriesSpec, name: &Path, kernel: Kernel) -> anyhow::Result<Candidate> {
    let architecture = spec.architecture();
    let flavour = architecture.flavour();
    let release = kernel.release.strip_suffix(flavour.as_str()).unwrap_or(&kernel.release);
    let label = match spec.tree {
        Some(_) => name.to_string_lossy().into_owned(),
        None if kernels::is_image(name) => {
            let digest = kernel.digest(architecture.kept()).map_err(|e| fault(e.into(), None))?;
            format!("{release}-{}", &digest[..8])
        }
        None => release.to_owned(),
    };
    Ok(Candidate { label, kernel })
}

/// The sets of options: those of `--option`, with each combination of `--vary`.
fn variants(spec: &SeriesSpec) -> Vec<Vec<String>> {
    let mut all = vec![spec.options.clone()];
    for (name, values) in &spec.vary {
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
    spec: &SeriesSpec,
    candidates: &[Candidate],
    stored: &mut StoredPlan,
    failures: &mut Vec<String>,
) -> anyhow::Result<()> {
    let mut waiting = Vec::new();
    for host in &spec.hosts {
        for one in candidates {
            for options in variants(spec) {
                let point = stored.point(&one.label, host.name(), &options.join(" "));
                let is_there =
                    Run::open(&spec.folder.join(&point)).is_ok_and(|run| run.is_complete());
                if !is_there {
                    waiting.push((*host, one, options, point));
                }
            }
        }
    }
    // A run is in the list before it is made, so that a series that was killed says what it lacks.
    stored.write(&spec.folder)?;
    let all = waiting.len();
    for (number, (host, one, options, point)) in waiting.into_iter().enumerate() {
        let started = Instant::now();
        let made = attempts(spec, host, &one.kernel, &options, &spec.folder.join(&point));
        let time = started.elapsed().as_secs();
        match made {
            Ok(()) => say(&format!("{} of {all}: {point}, {time} s", number + 1)),
            Err(error) => {
                // A full disk or a folder of another process's ends the series; a kernel that does not boot does not.
                let code = error.downcast_ref::<CodedError>().map(CodedError::code);
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
    spec: &SeriesSpec,
    host: HostKind,
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
        let setup = |cache: PathBuf, console: PathBuf| HostSetup {
            nested: spec.nested,
            options: options.to_vec(),
            profile: spec.profile,
            processors: spec.processors,
            limit: spec.limit,
            ..HostSetup::plain(host, kernel.clone(), cache, console)
        };
        let suites = if spec.operations.is_empty() {
            spec.suites.clone()
        } else {
            vmtax_lab::suite::SUITES.iter().collect()
        };
        let plan = LabPlan { suites, only: spec.operations.clone(), batches: spec.batches };
        match measure(host, setup, HostWork::Operations(&plan), Some(claim)) {
            Ok(_) => return config::keep(kernel, folder),
            Err(error) => {
                let code = error.downcast_ref::<CodedError>().map(CodedError::code);
                if last == 0 || code != Some(Code::Machine) {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
