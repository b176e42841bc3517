//! Adapters of benchmark programs: how each is run, and which parser of [`vmtax_capture::program`] reads its output.

mod own;
mod table;

pub use own::{Extract, OwnMetric};
pub(crate) use table::words;
pub use table::{ADAPTERS, Adapter};

/// The metric of every workload with the share of the processors that was busy while it ran; idle processors that poll are not.
pub const UTILISATION: &str = "utilisation";
