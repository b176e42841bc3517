//! The operations of a lab run: what one of each costs, sortable and filterable.

use maud::{Markup, html};
use vmtax_analyse::{OperationRow, Operations};

use super::{MAX_ROWS, figures, series};
use crate::numbers;
use crate::operations::{exit_list, factor, instructions, no_exits, ratio};

/// Who ran: class of its colour, name, explanation, share of the window.
struct Part {
    class: &'static str,
    name: &'static str,
    explain: &'static str,
    share: fn(&OperationRow) -> Option<f64>,
}

const PARTS: [Part; 4] = [
    Part {
        class: "kernel",
        name: "L0",
        explain: "the host, handling exits",
        share: |row| row.share_l0(),
    },
    Part {
        class: "s2",
        name: "L1",
        explain: "the guest, or the guest's hypervisor",
        share: |row| row.share_l1(),
    },
    Part { class: "guest", name: "L2", explain: "the guest's guest", share: |row| row.share_l2() },
    Part {
        class: "halted",
        name: "halted",
        explain: "waiting for an interrupt",
        share: |row| row.share_halted(),
    },
];

/// Those that have a column of their own; the bar shows the others.
const COLUMNS: usize = 3;

/// Sort keys are integers: this many parts of one.
const PARTS_OF_ONE: f64 = 1e6;

/// The table, with the legend of its bars.
pub(super) fn section(operations: &Operations) -> Markup {
    html! {
        h2 #operations-title { "Operations: what one of each costs" }
        @if operations.rows.is_empty() {
            p.empty { "The source is no lab run: it does not say how often an operation ran." }
        } @else {
            (filled(operations))
        }
    }
}

fn filled(operations: &Operations) -> Markup {
    let rows = &operations.rows;
    let shown = rows.len().min(MAX_ROWS);
    html! {
        @if rows.len() > shown {
            p.note.cut {
                "The first " (numbers::count(shown as u64)) " of " (numbers::count(rows.len() as u64))
                " are here; " code { "--event operations --format csv" } " has them all."
            }
        }
        ul.legend {
            @for part in &PARTS {
                li { (series::swatch(part.class)) b { (part.name) } " " span.aside { (part.explain) } }
            }
        }
        div.above {
            p.note {
                "Exits are those of one operation, counted over a traced window. The path runs from the guest's instruction"
                " back to the guest: instructions, median of batches without tracing; its spread is (max - min) / median."
                " → leads from an exit of L2 to the exits that L1 took to handle it."
            }
            div.tools {
                label for="operations-filter" { "Filter" }
                input.filter #operations-filter type="search" autocomplete="off" spellcheck="false"
                    placeholder="Filter rows..." aria-controls="operations-rows";
                output for="operations-filter" aria-live="polite" { (numbers::counted(shown as u64, "row")) }
            }
        }
        div.scroll.capped tabindex="0" role="region" aria-label="Table: operations" {
            table.operations data-sortable data-filterable {
                thead {
                    tr {
                        th scope="col" data-sort="text" { "Operation" }
                        th scope="col" data-sort="text" { "Level" }
                        th.n scope="col" data-sort="number" title="exits of one operation, ancillary ones included" { "Exits" }
                        th scope="col" data-sort="text" { "Of which" }
                        th.n scope="col" data-sort="number" title="instructions, median of the batches" { "Path" }
                        th.n scope="col" data-sort="number" title="(max - min) / median of the batches" { "Spread" }
                        th.n scope="col" data-sort="number" title="path at L2 over path at L1" { "L2 / L1" }
                        th.picture scope="col" title="where the time of the traced window went" { "Window" }
                        @for part in &PARTS[..COLUMNS] { th.n scope="col" data-sort="number" { (part.name) } }
                        th.n scope="col" data-sort="number" title="how often it ran in the traced window" { "Traced" }
                    }
                }
                tbody #operations-rows {
                    @for row in rows.iter().take(shown) { (body_row(row)) }
                }
            }
        }
    }
}

fn body_row(row: &OperationRow) -> Markup {
    let exits = row.exits_per_operation();
    html! {
        tr {
            th scope="row" data-key { (figures::text(&row.name)) }
            td data-key { (row.level.name()) }
            td.n data-v=[exits.value().map(sort_key)] { b { (ratio(exits)) } }
            td.described data-key { (exits_cell(row)) }
            @match row.path {
                Some(path) => {
                    td.n data-v=(sort_key(path.median)) title={
                        (instructions(path.min)) " to " (instructions(path.max)) " instructions in "
                        (path.batches) " batches"
                    } { b { (instructions(path.median)) } }
                    @match path.spread() {
                        Some(spread) => td.n data-v=(sort_key(spread)) { (figures::percent(spread)) },
                        None => td.n { "–" },
                    }
                }
                None => { td.n { "–" } td.n { "–" } }
            }
            @match row.l2_over_l1 {
                Some(times) => td.n data-v=(sort_key(times)) { b { (factor(times)) } },
                None => td.n {},
            }
            td.picture { (bar(row)) }
            @for part in &PARTS[..COLUMNS] {
                @match (part.share)(row) {
                    Some(share) => td.n.zero[share == 0.0] data-v=(sort_key(share)) { (figures::percent(share)) },
                    None => td.n {},
                }
            }
            td.n data-v=(row.count) { (numbers::count(row.count)) }
        }
    }
}

/// The list, whose parts do not break inside.
fn exits_cell(row: &OperationRow) -> Markup {
    let list = exit_list(row);
    html! {
        @if list.is_empty() { span.aside { (no_exits(row)) } }
        @for (i, word) in list.iter().enumerate() {
            @if i > 0 { " " }
            span.word { (word) }
        }
    }
}

fn sort_key(n: f64) -> u128 {
    (n * PARTS_OF_ONE).round() as u128
}

fn bar(row: &OperationRow) -> Markup {
    let mut x = 0.0;
    html! {
        svg.stack viewBox="0 0 1000 16" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            @for part in &PARTS {
                @let width = (part.share)(row).unwrap_or(0.0).clamp(0.0, 1.0) * 1000.0;
                @if width > 0.0 {
                    rect class=(part.class) x=(figures::coordinate(x)) width=(figures::coordinate(width)) height="16" {
                        title { (part.name) ": " (figures::percent(width / 1000.0)) }
                    }
                }
                @let () = x += width;
            }
        }
    }
}
