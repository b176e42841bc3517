//! The questions about exits: whether they are the bottleneck, which cause leads, what nesting costs.

use vmtax_events::{Level, Reason};

use super::finding::Evidence;
use super::step::{Answer, Question, Record, Says, Step};
use super::sums::{NAMED, Sums, TAX_MATTERS, add, lacks_entries, total};
use crate::diff::{Diff, DiffRow, Per, Side, Verdict, suitable};
use crate::ledger::running_ns;
use crate::vm_facts::kind;
use crate::{By, Ledger, Nested};

/// Part of the base's exits that must be of causes that are the same in both, for both to take the same exits.
const SAME_EXITS: f64 = 0.9;
/// A recording with fewer exits than this that is shorter than this shows no more than chance.
const TOO_FEW: u64 = 20;
const TOO_SHORT_NS: u64 = 100_000_000;

/// The exits of a recording that is too small to conclude from, and its length, ns.
pub(super) fn too_few(ledger: &Ledger, sums: &Sums) -> Option<(u64, u64)> {
    let ns = ledger.time.values().map(|time| time.sum.wall_ns).max().unwrap_or(0);
    (sums.timed && sums.total < TOO_FEW && ns < TOO_SHORT_NS).then_some((sums.total, ns))
}

fn unknown_part(ledger: &Ledger) -> f64 {
    let time = ledger.time_total();
    if time.wall_ns == 0 { 1.0 } else { time.unknown_ns as f64 / time.wall_ns as f64 }
}

/// Is handling exits the bottleneck?
pub(super) fn bottleneck(side: &Side<'_>, base: Option<&Side<'_>>, sums: &Sums) -> Step {
    let ledger = side.ledger;
    let step = |answer, says| Step::new(Question::Exits, answer, says);
    let unknown = |says, next| step(Answer::Unknown, says).next(next);
    let emulated = ledger.recording.emulated.is_some();
    if let Some((count, ns)) = too_few(ledger, sums) {
        return unknown(Says::TooFew(count, ns), Record::Longer);
    }
    if !emulated && lacks_entries(ledger) {
        return unknown(Says::NoEntries(unknown_part(ledger)), Record::Entries);
    }
    if let (false, Some(each_ns)) = (emulated, sums.interrupts_wait(ledger)) {
        return unknown(Says::LongInterrupts(each_ns), Record::Sched);
    }
    if let (false, Some(tax)) = (emulated, ledger.tax()) {
        let time = ledger.time_total();
        let exits_ns = time.exit_kernel_ns.saturating_add(time.exit_user_ns);
        let running_ns = running_ns(&time);
        let evidence = vec![Evidence::ExitTax { tax, exits_ns, running_ns }];
        return if tax >= TAX_MATTERS {
            step(Answer::Yes, Says::Tax(tax)).evidence(evidence)
        } else {
            let step = step(Answer::No, Says::SmallTax(tax)).evidence(evidence);
            step.next(Record::BetweenExits)
        };
    }
    match (base, sums.spent_ns) {
        (None, Some(spent_ns)) => unknown(Says::NoRunningTime(spent_ns), Record::Recording),
        (None, None) if ledger.exits.is_empty() => unknown(Says::NoExits, Record::Times),
        (None, None) => unknown(Says::OnlyCounts { emulated }, Record::Times),
        (Some(base), _) => against(side, base),
    }
}

/// Both take the same exits, and the base is fast: then it is not the exits.
fn against(side: &Side<'_>, base: &Side<'_>) -> Step {
    let step = |answer, says| Step::new(Question::Exits, answer, says);
    let per = match suitable(base, side) {
        Per::Operation => Per::Recording,
        per => per,
    };
    let Ok(diff) = Diff::new(base, side, per, &[By::Cause]) else {
        return step(Answer::Unknown, Says::NotComparable);
    };
    let rows = &diff.tables[0].rows;
    let same = |row: &&DiffRow| {
        matches!(row.verdict(), Verdict::Equal | Verdict::AboutEqual | Verdict::NoDifference)
    };
    let all: f64 = rows.iter().map(|row| row.base.rate.max(row.other.rate)).sum();
    let alike: f64 = rows.iter().filter(same).map(|row| row.base.rate.max(row.other.rate)).sum();
    let mut shown: Vec<&DiffRow> = rows.iter().collect();
    shown.sort_by(|a, b| b.base.rate.max(b.other.rate).total_cmp(&a.base.rate.max(a.other.rate)));
    let line = |row: &&DiffRow| Evidence::CauseCompared {
        cause: match row.key.first() {
            Some(crate::Value::Cause(cause)) => Some(*cause),
            _ => None,
        },
        here: row.other.count,
        base: row.base.count,
        verdict: row.verdict(),
    };
    let evidence = shown.iter().take(NAMED).map(line).collect();
    let (here, there) = (kind(side.ledger), kind(base.ledger));
    let confidential = here.is_confidential() || there.is_confidential();
    let share = if all > 0.0 { alike / all } else { 0.0 };
    let (answer, says, next) = if here != there && all > 0.0 && confidential {
        (Answer::Unknown, Says::OtherKind(share, here, there), Record::TimesOrTrial)
    } else if all > 0.0 && alike >= all * SAME_EXITS {
        (Answer::No, Says::SameExits(share), Record::BetweenExits)
    } else {
        (Answer::Unknown, Says::OtherExits(share), Record::TimesOfBoth)
    };
    step(answer, says).evidence(evidence).next(next)
}

/// Which cause leads?
pub(super) fn causes(ledger: &Ledger) -> Step {
    let causes = ledger.causes();
    let total = ledger.total();
    let timed = ledger.recording.emulated.is_none() && total.time_ns > 0;
    let line = |(cause, tally): &(_, vmtax_events::Tally)| Evidence::CauseCount {
        cause: *cause,
        count: tally.count,
        share: timed.then(|| tally.time_ns as f64 / total.time_ns as f64),
    };
    let evidence = causes.iter().take(NAMED).map(line).collect();
    let (answer, says) = match causes.first() {
        Some((cause, _)) => (Answer::Yes, Says::LeadingCause(*cause)),
        None => (Answer::Unknown, Says::NoCauses),
    };
    Step::new(Question::Causes, answer, says).evidence(evidence)
}

/// What does nesting cost?
pub(super) fn nesting(ledger: &Ledger) -> Step {
    let nested = Nested::new(ledger);
    let handled = total(nested.rows.iter().map(|row| row.to_l1));
    let ancillary = || nested.rows.iter().flat_map(|row| &row.ancillary);
    let all = total(ancillary().map(|one| one.tally.count));
    let mut kinds: Vec<(Reason, u64, u64)> = Vec::new();
    for one in ancillary() {
        let (reason, value, count) = (one.reason, one.detail.value, one.tally.count);
        match kinds.iter_mut().find(|(known, at, _)| (known.name(), *at) == (reason.name(), value))
        {
            Some((.., known)) => add(known, count),
            None => kinds.push((reason, value, count)),
        }
    }
    kinds.sort_by_key(|(.., count)| std::cmp::Reverse(*count));
    let each = |count: u64| count as f64 / handled.max(1) as f64;
    let line = |(reason, value, count): &(_, u64, u64)| Evidence::Ancillary {
        reason: *reason,
        value: *value,
        each: each(*count),
    };
    let evidence = kinds.iter().take(NAMED).map(line).collect();
    let (answer, says) = match handled {
        0 => (Answer::Unknown, Says::NoNesting),
        _ => (Answer::Yes, Says::Nesting(each(all))),
    };
    let step = Step::new(Question::Nesting, answer, says).evidence(evidence);
    let l2 = ledger.exits.keys().any(|key| key.level == Level::L2);
    if l2 { step } else { step.next(Record::NestedExits) }
}
