//! How the guest's memory is mapped, as far as counters and faults tell.

use vmtax_events::{Cause, Stat};

use super::findings::small_by_faults;
use super::{Answer, Step, percent};
use crate::Ledger;
use crate::table::cause_of;
use crate::vm_facts::mapped;

/// Part of the mapped bytes in pages of 4 KiB from which on memory is called mapped in small pages.
const SMALL: f64 = 0.5;
/// Unit of a counter without instructions beside it.
pub(super) const IN_ALL: &str = "in all";
/// Counters of the TLB that are looked at.
const COUNTERS: usize = 16;
/// How much more often the TLB must miss than in the base for that to be called more.
pub(super) const MORE_MISSES: f64 = 1.5;

/// Whether most of the guest's memory is mapped in pages of 4 KiB, by KVM's own counters.
pub(super) fn is_small(ledger: &Ledger) -> Option<bool> {
    mapped(ledger).map(|(small, all)| small >= all * SMALL)
}

/// Misses of the TLB: the counter's name, and how many there are for a thousand instructions, or in all.
pub(super) fn misses(ledger: &Ledger) -> Vec<(&str, f64, &'static str)> {
    let named = |name: &str| ledger.stats.iter().find(|s| s.name.split(':').next() == Some(name));
    let instructions = named("instructions").map(|stat| stat.value).filter(|n| *n > 0.0);
    let is_miss = |stat: &&Stat| {
        let name = stat.name.to_ascii_lowercase();
        name.contains("tlb") && (name.contains("miss") || name.contains("walk"))
    };
    let rate = |stat: &Stat| match instructions {
        Some(n) => (stat.value * 1000.0 / n, "for a thousand instructions"),
        None => (stat.value, IN_ALL),
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
    let mut evidence = Vec::new();
    let line = |(small, all): (f64, f64), whose: &str| {
        format!(
            "{whose}{} of {:.0} MiB mapped in pages of 4 KiB",
            percent(small / all),
            all / 1048576.0
        )
    };
    evidence.extend(mapped(ledger).map(|mapped| line(mapped, "")));
    evidence.extend(base.and_then(mapped).map(|mapped| line(mapped, "base: ")));
    for (whose, ledger) in [("", Some(ledger)), ("base: ", base)] {
        let misses = ledger.into_iter().flat_map(misses);
        evidence.extend(misses.map(|(name, n, unit)| format!("{whose}{name}: {n:.2} {unit}")));
    }
    let faults: u64 = ledger
        .exits
        .iter()
        .filter(|(key, _)| cause_of(key) == Cause::MemoryFault)
        .fold(0, |sum, (_, tally)| sum + tally.count);
    if faults > 0 {
        let seconds = ledger.end_ns.saturating_sub(ledger.start_ns) as f64 / 1e9;
        let is_timed = ledger.recording.emulated.is_none() && seconds > 0.0;
        let rate = if is_timed {
            format!(", {:.0} a second", faults as f64 / seconds)
        } else {
            String::new()
        };
        evidence.push(format!("{faults} faults in the nested page tables{rate}"));
    }
    let by_faults = small_by_faults(ledger);
    let (answer, says, next) = match (is_small(ledger), by_faults) {
        (Some(true), _) => (Answer::Yes, "the guest's memory is mapped in pages of 4 KiB", None),
        (Some(false), _) => (Answer::No, "most of it is mapped in large pages", None),
        (None, Some(faults)) => {
            evidence.push(faults);
            (Answer::Yes, "the guest's memory is mapped in pages of 4 KiB, by its faults", None)
        }
        // Memory that was touched before the recording began does not fault in it.
        (None, None) => (
            Answer::Unknown,
            "faults do not show it",
            Some("`vmtax pages` on the host while the VM runs, then `vmtax import --stats`"),
        ),
    };
    let question = "Is memory mapped in small pages?";
    let misses_more = base.and_then(|base| self::misses_more(ledger, base)) == Some(true);
    Step { id: "memory", question, answer, says: says.to_owned(), evidence, next, misses_more }
}
