//! Precision under contention: the host wants counters for itself.
//!
//! A host that holds some for events of its own (the NMI watchdog, a profiler of the whole system) leaves too few for the
//! guest's events under legacy and reuse, which then take turns. A mediated PMU takes no notice: while the guest runs all
//! counters are its own, and the host's events see nothing of it. With events that count guests there is no such guest.

use vmtax_vpmu::{Error, Policy};

use crate::precision::{Profile, Sampling};
use crate::published::{self, ASSUMED};

/// Counters that the host holds: none, or two.
pub const TAKEN: [usize; 2] = [0, 2];

/// Six events of a guest, one of which samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Contended {
    /// Under this policy.
    pub policy: Policy,
    /// Counters that the host holds.
    pub taken: usize,
    /// What came of it.
    pub profile: Profile,
}

/// Every policy, without and with contention.
pub fn contended(sampling: &Sampling) -> Result<Vec<Contended>, Error> {
    let mut all = Vec::new();
    for policy in Policy::ALL {
        for taken in TAKEN {
            let sampling = Sampling { six: true, taken, ..*sampling };
            let profile = sampling.run(policy, published::costs(ASSUMED))?;
            all.push(Contended { policy, taken, profile });
        }
    }
    Ok(all)
}
