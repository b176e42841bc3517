//! What a recording lost, and what the analysis could not use. Losses are data.

/// Counts of everything that is missing from a result. All zero means nothing is known to be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events that the recorder says it dropped (ring full).
    pub recorder_lost: u64,
    /// Places where the recorder dropped events without saying how many.
    pub recorder_gaps: u64,
    /// Exits with no entry after them (another exit, a loss, or the end of the recording came first): they
    /// are in no table.
    pub unpaired_exits: u64,
    /// Entries with no exit before them, the first of each vCPU excepted.
    pub unpaired_entries: u64,
    /// Events that came later than an event already passed on: durations around them may be wrong, and those
    /// that would be negative are not counted.
    pub out_of_order: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Exits and accesses whose detail was dropped because the table of details was full.
    pub details_dropped: u64,
    /// Events of vCPU threads beyond those that are followed: they are in no table.
    pub threads_dropped: u64,
    /// Exits of VMs beyond those that are kept apart: they are counted with another VM.
    pub vms_merged: u64,
    /// What the input lacks although it is whole, one sentence each: a recording without `kvm_exit`.
    pub missing: Vec<String>,
    /// Where and how the input ended before its own end, in one sentence each.
    pub truncated: Vec<String>,
    /// Anything else the importer wants said, one sentence each.
    pub notes: Vec<String>,
}

impl Losses {
    /// Nothing is missing (notes do not count).
    pub fn is_empty(&self) -> bool {
        self.counts().into_iter().all(|(_, n)| n == 0)
            && self.missing.is_empty()
            && self.truncated.is_empty()
    }

    /// All numbers, by the names that programs know them by.
    pub fn counts(&self) -> [(&'static str, u64); 9] {
        [
            ("recorder_lost", self.recorder_lost),
            ("recorder_gaps", self.recorder_gaps),
            ("unpaired_exits", self.unpaired_exits),
            ("unpaired_entries", self.unpaired_entries),
            ("out_of_order", self.out_of_order),
            ("undecodable", self.undecodable),
            ("details_dropped", self.details_dropped),
            ("threads_dropped", self.threads_dropped),
            ("vms_merged", self.vms_merged),
        ]
    }

    /// Adds what another part of the pipeline lost.
    pub fn merge(&mut self, other: &Losses) {
        // Taken apart, so that a new field cannot be forgotten.
        let Losses {
            recorder_lost,
            recorder_gaps,
            unpaired_exits,
            unpaired_entries,
            out_of_order,
            undecodable,
            details_dropped,
            threads_dropped,
            vms_merged,
            missing,
            truncated,
            notes,
        } = other;
        self.recorder_lost += recorder_lost;
        self.recorder_gaps += recorder_gaps;
        self.unpaired_exits += unpaired_exits;
        self.unpaired_entries += unpaired_entries;
        self.out_of_order += out_of_order;
        self.undecodable += undecodable;
        self.details_dropped += details_dropped;
        self.threads_dropped += threads_dropped;
        self.vms_merged += vms_merged;
        self.missing.extend(missing.iter().cloned());
        self.truncated.extend(truncated.iter().cloned());
        self.notes.extend(notes.iter().cloned());
    }
}
