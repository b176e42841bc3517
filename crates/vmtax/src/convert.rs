//! A recording -> rows: the importer and the accounting, put together.

use vmtax_analyse::{Accountant, RowSink};
use vmtax_capture::import::Options;
use vmtax_capture::{Error, Sink, Source, pipeline};
use vmtax_events::{CallRow, Event, ExitRow, Losses, Recording as Facts, Sample};
use vmtax_lab::Windows;
use vmtax_store::Run;

use crate::cli::ReadingArgs;
use crate::exit::{Code, Fault};
use crate::input::{Bytes, Recording, run_fault};
use crate::progress::Progress;

/// Takes what a recording becomes.
pub(crate) trait Rows: RowSink {
    /// The single events, before they are counted.
    fn events(&mut self, events: &[Event]) {
        let _ = events;
    }

    /// A measured value.
    fn sample(&mut self, sample: &Sample) {
        let _ = sample;
    }

    /// A node of a call tree.
    fn call(&mut self, row: &CallRow) {
        let _ = row;
    }

    /// What the recording says of itself, before its end.
    fn described(&mut self, facts: &Facts) {
        let _ = facts;
    }

    /// Something could not be written: reading on is no use. The sink keeps the error.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Reads a recording into `rows`. Returns it with the recording's facts and losses.
///
/// # Errors
/// When nothing can be read of the recording. When `rows` failed the answer is `Ok`: look there.
pub(crate) fn run<R: Rows>(
    recording: Recording,
    reading: &ReadingArgs,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    run_with(
        recording,
        reading,
        Accounting { accountant: accountant(reading, rows), windows: None },
    )
}

/// As [`run`], for a recording of the lab: its events are told apart by operation, and VMs are what `names` says. `windows`
/// then knows what was seen of each.
pub(crate) fn run_lab<R: Rows>(
    recording: Recording,
    reading: &ReadingArgs,
    names: &[(u32, String)],
    windows: &mut Windows,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    run_placed(recording, reading, Placed { names, place: &mut |event| windows.place(event) }, rows)
}

/// Whose events they are to be, where not those of the threads that they happened on.
pub(crate) struct Placed<'a> {
    /// VMs and their names.
    pub(crate) names: &'a [(u32, String)],
    /// The event as its VM's; `None` when it is nobody's.
    pub(crate) place: &'a mut Placing<'a>,
}

/// Moves an event to a VM.
pub(crate) type Placing<'a> = dyn FnMut(&Event) -> Option<Event> + 'a;

/// As [`run`], with events moved to other VMs.
pub(crate) fn run_placed<R: Rows>(
    recording: Recording,
    reading: &ReadingArgs,
    placed: Placed<'_>,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let mut accountant = accountant(reading, rows);
    for (vm, name) in placed.names {
        accountant.thread_name(*vm, name);
    }
    run_with(recording, reading, Accounting { accountant, windows: Some(placed.place) })
}

/// Counts the single events of a run anew.
pub(crate) fn of_events<R: Rows>(
    run: &Run,
    reading: &ReadingArgs,
    rows: R,
) -> anyhow::Result<Converted<R>> {
    let manifest = run.manifest();
    let choice = &manifest.recording.choice;
    let options =
        vmtax_analyse::Options { interval_ns: reading.interval_ns(), all_exits: choice.is_none() };
    let mut accountant = Accountant::new(options, rows);
    for vm in &manifest.recording.vms {
        accountant.thread_name(vm.id, &vm.name);
    }
    let each = &mut |events: &[Event]| {
        accountant.sink_mut().events(events);
        events.iter().for_each(|event| accountant.event(event));
    };
    let mut losses = run.read_events(each).map_err(|e| run_fault(&e))?.losses;
    let (rows, vms, unused) = accountant.finish();
    losses.merge(&unused);
    let note = manifest.recording.note_of_choice();
    let notes = manifest.losses.notes.iter().filter(|text| note.as_ref() != Some(*text));
    losses.notes.extend(notes.cloned());
    losses.notes.extend(choice.iter().map(|which| {
        format!("counted anew from the single events {which}: other exits are in no table, and how a vCPU's time divides is not known")
    }));
    let facts = Facts { vms, ..manifest.recording.clone() };
    Ok(Converted { rows, facts, losses })
}

fn accountant<R: Rows>(reading: &ReadingArgs, rows: R) -> Accountant<R> {
    Accountant::new(
        vmtax_analyse::Options { interval_ns: reading.interval_ns(), ..Default::default() },
        rows,
    )
}

fn run_with<R: Rows>(
    recording: Recording,
    reading: &ReadingArgs,
    mut accounting: Accounting<'_, R>,
) -> anyhow::Result<Converted<R>> {
    let Recording { name, format, bytes } = recording;
    let options = Options { isa: reading.isa.unwrap_or(vmtax_events::Isa::Unknown) };
    let result = match bytes {
        Bytes::File(file) => {
            let progress = Progress::new(vmtax_capture::source::ReadAt::len(&file));
            let watched = progress.watch(&file);
            pipeline::run(format, Source::Random(&watched), options, &mut accounting)
        }
        Bytes::Folder(folder) => {
            folder.read(|source| pipeline::run(format, source, options, &mut accounting))
        }
        Bytes::Stream(mut stream) => {
            pipeline::run(format, Source::Stream(&mut stream), options, &mut accounting)
        }
    };
    let (mut facts, mut losses) = match result {
        Ok(imported) => (imported.recording, imported.losses),
        Err(Error::Stopped) => (Facts::default(), Losses::default()),
        Err(error) => {
            let code = match error {
                Error::Io { .. } => Code::Input,
                Error::Vendor => Code::Usage,
                _ => Code::Data,
            };
            return Err(Fault::new(code, format!("{name}: {error}")).into());
        }
    };
    let (rows, vms, unused) = accounting.accountant.finish();
    losses.merge(&unused);
    facts.vms = vms;
    if let Some(emulator) = &reading.emulated {
        facts.emulated = Some(emulator.clone());
    }
    Ok(Converted { rows, facts, losses })
}

/// What a recording became.
pub(crate) struct Converted<R> {
    pub(crate) rows: R,
    pub(crate) facts: Facts,
    pub(crate) losses: Losses,
}

/// The accounting as the sink of an import.
struct Accounting<'a, R> {
    accountant: Accountant<R>,
    /// A recording of the lab: events outside of a window are nobody's.
    windows: Option<&'a mut Placing<'a>>,
}

impl<R: Rows> Accounting<'_, R> {
    fn go_on(&mut self) -> Result<(), Error> {
        if self.accountant.sink_mut().has_failed() { Err(Error::Stopped) } else { Ok(()) }
    }
}

impl<R: Rows> Sink for &mut Accounting<'_, R> {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        self.accountant.sink_mut().events(events);
        match &mut self.windows {
            None => events.iter().for_each(|event| self.accountant.event(event)),
            Some(place) => {
                for event in events.iter().filter_map(place) {
                    self.accountant.event(&event);
                }
            }
        }
        self.go_on()
    }

    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.accountant.counted(row);
        self.go_on()
    }

    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.accountant.sink_mut().sample(sample);
        self.go_on()
    }

    fn thread_name(&mut self, _pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        if self.windows.is_none() {
            self.accountant.thread_name(tid, name);
        }
        Ok(())
    }

    fn described(&mut self, recording: &Facts) -> Result<(), Error> {
        self.accountant.sink_mut().described(recording);
        Ok(())
    }
}
