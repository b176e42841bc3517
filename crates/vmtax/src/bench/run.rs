//! `vmtax bench run`: a matrix -> a run, cell by cell.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use vmtax_bench::Error;
use vmtax_bench::category::Category;
use vmtax_bench::facts::{Facts, changed, unexplained};
use vmtax_bench::matrix::{BYTES_MOST, Matrix, Where};
use vmtax_bench::place::{Here, Place, There};
use vmtax_bench::plan::{Cell, Shard, cells};
use vmtax_bench::vm::{Purpose, Vms, emulator};
use vmtax_guest::job::Outcome;
use vmtax_machine::kernel;

use super::args::RunArgs;
use super::session::Session;
use super::{compare, describe};
use crate::exit::{Code, Fault, fail};
use crate::input::cannot_read;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let (text, mut matrix) = read(&args.matrix)?;
    matrix.only(&args.only).map_err(|problem| Fault::new(Code::Usage, problem))?;
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    let cells = cells(&matrix, shard);
    if cells.is_empty() {
        let count = matrix.workloads.len();
        return fail(
            Code::Usage,
            format!("--shard: the matrix has {count} workloads, so not so many parts"),
        );
    }
    let Some(folder) = args.output.as_deref().filter(|_| !args.dry_run) else {
        return describe::dry_run(&matrix, &cells);
    };
    check(&matrix, &cells)?;
    let mut session = Session::open(folder, &text, args, &matrix)?;
    let mut runner = Runner::new(&matrix, &cells, &mut session)?;
    runner.parity(&cells)?;
    runner.all(&cells)?;
    drop(runner);
    session.finish()?;
    compare::show_run(folder)
}

/// Reads a matrix file.
fn read(path: &Path) -> anyhow::Result<(String, Matrix)> {
    let name = path.display().to_string();
    let mut text = String::new();
    let file = File::open(path).map_err(|e| cannot_read(&name, &e))?;
    match file.take(BYTES_MOST + 1).read_to_string(&mut text) {
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            return fail(
                Code::Data,
                format!("{name}: is no text; docs/bench.md describes a matrix"),
            );
        }
        read => read.map_err(|e| cannot_read(&name, &e))?,
    };
    if text.len() as u64 > BYTES_MOST {
        return fail(
            Code::Data,
            format!("{name}: is larger than a matrix can be; docs/bench.md describes one"),
        );
    }
    let matrix = Matrix::read(&text)
        .map_err(|problem| Fault::new(Code::Data, format!("{name}: {problem}")))?;
    Ok((text, matrix))
}

/// Everything that can be told before the first VM.
fn check(matrix: &Matrix, cells: &[Cell]) -> anyhow::Result<()> {
    let missing: Vec<String> = describe::missing(matrix);
    if let Some(first) = missing.first() {
        let count = missing.len();
        let message = match count {
            1 => format!("this host cannot run the matrix: {first}; --only leaves categories out"),
            _ => format!(
                "this host cannot run the matrix for {count} reasons; --only leaves categories out"
            ),
        };
        let details = if count > 1 { missing } else { Vec::new() };
        return Err(Fault::new(Code::Machine, message).detailed(details).into());
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
    if matrix.counters && here && vmtax_machine::programs::find("perf").is_none() {
        return fail(
            Code::Input,
            "counters = true: perf is not installed here; install it, or leave counters out",
        );
    }
    Ok(())
}

/// Runs cells, each where it belongs.
struct Runner<'a> {
    matrix: &'a Matrix,
    session: &'a mut Session,
    vms: Option<Vms>,
    /// The category and repeat that are set up, and where, or why not.
    present: Option<(usize, u32, Result<Set, String>)>,
    bar: ProgressBar,
}

/// A place, and what was changed of the host for it.
struct Set {
    place: Place,
    _settings: Settings,
}

impl<'a> Runner<'a> {
    fn new(
        matrix: &'a Matrix,
        cells: &[Cell],
        session: &'a mut Session,
    ) -> anyhow::Result<Runner<'a>> {
        let launches = matrix.categories.iter().any(|place| matches!(place, Where::Vm(_)));
        let vms = if launches { Some(vms(matrix, session)?) } else { None };
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(cells.len() as u64)
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} cells, {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Ok(Runner { matrix, session, vms, present: None, bar })
    }

    /// Asks each category what it is, and compares it with its baseline, before the first number.
    fn parity(&mut self, cells: &[Cell]) -> anyhow::Result<()> {
        let matrix = self.matrix;
        let next = cells.iter().find(|cell| {
            let (workload, place) =
                (&matrix.workloads[cell.workload], &matrix.categories[cell.category]);
            !self.session.holds(&workload.name, place.name(), cell.repeat)
        });
        // The one that is needed next is asked last, and stays.
        let (last, others): (Vec<_>, Vec<_>) = (0..matrix.categories.len())
            .partition(|index| next.is_some_and(|cell| cell.category == *index));
        for index in others.into_iter().chain(last) {
            let place = &matrix.categories[index];
            let name = place.name();
            self.bar.set_message(format!("asking {name} what it is"));
            if self.session.facts(name)?.is_some() {
                continue;
            }
            let mut set = self.set_up(place)?;
            let facts = set.place.facts().map_err(|e| of_bench(&e))?;
            self.session.keep_facts(name, &facts)?;
            if let Some(cell) = next.filter(|cell| cell.category == index) {
                self.present = Some((index, cell.repeat, Ok(set)));
            }
        }
        let mut found = Vec::new();
        for place in &self.matrix.categories {
            let Where::Vm(category) = place else { continue };
            let known = |name: &str| self.session.facts(name);
            let Some((baseline, base)) = self.base(category, &known)? else { continue };
            if let Some(facts) = known(&category.name)? {
                found.extend(unexplained((category, &facts), (&baseline, &base)));
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let message = "the categories differ in more than they mean to change, so nothing was measured; make them equal";
        Err(Fault::new(Code::Data, message).detailed(found).into())
    }

    /// The category of the matrix that another is compared with: its baseline, or the plain VM.
    fn base(
        &self,
        category: &Category,
        known: &dyn Fn(&str) -> anyhow::Result<Option<Facts>>,
    ) -> anyhow::Result<Option<(Category, Facts)>> {
        let mut next = category.baseline();
        while let Some(baseline) = next {
            let there = self.matrix.categories.iter().any(|place| place.name() == baseline.name);
            if let Some(facts) = known(&baseline.name)?.filter(|_| there) {
                return Ok(Some((baseline, facts)));
            }
            next = baseline.baseline();
        }
        Ok(None)
    }

    fn all(&mut self, cells: &[Cell]) -> anyhow::Result<()> {
        for cell in cells {
            let workload = &self.matrix.workloads[cell.workload];
            let category = self.matrix.categories[cell.category].name();
            if !self.session.holds(&workload.name, category, cell.repeat) {
                self.bar.set_message(format!("{} in {category}", workload.name));
                let (outcome, readings) = self.one(cell)?;
                let index = cells.iter().position(|other| other == cell).unwrap_or_default();
                self.session.save(
                    index,
                    (&workload.name, category, cell.repeat),
                    &outcome,
                    readings,
                )?;
            }
            self.bar.inc(1);
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// A cell: its outcome and readings, or why there are none.
    fn one(
        &mut self,
        cell: &Cell,
    ) -> anyhow::Result<(Outcome, Result<super::session::Readings, String>)> {
        let matrix = self.matrix;
        let workload = &matrix.workloads[cell.workload];
        let place = &matrix.categories[cell.category];
        let counted = matrix.counters && !matches!(place, Where::Vm(_));
        let job = workload.job(matrix.warmup, counted, matrix.limit_ms);
        let here = (cell.category, cell.repeat);
        if self.present.as_ref().is_none_or(|(category, repeat, _)| (*category, *repeat) != here) {
            // The one before ends first: two VMs would disturb each other.
            self.present = None;
            let set = self.prepared(place)?;
            self.present = Some((here.0, here.1, set));
        }
        let failed = |problem: &str| {
            (Outcome { problem: problem.to_owned(), ..Outcome::default() }, Err(problem.to_owned()))
        };
        let Some((_, _, Ok(set))) = &mut self.present else {
            let problem = self.present.as_ref().and_then(|(_, _, set)| set.as_ref().err());
            return Ok(failed(problem.map_or("", String::as_str)));
        };
        match set.place.execute(&job) {
            Ok(outcome) => {
                let readings = workload.readings(&outcome);
                let counters = readings
                    .is_ok()
                    .then(|| counted.then(|| describe::counters(&outcome)))
                    .flatten();
                let readings = readings.map(|values| super::session::Readings {
                    values,
                    counters: counters.unwrap_or_default(),
                });
                Ok((outcome, readings))
            }
            Err(error) => {
                // What is left of that place is not trusted with another cell.
                self.present = None;
                Ok(failed(&of_bench(&error).to_string()))
            }
        }
    }

    /// A place for the next cells; the inner error is theirs, the outer one ends the run.
    fn prepared(&mut self, place: &Where) -> anyhow::Result<Result<Set, String>> {
        let mut set = match self.set_up(place) {
            Ok(set) => set,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let before = self.session.facts(place.name())?;
        let now = set.place.facts();
        Ok(match (before, now) {
            (Some(before), Ok(now)) => match changed(place.name(), &before, &now).as_slice() {
                [] => Ok(set),
                found => Err(format!(
                    "it is not what it was before the first number: {}",
                    found.join("; ")
                )),
            },
            (None, Ok(_)) => Ok(set),
            (_, Err(error)) => Err(of_bench(&error).to_string()),
        })
    }

    fn set_up(&self, place: &Where) -> anyhow::Result<Set> {
        let program = vmtax_lab::PROGRAM;
        let (place, settings) = match place {
            Where::Host => (Here::new(program).map(Place::Here), Settings::default()),
            Where::Ssh { name, address } => {
                (There::new(name, address, program).map(Place::There), Settings::default())
            }
            Where::Vm(category) => {
                let settings = Settings::apply(category)?;
                let Some(vms) = &self.vms else {
                    return fail(Code::Machine, "no VM can be launched");
                };
                (vms.boot(category).map(|vm| Place::Vm(Box::new(vm))), settings)
            }
        };
        Ok(Set { place: place.map_err(|e| of_bench(&e))?, _settings: settings })
    }
}

/// All that VMs of this matrix have in common.
fn vms(matrix: &Matrix, session: &Session) -> anyhow::Result<Vms> {
    let target = &matrix.target;
    vmtax_machine::check(emulator(target.accel)).map_err(|e| of_bench(&e.into()))?;
    let kernel = match target.kernel.to_str() {
        Some("distribution") => kernel::distribution(&kernel::cache_folder()),
        Some("host") => kernel::host(),
        _ => kernel::files(&target.kernel, target.modules.as_deref()),
    };
    let kernel = kernel.map_err(|e| of_bench(&e.into()))?;
    let count = u32::try_from(matrix.workloads.len()).unwrap_or(u32::MAX);
    let purpose = Purpose {
        program: vmtax_lab::PROGRAM,
        workloads: &matrix.workloads,
        limit: Duration::from_millis(matrix.limit_ms).saturating_mul(count),
        console: &session.console(),
    };
    Vms::new(target, kernel, &purpose).map_err(|e| of_bench(&e).into())
}

/// What an error of a benchmark means for the exit code.
pub(super) fn of_bench(error: &Error) -> Fault {
    use vmtax_machine::Error as Machine;
    let code = match error {
        Error::Machine(Machine::Kernel { .. } | Machine::Module { .. }) => Code::Data,
        Error::Machine(Machine::Program { .. }) => Code::Input,
        Error::Agent { place, .. } if place != "host" => Code::Input,
        _ => Code::Machine,
    };
    let mut message = error.to_string();
    if let Error::Machine(machine) = error
        && let Some(tail) = machine.console()
    {
        let last: Vec<&str> = tail.lines.iter().rev().take(3).rev().map(String::as_str).collect();
        if !last.is_empty() {
            message.push_str(&format!("; its console ends: {}", last.join(" | ")));
        }
    }
    Fault::new(code, message.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Settings of the host that a category wants. Dropping it puts the old ones back.
#[derive(Default)]
struct Settings(Vec<(&'static str, String)>);

impl Settings {
    fn apply(category: &Category) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        for (file, value) in category.host_settings() {
            let problem = |e: std::io::Error| {
                Fault::new(
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

impl Drop for Settings {
    fn drop(&mut self) {
        for (file, before) in self.0.drain(..).rev() {
            // There is nobody to tell; the run's facts say what was set.
            let _ = std::fs::write(file, before);
        }
    }
}
