//! The questions about exits: whether they are the bottleneck, which cause leads, what nesting costs.

use std::collections::BTreeMap;

use vmtax_events::{Cause, Level, Reason};

use super::burst::burst;
use super::finding::Evidence;
use super::findings;
use super::step::{ExplainStep, Question, Says, StepAnswer, ToRecord};
use super::sums::{NAMED, RecordingSums, TAX_MATTERS, add, lacks_entries, total};
use crate::diff::{ABOUT_EQUAL, Diff, DiffRow, DiffSide, DiffVerdict, Per, suitable};
use crate::ledger::{running_ns, tax_range};
use crate::vm_facts::kind;
use crate::{By, Ledger, Nested};

/// Part of the base's exits that must be of causes that are the same in both, for both to take the same exits.
const SAME_EXITS: f64 = 0.9;
/// A recording with fewer exits than this that is shorter than this shows no more than chance.
const TOO_FEW: u64 = 20;
const TOO_SHORT_NS: u64 = 100_000_000;

/// The exits of a recording that is too small to conclude from, and its length, ns.
pub(super) fn too_few(ledger: &Ledger, sums: &RecordingSums) -> Option<(u64, u64)> {
    let ns = ledger.time.values().map(|time| time.sum.wall_ns).max().unwrap_or(0);
    (sums.timed && sums.total < TOO_FEW && ns < TOO_SHORT_NS).then_some((sums.total, ns))
}

fn unknown_part(ledger: &Ledger) -> f64 {
    let time = ledger.time_total();
    if time.wall_ns == 0 { 1.0 } else { time.unknown_ns as f64 / time.wall_ns as f64 }
}

/// Is handling exits the bottleneck?
pub(super) fn bottleneck(
    side: &DiffSide<'_>,
    base: Option<&DiffSide<'_>>,
    sums: &RecordingSums,
) -> ExplainStep {
    let ledger = side.ledger;
    let step = |answer, says| ExplainStep::new(Question::Exits, answer, says);
    let unknown = |says, next| step(StepAnswer::Unknown, says).next(next);
    let emulated = ledger.recording.emulated.is_some();
    if let Some((count, ns)) = too_few(ledger, sums) {
        return unknown(Says::TooFew(count, ns), ToRecord::Longer);
    }
    if !emulated && lacks_entries(ledger) {
        return unknown(Says::NoEntries(unknown_part(ledger)), ToRecord::Entries);
    }
    if let (false, Some(each_ns)) = (emulated, sums.interrupts_wait(ledger)) {
        return unknown(Says::LongInterrupts(each_ns), ToRecord::Sched);
    }
    if let (false, Some(tax)) = (emulated, ledger.tax()) {
        let time = ledger.time_total();
        let exits_ns = time.exit_kernel_ns.saturating_add(time.exit_user_ns);
        let running_ns = running_ns(&time);
        let mut evidence = vec![Evidence::ExitTax { tax, exits_ns, running_ns }];
        evidence.extend(tax_range(&time).map(|[low, high]| Evidence::TaxRange(low, high)));
        evidence.extend(burst(ledger).map(Evidence::Burst));
        return if tax >= TAX_MATTERS {
            step(StepAnswer::Yes, Says::Tax(tax)).evidence(evidence)
        } else {
            let step = step(StepAnswer::No, Says::SmallTax(tax)).evidence(evidence);
            step.next(ToRecord::BetweenExits)
        };
    }
    match (base, sums.spent_ns) {
        (None, Some(spent_ns)) => {
            let all_ns = ledger.total().time_ns;
            unknown(Says::NoRunningTime { spent_ns, all_ns }, ToRecord::Recording)
        }
        (None, None) if ledger.exits.is_empty() => {
            let says = findings::counted_exits(ledger);
            unknown(says.unwrap_or(Says::NoExits), ToRecord::Times)
        }
        (None, None) => unknown(Says::OnlyCounts { emulated }, ToRecord::Times),
        (Some(base), _) => against(side, base),
    }
}

/// Exits that two kinds of VM take for the same purpose, where a recording has no more than reasons: an interrupt is the host's timer
/// or the preemption timer, a request is an MSR write or a TDCALL ("Performance tuning for oneDNN on TDX").
fn class(cause: Cause) -> Cause {
    match cause {
        Cause::TimerTick | Cause::HostTick | Cause::HostIpi | Cause::HostDevice => {
            Cause::HostInterrupt
        }
        Cause::TimerArm | Cause::Msr => Cause::Hypercall,
        other => other,
    }
}

/// Exits of one class in both.
struct Class {
    causes: Vec<Cause>,
    /// Rate and count.
    base: (f64, u64),
    other: (f64, u64),
    verdict: DiffVerdict,
}

impl Class {
    fn most(&self) -> f64 {
        self.base.0.max(self.other.0)
    }

    fn is_same(&self) -> bool {
        matches!(
            self.verdict,
            DiffVerdict::Equal | DiffVerdict::AboutEqual | DiffVerdict::NoDifference
        )
    }

    /// Adds a row: of several, their sums are compared.
    fn add(&mut self, row: &DiffRow, cause: Cause) {
        self.causes.push(cause);
        self.base = (self.base.0 + row.base.rate, self.base.1.saturating_add(row.base.count));
        self.other = (self.other.0 + row.other.rate, self.other.1.saturating_add(row.other.count));
        let (base, other) = (self.base.0, self.other.0);
        self.verdict = match self.causes.len() {
            1 => row.verdict_of_counts(),
            _ if base == other => DiffVerdict::Equal,
            _ if (base - other).abs() <= self.most() * ABOUT_EQUAL => DiffVerdict::AboutEqual,
            _ if other > base => DiffVerdict::MoreUntested,
            _ => DiffVerdict::FewerUntested,
        };
    }
}

/// Rows by class, most exits first.
fn by_class(rows: &[DiffRow]) -> Vec<Class> {
    let mut classes: BTreeMap<Cause, Class> = BTreeMap::new();
    for row in rows {
        let Some(crate::KeyValue::Cause(cause)) = row.key.first().copied() else { continue };
        let empty = || Class {
            causes: Vec::new(),
            base: (0.0, 0),
            other: (0.0, 0),
            verdict: DiffVerdict::Equal,
        };
        classes.entry(class(cause)).or_insert_with(empty).add(row, cause);
    }
    let mut classes: Vec<Class> = classes.into_values().collect();
    classes.sort_by(|a, b| b.most().total_cmp(&a.most()));
    classes
}

/// Both take the same exits, and the base is fast: then it is not the exits.
fn against(side: &DiffSide<'_>, base: &DiffSide<'_>) -> ExplainStep {
    let step = |answer, says| ExplainStep::new(Question::Exits, answer, says);
    let per = match suitable(base, side) {
        Per::Operation => Per::Recording,
        per => per,
    };
    let Ok(diff) = Diff::new(base, side, per, &[By::Cause]) else {
        return step(StepAnswer::Unknown, Says::NotComparable);
    };
    let rows = &diff.tables[0].rows;
    let classes = by_class(rows);
    let all: f64 = classes.iter().map(Class::most).sum();
    let alike: f64 = classes.iter().filter(|class| class.is_same()).map(Class::most).sum();
    let line = |class: &Class| Evidence::CausesCompared {
        causes: class.causes.clone(),
        here: class.other.1,
        base: class.base.1,
        verdict: class.verdict,
    };
    let evidence = classes.iter().take(NAMED).map(line).collect();
    let (here, there) = (kind(side.ledger), kind(base.ledger));
    let confidential = here.is_confidential() || there.is_confidential();
    let share = if all > 0.0 { alike / all } else { 0.0 };
    let (answer, says, next) = if here != there && all > 0.0 && confidential {
        (StepAnswer::Unknown, Says::OtherKind(share, here, there), ToRecord::TimesOrTrial)
    } else if all > 0.0 && alike >= all * SAME_EXITS {
        (StepAnswer::No, Says::SameExits(share), ToRecord::BetweenExits)
    } else {
        (StepAnswer::Unknown, Says::OtherExits(share), ToRecord::TimesOfBoth)
    };
    step(answer, says).evidence(evidence).next(next)
}

/// Which cause leads?
pub(super) fn causes(ledger: &Ledger) -> ExplainStep {
    let mut causes = ledger.causes();
    let total = ledger.total();
    let timed = ledger.recording.emulated.is_none() && total.time_ns > 0;
    // By the measure of the verdict: time that is not waited, else counts.
    if timed {
        causes.sort_by_key(|(cause, _)| *cause == Cause::Idle);
    } else {
        causes.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.count));
    }
    let line = |(cause, tally): &(_, vmtax_events::Tally)| Evidence::CauseCount {
        cause: *cause,
        count: tally.count,
        share: timed.then(|| tally.time_ns as f64 / total.time_ns as f64),
    };
    let evidence = causes.iter().take(NAMED).map(line).collect();
    let (answer, says) = match causes.first() {
        Some((cause, _)) => (StepAnswer::Yes, Says::LeadingCause(*cause)),
        None => (StepAnswer::Unknown, Says::NoCauses),
    };
    ExplainStep::new(Question::Causes, answer, says).evidence(evidence)
}

/// What does nesting cost?
pub(super) fn nesting(ledger: &Ledger) -> ExplainStep {
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
        0 => (StepAnswer::Unknown, Says::NoNesting),
        _ => (StepAnswer::Yes, Says::Nesting(each(all))),
    };
    let step = ExplainStep::new(Question::Nesting, answer, says).evidence(evidence);
    let l2 = ledger.exits.keys().any(|key| key.level == Level::L2);
    let record = match ledger.isa().facts().is_x86() {
        true => ToRecord::NestedExits,
        false => ToRecord::Nested,
    };
    if l2 { step } else { step.next(record) }
}
