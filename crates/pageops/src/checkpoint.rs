//! Checkpoints: a machine's memory in one file, whole or as what changed since another checkpoint.
//!
//! [`Writer`] takes pages in ascending order and leaves a file that appears under its name only when it is whole
//! and on the disk. [`Checkpoint`] opens one with its parents and checks everything it gives. The format is
//! docs/checkpoint.md. Nothing here knows of QEMU: device state and the machine's description are bytes that are carried along.

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
