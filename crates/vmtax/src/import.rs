//! `vmtax import`: recordings -> a run folder.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::flags::label;
use vmtax_events::Recording;
use vmtax_runs::import::{RecordingSpan, ToRun, check_overlap, merge, without_guests};
use vmtax_runs::profiles::{ProfileFiles, Profiles};
use vmtax_runs::{Input, ReadOptions, convert, create_options, input, ledger, write_fault};
use vmtax_store::{CreateOptions, RunWriter, StoredTable, remove_empty_run};

use crate::flags::ReadingArgs;

/// Convert recordings to a run folder, which all other commands read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax import perf.data -o run
  trace-cmd report trace.dat | vmtax import - -o run
  vmtax import perf.data -o run --raw       also keep events (for --format perfetto)
  vmtax import exits.data -o run --host-profile host.data --guest-profile guest.folded --stats pages.json")]
pub(crate) struct ImportArgs {
    /// Recordings of one host; `-` reads standard input.
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Run folder to create. It must not exist, or be empty.
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,

    /// Also store every event.
    #[arg(long)]
    pub(crate) raw: bool,

    /// A label of the run; repeatable.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) profiles: ProfileArgs,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Profiles and counters of the same period as the recording.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ProfileArgs {
    /// CPU profile of the host: folded stacks, perf.data with samples, or the output of perf script.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    host_profile: Vec<PathBuf>,

    /// CPU profile taken in the guest.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    guest_profile: Vec<PathBuf>,

    /// The hottest function of the guest by instruction: the output of `perf annotate --stdio`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    guest_instructions: Option<PathBuf>,

    /// Counters: the totals of `perf stat` (also with -x or -j, but not with -I, -A or --per-socket), the JSON of `vmtax doctor --pages`, or
    /// lines of NAME VALUE, such as KVM's statistics.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    stats: Vec<PathBuf>,

    /// Root folder for the symbols of a perf.data profile: programs, and the kernel's /proc/kallsyms. [default: /]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    symbols: Option<PathBuf>,
}

impl ProfileArgs {
    fn files(&self) -> ProfileFiles {
        ProfileFiles {
            host: self.host_profile.clone(),
            guest: self.guest_profile.clone(),
            instructions: self.guest_instructions.clone(),
            stats: self.stats.clone(),
            symbols: self.symbols.clone(),
        }
    }
}

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let paths: Vec<&Path> = args.inputs.iter().map(PathBuf::as_path).collect();
    input::check_read_once(&paths)?;
    // Errors of the inputs come before the run folder is created.
    let mut inputs = Vec::new();
    for path in &args.inputs {
        inputs.push(open(path, args)?);
    }
    let (inputs, left_out) = without_guests(inputs);
    let mut profiles = args.profiles.files().read()?;
    profiles.losses.notes.extend(left_out);
    let created_folder = !args.output.exists();
    let writer = RunWriter::create(&args.output, &options(args)).map_err(write_fault)?;
    let result = import_all(args, inputs, profiles, writer);
    if result.is_err() {
        remove_empty_run(&args.output, created_folder);
    }
    result
}

fn import_all(
    args: &ImportArgs,
    inputs: Vec<Input>,
    profiles: Profiles,
    writer: RunWriter,
) -> anyhow::Result<()> {
    let reading: ReadOptions = args.reading.reading();
    let mut rows = ToRun::new(writer);
    let mut facts: Option<Recording> = None;
    let mut spans: Vec<RecordingSpan> = Vec::new();
    let mut losses = profiles.losses.clone();
    rows.profiles(profiles);
    let sizes = inputs.iter().map(|input| match input {
        Input::Recording(recording) => recording.size().unwrap_or(0),
        Input::Run(run) => run.bytes_of(StoredTable::Events),
    });
    reading.progress.announce(sizes.fold(0, u64::saturating_add));
    for input in inputs {
        let (name, converted) = match input {
            Input::Recording(recording) => {
                (recording.name.clone(), convert::run(recording, &reading, rows)?)
            }
            Input::Run(run) => {
                (run.folder().display().to_string(), convert::of_events(&run, &reading, rows)?)
            }
        };
        rows = converted.rows;
        rows.check()?;
        losses.merge(&converted.losses);
        if let Some(span) = converted.span {
            let span = (name.clone(), span);
            check_overlap(&spans, &span)?;
            spans.push(span);
        }
        match &mut facts {
            None => facts = Some(converted.facts),
            Some(first) => merge(first, converted.facts, &name)?,
        }
    }
    let facts = facts.unwrap_or_default();
    rows.finish(&facts, &losses)
}

/// A run can be recounted if it contains events.
fn open(path: &Path, args: &ImportArgs) -> anyhow::Result<Input> {
    let input = Input::open(path)?;
    match &input {
        Input::Run(run) if !ledger::has_events(run) => fail(
            Code::Usage,
            format!(
                "{}: is a run without single events, so it cannot be recounted; give the recordings to import",
                path.display()
            ),
        ),
        Input::Run(_) if args.reading.isa.is_some() => fail(
            Code::Usage,
            format!("--isa: {} is a run, which contains the vendor", path.display()),
        ),
        _ => Ok(input),
    }
}

fn options(args: &ImportArgs) -> CreateOptions {
    let interval_ns = args.reading.reading().interval_ns();
    let options = create_options(interval_ns, args.labels.iter().cloned());
    CreateOptions { raw_events: args.raw, ..options }
}
