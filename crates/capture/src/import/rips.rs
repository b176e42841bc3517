//! The guest's instruction pointers of entries and exits: how many are 0.
//!
//! KVM gives 0 for a guest whose registers it cannot read (Linux 6.16 and later, arch/x86/kvm/trace.h,
//! `tracing_kvm_rip_read`), and of a TD's steady state nothing else tells. The counts are facts of the recording; what
//! they mean, the analysis says.

use std::collections::BTreeMap;

use vmtax_events::{MAX_THREADS, RipCounts as Counts};

/// Counts of each thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rips {
    threads: BTreeMap<u32, Counts>,
    /// The thread of the last ones, which `threads` does not have yet.
    last: (u32, Counts),
}

impl Rips {
    /// Counts an entry or exit of a thread.
    #[inline(always)]
    pub(crate) fn add(&mut self, tid: u32, rip: u64) {
        if self.last.0 != tid {
            self.put(tid);
        }
        self.last.1.add(rip);
    }

    #[cold]
    fn put(&mut self, next: u32) {
        let (tid, counts) = std::mem::replace(&mut self.last, (next, Counts::default()));
        self.merge(tid, counts);
    }

    fn merge(&mut self, tid: u32, counts: Counts) {
        let is_known = self.threads.contains_key(&tid);
        if counts != Counts::default() && (is_known || self.threads.len() < MAX_THREADS) {
            self.threads.entry(tid).or_default().merge(counts);
        }
    }

    /// Counts those of a part of the recording.
    pub(crate) fn add_all(&mut self, part: &Rips) {
        part.threads().for_each(|(tid, counts)| self.merge(tid, counts));
    }

    pub(crate) fn clear(&mut self) {
        self.threads.clear();
        self.last = (0, Counts::default());
    }

    /// Each thread that has some. One can come twice.
    pub fn threads(&self) -> impl Iterator<Item = (u32, Counts)> {
        let known = self.threads.iter().map(|(tid, counts)| (*tid, *counts));
        known.chain([self.last]).filter(|(_, counts)| *counts != Counts::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_added_up_by_thread() {
        let mut part = Rips::default();
        for (tid, rip) in [(7, 0), (7, 0), (8, 0x1000), (7, 5), (7, 0)] {
            part.add(tid, rip);
        }
        let mut all = Rips::default();
        all.add_all(&part);
        all.add_all(&part);
        let mut threads: Vec<_> = all.threads().collect();
        threads.sort_by_key(|(tid, _)| *tid);
        let of = |zero, other| Counts { zero, other };
        assert_eq!(threads, [(7, of(6, 2)), (8, of(0, 2))]);
        part.clear();
        assert_eq!(part.threads().count(), 0);
    }
}
