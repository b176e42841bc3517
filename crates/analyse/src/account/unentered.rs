//! Exits that are counted without a time: of a recording that has no `kvm_entry`, and of one that was sampled. Of one that has no exits either, what the
//! scheduler shows.
//!
//! Whether a recording has entries is known at its first, so exits that another exit follows wait here until then.

use vmtax_events::{AccessKey, Detail, Event, ExitKey, Level, Outcome, RowSink};

use super::Accountant;
use super::counts::{IntervalCounts, coarser_accesses, coarser_exits};
use super::scheduled::ScheduledVcpus;
use super::thread::OpenExit;

/// Unmatched entries that are not worth a sentence.
const FEW: u64 = 20;

/// Exits and accesses before the first entry.
#[derive(Debug)]
pub(super) struct Unentered {
    exits: IntervalCounts<ExitKey>,
    accesses: IntervalCounts<AccessKey>,
    /// Number of exits.
    count: u64,
    pub(super) scheduled: ScheduledVcpus,
}

impl Default for Unentered {
    fn default() -> Unentered {
        Unentered {
            exits: IntervalCounts::new(),
            accesses: IntervalCounts::new(),
            count: 0,
            scheduled: ScheduledVcpus::new(),
        }
    }
}

impl<R: RowSink> Accountant<R> {
    /// The open exit of a thread gets no entry.
    pub(super) fn abandon(&mut self, index: usize) {
        let Accountant { threads, unentered, losses, .. } = self;
        let Some(thread) = threads.get_mut(index) else { return };
        let Some(open) = thread.open.take() else { return };
        let Some(held) = unentered else {
            losses.unpaired_exits += 1;
            return;
        };
        held.count += 1;
        held.exits.add(&thread.key(&open), coarser_exits, None, &mut losses.details_dropped);
        let (vm, vcpu) = (thread.vm_id(), thread.vcpu);
        for access in thread.accesses.drain(..) {
            let level = if access.nested { Level::L2 } else { Level::L1 };
            let key = AccessKey { vm, vcpu, level, detail: access.detail };
            held.accesses.add(&key, coarser_accesses, None, &mut losses.accesses_dropped);
        }
    }

    /// The recording has entries: exits before the first have missed theirs.
    #[cold]
    pub(super) fn first_entry(&mut self) {
        if let Some(held) = self.unentered.take() {
            self.losses.unpaired_exits += held.count;
        }
    }

    /// Counts the exits of a recording that has no entry, in its last interval.
    pub(super) fn without_entries(&mut self) {
        let Accountant { unentered, exits, accesses, losses, vms, sink, .. } = self;
        let Some(held) = unentered.as_mut() else { return };
        if held.count == 0 {
            held.scheduled.take(vms).iter().for_each(|row| sink.scheduled(row));
            return;
        }
        for (key, tally) in held.exits.drain() {
            exits.add_many(&key, coarser_exits, tally.count, &mut losses.details_dropped);
        }
        for (key, tally) in held.accesses.drain() {
            accesses.add_many(&key, coarser_accesses, tally.count, &mut losses.accesses_dropped);
        }
        self.losses.missing.push(
            "The recording has no kvm_entry: exits are counted by their recorded reasons, and have no times. Record kvm_entry too."
                .to_owned(),
        );
    }

    /// Says that many entries have no exit before them, although no event was lost.
    pub(super) fn without_exits(&mut self) {
        let (unpaired, entries) = (self.losses.unpaired_entries, self.entries);
        if unpaired >= FEW && unpaired > entries / 10 {
            self.losses.missing.push(format!(
                "{unpaired} of {entries} kvm_entry have no kvm_exit before them: kvm_exit was recorded with a filter, or for a part of the time. The exits of the others are in no table."
            ));
        }
    }

    /// The next event of the thread was sampled.
    #[cold]
    pub(super) fn sampled(&mut self, event: &Event, count: u64) {
        self.losses.sampled += 1;
        if let Some(index) = self.thread(event) {
            self.threads[index].stands_for = count;
        }
    }

    /// An exit that stands for several: who handled it and how long that took are in events that may not have been recorded.
    #[cold]
    pub(super) fn sampled_exit(&mut self, index: usize, exit: &OpenExit) {
        let Accountant { threads, exits, losses, .. } = self;
        let thread = &mut threads[index];
        let count = std::mem::take(&mut thread.stands_for);
        let mut key = thread.key(exit);
        if key.outcome != Outcome::Halted {
            key.outcome = Outcome::Unknown;
        }
        exits.add_many(&key, coarser_exits, count, &mut losses.details_dropped);
    }

    /// An access that stands for several.
    #[cold]
    pub(super) fn sampled_access(&mut self, index: usize, detail: Detail) {
        let Accountant { threads, accesses, losses, .. } = self;
        let thread = &mut threads[index];
        let count = std::mem::take(&mut thread.stands_for);
        let key = AccessKey { vm: thread.vm_id(), vcpu: thread.vcpu, level: Level::L1, detail };
        accesses.add_many(&key, coarser_accesses, count, &mut losses.accesses_dropped);
    }
}
