//! An emulated host's measurements -> a run folder and a ledger.

mod attempts;
mod network;
pub mod remedy;

use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use vmtax_analyse::{Filter, Ledger, LedgerBuilder};
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output;
use vmtax_cli::progress::{Progress, ReadingProgress};
use vmtax_durable::FileAccess;
use vmtax_events::{Event, Losses, Recording as Facts, RowSink};
use vmtax_guest::job::{JobAnswer, JobRequest};
use vmtax_lab::program::{self, ProgramImage, WholeProgram};
use vmtax_lab::{
    EndedProgram, HostKind, HostSetup, LabPlan, MeasuredOperation, Outcomes, VmSetup, console_text,
};
use vmtax_machine::kernel::{self, Kernel};
use vmtax_store::{Claim, CreateOptions, RunWriter};

pub use self::network::{measure_network, rows_of_passage};
use crate::convert::{self, Assigned, Assignment, Converted};
use crate::{Input, ReadOptions, ToLedger, ToRun, create_options, input, ledger, write_fault};

/// The note on a run with an observer.
const NOT_RECORDED: &str = "exits were not recorded: an observer ran beside the suite, and may use the kernel's tracing itself";

/// The measurements of one kernel.
#[derive(Debug)]
pub struct DoneKernel {
    /// The ledger of the run.
    pub ledger: Ledger,
    /// Operations that were not measured, with the reason.
    pub failures: Vec<String>,
    /// What the program did that ran in place of operations.
    pub program: Option<EndedProgram>,
}

/// What runs on a host.
#[derive(Clone, Copy, Debug)]
pub enum HostWork<'a> {
    Operations(&'a LabPlan),
    /// A program as a guest.
    Program(&'a ProgramImage),
}

impl HostWork<'_> {
    fn run(self, setup: &HostSetup, progress: &dyn Fn(&str)) -> Result<Outcomes, vmtax_lab::Error> {
        match self {
            HostWork::Operations(plan) => vmtax_lab::run(setup, plan, progress),
            HostWork::Program(image) => program::run(setup, image, progress),
        }
    }
}

/// The folder for machines' saved states and consoles.
pub fn cache_folder() -> anyhow::Result<PathBuf> {
    let cache = kernel::cache_folder();
    fs::create_dir_all(&cache).map_err(|e| cannot_write(&cache, &e))?;
    Ok(cache)
}

/// Runs a plan or a program on an emulated host and keeps the run in the folder of `claim`, if there is one. `setup` is given the cache and the
/// file for the console.
pub fn measure(
    host: HostKind,
    setup: impl FnOnce(PathBuf, PathBuf) -> HostSetup,
    work: HostWork<'_>,
    claim: Option<Claim>,
) -> anyhow::Result<DoneKernel> {
    let cache = cache_folder()?;
    let consoles = Consoles::new(&cache)?;
    let setup = with_probes(setup(cache, consoles.of(host)));
    let mut outcomes = match run(&setup, work) {
        Ok(outcomes) => outcomes,
        Err(error) => return Err(keep_console(error, claim, &setup.console)),
    };
    let ledger = match claim {
        None => in_memory(|rows| into_rows(&setup, &mut outcomes, None, rows))?,
        Some(claim) => of_stored(claim, |claim| store(&setup, &mut outcomes, claim))?,
    };
    consoles.remove();
    Ok(DoneKernel { ledger, failures: outcomes.failures(), program: outcomes.program })
}

/// Has a host do its work; attempts that the emulator's defect ended are notes and files.
fn run(setup: &HostSetup, work: HostWork<'_>) -> Result<Outcomes, vmtax_lab::Error> {
    let spinner = Progress::spinner();
    let (outcomes, lost) = attempts::run(&setup.console, |lost| {
        work.run(&setup.later(lost), &|what| spinner.say(what))
    });
    let mut outcomes = outcomes?;
    outcomes.start.notes.extend(lost.iter().map(attempts::Lost::note));
    outcomes.files.extend(lost.into_iter().map(attempts::Lost::into_file));
    Ok(outcomes)
}

/// The ledger of rows that are not kept.
fn in_memory(
    rows: impl FnOnce(ToLedger) -> anyhow::Result<(Facts, Losses, ToLedger)>,
) -> anyhow::Result<Ledger> {
    let builder = LedgerBuilder::new(Filter::default(), ReadOptions::default().interval_ns());
    let (facts, losses, rows) = rows(ToLedger(builder))?;
    let complete = losses.truncated.is_empty();
    Ok(rows.0.finish(facts, losses, complete))
}

/// The ledger of a run, which is stored first.
fn of_stored(
    claim: Claim,
    store: impl FnOnce(Claim) -> anyhow::Result<()>,
) -> anyhow::Result<Ledger> {
    let folder = claim.folder().to_owned();
    store(claim)?;
    match Input::open(&folder)? {
        Input::Run(run) => ledger::of_run(&run, Filter::default(), &ReadingProgress::default()),
        Input::Recording(_) => {
            fail(Code::Input, format!("{}: is no longer a run folder", folder.display()))
        }
    }
}

/// A suite on an emulated host with the distribution's kernel, for commands that have a report of their own.
pub fn suite(host: HostKind, plan: &LabPlan) -> anyhow::Result<Outcomes> {
    vmtax_machine::check(host.emulator()).map_err(|e| fault(e.into(), None))?;
    let cache = cache_folder()?;
    let kernel = kernel::distribution(&cache).map_err(|e| fault(e.into(), None))?;
    let consoles = Consoles::new(&cache)?;
    let setup = with_probes(HostSetup::plain(host, kernel, cache, consoles.of(host)));
    let outcomes = run(&setup, HostWork::Operations(plan))
        .map_err(|error| keep_console(error, None, &setup.console))?;
    consoles.remove();
    Ok(outcomes)
}

/// Sends a request to a Linux guest on an emulated host, with the distribution's kernel. `setup` makes it of the kernel, the cache and
/// the file for the console. Returns the answer, and a note on each attempt that was lost before it.
pub fn guest(
    host: HostKind,
    setup: impl FnOnce(Kernel, PathBuf, PathBuf) -> VmSetup,
    request: &JobRequest,
) -> anyhow::Result<(JobAnswer, Vec<String>)> {
    vmtax_machine::check(host.emulator()).map_err(|e| fault(e.into(), None))?;
    let cache = cache_folder()?;
    let kernel = kernel::distribution(&cache).map_err(|e| fault(e.into(), None))?;
    let consoles = Consoles::new(&cache)?;
    let console = consoles.of(host);
    let setup = setup(kernel, cache, console.clone());
    let spinner = Progress::spinner();
    let (answered, lost) = attempts::run(&console, |lost| {
        let mut vm = setup.later(lost).start(&|what| spinner.say(what))?;
        spinner.say("running the command");
        vm.ask(request)
    });
    drop(spinner);
    let answered = answered.map_err(|error| keep_console(error, None, &console))?;
    consoles.remove();
    Ok((answered.answer, lost.iter().map(attempts::Lost::note).collect()))
}

/// With probes that name VMCS fields.
fn with_probes(setup: HostSetup) -> HostSetup {
    HostSetup { vmcs_probes: Some(vmtax_live::probe::definitions), ..setup }
}

/// The folder for the consoles of this run's machines. One that failed stays until the next run.
struct Consoles(PathBuf);

impl Consoles {
    fn new(cache: &Path) -> anyhow::Result<Consoles> {
        let all = cache.join("consoles");
        let of = |process: &str| Path::new("/proc").join(process).exists();
        for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(of) {
                // Another process may have removed it.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let mine = all.join(std::process::id().to_string());
        fs::create_dir_all(&mine).map_err(|e| cannot_write(&mine, &e))?;
        Ok(Consoles(mine))
    }

    /// The file of a host.
    fn of(&self, host: HostKind) -> PathBuf {
        self.0.join(format!("{host}.txt"))
    }

    fn remove(&self) {
        // If this fails, the next run removes it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn store(setup: &HostSetup, outcomes: &mut Outcomes, claim: Claim) -> anyhow::Result<()> {
    let folder = &claim.folder().to_owned();
    let mut writer = RunWriter::begin(claim, &options(setup, outcomes)).map_err(write_fault)?;
    writer.describe(&facts(setup, outcomes, Facts::default()), &Losses::default());
    let put = |name: &str, bytes: &[u8]| put(folder, name, bytes);
    if let Some(trace) = &outcomes.trace {
        put("trace.dat", trace)?;
    }
    if let Some(program) = &outcomes.program {
        put("program.txt", program.output.as_bytes())?;
    }
    for (name, bytes) in &outcomes.files {
        put(name, bytes)?;
    }
    put("console.txt", &console_text(&setup.console))?;
    let (facts, losses, rows) = into_rows(setup, outcomes, Some(folder), ToRun::new(writer))?;
    rows.finish(&facts, &losses)
}

fn options(setup: &HostSetup, outcomes: &Outcomes) -> CreateOptions {
    let program = outcomes.program.as_ref();
    let labels = [
        ("host", setup.host.to_string()),
        ("modules", setup.kernel.modules_label().unwrap_or_default()),
        ("nested", setup.nested.to_string()),
        ("options", setup.options.join(" ")),
        ("vms", setup.vms().to_owned()),
        ("guest-kernel", setup.guest_kernel.as_deref().map(named).unwrap_or_default()),
        ("observer", setup.observer.join(" ")),
        ("program", program.map(|program| program.name.clone()).unwrap_or_default()),
        ("verdict", program.map(EndedProgram::said).unwrap_or_default()),
    ];
    lab_options(labels)
}

/// The name of a file, without its folder.
fn named(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// How a run of the lab is made. Labels without a value are left out.
fn lab_options(labels: impl IntoIterator<Item = (&'static str, String)>) -> CreateOptions {
    let given = labels.into_iter().filter(|(_, value)| !value.is_empty());
    let labels = given.map(|(key, value)| (key.to_owned(), value));
    create_options(ReadOptions::default().interval_ns(), labels)
}

/// The recording's events, each with its operation, and the samples of what it shows to be measured, on their way to a ledger
/// or a run.
fn into_rows<R: RowSink>(
    setup: &HostSetup,
    outcomes: &mut Outcomes,
    folder: Option<&Path>,
    rows: R,
) -> anyhow::Result<(Facts, Losses, R)> {
    let (of_trace, of_import, mut rows) = match &outcomes.trace {
        Some(trace) => {
            let (mut windows, mut whole) = (outcomes.windows(), WholeProgram::default());
            let is_program = outcomes.program.is_some();
            let mut assign = |event: &Event, each: &mut Assigned<'_>| {
                if let Some((entry, placed)) = windows.ended(event.time_ns) {
                    each(&entry, &placed);
                }
                let placed = if is_program { whole.place(event) } else { windows.place(event) };
                if let Some(placed) = placed {
                    each(event, &placed);
                }
            };
            let names = outcomes.vms.as_slice();
            let assignment = Assignment { names, assign: &mut assign };
            let read = read_trace(trace, folder, assignment, rows)?;
            if is_program && whole.exits == 0 {
                return fail(Code::Machine, "the recording of the program has no exits");
            }
            outcomes.check_recording(setup.host, &windows);
            (read.facts, read.losses, read.rows)
        }
        None => (Facts::default(), Losses::default(), rows),
    };
    outcomes
        .operations
        .iter()
        .flat_map(MeasuredOperation::samples)
        .for_each(|sample| rows.sample(&sample));
    let profiles = outcomes.operations.iter().filter_map(|one| one.profile.as_ref()?.as_ref().ok());
    profiles.flat_map(|profile| &profile.rows).for_each(|row| rows.call(row));
    let mut losses = Losses { recorder_lost: outcomes.trace_lost, ..Losses::default() };
    losses.notes.extend(outcomes.start.notes.iter().map(|note| sentence(note)));
    for one in &outcomes.operations {
        if let Some(Err(problem)) = &one.profile {
            losses.notes.push(format!("{} has no call tree: {problem}", one.workload()));
        }
    }
    losses.notes.extend(setup.kernel.modules_label().map(|label| format!("modules: {label}")));
    losses.notes.extend(outcomes.skipped());
    losses.notes.extend(outcomes.program.iter().flat_map(EndedProgram::notes));
    if outcomes.trace.is_none() {
        losses.notes.push(NOT_RECORDED.to_owned());
    }
    losses
        .notes
        .extend(outcomes.failures().iter().map(|failure| format!("not measured: {failure}")));
    losses.merge(&of_import);
    Ok((facts(setup, outcomes, of_trace), losses, rows))
}

/// Reads the lab's recording.
fn read_trace<R: RowSink>(
    trace: &[u8],
    folder: Option<&Path>,
    assignment: Assignment<'_>,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let name = folder.map_or_else(
        || "the lab's recording".to_owned(),
        |folder| folder.join("trace.dat").display().to_string(),
    );
    let recording = open_trace(trace, name)?;
    convert::run_assigned(recording, &ReadOptions::default(), assignment, rows)
}

/// A recording in memory as an input with this name.
fn open_trace(trace: &[u8], name: String) -> anyhow::Result<input::RecordingInput> {
    let mut file = tempfile::tempfile().map_err(|e| cannot_write(&std::env::temp_dir(), &e))?;
    file.write_all(trace)
        .and_then(|()| file.rewind())
        .map_err(|e| cannot_write(&std::env::temp_dir(), &e))?;
    input::open_file(file, name)
}

/// Writes a file of a run's folder.
fn put(folder: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let path = folder.join(name);
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).map_err(|e| cannot_write(above, &e))?;
    }
    vmtax_durable::write(&path, FileAccess::Private, bytes)
        .map_err(|e| cannot_write(&path, &e).into())
}

fn facts(setup: &HostSetup, outcomes: &Outcomes, of_trace: Facts) -> Facts {
    let emulated = setup.host != HostKind::Kvm;
    let (arch, clock) = setup.host.recorded_as();
    Facts {
        format: "lab".to_owned(),
        tool: format!("vmtax lab {}", env!("CARGO_PKG_VERSION")),
        kernel: outcomes.release.clone(),
        cpu: outcomes.processor.clone(),
        arch: arch.to_owned(),
        cpus: setup.processors,
        clock: clock.to_owned(),
        emulated: emulated.then(|| outcomes.start.emulator.clone()),
        ..of_trace
    }
}

/// Keeps the console of a failed machine in the run, which is marked as incomplete.
fn keep_console(error: vmtax_lab::Error, claim: Option<Claim>, console: &Path) -> anyhow::Error {
    let mut kept = None;
    if let Some(claim) = claim {
        let path = claim.folder().join("console.txt");
        let options = CreateOptions {
            interval_ns: ReadOptions::default().interval_ns(),
            ..Default::default()
        };
        let written = RunWriter::begin(claim, &options).is_ok_and(|_writer| {
            vmtax_durable::write(&path, FileAccess::Private, &console_text(console)).is_ok()
        });
        kept = written.then_some(path);
    }
    fault(error, kept.as_deref())
}

/// An error of the lab with its exit code.
pub fn fault(error: vmtax_lab::Error, console: Option<&Path>) -> anyhow::Error {
    use vmtax_lab::Error as Lab;
    use vmtax_machine::Error as Machine;
    let code = match &error {
        Lab::Machine(Machine::Kernel { .. } | Machine::Module { .. })
        | Lab::Kernel { .. }
        | Lab::Operation { .. }
        | Lab::Program { .. }
        | Lab::Budget { .. }
        | Lab::DebugInfo { .. } => Code::Data,
        Lab::Io { source, .. } | Lab::Machine(Machine::Io { source, .. }) => match source.kind() {
            io::ErrorKind::NotFound => Code::Input,
            io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidData => Code::Data,
            _ => Code::Output,
        },
        Lab::Option { .. }
        | Lab::NoFunction { .. }
        | Lab::Profiled
        | Lab::Several { .. }
        | Lab::Scattered => Code::Usage,
        Lab::Observer { .. } => Code::Input,
        _ => Code::Machine,
    };
    let mut message = error.to_string();
    if let Lab::Machine(machine) = &error
        && let Some(tail) = machine.console()
    {
        let last: Vec<&str> = tail.lines.iter().rev().take(3).rev().map(String::as_str).collect();
        if !last.is_empty() {
            message.push_str(&format!("; it ends: {}", last.join(" | ")));
        }
    }
    if let Some(path) = console {
        message.push_str(&format!("; kept as {}", path.display()));
    }
    CodedError::new(code, message).into()
}

fn cannot_write(path: &Path, source: &io::Error) -> CodedError {
    output::cannot_write(&path.display().to_string(), source)
}

fn sentence(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that panics while it boots has written to the console of its boot alone.
    #[test]
    fn the_console_of_a_panic_goes_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("amd.txt");
        let boot = folder.path().join("amd.boot.txt");
        fs::write(&console, "").unwrap();
        fs::write(&boot, "Kernel panic - not syncing: VFS\n").unwrap();
        let error = vmtax_lab::Error::Guest { message: "ended".to_owned() };
        let run = folder.path().join("run");
        let fault = keep_console(error, Some(Claim::new(&run).unwrap()), &console);
        let kept = run.join("console.txt");
        assert!(fault.to_string().ends_with(&format!("; kept as {}", kept.display())), "{fault}");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "Kernel panic - not syncing: VFS\n");
        fs::write(&console, "and on\n").unwrap();
        let all = String::from_utf8(console_text(&console)).unwrap();
        assert_eq!(all, "Kernel panic - not syncing: VFS\nand on\n");
    }
}
