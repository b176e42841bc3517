//! What a recording lacks, as sentences: every output says it.

use vmtax_analyse::{Ledger, MAX_THREADS, MAX_VMS};
use vmtax_events::Losses;

use crate::names;
use crate::numbers::{count, counted};

/// One sentence for each thing that the recording lacks; empty when nothing is known to be missing.
pub fn sentences(ledger: &Ledger) -> Vec<String> {
    of(&ledger.losses, ledger.complete)
}

/// The same for what is no ledger yet.
pub fn of(losses: &Losses, complete: bool) -> Vec<String> {
    let mut said: Vec<String> = losses.missing.iter().map(|s| names::printable(s)).collect();
    said.extend(events_of(losses, complete));
    let mut say = |n: u64, one: &str, many: &str| match n {
        0 => {}
        1 => said.push(format!("1 {one}.")),
        n => said.push(format!("{} {many}.", count(n))),
    };
    say(
        losses.unpaired_exits,
        "unmatched exit (no following kvm_entry), excluded from all tables",
        "unmatched exits (no following kvm_entry), excluded from all tables",
    );
    say(
        losses.unpaired_entries,
        "unmatched entry (no preceding kvm_exit)",
        "unmatched entries (no preceding kvm_exit)",
    );
    say(
        losses.out_of_order,
        "event is out of order: durations near it may be wrong",
        "events are out of order: durations near them may be wrong",
    );
    say(losses.undecodable, "record could not be decoded", "records could not be decoded");
    say(
        losses.details_dropped,
        "exit has no detail: too many different details",
        "exits have no detail: too many different details",
    );
    if losses.vms_merged > 0 {
        said.push(format!(
            "Limit of {} VMs exceeded: {} of further VMs are counted with the last one.",
            count(MAX_VMS as u64),
            counted(losses.vms_merged, "exit")
        ));
    }
    said
}

/// What lowers the counts themselves.
pub(crate) fn events(ledger: &Ledger) -> Vec<String> {
    events_of(&ledger.losses, ledger.complete)
}

fn events_of(losses: &Losses, complete: bool) -> Vec<String> {
    let mut said = Vec::new();
    match losses.recorder_lost {
        0 => {}
        1 => said.push("1 event was lost by the recorder.".to_owned()),
        n => said.push(format!("{} events were lost by the recorder.", count(n))),
    }
    if losses.threads_dropped > 0 {
        said.push(format!(
            "Limit of {} vCPU threads exceeded: {} of further threads are in no table.",
            count(MAX_THREADS as u64),
            counted(losses.threads_dropped, "event")
        ));
    }
    if losses.recorder_gaps > 0 {
        let places = counted(losses.recorder_gaps, "place");
        said.push(format!("The recorder lost events at {places} without saying how many."));
    }
    said.extend(losses.truncated.iter().map(|sentence| names::printable(sentence)));
    if !complete && losses.truncated.is_empty() {
        said.push("The recording did not end as it should: its end is missing.".to_owned());
    }
    said
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
