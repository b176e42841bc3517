//! The chart of exits of one operation of a benchmark, a bar for each VM, divided by cause.

use maud::{Markup, html};
use vmtax_analyse::Ledger;
use vmtax_analyse::traffic::{TrafficRow, traffic};
use vmtax_events::Cause;

use super::described::{self, TableSection};
use super::lines::{LINE, Scale, line, part};
use super::{figures, series};
use crate::numbers::significant;
use crate::table::Table;
use crate::traffic::{CAUSES, NOTE, TITLE, others, table, vm_name};

/// A chart for each workload, and the table; `None` where no exits of operations were recorded.
pub(super) fn section(ledger: &Ledger) -> Option<Markup> {
    let rows = traffic(ledger);
    (!rows.is_empty()).then(|| shown(&rows, &table(ledger)))
}

fn shown(rows: &[TrafficRow], table: &Table) -> Markup {
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    workloads.sort_unstable();
    workloads.dedup();
    let names = charted().map(|(.., title)| title).chain(["other"]);
    let has = |at: usize| rows.iter().any(|row| parts(row).get(at).is_some_and(|one| *one > 0.0));
    html! {
        h2 #traffic-title { (TITLE) }
        ul.legend {
            @for (at, name) in names.enumerate().filter(|(at, _)| has(*at)) {
                li { (series::swatch(&series::class(at))) (name) }
            }
        }
        @for workload in workloads {
            @let of_it: Vec<&TrafficRow> = rows.iter().filter(|row| row.workload == workload).collect();
            (chart(workload, &of_it))
        }
        (described::whole(
            &TableSection { id: "traffic", title: TITLE, notes: vec![NOTE.to_owned()], table },
            "--exits",
        ))
    }
}

/// Causes that a chart tells apart: as many as there are patterns.
fn charted() -> impl Iterator<Item = (Cause, &'static str, &'static str)> {
    CAUSES.into_iter().take(series::MAX_SERIES)
}

/// Exits of one operation by cause, in the order of the columns; the last are those of all other causes, entries of L2 among them.
fn parts(row: &TrafficRow) -> Vec<f64> {
    let known = charted().map(|(cause, ..)| row.cause(cause));
    let further = CAUSES.iter().skip(series::MAX_SERIES).map(|(cause, ..)| row.cause(*cause));
    known.chain([others(row) + further.sum::<f64>()]).collect()
}

fn chart(workload: &str, rows: &[&TrafficRow]) -> Markup {
    let all = |row: &TrafficRow| row.exits();
    let scale = Scale::new(0.0, rows.iter().map(|row| all(row)).fold(0.0, f64::max));
    html! {
        figure.bench aria-label={ "Exits of one operation of " (figures::text(workload)) " by cause; the table has the figures." } {
            figcaption { b { (figures::text(workload)) } " " span.aside { "exits of one operation" } }
            @for row in rows {
                @let bar = html! {
                    @for (at, from, count) in stacked(row) {
                        rect class=(series::class(at)) x=(part(scale.x(from))) y="5" width=(part(scale.x(count))) height=(LINE - 10.0) {
                            title { (figures::text(&vm_name(row))) ": " (charted().nth(at).map_or("other", |cause| cause.2)) " " (significant(count)) }
                        }
                    }
                };
                (line(&scale, &figures::text(&vm_name(row)), &bar, &significant(all(row))))
            }
            (scale.axis())
        }
    }
}

/// Causes with exits: number, where its part of the bar begins, exits of one operation.
fn stacked(row: &TrafficRow) -> Vec<(usize, f64, f64)> {
    let mut from = 0.0;
    let mut found = Vec::new();
    for (at, count) in parts(row).into_iter().enumerate().filter(|(_, count)| *count > 0.0) {
        found.push((at, from, count));
        from += count;
    }
    found
}
