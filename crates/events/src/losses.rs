//! What a recording lost, and what the analysis could not use. Losses are data.

use serde::{Deserialize, Serialize};

/// Declares [`Losses`]: the counters, each stated once, and the lists of sentences.
macro_rules! losses {
    ($($(#[$doc:meta])* $counter:ident;)+) => {
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
            /// All numbers, by the names that programs know them by.
            pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($counter), self.$counter)),+].into_iter()
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
    recorder_lost;
    /// Places where the recorder dropped events without saying how many.
    recorder_gaps;
    /// Unmatched exits (another exit, a loss, or the end of the recording instead of a kvm_entry), excluded from
    /// all tables.
    unpaired_exits;
    /// Unmatched entries (no preceding kvm_exit), except the first of each vCPU.
    unpaired_entries;
    /// Events that came later than an event already passed on: durations around them may be wrong, and those
    /// that would be negative are not counted.
    out_of_order;
    /// Records that could not be decoded.
    undecodable;
    /// Exits and accesses whose detail was dropped because the table of details was full.
    details_dropped;
    /// Events of vCPU threads beyond those that are followed: they are in no table.
    threads_dropped;
    /// Exits of VMs beyond those that are kept apart: they are counted with another VM.
    vms_merged;
}

impl Losses {
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
        assert_eq!(names.len(), 9);
        assert_eq!((names[0], names[8]), ("recorder_lost", "vms_merged"));
        let one = Losses { unpaired_exits: u64::MAX, notes: vec!["a".into()], ..Losses::default() };
        let mut sum = Losses { unpaired_exits: 1, vms_merged: 2, ..Losses::default() };
        sum.merge(&one);
        assert_eq!((sum.unpaired_exits, sum.vms_merged), (u64::MAX, 2));
        assert_eq!(sum.notes, ["a"]);
        assert!(!sum.is_empty() && Losses { notes: sum.notes, ..Losses::default() }.is_empty());
    }
}
