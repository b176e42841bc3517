//! What "Intel Virtual PMU Optimization" (RFC v2 of March 2019, Linux 5.0, Xeon E5-2699 v4) published.
//!
//! The unit of its totals is not clear: they are compared as ratios only.

use super::{Figure, Operation};
use crate::host::virtual_time::{Cost, Costs};

/// Nanoseconds of reading a counter (`kvm_pmu_rdpmc`).
const READ: u64 = 200;
/// Of stopping one (`pmc_stop_counter`, which reads it and releases the event), general and fixed.
const STOP: [u64; 2] = [30_000, 2_000_000];
/// Of creating an event (`perf_event_create_kernel_counter`), general and fixed.
const CREATE: [u64; 2] = [30_000_000, 25_000];

/// The basic costs that it measured: create, stop, read.
///
/// Enabling, disabling and setting the distance of an event that exists are accesses to the counter's own MSRs in its
/// version 2, and were not measured. They are charged as the one access that was: a reading.
pub fn costs() -> Costs {
    let cost = |i: usize| Cost {
        create: CREATE[i],
        close: STOP[i] - READ,
        enable: READ,
        disable: READ,
        read: READ,
        set_left: READ,
    };
    Costs { general: cost(0), fixed: cost(1) }
}

/// Of legacy and of version 2.
pub type Pair = (u64, u64);

/// Published figures of an operation, of legacy and of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Nanoseconds of the longest call.
    pub max: Option<Pair>,
    /// All calls together, in a unit that is not clear.
    pub total: Option<Pair>,
    /// Version 2's longest call is that of the first time, which creates events.
    pub first_time: bool,
}

impl Published {
    /// Legacy to version 2.
    pub fn ratio(&self, figure: Figure) -> Option<f64> {
        let (legacy, reuse) = match figure {
            Figure::Max => self.max,
            Figure::Total => self.total,
        }?;
        Some(legacy as f64 / reuse as f64)
    }
}

/// Its table: operation, longest call, total. For the total of handle_irq it says 11 and 14 in some other unit, and
/// version 2 handled more interrupts: no ratio comes of that.
const TABLE: [(Operation, Pair, Option<Pair>); 8] = [
    (Operation::EnableGlobal, (57_000_000, 17_000_000), Some((74_000, 3_000))),
    (Operation::DisableGlobal, (2_000_000, 21_000), None),
    (Operation::FixedControl, (21_000, 1_100), Some((11_000, 1_400))),
    (Operation::EventSelect, (36_000, 17_000), Some((7_000_000, 7_600))),
    (Operation::Rdpmc, (35_000, 18_000), Some((130_000, 10_000))),
    (Operation::HandleInterrupt, (3_500_000, 8_800), None),
    (Operation::SwitchIn, (350_000_000, 4_000_000), None),
    (Operation::SwitchOut, (55_000_000, 200_000), None),
];

/// What was published, by operation.
pub(super) fn figures() -> impl Iterator<Item = (Operation, Published)> {
    TABLE.into_iter().map(|(operation, max, total)| {
        // "First time only", it says there.
        let first_time = operation == Operation::EnableGlobal;
        (operation, Published { max: Some(max), total, first_time })
    })
}

/// What it measured of an access that has the host do nothing: version 2's longest "r/w fixed_ctrl".
pub const ACCESS: u64 = 1_100;
