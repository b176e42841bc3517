//! The page of a report: which sections it has, and their order.

use maud::{Markup, html};

use super::described::TableSection;
use super::frame::{PageFrame, PageSection, closing, framed, shell_word};
use super::{
    calls, described, figures, flame, headline, histogram, losses, nested, operations, source,
    tables, timeline, transfers,
};
use crate::Document;

pub(super) fn page(doc: &Document) -> Markup {
    let frame = PageFrame {
        title: format!("vmtax report – {}", figures::text(&doc.source)),
        tool_version: &doc.tool_version,
        name: "report",
        subject: figures::text(&doc.source),
        badges: source::badges(doc),
        emulation: crate::operations::emulated(&doc.ledger),
        facts: source::facts(doc),
        footer: footer(doc),
    };
    framed(&frame, &sections(doc))
}

/// A table of operations with its title and note.
fn further((id, title, note): (&str, &str, &str), table: &crate::table::Table) -> Markup {
    html! {
        h2 id=(format!("{id}-title")) { (title) }
        (described::whole(
            &TableSection { id, title, notes: vec![note.to_owned()], table },
            "--format csv",
        ))
    }
}

fn budget_section(kept: &crate::budget::KeptBudget) -> Markup {
    let title = kept.title();
    let table = crate::budget::table(kept);
    html! {
        h2 #budget-title { (figures::text(&title)) }
        @if kept.numbers.is_empty() {
            @for note in &kept.notes { p.note { (figures::text(note)) } }
        } @else {
            (described::whole(
                &TableSection { id: "budget", title: &title, notes: kept.notes.clone(), table: &table },
                "--format json",
            ))
        }
    }
}

fn sections(doc: &Document) -> Vec<PageSection> {
    let mut sections = vec![PageSection {
        id: "headline".to_owned(),
        label: "Headline".to_owned(),
        body: headline::section(doc),
    }];
    sections.extend(doc.budget.as_ref().map(|kept| PageSection {
        id: "budget".to_owned(),
        label: "Budget".to_owned(),
        body: budget_section(kept),
    }));
    let mut nested = doc.nested.as_ref().map(|nested| PageSection {
        id: "nested".to_owned(),
        label: "Nested".to_owned(),
        body: nested::section(doc, nested),
    });
    // In a lab run what an operation costs comes first; elsewhere there are none.
    if let Some(operations) = &doc.operations {
        sections.push(PageSection {
            id: "operations".to_owned(),
            label: "Operations".to_owned(),
            body: operations::section(doc, operations),
        });
        sections.extend(crate::mapping::table(operations).map(|table| PageSection {
            id: "memory".to_owned(),
            label: "Memory".to_owned(),
            body: further(("memory", crate::mapping::TITLE, crate::mapping::NOTE), &table),
        }));
        sections.extend(crate::paging::table(operations).map(|table| PageSection {
            id: "paging".to_owned(),
            label: "Paging".to_owned(),
            body: further(("paging", crate::paging::TITLE, crate::paging::NOTE), &table),
        }));
        sections.extend(crate::paging::by_instruction(operations).map(|table| {
            let (title, note) = (crate::paging::BY_INSTRUCTION, crate::paging::OF_INSTRUCTIONS);
            PageSection {
                id: "paging-instructions".to_owned(),
                label: "Walks".to_owned(),
                body: further(("paging-instructions", title, note), &table),
            }
        }));
        sections.extend(crate::transfers::table(operations).map(|table| PageSection {
            id: "transfers".to_owned(),
            label: "Bounce".to_owned(),
            body: transfers::section(operations, &table),
        }));
        sections.extend(nested.take());
    }
    if let Some(shown) = doc.calls {
        sections.push(PageSection {
            id: "calls".to_owned(),
            label: "Call trees".to_owned(),
            body: calls::section(doc, shown),
        });
    }
    let mut recorded = vec![
        PageSection {
            id: "time-split".to_owned(),
            label: "Time split".to_owned(),
            body: operations::time_split(doc),
        },
        PageSection {
            id: "timeline".to_owned(),
            label: "Over time".to_owned(),
            body: timeline::section(doc),
        },
        PageSection {
            id: "latency".to_owned(),
            label: "Latency".to_owned(),
            body: histogram::section(doc),
        },
    ];
    recorded.extend(tables::sections(doc));
    recorded.extend(nested);
    recorded.extend(flame::sections(&doc.ledger, None));
    // Of a lab run the operations are the result, and these are what they were counted from.
    match doc.operations.as_ref().is_some_and(|operations| !operations.rows.is_empty()) {
        true => sections.push(folded(&recorded)),
        false => sections.extend(recorded),
    }
    sections.push(PageSection {
        id: "losses".to_owned(),
        label: "Losses and limits".to_owned(),
        body: losses::section(doc),
    });
    sections
}

/// Sections folded into one.
fn folded(sections: &[PageSection]) -> PageSection {
    let labels: Vec<&str> = sections.iter().map(|section| section.label.as_str()).collect();
    let body = html! {
        h2 #recording-title { "The recording behind it" }
        details.more {
            summary { (labels.join(", ")) }
            @for section in sections {
                section id=(section.id) aria-labelledby={ (section.id) "-title" } { (section.body) }
            }
        }
    };
    PageSection { id: "recording".to_owned(), label: "Recording".to_owned(), body }
}

fn footer(doc: &Document) -> Markup {
    let command = format!("vmtax report {} --format html", shell_word(&figures::text(&doc.source)));
    let others = html! { code { "--format json" } " or " code { "--format csv" } };
    closing(&doc.tool_version, &command, &others, true)
}
