//! The operations of a lab run: what one of each costs, sortable and filterable.

use maud::{Markup, html};
use vmtax_analyse::Operations;

use super::described::{self, TableSection};
use super::series;
use crate::Document;
use crate::calls::not_on_hardware;
use crate::operations::described::{BESIDE, PARTS, beside, table};
use crate::operations::{NO_EVENT_MEANS, has_hidden};

/// The table, with the legend of its bars.
pub(super) fn section(doc: &Document, operations: &Operations) -> Markup {
    let note = "Exits are those of one operation, counted over a traced window. The path runs from the guest's instruction back to \
                the guest: instructions, median of batches without tracing, and with ± how far off the path of another run may be (0.5 % where none is \
                shown); its spread is (max - min) / median. → leads from an \
                exit of L2 to the exits that L1 took to handle it.";
    let of_steps = "A step of a VM's life has waited while it ran nothing; its path is the rest, from its beginning to its end.";
    let has_steps = operations.rows.iter().any(|row| row.waited.is_some());
    let emulated = not_on_hardware(&doc.ledger);
    let (beside_title, beside_note) = BESIDE;
    let hides = has_hidden(&operations.rows).then_some(NO_EVENT_MEANS);
    let notes = [Some(note), has_steps.then_some(of_steps), hides];
    html! {
        @if let Some(table) = beside(operations, &emulated) {
            h2 #beside-title { (beside_title) }
            (described::rows("beside", beside_title, &table))
            p.note { (beside_note) }
        }
        h2 #operations-title { "Operations: cost of one execution" }
        @if operations.rows.is_empty() {
            p.empty { "The source is not a lab run: the number of executions is unknown." }
        } @else {
            ul.legend {
                @for part in &PARTS {
                    li { (series::swatch(part.class)) b { (part.name) } " " span.aside { (part.explain) } }
                }
            }
            (described::whole(
                &TableSection {
                    id: "operations",
                    title: "operations",
                    notes: notes.into_iter().flatten().map(str::to_owned).collect(),
                    table: &table(operations, &emulated),
                },
                "--event operations --format csv"
            ))
        }
    }
}

/// Legend and table of bars: where the time of each vCPU went.
pub(super) fn time_split(doc: &Document) -> Markup {
    let table = crate::time::table(&doc.ledger);
    html! {
        h2 #time-split-title { "Time split per vCPU" }
        @if doc.ledger.time.is_empty() {
            p.empty { "The source has no time split of the vCPUs." }
        } @else {
            ul.legend {
                @for part in crate::time::parts(&doc.ledger) {
                    li {
                        (series::swatch(&crate::time::class(part))) b { (part.name) } " " span.aside { (part.explain) }
                    }
                }
            }
            (described::cut(&table, super::frame::MAX_ROWS, "--format json"))
            (described::rows("time-split", "Time split per vCPU", &table))
        }
    }
}
