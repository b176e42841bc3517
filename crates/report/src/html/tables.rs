//! The tables asked for: rows the reader can sort and filter.
//!
//! Sort keys are exact: `data-v` holds an integer in decimal, of any size, which the script compares
//! as text by length first. A cell without `data-v` in a numeric column has no value and sorts last.

use maud::{Markup, html};
use vmtax_analyse::statistics::{mean_ns, quantile, standard_error_ns};
use vmtax_analyse::{By, Table, TableKind, TableRow, Value};
use vmtax_events::{Coverage, NO_VCPU, Tally};

use super::page::Section;
use super::{MAX_ROWS, figures, source};
use crate::{Document, names, numbers};

/// One section per table, in the order asked for.
pub(super) fn sections(doc: &Document) -> Vec<Section> {
    doc.tables
        .iter()
        .enumerate()
        .map(|(index, table)| {
            let id = format!("table-{index}-{}", table.kind.name());
            let (label, note) = words(table.kind);
            let body = html! {
                h2 id={ (id) "-title" } { (names::title(table)) }
                @if table.rows.is_empty() {
                    p.empty { (why_empty(table.kind, &doc.ledger.recording.coverage)) }
                } @else {
                    (filled(doc, table, &id, note))
                }
            };
            let twice = doc.tables.iter().filter(|other| other.kind == table.kind).count() > 1;
            let label = if twice { names::title(table) } else { label.to_owned() };
            Section { id, label, body }
        })
        .collect()
}

/// What the navigation calls a table, and what its times are.
fn words(kind: TableKind) -> (&'static str, &'static str) {
    match kind {
        TableKind::Vmexit => ("Exits", "Time runs from kvm_exit to the next kvm_entry."),
        TableKind::Cause => (
            "Causes",
            "What the guest was doing, in the same words on every vendor. Time runs from kvm_exit to the next kvm_entry.",
        ),
        TableKind::Msr => ("MSRs", ACCESS_NOTE),
        TableKind::Ioport => ("Ports", ACCESS_NOTE),
        TableKind::Mmio => (
            "MMIO",
            "One exit can hold several accesses. Time runs from the access to the next kvm_entry; for a read from kvm_exit to the access.",
        ),
        TableKind::Cpuid => ("CPUID", ACCESS_NOTE),
        TableKind::Hypercall => ("Hypercalls", ACCESS_NOTE),
    }
}

const ACCESS_NOTE: &str =
    "One exit can hold several accesses. Time runs from the access to the next kvm_entry.";

fn why_empty(kind: TableKind, coverage: &Coverage) -> &'static str {
    let (covered, event) = match kind {
        TableKind::Vmexit | TableKind::Cause => (coverage.exits, "kvm_exit"),
        TableKind::Msr => (coverage.msr, "kvm_msr"),
        TableKind::Ioport => (coverage.pio, "kvm_pio"),
        TableKind::Mmio => (coverage.mmio, "kvm_mmio"),
        TableKind::Cpuid => (coverage.cpuid, "kvm_cpuid"),
        TableKind::Hypercall => (coverage.hypercall, "kvm_hypercall"),
    };
    match (covered, event) {
        (true, _) => "None happened.",
        (false, "kvm_exit") => "The source holds no kvm_exit events.",
        (false, "kvm_msr") => "The source holds no kvm_msr events, so these are not known.",
        (false, "kvm_pio") => "The source holds no kvm_pio events, so these are not known.",
        (false, "kvm_mmio") => "The source holds no kvm_mmio events, so these are not known.",
        (false, "kvm_cpuid") => "The source holds no kvm_cpuid events, so these are not known.",
        (false, _) => "The source holds no kvm_hypercall events, so these are not known.",
    }
}

fn filled(doc: &Document, table: &Table, id: &str, note: &str) -> Markup {
    let shown = table.rows.len().min(MAX_ROWS);
    let timed = table.total.timed > 0;
    html! {
        @if table.rows.len() > shown {
            p.note.cut {
                "The " (numbers::count(shown as u64)) " rows with the most "
                (if timed { "time" } else { "counts" }) " of " (numbers::count(table.rows.len() as u64))
                " are here, and only these are sorted and filtered. All of them: "
                code { "--event " (table.kind.name()) " --format csv" } "."
            }
        }
        @if timed && table.total.timed < table.total.count {
            p.note {
                (numbers::count(table.total.count - table.total.timed)) " of "
                (numbers::count(table.total.count)) " have no duration and are only counted."
            }
        }
        div.above {
            @if timed { p.note { (note) } } @else {
                p.note { "The source counts without timing: there are no times to show." }
            }
            div.tools {
                label for={ (id) "-filter" } { "Filter" }
                input.filter id={ (id) "-filter" } type="search" autocomplete="off" spellcheck="false"
                    placeholder="Filter rows..." aria-controls={ (id) "-rows" };
                output for={ (id) "-filter" } aria-live="polite" { (numbers::counted(shown as u64, "row")) }
            }
        }
        div.scroll.capped tabindex="0" role="region" aria-label={ "Table: " (names::title(table)) } {
            table data-sortable data-filterable {
                (head(table, timed))
                tbody id={ (id) "-rows" } {
                    @for row in table.rows.iter().take(shown) { (body_row(doc, row, &table.total, timed)) }
                }
                tfoot {
                    tr {
                        th scope="row" colspan=(table.by.len()) { "all rows" }
                        (figures_of(&table.total, &table.total, timed))
                    }
                }
            }
        }
    }
}

fn head(table: &Table, timed: bool) -> Markup {
    let counted = if table.kind.is_exits() { "Exits" } else { "Count" };
    html! {
        thead {
            tr {
                @for by in &table.by {
                    @let number = matches!(by, By::Vcpu);
                    th.n[number] scope="col" data-sort=(if number { "number" } else { "text" }) {
                        (by_heading(*by))
                    }
                }
                th.n scope="col" data-sort="number" aria-sort=[(!timed).then_some("descending")] { (counted) }
                th.n.barred scope="col" data-sort="number" { "% of count" }
                @if timed {
                    th.n scope="col" data-sort="number" aria-sort="descending" { "Time" }
                    th.n.barred scope="col" data-sort="number" { "% of time" }
                    th.n scope="col" data-sort="number" { "Min" }
                    th.n scope="col" data-sort="number" title="arithmetic mean, and its standard error in percent of it" {
                        "Mean ± std err"
                    }
                    th.n scope="col" data-sort="number" title="median, as the upper bound of its bucket" { "p50 ≤" }
                    th.n scope="col" data-sort="number" title="as the upper bound of its bucket" { "p90 ≤" }
                    th.n scope="col" data-sort="number" title="as the upper bound of its bucket" { "p99 ≤" }
                    th.n scope="col" data-sort="number" { "Max" }
                }
            }
        }
    }
}

fn by_heading(by: By) -> &'static str {
    match by {
        By::Reason => "Reason",
        By::Level => "Level",
        By::Cause => "Cause",
        By::Detail => "Detail",
        By::Outcome => "Handled by",
        By::Vm => "VM",
        By::Vcpu => "vCPU",
    }
}

fn body_row(doc: &Document, row: &TableRow, total: &Tally, timed: bool) -> Markup {
    html! {
        tr {
            @for (i, &value) in row.key.iter().enumerate() {
                @let cell = key_cell(doc, value);
                @let is_number = matches!(value, Value::Vcpu(..));
                @let described = matches!(value, Value::Cause(_));
                @if i == 0 {
                    th.n[is_number].described[described] scope="row" data-key data-v=[number(value)] { (cell) }
                } @else {
                    td.n[is_number].described[described] data-key data-v=[number(value)] { (cell) }
                }
            }
            (figures_of(&row.tally, total, timed))
        }
    }
}

/// The sort key of a key cell that is a number: a vCPU, within its VM.
fn number(value: Value) -> Option<u64> {
    match value {
        Value::Vcpu(_, NO_VCPU) => None,
        Value::Vcpu(vm, vcpu) => Some(u64::from(vm) << 32 | u64::from(vcpu)),
        _ => None,
    }
}

fn key_cell(doc: &Document, value: Value) -> Markup {
    match value {
        Value::Vm(vm) => html! { (figures::text(&names::vm(&doc.ledger.recording, vm))) },
        Value::Vcpu(vm, vcpu) => html! { (source::vcpu_name(doc, vm, vcpu)) },
        Value::Cause(cause) => html! {
            (cause.name()) " " span.aside { (cause.describe()) }
        },
        value => html! { (figures::text(&names::value(value))) },
    }
}

fn figures_of(tally: &Tally, total: &Tally, timed: bool) -> Markup {
    let count_share = figures::share(tally.count, total.count);
    html! {
        td.n data-v=(tally.count) { (numbers::count(tally.count)) }
        td.n.barred data-v=(tally.count) { span { (figures::bar(count_share)) (figures::percent(count_share)) } }
        @if timed && tally.timed == 0 {
            td.n.none colspan="8" { "not timed" }
        } @else if timed {
            @let time_share = figures::share(tally.time_ns, total.time_ns);
            td.n data-v=(tally.time_ns) data-ns { (figures::duration_cell(tally.time_ns as f64)) }
            td.n.barred.time data-v=(tally.time_ns) { span { (figures::bar(time_share)) (figures::percent(time_share)) } }
            td.n data-v=(tally.min_ns) data-ns { (figures::duration_cell(tally.min_ns as f64)) }
            (mean_cell(tally))
            (quantile_cell(tally, 0.5))
            (quantile_cell(tally, 0.9))
            (quantile_cell(tally, 0.99))
            td.n data-v=(tally.max_ns) data-ns { (figures::duration_cell(tally.max_ns as f64)) }
        }
    }
}

fn mean_cell(tally: &Tally) -> Markup {
    let Some(mean) = mean_ns(tally) else {
        return html! { td.n { "–" } };
    };
    let error = standard_error_ns(tally).unwrap_or(0.0);
    let relative = if mean > 0.0 { error / mean * 100.0 } else { 0.0 };
    // Thousandths of a nanosecond: a mean is not a whole number.
    html! {
        td.n data-v=((mean * 1e3).round() as u64) title={ (figures::duration(mean)) " ± " (figures::duration(error)) } {
            (figures::duration_cell(mean)) " " span.err { "±" (format!("{relative:.1}")) "%" }
        }
    }
}

fn quantile_cell(tally: &Tally, q: f64) -> Markup {
    match quantile(tally, q) {
        Some(bounds) => html! {
            td.n data-v=(bounds.high_ns) title={
                "between " (numbers::count(bounds.low_ns)) " and " (numbers::count(bounds.high_ns)) " ns"
            } {
                (figures::duration_cell(bounds.high_ns as f64))
            }
        },
        None => html! { td.n { "–" } },
    }
}
