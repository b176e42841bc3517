//! The two hand-overs of an import: importer -> sorter ([`Feed`]) and sorter -> analysis ([`Sink`]).

use vmtax_events::{Event, ExitRow, Recording};

use crate::Error;

/// Takes what an importer decodes, in the order of the file.
pub trait Feed {
    /// One event. Events of one CPU come in the order they were recorded; CPUs may interleave in any way
    /// until [`Feed::release`] is called.
    fn event(&mut self, event: Event) -> Result<(), Error>;

    /// No event earlier than or at `time_ns` will come any more: whatever is that old may be passed on.
    fn release(&mut self, time_ns: u64) -> Result<(), Error>;

    /// Exits that the recorder counted already (a bpftrace map).
    fn counted(&mut self, row: ExitRow) -> Result<(), Error>;

    /// The name of a thread; `pid` is its process or [`vmtax_events::NO_PID`]. Hostile text.
    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error>;

    /// What the recording says of itself, as soon as the importer knows it: whoever is stopped in the middle
    /// has it then. The end of the import may know more.
    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        let _ = recording;
        Ok(())
    }
}

/// Takes events in time order.
pub trait Sink {
    /// Events in time order, later than or at the time of all events before. (An event that arrived too
    /// late to be sorted in is delivered all the same, and counted as out of order by the sorter.)
    fn events(&mut self, events: &[Event]) -> Result<(), Error>;

    /// Exits that the recorder counted already.
    fn counted(&mut self, row: &ExitRow) -> Result<(), Error>;

    /// The name of a thread. Hostile text.
    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error>;

    /// What the recording says of itself, as far as it is known.
    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        let _ = recording;
        Ok(())
    }
}
