//! One finished exit, for what needs exits one by one (a timeline).

use crate::{ExitKey, Level, Reason};

/// An exit from its `kvm_exit` to the next `kvm_entry` of the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Who, why, about what.
    pub key: ExitKey,
    /// Host thread of the vCPU.
    pub tid: u32,
    /// Host CPU it ended on.
    pub cpu: u32,
    /// `kvm_exit`.
    pub start_ns: u64,
    /// `kvm_entry`.
    pub end_ns: u64,
    /// When the VMM in user space took over, if it did.
    pub user_start_ns: Option<u64>,
    /// Time halted within it.
    pub halted_ns: u64,
    /// Time preempted within it.
    pub preempted_ns: u64,
}

impl Exit {
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    pub fn level(&self) -> Level {
        self.key.level
    }

    pub fn reason(&self) -> Reason {
        self.key.reason
    }
}
