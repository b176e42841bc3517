//! Where the instructions of each operation go: flame graphs, of which all but the first are folded away until they are asked for.

use maud::{Markup, PreEscaped, html};
use vmtax_analyse::calls::profiled;
use vmtax_analyse::{Arranged, ProfiledOperation};

use super::{figures, flame};
use crate::Document;
use crate::calls::{self, ShownCalls, artefact_notes, folded};

/// One picture for each operation and level, both views.
pub(super) fn section(document: &Document, shown: ShownCalls) -> Markup {
    let emulator = document.ledger.recording.emulated.as_deref();
    let (all, problems) = profiled(&document.ledger);
    let notes = artefact_notes(&all, emulator);
    html! {
        h2 #calls-title { "Where the instructions go" }
        p.note {
            "Each picture contains all instructions of a batch. Frames: the guest's payload at the bottom, then the instruction that exited "
            "(in brackets), and above it the functions that handled it; of a step of a VM's life the VMM's calls, and beside them what other threads did. Orange: the host (L0), green: its guest (L1), blue: the guest's guest (L2)."
        }
        @for problem in &problems { p.note { (figures::text(problem)) } }
        @for note in &notes { p.note { "Not on hardware: " (figures::text(note)) } }
        @if all.is_empty() { p.empty { "No call trees: " code { "vmtax lab run --profile" } " makes them." } }
        @for (number, one) in all.iter().enumerate() { (operation(one, number, (shown, emulator))) }
    }
}

fn operation(
    one: &ProfiledOperation<'_>,
    number: usize,
    (shown, emulator): (ShownCalls, Option<&str>),
) -> Markup {
    let tree = one.tree.arranged(shown.arranged);
    let view = match shown.arranged {
        Arranged::ByCause => "by cause",
        Arranged::ByLevel => "by level",
    };
    let drawn = flame::levels(&folded::lines(&tree), one.operations, number);
    html! {
        details open[number == 0] {
            summary { b { (figures::text(&calls::title(one))) } " " (figures::text(&calls::summary(one, emulator))) }
            @match drawn {
                Some(svg) => div.scroll.flame aria-label={ "Flame graph " (view) } { (PreEscaped(svg)) },
                None => p.empty { "The call tree cannot be drawn." },
            }
        }
    }
}
