//! Why a VM is slow: one verdict, the findings behind it, and the questions that led there.
//!
//! ```text
//!  contention   ── preempted / running: who had the processors          (never added to the tax)
//!  exits        ── (exit-kernel + exit-user) / running, by subject      (each exit has one subject)
//!  waiting      ── utilisation, short halts, a guest that polls
//!  memory       ── small pages, accesses of memory in a hot function, misses of the TLB
//!  counters     ── branch misses beside a base
//!  results      ── benchmarks by kind of VM and option
//! ```
//!
//! Remedies come from the one table of [`crate::remedy`], under its conditions.
//!
//! Left out on purpose: every guess: where the run does not say, the answer is "unknown" and what to record next. And
//! sentences: an explanation is values, of which `vmtax-report` makes words.

mod beside;
mod burst;
mod category;
mod certainty;
mod change;
mod exits;
mod finding;
mod findings;
mod interrupts;
mod kind;
mod mapped_pages;
mod mapping;
mod profiles;
mod results;
mod step;
mod subject;
mod sums;
mod verdict;
mod workload;

use std::sync::Arc;

use crate::Ledger;
use crate::diff::DiffSide;
use crate::remedy::{CONTRADICTED, RemedyId, VmKind};

use sums::RecordingSums;

pub use burst::Burst;
pub use category::is_category;
pub use certainty::Certainty;
pub use change::{ChangeRow, Fate, LoadChange};
pub use finding::{
    Advice, CpuHolder, Evidence, Finding, FindingCost, FoundKind, FunctionShare, MemoryAccess,
    Most, PerWork, SIMULATED_WALKS, SimulatedWalks,
};
pub use interrupts::LineTimer;
pub use results::POSTED_FIGURES;
pub use step::{
    ComparedFunction, ExplainStep, InstructionGain, Question, Says, StepAnswer, ToRecord,
};
pub use subject::Subject;
pub use sums::TAX_MATTERS;
pub use verdict::{Costliest, Verdict};
pub use workload::{
    CategoryBeside, CategoryResult, ENOUGH, LOSS, MOST, Recovered, WorkloadResults,
};

/// The walk.
pub struct Explanation {
    /// The result.
    pub verdict: Verdict,
    /// What kind of VM it is, as far as the recording shows.
    pub kind: VmKind,
    /// What was found, what matters most first.
    pub findings: Vec<Finding>,
    /// The questions, in their order.
    pub steps: Vec<ExplainStep>,
    /// Results of benchmarks by workload, worst first.
    pub workloads: Vec<Arc<WorkloadResults>>,
}

impl Explanation {
    /// Explains one recording, beside a base that is fast if there is one.
    pub fn new(side: &DiffSide<'_>, base: Option<&DiffSide<'_>>) -> Explanation {
        let ledger = side.ledger;
        let base_ledger = base.map(|base| base.ledger);
        let context = kind::context(ledger);
        let mut samples = ledger.samples.clone();
        samples.extend(base_ledger.into_iter().flat_map(|base| base.samples.iter().cloned()));
        let is_posted = ledger.recording.format == POSTED_FIGURES;
        let workloads = match is_posted {
            true => results::posted(&samples),
            false => results::workloads(&samples, ledger.recording.emulated.is_some()),
        };
        let sums = RecordingSums::new(ledger);
        let mut steps = Vec::new();
        // A table of results alone has no exits to ask about.
        if workloads.is_empty() || !ledger.exits.is_empty() {
            steps.extend([
                exits::bottleneck(side, base, &sums),
                exits::causes(ledger),
                profiles::host(ledger, base_ledger),
                profiles::guest(ledger, base_ledger),
                profiles::instructions(ledger, base_ledger),
                mapped_pages::step(ledger, base_ledger),
            ]);
        }
        if ledger.has_nesting() {
            steps.push(exits::nesting(ledger));
        }
        steps.extend(results::step(&workloads, is_posted));
        let mut all = Vec::new();
        all.extend(findings::contention(ledger, &context));
        let mut exits = findings::of_exits(ledger, &context, &sums);
        let is_clock = |one: &Finding| one.found == FoundKind::Exits(Subject::ClockReads);
        for shown in findings::of_profiles(ledger, &context) {
            // A profile shows more of a clock's cost than its exits do; else exits are counted exactly.
            if is_clock(&shown) {
                exits.retain(|one| !is_clock(one));
            }
            if !exits.iter().any(|one| one.found == shown.found) {
                all.push(shown);
            }
        }
        all.extend(exits);
        if ledger.exits.is_empty() {
            all.extend(findings::of_kvm_counters(ledger, &context));
        }
        all.extend(findings::of_observed(ledger, &context));
        all.extend(findings::of_counters(ledger, base_ledger, &context));
        all.extend(findings::shattered(ledger, &context, &sums));
        all.extend(base_ledger.and_then(|base| findings::of_tlb(ledger, base, &context)));
        all.extend(
            findings::of_memory((ledger, base_ledger), &context, &sums)
                .filter(|_| !base_is_as_small(ledger, base_ledger)),
        );
        all.extend(results::findings(&workloads, &context));
        if let Some(base) = base {
            findings::infer_timer(&mut all, (side, base), &context);
        }
        all.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let verdict = verdict::judge(&steps, &all, &context, ledger, &sums, &workloads);
        if matches!(verdict, Verdict::Memory { .. }) {
            findings::advise_private(&mut all, &context);
        }
        if matches!(verdict, Verdict::Idle { .. }) || exits::too_few(ledger, &sums).is_some() {
            // What an idle VM's exits cost of its little running time is nothing to change, nor are a few exits.
            all.retain(|finding| finding.cost == FindingCost::Unknown);
        }
        if steps.iter().any(|step| step.says.gains_nothing()) {
            // Exits that halt are all that there is.
            let is_other = |found: &FoundKind| match found {
                FoundKind::Exits(subject) => *subject != Subject::Halts,
                other => matches!(other, FoundKind::OtherExits(_)),
            };
            all.retain(|finding| !is_other(&finding.found));
        }
        // What the verdict rests on comes first.
        all.sort_by_key(|finding| !verdict.rests_on(&finding.found));
        without_contradictions(&mut all);
        Explanation { verdict, kind: context.kind, findings: all, steps, workloads }
    }
}

/// Memory that is mapped as small in the base is not what differs.
fn base_is_as_small(ledger: &Ledger, base: Option<&Ledger>) -> bool {
    let small = mapping::is_small(ledger).unwrap_or(false);
    small && base.and_then(mapping::is_small) == Some(true)
}

/// Of two remedies that contradict each other the one of the finding that matters more is advised.
fn without_contradictions(all: &mut [Finding]) {
    let mut advised: Vec<RemedyId> = Vec::new();
    for finding in all {
        let opposite =
            |id: RemedyId| advised.iter().any(|known| crate::remedy::are_opposites(*known, id));
        let refused = finding.remedies.extract_if(.., |advice| opposite(advice.remedy.id));
        let refused: Vec<_> = refused.map(|advice| (advice.remedy.id, CONTRADICTED)).collect();
        finding.refused.extend(refused);
        advised.extend(finding.remedies.iter().map(|advice| advice.remedy.id));
    }
}
