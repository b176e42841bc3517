//! What goes wrong before a guest runs, and what happens to its counters while it does.

use crate::event::{Counter, Event};

/// Why there is no virtual PMU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No processor is like that.
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
    /// The host keeps its counters to itself.
    #[error(
        "a mediated PMU is given the host's counters, which takes the kernel: this host does not give them;          choose another policy"
    )]
    Mediated,
    /// CPUID would promise an event that the host lacks. The model can say that it is unavailable.
    #[error("the model has the event {event:?}: {trouble}")]
    Event {
        /// Which.
        event: Event,
        /// Why the host does not count it.
        trouble: Trouble,
    },
    /// A state saved by a newer library.
    #[error("the state is of version {found}; this library knows versions up to {known}")]
    NewerState {
        /// The state's.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// A state that no guest can have brought about.
    #[error("the state is damaged: {0}")]
    State(&'static str),
}

/// #GP(0): the architecture's answer to an access that it does not know or allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("general protection")]
pub struct GeneralProtection;

/// What a host does to a counter. The guest sees no more of it than the architecture lets it see: a counter that
/// stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Trouble {
    /// May not count this (EACCES, EPERM).
    #[error("the host does not allow this event; see kernel.perf_event_paranoid")]
    Denied,
    /// Cannot count this (ENOENT, EOPNOTSUPP, EINVAL, ENODEV).
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
    /// The host took the hardware counter for something else: a pinned event in error state.
    #[error("the host took the hardware counter away")]
    Taken,
    /// The event has no hardware counter some of the time.
    #[error("the host shares the hardware counter with other events")]
    Multiplexed,
    /// The host stopped the event because it interrupted too often.
    #[error("the host throttled the event")]
    Throttled,
    /// Another error number.
    #[error("error {0} of the host")]
    Other(i32),
}

/// Something that happened to a counter since the last time the VMM asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which counter.
    pub counter: Counter,
    /// What.
    pub trouble: Trouble,
    /// How many times.
    pub times: u64,
}
