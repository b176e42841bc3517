//! The guest's script: counting with six events, sampling, and switching between a thread that is counted
//! and one that is not.

use vmtax_vpmu::host::virtual_time::{EventCosts, GuestWork};
use vmtax_vpmu::{Activity, Error, PmuEvent, Policy};

use crate::guest::{CounterPlace, NO_SAMPLES, PerfGuest, PlacedEvent, Ways};

/// Sizes of the parts. Times are in microseconds of the guest's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestScript {
    /// Readings of the six counters while they count.
    pub readings: u64,
    pub samples: u64,
    /// Time between samples.
    pub period: u64,
    /// Switches of the counted thread, in and out.
    pub switches: u64,
    /// Time that each of the guest's two threads runs.
    pub guest_slice: u64,
    /// Length of a slice of the vCPU's thread.
    pub host_slice: u64,
    /// Time between exits unrelated to the PMU.
    pub exits: u64,
}

impl Default for GuestScript {
    /// 4,000 samples a second, which is perf's default, and a tick of 250 Hz, which is a distribution's. The host's
    /// slices are longer than the time for which a thread of the guest is away: then reuse need not create anew.
    fn default() -> GuestScript {
        GuestScript {
            readings: 100,
            samples: 1000,
            period: 250,
            switches: 100,
            guest_slice: 4_000,
            host_slice: 10_000,
            exits: EXITS,
        }
    }
}

/// Assumed: microseconds of a guest's work from one exit to the next that has nothing to do with its PMU. Each of them saves
/// and loads the counters of a mediated PMU.
pub const EXITS: u64 = 250;

/// Cycles in a microsecond, of a processor of 2.2 GHz.
pub(crate) const CYCLES: u64 = 2200;

/// Events in a microsecond of the guest's work.
pub(crate) const MICROSECOND: [(PmuEvent, u64); 6] = [
    (PmuEvent::Cycles, CYCLES),
    (PmuEvent::Instructions, 2000),
    (PmuEvent::Branches, 400),
    (PmuEvent::BranchMisses, 8),
    (PmuEvent::CacheReferences, 20),
    (PmuEvent::CacheMisses, 2),
];

/// Cycles and instructions go to fixed counters, as Linux does it. All are counted in both modes and interrupt.
pub(crate) const SIX: [CounterPlace; 6] = [
    CounterPlace::Fixed(1, 0b1011),
    CounterPlace::Fixed(0, 0b1011),
    CounterPlace::General(0, 0x13_4f2e),
    CounterPlace::General(1, 0x13_412e),
    CounterPlace::General(2, 0x13_00c4),
    CounterPlace::General(3, 0x13_00c5),
];

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptOutcome {
    /// Operations of the host.
    pub activity: Activity,
    pub samples: u64,
    /// Host time of work on events, ns.
    pub spent: u64,
    /// Time of the guest's work that host events can count, and all of it, ns.
    pub seen: (u64, u64),
    /// Sum of all values that the guest read.
    pub counted: u64,
}

impl GuestScript {
    /// Runs it under a policy, on a host with these costs.
    pub fn run(&self, policy: Policy, costs: EventCosts) -> Result<ScriptOutcome, Error> {
        let ways = Ways { slice: self.host_slice * 1000, exits: self.exits * 1000 };
        let mut guest = PerfGuest::new(policy, costs, ways)?;
        let work = GuestWork::user(1000, &MICROSECOND);
        let six = SIX.map(|place| PlacedEvent { place, period: NO_SAMPLES });
        // Counting.
        guest.switch_in(&six);
        for _ in 0..self.readings {
            guest.run(&work, self.guest_slice, || {});
            guest.read_all();
        }
        guest.switch_out();
        // Sampling by cycles.
        guest.switch_in(&[PlacedEvent { place: SIX[0], period: self.period * CYCLES }]);
        guest.run(&work, self.samples * self.period, || {});
        guest.switch_out();
        // Switching.
        for _ in 0..self.switches {
            guest.switch_in(&six);
            guest.run(&work, self.guest_slice, || {});
            guest.switch_out();
            guest.run(&work, self.guest_slice, || {});
        }
        Ok(ScriptOutcome {
            activity: guest.pmu.activity(),
            samples: guest.samples,
            spent: guest.pmu.host().spent(),
            seen: guest.pmu.host().seen(),
            counted: guest.counted,
        })
    }
}
