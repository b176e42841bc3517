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
    /// Where and how the input ended before its own end, in one sentence each.
    pub truncated: Vec<String>,
    /// Anything else the importer wants said, one sentence each.
    pub notes: Vec<String>,
}

impl Losses {
    /// Nothing is missing (notes do not count).
    pub fn is_empty(&self) -> bool {
        let Losses {
            recorder_lost,
            recorder_gaps,
            unpaired_exits,
            unpaired_entries,
            out_of_order,
            undecodable,
            details_dropped,
            truncated,
            notes: _,
        } = self;
        [
            recorder_lost,
            recorder_gaps,
            unpaired_exits,
            unpaired_entries,
            out_of_order,
            undecodable,
            details_dropped,
        ]
        .into_iter()
        .all(|&n| n == 0)
            && truncated.is_empty()
    }

    /// Adds what another part of the pipeline lost.
    pub fn merge(&mut self, other: &Losses) {
        self.recorder_lost += other.recorder_lost;
        self.recorder_gaps += other.recorder_gaps;
        self.unpaired_exits += other.unpaired_exits;
        self.unpaired_entries += other.unpaired_entries;
        self.out_of_order += other.out_of_order;
        self.undecodable += other.undecodable;
        self.details_dropped += other.details_dropped;
        self.truncated.extend(other.truncated.iter().cloned());
        self.notes.extend(other.notes.iter().cloned());
    }
}
