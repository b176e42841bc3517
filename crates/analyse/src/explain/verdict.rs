//! The result of an explanation: one verdict, of the steps and findings.

use std::collections::BTreeSet;
use std::sync::Arc;

use vmtax_events::{ProfileOrigin, Sample};

use super::burst::{Burst, burst};
use super::category::is_category;
use super::certainty::Certainty;
use super::exits::too_few;
use super::finding::{Finding, FindingCost, FoundKind};
use super::findings::{counted_exits, is_of_io, is_throttled, lasting_contention};
use super::interrupts::wakes;
use super::mapping;
use super::step::{ExplainStep, Question, Says, StepAnswer};
use super::subject::Subject;
use super::sums::{POLL_NS, RecordingSums, TAX_MATTERS, is_half, is_most, short_halts};
use super::workload::WorkloadResults;
use crate::Ledger;
use crate::ledger::{Taker, running_ns};
use crate::remedy::{Context, VmKind};

/// A part of its time that the busiest vCPU must not be halted for the VM to be more than idle.
const BUSY: f64 = 0.10;
/// Halts a second and vCPU from which on waking up is what the guest does.
const OFTEN: f64 = 500.0;
/// A part of the running time from which on waiting for processors is the verdict where exits have no times.
const LONG_WAITS: f64 = 0.25;
/// Threads that are named.
const NAMED: usize = 3;

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The guest is idle and polls, in this share of its samples.
    Polling(f64),
    /// vCPUs wait for processors.
    Contention {
        /// The share of the running time.
        share: f64,
        /// The exit tax beside it; `None` where exits have no times.
        tax: Option<f64>,
        /// Who had the processors; `None`: nobody, vCPUs were held back. Hostile text.
        takers: Option<Vec<String>>,
    },
    /// Exits cost time.
    Exits {
        /// The exit tax.
        tax: f64,
        /// The exits that cost most.
        most: Option<Costliest>,
        /// Contention beside it, if it matters.
        contention: Option<f64>,
    },
    /// The guest waits in short halts.
    WakeUps {
        /// Halts a second and vCPU.
        rate: f64,
        /// Of them, those that ended within `within_ns`.
        short: u64,
        /// All that blocked.
        all: u64,
        /// KVM's polling time.
        within_ns: u64,
    },
    /// The guest copies data through a bounce buffer, for this share of its samples.
    BounceBuffer(f64),
    /// One finding is the answer: exits, misses of the TLB or of branches.
    Finding(FoundKind),
    /// Exits take most of the time for a while.
    Burst(Burst),
    /// The guest waits for memory.
    Memory {
        /// Exits are known not to be the bottleneck.
        exits_excluded: bool,
        /// How the memory is mapped.
        pages: FoundKind,
    },
    /// Results of benchmarks, worst first.
    Results(Vec<Arc<WorkloadResults>>),
    /// Exits are not the bottleneck.
    NotExits(Says),
    /// The VM does next to nothing.
    Idle {
        /// The share in which the busiest vCPU is not halted.
        busiest: f64,
    },
    /// Nothing was decided.
    Undecided {
        /// What the question about exits says.
        says: Option<Says>,
        /// The exits that occur most.
        most: Option<FoundKind>,
    },
    /// Results of benchmarks cannot be compared.
    NothingToCompare {
        /// Categories name kinds of VM, but no workload has two.
        has_kinds: bool,
        /// The first categories. Hostile text.
        categories: Vec<String>,
    },
}

/// The exits that cost most.
#[derive(Clone, Debug, PartialEq)]
pub struct Costliest {
    /// What they are.
    pub found: FoundKind,
    /// Their share of the running time.
    pub share: f64,
}

impl Verdict {
    /// Its word. These words never change.
    pub fn id(&self) -> &'static str {
        match self {
            Verdict::Polling(_) => "polling",
            Verdict::Contention { .. } => "contention",
            Verdict::Exits { .. } | Verdict::Burst(_) => "exits",
            Verdict::WakeUps { .. } => "wake-ups",
            Verdict::BounceBuffer(_) => "bounce-buffer",
            Verdict::Finding(found) => found.verdict(),
            Verdict::Memory { .. } => "memory",
            Verdict::Results(_) => "results",
            Verdict::NotExits(_) => "not-exits",
            Verdict::Idle { .. } => "idle",
            Verdict::Undecided { .. } | Verdict::NothingToCompare { .. } => "undecided",
        }
    }

    /// Whether it rests on a finding.
    pub(super) fn rests_on(&self, found: &FoundKind) -> bool {
        match self {
            Verdict::Contention { .. } => matches!(found, FoundKind::Contention(_)),
            Verdict::Polling(_) => *found == FoundKind::GuestPolls,
            Verdict::WakeUps { .. } => *found == FoundKind::Exits(Subject::Halts),
            Verdict::BounceBuffer(_) => *found == FoundKind::BounceBuffer,
            Verdict::Finding(FoundKind::Exits(_)) | Verdict::Burst(_) => false,
            Verdict::Finding(
                FoundKind::SmallPages { .. } | FoundKind::TlbMisses | FoundKind::RemoteMemory,
            )
            | Verdict::Memory { .. } => {
                matches!(
                    found,
                    FoundKind::SmallPages { .. } | FoundKind::TlbMisses | FoundKind::RemoteMemory
                )
            }
            Verdict::Finding(shown) => found == shown,
            Verdict::Exits { .. }
            | Verdict::Results(_)
            | Verdict::NotExits(_)
            | Verdict::Idle { .. }
            | Verdict::Undecided { .. }
            | Verdict::NothingToCompare { .. } => false,
        }
    }
}

/// The verdict of these steps and findings.
pub(super) fn judge(
    steps: &[ExplainStep],
    all: &[Finding],
    context: &Context,
    ledger: &Ledger,
    sums: &RecordingSums,
    workloads: &[Arc<WorkloadResults>],
) -> Verdict {
    let finding = |found: FoundKind| all.iter().find(move |finding| finding.found == found);
    if let Some(polls) = finding(FoundKind::GuestPolls).filter(|polls| polls.weight >= 0.5) {
        return Verdict::Polling(polls.weight);
    }
    if finding(FoundKind::HaltsReturn).is_some() {
        return Verdict::Finding(FoundKind::HaltsReturn);
    }
    let top = all.iter().find(|finding| {
        !matches!(finding.cost, FindingCost::Unknown)
            && !matches!(finding.found, FoundKind::Contention(_))
    });
    if let Some(found) = of_times(ledger, sums, top).or_else(|| waiting_under_an_emulator(ledger)) {
        return match (&found, wakes(ledger, sums)) {
            (Verdict::WakeUps { .. }, Some(timer)) => Verdict::Finding(FoundKind::LineTimer(timer)),
            _ => found,
        };
    }
    if let Some(found) = finding(FoundKind::BounceBuffer).filter(|found| found.weight >= 0.10) {
        return Verdict::BounceBuffer(found.weight);
    }
    if let Some(found) =
        finding(FoundKind::Exits(Subject::ClockReads)).filter(|found| found.weight >= 0.05)
    {
        return Verdict::Finding(found.found.clone());
    }
    if let Some(found) = of_memory(steps, all, context, ledger) {
        return found;
    }
    let tlb = finding(FoundKind::TlbMisses).filter(|found| found.certainty == Certainty::Likely);
    let remote = || finding(FoundKind::RemoteMemory);
    if let Some(found) = tlb.or_else(remote).or_else(|| finding(FoundKind::BranchMisses)) {
        return Verdict::Finding(found.found.clone());
    }
    if !workloads.is_empty() && ledger.exits.is_empty() {
        return Verdict::Results(workloads.to_vec());
    }
    if ledger.exits.is_empty()
        && let Some(found) = nothing_to_compare(&ledger.samples)
    {
        return found;
    }
    if ledger.exits.is_empty()
        && let Some(found) = without_exits(steps, all, ledger)
    {
        return found;
    }
    match steps.iter().find(|step| step.question == Question::Exits) {
        Some(step) if step.answer == StepAnswer::No => match burst(ledger) {
            Some(burst) => Verdict::Burst(burst),
            None => Verdict::NotExits(step.says.clone()),
        },
        Some(step) => {
            let count = |one: &&Finding| match &one.found {
                FoundKind::Exits(subject) => sums.by_subject.get(subject).map(|sum| sum.count),
                _ => None,
            };
            let most = all.iter().filter(|one| count(one).is_some()).max_by_key(count);
            let says = Some(step.says.clone());
            Verdict::Undecided { says, most: most.map(|most| most.found.clone()) }
        }
        None => Verdict::Undecided { says: None, most: None },
    }
}

/// The verdict of a profile, or of counters, without a recording of exits.
fn without_exits(steps: &[ExplainStep], all: &[Finding], ledger: &Ledger) -> Option<Verdict> {
    let shown = all.first().map(|finding| finding.found.clone());
    if [ProfileOrigin::Host, ProfileOrigin::Guest]
        .iter()
        .any(|place| ledger.profiles.contains_key(place))
    {
        let asks = |step: &&ExplainStep| matches!(step.question, Question::Host | Question::Guest);
        let says = || steps.iter().filter(asks).find(|step| step.answer == StepAnswer::Yes);
        let nothing = || Some(Verdict::Undecided { says: Some(says()?.says.clone()), most: None });
        return shown.map(Verdict::Finding).or_else(nothing);
    }
    if let Some(first) = ledger.observed.first() {
        let nothing = || Verdict::Undecided { says: Some(Says::Observed(*first)), most: None };
        return Some(shown.map_or_else(nothing, Verdict::Finding));
    }
    if shown == Some(FoundKind::NoKvm) {
        return shown.map(Verdict::Finding);
    }
    let says = counted_exits(ledger).or(Some(Says::OnlyCounts { emulated: false }));
    let has_counts = shown.is_some() || !ledger.stats.is_empty();
    has_counts.then_some(Verdict::Undecided { says, most: shown })
}

/// The verdict that the times of exits and waiting allow.
fn of_times(ledger: &Ledger, sums: &RecordingSums, top: Option<&Finding>) -> Option<Verdict> {
    if !sums.timed || too_few(ledger, sums).is_some() || sums.interrupts_wait(ledger).is_some() {
        return None;
    }
    let contention = lasting_contention(ledger).unwrap_or(0.0);
    if let Some(found) = idle(ledger, sums, contention) {
        return Some(found);
    }
    let tax = ledger.tax();
    if contention >= TAX_MATTERS && contention >= tax.unwrap_or(0.0) {
        return Some(of_contention(ledger, contention, Some(tax.unwrap_or(0.0))));
    }
    if let Some(found) = wake_ups(ledger, sums) {
        return Some(found);
    }
    let tax = tax.filter(|tax| *tax >= TAX_MATTERS)?;
    let most = top.map(|top| Costliest { found: top.found.clone(), share: top.weight });
    let contention = (contention >= TAX_MATTERS).then_some(contention);
    Some(Verdict::Exits { tax, most, contention })
}

/// vCPUs wait for processors, and for whom.
fn of_contention(ledger: &Ledger, share: f64, tax: Option<f64>) -> Verdict {
    let all = ledger.takers();
    let label = |(taker, _): &(&Taker, _)| taker.label(&ledger.recording);
    let takers = || all.iter().take(NAMED).map(label).collect();
    Verdict::Contention { share, tax, takers: (!is_throttled(&all)).then(takers) }
}

/// Waiting that decides although exits have no times: who runs on an emulated host is real. Its one processor is no reason to speak of
/// the VMM's own threads.
fn waiting_under_an_emulator(ledger: &Ledger) -> Option<Verdict> {
    ledger.recording.emulated.as_ref()?;
    let share = lasting_contention(ledger).filter(|share| *share >= LONG_WAITS)?;
    if is_of_io(&ledger.takers()) {
        return None;
    }
    Some(of_contention(ledger, share, None))
}

/// A VM that does next to nothing.
fn idle(ledger: &Ledger, sums: &RecordingSums, contention: f64) -> Option<Verdict> {
    let busiest = ledger
        .time
        .values()
        .filter(|time| time.sum.wall_ns > 0)
        .map(|time| running_ns(&time.sum) as f64 / time.sum.wall_ns as f64)
        .fold(0.0, f64::max);
    let time = ledger.time_total();
    if !sums.timed || busiest >= BUSY || time.halted_ns == 0 {
        return None;
    }
    if let Some(found) = wake_ups(ledger, sums) {
        return Some(found);
    }
    // A vCPU that hardly runs because others have its processor is not idle.
    if contention * running_ns(&time) as f64 >= BUSY * time.wall_ns as f64 {
        return None;
    }
    Some(Verdict::Idle { busiest })
}

/// A guest with many short halts.
fn wake_ups(ledger: &Ledger, sums: &RecordingSums) -> Option<Verdict> {
    let (short, all) = short_halts(ledger)?;
    let rate = sums.rate(all)?;
    let of_halts = sums.by_subject.get(&Subject::Halts).map_or(0, |sum| sum.high_ns);
    let most = sums.by_subject.values().map(|sum| sum.high_ns).max().unwrap_or(0);
    (rate >= OFTEN && is_most(short, all) && is_half(of_halts, most)).then_some(Verdict::WakeUps {
        rate,
        short,
        all,
        within_ns: POLL_NS,
    })
}

/// The guest waits for memory, and its memory is mapped in small pages.
fn of_memory(
    steps: &[ExplainStep],
    all: &[Finding],
    context: &Context,
    ledger: &Ledger,
) -> Option<Verdict> {
    let small = all.iter().find(|finding| matches!(finding.found, FoundKind::SmallPages { .. }))?;
    let step = |question| steps.iter().find(|step| step.question == question);
    let waits = step(Question::Memory).is_some_and(|step| step.misses_more);
    let known = mapping::is_small(ledger).is_some() || context.kind == VmKind::Tdx;
    let shown = step(Question::Instructions).filter(|step| step.answer == StepAnswer::Yes);
    if shown.is_none() && !waits || !known {
        return None;
    }
    let exits_excluded = step(Question::Exits).is_some_and(|step| step.answer == StepAnswer::No);
    let pages = small.found.clone();
    Some(Verdict::Memory { exits_excluded, pages })
}

/// Why results alone allow no comparison.
fn nothing_to_compare(samples: &[Sample]) -> Option<Verdict> {
    let kinds: BTreeSet<&str> = samples.iter().map(|sample| &*sample.category).collect();
    let has_kinds = kinds.iter().any(|kind| is_category(kind));
    let categories = kinds.iter().take(3).map(|kind| (*kind).to_owned()).collect();
    (!samples.is_empty()).then_some(Verdict::NothingToCompare { has_kinds, categories })
}
