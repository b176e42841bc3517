//! The two hand-overs of an import: importer -> sorter ([`Feed`]) and sorter -> analysis ([`Sink`]).

use std::ops::Range;
use std::sync::Arc;

use vmtax_events::{AccessRow, Event, ExitRow, Recording, Sample};

use crate::Error;

/// Receives decoded events in the order of the file.
pub trait Feed {
    /// Whether it wants samples of a profile; then a recording without tracepoints is accepted.
    const WANTS_PROFILE: bool = false;

    /// One event. Events of one CPU come in the order they were recorded; CPUs may interleave in any way
    /// until [`Feed::release`] is called.
    fn event(&mut self, event: Event) -> Result<(), Error>;

    /// No event earlier than or at `time_ns` will come any more: whatever is that old may be passed on.
    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        let _ = time_ns;
        Ok(())
    }

    /// Many events at once, with the releases between them: the same as one after the other. They are in the order of time
    /// between two releases. The vector may be taken, and another left in its place.
    fn block(&mut self, events: &mut Vec<Event>, cuts: &[Cut]) -> Result<(), Error> {
        one_by_one(self, events, cuts)
    }

    /// Exits that the recorder counted already (a bpftrace map).
    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        let _ = row;
        Ok(())
    }

    /// Accesses that the recorder counted already (a table of `perf kvm stat report --event=ioport`).
    fn accessed(&mut self, row: AccessRow) -> Result<(), Error> {
        let _ = row;
        Ok(())
    }

    /// A measured value (a table of benchmark results).
    fn sample(&mut self, sample: Sample) -> Result<(), Error> {
        let _ = sample;
        Ok(())
    }

    /// The name of a thread; `pid` is its process or [`vmtax_events::NO_PID`]. Hostile text.
    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        let _ = (pid, tid, name);
        Ok(())
    }

    /// Facts of the recording, as soon as the importer knows them: an import that is stopped early
    /// has it then. The end of the import may know more.
    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        let _ = recording;
        Ok(())
    }

    /// A part of a profile. Hostile names.
    fn profiled(&mut self, part: ProfileRecord<'_>) -> Result<(), Error> {
        let _ = part;
        Ok(())
    }
}

/// A release among events: [`Feed::release`] before the event of index `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Index of the event behind it.
    pub at: usize,
    /// The time that is released.
    pub release: u64,
}

/// Feeds events and releases one after the other.
pub(crate) fn one_by_one<F: Feed + ?Sized>(
    feed: &mut F,
    events: &[Event],
    cuts: &[Cut],
) -> Result<(), Error> {
    let mut from = 0;
    for cut in cuts {
        for event in events.get(from..cut.at).unwrap_or_default() {
            feed.event(*event)?;
        }
        feed.release(cut.release)?;
        from = cut.at;
    }
    for event in events.get(from..).unwrap_or_default() {
        feed.event(*event)?;
    }
    Ok(())
}

/// A record of a profile.
#[derive(Clone, Copy, Debug)]
pub enum ProfileRecord<'a> {
    /// A thread was found running.
    Sample {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// When, ns; 0 where it is not known.
        time_ns: u64,
        /// Events that it represents.
        period: u64,
        /// How the processor ran.
        mode: Mode,
        /// The addresses, innermost first. Those from [`ProfileRecord::MODES`] on say how the ones behind them ran.
        addresses: &'a [u64],
    },
    /// A file, or the kernel, was mapped.
    Mapping {
        /// Into this process; [`vmtax_events::NO_PID`] for the kernel.
        pid: u32,
        /// When, ns; 0 where it is not known.
        time_ns: u64,
        /// First address.
        start: u64,
        /// Bytes.
        len: u64,
        /// Place in the file.
        offset: u64,
        /// Name of the file.
        name: &'a str,
    },
    /// A thread began, and maybe a process with it as the copy of another.
    Fork {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The process that it is a copy of, or the same.
        parent: u32,
        /// The thread that began it.
        parent_tid: u32,
        /// When, ns; 0 where it is not known.
        time_ns: u64,
    },
    /// A thread has this name from now on.
    Name {
        /// The thread.
        tid: u32,
        /// When, ns; 0 where it is not known.
        time_ns: u64,
        /// Its name.
        name: &'a str,
    },
}

impl ProfileRecord<'_> {
    /// Values from here on are markers, not addresses (PERF_CONTEXT_MAX in Linux `include/uapi/linux/perf_event.h`).
    pub const MODES: u64 = -4095i64 as u64;
}

/// How the processor ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// In the kernel.
    Kernel,
    /// In a program.
    User,
    /// In a guest.
    Guest,
    /// It is not said, or somewhere else.
    Unknown,
}

impl Mode {
    /// Of a word of a call chain that is from [`ProfileRecord::MODES`] on.
    pub fn of_context(word: u64) -> Mode {
        // PERF_CONTEXT_*
        match (word as i64).wrapping_neg() {
            128 => Mode::Kernel,
            512 => Mode::User,
            2048 | 2176 | 2560 => Mode::Guest,
            _ => Mode::Unknown,
        }
    }
}

/// Takes events in time order.
pub trait Sink {
    /// Events in time order, later than or at the time of all events before. (An event that arrived too
    /// late to be sorted in is delivered all the same, and counted as out of order by the sorter.)
    fn events(&mut self, events: &[Event]) -> Result<(), Error>;

    /// The same of a part of a vector, which may be kept.
    fn shared(&mut self, events: &Arc<Vec<Event>>, part: Range<usize>) -> Result<(), Error> {
        self.events(events.get(part).unwrap_or_default())
    }

    /// A vector that was kept and can be filled again.
    fn room(&mut self) -> Option<Vec<Event>> {
        None
    }

    /// Exits that the recorder counted already.
    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        let _ = row;
        Ok(())
    }

    /// Accesses that the recorder counted already.
    fn accessed(&mut self, row: &AccessRow) -> Result<(), Error> {
        let _ = row;
        Ok(())
    }

    /// A measured value.
    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        let _ = sample;
        Ok(())
    }

    /// The name of a thread. Hostile text.
    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        let _ = (pid, tid, name);
        Ok(())
    }

    /// Facts of the recording known so far.
    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        let _ = recording;
        Ok(())
    }
}
