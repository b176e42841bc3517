//! The frame of the page: head, navigation, sections in order, footer.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    digest, figures, headline, histogram, losses, nested, operations, series, source, tables,
    timeline, timesplit,
};
use crate::{Document, operations as phrases};

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

/// The whole page.
pub(super) fn page(doc: &Document) -> Markup {
    let sections = sections(doc);
    let emulated = phrases::emulated(&doc.ledger);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                meta name="generator" content={ "vmtax " (figures::text(&doc.tool_version)) };
                title { "vmtax report – " (figures::text(&doc.source)) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the report" }
                (series::patterns())
                (source::header(doc))
                nav aria-label="Sections" {
                    ul {
                        @for section in &sections {
                            li { a href={ "#" (section.id) } { (section.label) } }
                        }
                    }
                }
                main #main tabindex="-1" {
                    @for section in &sections {
                        section id=(section.id) aria-labelledby={ (section.id) "-title" } {
                            @if let Some(sentence) = &emulated { p.emulated { (figures::text(sentence)) } }
                            (section.body)
                        }
                    }
                }
                (footer(doc))
                script { (PreEscaped(SCRIPT)) }
            }
        }
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
            body: operations::section(operations),
        });
        sections.extend(nested.take());
    }
    sections.extend([
        Section {
            id: "time-split".to_owned(),
            label: "Time split".to_owned(),
            body: timesplit::section(doc),
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
    let source = shell_word(&figures::text(&doc.source));
    html! {
        footer {
            p {
                "Made by vmtax " (figures::text(&doc.tool_version)) ". The same again: "
                code { "vmtax report " (source) " --format html" }
                "; for a program: " code { "--format json" } " or " code { "--format csv" } "."
            }
            p.keys {
                "Keys: " kbd { "/" } " filter, " kbd { "Esc" } " clear it, " kbd { "Enter" }
                " on a column's name sort, " kbd { "←" } " " kbd { "→" } " on a chart read its slots."
            }
        }
    }
}

/// A word that a POSIX shell reads back as it is.
fn shell_word(word: &str) -> String {
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
