//! Figures of "Intel Virtual PMU Optimization" (RFC v2 of March 2019, Linux 5.0, Xeon E5-2699 v4, `nowatchdog`), and the assumptions
//! needed to compute with them.
//!
//! Left out of its table of operations: the column of totals, which depends on a script that it does not give.

use vmtax_vpmu::host::virtual_time::{EventCost, EventCosts};

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
pub fn costs(assumed: u64) -> EventCosts {
    let cost = |i: usize| EventCost {
        create: CREATE[i],
        close: STOP[i] - READ,
        enable: assumed,
        disable: assumed,
        read: READ,
        set_left: assumed,
    };
    EventCosts { general: cost(0), fixed: cost(1), msr: assumed }
}

/// A published profile: `perf record -e cpu-cycles --all-user ./ftest`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedSamples {
    pub place: &'static str,
    pub samples: u64,
    /// Shares in percent, in the order of [`FUNCTIONS`].
    pub shares: [f64; 6],
}

/// The functions of its program.
pub const FUNCTIONS: [&str; 6] = ["qux", "foo", "main", "bar", "__random_r", "__random"];

/// Its profiles: a guest under legacy, a guest under version 2, and the host.
pub const PROFILES: [PublishedSamples; 3] = [
    PublishedSamples {
        place: "guest, legacy",
        samples: 5_198,
        shares: [36.95, 15.68, 12.32, 15.45, 8.87, 9.56],
    },
    PublishedSamples {
        place: "guest, version 2",
        samples: 22_550,
        shares: [36.64, 14.35, 12.60, 14.07, 9.18, 11.73],
    },
    PublishedSamples {
        place: "host",
        samples: 20_652,
        shares: [37.87, 15.78, 13.18, 12.14, 9.85, 9.59],
    },
];

/// An operation of its guest, ns: the longest of a run, as its host traced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedOperation {
    /// Its words.
    pub operation: &'static str,
    pub legacy: u64,
    pub version_2: u64,
    /// The operation of the lab's suite `pmu` on arm64 that does the same on PMUv3.
    pub on_arm: &'static str,
}

/// Its table of operations. In version 2 the first enabling alone takes so long.
pub const OPERATIONS: [PublishedOperation; 8] = [
    row("enable global_ctrl", [57_000_000, 17_000_000], "vpmu-all-on"),
    row("disable global_ctrl", [2_000_000, 21_000], "vpmu-all-off"),
    row("r/w fixed_ctrl", [21_000, 1_100], "vpmu-ccfiltr"),
    row("r/w eventsel", [36_000, 17_000], "vpmu-evtyper"),
    row("rdpmc", [35_000, 18_000], "vpmu-evcntr-read"),
    row("handle_irq", [3_500_000, 8_800], "vpmu-sample"),
    row("context switch in", [350_000_000, 4_000_000], "vpmu-switch-in"),
    row("context switch out", [55_000_000, 200_000], "vpmu-switch-out"),
];

const fn row(
    operation: &'static str,
    [legacy, version_2]: [u64; 2],
    on_arm: &'static str,
) -> PublishedOperation {
    PublishedOperation { operation, legacy, version_2, on_arm }
}
