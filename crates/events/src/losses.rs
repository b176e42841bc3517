//! What a recording lost, and what the analysis could not use. Losses are data.

use serde::{Deserialize, Serialize};

/// vCPU threads that are followed at a time. A hostile recording may name any number; real ones have a few hundred.
pub const MAX_THREADS: usize = 16_384;

/// VMs that are kept apart. A hostile recording may name any number; those beyond are one with the last.
pub const MAX_VMS: usize = 16_384;

/// A counter of losses, and its sentence.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The name that programs know it by: `recorder_lost`.
    pub name: &'static str,
    /// What one of them is, behind its number.
    one: &'static str,
    /// What several are.
    many: &'static str,
    /// It makes counts too low.
    pub lowers_counts: bool,
    /// A limit that was exceeded, and of what it is.
    limit: Option<(usize, &'static str)>,
}

impl Loss {
    const fn lowers_counts(self) -> Loss {
        Loss { lowers_counts: true, ..self }
    }

    const fn beyond(self, limit: usize, of: &'static str) -> Loss {
        Loss { limit: Some((limit, of)), ..self }
    }

    /// As a sentence, with numbers as `count` writes them.
    pub fn sentence(&self, n: u64, count: impl Fn(u64) -> String) -> String {
        let what = if n == 1 { self.one } else { self.many };
        let said = format!("{} {what}.", count(n));
        match self.limit {
            Some((limit, of)) => format!("Limit of {} {of} exceeded: {said}", count(limit as u64)),
            None => said,
        }
    }
}

/// Declares [`Losses`]: the counters, each stated once with the words for one and for several, and the lists of sentences.
macro_rules! losses {
    ($($(#[$doc:meta])* $counter:ident: $one:literal, $many:literal $(, $key:ident($($value:expr),*))*;)+) => {
        /// Counts of everything that is missing from a result. All zero means nothing is known to be missing.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Losses {
            $($(#[$doc])* pub $counter: u64,)+
            /// What the input lacks although it is whole, one sentence each: a recording without `kvm_exit`.
            pub missing: Vec<String>,
            /// Where and how the input ended before its own end, in one sentence each.
            pub truncated: Vec<String>,
            /// Anything else the importer wants said, one sentence each.
            pub notes: Vec<String>,
        }

        impl Losses {
            /// All counters with their numbers.
            pub fn counters(&self) -> impl Iterator<Item = (Loss, u64)> {
                [$((
                    Loss {
                        name: stringify!($counter),
                        one: $one,
                        many: $many,
                        lowers_counts: false,
                        limit: None,
                    }$(.$key($($value),*))*,
                    self.$counter,
                )),+].into_iter()
            }

            /// Adds what another part of the pipeline lost.
            pub fn merge(&mut self, other: &Losses) {
                $(self.$counter = self.$counter.saturating_add(other.$counter);)+
                self.missing.extend(other.missing.iter().cloned());
                self.truncated.extend(other.truncated.iter().cloned());
                self.notes.extend(other.notes.iter().cloned());
            }
        }
    };
}

losses! {
    /// Events that the recorder says it dropped (ring full).
    recorder_lost: "event was lost by the recorder", "events were lost by the recorder", lowers_counts();
    /// Places where the recorder dropped events without saying how many.
    recorder_gaps: "place where the recorder lost events without saying how many",
        "places where the recorder lost events without saying how many", lowers_counts();
    /// Unmatched exits (another exit, a loss, or the end of the recording instead of a kvm_entry), excluded from
    /// all tables.
    unpaired_exits: "unmatched exit (no following kvm_entry), excluded from all tables",
        "unmatched exits (no following kvm_entry), excluded from all tables";
    /// Unmatched entries (no preceding kvm_exit), except the first of each vCPU.
    unpaired_entries: "unmatched entry (no preceding kvm_exit)", "unmatched entries (no preceding kvm_exit)";
    /// Events that came later than an event already passed on: durations around them may be wrong, and those
    /// that would be negative are not counted.
    out_of_order: "event is out of order: durations near it may be wrong",
        "events are out of order: durations near them may be wrong";
    /// Records that could not be decoded.
    undecodable: "record could not be decoded", "records could not be decoded";
    /// Samples that stand for several events each (a recorder that samples tracepoints). They are counted with the events
    /// that they stand for, and have no times.
    sampled: "sample was counted with the events that it stands for: counts are estimates, without times",
        "samples were counted with the events that they stand for: counts are estimates, without times";
    /// Exits whose detail was dropped because the table of exits was full.
    details_dropped: "exit has no detail: too many different details",
        "exits have no detail: too many different details";
    /// Accesses whose address or register was dropped because the table of accesses was full.
    accesses_dropped: "access has no address or register: too many different ones",
        "accesses have no address or register: too many different ones";
    /// Events of vCPU threads beyond those that are followed: they are in no table.
    threads_dropped: "event of further threads is in no table", "events of further threads are in no table",
        lowers_counts(), beyond(MAX_THREADS, "vCPU threads");
    /// Exits of VMs beyond those that are kept apart: they are counted with another VM.
    vms_merged: "exit of further VMs is counted with the last one", "exits of further VMs are counted with the last one",
        beyond(MAX_VMS, "VMs");
}

impl Losses {
    /// All numbers, by the names that programs know them by.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters().map(|(loss, n)| (loss.name, n))
    }

    /// Nothing is missing (notes do not count).
    pub fn is_empty(&self) -> bool {
        self.counts().all(|(_, n)| n == 0) && self.missing.is_empty() && self.truncated.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_added_and_keeps_its_name() {
        let names: Vec<_> = Losses::default().counts().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 11);
        assert_eq!((names[0], names[10]), ("recorder_lost", "vms_merged"));
        let one = Losses { unpaired_exits: u64::MAX, notes: vec!["a".into()], ..Losses::default() };
        let mut sum = Losses { unpaired_exits: 1, vms_merged: 2, ..Losses::default() };
        sum.merge(&one);
        assert_eq!((sum.unpaired_exits, sum.vms_merged), (u64::MAX, 2));
        assert_eq!(sum.notes, ["a"]);
        assert!(!sum.is_empty() && Losses { notes: sum.notes, ..Losses::default() }.is_empty());
    }
}
