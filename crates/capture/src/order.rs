//! The one place that sorts.
//!
//! CPUs record on their own, so their events arrive interleaved in blocks. An importer knows from its
//! format how far back a later block can still reach and calls [`Feed::release`] with that time:
//!
//! ```text
//!  file order    a1 a4 a7 │ b2 b3 b9 │release(4)│ a10 a12 │ b11 │release(9)
//!  pending         1 2 3 4   7 9     │          │ 7 9 10 11 12  │
//!  passed on                         │ 1 2 3 4  │               │ 7 9
//! ```
//!
//! The sort is stable: events with equal times keep their file order, as in perf. Memory is bounded by
//! the window between a release and the times after it, and by [`MAX_PENDING`] when the input never
//! releases; events that are too late after such a forced release are counted as out of order and still passed on.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use vmtax_events::{AccessRow, Event, ExitRow, Recording, Sample};

use crate::feed::Cut;
use crate::{Error, Feed, Sink};

/// At most this many events wait to be sorted (112 MB); beyond, the older half is passed on.
pub const MAX_PENDING: usize = 2 << 20;
/// Runs that wait before adjacent ones become one.
const MANY_RUNS: usize = 32;
/// Vectors that are kept to be filled again.
const MAX_SPARE: usize = 16;

/// Sorts events by time and passes them on.
///
/// Events wait in runs, each in order. A release takes the front of every run; where that is one run alone, its events are
/// passed on from where they are.
#[derive(Debug)]
pub struct Sorter<S> {
    sink: S,
    /// In the order in which they came.
    runs: VecDeque<SortedRun>,
    /// Events in `runs` and `loose`.
    pending: usize,
    /// The latest events, which are in no run yet.
    loose: Vec<Event>,
    /// Vectors whose events were passed on.
    spare: Vec<Vec<Event>>,
    /// Time of the last event passed on.
    passed: u64,
    out_of_order: u64,
}

/// Events in the order of time.
#[derive(Debug)]
struct SortedRun {
    events: Arc<Vec<Event>>,
    range: Range<usize>,
}

impl SortedRun {
    fn events(&self) -> &[Event] {
        self.events.get(self.range.clone()).unwrap_or_default()
    }

    /// The events at the front that are not later.
    fn front(&self, time_ns: u64) -> &[Event] {
        self.events().get(..self.until(time_ns)).unwrap_or_default()
    }

    /// How many events at the front are not later.
    fn until(&self, time_ns: u64) -> usize {
        let events = self.events();
        match (events.first(), events.last()) {
            (Some(first), _) if first.time_ns > time_ns => 0,
            (_, Some(last)) if last.time_ns <= time_ns => events.len(),
            _ => events.partition_point(|e| e.time_ns <= time_ns),
        }
    }
}

impl<S: Sink> Sorter<S> {
    /// A sorter in front of `sink`.
    pub fn new(sink: S) -> Sorter<S> {
        Sorter {
            sink,
            runs: VecDeque::new(),
            pending: 0,
            loose: Vec::new(),
            spare: Vec::new(),
            passed: 0,
            out_of_order: 0,
        }
    }

    /// The sink, without what waits to be sorted.
    pub(crate) fn into_sink(self) -> S {
        self.sink
    }

    /// Passes on the rest. Returns the sink, and the number of events that were too late to be sorted.
    pub fn finish(mut self) -> Result<(S, u64), Error> {
        self.seal();
        self.pass(u64::MAX)?;
        Ok((self.sink, self.out_of_order))
    }

    /// An empty vector, with room if one was filled before.
    fn room(&mut self) -> Vec<Event> {
        self.spare.pop().or_else(|| self.sink.room()).unwrap_or_default()
    }

    /// Keeps the room of a vector, if nobody else has it.
    fn keep(spare: &mut Vec<Vec<Event>>, events: Arc<Vec<Event>>) {
        if let Ok(mut events) = Arc::try_unwrap(events)
            && spare.len() < MAX_SPARE
        {
            events.clear();
            spare.push(events);
        }
    }

    /// Makes a run of the loose events.
    fn seal(&mut self) {
        if !self.loose.is_empty() {
            let mut events = std::mem::take(&mut self.loose);
            sort(&mut events);
            let range = 0..events.len();
            self.push(SortedRun { events: Arc::new(events), range });
        }
    }

    /// Adds a run. Many become fewer: adjacent ones, so that the order of equal times stays, and only such as are of similar
    /// length, so that an event is moved a few times at most.
    fn push(&mut self, run: SortedRun) {
        self.runs.push_back(run);
        while self.runs.len() >= MANY_RUNS {
            let len = |back: usize| {
                let at = self.runs.len().checked_sub(back);
                at.and_then(|at| self.runs.get(at)).map_or(0, |run| run.range.len())
            };
            if len(2) > 2 * len(1) {
                break;
            }
            let (Some(second), Some(first)) = (self.runs.pop_back(), self.runs.pop_back()) else {
                break;
            };
            let mut events = Vec::with_capacity(first.range.len() + second.range.len());
            events.extend_from_slice(first.events());
            events.extend_from_slice(second.events());
            sort(&mut events);
            let range = 0..events.len();
            self.runs.push_back(SortedRun { events: Arc::new(events), range });
        }
    }

    fn bound(&mut self) -> Result<(), Error> {
        if self.pending < MAX_PENDING {
            return Ok(());
        }
        self.seal();
        let mut events = Vec::with_capacity(self.pending);
        self.runs.drain(..).for_each(|run| events.extend_from_slice(run.events()));
        sort(&mut events);
        let middle = events.get(MAX_PENDING / 2).map_or(u64::MAX, |e| e.time_ns);
        let range = 0..events.len();
        self.runs.push_back(SortedRun { events: Arc::new(events), range });
        self.pass(middle)
    }

    fn pass(&mut self, until: u64) -> Result<(), Error> {
        let fronts = || self.runs.iter().map(|run| run.front(until)).filter(|f| !f.is_empty());
        // Mostly one follows the other, and nothing needs to be moved.
        if fronts().is_sorted_by(|a, b| a.last().map(|e| e.time_ns) <= b.first().map(|e| e.time_ns))
        {
            for at in 0..self.runs.len() {
                let Some(run) = self.runs.get(at) else { break };
                let (events, start) = (Arc::clone(&run.events), run.range.start);
                let part = start..start + run.until(until);
                if !part.is_empty() {
                    self.pass_on(&events, part)?;
                }
            }
        } else {
            let mut merged = self.room();
            merge(self.runs.iter().map(|run| run.front(until)).collect(), &mut merged);
            let (len, merged) = (merged.len(), Arc::new(merged));
            self.pass_on(&merged, 0..len)?;
            Self::keep(&mut self.spare, merged);
        }
        self.drop_until(until);
        Ok(())
    }

    fn pass_on(&mut self, events: &Arc<Vec<Event>>, part: Range<usize>) -> Result<(), Error> {
        let passed = events.get(part.clone()).unwrap_or_default();
        self.out_of_order += passed.partition_point(|e| e.time_ns < self.passed) as u64;
        self.passed = self.passed.max(passed.last().map_or(0, |e| e.time_ns));
        self.pending -= passed.len();
        self.sink.shared(events, part)
    }

    /// Removes the events that were passed on.
    fn drop_until(&mut self, until: u64) {
        let spare = &mut self.spare;
        self.runs.retain_mut(|run| {
            run.range.start += run.until(until);
            if run.range.is_empty() {
                Self::keep(spare, std::mem::take(&mut run.events));
                return false;
            }
            true
        });
    }
}

/// Merges runs that are in order. Of equal times, those of the first run come first.
fn merge(mut runs: Vec<&[Event]>, merged: &mut Vec<Event>) {
    loop {
        runs.retain(|run| !run.is_empty());
        let firsts =
            || runs.iter().enumerate().filter_map(|(i, run)| Some((run.first()?.time_ns, i)));
        let Some(least) = firsts().min() else { return };
        // Up to where another run goes on.
        let next = firsts().filter(|first| *first != least).min();
        let run = &mut runs[least.1];
        let is_before = |event: &Event| next.is_none_or(|next| (event.time_ns, least.1) < next);
        let mut len = 1;
        while run.get(2 * len - 1).is_some_and(is_before) {
            len *= 2;
        }
        let end = run.len().min(2 * len - 1);
        len += run[len..end].partition_point(is_before);
        let (before, rest) = run.split_at(len);
        merged.extend_from_slice(before);
        *run = rest;
    }
}

/// The sort is stable, and fast where there are few runs already.
fn sort(events: &mut [Event]) {
    if !events.is_sorted_by_key(|e| e.time_ns) {
        events.sort_by_key(|e| e.time_ns);
    }
}

impl<S: Sink> Feed for Sorter<S> {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.loose.push(event);
        self.pending += 1;
        self.bound()
    }

    fn block(&mut self, events: &mut Vec<Event>, cuts: &[Cut]) -> Result<(), Error> {
        self.seal();
        let room = self.room();
        let block = std::mem::replace(events, room);
        let (len, block) = (block.len(), Arc::new(block));
        let ends = cuts.iter().map(|cut| (cut.at, Some(cut.release))).chain([(len, None)]);
        let mut from = 0;
        for (end, release) in ends {
            let run = SortedRun { events: Arc::clone(&block), range: from..end };
            debug_assert!(run.events().is_sorted_by_key(|e| e.time_ns), "a block is out of order");
            from = end;
            if !run.range.is_empty() {
                self.pending += run.range.len();
                self.push(run);
                self.bound()?;
            }
            if let Some(time_ns) = release {
                self.pass(time_ns)?;
            }
        }
        Self::keep(&mut self.spare, block);
        Ok(())
    }

    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        self.seal();
        self.pass(time_ns)
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        self.sink.counted(&row)
    }

    fn accessed(&mut self, row: AccessRow) -> Result<(), Error> {
        self.sink.accessed(&row)
    }

    fn sample(&mut self, sample: Sample) -> Result<(), Error> {
        self.sink.sample(&sample)
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.sink.thread_name(pid, tid, name)
    }

    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        self.sink.described(recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vmtax_events::{EventKind, NO_PID, NO_VCPU};

    #[derive(Default)]
    struct CollectSorted(Vec<Event>);

    impl Sink for CollectSorted {
        fn events(&mut self, events: &[Event]) -> Result<(), Error> {
            self.0.extend_from_slice(events);
            Ok(())
        }
    }

    fn event(time_ns: u64, cpu: u32) -> Event {
        Event { time_ns, pid: NO_PID, tid: 1, cpu, vcpu: NO_VCPU, kind: EventKind::Entry }
    }

    #[test]
    fn the_diagram_of_the_module() {
        let mut sorter = Sorter::new(CollectSorted::default());
        for (t, cpu) in [(1, 0), (4, 0), (7, 0), (2, 1), (3, 1), (9, 1)] {
            sorter.event(event(t, cpu)).unwrap();
        }
        sorter.release(4).unwrap();
        assert_eq!(times(&sorter.sink.0), [1, 2, 3, 4]);
        for (t, cpu) in [(10, 0), (12, 0), (11, 1)] {
            sorter.event(event(t, cpu)).unwrap();
        }
        sorter.release(9).unwrap();
        assert_eq!(times(&sorter.sink.0), [1, 2, 3, 4, 7, 9]);
        let (sink, late) = sorter.finish().unwrap();
        assert_eq!((times(&sink.0), late), (vec![1, 2, 3, 4, 7, 9, 10, 11, 12], 0));
    }

    #[test]
    fn a_late_event_is_counted_and_passed_on() {
        let mut sorter = Sorter::new(CollectSorted::default());
        sorter.event(event(10, 0)).unwrap();
        sorter.release(10).unwrap();
        sorter.event(event(5, 1)).unwrap();
        sorter.event(event(11, 0)).unwrap();
        let (sink, late) = sorter.finish().unwrap();
        assert_eq!((times(&sink.0), late), (vec![10, 5, 11], 1));
    }

    #[test]
    fn without_releases_the_window_is_bounded() {
        let mut sorter = Sorter::new(CollectSorted::default());
        for t in 0..MAX_PENDING as u64 + 10 {
            sorter.event(event(t, 0)).unwrap();
            assert!(sorter.pending <= MAX_PENDING);
        }
        let (sink, late) = sorter.finish().unwrap();
        assert_eq!((sink.0.len(), late), (MAX_PENDING + 10, 0));
    }

    fn times(events: &[Event]) -> Vec<u64> {
        events.iter().map(|e| e.time_ns).collect()
    }

    proptest! {
        #[test]
        fn equals_a_stable_sort_of_everything(blocks in prop::collection::vec(prop::collection::vec(0u64..50, 0..20), 0..20)) {
            // Blocks of ever later times, each in any order: release after each what the next cannot reach.
            let mut sorter = Sorter::new(CollectSorted::default());
            let mut all = Vec::new();
            for (i, block) in blocks.iter().enumerate() {
                let base = i as u64 * 50;
                for (n, t) in block.iter().enumerate() {
                    let e = event(base + t, n as u32);
                    all.push(e);
                    sorter.event(e).unwrap();
                }
                if i % 3 == 0 {
                    sorter.release(base + 49).unwrap();
                }
            }
            all.sort_by_key(|e| e.time_ns);
            let (sink, late) = sorter.finish().unwrap();
            prop_assert_eq!(sink.0, all);
            prop_assert_eq!(late, 0);
        }
    }
}
