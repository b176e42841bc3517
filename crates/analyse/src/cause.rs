//! The cause of an exit, by its whole key.

use vmtax_events::{Cause, ExitKey};

/// The cause of an exit, as [`Cause::of`] gives it.
pub fn cause_of(key: &ExitKey) -> Cause {
    Cause::of(key.reason, key.detail, key.ancillary_of.is_some())
}

/// What the recording lacks to say more, as [`Cause::missing`] says it.
pub fn missing_of(key: &ExitKey) -> Option<&'static str> {
    Cause::missing(key.reason, key.detail).filter(|_| key.ancillary_of.is_none())
}
