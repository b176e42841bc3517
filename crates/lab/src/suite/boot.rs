//! Boot of a Linux guest.

use vmtax_guest::order::LifeStep;

use super::definition::Definition;
use super::start::step;

pub(super) const OPERATIONS: &[Definition] = &[step(
    "boot-linux",
    "boot of a Linux guest with 256 MiB, from its first instruction to power-off",
    LifeStep::BootLinux,
)];
