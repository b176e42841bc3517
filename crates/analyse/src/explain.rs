//! Why a VM is slow, as far as a recording of its exits tells: a walk of questions, each with its answer and its evidence,
//! and at the end what to change.
//!
//! ```text
//!  is exit handling the bottleneck?  ── the tax, or a base that takes the same exits and is fast
//!  which causes?                     ── time and count by cause
//!  host, guest                       ── profiles: functions, with a base what differs
//!  does the guest wait for memory?   ── a hot function by instruction
//!  memory                            ── sizes of mapped pages, misses of the TLB, faults by region
//!  nesting                           ── exits of L1 for each exit of L2
//!  results                           ── benchmarks by kind of VM and option
//!  conclusion                        ── what the answers come to
//!  findings                          ── signs: a setting that the recording gives away, with what it could gain at most
//! ```
//!
//! Left out on purpose: every guess: where the run does not say, the answer is "unknown" and what to record next.

pub(crate) mod memory;
mod profiles;
mod results;
pub mod signs;

use vmtax_events::Level;

use crate::audit::{Gain, at_most};
use crate::diff::{Diff, DiffRow, Per, Side, Verdict, suitable};
use crate::{By, Ledger, Nested};

pub use results::Recovered;
pub use signs::{SIGNS, Sign};

/// A tax from which on exits are called the bottleneck: what a few percent of noise cannot hide.
pub const TAX_MATTERS: f64 = 0.05;
/// Part of the base's exits that must be of causes that are the same in both, for both to take the same exits.
const SAME_EXITS: f64 = 0.9;
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
}

/// Something to change.
pub struct Finding {
    /// Its word. These words never change.
    pub id: &'static str,
    /// What was found.
    pub means: String,
    /// What to do.
    pub remedy: &'static str,
    /// How sure it is.
    pub certainty: Certainty,
    /// What it rests on.
    pub evidence: String,
    /// What changing it could gain.
    pub gain: Expected,
}

/// What a change could gain.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// The time of exits, at most.
    Exits(Gain),
    /// It removes no exits to speak of: what it gains is not counted by exits.
    BesideExits(&'static str),
    /// What it gave where it was tried.
    Tried(Recovered),
}

impl Expected {
    /// What findings are ranked by: the part of the time, or of the result, that may come back.
    fn rank(&self) -> f64 {
        match self {
            Expected::Exits(gain) => gain.share().unwrap_or(-1.0),
            Expected::BesideExits(_) => -1.0,
            Expected::Tried(tried) if tried.plain == 0.0 => -1.0,
            Expected::Tried(tried) => ((tried.values[1] - tried.values[0]) / tried.plain).abs(),
        }
    }
}

/// The walk.
pub struct Explanation {
    /// The questions, in their order.
    pub steps: Vec<Step>,
    /// What the answers come to, without its full stop.
    pub conclusion: String,
    /// What to change: most gain first, then the surest.
    pub findings: Vec<Finding>,
}

impl Explanation {
    /// Explains one recording, beside a base that is fast if there is one.
    pub fn new(side: &Side<'_>, base: Option<&Side<'_>>) -> Explanation {
        let ledger = side.ledger;
        let base_ledger = base.map(|base| base.ledger);
        let results = results::look(&ledger.samples);
        let mut steps = Vec::new();
        // A table of results alone has no exits to ask about.
        if results.is_none() || !ledger.exits.is_empty() {
            steps.extend([
                bottleneck(side, base),
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
        let (remedies, of_results) = match results {
            Some(found) => {
                steps.push(found.step);
                (found.remedies, Some(found.conclusion))
            }
            None => (Vec::new(), None),
        };
        let mut findings: Vec<Finding> =
            SIGNS.iter().filter_map(|sign| found(sign, ledger, base_ledger)).collect();
        findings.extend(remedies.into_iter().map(|remedy| Finding {
            id: remedy.id,
            means: remedy.means,
            remedy: remedy.remedy,
            certainty: remedy.certainty,
            evidence: remedy.evidence,
            gain: Expected::Tried(remedy.recovered),
        }));
        let rank = |finding: &Finding| finding.gain.rank();
        findings.sort_by(|a, b| rank(b).total_cmp(&rank(a)).then(a.certainty.cmp(&b.certainty)));
        let conclusion = conclude(&steps, ledger, base_ledger)
            .or(of_results)
            .unwrap_or_else(|| "undecided".to_owned());
        Explanation { steps, conclusion, findings }
    }

    /// The step of this word.
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.id == id)
    }
}

fn found(sign: &'static Sign, ledger: &Ledger, base: Option<&Ledger>) -> Option<Finding> {
    let (certainty, evidence) = (sign.look)(ledger, base)?;
    let gain = at_most(ledger, sign.exits);
    let gain = match sign.beside_exits {
        Some(what) if gain.share().is_none_or(|share| share < TAX_MATTERS) => {
            Expected::BesideExits(what)
        }
        _ => Expected::Exits(gain),
    };
    let (id, means, remedy) = (sign.id, sign.means.to_owned(), sign.remedy);
    Some(Finding { id, means, remedy, certainty, evidence, gain })
}

/// What the answers come to; `None` where no exits were asked about.
fn conclude(steps: &[Step], ledger: &Ledger, base: Option<&Ledger>) -> Option<String> {
    let answer = |id: &str| steps.iter().find(|step| step.id == id).map(|step| step.answer);
    let small_pages = || {
        if answer("memory") != Some(Answer::Yes) {
            return None;
        }
        // The base could be as small: then it is not what differs.
        if base.and_then(memory::is_small) == Some(true) {
            return None;
        }
        let misses = base.and_then(|base| memory::misses_more(ledger, base));
        let waits = answer("instructions") == Some(Answer::Yes) || misses == Some(true);
        Some(if waits {
            "4K pages are: the guest waits for memory, which is mapped in them"
        } else {
            "4K pages may be: whether the guest waits for memory was not seen"
        })
    };
    let cause = || ledger.causes().first().map(|(cause, _)| cause.name());
    Some(match (answer("exits")?, small_pages()) {
        (Answer::Yes, _) => match cause() {
            Some(cause) => format!("exits are the bottleneck, most of all for {cause}"),
            None => "exits are the bottleneck".to_owned(),
        },
        (Answer::No, Some(pages)) => format!("exits are not the bottleneck; {pages}"),
        (Answer::No, None) => "exits are not the bottleneck".to_owned(),
        (Answer::Unknown, _) => "whether exits are the bottleneck is undecided".to_owned(),
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn bottleneck(side: &Side<'_>, base: Option<&Side<'_>>) -> Step {
    let ledger = side.ledger;
    let step = |answer, says: String, evidence, next| Step {
        id: "exits",
        question: "Is handling exits the bottleneck?",
        answer,
        says,
        evidence,
        next,
    };
    let of_hardware = ledger.recording.emulated.is_none();
    if let (true, Some(tax)) = (of_hardware, ledger.tax()) {
        let time = ledger.time_total();
        let evidence = vec![format!(
            "tax {}: {} ms in exits of {} ms that the vCPUs were not halted",
            percent(tax),
            (time.exit_kernel_ns + time.exit_user_ns + time.preempted_ns) / 1_000_000,
            time.wall_ns.saturating_sub(time.halted_ns) / 1_000_000
        )];
        let most = format!("without any exit at most {} of the time would be gained", percent(tax));
        return if tax >= TAX_MATTERS {
            step(Answer::Yes, most, evidence, None)
        } else {
            let next = "what the guest does between exits: a profile of it, its page sizes";
            step(Answer::No, format!("exits are not the bottleneck: {most}"), evidence, Some(next))
        };
    }
    let Some(base) = base else {
        let says = if of_hardware {
            "the recording has no times"
        } else {
            "times under an emulator are no times of hardware"
        };
        let next =
            "a recording with times (`perf kvm stat record`), or a base that is fast: --against";
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
    let per = match suitable(base, side) {
        Per::Operation => Per::Recording,
        per => per,
    };
    let Ok(diff) = Diff::new(base, side, per, &[By::Cause]) else {
        return step(Answer::Unknown, "the base cannot be compared".to_owned(), Vec::new(), None);
    };
    let rows = &diff.tables[0].rows;
    let same = |row: &&DiffRow| {
        matches!(row.verdict(), Verdict::Equal | Verdict::AboutEqual | Verdict::NoDifference)
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
    if all > 0.0 && alike >= all * SAME_EXITS {
        let says = format!(
            "exits are not the bottleneck, if the base is fast: {} of them are of causes that it has as often",
            percent(alike / all)
        );
        let next = "what the guest does between exits: a profile of it, its page sizes";
        return step(Answer::No, says, evidence, Some(next));
    }
    let says = format!(
        "the two do not take the same exits: only {} are of causes that both have as often",
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
        Some((cause, _)) => (Answer::Yes, format!("most of it is the guest {}", cause.describe())),
        None => (Answer::Unknown, "the recording has no exits".to_owned()),
    };
    Step { id: "causes", question: "Which causes?", answer, says, evidence, next: None }
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
        0 => (Answer::Unknown, "L1 handled no exit of L2, or the recording cannot tell".to_owned()),
        _ => (
            Answer::Yes,
            format!(
                "each exit of L2 that L1 handled took {:.1} exits of L1; one entry is the least possible",
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
    }
}
