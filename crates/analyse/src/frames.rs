//! A recording as a row of frames, each what one interval brought, for who looks at it as it goes.
//!
//! Memory is bounded: [`KeepFrames::All`] joins neighbouring frames until they fit (a recording that is looked at afterwards),
//! [`KeepFrames::Newest`] forgets the oldest (a kernel that runs on).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use vmtax_events::{ExitKey, ExitRow, PreemptedRow, Tally, TimeRow};

use crate::ledger::{TakenTime, Taker};

/// So many keys in all frames together: some 45 MB.
const MOST: usize = 100_000;

/// What ended in one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalFrame {
    /// Start on the recorder's clock, ns.
    pub start_ns: u64,
    /// How long it was, ns.
    pub length_ns: u64,
    pub exits: BTreeMap<ExitKey, Tally>,
    /// Time split by (VM, vCPU).
    pub time: BTreeMap<(u32, u32), TimeRow>,
    /// Who had the CPU of preempted vCPUs: (VM, vCPU, thread). Hostile names.
    pub taken_by: BTreeMap<(u32, u32, Taker), TakenTime>,
}

impl IntervalFrame {
    pub fn exit(&mut self, key: ExitKey, tally: &Tally) {
        self.exits.entry(key).or_default().merge(tally);
    }

    /// Adds a vCPU's time.
    pub fn time(&mut self, row: &TimeRow) {
        let sum = self.time.entry((row.vm, row.vcpu)).or_insert_with(|| TimeRow {
            interval_start_ns: row.interval_start_ns,
            vm: row.vm,
            vcpu: row.vcpu,
            ..TimeRow::default()
        });
        sum.add(row);
    }

    /// Adds who had the CPU of a preempted vCPU.
    pub fn preempted(&mut self, row: &PreemptedRow) {
        let sum = self.taken_by.entry((row.key.vm, row.key.vcpu, Taker::of(row))).or_default();
        sum.add(TakenTime { count: row.count, time_ns: row.time_ns });
    }

    /// Adds what another holds. Start and length stay.
    pub fn merge(&mut self, other: &IntervalFrame) {
        other.exits.iter().for_each(|(key, tally)| self.exit(*key, tally));
        other.time.values().for_each(|time| self.time(time));
        for (key, taken) in &other.taken_by {
            self.taken_by.entry(key.clone()).or_default().add(*taken);
        }
    }

    /// Leaves these VMs out.
    fn forget(&mut self, vms: &BTreeSet<u32>) {
        self.exits.retain(|key, _| !vms.contains(&key.vm));
        self.time.retain(|(vm, _), _| !vms.contains(vm));
        self.taken_by.retain(|(vm, _, _), _| !vms.contains(vm));
    }

    /// The VMs that it knows something of.
    fn vms(&self) -> BTreeSet<u32> {
        let timed = self.time.keys().map(|(vm, _)| *vm);
        self.exits.keys().map(|key| key.vm).chain(timed).collect()
    }

    /// What it takes up.
    fn size(&self) -> usize {
        1 + self.exits.len() + self.time.len() + self.taken_by.len()
    }
}

/// What happens when there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepFrames {
    /// Neighbours are joined: frames become longer.
    All,
    /// The oldest go.
    Newest,
}

/// Frames by their start.
#[derive(Clone, Debug)]
pub struct Frames {
    keep: KeepFrames,
    /// For [`KeepFrames::All`]: the length of a frame; starts are multiples of it.
    step_ns: u64,
    most: usize,
    size: usize,
    frames: BTreeMap<u64, IntervalFrame>,
    total: IntervalFrame,
    /// First and last frame, by its start, in which something of a VM was.
    spans: BTreeMap<u32, (u64, u64)>,
    is_timed: bool,
}

impl Frames {
    /// `interval_ns` is the length of the rows' intervals.
    pub fn new(keep: KeepFrames, interval_ns: u64) -> Frames {
        Frames {
            keep,
            step_ns: interval_ns.max(1),
            most: MOST,
            size: 0,
            frames: BTreeMap::new(),
            total: IntervalFrame::default(),
            spans: BTreeMap::new(),
            is_timed: false,
        }
    }

    /// Adds exits of a recording.
    pub fn exit(&mut self, row: &ExitRow) {
        self.add(row.interval_start_ns, row.key.vm, |frame| frame.exit(row.key, &row.tally));
    }

    /// Adds a vCPU's time of a recording.
    pub fn time(&mut self, row: &TimeRow) {
        self.is_timed = true;
        self.add(row.interval_start_ns, row.vm, |frame| frame.time(row));
    }

    /// Adds who had the CPU of a preempted vCPU of a recording.
    pub fn preempted(&mut self, row: &PreemptedRow) {
        self.add(row.interval_start_ns, row.key.vm, |frame| frame.preempted(row));
    }

    fn add(&mut self, at_ns: u64, vm: u32, into: impl Fn(&mut IntervalFrame)) {
        let start_ns = at_ns - at_ns % self.step_ns;
        let empty = IntervalFrame { start_ns, length_ns: self.step_ns, ..IntervalFrame::default() };
        let size = self.frames.get(&start_ns).map_or(0, IntervalFrame::size);
        let frame = self.frames.entry(start_ns).or_insert(empty);
        into(frame);
        self.size += frame.size() - size;
        into(&mut self.total);
        self.seen(vm, start_ns);
        self.join();
        self.set_span();
    }

    /// Adds a frame of a running kernel, and leaves VMs that ended long ago out of the total.
    pub fn push(&mut self, frame: IntervalFrame, ended: &BTreeSet<u32>) {
        self.is_timed = true;
        self.total.merge(&frame);
        self.total.forget(ended);
        frame.vms().into_iter().for_each(|vm| self.seen(vm, frame.start_ns));
        if self.total.length_ns == 0 {
            self.total.start_ns = frame.start_ns;
        }
        self.total.length_ns = self.total.length_ns.saturating_add(frame.length_ns);
        self.size += frame.size();
        if let Some(same) = self.frames.insert(frame.start_ns, frame) {
            self.size -= same.size();
        }
        while self.size > self.most && self.frames.len() > 1 {
            if let Some((_, oldest)) = self.frames.pop_first() {
                self.size -= oldest.size();
            }
        }
        let (first, running) = (self.first().unwrap_or_default(), self.total.vms());
        self.spans.retain(|vm, (_, last)| *last >= first || running.contains(vm));
    }

    fn seen(&mut self, vm: u32, start_ns: u64) {
        let (first, last) = self.spans.entry(vm).or_insert((start_ns, start_ns));
        (*first, *last) = ((*first).min(start_ns), (*last).max(start_ns));
    }

    fn set_span(&mut self) {
        if let (Some(first), Some(last)) = (self.first(), self.last()) {
            self.total.start_ns = first;
            self.total.length_ns = (last - first).saturating_add(self.step_ns);
        }
    }

    fn join(&mut self) {
        while self.size > self.most && self.frames.len() > 1 && self.keep == KeepFrames::All {
            let Some(step_ns) = self.step_ns.checked_mul(2) else { return };
            self.step_ns = step_ns;
            for (start_ns, frame) in std::mem::take(&mut self.frames) {
                let start_ns = start_ns - start_ns % step_ns;
                let empty =
                    IntervalFrame { start_ns, length_ns: step_ns, ..IntervalFrame::default() };
                self.frames.entry(start_ns).or_insert(empty).merge(&frame);
            }
            self.size = self.frames.values().map(IntervalFrame::size).sum();
            for (first, last) in self.spans.values_mut() {
                (*first, *last) = (*first - *first % step_ns, *last - *last % step_ns);
            }
        }
    }

    /// All of it. Of a running kernel: since it began, without VMs that ended long ago.
    pub fn total(&self) -> &IntervalFrame {
        &self.total
    }

    /// The frame that starts then.
    pub fn at(&self, start_ns: u64) -> Option<&IntervalFrame> {
        self.frames.get(&start_ns)
    }

    /// All frames in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &IntervalFrame> {
        self.frames.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many started before then.
    pub fn before(&self, start_ns: u64) -> usize {
        self.frames.range(..start_ns).count()
    }

    /// Start of the first.
    pub fn first(&self) -> Option<u64> {
        self.frames.first_key_value().map(|(start, _)| *start)
    }

    /// Start of the last.
    pub fn last(&self) -> Option<u64> {
        self.frames.last_key_value().map(|(start, _)| *start)
    }

    /// Start of the one after.
    pub fn after(&self, start_ns: u64) -> Option<u64> {
        let later = (Bound::Excluded(start_ns), Bound::Unbounded);
        self.frames.range(later).next().map(|(start, _)| *start)
    }

    /// Start of the one before.
    pub fn previous(&self, start_ns: u64) -> Option<u64> {
        self.frames.range(..start_ns).next_back().map(|(start, _)| *start)
    }

    /// First and last frame, by start, in which something of a VM was.
    pub fn spans(&self) -> &BTreeMap<u32, (u64, u64)> {
        &self.spans
    }

    /// Something in it has a duration; a dump of counts has none, and no length either.
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Isa, Reason};

    use super::*;

    fn row(start: u64, vm: u32, count: u64) -> ExitRow {
        let key = ExitKey::of(vm, Reason { isa: Isa::Svm, code: 0x72, flags: 0 });
        let mut tally = Tally::default();
        (0..count).for_each(|ns| tally.add(ns));
        ExitRow { interval_start_ns: start, key, tally }
    }

    fn counts(frames: &Frames) -> Vec<(u64, u64, u64)> {
        let of = |frame: &IntervalFrame| frame.exits.values().map(|tally| tally.count).sum();
        frames.iter().map(|frame| (frame.start_ns, frame.length_ns, of(frame))).collect()
    }

    #[test]
    fn rows_find_their_frame_whatever_their_order() {
        let mut frames = Frames::new(KeepFrames::All, 10);
        for (start, count) in [(30, 3), (10, 1), (30, 4), (57, 5)] {
            frames.exit(&row(start, 1, count));
        }
        frames.time(&TimeRow { interval_start_ns: 80, vm: 2, wall_ns: 7, ..TimeRow::default() });
        assert_eq!(counts(&frames), [(10, 10, 1), (30, 10, 7), (50, 10, 5), (80, 10, 0)]);
        assert_eq!(
            (frames.after(30), frames.previous(30), frames.before(50)),
            (Some(50), Some(10), 2)
        );
        assert_eq!(*frames.spans(), BTreeMap::from([(1, (10, 50)), (2, (80, 80))]));
        let total = frames.total();
        assert_eq!((total.start_ns, total.length_ns, total.time[&(2, 0)].wall_ns), (10, 80, 7));
        assert_eq!(total.exits.values().map(|tally| tally.count).sum::<u64>(), 13);
    }

    #[test]
    fn too_many_frames_of_a_recording_are_joined_and_nothing_is_lost() {
        let mut frames = Frames { most: 64, ..Frames::new(KeepFrames::All, 10) };
        (0..1000).for_each(|n| frames.exit(&row(n * 10, (n % 7) as u32, 1)));
        assert!(frames.size <= 64 && frames.len() > 4, "{} {}", frames.size, frames.len());
        assert_eq!(frames.size, frames.iter().map(IntervalFrame::size).sum::<usize>());
        let counts = counts(&frames);
        assert_eq!(counts.iter().map(|(.., count)| count).sum::<u64>(), 1000);
        assert!(counts.iter().all(|(start, length, _)| start % length == 0));
        // Forged times that are far apart do not make it run for ever.
        frames.exit(&row(u64::MAX, 1, 1));
        (0..100).for_each(|n| frames.exit(&row(n << 56, n as u32, 1)));
        assert_eq!(frames.total().exits.values().map(|tally| tally.count).sum::<u64>(), 1101);
    }

    #[test]
    fn a_running_kernel_forgets_the_oldest_and_vms_that_ended() {
        let mut frames = Frames { most: 20, ..Frames::new(KeepFrames::Newest, 10) };
        for n in 0..100 {
            let mut frame =
                IntervalFrame { start_ns: n * 10, length_ns: 10, ..IntervalFrame::default() };
            let row = row(0, n as u32 / 2, 1);
            frame.exit(row.key, &row.tally);
            let ended = if n % 2 == 0 {
                BTreeSet::from([n as u32 / 2 - u32::from(n > 0)])
            } else {
                BTreeSet::new()
            };
            frames.push(frame, &ended);
        }
        assert_eq!((frames.len(), frames.size), (10, 20));
        assert_eq!((frames.first(), frames.last()), (Some(900), Some(990)));
        assert_eq!(frames.total().exits.len(), 1);
        assert_eq!(frames.total().length_ns, 1000);
        assert!(frames.spans().len() <= 12, "{:?}", frames.spans());
    }
}
