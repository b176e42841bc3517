//! A comparison as a page: what differs between the set-ups, then the tables.

use maud::{Markup, html};
use vmtax_analyse::Diff;
use vmtax_analyse::diff::DiffTable;

use super::described::{self, TableSection};
use super::frame::{PageFact, PageFrame, PageSection, closing, framed, shell_word};
use super::headline::big_percent;
use super::{figures, losses, series};
use crate::calls::difference;
use crate::text::diff::unit;
use crate::{Comparison, RunSubject, names, numbers};

pub(super) fn page(comparison: &Comparison<'_>) -> Markup {
    let diff = &comparison.diff;
    let mut sections = vec![
        PageSection {
            id: "verdict".to_owned(),
            label: "Verdict".to_owned(),
            body: conclusion(comparison),
        },
        PageSection { id: "setups".to_owned(), label: "Set-ups".to_owned(), body: setups(diff) },
    ];
    sections.extend(diff.tables.iter().enumerate().map(|(number, table)| {
        let by: Vec<&str> = table.by.iter().map(|by| names::heading(*by)).collect();
        let id = format!("table-{number}");
        let body = html! {
            h2 id={ (id) "-title" } { "Exits by " (by.join(" and ")) ", " (unit(diff.per)) }
            (self::table(diff, table, &id, &format!("By {}", by.join(", "))))
        };
        PageSection { id, label: format!("By {}", by.join(", ")), body }
    }));
    sections.extend(functions(comparison));
    sections.push(losses::sides(&[("Base", comparison.base), ("Other", comparison.other)]));
    let word = |text: &str| shell_word(&figures::text(text));
    let command = format!(
        "vmtax diff {} {} --format html",
        word(comparison.base.source),
        word(comparison.other.source)
    );
    let others = html! { code { "--format json" } " or " code { "--format csv" } };
    let frame = PageFrame {
        title: format!("vmtax diff – {}", figures::text(comparison.other.source)),
        tool_version: comparison.tool_version,
        name: "comparison",
        subject: figures::text(&format!(
            "{} against {}",
            comparison.other.source, comparison.base.source
        )),
        badges: html! {},
        emulation: emulation(comparison),
        facts: vec![
            PageFact::new("base", comparison.base.source),
            PageFact::new("other", comparison.other.source),
        ],
        footer: closing(comparison.tool_version, &command, &others, true),
    };
    framed(&frame, &sections)
}

/// The functions by which call trees differ, and pictures of them.
fn functions(comparison: &Comparison<'_>) -> Vec<PageSection> {
    let sections = crate::diff::with_trees(comparison, |all| {
        let table = difference::table(all);
        let notes = vec![
            "Instructions of one operation, other less base; the sum is exactly the difference of the call trees.".to_owned(),
        ];
        let mut sections = described::described(&[TableSection {
            id: "functions",
            title: "Functions",
            notes,
            table: &table,
        }]);
        sections.push(described::drawn(&difference::pictures(all)));
        sections
    });
    sections.unwrap_or_default()
}

/// The verdict, and what being a VM and sharing its processors costs on either side.
fn conclusion(comparison: &Comparison<'_>) -> Markup {
    let (sentence, most) = crate::text::diff::conclusions(comparison);
    html! {
        h2 #verdict-title { "The verdict" }
        p.verdict { (figures::text(&sentence)) }
        @if let Some(most) = most { p { (figures::text(&most)) } }
        div.versus {
            @for (label, side) in [("Base", comparison.base), ("Other", comparison.other)] {
                (cost(&comparison.diff, label, side))
            }
        }
        @if let Some(table) = comparison.diff.tables.first() { (chart(&comparison.diff, table)) }
    }
}

/// What being a VM, and sharing its processors, costs on one side.
fn cost(diff: &Diff, label: &str, side: RunSubject<'_>) -> Markup {
    let tax = side.ledger.tax().filter(|_| diff.times);
    html! {
        div.tax {
            p.label { (label) ": " span.source { (figures::text(side.source)) } }
            @match tax {
                Some(tax) => {
                    p.figure { (big_percent(tax)) }
                    p { "exit tax; " (contention(side)) }
                }
                None => p { (figures::text(&crate::diff::shares(diff, side))) "." },
            }
            @for note in crate::headline::missing(side.ledger, &side.ledger.total()) {
                p.note { (figures::text(&note)) }
            }
        }
    }
}

fn contention(side: RunSubject<'_>) -> String {
    let recorded = side.ledger.contention().filter(|_| side.ledger.recording.coverage.sched);
    recorded.map_or_else(
        || "contention not recorded (sched_switch)".to_owned(),
        |share| format!("contention {}", numbers::percent(share)),
    )
}

/// Which side is of an emulated host.
fn emulation(comparison: &Comparison<'_>) -> Option<String> {
    let (base, other) = (comparison.base.emulated(), comparison.other.emulated());
    Some(match (base, other) {
        (None, None) => return None,
        (Some(base), Some(other)) if base == other => {
            format!(
                "Both are of an emulated host ({base}): times do not reflect hardware, counts do."
            )
        }
        (Some(base), Some(other)) => format!(
            "Both are of emulated hosts (base: {base}, other: {other}): their times are not compared, counts are."
        ),
        (Some(which), None) => {
            format!(
                "The base is of an emulated host ({which}): times are not compared, counts are."
            )
        }
        (None, Some(which)) => {
            format!(
                "The other is of an emulated host ({which}): times are not compared, counts are."
            )
        }
    })
}

/// Rows of the chart: those that differ most.
const CHARTED: usize = 8;
/// Width of the chart's area, in its own units.
const WIDTH: f64 = 100.0;

/// Two bars for each of the first rows, on one scale.
fn chart(diff: &Diff, table: &DiffTable) -> Markup {
    let rows = &table.rows[..table.rows.len().min(CHARTED)];
    let largest = rows.iter().map(|row| row.base.rate.max(row.other.rate)).fold(0.0, f64::max);
    if largest <= 0.0 || !largest.is_finite() {
        return html! {};
    }
    let width = |rate: f64| figures::coordinate(rate / largest * WIDTH);
    let word = |rate: f64| numbers::of_count(rate);
    html! {
        figure.pairs {
            figcaption {
                "Exits, " (unit(diff.per)) ": "
                (series::swatch("base")) "base " (series::swatch("other")) "other"
            }
            @for row in rows {
                @let name: Vec<String> =
                    row.key.iter().map(|value| figures::text(&names::value(*value))).collect();
                div.pair {
                    span.name { (name.join(" · ")) }
                    svg viewBox={ "0 0 " (WIDTH) " 14" } preserveAspectRatio="none" aria-hidden="true" focusable="false" {
                        rect.base x="0" y="0" width=(width(row.base.rate)) height="6" {}
                        rect.other x="0" y="8" width=(width(row.other.rate)) height="6" {}
                    }
                    span.numbers { span { (word(row.base.rate)) } span { (word(row.other.rate)) } }
                }
            }
            @if table.rows.len() > rows.len() {
                p.note { "Of " (table.rows.len()) " rows, those that differ most; all are in the tables below." }
            }
        }
    }
}

fn setups(diff: &Diff) -> Markup {
    html! {
        h2 #setups-title { "The set-ups" }
        @if diff.setup.is_empty() {
            p { "No difference between the setups was recorded." }
        } @else {
            p.notice { "The setups differ; this alone may cause the differences below." }
            (described::rows("setups", "Differences between the setups", &crate::diff::setup(diff)))
        }
        p.note { "Not recorded, and so not compared: " (diff.unsaid.join(", ")) "." }
    }
}

fn table(diff: &Diff, table: &DiffTable, id: &str, title: &str) -> Markup {
    let note = match crate::diff::untested(table) {
        Some(why) => format!(
            "Significance is not tested: {why}. About equal: within 10 % of the larger."
        ),
        None => "At 95 %: simultaneous confidence intervals of the differences; block bootstrap over intervals."
            .to_owned(),
    };
    let described = crate::diff::exits(diff, table);
    let section = TableSection { id, title, notes: vec![note], table: &described };
    described::whole(&section, "--format csv")
}
