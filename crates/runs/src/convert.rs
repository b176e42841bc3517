//! A recording -> rows: connects importer and accounting.

use std::collections::HashMap;

use vmtax_analyse::Accountant;
use vmtax_capture::import::ImportOptions;
use vmtax_capture::{Error, ImportSource, Sink, pipeline};
use vmtax_cli::exit::{Code, CodedError};
use vmtax_events::{
    AccessRow, Event, EventKind, ExitRow, Losses, Recording as Facts, RowSink, Sample,
};
use vmtax_lab::Ahead;
use vmtax_store::{Run, StoredTable};

use crate::input::{RecordingBytes, RecordingInput, Watched, WatchedFile};
use crate::{ReadOptions, read_fault};

/// Reads a recording into `rows`. Returns it with the recording's facts and losses.
///
/// # Errors
/// When the recording cannot be read. If `rows` failed, the result is `Ok`; check `rows`.
pub fn run<R: RowSink>(
    recording: RecordingInput,
    reading: &ReadOptions,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let accountant = accountant(reading, rows);
    run_with(
        recording,
        reading,
        Accounting { accountant, assign: None, ahead: Ahead::default(), threads: None, span: None },
    )
}

/// Assigns events to VMs other than those of the recording threads.
pub struct Assignment<'a> {
    /// VMs and their names.
    pub names: &'a [(u32, String)],
    /// Gives each event its VM.
    pub assign: &'a mut Assign<'a>,
}

/// Assigns an event to a VM: gives the event, or none, or the end of what came before it too, each behind the one of which it is.
pub type Assign<'a> = dyn FnMut(&Event, &mut Assigned<'_>) + 'a;

/// Takes an event of the recording and what it is for its VM.
pub type Assigned<'a> = dyn FnMut(&Event, &Event) + 'a;

/// As [`run`], with events assigned to other VMs.
pub fn run_assigned<R: RowSink>(
    recording: RecordingInput,
    reading: &ReadOptions,
    assignment: Assignment<'_>,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let mut accountant = accountant(reading, rows);
    for (vm, name) in assignment.names {
        accountant.thread_name(*vm, name);
    }
    let threads = (!assignment.names.is_empty()).then(ConvertedThreads::default);
    let assign = Some(assignment.assign);
    let ahead = Ahead::default();
    run_with(recording, reading, Accounting { accountant, assign, ahead, threads, span: None })
}

/// Recounts the single events of a run.
pub fn of_events<R: RowSink>(
    run: &Run,
    reading: &ReadOptions,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let manifest = run.manifest();
    let choice = &manifest.recording.choice;
    let options = vmtax_analyse::AccountOptions {
        interval_ns: reading.interval_ns(),
        all_exits: choice.is_none(),
    };
    let mut accountant = Accountant::new(options, rows);
    for vm in &manifest.recording.vms {
        accountant.thread_name(vm.id, &vm.name);
    }
    let mut span = None;
    let each = &mut |events: &[Event]| {
        extend(&mut span, events);
        accountant.sink_mut().events(events);
        accountant.events(events);
    };
    let share = reading.progress.begin(Some(run.bytes_of(StoredTable::Events)));
    let read = run.read_events(each, &|bytes| share.advance(bytes));
    let mut losses = read.map_err(|e| read_fault(&e))?.losses;
    drop(share);
    let (rows, vms, unused) = accountant.finish();
    losses.merge(&unused);
    let note = manifest.recording.note_of_choice();
    let notes = manifest.losses.notes.iter().filter(|text| note.as_ref() != Some(*text));
    losses.notes.extend(notes.cloned());
    losses.notes.extend(choice.iter().map(|which| {
        format!("recounted from the single events {which}: other exits are missing from all tables, and the time split is unknown")
    }));
    let facts = Facts { vms, ..manifest.recording.clone() };
    Ok(Converted { rows, facts, losses, span })
}

fn accountant<R: RowSink>(reading: &ReadOptions, rows: R) -> Accountant<R> {
    Accountant::new(
        vmtax_analyse::AccountOptions { interval_ns: reading.interval_ns(), ..Default::default() },
        rows,
    )
}

fn run_with<R: RowSink>(
    recording: RecordingInput,
    reading: &ReadOptions,
    mut accounting: Accounting<'_, R>,
) -> anyhow::Result<Converted<R>> {
    let RecordingInput { name, format, bytes } = recording;
    let isa = reading.isa.unwrap_or(vmtax_events::Isa::Unknown);
    let options = ImportOptions { isa, threads: decoding_threads() };
    let result = match bytes {
        RecordingBytes::File(file) => {
            let watched = WatchedFile::new(&file, &reading.progress);
            pipeline::run(format, ImportSource::Random(&watched), options, &mut accounting)
        }
        RecordingBytes::Folder(folder) => {
            let import =
                |source: ImportSource<'_>| pipeline::run(format, source, options, &mut accounting);
            folder.read(&reading.progress, import)
        }
        RecordingBytes::Stream(stream) => {
            let mut watched = Watched::new(stream, &reading.progress);
            pipeline::run(format, ImportSource::Stream(&mut watched), options, &mut accounting)
        }
    };
    accounting.assign_rest();
    let (mut facts, mut losses) = match result {
        Ok(imported) => {
            // Without their threads, events have no VM to add to.
            if accounting.assign.is_none() {
                let threads = imported.rips.threads();
                threads.for_each(|(tid, rips)| accounting.accountant.rips(tid, rips));
            }
            (imported.recording, imported.losses)
        }
        Err(Error::Stopped) => (Facts::default(), Losses::default()),
        Err(error) => {
            let code = match error {
                Error::Io { .. } => Code::Input,
                Error::Vendor => Code::Usage,
                _ => Code::Data,
            };
            return Err(CodedError::new(code, format!("{name}: {error}")).into());
        }
    };
    let span = accounting.span;
    let (rows, vms, unused) = accounting.accountant.finish();
    losses.merge(&unused);
    facts.vms = vms;
    if let Some(emulator) = &reading.emulated {
        facts.emulated = Some(emulator.clone());
    }
    Ok(Converted { rows, facts, losses, span })
}

/// Threads that decode, so that as many threads run as there are processors ([`pipeline`]).
fn decoding_threads() -> usize {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => 0,
        2 | 3 => 1,
        cores => (cores - 2).min(MOST_DECODING),
    }
}

/// The thread that counts cannot follow more that decode.
const MOST_DECODING: usize = 4;

#[derive(Debug)]
pub struct Converted<R> {
    pub rows: R,
    /// Facts of the recording.
    pub facts: Facts,
    pub losses: Losses,
    /// Time of its first event and its last, ns on its clock.
    pub span: Option<(u64, u64)>,
}

fn extend(span: &mut Option<(u64, u64)>, events: &[Event]) {
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return };
    let (from, to) = span.unwrap_or((first.time_ns, last.time_ns));
    *span = Some((from.min(first.time_ns), to.max(last.time_ns)));
}

/// The accounting as the sink of an import.
struct Accounting<'a, R> {
    accountant: Accountant<R>,
    /// Assignment of events to VMs, if any.
    assign: Option<&'a mut Assign<'a>>,
    /// What is not assigned yet.
    ahead: Ahead,
    /// Names of the threads that events are assigned to; `None` where VMs have no names that those could hide.
    threads: Option<ConvertedThreads>,
    span: Option<(u64, u64)>,
}

/// The threads that events are assigned to have the names of the recorded ones.
#[derive(Debug, Default)]
struct ConvertedThreads {
    names: HashMap<u32, String>,
    /// By recorded thread.
    assigned: HashMap<u32, Vec<u32>>,
}

impl ConvertedThreads {
    fn name<R: RowSink>(&mut self, tid: u32, name: &str, accountant: &mut Accountant<R>) {
        for assigned in self.assigned.get(&tid).into_iter().flatten() {
            accountant.thread_name(*assigned, name);
        }
        self.names.insert(tid, name.to_owned());
    }

    fn moved<R: RowSink>(&mut self, from: &Event, to: &Event, accountant: &mut Accountant<R>) {
        self.pair(from.tid, to.tid, accountant);
        if let (EventKind::Switch { next_tid: from, .. }, EventKind::Switch { next_tid: to, .. }) =
            (from.kind, to.kind)
        {
            self.pair(from, to, accountant);
        }
    }

    fn pair<R: RowSink>(&mut self, from: u32, to: u32, accountant: &mut Accountant<R>) {
        let assigned = self.assigned.entry(from).or_default();
        if assigned.contains(&to) {
            return;
        }
        assigned.push(to);
        if let Some(name) = self.names.get(&from) {
            accountant.thread_name(to, name);
        }
    }
}

impl<R: RowSink> Accounting<'_, R> {
    fn go_on(&mut self) -> Result<(), Error> {
        if self.accountant.sink_mut().has_failed() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// An event for the VM that it is assigned to.
    fn assigned(&mut self, event: &Event) {
        let Accounting { accountant, assign: Some(assign), threads, .. } = self else { return };
        assign(event, &mut |event, placed| {
            if let Some(threads) = threads {
                threads.moved(event, placed, accountant);
            }
            accountant.event(placed);
        });
    }

    /// All that was held back.
    fn assign_rest(&mut self) {
        std::mem::take(&mut self.ahead).finish(&mut |event| self.assigned(event));
    }
}

impl<R: RowSink> Sink for &mut Accounting<'_, R> {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        extend(&mut self.span, events);
        self.accountant.sink_mut().events(events);
        match self.assign {
            None => self.accountant.events(events),
            Some(_) => {
                let mut ahead = std::mem::take(&mut self.ahead);
                events
                    .iter()
                    .for_each(|event| ahead.take(event, &mut |event| self.assigned(event)));
                self.ahead = ahead;
            }
        }
        self.go_on()
    }

    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.accountant.counted(row);
        self.go_on()
    }

    fn accessed(&mut self, row: &AccessRow) -> Result<(), Error> {
        self.accountant.accessed(row);
        self.go_on()
    }

    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.accountant.sink_mut().sample(sample);
        self.go_on()
    }

    fn thread_name(&mut self, _pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.accountant.sink_mut().thread_name(tid, name);
        match (&self.assign, &mut self.threads) {
            (None, _) => self.accountant.thread_name(tid, name),
            (_, Some(threads)) => threads.name(tid, name, &mut self.accountant),
            _ => {}
        }
        Ok(())
    }

    fn described(&mut self, recording: &Facts) -> Result<(), Error> {
        if self.assign.is_none() {
            self.accountant.guests(&recording.together.guests);
        }
        self.accountant.sink_mut().described(recording);
        Ok(())
    }
}
