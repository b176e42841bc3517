//! The frame of the page: head, navigation, sections in order, footer.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    calls, described, digest, figures, flame, headline, histogram, losses, nested, operations,
    series, source, tables, timeline, transfers,
};
use crate::Document;
use crate::html::described::TableSection;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// A part of the page that the navigation leads to.
pub(super) struct Section {
    /// Its `id`, a plain word.
    pub(super) id: String,
    /// What the navigation calls it.
    pub(super) label: String,
    /// Its content, heading included.
    pub(super) body: Markup,
}

/// The page around the sections.
pub(super) struct Frame<'a> {
    /// Of the window.
    pub(super) title: String,
    /// Version of this tool.
    pub(super) tool_version: &'a str,
    /// Above the sections.
    pub(super) header: Markup,
    /// A banner above the sections, if it holds for all figures and the header does not have it.
    pub(super) notice: Option<String>,
    /// Below the sections.
    pub(super) footer: Markup,
}

/// A report.
pub(super) fn page(doc: &Document) -> Markup {
    let frame = Frame {
        title: format!("vmtax report – {}", figures::text(&doc.source)),
        tool_version: &doc.tool_version,
        header: source::header(doc),
        notice: None,
        footer: footer(doc),
    };
    framed(&frame, &sections(doc))
}

/// The whole page.
pub(super) fn framed(frame: &Frame<'_>, sections: &[Section]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                meta name="generator" content={ "vmtax " (figures::text(frame.tool_version)) };
                title { (frame.title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the report" }
                (series::patterns())
                (frame.header)
                @if let Some(sentence) = &frame.notice { p.notice { (figures::text(sentence)) } }
                nav aria-label="Sections" {
                    ul {
                        @for section in sections {
                            li { a href={ "#" (section.id) } { (section.label) } }
                        }
                    }
                }
                main #main tabindex="-1" {
                    @for section in sections {
                        section id=(section.id) aria-labelledby={ (section.id) "-title" } {
                            (section.body)
                        }
                    }
                }
                (frame.footer)
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn memory_section(table: &crate::table::Table) -> Markup {
    let (title, note) = (crate::memory::TITLE, crate::memory::NOTE.to_owned());
    html! {
        h2 #memory-title { (title) }
        (described::whole(
            &TableSection { id: "memory", title, notes: vec![note], table },
            "--format csv",
        ))
    }
}

fn sections(doc: &Document) -> Vec<Section> {
    let mut sections = vec![Section {
        id: "headline".to_owned(),
        label: "Headline".to_owned(),
        body: headline::section(doc),
    }];
    let mut nested = doc.nested.as_ref().map(|nested| Section {
        id: "nested".to_owned(),
        label: "Nested".to_owned(),
        body: nested::section(doc, nested),
    });
    // In a lab run what an operation costs comes first; elsewhere there are none.
    if let Some(operations) = &doc.operations {
        sections.push(Section {
            id: "operations".to_owned(),
            label: "Operations".to_owned(),
            body: operations::section(doc, operations),
        });
        sections.extend(crate::memory::table(operations).map(|table| Section {
            id: "memory".to_owned(),
            label: "Memory".to_owned(),
            body: memory_section(&table),
        }));
        sections.extend(crate::transfers::table(operations).map(|table| Section {
            id: "transfers".to_owned(),
            label: "Bounce".to_owned(),
            body: transfers::section(operations, &table),
        }));
        sections.extend(nested.take());
    }
    if let Some(shown) = doc.calls {
        sections.push(Section {
            id: "calls".to_owned(),
            label: "Call trees".to_owned(),
            body: calls::section(doc, shown),
        });
    }
    sections.extend([
        Section {
            id: "time-split".to_owned(),
            label: "Time split".to_owned(),
            body: operations::time_split(doc),
        },
        Section {
            id: "timeline".to_owned(),
            label: "Over time".to_owned(),
            body: timeline::section(doc),
        },
        Section {
            id: "latency".to_owned(),
            label: "Latency".to_owned(),
            body: histogram::section(doc),
        },
    ]);
    sections.extend(tables::sections(doc));
    sections.extend(nested);
    sections.extend(flame::sections(&doc.ledger, None));
    sections.push(Section {
        id: "losses".to_owned(),
        label: "Losses and limits".to_owned(),
        body: losses::section(doc),
    });
    sections
}

/// Nothing but the page's own style and script, by hash, and `data:` images.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src {}; script-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        digest::source_expression(STYLE),
        digest::source_expression(SCRIPT),
    )
}

fn footer(doc: &Document) -> Markup {
    let command = format!("vmtax report {} --format html", shell_word(&figures::text(&doc.source)));
    let others = html! { code { "--format json" } " or " code { "--format csv" } };
    closing(&doc.tool_version, &command, &others, true)
}

/// How the page was made. Keys are said where there is a table to use them on.
pub(super) fn closing(version: &str, command: &str, others: &Markup, keys: bool) -> Markup {
    html! {
        footer {
            p {
                "Made by vmtax " (figures::text(version)) ". The same again: "
                code { (command) }
                "; for a program: " (others) "."
            }
            @if keys { p.keys {
                "Keys: " kbd { "/" } " filter, " kbd { "Esc" } " clear it, " kbd { "Enter" }
                " on a column's name sort, " kbd { "←" } " " kbd { "→" } " on a chart read its slots."
            } }
        }
    }
}

/// A word that a POSIX shell reads back as it is.
pub(super) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_text_does_not_end_its_element() {
        assert!(!STYLE.contains("</"));
        assert!(!SCRIPT.contains("</") && !SCRIPT.contains("<!--"));
    }

    #[test]
    fn words_survive_the_shell() {
        let cases =
            [("run-1/", "run-1/"), ("my run", "'my run'"), ("a'b", r"'a'\''b'"), ("", "''")];
        for (word, expected) in cases {
            assert_eq!(shell_word(word), expected);
        }
    }
}
