//! A page of tables that are described once ([`crate::table`]).

use std::io::{self, Write};

use maud::{Markup, PreEscaped, html};

use super::figures;
use super::flame::Picture;
use super::frame::{MAX_ROWS, PageFact, PageFrame, PageSection, framed};
use super::heat::{self, Heat};
use crate::numbers;
use crate::table::{BarSlice, Cell, Column, PAGE, Table};

/// A table of a page, and the sentences above it.
pub struct TableSection<'a> {
    /// Its `id`, a plain word.
    pub id: &'a str,
    /// Its heading. Hostile text.
    pub title: &'a str,
    /// Sentences above it. Hostile text.
    pub notes: Vec<String>,
    pub table: &'a Table,
}

/// The page around the tables. All texts except the command are untrusted.
pub struct TablePage<'a> {
    /// The command that made it: `pages`.
    pub command: &'static str,
    pub tool_version: &'a str,
    /// Name and value of what the data is, folded; the first is beside the page's name.
    pub facts: Vec<(&'static str, String)>,
    /// What the tables say, above them: the first sentence is the answer. Hostile text.
    pub answer: Vec<String>,
    /// The one sentence on emulation, where it holds of all figures. Hostile text.
    pub emulation: Option<String>,
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
        let mut all = described(sections);
        if !pictures.is_empty() {
            all.push(drawn(pictures));
        }
        out.write_all(page(self, &all).into_string().as_bytes())?;
        out.write_all(b"\n")
    }

    /// As [`TablePage::write`], with heat maps before the tables.
    pub fn write_with_heats(
        &self,
        heats: &[Heat],
        sections: &[TableSection<'_>],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let map = |heat: &Heat| PageSection {
            id: heat.id.clone(),
            label: heat.title.clone(),
            body: heat::drawing(heat),
        };
        let all: Vec<PageSection> = heats.iter().map(map).chain(described(sections)).collect();
        out.write_all(page(self, &all).into_string().as_bytes())?;
        out.write_all(b"\n")
    }
}

pub(super) fn described(parts: &[TableSection<'_>]) -> Vec<PageSection> {
    let one = |part: &TableSection<'_>| PageSection {
        id: part.id.to_owned(),
        label: part.title.to_owned(),
        body: section(part),
    };
    parts.iter().map(one).collect()
}

fn page(around: &TablePage<'_>, sections: &[PageSection]) -> Markup {
    let command = around.command;
    let subject = around.facts.first().map_or_else(String::new, |(_, text)| figures::text(text));
    let frame = PageFrame {
        title: match subject.is_empty() {
            true => format!("vmtax {command}"),
            false => format!("vmtax {command} – {subject}"),
        },
        tool_version: around.tool_version,
        name: command,
        subject,
        badges: html! {},
        emulation: around.emulation.clone(),
        facts: around.facts.iter().map(|(name, text)| PageFact::new(name, text)).collect(),
        footer: html! {
            footer { p {
                "Made by vmtax " (figures::text(around.tool_version)) ". For a program: "
                code { "--format json" } " or " code { "csv" } "."
            } }
        },
    };
    let all: Vec<PageSection> =
        answer(around).into_iter().chain(sections.iter().cloned()).collect();
    framed(&frame, &all)
}

/// The sentences above the tables, if they say anything.
fn answer(around: &TablePage<'_>) -> Option<PageSection> {
    if around.answer.is_empty() {
        return None;
    }
    let body = html! {
        h2 #answer-title { "Result" }
        @for (at, sentence) in around.answer.iter().enumerate() {
            p.verdict[at == 0] { (figures::text(sentence)) }
        }
    };
    Some(PageSection { id: "answer".to_owned(), label: "Result".to_owned(), body })
}

/// The pictures; all but the first are folded away until they are asked for.
pub(super) fn drawn(pictures: &[Picture]) -> PageSection {
    let body = html! {
        h2 #pictures-title { "Where paths differ" }
        p.note {
            "A frame is as wide as its instructions in the run that is compared. Red: more of them in one operation than in the first run, blue: fewer. "
            "Functions of the first run only are not drawn."
        }
        @for (at, Picture { heading, sentence, svg }) in pictures.iter().enumerate() {
            details open[at == 0] {
                summary { (figures::text(heading)) }
                @if !sentence.is_empty() { p.note { (figures::note(sentence)) } }
                @match svg {
                    Some(svg) => div.scroll.flame { (PreEscaped(svg)) },
                    None => p.empty { "The difference cannot be drawn." },
                }
            }
        }
    };
    PageSection { id: "pictures".to_owned(), label: "Where paths differ".to_owned(), body }
}

fn section(part: &TableSection<'_>) -> Markup {
    html! {
        h2 id={ (part.id) "-title" } { (figures::text(part.title)) }
        (whole(part, "--format csv"))
    }
}

/// A table with its notes and its filter; `all` are the flags with which a program gets all rows.
pub(super) fn whole(part: &TableSection<'_>, all: &str) -> Markup {
    let TableSection { id, title, notes, table } = part;
    let shown = table.rows.len().min(MAX_ROWS);
    html! {
        (cut(table, MAX_ROWS, all))
        div.above {
            div { @for note in notes { p.note { (figures::note(note)) } } }
            div.tools {
                label for={ (id) "-filter" } { "Filter" }
                input.filter id={ (id) "-filter" } type="search" autocomplete="off" spellcheck="false"
                    placeholder="Filter rows..." aria-controls={ (id) "-rows" };
                output for={ (id) "-filter" } aria-live="polite" { (numbers::counted(shown as u64, "row")) }
            }
        }
        (rows(id, title, table))
    }
}

/// Says that rows are not on the page, and how to get them.
pub(super) fn cut(table: &Table, most: usize, all: &str) -> Markup {
    let rows = table.rows.len();
    html! {
        @if rows > most {
            p.note.cut {
                "The first " (numbers::count(most as u64)) " of " (numbers::count(rows as u64))
                " rows are here, and only these are sorted and filtered. All of them: " code { (all) } "."
            }
        }
    }
}

pub(super) fn rows(id: &str, title: &str, table: &Table) -> Markup {
    grid(id, title, table, MAX_ROWS)
}

/// Whether a column is on the page: those in which no row has anything are not.
fn is_shown(table: &Table, at: usize) -> bool {
    let is_something = |cell: &Cell| match cell {
        Cell::Absent | Cell::Empty => false,
        Cell::Name(name) => !name.is_empty(),
        Cell::Words(words) => !words.is_empty(),
        _ => true,
    };
    let cells = || table.rows.iter().filter_map(|row| row.cells.get(at));
    let total = table.total.as_ref().and_then(|total| total.get(at));
    table.columns[at].is_on(PAGE)
        && (at == 0 || table.rows.is_empty() || cells().chain(total).any(is_something))
}

/// A row's cells that are on the page, with their columns.
fn on_page<'t>(
    table: &'t Table,
    shown: &'t [bool],
    cells: &'t [Cell],
) -> impl Iterator<Item = (&'t Column, &'t Cell)> {
    let all = table.columns.iter().zip(cells).zip(shown);
    all.filter(|(_, shown)| **shown).map(|(both, _)| both)
}

/// The table alone, cut after this number of rows.
pub(super) fn grid(id: &str, title: &str, table: &Table, most: usize) -> Markup {
    let grouped = table.rows.iter().any(|row| row.group.is_some());
    let mut group = String::new();
    let shown: Vec<bool> = (0..table.columns.len()).map(|at| is_shown(table, at)).collect();
    html! {
        div.scroll.capped tabindex="0" role="region" aria-label={ "Table: " (figures::text(title)) } {
            table data-sortable data-filterable {
                thead { tr {
                    @if grouped { th scope="col" data-sort="text" { "Of" } }
                    @for (at, column) in table.columns.iter().enumerate() {
                        @if shown[at] { (heading(column, sorts(table, at))) }
                    }
                } }
                tbody id={ (id) "-rows" } {
                    @for row in table.rows.iter().take(most) {
                        @if let Some(name) = &row.group { @let () = group = figures::text(name); }
                        tr {
                            @if grouped { th scope="row" data-key { (group) } }
                            @for (at, (column, cell)) in on_page(table, &shown, &row.cells).enumerate() {
                                (place(column, cell, at == 0 && !grouped, row.is_strong))
                            }
                        }
                    }
                }
                @if let Some(total) = &table.total {
                    tfoot { tr {
                        @if grouped { th scope="row" {} }
                        @for (at, (column, cell)) in on_page(table, &shown, total).enumerate() {
                            @if at == 0 && !grouped { th scope="row" { (value(cell)) } }
                            @else { (place(column, cell, false, false)) }
                        }
                    } }
                }
            }
        }
    }
}

/// How the page's script sorts a column: by the numbers that its cells stand for, or by their text.
fn sorts(table: &Table, at: usize) -> Option<&'static str> {
    let cells = || table.rows.iter().filter_map(|row| row.cells.get(at));
    if cells().any(|cell| matches!(cell, Cell::Stack(_))) {
        return None;
    }
    let has_keys = table.columns[at].is_number() || cells().any(|cell| cell.sort_key().is_some());
    Some(if has_keys { "number" } else { "text" })
}

fn heading(column: &Column, sort: Option<&str>) -> Markup {
    let help = Some(column.help).filter(|help| !help.is_empty());
    let title = if column.name.is_empty() { &column.title } else { column.name };
    html! {
        th class=[class(column, None)] scope="col" data-sort=[sort] aria-sort=[column.page.order] title=[help] {
            (figures::text(title))
        }
    }
}

/// A cell in its place.
fn place(column: &Column, cell: &Cell, is_first: bool, is_strong: bool) -> Markup {
    let class = class(column, Some(cell));
    let is_key = !column.is_number();
    let stands_out = (is_strong && is_key) || column.page.is_strong;
    let inner = html! {
        @match cell {
            _ if column.page.is_barred => span { (barred(cell)) },
            Cell::Absent | Cell::Empty => (value(cell)),
            _ if stands_out => b { (value(cell)) },
            _ => (value(cell)),
        }
    };
    html! {
        @if is_first {
            th class=[class] scope="row" data-key[is_key] data-v=[cell.sort_key()] title=[title(cell)] { (inner) }
        } @else {
            td class=[class] data-key[is_key] data-v=[cell.sort_key()] data-ns=[nanoseconds(cell)] title=[title(cell)] { (inner) }
        }
    }
}

/// The classes of a cell, or of a heading.
fn class(column: &Column, cell: Option<&Cell>) -> Option<String> {
    let is_bare = |cell: &Cell| match cell {
        Cell::Titled(inner, _) => matches!(**inner, Cell::Percent(0.0)),
        other => matches!(other, Cell::Percent(0.0)),
    };
    let is_zero = cell.is_some_and(is_bare);
    let all = [
        ("n", column.is_number() && !column.page.class.starts_with("picture")),
        ("barred", column.page.is_barred),
        ("zero", is_zero && !column.page.is_barred),
        (column.page.class, true),
    ];
    let words: Vec<&str> = all
        .iter()
        .filter(|(word, is_on)| *is_on && !word.is_empty())
        .map(|(word, _)| *word)
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The exact time behind a rounded one.
fn nanoseconds(cell: &Cell) -> Option<u64> {
    match cell {
        Cell::Time(ns) => Some(*ns),
        _ => None,
    }
}

fn title(cell: &Cell) -> Option<String> {
    match cell {
        Cell::Titled(_, title) => Some(title.clone()),
        Cell::Quantile(low, high) => {
            Some(format!("between {} and {} ns", numbers::count(*low), numbers::count(*high)))
        }
        _ => None,
    }
}

/// A share with a bar as long.
fn barred(cell: &Cell) -> Markup {
    html! {
        @if let Cell::Percent(share) | Cell::Share(share) = cell { (figures::bar(*share)) }
        (value(cell))
    }
}

fn value(cell: &Cell) -> Markup {
    match cell {
        Cell::Absent => html! { "–" },
        Cell::Nanoseconds(ns) | Cell::Mean(ns) => figures::duration_cell(*ns),
        Cell::Time(ns) | Cell::Quantile(_, ns) => figures::duration_cell(*ns as f64),
        Cell::Share(share) | Cell::Percent(share) => html! { (figures::percent(*share)) },
        Cell::Name(name) | Cell::Written(name, _) => html! { (figures::text(name)) },
        Cell::Described(word, about) => html! { (word) " " span.aside { (about) } },
        Cell::Words(words) => html! {
            @for (i, word) in words.iter().enumerate() {
                @if i > 0 { " " }
                span.word { (word) }
            }
        },
        Cell::Stack(slices) => stack(slices),
        Cell::Titled(cell, _) => value(cell),
        other => html! { (other.text()) },
    }
}

/// A bar of parts, for the eye: the figures stand beside it.
fn stack(slices: &[BarSlice]) -> Markup {
    let mut x = 0.0;
    html! {
        svg.stack viewBox="0 0 1000 16" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            @for slice in slices {
                @let width = slice.share.clamp(0.0, 1.0) * 1000.0;
                @if width > 0.0 {
                    rect class=(slice.class) x=(figures::coordinate(x)) width=(figures::coordinate(width)) height="16" {
                        title { (slice.title) ": " (figures::percent(slice.share)) }
                    }
                }
                @let () = x += width;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: &Table, notice: Option<&str>) -> String {
        let page = TablePage {
            command: "test",
            tool_version: "1",
            facts: vec![("Runs", "a<b".to_owned())],
            answer: vec!["One row.".to_owned()],
            emulation: notice.map(str::to_owned),
        };
        let section = |id| TableSection { id, title: "Rows", notes: vec!["<i>".to_owned()], table };
        let mut out = Vec::new();
        page.write(&[section("one"), section("two")], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn notes_for_the_whole_page_appear_once() {
        let column = Column::words("name", "name");
        let table = Table::of(["<b>"]).column(column, |name| Cell::Word(name)).table();
        let page = written(&table, Some("Emulated (<x>)."));
        assert_eq!(page.matches("Emulated (&lt;x&gt;).").count(), 1);
        assert!(!written(&table, None).contains("class=\"notice emulation\""));
    }

    #[test]
    fn cells_are_typed() {
        let slice = BarSlice { class: "s0".to_owned(), title: "<t>".to_owned(), share: 0.25 };
        let or = |row: &bool, cell: Cell, total: Cell| if *row { cell } else { total };
        let table = Table::of([true])
            .total(Some(false))
            .column(Column::words("name", "name"), |row| {
                or(row, Cell::Described("cause", "what <it> is"), Cell::Word("all"))
            })
            .column(Column::number("share", "share").barred(), |row| {
                or(row, Cell::Percent(0.5), Cell::Empty)
            })
            .column(Column::number("bar", "bar").class("picture"), |row| {
                or(row, Cell::Stack(vec![slice.clone()]), Cell::Empty)
            })
            .column(Column::minor("delta", "delta", 1).help("more <"), |row| {
                or(row, Cell::Delta(-0.5), Cell::Absent)
            })
            .column(Column::data("hidden"), |_| Cell::Count(7))
            .table();
        let page = written(&table, None);
        for part in [
            "cause <span class=\"aside\">what &lt;it&gt; is</span></th>",
            "<svg class=\"bar\"",
            "<title>&lt;t&gt;: 25.0\u{a0}%</title>",
            "<th class=\"picture\" scope=\"col\">bar</th>",
            "title=\"more &lt;\"",
            ">-0.5</td>",
            "<tfoot><tr><th scope=\"row\">all</th>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("hidden<"));
    }
}
