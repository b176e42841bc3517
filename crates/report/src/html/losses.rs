//! What is missing, and what the figures cannot say even when nothing is missing.

use maud::{Markup, html};

use super::figures;
use super::frame::PageSection;
use crate::{Document, RunSubject, losses, numbers};

/// Losses at most this many sentences long are all shown.
const MAX_SENTENCES: usize = 100;

/// Losses first, then limits. Always in the page.
pub(super) fn section(doc: &Document) -> Markup {
    let losses = losses::sentences(&doc.ledger);
    let notes = &doc.ledger.losses.notes;
    html! {
        h2 #losses-title { "Losses and limits" }
        div.columns {
            div {
                h3 { "What was lost" }
                @if losses.is_empty() {
                    p { "None known: the recorder reports no lost events, and every exit has its entry." }
                } @else {
                    (sentences(&losses))
                }
                @let new: Vec<String> = notes.iter().filter(|n| !losses.contains(n)).cloned().collect();
                @if !new.is_empty() {
                    h3 { "Notes of the importer" }
                    (sentences(&new))
                }
            }
            div {
                h3 { "Limitations" }
                ul { @for limit in limits(doc) { li { (limit) } } }
            }
        }
    }
}

/// What each of several runs lacks, and what their importers note. Always in the page.
pub(super) fn sides(sides: &[(&str, RunSubject<'_>)]) -> PageSection {
    let body = html! {
        h2 #losses-title { "Losses" }
        div.columns {
            @for (label, side) in sides {
                @let losses = losses::all(side.ledger);
                div {
                    @if sides.len() > 1 { h3 { (label) } }
                    @if losses.is_empty() { p { "None known." } } @else { (sentences(&losses)) }
                }
            }
        }
    };
    PageSection { id: "losses".to_owned(), label: "Losses".to_owned(), body }
}

fn sentences(sentences: &[String]) -> Markup {
    html! {
        ul {
            @for sentence in sentences.iter().take(MAX_SENTENCES) {
                li { (figures::text(sentence)) }
            }
            @if sentences.len() > MAX_SENTENCES {
                li {
                    "And " (numbers::count((sentences.len() - MAX_SENTENCES) as u64))
                    " more; --format json has them all."
                }
            }
        }
    }
}

fn limits(doc: &Document) -> Vec<&'static str> {
    let ledger = &doc.ledger;
    let coverage = &ledger.recording.coverage;
    if ledger.total().timed == 0 {
        return vec![
            "The source does not time exits: there are no times, latencies or time split.",
        ];
    }
    let mut limits = vec![
        crate::exits::precision(ledger),
        "An exit lasts from kvm_exit to the next kvm_entry. The hardware's own cost of leaving and \
         entering guest mode, and cold caches afterwards, count as guest time.",
    ];
    let absences = [
        (
            coverage.userspace,
            "No kvm_userspace_exit in the recording: time in the VMM counts as kernel time.",
        ),
        (
            coverage.sched,
            "No sched_switch in the recording: time when the host preempted a vCPU counts as exit time.",
        ),
        (
            coverage.wakeup,
            "No kvm_vcpu_wakeup in the recording: the complete duration of a HLT exit counts as halted.",
        ),
        (
            coverage.nested,
            "No kvm_nested_vmexit in the recording: if the VM nests, exits of L1 and L2 cannot be distinguished.",
        ),
    ];
    limits
        .extend(absences.into_iter().filter(|(covered, _)| !covered).map(|(_, sentence)| sentence));
    limits
}
