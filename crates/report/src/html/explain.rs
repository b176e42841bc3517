//! An explanation as a page: what the answers come to, each question with its evidence, what to change, and the profiles.

use maud::{Markup, html};
use vmtax_analyse::explain::StepAnswer;
use vmtax_analyse::ledger;

use super::frame::{PageFact, PageFrame, PageSection, closing, framed, shell_word};
use super::headline::big_percent;
use super::{described, figures, flame, losses};
use crate::explain::{Explained, advice, cost, sentence, words, workload_table};
use crate::names::printable;

pub(super) fn page(explained: &Explained<'_>) -> Markup {
    let mut sections = vec![PageSection {
        id: "conclusion".to_owned(),
        label: "Conclusion".to_owned(),
        body: conclusion(explained),
    }];
    sections.push(PageSection {
        id: "findings".to_owned(),
        label: "Findings".to_owned(),
        body: findings(explained),
    });
    sections.push(PageSection {
        id: "steps".to_owned(),
        label: "Reasoning".to_owned(),
        body: steps(explained),
    });
    sections.extend(flame::sections(explained.run.ledger, explained.base.map(|base| base.ledger)));
    let mut sides = vec![("Run", explained.run)];
    sides.extend(explained.base.map(|base| ("Against", base)));
    sections.push(losses::sides(&sides));
    let mut command = format!("vmtax explain {}", shell_word(&figures::text(explained.run.source)));
    if let Some(base) = explained.base {
        command += &format!(" --against {}", shell_word(&figures::text(base.source)));
    }
    command += " --format html";
    let others = html! { code { "--format json" } };
    let emulated = explained
        .run
        .emulated()
        .map(|which| crate::explain::recorded_under(explained.run.ledger, which));
    let frame = PageFrame {
        title: format!("vmtax explain – {}", figures::text(explained.run.source)),
        tool_version: explained.tool_version,
        name: "explain",
        subject: match explained.base {
            Some(base) => {
                figures::text(&format!("{} against {}", explained.run.source, base.source))
            }
            None => figures::text(explained.run.source),
        },
        badges: html! {},
        emulation: emulated,
        facts: facts(explained),
        footer: closing(explained.tool_version, &command, &others, false),
    };
    framed(&frame, &sections)
}

/// The verdict, with the tax of the VM that it is of.
fn conclusion(explained: &Explained<'_>) -> Markup {
    let ledger = explained.run.ledger;
    let tax = match explained.vms {
        _ if explained.run.emulated().is_some() => None,
        [worst, ..] => ledger::tax(&worst.time),
        [] => ledger.tax(),
    };
    html! {
        h2 #conclusion-title { "The verdict" }
        @if let Some(tax) = tax { p.figure { (big_percent(tax)) } p.label { "exit tax" } }
        p.verdict { (marked(&explained.verdict())) "." }
        @if let Some(others) = explained.others() { p { (marked(&others)) } }
    }
}

fn facts(explained: &Explained<'_>) -> Vec<PageFact> {
    let recording = &explained.run.ledger.recording;
    vec![
        PageFact::new("run", explained.run.source),
        PageFact::new("against", explained.base.map_or("", |base| base.source)),
        PageFact::new("kernel", &recording.kernel),
        PageFact::new("CPU", &recording.cpu),
        PageFact::new("recorded with", &recording.tool),
    ]
}

/// The questions in their order, and what follows from the answers.
fn steps(explained: &Explained<'_>) -> Markup {
    html! {
        h2 #steps-title { "From the evidence to the verdict" }
        ol.steps.chain {
            @for step in &explained.explanation.steps {
                li id={ "step-" (step.question.name()) } {
                    h3 {
                        (words::question(step.question))
                        @if step.question.is_polar() || step.answer != StepAnswer::Yes {
                            " " span class={ "badge " (tone(step.answer)) } { (step.answer.name()) }
                        }
                    }
                    p { (marked(&printable(&sentence(&words::says(&step.says))))) "." }
                    @if !step.evidence.is_empty() {
                        ul { @for line in &step.evidence { li { (marked(&printable(&words::evidence(line)))) } } }
                    }
                    @if let Some(next) = step.next { p.note { "Next: " (marked(words::record(next))) "." } }
                }
            }
            li.conclusion { h3 { "Therefore" } p { (marked(&explained.verdict())) "." } }
        }
    }
}

fn findings(explained: &Explained<'_>) -> Markup {
    html! {
        h2 #findings-title { "Findings, most important first" }
        @if explained.explanation.findings.is_empty() {
            p.empty { "No finding." }
        } @else {
            ol.steps {
                @for finding in &explained.explanation.findings {
                    @let said = words::finding(&finding.found);
                    li {
                        h3 { (printable(&sentence(&said.means))) " " span.badge { (finding.certainty.name()) } }
                        ul { @for line in &finding.evidence { li { (marked(&printable(&words::evidence(line)))) } } }
                        p { strong { "Cost: " } (cost(&finding.cost)) "." }
                        @for one in &finding.remedies { p {
                            strong { "Do: " } (marked(&advice(one))) ". "
                            (marked(&sentence(&words::whole_trial(&one.remedy.id.trial())))) "."
                        } }
                        @for (id, why) in &finding.refused { p.note { "Not " (id.name()) ": " (marked(why)) "." } }
                        p.note { "Disproved if " (marked(said.disproof)) ". Next: " (marked(said.next)) "." }
                    }
                }
            }
        }
        @for (number, workload) in explained.explanation.workloads.iter().enumerate() {
            h3 { (printable(&sentence(&words::workload(workload)))) "." }
            (described::rows(&format!("workload-{number}"), &workload.name, &workload_table(workload)))
        }
    }
}

/// A sentence with its commands, which are between backticks, as code.
fn marked(sentence: &str) -> Markup {
    let parts: Vec<&str> = sentence.split('`').collect();
    // An odd number of backticks marks nothing.
    let is_paired = parts.len() % 2 == 1;
    html! {
        @if is_paired {
            @for (at, part) in parts.iter().enumerate() {
                @if at % 2 == 1 { code { (part) } } @else { (part) }
            }
        } @else { (sentence) }
    }
}

/// Answers are neither good nor bad news; a missing one is highlighted.
fn tone(answer: StepAnswer) -> &'static str {
    match answer {
        StepAnswer::Yes | StepAnswer::No => "",
        StepAnswer::Unknown => "warn",
    }
}
