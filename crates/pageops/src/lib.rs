//! Operations on pages for checkpoint and live migration: is a page zero or one repeated word, do two pages
//! differ and where, checksums, copies, deltas, and passes that do several of these in one read.
//!
//! [`cpu`] does them with vectors of the processor, [`engine`] with devices, [`accel`] reads which. [`capi`] is the same
//! for C.

pub mod accel;
pub mod capi;
pub mod checkpoint;
pub mod cpu;
pub mod delta;
pub mod device;
pub mod engine;
pub mod process_memory;
pub mod speed;
pub mod xbzrle;

pub use cpu::{Cpu, PageFacts};

/// Bytes of a page. Operations take any length; checkpoints and scans count in these.
pub const PAGE: usize = 4096;
