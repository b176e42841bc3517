//! An import on several threads: some decode ([`ImportOptions::threads`]), one puts in order, the caller's analyses.
//!
//! ```text
//!  threads 0 or 1   caller: reads, puts in order, analyses; decodes while it would wait     [1: decodes]
//!  more             caller: analyses     importer: reads, puts in order, decodes too        threads: decode
//! ```
//!
//! As many threads as processors run, so that none waits for a processor that another one has.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use vmtax_events::{AccessRow, Event, ExitRow, Recording, Sample};

use crate::import::{ImportFormat, ImportOptions, ImportSource, Imported, import};
use crate::order::Sorter;
use crate::{Error, Sink};

/// Events per message: few enough to stay in a core's cache.
const BATCH: usize = 2048;
/// Fewer events are copied into a batch.
const FEW: usize = 512;
/// Events of larger vectors are copied too, as the vector would wait with each part of it.
const MANY: usize = 16 * BATCH;
/// Events that are brought from the caches of other cores at once.
const AT_ONCE: usize = 256;
/// Messages under way.
const QUEUE: usize = 8;

enum PipelineMessage {
    /// A part of a vector.
    Events(Arc<Vec<Event>>, Range<usize>),
    Counted(Box<ExitRow>),
    Accessed(Box<AccessRow>),
    Sample(Box<Sample>),
    ThreadName(u32, u32, String),
    Described(Box<Recording>),
}

/// Imports a source into a sink, in time order. Decoding and, if more than one thread decodes, sorting run on other threads.
///
/// # Errors
/// The importer's error, or [`Error::Stopped`] when the sink stopped (it knows why).
pub fn run<S: Sink>(
    format: ImportFormat,
    source: ImportSource<'_>,
    options: ImportOptions,
    sink: S,
) -> Result<Imported, Error> {
    if options.threads <= 1 {
        return in_turn(format, source, options, sink);
    }
    let (sender, receiver) = sync_channel(QUEUE);
    let (give_back, spare) = sync_channel(QUEUE + 2);
    thread::scope(|scope| {
        let importer = scope.spawn(move || {
            let batches = SortedBatches { batch: Vec::with_capacity(BATCH), sender, spare };
            let mut sorter = Sorter::new(batches);
            let imported = import(format, source, options, &mut sorter);
            let mut imported = match imported {
                Ok(imported) => imported,
                Err(error) => {
                    // What was put in order before is analysed, as without threads. An analysis that has stopped takes nothing.
                    let _ = sorter.into_sink().flush();
                    return Err(error);
                }
            };
            let (mut batches, out_of_order) = sorter.finish()?;
            batches.flush()?;
            imported.losses.out_of_order += out_of_order;
            Ok(imported)
        });
        let taken = take(receiver, &give_back, sink);
        let imported = match importer.join() {
            Ok(result) => result,
            // A panic of the importer is a defect; propagate it to the caller's thread.
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // When the sink stopped, the importer saw a closed channel: the sink's word counts.
        taken.and(imported)
    })
}

/// The import with its analysis on this thread.
fn in_turn<S: Sink>(
    format: ImportFormat,
    source: ImportSource<'_>,
    options: ImportOptions,
    sink: S,
) -> Result<Imported, Error> {
    let mut sorter = Sorter::new(Near(sink));
    let mut imported = import(format, source, options, &mut sorter)?;
    let (_, out_of_order) = sorter.finish()?;
    imported.losses.out_of_order += out_of_order;
    Ok(imported)
}

/// The sink of an analysis on the thread of the importer.
struct Near<S>(S);

impl<S: Sink> Sink for Near<S> {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        for few in events.chunks(AT_ONCE) {
            touch(few);
            self.0.events(few)?;
        }
        Ok(())
    }

    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.0.counted(row)
    }

    fn accessed(&mut self, row: &AccessRow) -> Result<(), Error> {
        self.0.accessed(row)
    }

    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.0.sample(sample)
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.0.thread_name(pid, tid, name)
    }

    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        self.0.described(recording)
    }
}

fn take<S: Sink>(
    receiver: Receiver<PipelineMessage>,
    give_back: &SyncSender<Arc<Vec<Event>>>,
    mut sink: S,
) -> Result<(), Error> {
    for message in receiver {
        match message {
            PipelineMessage::Events(events, part) => {
                for few in events.get(part).unwrap_or_default().chunks(AT_ONCE) {
                    touch(few);
                    sink.events(few)?;
                }
                // A full queue is no loss: the importer makes a new vector.
                let _ = give_back.try_send(events);
            }
            PipelineMessage::Counted(row) => sink.counted(&row)?,
            PipelineMessage::Accessed(row) => sink.accessed(&row)?,
            PipelineMessage::Sample(sample) => sink.sample(&sample)?,
            PipelineMessage::ThreadName(pid, tid, name) => sink.thread_name(pid, tid, &name)?,
            PipelineMessage::Described(recording) => sink.described(&recording)?,
        }
    }
    Ok(())
}

/// Brings events from the caches of other cores, all at once: one after the other the analysis would wait for each.
fn touch(events: &[Event]) {
    let sum = events.iter().fold(0, |sum, event| sum ^ event.time_ns);
    std::hint::black_box(sum);
}

/// The sorter's end of the channel.
struct SortedBatches {
    batch: Vec<Event>,
    sender: SyncSender<PipelineMessage>,
    spare: Receiver<Arc<Vec<Event>>>,
}

impl SortedBatches {
    fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let next = self.room().unwrap_or_else(|| Vec::with_capacity(BATCH));
        let full = std::mem::replace(&mut self.batch, next);
        let all = 0..full.len();
        self.send(PipelineMessage::Events(Arc::new(full), all))
    }

    fn send(&mut self, message: PipelineMessage) -> Result<(), Error> {
        self.sender.send(message).map_err(|_| Error::Stopped)
    }
}

impl Sink for SortedBatches {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        for events in events.chunks(BATCH) {
            self.batch.extend_from_slice(events);
            if self.batch.len() >= BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn shared(&mut self, events: &Arc<Vec<Event>>, part: Range<usize>) -> Result<(), Error> {
        if part.len() < FEW || events.len() > MANY {
            return self.events(events.get(part).unwrap_or_default());
        }
        self.flush()?;
        self.send(PipelineMessage::Events(Arc::clone(events), part))
    }

    fn room(&mut self) -> Option<Vec<Event>> {
        // The sorter may still have one that the analysis is done with.
        let mut room = self.spare.try_iter().find_map(|events| Arc::try_unwrap(events).ok())?;
        room.clear();
        Some(room)
    }

    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.flush()?;
        self.send(PipelineMessage::Counted(Box::new(row.clone())))
    }

    fn accessed(&mut self, row: &AccessRow) -> Result<(), Error> {
        self.flush()?;
        self.send(PipelineMessage::Accessed(Box::new(row.clone())))
    }

    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.flush()?;
        self.send(PipelineMessage::Sample(Box::new(sample.clone())))
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.flush()?;
        self.send(PipelineMessage::ThreadName(pid, tid, name.to_owned()))
    }

    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        self.flush()?;
        self.send(PipelineMessage::Described(Box::new(recording.clone())))
    }
}
