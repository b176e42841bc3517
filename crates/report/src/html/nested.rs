//! Nested virtualization: what one exit of the guest's guest costs in exits of the guest.

use maud::{Markup, html};
use vmtax_analyse::{Nested, NestedRow};

use super::{figures, published};
use crate::{Document, names, numbers};

/// L2 reasons that get a list of their own.
const MAX_LISTS: usize = 40;
/// Lines of one such list.
const MAX_LINES: usize = 100;
/// Lists that start open.
const OPEN: usize = 3;

/// Overview per L2 reason, then each reason's ancillary exits.
pub(super) fn section(doc: &Document, nested: &Nested) -> Markup {
    html! {
        h2 #nested-title { "Nested: what an exit of L2 costs" }
        @if !nested.known {
            p.empty {
                "Not known: the recording holds no kvm_nested_vmexit events, without which exits of L1 and L2 cannot be"
                " told apart. Record the kvm_nested_vmexit, kvm_nested_vmexit_inject and kvm_nested_vmenter tracepoints too."
            }
        } @else if nested.rows.is_empty() {
            p.empty { "No exit came from L2." }
        } @else {
            p.note {
                "An exit of L2 that the host hands to L1 makes L1 run. The exits that L1 takes until it resumes L2 are"
                " ancillary; the entry itself is one, and the least possible."
            }
            (overview(nested))
            (published::comparison(doc, nested))
            div.lists {
                @let with_lists = nested.rows.iter().filter(|row| !row.ancillary.is_empty());
                @for (i, row) in with_lists.take(MAX_LISTS).enumerate() { (list(row, i < OPEN)) }
            }
        }
    }
}

fn overview(nested: &Nested) -> Markup {
    let exits = nested.rows.iter().map(|row| row.l2.count).fold(0, u64::saturating_add);
    html! {
        div.scroll.capped tabindex="0" role="region" aria-label="Table: exits of L2" {
            table data-sortable {
                thead {
                    tr {
                        th scope="col" data-sort="text" { "L2 reason" }
                        th.n scope="col" data-sort="number" aria-sort="descending" { "Exits of L2" }
                        th.n.barred scope="col" data-sort="number" { "% of count" }
                        th.n scope="col" data-sort="number" { "Time" }
                        th.n scope="col" data-sort="number" { "Handed to L1" }
                        th.n scope="col" data-sort="number" { "Ancillary exits" }
                        th.n scope="col" data-sort="number" { "Ancillary per handed exit" }
                        th.n scope="col" data-sort="number" { "Ancillary time" }
                    }
                }
                tbody {
                    @for row in nested.rows.iter().take(super::MAX_ROWS) {
                        @let share = figures::share(row.l2.count, exits);
                        @let count = ancillary_count(row);
                        @let time = row.ancillary.iter().map(|a| a.tally.time_ns).fold(0, u64::saturating_add);
                        tr {
                            th scope="row" { (names::reason(row.reason)) }
                            td.n data-v=(row.l2.count) { (numbers::count(row.l2.count)) }
                            td.n.barred data-v=(row.l2.count) { span { (figures::bar(share)) (figures::percent(share)) } }
                            (time_cell(row.l2.timed, row.l2.time_ns))
                            td.n data-v=(row.to_l1) { (numbers::count(row.to_l1)) }
                            td.n data-v=(count) { (numbers::count(count)) }
                            @match row.ancillary_per_exit() {
                                Some(each) => td.n data-v=((each * 1e6).round() as u64) { b { (per_exit(each)) } },
                                None => td.n { "–" },
                            }
                            (time_cell(count, time))
                        }
                    }
                }
            }
        }
    }
}

fn time_cell(of: u64, ns: u64) -> Markup {
    html! {
        @if of == 0 { td.n { "–" } }
        @else { td.n data-v=(ns) data-ns { (figures::duration_cell(ns as f64)) } }
    }
}

fn list(row: &NestedRow, open: bool) -> Markup {
    let name = names::reason(row.reason);
    let count = ancillary_count(row);
    html! {
        details open[open] {
            summary {
                b { (name) } ": "
                @match row.ancillary_per_exit() {
                    Some(each) => { (per_exit(each)) " ancillary exits per exit handed to L1" },
                    None => { (numbers::counted(count, "ancillary exit")) },
                }
            }
            div.scroll tabindex="0" role="region" aria-label={ "Table: ancillary exits of " (name) } {
                table data-sortable {
                    thead {
                        tr {
                            th scope="col" data-sort="text" { "L1 exit" }
                            th scope="col" data-sort="text" { "Detail" }
                            th.n scope="col" data-sort="number" aria-sort="descending" { "Count" }
                            th.n.barred scope="col" data-sort="number" { "Per handed exit" }
                            th.n scope="col" data-sort="number" { "Time" }
                        }
                    }
                    tbody {
                        @for line in row.ancillary.iter().take(MAX_LINES) {
                            @let share = figures::share(line.tally.count, count);
                            tr {
                                th scope="row" { (names::reason(line.reason)) }
                                td { (names::detail(line.detail)) }
                                td.n data-v=(line.tally.count) { (numbers::count(line.tally.count)) }
                                @if row.to_l1 > 0 {
                                    td.n.barred data-v=(line.tally.count) {
                                        span { (figures::bar(share)) (per_exit(line.tally.count as f64 / row.to_l1 as f64)) }
                                    }
                                } @else { td.n { "–" } }
                                (time_cell(line.tally.timed, line.tally.time_ns))
                            }
                        }
                    }
                }
            }
            @if row.ancillary.len() > MAX_LINES {
                p.note.cut {
                    "The " (MAX_LINES) " most frequent of " (numbers::count(row.ancillary.len() as u64))
                    " lines; " code { "--event nested --format json" } " has them all."
                }
            }
        }
    }
}

fn ancillary_count(row: &NestedRow) -> u64 {
    row.ancillary.iter().map(|a| a.tally.count).fold(0, u64::saturating_add)
}

fn per_exit(each: f64) -> String {
    if each > 0.0 && each < 0.005 { "<0.01".to_owned() } else { format!("{each:.2}") }
}
