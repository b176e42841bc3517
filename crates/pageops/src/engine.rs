//! Thousands of operations on pages, spread over queues of devices, finished whatever happens.
//!
//! ```text
//!   ops ──> batches ──> queue with the least under way ──> device ──> records ──> outcomes
//!                          │ none has room: wait, or the CPU            │ fault, status, lost
//!                          └───────────────> CPU <──────────────────────┘
//! ```
//!
//! What is under way in a queue is bounded by what the queue holds. Every wait has a bound. A record that does not
//! come within it makes the engine drain the queue: once that is through, what has no record is done again on the
//! CPU. A queue that does not drain is closed and taken out, and its operations are done on the CPU. Faults are
//! counted by kind, and [`Stats`] says what was done where and why.

mod batch;
mod dispatch;
mod job;
mod op;
mod pages;
mod speed;
mod stats;

use std::time::Duration;

pub use dispatch::Dispatcher;
pub use job::{Engine, Job};
pub use op::{Op, Value};
pub use pages::{PageEngine, Run};
pub use speed::speeds;
pub use stats::{Choice, Fault, Outcome, QueueStats, Stats};

/// How queues are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The one with the fewest bytes under way; a queue of the memory's node counts as half as full.
    LeastLoaded,
    /// One after the other.
    RoundRobin,
}

/// Who does an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The CPU.
    Cpu,
    /// Devices, as long as one is left.
    Device,
    /// Devices for what is worth handing over, the CPU for little work and while all queues are full.
    Auto,
}

/// How an engine works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who does operations.
    pub policy: Policy,
    /// How queues are chosen.
    pub spread: Spread,
    /// Operations in a batch, at most.
    pub batch: u32,
    /// Batches under way in a queue, at most.
    pub in_flight: u32,
    /// Bytes at a time below which [`Policy::Auto`] takes the CPU.
    pub least_bytes: u64,
    /// How long a batch may take before its queue is drained.
    pub patience: Duration,
    /// How long a drain may take before the queue is given up.
    pub drain: Duration,
    /// Tries of a queue that says it is full, in a row.
    pub retries: u32,
    /// Node of the memory worked on, if known.
    pub node: Option<u32>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: Policy::Auto,
            spread: Spread::LeastLoaded,
            batch: 32,
            in_flight: 16,
            least_bytes: 64 << 10,
            patience: Duration::from_millis(500),
            drain: Duration::from_millis(500),
            retries: 1000,
            node: None,
        }
    }
}
