//! Runs the cells of a matrix.

use std::io::Write;
use std::path::Path;

use vmtax_capture::program::builtin::ROUNDS;
use vmtax_capture::program::{ProgramReading, unit};
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output::cannot_read;
use vmtax_cli::progress::Progress;
use vmtax_cli::signals;
use vmtax_events::Better;
use vmtax_guest::job::{Busy, Job, JobOutcome};
use vmtax_lab::OperationProfile;
use vmtax_machine::Stop;
use vmtax_runs::lab::fault as lab_fault;

use crate::adapter::UTILISATION;
use crate::category::{MatrixCategory, SystemFacts};
use crate::describe;
use crate::error::fault;
use crate::facts::{changed, unexplained};
use crate::launch::{Launch, Launcher};
use crate::link::Link;
use crate::matrix::{BYTES_MOST, Matrix, Where};
use crate::place::{self, Place, There};
use crate::plan::{BenchCell, Shard, cells};
use crate::recorded::RecordedRows;
use crate::request::BenchRequest;
use crate::session::{BenchSession, ClientExits, NamedCell, Readings};
use crate::system::{AgentSystem, why_not};
use crate::target::{Accel, Platform, Target};
use crate::vm::emulator;
use crate::vmm::CountedProcess;
use crate::workload::{QemuTraffic, Workload, WorkloadProgram};

impl BenchRequest {
    /// The text of the matrix, the selected matrix, and its cells.
    fn open(&self) -> anyhow::Result<(String, Matrix, Vec<BenchCell>)> {
        let (text, mut matrix) = read(&self.matrix)?;
        matrix.only(&self.only).map_err(|problem| CodedError::new(Code::Usage, problem))?;
        let cells = cells(&matrix, self.shard.unwrap_or(Shard::WHOLE));
        if cells.is_empty() {
            let count = matrix.workloads.len();
            return fail(
                Code::Usage,
                format!("--shard: the matrix has only {count} workloads; use fewer parts"),
            );
        }
        Ok((text, matrix, cells))
    }

    /// Writes what would run here, and which requirements are missing.
    pub fn dry_run(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let (_, matrix, cells) = self.open()?;
        Ok(describe::dry_run(&matrix, &cells, out)?)
    }

    /// Runs the cells that the run in this folder lacks. SIGINT, SIGTERM and SIGHUP stop it; changed settings of this host and others
    /// are restored.
    pub fn run(&self, folder: &Path) -> anyhow::Result<()> {
        let (text, matrix, cells) = self.open()?;
        check(&matrix, &cells)?;
        if self.profile {
            check_profiled(&matrix)?;
        }
        let mut session = BenchSession::open(folder, &text, self, &matrix)?;
        let stop = Stop::default();
        let launcher = Launcher::new(
            &matrix,
            session.console(),
            (&stop, self.fresh),
            (self.profile, &self.annotate),
        )?;
        let mut runner = Runner::new((&matrix, &cells), &mut session, launcher, stop.clone());
        runner.profiles = self.profile;
        // Before this, a signal has nothing to undo.
        signals::catch(stop.flag())?;
        let result = runner.parity(&cells).and_then(|cells| runner.all(&cells));
        let nothing = runner.first_problem.take().filter(|_| !runner.has_measured);
        // Restores the settings of this host and others.
        drop(runner);
        if stop.is_requested() && result.is_err() {
            return fail(
                Code::Unexpected,
                "stopped; the same command with --resume continues the run",
            );
        }
        result?;
        session.finish()?;
        match nothing {
            Some(problem) => fail(
                Code::Machine,
                format!("no cell was measured; the first failed because {problem}"),
            ),
            None => Ok(()),
        }
    }
}

/// Reads a matrix file.
fn read(path: &Path) -> anyhow::Result<(String, Matrix)> {
    let name = path.display().to_string();
    let text = vmtax_durable::read_small_text(path, BYTES_MOST).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::FileTooLarge => CodedError::new(
            Code::Data,
            format!("{name}: is no matrix: {e}; docs/bench.md describes one"),
        ),
        _ => cannot_read(&name, &e),
    })?;
    let matrix = Matrix::read(&text)
        .map_err(|problem| CodedError::new(Code::Data, format!("{name}: {problem}")))?;
    Ok((text, matrix))
}

/// Checks everything that is known before the first VM starts.
fn check(matrix: &Matrix, cells: &[BenchCell]) -> anyhow::Result<()> {
    let missing: Vec<String> = describe::missing(matrix);
    if let Some(first) = missing.first() {
        let count = missing.len();
        let message = match count {
            1 => format!(
                "this host cannot run the matrix: {first}; --only leaves categories and workloads out"
            ),
            _ => format!(
                "this host cannot run the matrix for {count} reasons; --only leaves categories and workloads out"
            ),
        };
        let details = if count > 1 { missing } else { Vec::new() };
        return Err(CodedError::new(Code::Machine, message).detailed(details).into());
    }
    let is_there = |place: &Where| !matches!(place, Where::Ssh { .. });
    let here = matrix.categories.iter().any(is_there);
    let needed = matrix
        .workloads
        .iter()
        .enumerate()
        .filter(|(index, _)| cells.iter().any(|cell| cell.workload == *index));
    let programs = needed.flat_map(|(_, workload)| {
        workload.programs().into_iter().map(move |program| (workload, program))
    });
    for (workload, program) in programs.filter(|_| here) {
        if vmtax_machine::programs::find(&program).is_none() {
            let name = &workload.name;
            return fail(
                Code::Input,
                format!(
                    "workload {name}: {program} is not installed here; install it, or leave the workload out with --only"
                ),
            );
        }
    }
    Ok(())
}

/// Refuses what has no call trees.
fn check_profiled(matrix: &Matrix) -> anyhow::Result<()> {
    let is_vm = |place: &Where| matches!(place, Where::Vm(_));
    let is_recorded = |accel: Accel| matches!(accel, Accel::Amd | Accel::Intel | Accel::Arm);
    if !matrix.accels().into_iter().all(is_recorded) || !matrix.categories.iter().all(is_vm) {
        return fail(
            Code::Usage,
            "--profile: workloads of VMs on emulated hosts have call trees; set accel = \"amd\", \"intel\" or \"arm\", or leave the others out with --only",
        );
    }
    for accel in matrix.accels() {
        vmtax_lab::check_recorded(emulator(accel), matrix.target.processors)
            .map_err(|error| lab_fault(error, None))?;
    }
    Ok(())
}

/// Runs cells on their systems.
struct Runner<'a> {
    matrix: &'a Matrix,
    session: &'a mut BenchSession,
    launcher: Launcher,
    stop: Stop,
    /// The system of the cells that run now.
    present: Option<(CategoryRepeat, Launch<Set>)>,
    /// A cell was measured, and why the first that was not failed.
    has_measured: bool,
    first_problem: Option<String>,
    /// Each cell has call trees.
    profiles: bool,
    bar: Progress,
}

/// A category of the matrix, and the platform of its VM if it is one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Launched {
    category: usize,
    platform: Option<Platform>,
}

/// A category in a repeat.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CategoryRepeat {
    launched: Launched,
    repeat: u32,
}

/// A system, and the settings of the host changed for it.
struct Set {
    system: AgentSystem,
    _settings: CategorySettings,
    /// Whether exits are recorded there.
    records: bool,
}

impl<'a> Runner<'a> {
    fn new(
        (matrix, cells): (&'a Matrix, &[BenchCell]),
        session: &'a mut BenchSession,
        launcher: Launcher,
        stop: Stop,
    ) -> Runner<'a> {
        if let Some(label) = &launcher.modules {
            session.note(format!("modules: {label}"));
        }
        Runner {
            matrix,
            session,
            launcher,
            stop,
            present: None,
            has_measured: false,
            first_problem: None,
            profiles: false,
            bar: Progress::count(cells.len() as u64, "cells"),
        }
    }

    /// Reads the facts of each category and compares them with its baseline, before the first measurement. Returns the cells
    /// without those of categories that the kernel cannot have, each with a note.
    fn parity(&mut self, cells: &[BenchCell]) -> anyhow::Result<Vec<BenchCell>> {
        let matrix = self.matrix;
        if matrix.target.is_inside() {
            // Each cell has a VM of its own, whose facts are checked with it.
            return Ok(cells.to_vec());
        }
        let next = cells.iter().find(|cell| {
            let (workload, place) =
                (&matrix.workloads[cell.workload], &matrix.categories[cell.category]);
            !self.session.holds(&workload.name, place.name(), cell.repeat)
        });
        // The category needed next comes last and stays up.
        let next_here = next.map(|cell| self.here(cell));
        let mut all: Vec<Launched> = Vec::new();
        let mut lacking: Vec<Launched> = Vec::new();
        let mut sentences = Vec::new();
        for CategoryRepeat { launched, .. } in cells.iter().map(|cell| self.here(cell)) {
            if !all.contains(&launched) {
                all.push(launched);
            }
        }
        all.sort_by_key(|launched| next_here.is_some_and(|here| here.launched == *launched));
        for launched in &all {
            let name = self.name(*launched);
            self.bar.say(format!("asking {name} what it is"));
            if self.session.facts(&name)?.is_some() {
                continue;
            }
            let (set, facts) = match self.with_facts(*launched)? {
                Launch::Ready(found) => found,
                Launch::Failed(what) => {
                    lacking.push(*launched);
                    let note = format!("category {name}: skipped: {what}");
                    sentences.push(note.clone());
                    self.session.note(note);
                    continue;
                }
            };
            self.session.keep_facts(&name, &facts)?;
            if let Some(here) = next_here.filter(|here| here.launched == *launched) {
                self.present = Some((here, Launch::Ready(set)));
            }
        }
        let mut found = Vec::new();
        for launched in &all {
            let Where::Vm(category) = &self.matrix.categories[launched.category] else { continue };
            let Some((baseline, base)) = self.base(category, launched.platform)? else { continue };
            if let Some(facts) = self.session.facts(&self.name(*launched))? {
                found.extend(unexplained((category, &facts), (&baseline, &base)));
            }
        }
        if found.is_empty() {
            let mut left = cells.to_vec();
            left.retain(|cell| !lacking.contains(&self.here(cell).launched));
            if left.is_empty() {
                let message =
                    "this kernel supports none of the matrix's categories; give another kernel";
                return Err(CodedError::new(Code::Machine, message).detailed(sentences).into());
            }
            return Ok(left);
        }
        let message = "categories differ beyond the parts under test, so nothing was measured; make them equal";
        Err(CodedError::new(Code::Data, message).detailed(found).into())
    }

    /// A category's system and its facts; fails with what the kernel lacks for it.
    fn with_facts(&self, launched: Launched) -> anyhow::Result<Launch<(Set, SystemFacts)>> {
        let mut set = match self.set_up(launched)? {
            Launch::Ready(set) => set,
            Launch::Failed(what) => return Ok(Launch::Failed(what)),
        };
        let facts = set.system.facts()?;
        let lack = match &self.matrix.categories[launched.category] {
            Where::Vm(category) => category.lacks(&facts),
            Where::Host | Where::Ssh { .. } => None,
        };
        Ok(match lack {
            Some(what) => Launch::Failed(what),
            None => Launch::Ready((set, facts)),
        })
    }

    /// The category of a cell.
    fn here(&self, cell: &BenchCell) -> CategoryRepeat {
        let is_vm = matches!(self.matrix.categories[cell.category], Where::Vm(_));
        let platform = self.matrix.platform(&self.matrix.workloads[cell.workload]);
        let launched = Launched { category: cell.category, platform: is_vm.then_some(platform) };
        CategoryRepeat { launched, repeat: cell.repeat }
    }

    /// The name of a category's facts. One that runs on several platforms has several.
    fn name(&self, Launched { category, platform }: Launched) -> String {
        let mut name = self.matrix.categories[category].name().to_owned();
        let Some(Platform { accel, cpus, link }) = platform else { return name };
        if accel != self.matrix.target.accel {
            name.push_str(&format!(" on {}", accel.name()));
        }
        if accel.is_emulated_host() && cpus > 1 {
            name.push_str(&format!(" with {cpus} vCPUs"));
        }
        if let Some(link) = link {
            name.push_str(&format!(" over {}", link.file_name()));
        }
        name
    }

    /// The category of the matrix that another is compared with: its baseline, or the plain VM.
    fn base(
        &self,
        category: &MatrixCategory,
        platform: Option<Platform>,
    ) -> anyhow::Result<Option<(MatrixCategory, SystemFacts)>> {
        let mut next = category.baseline();
        while let Some(baseline) = next {
            let categories = &self.matrix.categories;
            let there = categories.iter().position(|place| place.name() == baseline.name);
            if let Some(category) = there
                && let Some(facts) =
                    self.session.facts(&self.name(Launched { category, platform }))?
            {
                return Ok(Some((baseline, facts)));
            }
            next = baseline.baseline();
        }
        Ok(None)
    }

    fn all(&mut self, cells: &[BenchCell]) -> anyhow::Result<()> {
        for (index, cell) in cells.iter().enumerate() {
            let matrix = self.matrix;
            let workload = &matrix.workloads[cell.workload].name;
            let category = matrix.categories[cell.category].name();
            if !self.session.holds(workload, category, cell.repeat) {
                self.bar.say(format!("{workload} in {category}"));
                let (outcome, readings) = self.one(cell)?;
                if self.stop.is_requested() {
                    // Its output may be truncated.
                    return fail(Code::Unexpected, "stopped");
                }
                match &readings {
                    Ok(_) => self.has_measured = true,
                    Err(problem) => _ = self.first_problem.get_or_insert_with(|| problem.clone()),
                }
                let (number, repeat) = (cell.number(matrix), cell.repeat);
                let is_vm = matches!(matrix.categories[cell.category], Where::Vm(_));
                let path = matrix.workloads[cell.workload].link.filter(|_| is_vm).map(Link::path);
                let named = NamedCell { index, number, workload, category, repeat, path };
                self.session.save(named, &outcome, readings)?;
            }
            self.bar.step();
        }
        self.bar.end();
        Ok(())
    }

    /// Runs a cell: outcome and readings, or why there are none.
    fn one(&mut self, cell: &BenchCell) -> anyhow::Result<(JobOutcome, Result<Readings, String>)> {
        let matrix = self.matrix;
        let workload = &matrix.workloads[cell.workload];
        if let WorkloadProgram::Traffic(traffic) = &workload.kind {
            return self.passage(cell, traffic);
        }
        let here = self.here(cell);
        let job = workload.job(matrix.warmup, matrix.counters, matrix.limit_ms);
        if self.present.as_ref().is_none_or(|(present, _)| *present != here) {
            // The previous system ends first: two VMs would disturb each other.
            self.present = None;
            let set = self.prepared(here.launched)?;
            self.present = Some((here, set));
        }
        let failed = |problem: &str| {
            (
                JobOutcome { problem: problem.to_owned(), ..JobOutcome::default() },
                Err(problem.to_owned()),
            )
        };
        let set = match &mut self.present {
            Some((_, Launch::Ready(set))) => set,
            Some((_, Launch::Failed(problem))) => return Ok(failed(problem)),
            None => return Ok(failed("")),
        };
        let counted = set.system.process().map(|pid| CountedProcess::begin(pid, matrix.counters));
        let outcome = match set.system.execute(&job) {
            Ok(outcome) => outcome,
            Err(error) => {
                // That system is not used for another cell.
                self.present = None;
                return Ok(failed(&error.to_string()));
            }
        };
        let mut readings = match workload.readings(&outcome) {
            Ok(values) => values,
            Err(problem) => return Ok((outcome, Err(problem))),
        };
        readings.extend(outcome.busy.as_deref().and_then(utilisation));
        let mut counters = outcome.counters.clone();
        if let Some((time, events)) = counted.map(CountedProcess::end) {
            readings.extend(time);
            counters.extend(events);
        }
        let mapped = outcome.mapped.map(|counters| (counters, operations(&readings)));
        let records = set.records;
        let recorded = if records { self.recorded(cell, &job)? } else { None };
        let recorded = recorded.into_iter().collect();
        let profile = if self.profiles { self.profiled(cell, &job) } else { None };
        Ok((
            outcome,
            Ok(Readings { values: readings, counters, mapped, recorded, trace: None, profile }),
        ))
    }

    /// The call trees of a cell, by running its job once more; its system is not used for another cell.
    fn profiled(
        &mut self,
        cell: &BenchCell,
        job: &Job,
    ) -> Option<(u32, Result<OperationProfile, String>)> {
        let (_, launch) = self.present.take()?;
        let Launch::Ready(mut set) = launch else { return None };
        let workload = &self.matrix.workloads[cell.workload];
        let category = self.matrix.categories[cell.category].name();
        let (outcome, profile) =
            match set.system.profile(job, &format!("{} in {category}", workload.name)) {
                Ok(done) => done,
                Err(error) => return Some((1, Err(error.to_string()))),
            };
        Some(match workload.readings(&outcome) {
            // What reports no number of operations is one.
            Ok(readings) => (operations(&readings).map_or(1, |count| count as u32), profile),
            Err(problem) => (1, profile.and(Err(problem))),
        })
    }

    /// Carries out traffic with a VM of QEMU on an emulated host, which is recorded.
    fn passage(
        &mut self,
        cell: &BenchCell,
        traffic: &QemuTraffic,
    ) -> anyhow::Result<(JobOutcome, Result<Readings, String>)> {
        let Where::Vm(category) = &self.matrix.categories[cell.category] else {
            return fail(Code::Machine, "traffic needs a VM");
        };
        let (done, notes) = self.launcher.carry_out(&traffic.cell(category))?;
        notes.into_iter().for_each(|note| self.session.note(note));
        Ok(match done {
            Ok(passage) => {
                let numbers = [cell.number(self.matrix), cell.peer_number(self.matrix)];
                let name = &self.matrix.workloads[cell.workload].name;
                let outcome = JobOutcome {
                    elapsed_ns: passage.elapsed_ns,
                    code: Some(0),
                    ..JobOutcome::default()
                };
                (outcome, Ok(Readings::of_passage(passage, (name, cell.repeat), numbers)?))
            }
            Err(problem) => {
                (JobOutcome { problem: problem.clone(), ..JobOutcome::default() }, Err(problem))
            }
        })
    }

    /// Records the exits of a cell by running its job once more; a note says if that fails.
    fn recorded(&mut self, cell: &BenchCell, job: &Job) -> anyhow::Result<Option<ClientExits>> {
        let Some((_, Launch::Ready(set))) = &mut self.present else { return Ok(None) };
        let workload = &self.matrix.workloads[cell.workload];
        let problem = match set.system.record(job, cell.number(self.matrix)) {
            Ok((outcome, Ok(recorded))) => match workload.readings(&outcome) {
                Ok(_) => return Ok(Some(exits(workload, &outcome, recorded))),
                Err(problem) => problem,
            },
            Ok((_, Err(problem))) => problem,
            Err(error) => {
                self.present = None;
                error.to_string()
            }
        };
        let category = self.matrix.categories[cell.category].name();
        let note = format!("exits of {} in {category}: not recorded: {problem}", workload.name);
        self.session.note(note);
        Ok(None)
    }

    /// The system of the next cells; where it fails, so do these.
    fn prepared(&mut self, launched: Launched) -> anyhow::Result<Launch<Set>> {
        let mut set = match self.set_up(launched) {
            Ok(Launch::Ready(set)) => set,
            Ok(failed) => return Ok(failed),
            Err(error) => return Ok(Launch::Failed(error.to_string())),
        };
        let name = self.name(launched);
        let before = self.session.facts(&name)?;
        let now = set.system.facts();
        Ok(match (before, now) {
            (Some(before), Ok(now)) => match changed(&name, &before, &now).as_slice() {
                [] => Launch::Ready(set),
                found => Launch::Failed(format!(
                    "it has changed since the first measurement: {}",
                    found.join("; ")
                )),
            },
            (None, Ok(_)) => Launch::Ready(set),
            (_, Err(error)) => Launch::Failed(error.to_string()),
        })
    }

    /// Launches the system of a category; fails with what the kernel lacks for it.
    fn set_up(&self, Launched { category, platform }: Launched) -> anyhow::Result<Launch<Set>> {
        let place = &self.matrix.categories[category];
        let Target { accel, cpus, .. } = self.matrix.target;
        let platform = platform.unwrap_or(Platform { accel, cpus, link: None });
        let mut settings = CategorySettings::default();
        let system = match place {
            Where::Host => AgentSystem::Place(Place::Here(
                place::ThisComputer::new(vmtax_lab::guest_program(), &self.stop)
                    .map_err(|e| fault(&e))?,
            )),
            Where::Ssh { name, address } => AgentSystem::Place(Place::There(
                There::new(name, address, vmtax_lab::guest_program(), &self.stop)
                    .map_err(|e| fault(&e))?,
            )),
            Where::Vm(category) => {
                if !platform.accel.is_emulated_host() {
                    settings = CategorySettings::apply(category)?;
                }
                match self.launcher.launch(category, platform)? {
                    Launch::Ready(system) => system,
                    Launch::Failed(what) => return Ok(Launch::Failed(what)),
                }
            }
        };
        let records = why_not(self.matrix, place, platform.accel).is_none();
        Ok(Launch::Ready(Set { system, _settings: settings, records }))
    }
}

/// Ticks of all processors below which their utilisation is too coarse to be told: one is 2 %.
const TICKS_LEAST: u64 = 50;

/// The share of the system's processors that was busy.
fn utilisation(busy: &Busy) -> Option<ProgramReading> {
    let share = busy.busy as f64 / busy.total.max(1) as f64 * 100.0;
    (busy.total >= TICKS_LEAST).then(|| ProgramReading {
        metric: UTILISATION.to_owned(),
        unit: unit::PERCENT.to_owned(),
        value: share,
        better: Better::Neither,
    })
}

fn exits(workload: &Workload, outcome: &JobOutcome, recorded: RecordedRows) -> ClientExits {
    let readings = workload.readings(outcome).unwrap_or_default();
    let (operations, elapsed_ns) = (operations(&readings), outcome.elapsed_ns);
    ClientExits { recorded, operations, elapsed_ns, peer: None, turns: Vec::new() }
}

/// The number of operations, if the workload reports it.
fn operations(readings: &[ProgramReading]) -> Option<f64> {
    readings.iter().find(|reading| reading.metric == ROUNDS).map(|reading| reading.value)
}

/// Host settings of a category. The old values are restored on drop.
#[derive(Default)]
struct CategorySettings(Vec<(&'static str, String)>);

impl CategorySettings {
    fn apply(category: &MatrixCategory) -> anyhow::Result<CategorySettings> {
        let mut settings = CategorySettings::default();
        for (file, value) in category.host_settings() {
            let problem = |e: std::io::Error| {
                CodedError::new(
                    Code::Machine,
                    format!("{file}: cannot be set to {value}: {e}; run as root"),
                )
            };
            let before = std::fs::read_to_string(file).map_err(problem)?;
            std::fs::write(file, value).map_err(problem)?;
            settings.0.push((file, before));
        }
        Ok(settings)
    }
}

impl Drop for CategorySettings {
    fn drop(&mut self) {
        for (file, before) in self.0.drain(..).rev() {
            // Errors cannot be reported here; the run's facts have the settings.
            let _ = std::fs::write(file, before);
        }
    }
}
