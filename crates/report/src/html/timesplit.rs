//! Where the time of each vCPU went: a stacked bar per vCPU, with its figures beside it.

use maud::{Markup, html};
use vmtax_analyse::ledger::tax;
use vmtax_events::{Coverage, Part, TimeRow};

use super::{MAX_ROWS, figures, series};
use crate::{Document, names, numbers};

/// The parts that are worth a column: those of a guest's guest only where there is one.
fn parts(doc: &Document) -> Vec<&'static Part> {
    let ran = |part: &Part| doc.ledger.time.values().any(|time| (part.of)(&time.sum) > 0);
    TimeRow::PARTS.iter().filter(|part| part.within.is_none() || ran(part)).collect()
}

/// The class of a part's colour.
fn class(part: &Part) -> String {
    part.name.trim_start_matches("exit-").to_ascii_lowercase()
}

/// Legend and table of bars.
pub(super) fn section(doc: &Document) -> Markup {
    let time = &doc.ledger.time;
    let states = parts(doc);
    html! {
        h2 #time-split-title { "Time split per vCPU" }
        @if time.is_empty() {
            p.empty { "The source does not say where the vCPUs' time went." }
        } @else {
            ul.legend {
                @for state in &states {
                    li { (series::swatch(&class(state))) b { (state.name) } " " span.aside { (state.explain) } }
                }
            }
            (split_table(doc, &states))
            @if time.len() > MAX_ROWS {
                p.note {
                    "The first " (numbers::count(MAX_ROWS as u64)) " of " (numbers::count(time.len() as u64))
                    " vCPUs are listed; " code { "--format json" } " has them all."
                }
            }
        }
    }
}

fn split_table(doc: &Document, states: &[&Part]) -> Markup {
    let time = &doc.ledger.time;
    let several_vms = doc.ledger.recording.vms.len() > 1;
    let total = doc.ledger.time_total();
    let coverage = &doc.ledger.recording.coverage;
    html! {
        div.scroll.capped tabindex="0" role="region" aria-label="Time split per vCPU, table" {
            table.split data-sortable {
                thead {
                    tr {
                        @if several_vms { th scope="col" data-sort="text" { "VM" } }
                        th.n scope="col" data-sort="number" aria-sort=[(!several_vms).then_some("ascending")] { "vCPU" }
                        th.picture scope="col" { "Where its time went" }
                        th.n scope="col" data-sort="number" { "Tax" }
                        @for state in states {
                            th.n scope="col" data-sort="number" { (state.name) }
                        }
                        th.n scope="col" data-sort="number" { "Wall" }
                    }
                }
                tbody {
                    @for (&(vm, vcpu), split) in time.iter().take(MAX_ROWS) {
                        tr {
                            @if several_vms { td { (figures::text(&names::vm(&doc.ledger.recording, vm))) } }
                            th.n scope="row" data-v=(vcpu) { (names::vcpu_name(vcpu)) }
                            (cells(&split.sum, states, coverage))
                        }
                    }
                }
                @if time.len() > 1 {
                    tfoot {
                        tr {
                            th.n scope="row" colspan=[several_vms.then_some("2")] { "all" }
                            (cells(&total, states, coverage))
                        }
                    }
                }
            }
        }
    }
}

fn cells(time: &TimeRow, states: &[&Part], coverage: &Coverage) -> Markup {
    let whole = whole(time);
    html! {
        td.picture { (bar(time)) }
        @match tax(time) {
            Some(tax) => td.n data-v=((tax * 1e9) as u64) { b { (figures::percent(tax)) } },
            None => td.n { "–" },
        }
        @for state in states {
            @let ns = state.own(time);
            @if ns == 0 && !(state.is_told)(coverage) {
                td.n.none title="not recorded, so counted elsewhere" { "–" }
            } @else {
                td.n.zero[ns == 0] data-v=(part_per_billion(ns, whole)) title=(figures::duration(ns as f64)) {
                    (figures::percent(figures::share(ns, whole)))
                }
            }
        }
        td.n data-v=(time.wall_ns) { (figures::duration_cell(time.wall_ns as f64)) }
    }
}

fn bar(time: &TimeRow) -> Markup {
    let whole = whole(time);
    let mut x = 0.0;
    html! {
        svg.stack viewBox="0 0 1000 16" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            @for state in TimeRow::PARTS {
                @let ns = state.own(time);
                @let width = figures::share(ns, whole) * 1000.0;
                @if ns > 0 {
                    rect class=(class(state)) x=(figures::coordinate(x)) width=(figures::coordinate(width)) height="16" {
                        title {
                            (state.name) ": " (figures::duration(ns as f64)) ", "
                            (figures::percent(figures::share(ns, whole)))
                        }
                    }
                }
                @let () = x += width;
            }
        }
    }
}

/// What the bar's length stands for. Spans are counted where they end, so the parts can exceed the
/// wall time of a recording that was cut.
fn whole(time: &TimeRow) -> u64 {
    let parts = TimeRow::PARTS.iter().fold(0u64, |sum, part| sum.saturating_add(part.own(time)));
    parts.max(time.wall_ns)
}

fn part_per_billion(part: u64, whole: u64) -> u64 {
    (figures::share(part, whole) * 1e9) as u64
}
