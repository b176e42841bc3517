//! A comparison as a page: what differs between the set-ups, then the tables.

use maud::{Markup, html};
use vmtax_analyse::Diff;
use vmtax_analyse::diff::{Confidence, DiffRow, DiffTable, Verdict};

use super::page::{Frame, Section, closing, framed, shell_word};
use super::{MAX_ROWS, figures, losses};
use crate::numbers::{count, significant};
use crate::text::diff::unit;
use crate::{Comparison, names};

/// The whole page.
pub(super) fn page(comparison: &Comparison<'_>) -> Markup {
    let diff = &comparison.diff;
    let mut sections = vec![
        Section {
            id: "verdict".to_owned(),
            label: "Verdict".to_owned(),
            body: conclusion(comparison),
        },
        Section { id: "setups".to_owned(), label: "Set-ups".to_owned(), body: setups(diff) },
    ];
    sections.extend(diff.tables.iter().enumerate().map(|(number, table)| {
        let by: Vec<&str> = table.by.iter().map(|by| names::heading(*by)).collect();
        let id = format!("table-{number}");
        let body = html! {
            h2 id={ (id) "-title" } { "Exits by " (by.join(" and ")) ", " (unit(diff.per)) }
            (self::table(diff, table, &id))
        };
        Section { id, label: format!("By {}", by.join(", ")), body }
    }));
    sections.push(losses::sides(&[("Base", comparison.base), ("Other", comparison.other)]));
    let word = |text: &str| shell_word(&figures::text(text));
    let command = format!(
        "vmtax diff {} {} --format html",
        word(comparison.base.source),
        word(comparison.other.source)
    );
    let others = html! { code { "--format json" } " or " code { "--format csv" } };
    let frame = Frame {
        title: format!("vmtax diff – {}", figures::text(comparison.other.source)),
        tool_version: comparison.tool_version,
        header: header(comparison),
        notice: None,
        footer: closing(comparison.tool_version, &command, &others, true),
    };
    framed(&frame, &sections)
}

/// The verdict, and what being a VM and sharing its processors costs on either side.
fn conclusion(comparison: &Comparison<'_>) -> Markup {
    html! {
        h2 #verdict-title { "The verdict" }
        p.verdict { (figures::text(&crate::text::diff::verdict(comparison))) }
        @for (label, side) in [("Base", comparison.base), ("Other", comparison.other)] {
            p {
                (label) ": "
                (crate::explain::shares(side.ledger)
                    .unwrap_or_else(|| "no times: tax and contention are not known".to_owned()))
                "."
            }
            @for note in crate::headline::assumptions(side.ledger, &side.ledger.total()) {
                p.note { (figures::text(&note)) }
            }
        }
    }
}

fn header(comparison: &Comparison<'_>) -> Markup {
    let sides = [("Base", comparison.base), ("Other", comparison.other)];
    html! {
        header.top {
            div.title { h1 { span.brand { "vmtax" } " comparison" } }
            dl.facts {
                @for (label, side) in sides {
                    div {
                        dt { (label) }
                        dd {
                            (figures::text(side.source))
                            @if let Some(which) = side.emulated() {
                                " " span.badge.warn { "EMULATED: " (figures::text(which)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn setups(diff: &Diff) -> Markup {
    let said =
        |text: &str| if text.is_empty() { "not said".to_owned() } else { figures::text(text) };
    html! {
        h2 #setups-title { "The set-ups" }
        @if diff.setup.is_empty() {
            p { "The set-ups are the same, as far as the recordings say." }
        } @else {
            p.notice { "The set-ups differ, and so may everything below for that reason alone." }
            div.scroll tabindex="0" role="region" aria-label="Differences of the set-ups" {
                table {
                    thead { tr { th scope="col" { "What" } th scope="col" { "Base" } th scope="col" { "Other" } } }
                    tbody {
                        @for one in &diff.setup {
                            tr { th scope="row" { (figures::text(&one.what)) } td { (said(&one.base)) } td { (said(&one.other)) } }
                        }
                    }
                }
            }
        }
        p.note { "Not recorded, and so not compared: " (diff.unsaid.join(", ")) "." }
    }
}

fn table(diff: &Diff, table: &DiffTable, id: &str) -> Markup {
    let why = table.rows.iter().find_map(|row| match row.confidence {
        Confidence::None(why) => Some(why),
        Confidence::Interval(_) => None,
    });
    let tested = table.rows.iter().any(|row| matches!(row.confidence, Confidence::Interval(_)));
    let timed =
        diff.times && table.rows.iter().any(|row| row.base.time_ns.or(row.other.time_ns).is_some());
    html! {
        @if table.rows.len() > MAX_ROWS {
            p.note.cut { "The first " (count(MAX_ROWS as u64)) " rows of " (count(table.rows.len() as u64)) "." }
        }
        div.above {
            p.note {
                @match why {
                    Some(why) => {
                        "Whether differences are chance is not tested: " (why) ". About equal: within a tenth of the larger."
                    }
                    None => {
                        "At 95 %: where the difference lies, for all rows together; block bootstrap over intervals."
                    }
                }
            }
            div.tools {
                label for={ (id) "-filter" } { "Filter" }
                input.filter id={ (id) "-filter" } type="search" autocomplete="off" spellcheck="false"
                    placeholder="Filter rows..." aria-controls={ (id) "-rows" };
                output for={ (id) "-filter" } aria-live="polite" { (crate::numbers::counted(table.rows.len().min(MAX_ROWS) as u64, "row")) }
            }
        }
        div.scroll.capped tabindex="0" role="region" aria-label="Table of differences" {
            table data-sortable data-filterable {
                thead {
                    tr {
                        @for by in &table.by { th scope="col" data-sort="text" { (names::heading(*by)) } }
                        th.n scope="col" { "Base" }
                        th.n scope="col" { "Other" }
                        th.n scope="col" { "Other / base" }
                        th.n scope="col" { "Difference" }
                        @if tested { th.n scope="col" { "At 95 %" } }
                        @if timed { th.n scope="col" { "Time, base" } th.n scope="col" { "Time, other" } }
                        th scope="col" data-sort="text" { "Verdict" }
                    }
                }
                tbody id={ (id) "-rows" } {
                    @for row in table.rows.iter().take(MAX_ROWS) { (body_row(diff, row, tested, timed)) }
                }
            }
        }
    }
}

fn body_row(diff: &Diff, row: &DiffRow, tested: bool, timed: bool) -> Markup {
    let number = |rate: f64| {
        if diff.per == vmtax_analyse::Per::Recording {
            count(rate as u64)
        } else {
            significant(rate)
        }
    };
    let signed =
        |value: f64| format!("{}{}", if value > 0.0 { "+" } else { "" }, significant(value));
    let loud = matches!(row.verdict(), Verdict::More | Verdict::Fewer);
    html! {
        tr {
            @for (at, value) in row.key.iter().enumerate() {
                @if at == 0 { th scope="row" data-key { (figures::text(&names::value(*value))) } }
                @else { td data-key { (figures::text(&names::value(*value))) } }
            }
            td.n { (number(row.base.rate)) }
            td.n { (number(row.other.rate)) }
            td.n { @match row.ratio() { Some(ratio) => (format!("{ratio:.2}")), None => "new" } }
            td.n { (signed(row.difference())) }
            @if tested {
                td.n {
                    @match row.confidence {
                        Confidence::Interval(interval) => { (signed(interval.low)) " to " (signed(interval.high)) }
                        Confidence::None(_) => "–",
                    }
                }
            }
            @if timed {
                @for cell in [row.base, row.other] {
                    td.n { @match cell.time_ns { Some(ns) => (figures::duration(ns)), None => "–" } }
                }
            }
            td { @if loud { strong { (row.verdict().name()) } } @else { (row.verdict().name()) } }
        }
    }
}
