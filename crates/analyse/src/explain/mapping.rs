//! How the guest's memory is mapped, as far as counters tell.

use vmtax_events::Stat;

use super::finding::PerWork;
use crate::Ledger;
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
