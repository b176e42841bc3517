//! `vmtax lab run`: an emulated host -> a run and its report.

use std::fs;
use std::io::{self, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use vmtax_analyse::{By, Filter, Ledger, LedgerBuilder};
use vmtax_durable::Access;
use vmtax_events::{Losses, Recording as Facts};
use vmtax_guest::job::{Answer, Request};
use vmtax_lab::{Measured, Outcomes, Plan, Setup, VmSetup, Windows};
use vmtax_machine::kernel::{self, Kernel};
use vmtax_store::{Claim, CreateOptions, Writer};

use super::args::{Arrangement, HostWord, RunArgs, TableFormat};
use super::{budget, compare};
use crate::cli::{Color, ReadingArgs, ReportArgs};
use crate::convert::{self, Converted, Rows};
use crate::exit::{Code, Fault, fail};
use crate::import::{ToRun, output_fault};
use crate::input;
use crate::report::{self, ToLedger};

/// How long an emulated host may live where no flag says so.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Said of a run beside which an observer ran.
const NOT_RECORDED: &str = "exits were not recorded: an observer ran beside the suite, and may use the kernel's tracing itself";

/// A lab run's intervals: a run is short, and its operations are told apart by VM.
const READING: ReadingArgs = ReadingArgs { interval: None, isa: None, emulated: None };

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    check(args)?;
    // Minutes before there is anything to write: two lab runs must not find out at their end that they have one folder.
    let claim = match args.kernel.len() {
        1 => claim(args.output.as_deref())?,
        _ => None,
    };
    let kernels = kernels(args)?;
    if let [_, _, ..] = kernels.as_slice() {
        return several(args, &kernels);
    }
    let Some(kernel) = kernels.first() else { return Ok(()) };
    let Done { ledger, failures } = one(args, kernel, claim)?;
    let verdict = not_measured(&failures).and_then(|()| budget::check(args, &ledger));
    let source = args
        .output
        .as_ref()
        .map_or_else(|| format!("lab run on {}", args.host.host()), |o| o.display().to_string());
    report::render(&shown(args, source), ledger)?;
    verdict
}

/// What came of a kernel.
struct Done {
    ledger: Ledger,
    /// Operations that were not measured, each with its reason.
    failures: Vec<String>,
}

/// Operations without a measurement are an error, after the report of the others.
fn not_measured(failures: &[String]) -> anyhow::Result<()> {
    let what = match failures.len() {
        0 => return Ok(()),
        1 => "1 operation was not measured:".to_owned(),
        many => format!("{many} operations were not measured:"),
    };
    Err(Fault::new(Code::Machine, what).detailed(failures.to_vec()).into())
}

/// A run of each kernel, and their comparison.
fn several(args: &RunArgs, kernels: &[Kernel]) -> anyhow::Result<()> {
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder).map_err(|e| cannot_write(folder, &e))?;
    }
    let mut runs: Vec<(String, Ledger)> = Vec::new();
    let mut failures = Vec::new();
    for kernel in kernels {
        let alike = runs.iter().filter(|(_, run)| run.recording.kernel == kernel.release).count();
        let name = match alike {
            0 => kernel.release.clone(),
            before => format!("{}-{}", kernel.release, before + 1),
        };
        let output = args.output.as_ref().map(|folder| folder.join(&name));
        let done = one(args, kernel, claim(output.as_deref())?)?;
        failures.extend(done.failures.iter().map(|failure| format!("{name}: {failure}")));
        runs.push((name, done.ledger));
    }
    let columns: Vec<(String, &Ledger)> =
        runs.iter().map(|(name, ledger)| (name.clone(), ledger)).collect();
    compare::show(&columns, TableFormat::of(args.format).unwrap_or(TableFormat::Text), None)?;
    not_measured(&failures)
}

/// The folder of the run, which is nobody else's from here on.
fn claim(output: Option<&Path>) -> anyhow::Result<Option<Claim>> {
    Ok(output.map(Claim::new).transpose().map_err(output_fault)?)
}

/// The report of a run just made.
fn shown(args: &RunArgs, source: String) -> ReportArgs {
    ReportArgs {
        input: source.into(),
        event: Vec::new(),
        by: match args.by {
            Arrangement::Cause => Vec::new(),
            Arrangement::Level => vec![By::Level],
        },
        vm: Vec::new(),
        vcpu: Vec::new(),
        format: args.format,
        output: None,
        color: Color::Auto,
        reading: READING,
    }
}

/// A suite on an emulated host with the distribution's kernel, for commands that have a report of their own.
pub(crate) fn suite(host: vmtax_lab::Host, plan: &Plan) -> anyhow::Result<Outcomes> {
    vmtax_machine::check(host.emulator()).map_err(|e| lab_fault(e.into(), None))?;
    let cache = kernel::cache_folder();
    fs::create_dir_all(&cache).map_err(|e| cannot_write(&cache, &e))?;
    let kernel = kernel::distribution(&cache).map_err(|e| lab_fault(e.into(), None))?;
    let consoles = Consoles::new(&cache)?;
    let setup = Setup {
        host,
        kernel,
        nested: false,
        options: Vec::new(),
        observer: Vec::new(),
        brought: Vec::new(),
        processors: 1,
        memory_mib: 0,
        cache,
        fresh: false,
        profile: false,
        console: consoles.0.join(format!("{host}.txt")),
        limit: LIMIT,
    };
    let spinner = Spinner::new();
    let outcomes = vmtax_lab::run(&setup, plan, &|what| spinner.say(what));
    drop(spinner);
    let outcomes = outcomes.map_err(|error| keep_console(error, None, &setup.console))?;
    consoles.remove();
    Ok(outcomes)
}

/// What a Linux guest on an emulated host answers, with the distribution's kernel. `setup` makes it of the kernel, the cache and
/// the file for the console.
pub(crate) fn guest(
    host: vmtax_lab::Host,
    setup: impl FnOnce(Kernel, PathBuf, PathBuf) -> VmSetup,
    request: &Request,
) -> anyhow::Result<Answer> {
    vmtax_machine::check(host.emulator()).map_err(|e| lab_fault(e.into(), None))?;
    let cache = kernel::cache_folder();
    fs::create_dir_all(&cache).map_err(|e| cannot_write(&cache, &e))?;
    let kernel = kernel::distribution(&cache).map_err(|e| lab_fault(e.into(), None))?;
    let consoles = Consoles::new(&cache)?;
    let console = consoles.0.join(format!("{host}.txt"));
    let setup = setup(kernel, cache, console.clone());
    let spinner = Spinner::new();
    let answered = setup.start(&|what| spinner.say(what)).and_then(|mut vm| {
        spinner.say("running the command");
        vm.ask(request)
    });
    drop(spinner);
    let answered = answered.map_err(|error| keep_console(error, None, &console))?;
    consoles.remove();
    Ok(answered.answer)
}

/// Everything that can be told before minutes are spent.
fn check(args: &RunArgs) -> anyhow::Result<()> {
    let images = args.kernel.iter().filter(|kernel| !is_word(kernel)).count();
    if !args.modules.is_empty() && args.modules.len() != images {
        return fail(
            Code::Usage,
            format!(
                "--modules was given {} times for {images} kernel images; give one for each image",
                args.modules.len()
            ),
        );
    }
    if args.profile && args.host == HostWord::Kvm {
        return fail(
            Code::Usage,
            "--profile: instructions of --host kvm cannot be recorded; use the host amd or intel, which are emulated",
        );
    }
    if args.profile && args.processors > 1 {
        return fail(Code::Usage, "--profile: a host with one processor can be recorded");
    }
    if args.kernel.len() > 1 && args.budget.is_some() {
        return fail(
            Code::Usage,
            "--budget holds one kernel against its budget; give one --kernel",
        );
    }
    if args.format == crate::cli::Format::Perfetto {
        return fail(
            Code::Usage,
            "--format perfetto: keep the run with -o and give its trace.dat to `vmtax report`",
        );
    }
    if args.kernel.len() > 1 && TableFormat::of(args.format).is_none() {
        return fail(
            Code::Usage,
            "--format: the comparison of several kernels is written as text, csv, json or html; keep the runs with -o \
             and give each to `vmtax report`",
        );
    }
    // The folder of a single run says itself what is wrong with it.
    if args.kernel.len() > 1
        && let Some(folder) = args.output.as_ref().filter(|folder| !is_free(folder))
    {
        return fail(
            Code::Output,
            format!("{}: exists already; name a folder that does not", folder.display()),
        );
    }
    budget::open(args)?;
    vmtax_machine::check(args.host.host().emulator()).map_err(|e| lab_fault(e.into(), None))
}

fn is_word(kernel: &Path) -> bool {
    kernel == Path::new("distribution") || kernel == Path::new("host")
}

fn is_free(folder: &Path) -> bool {
    folder.symlink_metadata().is_err()
        || fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

fn kernels(args: &RunArgs) -> anyhow::Result<Vec<Kernel>> {
    let mut modules = args.modules.iter();
    let mut kernels = Vec::new();
    for name in &args.kernel {
        let kernel = match name.to_str() {
            Some("distribution") => kernel::distribution(&kernel::cache_folder()),
            Some("host") => kernel::host(),
            _ => kernel::files(name, modules.next().map(PathBuf::as_path)),
        };
        kernels.push(kernel.map_err(|e| lab_fault(e.into(), None))?);
    }
    Ok(kernels)
}

/// One kernel: from the machine to the ledger, with the run written on the way.
fn one(args: &RunArgs, kernel: &Kernel, claim: Option<Claim>) -> anyhow::Result<Done> {
    let cache = kernel::cache_folder();
    fs::create_dir_all(&cache).map_err(|e| cannot_write(&cache, &e))?;
    let host = args.host.host();
    let consoles = Consoles::new(&cache)?;
    let setup = Setup {
        host,
        kernel: kernel.clone(),
        nested: args.nested,
        options: args.option.clone(),
        observer: args
            .observe
            .as_deref()
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        brought: args.bring.clone(),
        processors: args.processors,
        memory_mib: args.memory,
        cache: cache.clone(),
        fresh: args.fresh,
        profile: args.profile,
        console: consoles.0.join(format!("{host}.txt")),
        limit: args.limit,
    };
    let plan = Plan { suites: suites(args), only: args.operation.clone(), batches: args.batches };
    let spinner = Spinner::new();
    let outcomes = vmtax_lab::run(&setup, &plan, &|what| spinner.say(what));
    drop(spinner);
    let mut outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(error) => return Err(keep_console(error, claim, &setup.console)),
    };
    let Some(claim) = claim else {
        consoles.remove();
        let builder = LedgerBuilder::new(Filter::default(), READING.interval_ns());
        let (facts, losses, rows) = into_rows(&setup, &mut outcomes, None, ToLedger(builder))?;
        let complete = losses.truncated.is_empty();
        let ledger = rows.0.finish(facts, losses, complete);
        return Ok(Done { ledger, failures: outcomes.failures() });
    };
    let folder = claim.folder().to_owned();
    store(&setup, &mut outcomes, claim)?;
    consoles.remove();
    match input::Input::open(&folder)? {
        input::Input::Run(run) => {
            let ledger = report::of_run(&run, Filter::default())?;
            Ok(Done { ledger, failures: outcomes.failures() })
        }
        input::Input::Recording(_) => {
            fail(Code::Input, format!("{}: is no run any more", folder.display()))
        }
    }
}

/// The folder for the consoles of this run's machines. One that failed stays until the next run.
struct Consoles(PathBuf);

impl Consoles {
    fn new(cache: &Path) -> anyhow::Result<Consoles> {
        let all = cache.join("consoles");
        let of = |process: &str| Path::new("/proc").join(process).exists();
        for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(of) {
                // Somebody else may have been faster.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let mine = all.join(std::process::id().to_string());
        fs::create_dir_all(&mine).map_err(|e| cannot_write(&mine, &e))?;
        Ok(Consoles(mine))
    }

    fn remove(&self) {
        // If this fails the next run does it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The suites asked for; with single operations all suites, since their names are unique.
fn suites(args: &RunArgs) -> Vec<&'static vmtax_lab::suite::Suite> {
    if args.operation.is_empty() {
        args.suite.clone()
    } else {
        vmtax_lab::suite::SUITES.iter().collect()
    }
}

fn store(setup: &Setup, outcomes: &mut Outcomes, claim: Claim) -> anyhow::Result<()> {
    let folder = &claim.folder().to_owned();
    let mut writer = Writer::begin(claim, &options(setup)).map_err(output_fault)?;
    writer.describe(&facts(setup, outcomes, Facts::default()), &Losses::default());
    let put = |name: &str, bytes: &[u8]| -> anyhow::Result<()> {
        let path = folder.join(name);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(|e| cannot_write(above, &e))?;
        }
        vmtax_durable::write(&path, Access::Private, bytes)
            .map_err(|e| cannot_write(&path, &e).into())
    };
    if let Some(trace) = &outcomes.trace {
        put("trace.dat", trace)?;
    }
    for (name, bytes) in &outcomes.files {
        put(name, bytes)?;
    }
    put("console.txt", &fs::read(&setup.console).unwrap_or_default())?;
    let (facts, losses, rows) = into_rows(setup, outcomes, Some(folder), ToRun::new(writer))?;
    rows.finish(&facts, &losses)
}

fn options(setup: &Setup) -> CreateOptions {
    let labels = [
        ("host", setup.host.to_string()),
        ("nested", setup.nested.to_string()),
        ("options", setup.options.join(" ")),
        ("observer", setup.observer.join(" ")),
    ];
    CreateOptions {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        interval_ns: READING.interval_ns(),
        raw_events: false,
        labels: labels
            .into_iter()
            .filter(|(_, v)| !v.is_empty())
            .map(|(k, v)| (k.to_owned(), v))
            .collect(),
    }
}

/// The recording's events, each with its operation, and the samples of what it shows to be measured, on their way to a ledger
/// or a run.
fn into_rows<R: Rows>(
    setup: &Setup,
    outcomes: &mut Outcomes,
    folder: Option<&Path>,
    rows: R,
) -> anyhow::Result<(Facts, Losses, R)> {
    let (of_trace, of_import, mut rows) = match &outcomes.trace {
        Some(trace) => {
            let mut windows = Windows::default();
            let read = read_trace(trace, folder, &outcomes.vms, &mut windows, rows)?;
            outcomes.check_recording(setup.host, &windows);
            (read.facts, read.losses, read.rows)
        }
        None => (Facts::default(), Losses::default(), rows),
    };
    outcomes.operations.iter().flat_map(Measured::samples).for_each(|sample| rows.sample(&sample));
    let profiles = outcomes.operations.iter().filter_map(|one| one.profile.as_ref()?.as_ref().ok());
    profiles.flat_map(|profile| &profile.rows).for_each(|row| rows.call(row));
    let mut losses = Losses { recorder_lost: outcomes.trace_lost, ..Losses::default() };
    losses.notes.extend(outcomes.start.notes.iter().map(|note| sentence(note)));
    for one in &outcomes.operations {
        if let Some(Err(problem)) = &one.profile {
            losses.notes.push(format!("{} has no call tree: {problem}", one.workload()));
        }
    }
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
fn read_trace<R: Rows>(
    trace: &[u8],
    folder: Option<&Path>,
    vms: &[(u32, String)],
    windows: &mut Windows,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let mut file = tempfile::tempfile().map_err(|e| cannot_write(&std::env::temp_dir(), &e))?;
    file.write_all(trace)
        .and_then(|()| file.rewind())
        .map_err(|e| cannot_write(&std::env::temp_dir(), &e))?;
    let name = folder.map_or_else(
        || "the lab's recording".to_owned(),
        |folder| folder.join("trace.dat").display().to_string(),
    );
    let recording = input::open_file(file, name)?;
    convert::run_lab(recording, &READING, vms, windows, rows)
}

fn facts(setup: &Setup, outcomes: &Outcomes, of_trace: Facts) -> Facts {
    let emulated = setup.host != vmtax_lab::Host::Kvm;
    Facts {
        format: "lab".to_owned(),
        tool: format!("vmtax lab {}", env!("CARGO_PKG_VERSION")),
        kernel: outcomes.release.clone(),
        cpu: outcomes.processor.clone(),
        arch: "x86_64".to_owned(),
        cpus: 1,
        clock: "x86-tsc".to_owned(),
        emulated: emulated.then(|| setup.host.emulator().to_string()),
        ..of_trace
    }
}

/// A failed machine leaves its console in the run, which says of itself that it is not complete.
fn keep_console(error: vmtax_lab::Error, claim: Option<Claim>, console: &Path) -> anyhow::Error {
    let mut kept = None;
    if let Some(claim) = claim {
        let path = claim.folder().join("console.txt");
        let options = CreateOptions { interval_ns: READING.interval_ns(), ..Default::default() };
        let written = Writer::begin(claim, &options).is_ok_and(|_writer| {
            let bytes = fs::read(console).unwrap_or_default();
            vmtax_durable::write(&path, Access::Private, &bytes).is_ok()
        });
        kept = written.then_some(path);
    }
    lab_fault(error, kept.as_deref())
}

/// What an error of the lab means for the exit code.
pub(crate) fn lab_fault(error: vmtax_lab::Error, console: Option<&Path>) -> anyhow::Error {
    use vmtax_lab::Error as Lab;
    use vmtax_machine::Error as Machine;
    let code = match &error {
        Lab::Machine(Machine::Kernel { .. } | Machine::Module { .. })
        | Lab::Kernel { .. }
        | Lab::Budget { .. } => Code::Data,
        Lab::Io { source, .. } | Lab::Machine(Machine::Io { source, .. }) => match source.kind() {
            io::ErrorKind::NotFound => Code::Input,
            _ => Code::Output,
        },
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
    Fault::new(code, message).into()
}

fn cannot_write(path: &Path, source: &io::Error) -> Fault {
    crate::output::cannot_write(&path.display().to_string(), source)
}

fn sentence(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is being done, on a terminal.
struct Spinner(ProgressBar);

impl Spinner {
    fn new() -> Spinner {
        if !io::stderr().is_terminal() {
            return Spinner(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Spinner(bar)
    }

    fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
