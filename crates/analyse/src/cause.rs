//! The cause of an exit, by its whole key.

use vmtax_events::{Cause, DetailKind, ExitKey, Isa, Outcome, vmx};

/// The cause of an exit, as [`Cause::of`] gives it.
pub fn cause_of(key: &ExitKey) -> Cause {
    if is_filtered_msr(key) {
        return Cause::Msr;
    }
    Cause::of(key.reason, key.detail, key.ancillary_of.is_some())
}

/// What that assumes, as [`Cause::assumption`] says it.
pub fn assumption_of(key: &ExitKey) -> Option<&'static str> {
    if is_filtered_msr(key) {
        return None;
    }
    Cause::assumption(key.reason, key.detail, key.ancillary_of.is_some())
}

/// A write of an MSR that went to the VMM: KVM records no number for it. It is not the timer's, for which KVM needs no
/// VMM: who has MSRs sent to it filters others, such as those of a PMU.
fn is_filtered_msr(key: &ExitKey) -> bool {
    key.outcome == Outcome::User
        && key.detail.kind == DetailKind::None
        && key.reason.isa == Isa::Vmx
        && matches!(key.reason.code, vmx::MSR_WRITE | vmx::MSR_WRITE_IMM)
}
