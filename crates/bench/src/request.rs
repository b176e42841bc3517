//! A run of a matrix as the user asks for it.

use std::path::PathBuf;

use crate::plan::Shard;

/// Which part of a matrix to run.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    pub matrix: PathBuf,
    /// Continue a run that was stopped.
    pub resume: bool,
    /// Only these categories and workloads; all when empty.
    pub only: Vec<String>,
    /// Boot the emulated host of VMs of QEMU again, and replace its saved state.
    pub fresh: bool,
    /// Record all that the emulated host executes for each workload, for call trees.
    pub profile: bool,
    /// Functions of kernels whose instructions the call trees have.
    pub annotate: Vec<String>,
    /// Only this part of the workloads.
    pub shard: Option<Shard>,
}
