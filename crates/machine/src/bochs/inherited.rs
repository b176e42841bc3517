//! The descriptors that a Bochs is started with.

use crate::process::HandedDescriptors;

/// Descriptors in the order in which they are passed, which determines their numbers.
pub(super) enum Inherited {
    Mailbox,
    BootDisk,
    Console,
    Log,
    /// The `bochsrc`, or the folder of a saved machine.
    Configuration,
    Commands,
    /// The descriptor of the mailbox, if a machine is restored.
    Copy,
}

impl Inherited {
    pub(super) fn path(self) -> String {
        format!("/proc/self/fd/{}", HandedDescriptors::number(self as usize))
    }
}
