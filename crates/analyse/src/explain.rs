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
//! Left out on purpose: every guess: where the run does not say, the answer is "unknown" and what to record next.

mod category;
mod findings;
mod kind;
pub(crate) mod memory;
mod profiles;
mod results;
pub mod subject;

use vmtax_events::Level;

use crate::diff::{Diff, DiffRow, Per, Side, Verdict as RowVerdict, suitable};
use crate::ledger::{Taker, running_ns};
use crate::remedy::{Context, VmKind};
use crate::vm_facts::kind;
use crate::{By, Ledger, Nested};

pub use category::is_category;
pub use findings::{Advice, Cost, Finding};
pub use results::Workload;

/// A tax from which on exits are called the bottleneck: what a few percent of noise cannot hide.
pub const TAX_MATTERS: f64 = 0.05;
/// A part of its time that the busiest vCPU must not be halted for the VM to be more than idle.
const BUSY: f64 = 0.10;
/// Halts a second and vCPU from which on waking up is what the guest does.
const OFTEN: f64 = 500.0;
/// Part of the base's exits that must be of causes that are the same in both, for both to take the same exits.
const SAME_EXITS: f64 = 0.9;
/// A recording with fewer exits than this that is shorter than this shows no more than chance.
const TOO_FEW: u64 = 20;
const TOO_SHORT_NS: u64 = 100_000_000;
/// Causes, and kinds of ancillary exits, that are named.
const NAMED: usize = 5;

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// The recording can mean nothing else.
    Certain,
    /// It would be a surprise if not.
    Likely,
    /// One explanation of several.
    Possible,
}

impl Certainty {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Certain => "certain",
            Certainty::Likely => "likely",
            Certainty::Possible => "possible",
        }
    }
}

/// The answer to a step's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes.
    Yes,
    /// No.
    No,
    /// The recording does not say.
    Unknown,
}

impl Answer {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Answer::Yes => "yes",
            Answer::No => "no",
            Answer::Unknown => "unknown",
        }
    }
}

/// A question, its answer, and what that rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The question's word. These words never change.
    pub id: &'static str,
    /// The question.
    pub question: &'static str,
    /// The answer.
    pub answer: Answer,
    /// The answer as a sentence, without its full stop.
    pub says: String,
    /// What it rests on, a line each.
    pub evidence: Vec<String>,
    /// What to record or give to know more.
    pub next: Option<&'static str>,
    /// The TLB misses much more often than in the base.
    pub misses_more: bool,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its word. These words never change.
    pub id: &'static str,
    /// The sentence, without its full stop.
    pub says: String,
}

/// The walk.
pub struct Explanation {
    /// The result.
    pub verdict: Verdict,
    /// What kind of VM it is, as far as the recording shows.
    pub kind: VmKind,
    /// What was found, what matters most first.
    pub findings: Vec<Finding>,
    /// The questions, in their order.
    pub steps: Vec<Step>,
    /// Results of benchmarks by workload, worst first.
    pub workloads: Vec<Workload>,
}

impl Explanation {
    /// Explains one recording, beside a base that is fast if there is one.
    pub fn new(side: &Side<'_>, base: Option<&Side<'_>>) -> Explanation {
        let ledger = side.ledger;
        let base_ledger = base.map(|base| base.ledger);
        let context = kind::context(ledger);
        let mut samples = ledger.samples.clone();
        samples.extend(base_ledger.into_iter().flat_map(|base| base.samples.iter().cloned()));
        let workloads = results::workloads(&samples);
        let sums = findings::Sums::new(ledger);
        let mut steps = Vec::new();
        // A table of results alone has no exits to ask about.
        if workloads.is_empty() || !ledger.exits.is_empty() {
            steps.extend([
                bottleneck(side, base, &sums),
                causes(ledger),
                profiles::host(ledger, base_ledger),
                profiles::guest(ledger, base_ledger),
                profiles::instructions(ledger, base_ledger),
                memory::step(ledger, base_ledger),
            ]);
        }
        if ledger.has_nesting() {
            steps.push(nesting(ledger));
        }
        steps.extend(results::step(&workloads));
        let mut all = Vec::new();
        all.extend(findings::contention(ledger, &context));
        all.extend(findings::of_profiles(ledger, &context));
        let exits = findings::of_exits(ledger, &context, &sums);
        let clock_known = all.iter().any(|finding| finding.id == "clock-reads");
        all.extend(exits.into_iter().filter(|one| one.id != "clock-reads" || !clock_known));
        all.extend(findings::of_counters(ledger, base_ledger));
        all.extend(findings::shattered(ledger, &context, &sums));
        all.extend(base_ledger.and_then(|base| findings::of_tlb(ledger, base, &context)));
        all.extend(
            findings::of_memory((ledger, base_ledger), &context, &sums)
                .filter(|_| !base_is_as_small(ledger, base_ledger)),
        );
        all.extend(results::findings(&workloads, &context));
        all.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let verdict = judge(&steps, &all, &context, ledger, &sums, &workloads);
        if verdict.id == "idle" || too_little(ledger, &sums).is_some() {
            // What an idle VM's exits cost of its little running time is nothing to change, nor are a few exits.
            all.retain(|finding| finding.cost == Cost::Unknown);
        }
        // What the verdict rests on comes first.
        all.sort_by_key(|finding| !rests_on(verdict.id).contains(&finding.id));
        without_contradictions(&mut all);
        Explanation { verdict, kind: context.kind, findings: all, steps, workloads }
    }

    /// The step of this word.
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.id == id)
    }
}

/// Memory that is mapped as small in the base is not what differs.
fn base_is_as_small(ledger: &Ledger, base: Option<&Ledger>) -> bool {
    let small = memory::is_small(ledger).unwrap_or(false);
    small && base.and_then(memory::is_small) == Some(true)
}

/// The sentence that comes first.
fn judge(
    steps: &[Step],
    all: &[Finding],
    context: &Context,
    ledger: &Ledger,
    sums: &findings::Sums,
    workloads: &[Workload],
) -> Verdict {
    let verdict = |id, says: String| Verdict { id, says };
    let finding = |id: &str| all.iter().find(|finding| finding.id == id);
    let answer = |id: &str| steps.iter().find(|step| step.id == id).map(|step| step.answer);
    if let Some(polls) = finding("guest-polls").filter(|polls| polls.weight >= 0.5) {
        return verdict(
            "polling",
            format!(
                "the guest is idle and polls: {} of its samples; its processors look busy and do nothing",
                percent(polls.weight)
            ),
        );
    }
    let conclusive =
        sums.timed && too_little(ledger, sums).is_none() && sums.interrupts_wait(ledger).is_none();
    let contention = findings::lasting_contention(ledger).filter(|_| conclusive).unwrap_or(0.0);
    let tax = ledger.tax().filter(|_| conclusive);
    if conclusive && let Some(found) = idle(ledger, sums, contention) {
        return found;
    }
    if contention >= TAX_MATTERS && contention >= tax.unwrap_or(0.0) {
        let label = |(taker, _): &(&Taker, _)| taker.label(&ledger.recording);
        let named: Vec<String> = ledger.takers().iter().take(3).map(label).collect();
        if findings::is_throttled(&ledger.takers()) {
            return verdict(
                "contention",
                format!(
                    "vCPUs are held back {} of their running time while their processors are idle, as by a CPU quota (cpu.max); exits take {}",
                    percent(contention),
                    percent(tax.unwrap_or(0.0))
                ),
            );
        }
        let who = if named.is_empty() {
            String::new()
        } else {
            format!(", most of all for {}", named.join(", "))
        };
        return verdict(
            "contention",
            format!(
                "vCPUs wait for a processor {} of their running time{who}; exits take {}",
                percent(contention),
                percent(tax.unwrap_or(0.0))
            ),
        );
    }
    let top = all
        .iter()
        .find(|finding| !matches!(finding.cost, Cost::Unknown) && finding.id != "contention");
    if let Some(tax) = tax.filter(|tax| *tax >= TAX_MATTERS) {
        if let Some(found) = wake_ups(ledger, sums) {
            return found;
        }
        let most = top.map_or_else(String::new, |top| {
            let where_ = top.evidence.get(1).map_or_else(String::new, |line| format!(" ({line})"));
            format!("; most of it: {}{where_}, {}", top.means, percent(top.weight))
        });
        let beside = if contention >= TAX_MATTERS {
            format!("; waiting for a processor takes {} more", percent(contention))
        } else {
            String::new()
        };
        return verdict(
            "exits",
            format!("handling exits takes {} of the running time{most}{beside}", percent(tax)),
        );
    }
    if conclusive && let Some(found) = wake_ups(ledger, sums) {
        return found;
    }
    if let Some(found) = finding("bounce-buffer").filter(|found| found.weight >= 0.10) {
        return verdict(
            "bounce-buffer",
            format!("the guest spends {} in its bounce buffer", percent(found.weight)),
        );
    }
    if let Some(found) = finding("clock-reads").filter(|found| found.weight >= 0.05) {
        return verdict("exits", format!("{}: {}", found.means, found.evidence.join("; ")));
    }
    if let Some(found) = of_memory(steps, all, context, ledger) {
        return found;
    }
    if let Some(found) = finding("tlb-misses").filter(|found| found.certainty == Certainty::Likely)
    {
        return verdict("memory", format!("{}: {}", found.means, found.evidence[0]));
    }
    if let Some(found) = finding("branch-misses") {
        return verdict("branch-misses", format!("{}: {}", found.means, found.evidence[0]));
    }
    if !workloads.is_empty() && ledger.exits.is_empty() {
        return results::verdict(workloads);
    }
    if ledger.exits.is_empty()
        && let Some(says) = results::nothing_to_compare(&ledger.samples)
    {
        return verdict("undecided", format!("undecided: {says}"));
    }
    let exits = steps.iter().find(|step| step.id == "exits");
    match (answer("exits"), exits) {
        (Some(Answer::No), Some(step)) => verdict("not-exits", step.says.clone()),
        (_, Some(step)) => {
            let most = top.map_or_else(String::new, |top| {
                format!("; most exits: {} ({})", top.means, top.evidence.join("; "))
            });
            verdict("undecided", format!("undecided: {}{most}", step.says))
        }
        _ => verdict(
            "undecided",
            "undecided: the recording does not show where time goes".to_owned(),
        ),
    }
}

/// Of two remedies that contradict each other the one of the finding that matters more is advised.
fn without_contradictions(all: &mut [Finding]) {
    let mut advised: Vec<&'static str> = Vec::new();
    for finding in all {
        let opposite =
            |id: &str| advised.iter().any(|known| crate::remedy::are_opposites(known, id));
        let refused = finding.remedies.extract_if(.., |advice| opposite(advice.remedy.id));
        let why = "it contradicts the remedy of a more important finding";
        let refused: Vec<_> = refused.map(|advice| (advice.remedy.id, why)).collect();
        finding.refused.extend(refused);
        advised.extend(finding.remedies.iter().map(|advice| advice.remedy.id));
    }
}

/// Findings that a verdict rests on.
fn rests_on(verdict: &str) -> &'static [&'static str] {
    match verdict {
        "contention" => &["contention"],
        "polling" => &["guest-polls"],
        "wake-ups" => &["halts"],
        "memory" => &["small-pages", "tlb-misses"],
        "bounce-buffer" => &["bounce-buffer"],
        "branch-misses" => &["branch-misses"],
        _ => &[],
    }
}

/// Why a recording is too small to conclude from.
fn too_little(ledger: &Ledger, sums: &findings::Sums) -> Option<String> {
    let ns = ledger.time.values().map(|time| time.sum.wall_ns).max().unwrap_or(0);
    (sums.timed && sums.total < TOO_FEW && ns < TOO_SHORT_NS).then(|| {
        format!("{} exits in {:.1} ms are too few for a conclusion", sums.total, ns as f64 / 1e6)
    })
}

/// A VM that does next to nothing.
fn idle(ledger: &Ledger, sums: &findings::Sums, contention: f64) -> Option<Verdict> {
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
    let says = format!(
        "the VM is idle: its busiest vCPU is not halted {} of the time ({} ms of {} ms in all); fewer exits would gain nothing",
        percent(busiest),
        running_ns(&time) / 1_000_000,
        time.wall_ns / 1_000_000
    );
    Some(Verdict { id: "idle", says })
}

/// A guest with many short halts.
fn wake_ups(ledger: &Ledger, sums: &findings::Sums) -> Option<Verdict> {
    let (short, all) = findings::short_halts(ledger)?;
    let rate = sums.rate(all)?;
    let of_halts = sums.by_subject.get("halts").map_or(0, |sum| sum.high_ns);
    let most = sums.by_subject.values().map(|sum| sum.high_ns).max().unwrap_or(0);
    (rate >= OFTEN && short * 2 > all && of_halts * 2 >= most).then(|| Verdict {
        id: "wake-ups",
        says: format!(
            "the guest waits in short halts: {rate:.0} a second and vCPU, {short} of {all} within {} us; each sleep and wake-up costs more than its exit shows",
            findings::POLL_NS / 1000
        ),
    })
}

/// The guest waits for memory, and its memory is mapped in small pages.
fn of_memory(
    steps: &[Step],
    all: &[Finding],
    context: &Context,
    ledger: &Ledger,
) -> Option<Verdict> {
    let small = all.iter().find(|finding| finding.id == "small-pages")?;
    let answer = |id: &str| steps.iter().find(|step| step.id == id).map(|step| step.answer);
    let waits = steps.iter().any(|step| step.id == "memory" && step.misses_more);
    let known = memory::is_small(ledger).is_some() || context.kind == VmKind::Tdx;
    let sure = answer("instructions") == Some(Answer::Yes) || waits;
    if !sure || !known {
        return None;
    }
    let exits = match answer("exits") {
        Some(Answer::No) => "exits are not the bottleneck; ",
        _ => "",
    };
    let shown = steps.iter().find(|step| step.id == "instructions" && step.answer == Answer::Yes);
    let shown = shown.and_then(|step| step.says.split("; ").next());
    let shown = shown.map_or_else(String::new, |says| format!(" ({says})"));
    Some(Verdict {
        id: "memory",
        says: format!("{exits}the guest waits for memory{shown}: {}", small.means),
    })
}

fn percent(share: f64) -> String {
    // An empty sum is -0.0.
    format!("{:.1} %", share * 100.0 + 0.0)
}

fn unknown_part(ledger: &Ledger) -> f64 {
    let time = ledger.time_total();
    time.unknown_ns as f64 / time.wall_ns.max(1) as f64
}

fn bottleneck(side: &Side<'_>, base: Option<&Side<'_>>, sums: &findings::Sums) -> Step {
    let ledger = side.ledger;
    let step = |answer, says: String, evidence, next| Step {
        id: "exits",
        question: "Is handling exits the bottleneck?",
        answer,
        says,
        evidence,
        next,
        misses_more: false,
    };
    let of_hardware = ledger.recording.emulated.is_none();
    if let Some(says) = too_little(ledger, sums) {
        let next = "ten seconds and more while the load runs";
        return step(Answer::Unknown, says, Vec::new(), Some(next));
    }
    if of_hardware && findings::lacks_entries(ledger) {
        let says = format!(
            "{} of the time between exits is unknown: the recording lacks kvm:kvm_entry, or lost most of it",
            percent(unknown_part(ledger))
        );
        let next = "kvm:kvm_entry beside kvm:kvm_exit: `perf kvm stat record -a`, or `perf record -a -e 'kvm:*' -e sched:sched_switch`";
        return step(Answer::Unknown, says, Vec::new(), Some(next));
    }
    if let (true, Some(each_ns)) = (of_hardware, sums.interrupts_wait(ledger)) {
        let says = format!(
            "interrupts of the host take {:.1} ms each, which is no time that handling one takes: the vCPUs were probably preempted, and sched:sched_switch was not recorded",
            each_ns as f64 / 1e6
        );
        let next = "sched:sched_switch beside the exits: `perf record -a -e 'kvm:*' -e sched:sched_switch`, which shows who had the processors";
        return step(Answer::Unknown, says, Vec::new(), Some(next));
    }
    if let (true, Some(tax)) = (of_hardware, ledger.tax()) {
        let time = ledger.time_total();
        let evidence = vec![format!(
            "exit tax {}: {} ms in exits of {} ms that the vCPUs were not halted",
            percent(tax),
            (time.exit_kernel_ns + time.exit_user_ns) / 1_000_000,
            running_ns(&time) / 1_000_000
        )];
        let most = format!("without any exit at most {} of the time would be gained", percent(tax));
        return if tax >= TAX_MATTERS {
            step(Answer::Yes, most, evidence, None)
        } else {
            let next = "what the guest does between exits: a profile of it, its page sizes";
            step(Answer::No, format!("exits are not the bottleneck: {most}"), evidence, Some(next))
        };
    }
    if let (None, Some(spent_ns)) = (base, sums.spent_ns) {
        let says = format!(
            "exits that do not halt took {} ms; the table does not contain the running time",
            spent_ns / 1_000_000
        );
        let next = "the recording itself (perf.data.guest of `perf kvm stat record`), which contains the running time of the vCPUs";
        return step(Answer::Unknown, says, Vec::new(), Some(next));
    }
    let Some(base) = base else {
        let says = if ledger.exits.is_empty() {
            "the recording contains no exits"
        } else if of_hardware {
            "counts alone do not show the cost of exits"
        } else {
            "times under an emulator do not reflect hardware, and counts alone do not show the cost of exits"
        };
        let next = "a recording with times: `perf kvm stat record -a`, or `perf record -a -e 'kvm:*' -e sched:sched_switch`";
        return step(Answer::Unknown, says.to_owned(), Vec::new(), Some(next));
    };
    against(side, base, step)
}

/// Both take the same exits, and the base is fast: then it is not the exits.
fn against(
    side: &Side<'_>,
    base: &Side<'_>,
    step: impl Fn(Answer, String, Vec<String>, Option<&'static str>) -> Step,
) -> Step {
    let ledger = side.ledger;
    let per = match suitable(base, side) {
        Per::Operation => Per::Recording,
        per => per,
    };
    let Ok(diff) = Diff::new(base, side, per, &[By::Cause]) else {
        return step(Answer::Unknown, "the base cannot be compared".to_owned(), Vec::new(), None);
    };
    let rows = &diff.tables[0].rows;
    let same = |row: &&DiffRow| {
        matches!(
            row.verdict(),
            RowVerdict::Equal | RowVerdict::AboutEqual | RowVerdict::NoDifference
        )
    };
    let all: f64 = rows.iter().map(|row| row.base.rate.max(row.other.rate)).sum();
    let alike: f64 = rows.iter().filter(same).map(|row| row.base.rate.max(row.other.rate)).sum();
    let mut shown: Vec<&DiffRow> = rows.iter().collect();
    shown.sort_by(|a, b| b.base.rate.max(b.other.rate).total_cmp(&a.base.rate.max(a.other.rate)));
    let line = |row: &&DiffRow| {
        let cause = match row.key.first() {
            Some(crate::Value::Cause(cause)) => cause.name(),
            _ => "",
        };
        format!(
            "{cause}: {} here, {} in the base: {}",
            row.other.count,
            row.base.count,
            row.verdict().name()
        )
    };
    let evidence: Vec<String> = shown.iter().take(NAMED).map(line).collect();
    let kinds = (kind(ledger), kind(base.ledger));
    if kinds.0 != kinds.1 && all > 0.0 && (kinds.0.is_confidential() || kinds.1.is_confidential()) {
        let says = format!(
            "counts decide nothing: {} of the exits have causes that are equally frequent in both, but one is a {} and the other a {} VM, and the cost of an exit in each is unknown",
            percent(alike / all),
            kinds.0.name(),
            kinds.1.name()
        );
        let next = "times of exits on both hosts (`perf kvm stat record -a`); or take the exits away (nohz_full in the guest) and see whether the gap stays";
        return step(Answer::Unknown, says, evidence, Some(next));
    }
    if all > 0.0 && alike >= all * SAME_EXITS {
        let says = format!(
            "exits are not the bottleneck, if the base is fast: {} of them have causes that are equally frequent there",
            percent(alike / all)
        );
        let next = "what the guest does between exits: a profile of it, its page sizes";
        return step(Answer::No, says, evidence, Some(next));
    }
    let says = format!(
        "the two do not take the same exits: only {} have causes that are equally frequent in both",
        percent(if all > 0.0 { alike / all } else { 0.0 })
    );
    step(Answer::Unknown, says, evidence, Some("a recording with times (`perf kvm stat record`)"))
}

fn causes(ledger: &Ledger) -> Step {
    let causes = ledger.causes();
    let total = ledger.total();
    let timed = ledger.recording.emulated.is_none() && total.time_ns > 0;
    let evidence = causes
        .iter()
        .take(NAMED)
        .map(|(cause, tally)| {
            let mut line = format!("{}: {} exits", cause.name(), tally.count);
            if timed {
                let share = tally.time_ns as f64 / total.time_ns as f64;
                line += &format!(", {} of the time in exits, halts included", percent(share));
            }
            line
        })
        .collect();
    let (answer, says) = match causes.first() {
        Some((cause, _)) => {
            (Answer::Yes, format!("{}: most of it is the guest {}", cause.name(), cause.describe()))
        }
        None => (Answer::Unknown, "the recording has no exits".to_owned()),
    };
    Step {
        id: "causes",
        question: "Which cause leads?",
        answer,
        says,
        evidence,
        next: None,
        misses_more: false,
    }
}

fn nesting(ledger: &Ledger) -> Step {
    let nested = Nested::new(ledger);
    let handled: u64 = nested.rows.iter().map(|row| row.to_l1).sum();
    let ancillary: u64 =
        nested.rows.iter().flat_map(|row| &row.ancillary).map(|one| one.tally.count).sum();
    let mut kinds: Vec<(String, u64)> = Vec::new();
    for one in nested.rows.iter().flat_map(|row| &row.ancillary) {
        let name = match one.detail.value {
            0 => one.reason.name().into_owned(),
            value => format!("{} {value:#x}", one.reason.name()),
        };
        match kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += one.tally.count,
            None => kinds.push((name, one.tally.count)),
        }
    }
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let each = |count: u64| count as f64 / handled.max(1) as f64;
    let evidence = kinds
        .iter()
        .take(NAMED)
        .map(|(name, count)| format!("{name}: {:.2}", each(*count)))
        .collect();
    let (answer, says) = match handled {
        0 => (
            Answer::Unknown,
            "L1 handled no exit of L2, or the recording does not show it".to_owned(),
        ),
        _ => (
            Answer::Yes,
            format!(
                "each exit of L2 that L1 handled took {:.1} exits of L1; the minimum is one, the entry",
                each(ancillary)
            ),
        ),
    };
    let l2 = ledger.exits.keys().any(|key| key.level == Level::L2);
    Step {
        id: "nesting",
        question: "What does nesting cost?",
        answer,
        says,
        evidence,
        next: (!l2).then_some("a recording with kvm:kvm_nested_vmexit (`perf record -e 'kvm:*'`)"),
        misses_more: false,
    }
}
