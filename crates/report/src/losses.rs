//! What a recording lacks, as sentences: every output says it.

use std::collections::BTreeSet;

use vmtax_analyse::Ledger;
use vmtax_events::Losses;

use crate::explain::sentence;
use crate::names;
use crate::numbers::count;

/// One sentence for each thing that the recording lacks; empty when nothing is known to be missing.
pub fn sentences(ledger: &Ledger) -> Vec<String> {
    of(&ledger.losses, ledger.complete)
}

/// The same, of data that is not a ledger yet.
pub fn of(losses: &Losses, complete: bool) -> Vec<String> {
    let mut said: Vec<String> = losses.missing.iter().map(|s| names::printable(s)).collect();
    said.extend(events_of(losses, complete));
    said.extend(counted(losses, false));
    said
}

/// Whether nothing is missing but exits in which their vCPU was when the recording, or its VM, ended: at most one of each vCPU.
pub(crate) fn is_only_ends(ledger: &Ledger) -> bool {
    let ends = ledger.losses.unpaired_exits;
    let others = Losses { unpaired_exits: 0, ..ledger.losses.clone() };
    let vcpus: BTreeSet<(u32, u32)> = ledger.exits.keys().map(|key| (key.vm, key.vcpu)).collect();
    ends > 0 && ends <= vcpus.len() as u64 && ledger.complete && others.is_empty()
}

/// Whether counts are too low, or something is missing that the recording should have.
pub fn are_grave(losses: &Losses, complete: bool) -> bool {
    !losses.missing.is_empty() || !events_of(losses, complete).is_empty()
}

/// That these counts are too low, and why; nothing if they are not.
pub(crate) fn too_low(counts: &str, ledger: &Ledger) -> Option<String> {
    let lost = events_of(&ledger.losses, ledger.complete);
    // An importer's are clauses.
    let said = |lost: &String| format!("{}.", sentence(lost.trim_end_matches('.')));
    let said: Vec<String> = lost.iter().map(said).collect();
    (!said.is_empty()).then(|| format!("{counts} are too low. {}", said.join(" ")))
}

/// What lowers the counts themselves.
fn events_of(losses: &Losses, complete: bool) -> Vec<String> {
    let mut said: Vec<String> = counted(losses, true).collect();
    said.extend(losses.truncated.iter().map(|sentence| names::printable(sentence)));
    if !complete && losses.truncated.is_empty() {
        said.push("The recording is truncated: its end is missing.".to_owned());
    }
    said
}

/// The counters that are not 0, of those that lower counts or of the others.
fn counted(losses: &Losses, lowers_counts: bool) -> impl Iterator<Item = String> {
    let found =
        losses.counters().filter(move |(loss, n)| loss.lowers_counts == lowers_counts && *n > 0);
    found.map(|(loss, n)| loss.sentence(n, count))
}

/// What is missing, and what the importer notes.
pub fn all(ledger: &Ledger) -> Vec<String> {
    let mut said = sentences(ledger);
    for note in ledger.losses.notes.iter().map(|note| names::printable(note)) {
        if !said.contains(&note) {
            said.push(note);
        }
    }
    said
}
