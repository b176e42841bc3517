//! The three policies over the same guests: what they create, which accesses leave the guest, what the processor's MSRs
//! go through, and what the host sees of its guest.

use vmtax_vpmu::host::MsrAccesses;
use vmtax_vpmu::{Activity, Error, Policy};

use crate::perf;
use crate::published::{self, ASSUMED};
use crate::script::Script;

/// A guest of the script: one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// In words.
    pub name: &'static str,
    /// The part.
    pub script: Script,
}

/// The parts of a script, each for itself.
pub fn guests(script: &Script) -> [Guest; 3] {
    let none = Script { readings: 0, samples: 0, switches: 0, ..*script };
    [
        Guest { name: "counts six events", script: Script { readings: script.readings, ..none } },
        Guest { name: "samples", script: Script { samples: script.samples, ..none } },
        Guest { name: "switches threads", script: Script { switches: script.switches, ..none } },
    ]
}

/// A guest under a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Which guest.
    pub guest: &'static str,
    /// Which policy.
    pub policy: Policy,
    /// What the PMU did.
    pub activity: Activity,
    /// Accesses of MSRs by the host: perf's, at least, or those of a mediated PMU's saves and loads.
    pub accesses: MsrAccesses,
    /// Nanoseconds of the host's work, with the published costs and the assumed ones.
    pub spent: u64,
    /// The part of the guest's work that the host's own events can count.
    pub seen: f64,
}

/// Runs every guest under every policy.
pub fn compare(script: &Script) -> Result<Vec<Compared>, Error> {
    let mut all = Vec::new();
    for guest in guests(script) {
        for policy in Policy::ALL {
            let run = guest.script.run(policy, published::costs(ASSUMED))?;
            let (seen, worked) = run.seen;
            all.push(Compared {
                guest: guest.name,
                policy,
                activity: run.activity,
                accesses: perf::accesses(policy, &run.activity),
                spent: run.spent,
                seen: seen as f64 / worked.max(1) as f64,
            });
        }
    }
    Ok(all)
}
