//! How the guest's memory is mapped, as far as counters and faults tell.

use vmtax_events::{Cause, Stat};

use super::finding::{Evidence, PerWork};
use super::findings::small_by_faults;
use super::step::{Answer, Question, Record, Says, Step};
use crate::Ledger;
use crate::table::cause_of;
use crate::vm_facts::mapped;

/// Part of the mapped bytes in pages of 4 KiB from which on memory is called mapped in small pages.
const SMALL: f64 = 0.5;
/// Counters of the TLB that are looked at.
const COUNTERS: usize = 16;
/// How much more often the TLB must miss than in the base for that to be called more.
pub(super) const MORE_MISSES: f64 = 1.5;

/// Whether most of the guest's memory is mapped in pages of 4 KiB, by KVM's own counters.
pub(super) fn is_small(ledger: &Ledger) -> Option<bool> {
    mapped(ledger).map(|(small, all)| small >= all * SMALL)
}

/// Misses of the TLB: the counter's name, and how many there are for a thousand instructions, or in all.
pub(super) fn misses(ledger: &Ledger) -> Vec<(&str, f64, PerWork)> {
    let named = |name: &str| ledger.stats.iter().find(|s| s.name.split(':').next() == Some(name));
    let instructions = named("instructions").map(|stat| stat.value).filter(|n| *n > 0.0);
    let is_miss = |stat: &&Stat| {
        let name = stat.name.to_ascii_lowercase();
        name.contains("tlb") && (name.contains("miss") || name.contains("walk"))
    };
    let rate = |stat: &Stat| match instructions {
        Some(n) => (stat.value * 1000.0 / n, PerWork::ThousandInstructions),
        None => (stat.value, PerWork::Recording),
    };
    ledger
        .stats
        .iter()
        .filter(is_miss)
        .take(COUNTERS)
        .map(|stat| {
            let (value, unit) = rate(stat);
            (stat.name.as_str(), value, unit)
        })
        .collect()
}

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
pub(super) fn step(ledger: &Ledger, base: Option<&Ledger>) -> Step {
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
    let faults: u64 = ledger
        .exits
        .iter()
        .filter(|(key, _)| cause_of(key) == Cause::MemoryFault)
        .fold(0, |sum, (_, tally)| sum + tally.count);
    if faults > 0 {
        let seconds = ledger.end_ns.saturating_sub(ledger.start_ns) as f64 / 1e9;
        let is_timed = ledger.recording.emulated.is_none() && seconds > 0.0;
        evidence.push(Evidence::Faults(faults, is_timed.then(|| faults as f64 / seconds)));
    }
    let (answer, says, next) = match (is_small(ledger), small_by_faults(ledger)) {
        (Some(true), _) => (Answer::Yes, Says::SmallPages { by_faults: false }, None),
        (Some(false), _) => (Answer::No, Says::LargePages, None),
        (None, Some(faults)) => {
            evidence.push(faults);
            (Answer::Yes, Says::SmallPages { by_faults: true }, None)
        }
        // Memory that was touched before the recording began does not fault in it.
        (None, None) => (Answer::Unknown, Says::UnknownPages, Some(Record::PageSizes)),
    };
    let misses_more = base.and_then(|base| self::misses_more(ledger, base)) == Some(true);
    Step { question: Question::Memory, answer, says, evidence, next, misses_more }
}
