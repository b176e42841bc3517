//! What counts for a guest: the host's events, behind one trait.
//!
//! [`virtual_time`] is a PMU in software with costs and faults as wanted, [`perf_event`] the kernel's, [`step`] counts
//! a program that runs step by step. None of them knows of guests' registers.

#[cfg(target_os = "linux")]
pub mod perf_event;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod step;
#[cfg(target_os = "linux")]
pub(crate) mod sys;
pub mod virtual_time;

use serde::{Deserialize, Serialize};

use crate::error::Trouble;
use crate::event::{Counter, Event, Programme};

/// Names a host's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// The event that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// For this counter.
    pub counter: Counter,
    /// What it counts.
    pub programme: Programme,
    /// It reports an overflow after this many, at least one.
    pub left: u64,
}

/// What an event has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Since it was created; nothing sets it back.
    pub count: u64,
    /// Nanoseconds for which it was to count.
    pub enabled: u64,
    /// Nanoseconds for which it did: fewer if the host shares its hardware counter.
    pub running: u64,
}

/// Accesses of a processor's MSRs. RDPMC is a read of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsrAccesses {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl MsrAccesses {
    /// All of them.
    pub fn total(self) -> u64 {
        self.reads + self.writes
    }
}

impl std::ops::AddAssign for MsrAccesses {
    fn add_assign(&mut self, other: MsrAccesses) {
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// Counts for one vCPU.
pub trait Host {
    /// A new event that counts from now on.
    fn create(&mut self, request: &Request) -> Result<EventId, Trouble>;
    /// Has an event count again. One that was taken away starts anew if it can.
    fn enable(&mut self, id: EventId) -> Result<(), Trouble>;
    /// Has an event stand still.
    fn disable(&mut self, id: EventId) -> Result<(), Trouble>;
    /// What an event has counted.
    fn read(&mut self, id: EventId) -> Result<Reading, Trouble>;
    /// Has an event report an overflow after this many more.
    fn set_left(&mut self, id: EventId, left: u64) -> Result<(), Trouble>;
    /// Ends an event.
    fn close(&mut self, id: EventId);
    /// An event that overflowed and has not been returned yet.
    fn take_overflow(&mut self) -> Option<EventId>;
    /// An event that was throttled and has not been returned yet.
    fn take_throttled(&mut self) -> Option<EventId>;
    /// Whether it can count this at all, or why not.
    fn probe(&self, event: Event) -> Result<(), Trouble>;
    /// How many events it can count at a time, if it knows.
    fn capacity(&self) -> Option<usize>;

    /// Whether its events stand still by themselves while the vCPU's thread is off the processor, as the kernel's events of
    /// a thread do. If not they are disabled at the end of a slice and enabled in the next.
    fn saves_at_switch(&self) -> bool {
        false
    }

    /// Whether it gives hardware counters to guests: what [`crate::Policy::Mediated`] needs.
    fn gives_counters(&self) -> bool {
        false
    }

    /// A hardware counter of the guest's own, programmed as wanted. Until it is closed the host's own events do without.
    fn claim(&mut self, _: &Request) -> Result<EventId, Trouble> {
        Err(Trouble::NoSuchEvent)
    }

    /// The guest's counters were saved and loaded again, which took accesses of MSRs.
    fn world_switched(&mut self, _: MsrAccesses) {}
}
