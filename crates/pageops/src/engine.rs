//! Spreads operations on pages over queues of devices, and finishes them on the CPU if a device fails.
//!
//! ```text
//!   ops ──> batches ──> least loaded queue ──────────────> device ──> records ──> outcomes
//!                          │ all are full: wait, or the CPU             │ fault, status, lost
//!                          └───────────────> CPU <──────────────────────┘
//! ```
//!
//! The descriptors in flight are bounded by the size of a queue, and every wait has a timeout. If a record does not arrive in time, the engine
//! drains the queue and then repeats operations without a record on the CPU. A queue that does not drain is closed, and its operations are done
//! on the CPU. [`EngineStats`] counts operations and faults by kind.

mod batch;
mod dispatch;
mod job;
mod op;
mod pages;
mod speed;
mod stats;

use std::time::Duration;

pub use dispatch::Dispatcher;
pub use job::{OperationsJob, ThreadedEngine};
pub use op::{Op, OperationValue};
pub use pages::{PageEngine, RunOperations};
pub use speed::speeds;
pub use stats::{Choice, EngineStats, OperationOutcome, QueueStats, SeenFault};

/// Selection of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSpread {
    /// The one with the fewest bytes in flight; a queue on the memory's node counts half.
    LeastLoaded,
    /// Round robin.
    RoundRobin,
}

/// The backend of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendPolicy {
    /// The CPU.
    Cpu,
    /// Devices, while one is usable.
    Device,
    /// Devices for large work, the CPU for small work and while all queues are full.
    Auto,
}

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Backend of operations.
    pub policy: BackendPolicy,
    /// Selection of queues.
    pub spread: QueueSpread,
    /// Most operations in a batch.
    pub batch: u32,
    /// Most batches in flight in a queue.
    pub in_flight: u32,
    /// Bytes below which [`BackendPolicy::Auto`] uses the CPU.
    pub least_bytes: u64,
    /// Timeout of a batch, after which its queue is drained.
    pub patience: Duration,
    /// Timeout of a drain, after which the queue is closed.
    pub drain: Duration,
    /// Consecutive attempts at a full queue.
    pub retries: u32,
    /// NUMA node of the memory, if known.
    pub node: Option<u32>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            policy: BackendPolicy::Auto,
            spread: QueueSpread::LeastLoaded,
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
