//! Precision of samples: a program with known shares of its functions is sampled for some time of the host's clock, and the shares of
//! the samples are compared with the known ones.
//!
//! Time that the host spends on events passes on that clock but not in the guest. An expensive policy leaves less time for the program,
//! so samples are lost; shares stay correct.

use vmtax_vpmu::host::virtual_time::{EventCosts, GuestWork, VirtualFaults};
use vmtax_vpmu::{Activity, Error, PmuEvent, Policy};

use crate::guest::{CounterPlace, NO_SAMPLES, PerfGuest, PlacedEvent, Ways};
use crate::script::EXITS;

/// The program's functions and their cycles of every thousand. The names are those of the program that the series
/// sampled, the shares are about its shares on the host.
pub const FUNCTIONS: [(&str, u64); 6] = [
    ("qux", 382),
    ("foo", 160),
    ("main", 134),
    ("bar", 124),
    ("__random_r", 102),
    ("__random", 98),
];

/// Parameters of the sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Period in cycles of user mode.
    pub period: u64,
    /// Duration on the host's clock, ns.
    pub time: u64,
    /// Count five more events in addition to the one that samples.
    pub six: bool,
    /// Counters of the processor's seven that pinned host events use.
    pub taken: usize,
}

impl Default for Sampling {
    /// About 4,000 samples a second for 5 seconds. The period is ten rounds of the program and the golden part of one,
    /// so that samples soon meet every part of it: the program's rounds are all the same, unlike a real one's.
    fn default() -> Sampling {
        Sampling { period: 570_941, time: 5_000_000_000, six: false, taken: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledShare {
    pub function: &'static str,
    /// Its share of the program.
    pub known: f64,
    /// Its share of the samples.
    pub sampled: f64,
    /// Largest allowed difference: three standard deviations for this number of samples, and at least half a point.
    pub gate: f64,
}

impl SampledShare {
    pub fn error(&self) -> f64 {
        (self.sampled - self.known).abs()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SampledProfile {
    pub samples: u64,
    /// Samples in the guest's kernel, of which there should be none.
    pub kernel: u64,
    /// Shares of the program's functions.
    pub shares: Vec<SampledShare>,
    /// The smallest counted share of the events that do not sample; 1 if there are none.
    pub counted: f64,
    /// Time of the guest's work that host events could count, and all of it, ns.
    pub seen: (u64, u64),
    /// Operations of the host.
    pub activity: Activity,
}

impl SampledProfile {
    /// Whether there are samples, of the program alone, whose shares are all within their gates.
    pub fn precise(&self) -> bool {
        self.samples > 0 && self.kernel == 0 && self.shares.iter().all(|s| s.error() <= s.gate)
    }
}

/// Cycles of a unit of work, the resolution of a sample's place.
const UNIT: u64 = 55;
/// Units of a round of the program, and of the guest's kernel after it, which must not be sampled.
const ROUND: u64 = 1000;
const KERNEL: u64 = 30;

/// Counters of the guest's processor: four general ones and three fixed ones.
pub const COUNTERS: usize = 7;

/// Events of a unit of work: what samples, then in the order of [`BESIDES`].
const HAPPENS: [(PmuEvent, u64); 6] = [
    (PmuEvent::Cycles, UNIT),
    (PmuEvent::Instructions, 50),
    (PmuEvent::CacheReferences, 3),
    (PmuEvent::CacheMisses, 1),
    (PmuEvent::Branches, 10),
    (PmuEvent::BranchMisses, 1),
];

/// Counters of the further events, in user mode, without an interrupt.
const BESIDES: [CounterPlace; 5] = [
    CounterPlace::Fixed(0, 0b0010),
    CounterPlace::General(0, 0x1_4f2e),
    CounterPlace::General(1, 0x1_412e),
    CounterPlace::General(2, 0x1_00c4),
    CounterPlace::General(3, 0x1_00c5),
];

impl Sampling {
    /// Samples the program under a policy, on a host with these costs.
    pub fn run(&self, policy: Policy, costs: EventCosts) -> Result<SampledProfile, Error> {
        // 2.2 GHz; slices of 10 ms.
        let ns = UNIT * 10 / 22;
        let (work, kernel) = (GuestWork::user(ns, &HAPPENS), GuestWork::kernel(ns, &HAPPENS));
        let ways = Ways { slice: 10_000_000, exits: EXITS * 1000 };
        let mut guest = PerfGuest::new(policy, costs, ways)?;
        let left = Some(COUNTERS - self.taken.min(COUNTERS));
        guest
            .pmu
            .host_mut()
            .set_faults(VirtualFaults { counters: left, ..VirtualFaults::default() });
        let mut counts = [0u64; FUNCTIONS.len()];
        let mut in_kernel = 0;
        let mut rounds = 0;
        // User mode with an interrupt.
        let sampled = PlacedEvent { place: CounterPlace::Fixed(1, 0b1010), period: self.period };
        let besides = BESIDES.map(|place| PlacedEvent { place, period: NO_SAMPLES });
        let events = [&[sampled][..], if self.six { &besides } else { &[] }].concat();
        guest.switch_in(&events);
        while guest.pmu.host().now() < self.time {
            for (count, (_, share)) in counts.iter_mut().zip(FUNCTIONS) {
                guest.run(&work, share * ROUND / 1000, || *count += 1);
            }
            guest.run(&kernel, KERNEL, || in_kernel += 1);
            rounds += 1;
        }
        let read = guest.values();
        guest.switch_out();
        let happened = |(_, each): &(PmuEvent, u64)| (rounds * ROUND * each) as f64;
        let parts = read.iter().zip(&HAPPENS).skip(1);
        let parts = parts.map(|(value, event)| *value as f64 / happened(event));
        let samples = counts.iter().sum::<u64>();
        let share = |((function, share), count): (&(&'static str, u64), u64)| {
            let known = *share as f64 / 1000.0;
            let n = samples.max(1) as f64;
            let deviation = (known * (1.0 - known) / n).sqrt();
            SampledShare {
                function,
                known,
                sampled: count as f64 / n,
                gate: (3.0 * deviation).max(0.005),
            }
        };
        Ok(SampledProfile {
            samples,
            kernel: in_kernel,
            shares: FUNCTIONS.iter().zip(counts).map(share).collect(),
            counted: parts.fold(1.0, f64::min),
            seen: guest.pmu.host().seen(),
            activity: guest.pmu.activity(),
        })
    }
}
