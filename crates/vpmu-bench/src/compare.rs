//! The three policies with the same guests: events created, exits, MSR accesses, and the share of guest time that host events see.

use vmtax_vpmu::host::MsrAccesses;
use vmtax_vpmu::{Activity, Error, Policy};

use crate::perf;
use crate::published::{self, ASSUMED};
use crate::script::GuestScript;

/// A guest of the script: one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptGuest {
    /// Its name in tables.
    pub name: &'static str,
    /// The script of this part.
    pub script: GuestScript,
}

/// The parts of a script, separately.
pub fn guests(script: &GuestScript) -> [ScriptGuest; 3] {
    let none = GuestScript { readings: 0, samples: 0, switches: 0, ..*script };
    [
        ScriptGuest {
            name: "counts six events",
            script: GuestScript { readings: script.readings, ..none },
        },
        ScriptGuest { name: "samples", script: GuestScript { samples: script.samples, ..none } },
        ScriptGuest {
            name: "switches threads",
            script: GuestScript { switches: script.switches, ..none },
        },
    ]
}

/// A guest under a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedGuest {
    pub guest: &'static str,
    pub policy: Policy,
    /// Activity of the PMU.
    pub activity: Activity,
    /// MSR accesses by the host: by perf (a lower bound), or to save and load a mediated PMU.
    pub accesses: MsrAccesses,
    /// Time of the host's work, ns, with published and assumed costs.
    pub spent: u64,
    /// Share of the guest's work that host events can count.
    pub seen: f64,
}

/// Runs every guest under every policy.
pub fn compare(script: &GuestScript) -> Result<Vec<ComparedGuest>, Error> {
    let mut all = Vec::new();
    for guest in guests(script) {
        for policy in Policy::ALL {
            let run = guest.script.run(policy, published::costs(ASSUMED))?;
            let (seen, worked) = run.seen;
            all.push(ComparedGuest {
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
