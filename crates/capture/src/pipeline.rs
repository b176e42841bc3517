//! An import on several threads: one reads, some decode ([`Options::threads`]), the caller's sorts and passes on.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use vmtax_events::{Event, ExitRow, Recording, Sample};

use crate::feed::Cut;
use crate::import::{Format, Imported, Options, Source, import};
use crate::order::Sorter;
use crate::{Error, Feed, Sink};

/// Events per message: few enough to stay in a core's cache.
const BATCH: usize = 2048;
/// Messages under way.
const QUEUE: usize = 8;

enum Message {
    /// Events, and the releases among them.
    Events(Vec<Event>, Vec<Cut>),
    Counted(Box<ExitRow>),
    Sample(Box<Sample>),
    ThreadName(u32, u32, String),
    Described(Box<Recording>),
}

/// Imports a source into a sink, in time order. Decoding runs on a separate thread.
///
/// # Errors
/// The importer's error, or [`Error::Stopped`] when the sink stopped (it knows why).
pub fn run<S: Sink>(
    format: Format,
    source: Source<'_>,
    options: Options,
    sink: S,
) -> Result<Imported, Error> {
    let (sender, receiver) = sync_channel(QUEUE);
    let (give_back, spare) = sync_channel(QUEUE + 2);
    thread::scope(|scope| {
        let importer = scope.spawn(move || {
            let mut feed =
                Batches { batch: Vec::with_capacity(BATCH), cuts: Vec::new(), sender, spare };
            let imported = import(format, source, options, &mut feed)?;
            feed.flush()?;
            Ok(imported)
        });
        let sorted = sort(receiver, &give_back, Sorter::new(sink));
        let imported = match importer.join() {
            Ok(result) => result,
            // A panic of the importer is a defect; propagate it to the caller's thread.
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // When the sink stopped, the importer saw a closed channel: the sink's word counts.
        let sorter = sorted?;
        let mut imported: Imported = imported?;
        let (_, out_of_order) = sorter.finish()?;
        imported.losses.out_of_order += out_of_order;
        Ok(imported)
    })
}

fn sort<S: Sink>(
    receiver: Receiver<Message>,
    give_back: &SyncSender<Vec<Event>>,
    mut sorter: Sorter<S>,
) -> Result<Sorter<S>, Error> {
    for message in receiver {
        match message {
            Message::Events(mut events, cuts) => {
                sorter.block(&mut events, &cuts)?;
                while let Some(spare) = sorter.take_spare() {
                    // A full queue of spares is no loss: the importer makes a new one.
                    let _ = give_back.try_send(spare);
                }
            }
            Message::Counted(row) => sorter.counted(*row)?,
            Message::Sample(sample) => sorter.sample(*sample)?,
            Message::ThreadName(pid, tid, name) => sorter.thread_name(pid, tid, &name)?,
            Message::Described(recording) => sorter.described(&recording)?,
        }
    }
    Ok(sorter)
}

/// The importer's end of the channel.
struct Batches {
    batch: Vec<Event>,
    /// The releases among the events of the batch.
    cuts: Vec<Cut>,
    sender: SyncSender<Message>,
    spare: Receiver<Vec<Event>>,
}

impl Batches {
    fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() && self.cuts.is_empty() {
            return Ok(());
        }
        let next = self.empty();
        let full = std::mem::replace(&mut self.batch, next);
        let cuts = std::mem::take(&mut self.cuts);
        self.send(Message::Events(full, cuts))
    }

    fn empty(&mut self) -> Vec<Event> {
        match self.spare.try_recv() {
            Ok(spare) => spare,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Vec::with_capacity(BATCH),
        }
    }

    fn send(&mut self, message: Message) -> Result<(), Error> {
        self.sender.send(message).map_err(|_| Error::Stopped)
    }
}

impl Feed for Batches {
    #[inline]
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.batch.push(event);
        if self.batch.len() < BATCH { Ok(()) } else { self.flush() }
    }

    fn block(&mut self, events: &mut Vec<Event>, cuts: &[Cut]) -> Result<(), Error> {
        self.flush()?;
        let next = self.empty();
        self.send(Message::Events(std::mem::replace(events, next), cuts.to_vec()))
    }

    /// It travels with the next batch: recordings release far more often than a message is worth.
    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        let at = self.batch.len();
        match self.cuts.last_mut() {
            Some(last) if last.at == at => last.release = last.release.max(time_ns),
            _ => self.cuts.push(Cut { at, release: time_ns }),
        }
        Ok(())
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        self.flush()?;
        self.send(Message::Counted(Box::new(row)))
    }

    fn sample(&mut self, sample: Sample) -> Result<(), Error> {
        self.flush()?;
        self.send(Message::Sample(Box::new(sample)))
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.flush()?;
        self.send(Message::ThreadName(pid, tid, name.to_owned()))
    }

    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        self.flush()?;
        self.send(Message::Described(Box::new(recording.clone())))
    }
}
