//! Whether compression is worth its time: memory of one kind is contiguous, so the preceding pages predict it.

/// Groups in a row that became hardly smaller, and compression pauses.
const MISSES: u32 = 8;
/// While compression is suspended, one page in this many is tried: that detects a change within a megabyte at a hundredth of the cost.
const EVERY: usize = 256;

/// What was seen lately.
#[derive(Default)]
pub(super) struct RecentTrial {
    misses: u32,
    skipped: usize,
}

impl RecentTrial {
    /// Whether compression pauses.
    pub(super) fn pauses(&self) -> bool {
        self.misses >= MISSES
    }

    /// While it pauses: whether to try a page of the `pages` that come.
    pub(super) fn probes(&mut self, pages: usize) -> bool {
        self.skipped += pages;
        let due = self.skipped >= EVERY;
        if due {
            self.skipped = 0;
        }
        due
    }

    /// What compression made of bytes: at least a twentieth less is worth it.
    pub(super) fn learn(&mut self, before: usize, after: usize) {
        if after * 20 < before * 19 {
            self.misses = 0;
        } else {
            self.misses = self.misses.saturating_add(1);
        }
    }
}
