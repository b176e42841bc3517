//! Rows and events -> a run folder.

use std::time::{Duration, Instant};

use vmtax_capture::ImportFormat;
use vmtax_capture::import::trace_dat;
use vmtax_cli::exit::{Code, fail};
use vmtax_events::{
    AccessRow, CallRow, Event, ExitRow, Losses, PreemptedRow, Recording as Facts, RowSink, Sample,
    TimeRow, Together,
};
use vmtax_store::{Error, RunWriter};

use crate::input::{Input, RecordingBytes};
use crate::profiles::Profiles;
use crate::write_fault;

/// A sink that writes rows and events into a run.
pub struct ToRun {
    writer: RunWriter,
    failed: Option<Error>,
    /// Time of the last commit of rows.
    committed: Instant,
}

/// Time between commits: an interrupted import loses at most this much work.
const COMMIT_EVERY: Duration = Duration::from_secs(2);

impl ToRun {
    /// Rows go to this writer.
    pub fn new(writer: RunWriter) -> ToRun {
        ToRun { writer, failed: None, committed: Instant::now() }
    }

    /// Adds profiles and counters.
    pub fn profiles(&mut self, profiles: Profiles) {
        for stat in &profiles.stats {
            let result = self.writer.stat(stat);
            self.keep(result);
        }
        profiles.profiles.into_iter().for_each(|profile| self.writer.profile(profile));
    }

    /// Completes the run.
    ///
    /// # Errors
    /// The first error of writing it.
    pub fn finish(self, facts: &Facts, losses: &Losses) -> anyhow::Result<()> {
        let result = self.failed.map_or_else(|| self.writer.finish(facts, losses), Err);
        result.map_err(|error| write_fault(error).into())
    }

    /// The first error of writing, if there was one.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.failed.take() {
            Some(error) => Err(write_fault(error).into()),
            None => Ok(()),
        }
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

    fn events(&mut self, events: &[Event]) {
        if !self.writer.keeps_events() {
            return;
        }
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

/// The format of texts that are one table of several of the same recording.
const TABLES: &str = "perf kvm stat text";

/// Adds the VMs of a further recording of the same host.
///
/// # Errors
/// When it is of another host or kernel.
pub fn merge(first: &mut Facts, other: Facts, name: &str) -> anyhow::Result<()> {
    let differ = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
    if differ(&first.hostname, &other.hostname) || differ(&first.kernel, &other.kernel) {
        return fail(
            Code::Data,
            format!(
                "{name}: is of another host or kernel than the recordings before it; import it into a separate run"
            ),
        );
    }
    if first.format == TABLES && other.format == TABLES {
        // One file has the exits, another the accesses of the same recording.
        first.coverage.join(other.coverage);
    }
    for vm in other.vms {
        if !first.vms.iter().any(|known| known.id == vm.id) {
            first.vms.push(vm);
        }
    }
    Ok(())
}

/// Takes out recordings of guests whose host's is among them (`trace-cmd record -A`), with a sentence for each: their threads are not the host's.
pub fn without_guests(inputs: Vec<Input>) -> (Vec<Input>, Vec<String>) {
    let together: Vec<(String, Together)> = inputs.iter().map(together).collect();
    let mut sentences = Vec::new();
    let mut keep = |(at, input): (usize, Input)| {
        let (name, own) = together.get(at)?;
        let is_host = |(_, other): &&(String, Together)| {
            other.id != 0
                && (own.host == Some(other.id)
                    || other.guests.iter().any(|g| g.id != 0 && g.id == own.id))
        };
        let Some((host, _)) = together.iter().find(is_host) else { return Some(input) };
        sentences.push(format!("{name} is left out: it is the recording of a guest of {host}"));
        None
    };
    let hosts = inputs.into_iter().enumerate().filter_map(&mut keep).collect();
    (hosts, sentences)
}

/// An input's name, and what it was recorded with.
fn together(input: &Input) -> (String, Together) {
    let Input::Recording(recording) = input else { return Default::default() };
    let together = match (&recording.bytes, recording.format) {
        // What is wrong with it is said when it is imported.
        (RecordingBytes::File(file), ImportFormat::TraceDat) => {
            trace_dat::together(file).unwrap_or_default()
        }
        _ => Together::default(),
    };
    (recording.name.clone(), together)
}

/// A recording's name, and the times of its first event and its last.
pub type RecordingSpan = (String, (u64, u64));

/// Refuses a recording of the same time as one before it: its events would be counted twice.
///
/// Recordings that follow one another may overlap a little: perf empties the rings of one processor after the other.
///
/// # Errors
/// With both spans.
pub fn check_overlap(
    before: &[RecordingSpan],
    (name, (from, to)): &RecordingSpan,
) -> anyhow::Result<()> {
    let overlaps = |(_, (first, last)): &&RecordingSpan| {
        let common = last.min(to).saturating_sub(*first.max(from));
        let shorter = (last - first).min(to - from);
        common > shorter / 10 || (common == 0 && shorter == 0 && first == from)
    };
    let Some((other, (first, last))) = before.iter().find(overlaps) else { return Ok(()) };
    let seconds = |ns: &u64| *ns as f64 / 1e9;
    fail(
        Code::Data,
        format!(
            "{name}: covers {:.6} to {:.6} s, and {other} covers {:.6} to {:.6} s: events of the same time would be counted twice; import each into a run of its own",
            seconds(from),
            seconds(to),
            seconds(first),
            seconds(last)
        ),
    )
}
