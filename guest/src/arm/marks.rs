//! As of x86: there are no marks that read the clock here, so a workload is not recorded.

use crate::Result;

/// None.
pub(crate) struct WorkloadMarks;

impl WorkloadMarks {
    pub(crate) fn new() -> Result<WorkloadMarks> {
        Err("what a workload executes is recorded on emulated hosts of x86 alone".to_owned())
    }

    pub(crate) fn record(&self, _on: bool) {}

    pub(crate) fn cycles(&self) -> Option<u64> {
        None
    }
}
