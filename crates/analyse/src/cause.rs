//! The cause of an exit, by its whole key.

use vmtax_events::{Cause, ExitKey, Outcome};

/// The cause of an exit, as [`Cause::of`] gives it.
pub fn cause_of(key: &ExitKey) -> Cause {
    Cause::of(key.reason, key.detail, key.ancillary_of.is_some())
}

/// What the recording lacks to say more, as [`Cause::missing`] says it.
pub fn missing_of(key: &ExitKey) -> Option<&'static str> {
    // What L1 knows and KVM does not is in no recording.
    let is_for_l1 = key.outcome == Outcome::L1 && !key.reason.isa.facts().faults_are_memory();
    Cause::missing(key.reason, key.detail).filter(|_| key.ancillary_of.is_none() && !is_for_l1)
}
