//! Nested virtualization: what one exit of the guest's guest costs in exits of the guest.

use maud::{Markup, html};
use vmtax_analyse::{Nested, NestedRow, Ratio};

use super::described::{self, TableSection};
use super::published;
use crate::{Document, names, numbers};

/// L2 reasons that get a list of their own.
const MAX_LISTS: usize = 40;
/// Lines of one such list.
const MAX_LINES: usize = 100;
/// Lists that start open.
const OPEN: usize = 3;

/// Overview per L2 reason, then each reason's ancillary exits.
pub(super) fn section(doc: &Document, nested: &Nested) -> Markup {
    let is_lab = crate::operations::is_lab(&doc.ledger);
    html! {
        h2 #nested-title { "Nested: what an exit of L2 costs" }
        @if !nested.known {
            p.empty {
                "Unknown: the recording has no kvm_nested_vmexit events, which separate exits of L1 from those of L2."
                " Record the kvm_nested_vmexit, kvm_nested_vmexit_inject and kvm_nested_vmenter tracepoints too."
            }
        } @else if nested.rows.is_empty() {
            p.empty { "No exit came from L2." }
        } @else {
            p.note {
                "The host forwards an exit of L2 to L1. The exits that L1 takes until it resumes L2 are"
                " ancillary; the entry itself is one, so the minimum is 1."
            }
            (described::whole(
                &TableSection {
                    id: "nested",
                    title: "exits of L2",
                    notes: Vec::new(),
                    table: &crate::nested::reasons(nested),
                },
                "--event nested --format csv"
            ))
            (published::comparison(doc, nested))
            div.lists {
                @let with_lists = nested.rows.iter().filter(|row| !row.ancillary.is_empty());
                @for (i, row) in with_lists.take(MAX_LISTS).enumerate() { (list(row, i, is_lab)) }
            }
        }
    }
}

/// In a lab run the operations have these lists already: there they stay folded, also on paper.
fn list(row: &NestedRow, number: usize, is_lab: bool) -> Markup {
    let name = names::reason(row.reason);
    let count = row.all_ancillary().count;
    let table = crate::nested::ancillary(row);
    html! {
        details.more[is_lab] open[number < OPEN && !is_lab] {
            summary {
                b { (name) } ": "
                @if row.to_l1 > 0 {
                    (numbers::ratio(Ratio { part: count, whole: row.to_l1 })) " ancillary exits per exit forwarded to L1"
                } @else { (numbers::counted(count, "ancillary exit")) }
            }
            (described::cut(&table, MAX_LINES, "--event nested --format json"))
            (described::grid(&format!("nested-{number}"), &format!("ancillary exits of {name}"), &table, MAX_LINES))
        }
    }
}
