//! `vmtax import`: recordings -> a run folder.

use std::time::{Duration, Instant};

use vmtax_analyse::RowSink;
use vmtax_events::{
    AccessRow, CallRow, Event, ExitRow, Losses, PreemptedRow, Recording as Facts, Sample, TimeRow,
};
use vmtax_store::{CreateOptions, Error, Writer, remove_empty_run};

use crate::besides::Besides;
use crate::cli::ImportArgs;
use crate::convert::{self, Rows};
use crate::exit::{Code, Fault, fail};
use crate::input::Input;
use crate::report;

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<()> {
    // Everything that can be told before the run is made is told before.
    let mut inputs = Vec::new();
    for path in &args.inputs {
        inputs.push(open(path, args)?);
    }
    let besides = args.besides.read()?;
    let created_folder = !args.output.exists();
    let writer = Writer::create(&args.output, &options(args)).map_err(output_fault)?;
    let result = import_all(args, inputs, besides, writer);
    if result.is_err() {
        remove_empty_run(&args.output, created_folder);
    }
    result
}

fn import_all(
    args: &ImportArgs,
    inputs: Vec<Input>,
    besides: Besides,
    writer: Writer,
) -> anyhow::Result<()> {
    let mut rows = ToRun::new(writer);
    let mut facts: Option<Facts> = None;
    let mut losses = besides.losses.clone();
    rows.besides(besides);
    for input in inputs {
        let (name, converted) = match input {
            Input::Recording(recording) => {
                (recording.name.clone(), convert::run(recording, &args.reading, rows)?)
            }
            Input::Run(run) => {
                (run.folder().display().to_string(), convert::of_events(&run, &args.reading, rows)?)
            }
        };
        rows = converted.rows;
        if let Some(error) = rows.failed.take() {
            return Err(output_fault(error).into());
        }
        losses.merge(&converted.losses);
        match &mut facts {
            None => facts = Some(converted.facts),
            Some(first) => merge(first, converted.facts, &name)?,
        }
    }
    let facts = facts.unwrap_or_default();
    rows.finish(&facts, &losses)
}

/// A run can be counted anew if it holds single events.
fn open(path: &std::path::Path, args: &ImportArgs) -> anyhow::Result<Input> {
    let input = Input::open(path)?;
    match &input {
        Input::Run(run) if !report::has_events(run) => fail(
            Code::Usage,
            format!(
                "{}: is a run already, and holds no single events to count anew; give the recordings to import",
                path.display()
            ),
        ),
        Input::Run(_) if args.reading.isa.is_some() => fail(
            Code::Usage,
            format!("--isa: {} is a run, and says whose its exits are", path.display()),
        ),
        _ => Ok(input),
    }
}

fn options(args: &ImportArgs) -> CreateOptions {
    CreateOptions {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        interval_ns: args.reading.interval_ns(),
        raw_events: args.raw,
        labels: args.labels.iter().cloned().collect(),
    }
}

/// A second recording of the same host adds its VMs and what it could see.
fn merge(first: &mut Facts, other: Facts, name: &str) -> anyhow::Result<()> {
    let differ = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
    if differ(&first.hostname, &other.hostname) || differ(&first.kernel, &other.kernel) {
        return fail(
            Code::Data,
            format!(
                "{name}: is of another host or kernel than the recordings before it; import it into a run of its own"
            ),
        );
    }
    for vm in other.vms {
        if !first.vms.iter().any(|known| known.id == vm.id) {
            first.vms.push(vm);
        }
    }
    Ok(())
}

pub(crate) fn output_fault(error: Error) -> Fault {
    Fault::new(Code::Output, error.to_string())
}

/// Rows and events on their way into a run.
pub(crate) struct ToRun {
    writer: Writer,
    failed: Option<Error>,
    /// When the rows so far were last made part of the run.
    committed: Instant,
}

/// A stop in the middle loses at most so much time of importing.
const COMMIT_EVERY: Duration = Duration::from_secs(2);

impl ToRun {
    pub(crate) fn new(writer: Writer) -> ToRun {
        ToRun { writer, failed: None, committed: Instant::now() }
    }

    fn besides(&mut self, besides: Besides) {
        for stat in &besides.stats {
            let result = self.writer.stat(stat);
            self.keep(result);
        }
        besides.profiles.into_iter().for_each(|profile| self.writer.profile(profile));
    }

    /// Makes the run whole.
    pub(crate) fn finish(self, facts: &Facts, losses: &Losses) -> anyhow::Result<()> {
        let result = self.failed.map_or_else(|| self.writer.finish(facts, losses), Err);
        result.map_err(|error| output_fault(error).into())
    }

    fn keep(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

impl RowSink for ToRun {
    fn exit(&mut self, row: &ExitRow) {
        let result = self.writer.exit(row);
        self.keep(result);
    }

    fn access(&mut self, row: &AccessRow) {
        let result = self.writer.access(row);
        self.keep(result);
    }

    fn preempted(&mut self, row: &PreemptedRow) {
        let result = self.writer.preempted(row);
        self.keep(result);
    }

    fn time(&mut self, row: &TimeRow) {
        let result = self.writer.time(row);
        self.keep(result);
        // Time rows are the last of an interval.
        if self.committed.elapsed() >= COMMIT_EVERY {
            let result = self.writer.segment();
            self.keep(result);
            self.committed = Instant::now();
        }
    }
}

impl Rows for ToRun {
    fn events(&mut self, events: &[Event]) {
        for event in events {
            let result = self.writer.event(event);
            self.keep(result);
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let result = self.writer.sample(sample);
        self.keep(result);
    }

    fn call(&mut self, row: &CallRow) {
        let result = self.writer.call(row);
        self.keep(result);
    }

    fn described(&mut self, facts: &Facts) {
        self.writer.describe(facts, &Losses::default());
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
