//! Errors of creating a PMU, and troubles of its counters while the guest runs.

use crate::event::{Counter, PmuEvent};

/// Why a virtual PMU cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No processor has such a PMU.
    #[error("no PMU is like this model: {0}")]
    Model(&'static str),
    /// CPUID would promise counters that the host lacks.
    #[error("the model has {model} counters and the host {host}")]
    Counters {
        /// Counters of the model.
        model: usize,
        /// Counters of the host.
        host: usize,
    },
    /// The host does not give its counters to guests.
    #[error(
        "a mediated PMU is given the host's counters, which takes the kernel: this host does not give them;          choose another policy"
    )]
    Mediated,
    /// CPUID would promise an event that the host lacks. The model can mark it as unavailable.
    #[error("the model has the event {event:?}: {trouble}")]
    Event {
        /// The event.
        event: PmuEvent,
        /// Why the host does not count it.
        trouble: Trouble,
    },
    /// A state saved by a newer library.
    #[error("the state is of version {found}; this library knows versions up to {known}")]
    NewerState {
        /// Version of the state.
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// A state that no guest can have produced.
    #[error("the state is damaged: {0}")]
    State(&'static str),
}

/// #GP(0): the access is unknown or not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("general protection")]
pub struct GeneralProtection;

/// A problem of the host with a counter. The guest only sees that the counter does not advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Trouble {
    /// Permission denied (EACCES, EPERM).
    #[error("the host does not allow this event; see kernel.perf_event_paranoid")]
    Denied,
    /// The event is not supported (ENOENT, EOPNOTSUPP, EINVAL, ENODEV).
    #[error("the host cannot count this event")]
    NoSuchEvent,
    /// No more open files (EMFILE, ENFILE).
    #[error("the process has too many open files; raise its limit")]
    TooManyFiles,
    /// No memory for its buffer (EPERM of mmap, ENOMEM).
    #[error("no memory for the event's buffer; see kernel.perf_event_mlock_kb")]
    NoMemory,
    /// The vCPU's thread has ended (ESRCH).
    #[error("the vCPU's thread has ended")]
    ThreadGone,
    /// The hardware counter was taken away: a pinned event in error state.
    #[error("the host took the hardware counter away")]
    Taken,
    /// The event is multiplexed: it has a hardware counter only part of the time.
    #[error("the host shares the hardware counter with other events")]
    Multiplexed,
    /// The event is throttled, because it interrupted too often.
    #[error("the host throttled the event")]
    Throttled,
    /// Another error number.
    #[error("error {0} of the host")]
    Other(i32),
}

/// A trouble of a counter since the VMM last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The counter.
    pub counter: Counter,
    /// The trouble.
    pub trouble: Trouble,
    /// Number of occurrences.
    pub times: u64,
}
