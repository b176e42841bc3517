//! Marks around a workload: a recorder in the emulator records all that the machine executes between them.

use std::sync::atomic::{AtomicU64, Ordering};

use vmtax_guest::layout;

use crate::Result;
use crate::ports::MarkCode;

/// Marks that read the clock, and what it said.
pub(crate) struct WorkloadMarks {
    code: MarkCode,
    began: AtomicU64,
    /// Between both; 0 as long as it was not read twice.
    cycles: AtomicU64,
}

impl WorkloadMarks {
    const BEGIN: u16 = layout::begin(0);
    const END: u16 = layout::end(0);

    pub(crate) fn new() -> Result<WorkloadMarks> {
        let ports = vec![layout::PREPARE, Self::BEGIN, Self::END, layout::DONE];
        let code = MarkCode::clocked(ports)?;
        Ok(WorkloadMarks { code, began: AtomicU64::new(0), cycles: AtomicU64::new(0) })
    }

    /// Starts or stops recording.
    pub(crate) fn record(&self, on: bool) {
        if on {
            self.code.write(layout::PREPARE);
            self.began.store(self.code.write(Self::BEGIN), Ordering::Relaxed);
        } else {
            let ended = self.code.write(Self::END);
            let cycles = ended.saturating_sub(self.began.load(Ordering::Relaxed));
            self.cycles.store(cycles, Ordering::Relaxed);
            self.code.write(layout::DONE);
        }
    }

    /// Cycles between the two readings of the clock, once both were made.
    pub(crate) fn cycles(&self) -> Option<u64> {
        Some(self.cycles.load(Ordering::Relaxed)).filter(|cycles| *cycles > 0)
    }
}
