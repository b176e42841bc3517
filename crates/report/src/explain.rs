//! An explanation -> text or JSON. Its sentences are in `words`.

pub mod change;
pub(crate) mod words;

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use vmtax_analyse::explain::{
    Advice, CategoryBeside, Evidence, Explanation, Finding, FindingCost, StepAnswer, Verdict,
    WorkloadResults,
};
use vmtax_analyse::ledger::VmLoss;
use vmtax_analyse::remedy::{Figures, Trial};
use vmtax_analyse::vm_facts::{EncryptedBy, encrypted_by};
use vmtax_analyse::{Ledger, explain, ledger};
use vmtax_events::Losses;

use crate::names::{self, printable};
use crate::numbers::{count, duration, percent, significant};
use crate::table::{Cell, Column, JSON, PEOPLE, Table, sort_key};
use crate::text::layout::{Paint, Style, wrap};
use crate::text::{TextPage, losses_style};
use crate::{RunSubject, losses};

pub use words::whole_trial;

/// Name and version of the JSON's shape.
pub const SCHEMA: &str = "vmtax-explain-3";
/// Lines of the answer on a terminal.
const LINES: usize = 10;
/// Lines of the answer that a table of results leaves to what can be done.
const ROOM_FOR_REMEDIES: usize = 2;
/// Findings that the answer names.
const FINDINGS: usize = 3;

/// What an explanation shows.
pub struct Explained<'a> {
    /// Version of this tool.
    pub tool_version: &'a str,
    /// The run.
    pub run: RunSubject<'a>,
    /// What it was compared with.
    pub base: Option<RunSubject<'a>>,
    /// The explanation.
    pub explanation: &'a Explanation,
    /// Of several VMs the worst is explained: each by what it lost, in this order. Empty for one VM, or for all together.
    pub vms: &'a [VmLoss],
}

/// With a capital to begin with.
pub(crate) fn sentence(text: &str) -> String {
    // A name is written as it is, and so is a file's.
    let is_file = text.split(' ').next().is_some_and(|first| first.contains('.'));
    if text.starts_with("vCPU") || is_file {
        return text.to_owned();
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What something costs, with its arithmetic.
pub(crate) fn cost(cost: &FindingCost) -> String {
    match *cost {
        FindingCost::Time { low_ns, high_ns, base_ns, count: n } => {
            let share = |ns: u64| percent(ns as f64 / base_ns.max(1) as f64);
            let range = if low_ns == high_ns {
                share(high_ns)
            } else {
                format!("{} to {}", share(low_ns), share(high_ns))
            };
            format!(
                "{range} of the running time: {} ({} times) of {} not halted",
                duration(high_ns as f64),
                count(n),
                duration(base_ns as f64)
            )
        }
        FindingCost::Spent { time_ns, all_ns, count: n } => format!(
            "{} of the time in exits that do not halt: {} in {} exits; the running time is unknown",
            percent(time_ns as f64 / all_ns.max(1) as f64),
            duration(time_ns as f64),
            count(n)
        ),
        FindingCost::Count { count: n } => format!("{} exits; their cost is unknown", count(n)),
        FindingCost::Unknown => "not counted by exits".to_owned(),
    }
}

/// The answer to a question: only a polar one is answered by yes.
pub(crate) fn answer(step: &explain::ExplainStep) -> String {
    let says = printable(&words::says(&step.says));
    if step.answer == StepAnswer::Yes && !step.question.is_polar() {
        return says;
    }
    format!("{}: {says}", step.answer.name())
}

/// A remedy as one line: where, what, and under which condition.
pub(crate) fn advice(advice: &Advice) -> String {
    let place = advice.remedy.place.name();
    match advice.condition {
        Some(condition) => format!("{place}: {}, if {condition}", advice.remedy.action),
        None => format!("{place}: {}", advice.remedy.action),
    }
}

/// What results of benchmarks show of kinds of VM and their options, a sentence for each workload. Hostile text.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Losses with what got them back, where both are proven. A loss alone is a difference of the table.
    pub proven: Vec<String>,
    /// What looks like one, of too few runs.
    pub unproven: Vec<String>,
}

/// The results of workloads whose name, with the metric, is to be shown.
pub fn results(explanation: &Explanation, is_shown: impl Fn(&str) -> bool) -> Results {
    let mut results = Results::default();
    for workload in explanation.workloads.iter().filter(|workload| is_shown(&workload.name)) {
        if workload.worst.is_none() && workload.changed.is_none() {
            continue;
        }
        if !workload.is_proven() {
            results.unproven.push(words::workload(workload));
        } else if !workload.recovered.is_empty() || workload.bounce.is_some() {
            results.proven.push(words::workload(workload));
        }
    }
    results
}

/// Tax and contention in words; `None` without times.
pub(crate) fn shares(ledger: &Ledger) -> Option<String> {
    if ledger.recording.emulated.is_some() {
        return None;
    }
    let tax = ledger.tax()?;
    let contention = match ledger.contention() {
        Some(share) => percent(share) + &of_recorder(ledger),
        None => "not recorded (sched_switch)".to_owned(),
    };
    // A little time is always unknown: before a thread's first event.
    let time = ledger.time_total();
    let is_much = time.unknown_ns as f64 >= ledger::running_ns(&time) as f64 * MUCH_UNKNOWN;
    let range = ledger::tax_range(&time).filter(|_| is_much).map(|[low, high]| {
        format!(" of the known time ({} to {} with the unknown)", percent(low), percent(high))
    });
    let range = range.unwrap_or_default();
    Some(format!("exit tax {}{range}, contention {contention}", percent(tax)))
}

/// The recorder's own part of the contention, from a percent of the running time on.
fn of_recorder(ledger: &Ledger) -> String {
    let running = ledger::running_ns(&ledger.time_total()).max(1);
    let share = ledger.recorder_ns() as f64 / running as f64;
    if share < MUCH_UNKNOWN {
        return String::new();
    }
    format!(" ({} the recorder's own)", percent(share))
}

/// Unknown time beside the running time that gives the tax a range.
const MUCH_UNKNOWN: f64 = 0.01;

/// The categories of a workload and what each loses.
pub(crate) fn workload_table(workload: &WorkloadResults) -> Table {
    let loss = |beside: &Option<CategoryBeside>| {
        Cell::of(beside.as_ref(), |beside| Cell::Share(beside.loss))
    };
    let table = Table::of(&workload.rows)
        .column(Column::words("category", "category"), |row| Cell::Name(row.category.clone()))
        .column(Column::data("value").only(JSON), |row| Cell::Number(row.value))
        .column(Column::number("", "median").only(PEOPLE), |row| {
            let median = format!("{} {}", significant(row.value), workload.unit);
            Cell::Written(median, sort_key(row.value))
        })
        .column(Column::minor("runs", "runs", 2), |row| Cell::Count(row.runs as u64));
    let [key, title] = match workload.has_kinds {
        true => ["loss_to_plain", "loss to plain"],
        false => ["loss_to_best", "loss to best"],
    };
    let table = table.column(Column::number(key, title), |row| loss(&row.plain));
    if !workload.has_kinds {
        return table.table();
    }
    table
        .column(Column::minor("loss_to_baseline", "loss to baseline", 1), |row| loss(&row.baseline))
        .table()
}

/// The worst category of each workload, what got its loss back, and what part of it a bounce buffer alone has.
fn worst_table(workloads: &[Arc<WorkloadResults>]) -> Table {
    let worst = workloads.iter().filter_map(|workload| Some((workload, workload.worst.as_ref()?)));
    Table::of(worst)
        .column(Column::words("workload", "workload"), |(workload, _)| {
            Cell::Name(workload.name.clone())
        })
        .column(Column::words("worst", "worst"), |(_, worst)| Cell::Name(worst.category.clone()))
        .column(Column::number("loss", "loss"), |(workload, _)| Cell::Share(workload.loss()))
        .column(Column::minor("measured", "measured", 2), |(workload, _)| {
            Cell::Name(words::figures(workload))
        })
        .column(Column::number("got_back", "recovered"), |(workload, worst)| {
            let back = workload.recovered.iter().find(|one| one.category == worst.category);
            Cell::of(back, |one| {
                Cell::Name(format!("{} by {}", percent(one.part.min(1.0)), one.option))
            })
        })
        .column(Column::minor("bounce", "of it by bounce buffer", 1), |(workload, _)| {
            Cell::of(workload.bounce, Cell::Share)
        })
        .table()
}

impl Explained<'_> {
    /// The verdict, and whose it is where there are several VMs.
    pub(crate) fn verdict(&self) -> String {
        let says = printable(&words::verdict(&self.explanation.verdict));
        match self.vms {
            [worst, _, ..] => format!(
                "VM {}, the worst of {}: {says}",
                names::vm(&self.run.ledger.recording, worst.vm),
                self.vms.len(),
            ),
            _ => sentence(&says),
        }
    }

    /// What the other VMs lost, and how to explain one.
    pub(crate) fn others(&self) -> Option<String> {
        let others = self.vms.get(1..).filter(|others| !others.is_empty())?;
        let others = crate::headline::other_vms(self.run.ledger, others);
        Some(format!("{others}. `--vm` explains one of them."))
    }

    /// For a terminal of this width: the answer in at most ten lines, or everything.
    pub fn text(
        &self,
        verbose: bool,
        color: bool,
        width: Option<usize>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let paint = Paint { color };
        if verbose {
            return self.everything(paint, width, out);
        }
        let rows = self.answer();
        let mut room = LINES;
        let results = self.results(paint, width)?;
        let mut hidden = 0;
        let mut shown: Vec<(Style, Vec<String>)> = Vec::new();
        let end = wrap("Details: -v", width, "", "").len();
        for (style, first, text) in rows {
            let indent = " ".repeat(first.chars().count());
            let mut lines = wrap(&text, width, &first, &indent);
            if lines.len() + end > room {
                if shown.len() > 1 || room <= end {
                    hidden += 1;
                    continue;
                }
                lines.truncate(room - end);
            }
            room -= lines.len();
            shown.push((style, lines));
            // The table of results comes after the verdict.
            if shown.len() == 1 {
                let rows = results.len().min(room.saturating_sub(end + ROOM_FOR_REMEDIES));
                hidden += results.len() - rows;
                if rows > 1 {
                    room -= rows;
                    shown.push((Style::Plain, results[..rows].to_vec()));
                }
            }
        }
        for (style, lines) in &shown {
            lines.iter().try_for_each(|line| paint.line(out, *style, line))?;
        }
        let more =
            if hidden > 0 { "More, and the evidence: -v" } else { "Evidence and questions: -v" };
        paint.line(out, Style::Faint, more)
    }

    /// The table of workloads, worst first, where there are too many for sentences.
    fn results(&self, paint: Paint, width: Option<usize>) -> io::Result<Vec<String>> {
        let workloads = &self.explanation.workloads;
        if !matches!(self.explanation.verdict, Verdict::Results(_)) || workloads.len() < 3 {
            return Ok(Vec::new());
        }
        let mut text = Vec::new();
        worst_table(workloads).text((paint, width), &mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The answer, what matters most first.
    fn answer(&self) -> Vec<(Style, String, String)> {
        let explanation = self.explanation;
        let mut rows = vec![(Style::Heading, String::new(), format!("{}.", self.verdict()))];
        if let Some(which) = self.run.emulated() {
            let text = recorded_under(self.run.ledger, &printable(which));
            rows.push((Style::Warning, String::new(), text));
        }
        if let Some(shares) = shares(self.run.ledger) {
            let base = self.base.and_then(|base| crate::explain::shares(base.ledger));
            let base = base.map_or_else(String::new, |base| format!("; base: {base}"));
            rows.push((Style::Plain, String::new(), sentence(&format!("{shares}{base}."))));
        }
        rows.extend(self.others().map(|others| (Style::Plain, String::new(), others)));
        let base = self.base.map(|base| ("The base's counts", base.ledger));
        for (whose, ledger) in [("Counts", self.run.ledger)].into_iter().chain(base) {
            let said = losses::too_low(whose, ledger);
            rows.extend(said.map(|text| (Style::Warning, String::new(), text)));
        }
        for finding in explanation.findings.iter().take(FINDINGS) {
            let first = finding.evidence.iter().take(1);
            let details =
                finding.evidence.get(1).filter(|one| matches!(one, Evidence::Details(..)));
            let evidence: Vec<String> = first.chain(details).map(words::evidence).collect();
            let evidence = evidence.join("; ");
            let words = words::finding(&finding.found);
            let text = format!("{}: {}", printable(&words.means), printable(&evidence));
            rows.push((Style::Plain, "- ".to_owned(), text));
            if let Some(first) = finding.remedies.first() {
                let trial = words::trial(&first.remedy.id.trial());
                rows.push((Style::Plain, "  do: ".to_owned(), advice(first)));
                rows.push((Style::Faint, "  ".to_owned(), trial));
            } else if let Some((id, why)) = finding.refused.first() {
                rows.push((Style::Faint, "  ".to_owned(), format!("not {id}: {why}")));
            } else if finding.found.is_cured_by_words() {
                rows.push((Style::Plain, "  next: ".to_owned(), words.next.to_owned()));
            }
        }
        // Findings of which none says what to do leave nothing decided: what to record does.
        let says_how = explanation
            .findings
            .iter()
            .take(FINDINGS)
            .any(|finding| !finding.remedies.is_empty() || finding.found.is_cured_by_words());
        // What a text names beside results explains none of them.
        let is_named = |one: &Finding| matches!(one.found, explain::FoundKind::Named(_));
        let is_open = explanation.verdict.id() == "undecided" && !says_how
            || explanation.verdict.id() == "results" && explanation.findings.iter().all(is_named);
        if (explanation.findings.is_empty() || is_open)
            && let Some(next) = explanation.steps.iter().find_map(|step| step.next)
        {
            rows.push((Style::Faint, "next: ".to_owned(), words::record(next).to_owned()));
        }
        rows
    }

    fn everything(
        &self,
        paint: Paint,
        width: Option<usize>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let say = |out: &mut dyn Write, style: Style, first: &str, text: &str| -> io::Result<()> {
            let indent = " ".repeat(first.chars().count());
            let lines = wrap(text, width, first, &indent);
            lines.iter().try_for_each(|line| paint.line(out, style, line))
        };
        let explanation = self.explanation;
        let mut title =
            format!("vmtax {}: {}", printable(self.tool_version), printable(self.run.source));
        if let Some(base) = self.base {
            title += &format!(" against {}", printable(base.source));
        }
        say(out, Style::Faint, "", &title)?;
        for (style, first, text) in
            self.answer().into_iter().take(3 + usize::from(self.vms.len() > 1))
        {
            say(out, style, &first, &text)?;
        }
        say(
            out,
            Style::Faint,
            "",
            &format!(
                "Kind of VM, detected from the recording: {}{}.",
                explanation.kind.name(),
                match encrypted_by(self.run.ledger) {
                    Some(EncryptedBy::Rip) => " (encrypted guest, by rip 0)",
                    Some(EncryptedBy::State) => " (encrypted guest, by guest_state_protected)",
                    None => "",
                }
            ),
        )?;
        for (number, finding) in (1..).zip(&explanation.findings) {
            paint.line(out, Style::Plain, "")?;
            let words = words::finding(&finding.found);
            let first = format!("{number}. ");
            let indent = " ".repeat(first.len());
            let head = format!(
                "{} ({}): {}.",
                finding.id(),
                finding.certainty.name(),
                printable(&words.means)
            );
            say(out, Style::Heading, &first, &head)?;
            for line in &finding.evidence {
                let line = words::evidence(line);
                say(out, Style::Plain, &format!("{indent}- "), &printable(&line))?;
            }
            say(out, Style::Plain, &format!("{indent}cost: "), &cost(&finding.cost))?;
            for one in &finding.remedies {
                say(out, Style::Plain, &format!("{indent}do: "), &advice(one))?;
                let trial = words::whole_trial(&one.remedy.id.trial());
                say(out, Style::Faint, &format!("{indent}  "), &trial)?;
            }
            for (id, why) in &finding.refused {
                say(out, Style::Faint, &format!("{indent}not {id}: "), why)?;
            }
            say(out, Style::Faint, &format!("{indent}disproved if "), words.disproof)?;
            say(out, Style::Faint, &format!("{indent}next: "), words.next)?;
        }
        for workload in &explanation.workloads {
            paint.line(out, Style::Plain, "")?;
            let says = printable(&words::workload(workload));
            say(out, Style::Heading, "", &format!("{}.", sentence(&says)))?;
            workload_table(workload).text((paint, width), out)?;
        }
        for step in &explanation.steps {
            paint.line(out, Style::Plain, "")?;
            let style =
                if step.answer == StepAnswer::Unknown { Style::Faint } else { Style::Heading };
            let question = words::question(step.question);
            say(out, style, "", &format!("{question} {}.", answer(step)))?;
            for line in &step.evidence {
                say(out, Style::Plain, "  - ", &printable(&words::evidence(line)))?;
            }
            if let Some(next) = step.next {
                say(out, Style::Faint, "  next: ", words::record(next))?;
            }
        }
        let mut page = TextPage { paint, width, out };
        let ledger = self.run.ledger;
        page.losses(losses_style(ledger), "losses", &losses::all(ledger))?;
        if let Some(base) = self.base {
            let style = losses_style(base.ledger);
            page.losses(style, "losses of the base", &losses::all(base.ledger))?;
        }
        Ok(())
    }

    /// For a spreadsheet: a line for each finding, what matters most first; the first is the verdict's.
    pub fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let shaped = self.explanation.findings.iter().map(shaped);
        let first = |finding: &ShapedExplain, of: fn(&RemedyShape) -> Option<&'static str>| {
            Cell::of(finding.remedies.first().and_then(of), Cell::Word)
        };
        let cost = |finding: &ShapedExplain, end: usize| {
            Cell::of(finding.cost_share.map(|range| range[end]), Cell::Share)
        };
        Table::of(shaped)
            .column(Column::data("id"), |finding| Cell::Word(finding.id))
            .column(Column::data("certainty"), |finding| Cell::Word(finding.certainty))
            .column(Column::data("means"), |finding| Cell::Name(finding.means.clone()))
            .column(Column::data("exits"), |finding| Cell::of(finding.exits, Cell::Count))
            .column(Column::data("cost_low"), |finding| cost(finding, 0))
            .column(Column::data("cost_high"), |finding| cost(finding, 1))
            .column(Column::data("cost"), |finding| Cell::Name(finding.cost.clone()))
            .column(Column::data("place"), |finding| first(finding, |remedy| Some(remedy.place)))
            .column(Column::data("action"), |finding| first(finding, |remedy| Some(remedy.action)))
            .column(Column::data("condition"), |finding| first(finding, |remedy| remedy.condition))
            .column(Column::data("trial"), |finding| {
                Cell::of(finding.remedies.first(), |remedy| Cell::Name(remedy.trial.says.clone()))
            })
            .column(Column::data("evidence"), |finding| Cell::Name(finding.evidence.join("; ")))
            .column(Column::data("disproof"), |finding| Cell::Word(finding.disproof))
            .column(Column::data("next"), |finding| Cell::Word(finding.next))
            .table()
            .csv(out)
    }

    fn vm(&self, vm: &VmLoss) -> VmShape<'_> {
        let recording = &self.run.ledger.recording;
        VmShape {
            id: vm.vm,
            name: names::vm_name(recording, vm.vm),
            tax: ledger::tax(&vm.time),
            contention: ledger::contention(&vm.time).filter(|_| recording.coverage.sched),
            idle: vm.is_idle(),
        }
    }

    /// For programs: the shape [`SCHEMA`].
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let explanation = self.explanation;
        let object = ExplainObject {
            schema: SCHEMA,
            source: self.run.source,
            base: self.base.map(|base| base.source),
            emulated: self.run.emulated(),
            verdict: VerdictShape {
                id: explanation.verdict.id(),
                says: words::verdict(&explanation.verdict),
            },
            kind: explanation.kind.name(),
            encrypted_by_rip: encrypted_by(self.run.ledger) == Some(EncryptedBy::Rip),
            encrypted_by_state: encrypted_by(self.run.ledger) == Some(EncryptedBy::State),
            vms: self.vms.iter().map(|vm| self.vm(vm)).collect(),
            tax: self.run.ledger.tax().filter(|_| self.run.emulated().is_none()),
            contention: self.run.ledger.contention().filter(|_| self.run.emulated().is_none()),
            findings: explanation.findings.iter().map(shaped).collect(),
            workloads: explanation
                .workloads
                .iter()
                .map(|workload| WorkloadShape {
                    name: &workload.name,
                    unit: &workload.unit,
                    loss: workload.loss(),
                    worst: workload.worst.as_ref().map_or("", |row| &row.category),
                    says: words::workload(workload),
                    rows: workload_table(workload),
                })
                .collect(),
            steps: explanation
                .steps
                .iter()
                .map(|step| StepJson {
                    step: step.question.name(),
                    question: words::question(step.question),
                    answer: step.answer.name(),
                    says: words::says(&step.says),
                    evidence: step.evidence.iter().map(words::evidence).collect(),
                    next: step.next.map(words::record),
                })
                .collect(),
            losses: &self.run.ledger.losses,
            base_losses: self.base.map(|base| &base.ledger.losses),
        };
        crate::json::write(&object, out)
    }
}

#[derive(Serialize)]
struct ExplainObject<'a> {
    schema: &'static str,
    source: &'a str,
    base: Option<&'a str>,
    emulated: Option<&'a str>,
    verdict: VerdictShape,
    kind: &'static str,
    /// The instruction pointer of all entries and exits of a VM is 0.
    encrypted_by_rip: bool,
    /// KVM marks the vCPUs of a VM as closed.
    encrypted_by_state: bool,
    vms: Vec<VmShape<'a>>,
    tax: Option<f64>,
    contention: Option<f64>,
    findings: Vec<ShapedExplain>,
    workloads: Vec<WorkloadShape<'a>>,
    steps: Vec<StepJson>,
    losses: &'a Losses,
    /// `None` without a base.
    base_losses: Option<&'a Losses>,
}

/// A VM of several; the first is the one that is explained.
#[derive(Serialize)]
struct VmShape<'a> {
    id: u32,
    name: Option<&'a str>,
    tax: Option<f64>,
    contention: Option<f64>,
    idle: bool,
}

#[derive(Serialize)]
struct VerdictShape {
    id: &'static str,
    says: String,
}

#[derive(Serialize)]
struct StepJson {
    step: &'static str,
    question: &'static str,
    answer: &'static str,
    says: String,
    evidence: Vec<String>,
    next: Option<&'static str>,
}

#[derive(Serialize)]
struct WorkloadShape<'a> {
    name: &'a str,
    unit: &'a str,
    loss: f64,
    worst: &'a str,
    says: String,
    rows: Table,
}

#[derive(Serialize)]
struct ShapedExplain {
    id: &'static str,
    certainty: &'static str,
    means: String,
    evidence: Vec<String>,
    /// Exits, where the finding is about exits.
    exits: Option<u64>,
    /// Shares of the running time: at least, at most.
    cost_share: Option<[f64; 2]>,
    cost: String,
    remedies: Vec<RemedyShape>,
    refused: Vec<RefusedShape>,
    disproof: &'static str,
    next: &'static str,
}

#[derive(Serialize)]
struct RemedyShape {
    id: &'static str,
    place: &'static str,
    action: &'static str,
    condition: Option<&'static str>,
    trial: TrialShape,
}

/// What a trial showed; of an untried remedy only `says`.
#[derive(Default, Serialize)]
struct TrialShape {
    says: String,
    host: Option<&'static str>,
    kernel: Option<&'static str>,
    vmm: Option<&'static str>,
    unit: Option<&'static str>,
    per: Option<&'static str>,
    /// The least and the most of repetitions.
    before: Option<[f64; 2]>,
    after: Option<[f64; 2]>,
    effect: Option<&'static str>,
    note: Option<&'static str>,
}

fn tried(trial: &Trial) -> TrialShape {
    let says = words::whole_trial(trial);
    let Trial::Tried(tried) = trial else { return TrialShape { says, ..TrialShape::default() } };
    let figures = |figures: Figures| Some([figures.least, figures.most]);
    TrialShape {
        says,
        host: Some(tried.host.name()),
        kernel: Some(tried.kernel),
        vmm: Some(tried.vmm.name()),
        unit: Some(tried.unit.name()),
        per: Some(tried.per),
        before: figures(tried.before),
        after: figures(tried.after),
        effect: Some(tried.effect().name()),
        note: tried.note,
    }
}

#[derive(Serialize)]
struct RefusedShape {
    id: &'static str,
    why: &'static str,
}

fn shaped(finding: &Finding) -> ShapedExplain {
    let words = words::finding(&finding.found);
    let (exits, cost_share) = match finding.cost {
        FindingCost::Time { low_ns, high_ns, base_ns, count } => {
            let share = |ns: u64| ns as f64 / base_ns.max(1) as f64;
            (Some(count), Some([share(low_ns), share(high_ns)]))
        }
        FindingCost::Spent { count, .. } | FindingCost::Count { count } => (Some(count), None),
        FindingCost::Unknown => (None, None),
    };
    ShapedExplain {
        id: finding.id(),
        certainty: finding.certainty.name(),
        means: words.means,
        evidence: finding.evidence.iter().map(words::evidence).collect(),
        exits,
        cost_share,
        cost: cost(&finding.cost),
        remedies: finding
            .remedies
            .iter()
            .map(|one| RemedyShape {
                id: one.remedy.id.name(),
                place: one.remedy.place.name(),
                action: one.remedy.action,
                condition: one.condition,
                trial: tried(&one.remedy.id.trial()),
            })
            .collect(),
        refused: finding
            .refused
            .iter()
            .map(|(id, why)| RefusedShape { id: id.name(), why })
            .collect(),
        disproof: words.disproof,
        next: words.next,
    }
}

/// What the numbers of an emulated host are worth. Counts of samples, or with losses, are not exact.
pub(crate) fn recorded_under(ledger: &Ledger, which: &str) -> String {
    let losses = &ledger.losses;
    let mut counters = losses.counters();
    let is_exact = losses.sampled == 0
        && losses.missing.is_empty()
        && losses.truncated.is_empty()
        && counters.all(|(loss, n)| n == 0 || !loss.lowers_counts);
    let counts = if is_exact { "counts are exact, " } else { "" };
    format!("Recorded under {which}: {counts}times do not reflect hardware.")
}
