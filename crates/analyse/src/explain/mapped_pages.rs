//! The question how the guest's memory is mapped, by counters and faults.

use vmtax_events::Cause;

use super::finding::Evidence;
use super::findings::small_by_faults;
use super::mapping::{MORE_MISSES, is_small, misses};
use super::step::{ExplainStep, Question, Says, StepAnswer, ToRecord};
use super::sums::total;
use crate::Ledger;
use crate::table::cause_of;
use crate::vm_facts::mapped;

/// Whether the TLB misses much more often than in the base; `None` where it is not counted in both.
pub(super) fn misses_more(ledger: &Ledger, base: &Ledger) -> Option<bool> {
    let there = misses(base);
    let both = misses(ledger).into_iter().filter_map(|(name, here, unit)| {
        let (_, base, _) = there.iter().find(|(n, _, u)| *n == name && *u == unit)?;
        Some(here > base * MORE_MISSES)
    });
    both.reduce(|a, b| a || b)
}

/// Is memory mapped in small pages?
pub(super) fn step(ledger: &Ledger, base: Option<&Ledger>) -> ExplainStep {
    let sides =
        || [(false, Some(ledger)), (true, base)].into_iter().filter_map(|(b, l)| Some((b, l?)));
    let mut evidence = Vec::new();
    evidence.extend(sides().filter_map(|(of_base, ledger)| {
        let (small, all) = mapped(ledger)?;
        Some(Evidence::Mapped { of_base, share: small / all, all })
    }));
    for (of_base, ledger) in sides() {
        evidence.extend(misses(ledger).into_iter().map(|(name, value, per)| Evidence::Misses {
            of_base,
            name: name.to_owned(),
            value,
            per,
        }));
    }
    let faults = ledger.exits.iter().filter(|(key, _)| cause_of(key) == Cause::MemoryFault);
    let faults = total(faults.map(|(_, tally)| tally.count));
    if faults > 0 {
        let length = ledger.length_ns().filter(|_| ledger.recording.emulated.is_none());
        let rate = length.map(|ns| faults as f64 * 1e9 / ns as f64);
        evidence.push(Evidence::Faults(ledger.isa(), faults, rate));
    }
    let (answer, says, next) = match (is_small(ledger), small_by_faults(ledger)) {
        (Some(true), _) => (StepAnswer::Yes, Says::SmallPages { by_faults: false }, None),
        (Some(false), _) => (StepAnswer::No, Says::LargePages, None),
        (None, Some(faults)) => {
            evidence.push(faults);
            (StepAnswer::Yes, Says::SmallPages { by_faults: true }, None)
        }
        // Memory that was touched before the recording began does not fault in it.
        (None, None) => {
            let next = match ledger.isa().facts().counts_pages() {
                true => ToRecord::PageSizes,
                false => ToRecord::HugePagesOfVmm,
            };
            (StepAnswer::Unknown, Says::UnknownPages, Some(next))
        }
    };
    let misses_more = base.and_then(|base| self::misses_more(ledger, base)) == Some(true);
    ExplainStep { question: Question::Memory, answer, says, evidence, next, misses_more }
}
