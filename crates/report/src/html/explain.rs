//! An explanation as a page: what the answers come to, each question with its evidence, what to change, and the profiles.

use maud::{Markup, html};
use vmtax_analyse::explain::Answer;

use super::frame::{Frame, Section, closing, framed, shell_word};
use super::{described, figures, flame, losses};
use crate::explain::{Explained, advice, cost, is_of_yes_or_no, sentence, words, workload_table};
use crate::names::printable;

/// The whole page.
pub(super) fn page(explained: &Explained<'_>) -> Markup {
    let mut sections = vec![Section {
        id: "conclusion".to_owned(),
        label: "Conclusion".to_owned(),
        body: html! {
            h2 #conclusion-title { "The verdict" }
            p.verdict { (explained.verdict()) "." }
            @if let Some(others) = explained.others() { p { (others) } }
        },
    }];
    sections.push(Section {
        id: "findings".to_owned(),
        label: "Findings".to_owned(),
        body: findings(explained),
    });
    sections.push(Section {
        id: "steps".to_owned(),
        label: "Questions".to_owned(),
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
    let emulated = explained.run.emulated().map(|which| {
        format!(
            "Recorded under {}: counts are exact, times do not reflect hardware.",
            figures::text(which)
        )
    });
    let frame = Frame {
        title: format!("vmtax explain – {}", figures::text(explained.run.source)),
        tool_version: explained.tool_version,
        header: html! {
            header.top {
                div.title {
                    h1 { span.brand { "vmtax" } " explains" }
                    p.source {
                        (figures::text(explained.run.source))
                        @if let Some(base) = explained.base { " against " (figures::text(base.source)) }
                    }
                }
            }
        },
        notice: emulated,
        footer: closing(explained.tool_version, &command, &others, false),
    };
    framed(&frame, &sections)
}

fn steps(explained: &Explained<'_>) -> Markup {
    html! {
        h2 #steps-title { "Questions, answers, evidence" }
        ol.steps {
            @for step in &explained.explanation.steps {
                li id={ "step-" (step.question.id()) } {
                    h3 {
                        (words::question(step.question))
                        @if is_of_yes_or_no(step) || step.answer != Answer::Yes {
                            " " span class={ "badge " (tone(step.answer)) } { (step.answer.name()) }
                        }
                    }
                    p { (printable(&sentence(&words::says(&step.says)))) "." }
                    @if !step.evidence.is_empty() {
                        ul { @for line in &step.evidence { li { (printable(&words::evidence(line))) } } }
                    }
                    @if let Some(next) = step.next { p.note { "Next: " (words::record(next)) "." } }
                }
            }
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
                        ul { @for line in &finding.evidence { li { (printable(&words::evidence(line))) } } }
                        p { strong { "Cost: " } (cost(&finding.cost)) "." }
                        @for one in &finding.remedies { p { strong { "Do: " } (advice(one)) "." } }
                        @for (id, why) in &finding.refused { p.note { "Not " (id) ": " (why) "." } }
                        p.note { "Disproved if " (said.disproof) ". Next: " (said.next) "." }
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

/// Answers are neither good nor bad news; a missing one is highlighted.
fn tone(answer: Answer) -> &'static str {
    match answer {
        Answer::Yes | Answer::No => "",
        Answer::Unknown => "warn",
    }
}
