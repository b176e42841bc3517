//! Figures of "Intel Virtual PMU Optimization" (RFC v2 of March 2019, Linux 5.0, Xeon E5-2699 v4, `nowatchdog`), and the assumptions
//! needed to compute with them.
//!
//! The unit of its totals is not clear: they are compared as ratios only.

use vmtax_vpmu::host::virtual_time::{Cost, Costs};

use crate::operation::{Figure, Operation};

/// Nanoseconds of reading a counter (`kvm_pmu_rdpmc`).
pub const READ: u64 = 200;
/// Nanoseconds of stopping one (`pmc_stop_counter`, which reads it and releases the event), general and fixed.
pub const STOP: [u64; 2] = [30_000, 2_000_000];
/// Nanoseconds of creating an event (`perf_event_create_kernel_counter`), general and fixed.
pub const CREATE: [u64; 2] = [30_000_000, 25_000];

/// Assumed, because it was not published: nanoseconds of an access to a counter's MSR. Enabling, disabling and setting the period of an
/// existing event are such accesses in version 2, as are those of a mediated PMU at each exit. The only published access is a read.
pub const ASSUMED: u64 = READ;

/// The published costs, and this one for all others.
pub fn costs(assumed: u64) -> Costs {
    let cost = |i: usize| Cost {
        create: CREATE[i],
        close: STOP[i] - READ,
        enable: assumed,
        disable: assumed,
        read: READ,
        set_left: assumed,
    };
    Costs { general: cost(0), fixed: cost(1), msr: assumed }
}

/// Figures of legacy and of version 2.
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
    /// Figures of legacy and of version 2.
    pub fn pair(&self, figure: Figure) -> Option<Pair> {
        match figure {
            Figure::Max => self.max,
            Figure::Total => self.total,
        }
    }

    /// Legacy to version 2.
    pub fn ratio(&self, figure: Figure) -> Option<f64> {
        self.pair(figure).map(|(legacy, reuse)| legacy as f64 / reuse as f64)
    }
}

/// The table: operation, longest call, total. The total of handle_irq is given as 11 and 14 in another unit, and version 2 handled more
/// interrupts, so it gives no ratio.
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

/// Published figures by operation.
pub(crate) fn figures() -> impl Iterator<Item = (Operation, Published)> {
    TABLE.into_iter().map(|(operation, max, total)| {
        // The table notes "first time only".
        let first_time = operation == Operation::EnableGlobal;
        (operation, Published { max: Some(max), total, first_time })
    })
}

/// A published profile: `perf record -e cpu-cycles --all-user ./ftest`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The system sampled.
    pub place: &'static str,
    /// Samples.
    pub samples: u64,
    /// Shares in percent, in the order of [`FUNCTIONS`].
    pub shares: [f64; 6],
}

/// The functions of its program.
pub const FUNCTIONS: [&str; 6] = ["qux", "foo", "main", "bar", "__random_r", "__random"];

/// Its profiles: a guest under legacy, a guest under version 2, and the host.
pub const PROFILES: [Sampled; 3] = [
    Sampled {
        place: "guest, legacy",
        samples: 5_198,
        shares: [36.95, 15.68, 12.32, 15.45, 8.87, 9.56],
    },
    Sampled {
        place: "guest, version 2",
        samples: 22_550,
        shares: [36.64, 14.35, 12.60, 14.07, 9.18, 11.73],
    },
    Sampled { place: "host", samples: 20_652, shares: [37.87, 15.78, 13.18, 12.14, 9.85, 9.59] },
];
