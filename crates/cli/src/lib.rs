//! What the programs `vmtax` and `vmtax-fleet` share: exit codes, errors as one sentence, atomic output files, values of flags,
//! signals, and progress bars.

pub mod exit;
pub mod flags;
pub mod output;
pub mod progress;
pub mod signals;
