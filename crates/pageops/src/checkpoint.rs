//! Checkpoints: a machine's memory in one file, complete or as a difference to another checkpoint.
//!
//! [`Writer`] takes pages in ascending order and publishes a file only when it is complete and synced.
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

pub use cycles::Counted;
pub use error::{Error, Reason};
pub use format::{Id, Kind, VERSION};
pub use latest::Latest;
pub use meter::{Cost, Costs, Phase};
pub use reader::{Checkpoint, RegionInfo, Target, Totals, children};
pub use writer::{Accelerate, Finished, Options, Summary, Writer};
