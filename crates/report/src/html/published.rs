//! The published table of ancillary exits, with the recording's own figures in the next column.
//!
//! Counts compare across hosts. Times do not, and none are here; the two ratios are of different things and
//! are called so.

use maud::{Markup, html};
use vmtax_analyse::published::{
    ANCILLARY, CYCLES_L2_OVER_L1, CYCLES_L2_OVER_L1_VMWARE, ComparisonRow, PublishedComparison,
    SOURCE,
};
use vmtax_analyse::{Nested, Operations, Ratio};
use vmtax_events::{Isa, Reason};

use super::described;
use crate::operations::factor;
use crate::table::{Cell, Column, Table};
use crate::{Document, names};

/// Details of one row that are named.
const MAX_DETAILS: usize = 4;

/// Nothing without an exit of L2 by CPUID that L1 handled.
pub(super) fn comparison(doc: &Document, nested: &Nested) -> Markup {
    let none = Operations::default();
    let operations = doc.operations.as_ref().unwrap_or(&none);
    let Some(comparison) = PublishedComparison::new(&nested.rows, operations) else {
        return html! {};
    };
    html! {
        h3 #published-title { "One CPUID of L2, beside a published measurement" }
        p.note {
            "Exits that L1 takes for one CPUID exit of L2. Published: " (SOURCE)
            ". Counts compare across kernels and hosts, emulated or not; times would not, and are left out."
        }
        (described::rows("published", "One CPUID of L2, beside a published measurement", &table(&comparison)))
        (ratios(&comparison))
    }
}

/// A row for each reason of an exit of L1; the total is no row of the comparison.
fn table(comparison: &PublishedComparison) -> Table {
    let published = ANCILLARY.iter().map(|published| published.count).sum();
    Table::of(comparison.rows.iter().map(Some))
        .total(Some(None))
        .column(Column::words("", "exit of L1"), |row| match row {
            Some(row) => Cell::Name(name(row)),
            None => Cell::Word("all"),
        })
        .column(Column::number("", "published 2017"), |row| match row {
            Some(row) => Cell::of(row.published, |published| Cell::Count(published.count)),
            None => Cell::Count(published),
        })
        .column(Column::number("", "here").strong(), |row| match row {
            Some(row) if row.reason.is_some() => Cell::Ratio(row.here),
            Some(_) => Cell::Absent
                .titled("the VMCB is memory that L1 reads and writes without an exit".to_owned()),
            None => Cell::Ratio(comparison.total),
        })
        .column(Column::words("", "about, published").class("described"), |row| match row {
            Some(row) => Cell::Word(row.published.map_or("", |published| published.about)),
            None => Cell::Empty,
        })
        .column(Column::words("", "about, here").class("described"), |row| match row {
            Some(row) if row.reason.is_some() => Cell::Name(details(row)),
            Some(_) => Cell::Word("SVM has no such exit: the VMCB is memory"),
            None => Cell::Empty,
        })
        .table()
}

/// The published name, with the recording's in brackets where it is another.
fn name(row: &ComparisonRow) -> String {
    let vmx = row.published.map(|p| Reason { isa: Isa::Vmx, code: p.vmx, flags: 0 });
    match (vmx.map(names::reason), row.reason.map(names::reason)) {
        (Some(vmx), Some(here)) if vmx != here => format!("{vmx} ({here})"),
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => String::new(),
    }
}

/// What the exits of a row were about.
fn details(row: &ComparisonRow) -> String {
    if row.here == (Ratio { part: 0, ..row.here }) {
        return String::new();
    }
    let mut details: Vec<String> = Vec::new();
    for detail in row.details.iter().map(|detail| names::detail(*detail)) {
        if !details.contains(&detail) {
            details.push(detail);
        }
    }
    let more = details.len().saturating_sub(MAX_DETAILS);
    details.truncate(MAX_DETAILS);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    details.join(", ") + &more
}

fn ratios(comparison: &PublishedComparison) -> Markup {
    html! {
        p.note {
            "L2 over L1, one CPUID: "
            b { (factor(CYCLES_L2_OVER_L1)) } " in cycles, published for KVM in KVM ("
            (factor(CYCLES_L2_OVER_L1_VMWARE)) " for VMware)"
            @match comparison.instructions_l2_over_l1 {
                Some(times) => { "; " b { (factor(times)) } " in instructions of the path, here." },
                None => { ". Here it was not measured: " code { "vmtax lab run --nested" } " does." },
            }
            " The first is of cycles on hardware, the second of instructions: they show the same thing and are not the same measure."
        }
    }
}
