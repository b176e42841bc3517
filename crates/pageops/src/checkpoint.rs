//! Checkpoints: a machine's memory in one file, complete or as a difference to another checkpoint.
//!
//! [`CheckpointWriter`] takes pages in ascending order and publishes a file only when it is complete and synced.
//! [`Checkpoint`] opens one with its parents and verifies everything that it returns. The format is
//! docs/checkpoint-format.md. QEMU is not known here: device state and the machine's description are opaque bytes.

mod cycles;
mod disk;
mod error;
mod format;
mod latest;
mod meter;
mod reader;
mod trial;
mod writer;

pub use cycles::CycleKind;
pub use error::{DamageReason, Error};
pub use format::{CheckpointId, RunKind, VERSION};
pub use latest::Latest;
pub use meter::{CheckpointCosts, Phase, PhaseCost};
pub use reader::{Checkpoint, RegionInfo, RestoreTarget, Totals, children};
pub use writer::{Accelerate, CheckpointOptions, CheckpointWriter, FinishedCheckpoint, Summary};
