//! The host's events, which count for a guest, behind one trait.
//!
//! [`virtual_time`] is a PMU in software with configurable costs and faults, [`perf_event`] uses the kernel's events, [`step`] counts a
//! single-stepped program. None of them knows a guest's registers.

#[cfg(target_os = "linux")]
pub mod perf_event;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod step;
#[cfg(target_os = "linux")]
pub(crate) mod sys;
pub mod virtual_time;

use serde::{Deserialize, Serialize};

use crate::error::Trouble;
use crate::event::{Counter, PmuEvent, Programme};

/// Identifies a host's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// A request for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// The guest's counter.
    pub counter: Counter,
    /// Event and modes.
    pub programme: Programme,
    /// Events until it reports an overflow, at least one.
    pub left: u64,
}

/// The reading of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventReading {
    /// Count since it was created; it is never reset.
    pub count: u64,
    /// Time enabled, ns.
    pub enabled: u64,
    /// Time running, ns: less than enabled if the host multiplexes the event.
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
    /// Reads and writes.
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

/// The events of one vCPU.
pub trait EventHost {
    /// Creates an event, enabled.
    fn create(&mut self, request: &EventRequest) -> Result<EventId, Trouble>;
    /// Enables an event. One that lost its counter starts again if possible.
    fn enable(&mut self, id: EventId) -> Result<(), Trouble>;
    /// Disables an event.
    fn disable(&mut self, id: EventId) -> Result<(), Trouble>;
    /// The reading of an event.
    fn read(&mut self, id: EventId) -> Result<EventReading, Trouble>;
    /// Sets the number of events until the next overflow.
    fn set_left(&mut self, id: EventId, left: u64) -> Result<(), Trouble>;
    /// Closes an event.
    fn close(&mut self, id: EventId);
    /// The next event with an unreported overflow.
    fn take_overflow(&mut self) -> Option<EventId>;
    /// The next event with an unreported throttling.
    fn take_throttled(&mut self) -> Option<EventId>;
    /// Whether it supports an event, or why not.
    fn probe(&self, event: PmuEvent) -> Result<(), Trouble>;
    /// Number of events that can count at the same time, if known.
    fn capacity(&self) -> Option<usize>;

    /// Whether its events stop by themselves while the vCPU's thread is off the processor, as the kernel's per-thread events do. If
    /// not, they are disabled at the end of a slice and enabled in the next.
    fn saves_at_switch(&self) -> bool {
        false
    }

    /// Whether it gives hardware counters to guests: what [`crate::Policy::Mediated`] needs.
    fn gives_counters(&self) -> bool {
        false
    }

    /// Gives a hardware counter to the guest, programmed. Until it is closed, host events cannot use it.
    fn claim(&mut self, _: &EventRequest) -> Result<EventId, Trouble> {
        Err(Trouble::NoSuchEvent)
    }

    /// Accounts for MSR accesses that saved and loaded the guest's counters.
    fn world_switched(&mut self, _: MsrAccesses) {}
}
