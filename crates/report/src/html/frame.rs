//! The frame of a page: head, navigation, sections in order, footer.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{digest, figures, series};

/// At most this many rows of one table are in the page; the CSV renderer has no such limit.
pub const MAX_ROWS: usize = 2_000;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// A part of the page that the navigation leads to.
#[derive(Clone)]
pub(super) struct PageSection {
    /// Its `id`, a plain word.
    pub(super) id: String,
    /// What the navigation calls it.
    pub(super) label: String,
    /// Its content, heading included.
    pub(super) body: Markup,
}

/// The page around the sections. The first section is the answer: what holds of all figures, and where they come from, is below it.
pub(super) struct PageFrame<'a> {
    pub(super) title: String,
    pub(super) tool_version: &'a str,
    /// The name of the page, beside that of the tool.
    pub(super) name: &'a str,
    /// What the page is of, escaped; may be empty.
    pub(super) subject: String,
    /// Words that qualify every figure, beside the subject.
    pub(super) badges: Markup,
    /// The one sentence of the page on emulation. Hostile text.
    pub(super) emulation: Option<String>,
    /// About the data, folded until asked for. Without a value a fact is left out.
    pub(super) facts: Vec<PageFact>,
    /// Below the sections.
    pub(super) footer: Markup,
}

/// Something that is known of the data.
pub(super) struct PageFact {
    /// Its name, with a small letter.
    pub(super) name: &'static str,
    pub(super) value: Markup,
    /// A line of its own, in the font of code.
    pub(super) is_code: bool,
}

impl PageFact {
    /// A fact in hostile words.
    pub(super) fn new(name: &'static str, value: &str) -> PageFact {
        PageFact { name, value: html! { (figures::text(value)) }, is_code: false }
    }
}

pub(super) fn framed(frame: &PageFrame<'_>, sections: &[PageSection]) -> Markup {
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
                header.top {
                    div.title {
                        h1 { span.brand { "vmtax" } " " (frame.name) }
                        @if !frame.subject.is_empty() { p.source { (frame.subject) } }
                        (frame.badges)
                    }
                }
                nav aria-label="Sections" {
                    ul {
                        @for section in sections {
                            li { a href={ "#" (section.id) } { (section.label) } }
                        }
                    }
                }
                main #main tabindex="-1" {
                    @for (at, section) in sections.iter().enumerate() {
                        section id=(section.id) aria-labelledby={ (section.id) "-title" } {
                            (section.body)
                            @if at == 0 { (qualified(frame)) }
                        }
                    }
                }
                (frame.footer)
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// What holds of all figures, below the answer.
fn qualified(frame: &PageFrame<'_>) -> Markup {
    let facts = || frame.facts.iter().filter(|fact| !fact.value.0.is_empty());
    let names: Vec<&str> = facts().map(|fact| fact.name).collect();
    html! {
        @if let Some(sentence) = &frame.emulation {
            p.notice.emulation { strong { "Not hardware. " } (figures::text(sentence)) }
        }
        @if !names.is_empty() {
            details.about {
                summary { "About the data" span.aside { ": " (names.join(", ")) } }
                dl.facts {
                    @for fact in facts() {
                        div.wide[fact.is_code] { dt { (fact.name) } dd.mono[fact.is_code] { (fact.value) } }
                    }
                }
            }
        }
    }
}

/// Nothing but the page's own style and script, by hash, and `data:` images.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src {}; script-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        digest::source_expression(STYLE),
        digest::source_expression(SCRIPT),
    )
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
