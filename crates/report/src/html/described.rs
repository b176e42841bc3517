//! A page of tables that are described once ([`crate::table`]).

use std::io::{self, Write};

use maud::{Markup, PreEscaped, html};

use super::flame::Picture;
use super::page::{Frame, Section, framed};
use super::{MAX_ROWS, figures};
use crate::numbers;
use crate::table::{Cell, Table};

/// A table of a page, and the sentences above it.
pub struct TableSection<'a> {
    /// Its `id`, a plain word.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// Sentences above it. Hostile text.
    pub notes: Vec<String>,
    /// The table.
    pub table: &'a Table,
}

/// What stands around the tables. All texts but the command are hostile.
pub struct TablePage<'a> {
    /// The command that made it: `pages`.
    pub command: &'static str,
    /// Version of this tool.
    pub tool_version: &'a str,
    /// Name and value, at the head of the page.
    pub facts: Vec<(&'static str, String)>,
    /// Said in each section, where it holds of all figures.
    pub notice: Option<String>,
}

impl TablePage<'_> {
    /// Writes the page with these sections.
    pub fn write(&self, sections: &[TableSection<'_>], out: &mut dyn Write) -> io::Result<()> {
        self.write_with_pictures(sections, &[], out)
    }

    /// As [`TablePage::write`], with flame graphs of differences behind the tables.
    pub fn write_with_pictures(
        &self,
        sections: &[TableSection<'_>],
        pictures: &[Picture],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        out.write_all(page(self, sections, pictures).into_string().as_bytes())?;
        out.write_all(b"\n")
    }
}

fn page(around: &TablePage<'_>, parts: &[TableSection<'_>], pictures: &[Picture]) -> Markup {
    let command = around.command;
    let mut sections: Vec<Section> = parts
        .iter()
        .map(|part| Section {
            id: part.id.to_owned(),
            label: part.title.to_owned(),
            body: section(part),
        })
        .collect();
    if !pictures.is_empty() {
        sections.push(drawn(pictures));
    }
    let subject = around.facts.first().map_or_else(String::new, |(_, text)| figures::text(text));
    let frame = Frame {
        title: format!("vmtax {command} – {subject}"),
        tool_version: around.tool_version,
        header: html! {
            header.top {
                div.title { h1 { span.brand { "vmtax" } " " (command) } }
                dl.facts {
                    @for (name, text) in &around.facts {
                        div { dt { (name) } dd { (figures::text(text)) } }
                    }
                }
            }
        },
        notice: around.notice.clone(),
        footer: html! {
            footer { p {
                "Made by vmtax " (figures::text(around.tool_version)) ". For a program: "
                code { "--format json" } " or " code { "csv" } "."
            } }
        },
    };
    framed(&frame, &sections)
}

/// The pictures, folded away until they are asked for.
fn drawn(pictures: &[Picture]) -> Section {
    let body = html! {
        h2 #pictures-title { "Where paths differ" }
        p.note {
            "A frame is as wide as its instructions in the run that is compared. Red: more of them in one operation than in the first run, blue: fewer. "
            "What only the first run has is not drawn."
        }
        @for Picture { heading, svg } in pictures {
            details {
                summary { (figures::text(heading)) }
                @match svg {
                    Some(svg) => div.scroll.flame { (PreEscaped(svg)) },
                    None => p.empty { "The difference cannot be drawn." },
                }
            }
        }
    };
    Section { id: "pictures".to_owned(), label: "Where paths differ".to_owned(), body }
}

fn section(part: &TableSection<'_>) -> Markup {
    html! {
        h2 id={ (part.id) "-title" } { (part.title) }
        (whole(part.id, part.title, &part.notes, part.table))
    }
}

/// A table with its notes and its filter.
pub(super) fn whole(id: &str, title: &str, notes: &[String], table: &Table) -> Markup {
    let shown = table.rows.len().min(MAX_ROWS);
    let all = table.rows.len();
    html! {
        @for note in notes { p.note { (figures::text(note)) } }
        @if shown != all {
            p.note.cut {
                "The first " (numbers::count(shown as u64)) " of " (numbers::count(all as u64)) " rows are here; "
                code { "--format csv" } " has them all."
            }
        }
        div.above { (filter(id, shown)) }
        (rows(id, title, table))
    }
}

/// The field that filters the rows of a table.
pub(super) fn filter(id: &str, shown: usize) -> Markup {
    html! {
        div.tools {
            label for={ (id) "-filter" } { "Filter" }
            input.filter id={ (id) "-filter" } type="search" autocomplete="off" spellcheck="false"
                placeholder="Filter rows..." aria-controls={ (id) "-rows" };
            output for={ (id) "-filter" } aria-live="polite" { (numbers::counted(shown as u64, "row")) }
        }
    }
}

/// The table alone.
pub(super) fn rows(id: &str, title: &str, table: &Table) -> Markup {
    let grouped = table.rows.iter().any(|row| row.group.is_some());
    let mut group = String::new();
    html! {
        div.scroll.capped tabindex="0" role="region" aria-label={ "Table: " (title) } {
            table data-sortable data-filterable {
                thead { tr {
                    @if grouped { th scope="col" data-sort="text" { "Of" } }
                    @for column in table.columns.iter().filter(|column| column.is_shown()) {
                        @let sort = if column.is_number() { "number" } else { "text" };
                        @let help = Some(column.help).filter(|help| !help.is_empty());
                        th.n[column.is_number()] scope="col" data-sort=(sort) title=[help] { (column.title) }
                    }
                } }
                tbody id={ (id) "-rows" } {
                    @for row in table.rows.iter().take(MAX_ROWS) {
                        @if let Some(name) = &row.group { @let () = group = figures::text(name); }
                        tr {
                            @if grouped { th scope="row" data-key { (group) } }
                            @for (at, (column, cell)) in table.shown(row).enumerate() {
                                @if at == 0 && !grouped && !column.is_number() {
                                    th scope="row" data-key { (value(cell)) }
                                } @else {
                                    td.n[column.is_number()] data-key[!column.is_number()] data-v=[cell.sort_key()] {
                                        @if row.is_strong && !column.is_number() { strong { (value(cell)) } }
                                        @else { (value(cell)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn value(cell: &Cell) -> Markup {
    match cell {
        Cell::Absent => html! { "–" },
        Cell::Nanoseconds(ns) => figures::duration_cell(*ns),
        Cell::Share(share) => html! { (figures::percent(*share)) },
        Cell::Name(name) => html! { (figures::text(name)) },
        other => html! { (other.text()) },
    }
}
