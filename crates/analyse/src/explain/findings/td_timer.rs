//! What a TD's timer costs, beside a plain VM that runs the same: by counts alone, so it is inferred and says so.
//!
//! "Performance tuning for oneDNN on TDX": ticks 143,007 + 142,929 in the plain VM against 271,561 in the TD, arms 143,258 against
//! 137,299; nohz_full in the guest and on the host took most of them away.

use vmtax_events::{Isa, tdx, vmx};

use super::super::finding::{Evidence, Finding, FoundKind};
use super::super::subject::Subject;
use crate::Ledger;
use crate::diff::{ABOUT_EQUAL, DiffSide};
use crate::remedy::{Context, RemedyId, VmKind};
use crate::vm_facts::kind;

/// Part of the interrupts that the plain VM's ticks must be, to be worth a word.
const PART: f64 = 0.25;

fn are_equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= a.max(b) * ABOUT_EQUAL
}

/// Exits of a reason, a second.
fn rate(side: &DiffSide<'_>, code: u32) -> Option<f64> {
    let of = |ledger: &Ledger| {
        let own = ledger
            .exits
            .iter()
            .filter(|(key, _)| key.reason.isa == Isa::Vmx && key.reason.code == code);
        own.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count))
    };
    side.seconds().filter(|seconds| *seconds > 0.0).map(|seconds| of(side.ledger) as f64 / seconds)
}

/// Adds to the findings about interrupts and requests what the plain VM shows of them.
pub(in crate::explain) fn infer_timer(
    all: &mut [Finding],
    (side, base): (&DiffSide<'_>, &DiffSide<'_>),
    context: &Context,
) -> Option<()> {
    if context.kind != VmKind::Tdx || kind(base.ledger) != VmKind::Plain {
        return None;
    }
    let here = rate(side, vmx::EXTERNAL_INTERRUPT)?;
    let (ticks, interrupts) =
        (rate(base, vmx::PREEMPTION_TIMER)?, rate(base, vmx::EXTERNAL_INTERRUPT)?);
    let of = |all: &mut [Finding], subject| {
        let found = FoundKind::Exits(subject);
        all.iter().position(|finding| finding.found == found)
    };
    if ticks >= here * PART
        && are_equal(here, ticks + interrupts)
        && let Some(at) = of(all, Subject::HostInterrupts)
    {
        all[at].evidence.push(Evidence::TicksOfBase { here, ticks, interrupts });
        all[at].advise(&[RemedyId::GuestNohzFull, RemedyId::HostNohzFull], context);
    }
    // Mainline has the writes of MSRs under their own reason.
    let is_native = side
        .ledger
        .exits
        .keys()
        .any(|key| key.reason.isa == Isa::Vmx && tdx::is_native(key.reason.code));
    let reporting = tdx::reporting(&side.ledger.recording.kernel, is_native);
    let (here, base) = (rate(side, vmx::TDCALL)?, rate(base, vmx::MSR_WRITE)?);
    if reporting.is_none_or(|how| how.tdcall_arms_timer)
        && here > 0.0
        && are_equal(here, base)
        && let Some(at) = of(all, Subject::Requests)
    {
        all[at].evidence.push(Evidence::ArmsOfBase { here, base });
    }
    Some(())
}
