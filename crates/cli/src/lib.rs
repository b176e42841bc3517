//! What the programs `vmtax` and `vmtax-fleet` share: exit codes, errors as one sentence, and outputs that appear only when they are
//! whole.

pub mod exit;
pub mod output;
