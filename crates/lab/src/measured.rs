//! What was measured of an operation.

use vmtax_guest::order::{Counting, Mapping};

use crate::profile::Profile;

/// An operation that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its VM in the recording.
    pub vm: u32,
    /// Which operation.
    pub name: &'static str,
    /// 1 or 2.
    pub level: u8,
    /// Operations in a batch.
    pub count: u32,
    /// Instructions of one operation, by batch; empty when waiting is part of it.
    pub paths: Vec<f64>,
    /// What the guest's virtual PMU did in these batches, if it has one.
    pub pmu: Option<Counting>,
    /// What it did with memory, if it is about memory.
    pub memory: Option<Memory>,
    /// Its call tree, or why there is none; absent where it was not asked for.
    pub profile: Option<Result<Profile, String>>,
    /// What this kernel lacks for it: it was not run, and that is no failure.
    pub missing: Option<String>,
    /// Why it was not measured.
    pub failure: Option<String>,
}

/// What a batch did with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Regions of 2 MiB that it touches.
    pub regions: u64,
    /// It comes from guest_memfd.
    pub guest_memfd: bool,
    /// By the VMM and KVM's counters.
    pub mapping: Mapping,
    /// Pages of 4 KiB, 2 MiB and 1 GiB that were mapped, by the recording.
    pub traced: Option<[u64; 3]>,
}
