//! The tables asked for: rows the reader can sort and filter.

use maud::{Markup, html};
use vmtax_analyse::{Table, TableKind};
use vmtax_events::Coverage;

use super::page::Section;
use super::{TableSection, described};
use crate::{Document, exits, names, numbers};

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
    let total = &table.total;
    let note = if total.timed > 0 {
        note
    } else {
        "The source counts without timing: there are no times to show."
    };
    let mut notes = vec![note.to_owned()];
    if total.timed > 0 && total.timed < total.count {
        notes.push(format!(
            "{} of {} have no duration and are only counted.",
            numbers::count(total.count - total.timed),
            numbers::count(total.count)
        ));
    }
    let section = TableSection {
        id,
        title: &names::title(table),
        notes,
        table: &exits::table(&doc.ledger.recording, table),
    };
    described::whole(&section, &format!("--event {} --format csv", table.kind.name()))
}
