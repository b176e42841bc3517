//! Precision under contention: the host uses counters itself.
//!
//! If the host uses some counters (the NMI watchdog, a system-wide profiler), too few are left under legacy and reuse, and the guest's
//! events are multiplexed. A mediated PMU is not affected: while the guest runs, all counters are its own, and host events do not count.
//! Host events that count guests exclude such a guest.

use vmtax_vpmu::{Error, Policy};

use crate::precision::{SampledProfile, Sampling};
use crate::published::{self, ASSUMED};

/// Counters that the host holds: none, or two.
pub const TAKEN: [usize; 2] = [0, 2];

/// Six events of a guest, one of which samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Contended {
    pub policy: Policy,
    /// Counters that the host holds.
    pub taken: usize,
    pub profile: SampledProfile,
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
