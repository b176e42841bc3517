//! The published table of ancillary exits, with the recording's own figures in the next column.
//!
//! Counts compare across hosts. Times do not, and none are here; the two ratios are of different things and
//! are called so.

use maud::{Markup, html};
use vmtax_analyse::published::{
    ANCILLARY, CYCLES_L2_OVER_L1, CYCLES_L2_OVER_L1_VMWARE, Comparison, ComparisonRow, SOURCE,
};
use vmtax_analyse::{Nested, Operations, Ratio};
use vmtax_events::{Isa, Reason};

use crate::operations::{factor, ratio};
use crate::{Document, names};

/// Details of one row that are named.
const MAX_DETAILS: usize = 4;

/// Nothing without an exit of L2 by CPUID that L1 handled.
pub(super) fn comparison(doc: &Document, nested: &Nested) -> Markup {
    let none = Operations::default();
    let operations = doc.operations.as_ref().unwrap_or(&none);
    let Some(comparison) = Comparison::new(&nested.rows, operations) else { return html! {} };
    html! {
        h3 #published-title { "One CPUID of L2, beside a published measurement" }
        p.note {
            "Exits that L1 takes for one CPUID exit of L2. Published: " (SOURCE)
            ". Counts compare across kernels and hosts, emulated or not; times would not, and are left out."
        }
        div.scroll tabindex="0" role="region" aria-labelledby="published-title" {
            table.published {
                thead {
                    tr {
                        th scope="col" { "Exit of L1" }
                        th.n scope="col" { "Published 2017" }
                        th.n scope="col" { "Here" }
                        th scope="col" { "About, published" }
                        th scope="col" { "About, here" }
                    }
                }
                tbody { @for row in &comparison.rows { (row_of(row)) } }
                tfoot {
                    tr {
                        th scope="row" { "all" }
                        td.n { (ANCILLARY.iter().map(|published| published.count).sum::<u64>()) }
                        td.n { (ratio(comparison.total)) }
                        td {} td {}
                    }
                }
            }
        }
        (ratios(&comparison))
    }
}

fn row_of(row: &ComparisonRow) -> Markup {
    let vmx = row.published.map(|p| Reason { isa: Isa::Vmx, code: p.vmx, flags: 0 });
    let vmx = vmx.map(names::reason);
    let here = row.reason.map(names::reason);
    let name = match (&vmx, &here) {
        (Some(vmx), Some(here)) if vmx != here => format!("{vmx} ({here})"),
        (Some(name), _) | (None, Some(name)) => name.clone(),
        (None, None) => String::new(),
    };
    let mut details: Vec<String> = Vec::new();
    for &detail in &row.details {
        let detail = names::detail(detail);
        if !details.contains(&detail) {
            details.push(detail);
        }
    }
    let more = details.len().saturating_sub(MAX_DETAILS);
    details.truncate(MAX_DETAILS);
    html! {
        tr {
            th scope="row" { (name) }
            @match row.published {
                Some(published) => td.n { (published.count) },
                None => td.n.none { "–" },
            }
            @if row.reason.is_some() { td.n { b { (ratio(row.here)) } } }
            @else { td.n.none title="the VMCB is memory that L1 reads and writes without an exit" { "–" } }
            td.described { (row.published.map_or("", |published| published.about)) }
            td.described {
                @if row.reason.is_none() { "SVM has no such exit: the VMCB is memory" }
                @else if row.here != (Ratio { part: 0, ..row.here }) { (details.join(", ")) }
                @if more > 0 { ", and " (more) " more" }
            }
        }
    }
}

fn ratios(comparison: &Comparison) -> Markup {
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
