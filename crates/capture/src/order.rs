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

use vmtax_events::{Event, ExitRow, Recording, Sample};

use crate::{Error, Feed, Sink};

/// At most this many events wait to be sorted (112 MB); beyond, the older half is passed on.
pub const MAX_PENDING: usize = 2 << 20;

/// Sorts events by time and passes them on.
#[derive(Debug)]
pub struct Sorter<S> {
    sink: S,
    pending: Vec<Event>,
    /// Time of the last event passed on.
    passed: u64,
    out_of_order: u64,
}

impl<S: Sink> Sorter<S> {
    /// A sorter in front of `sink`.
    pub fn new(sink: S) -> Sorter<S> {
        Sorter { sink, pending: Vec::new(), passed: 0, out_of_order: 0 }
    }

    /// Many events at once, as [`Feed::event`] takes them.
    pub fn extend(&mut self, events: &[Event]) -> Result<(), Error> {
        self.pending.extend_from_slice(events);
        self.bound()
    }

    /// Passes on the rest. Returns the sink, and the number of events that were too late to be sorted.
    pub fn finish(mut self) -> Result<(S, u64), Error> {
        self.pass(u64::MAX)?;
        Ok((self.sink, self.out_of_order))
    }

    fn bound(&mut self) -> Result<(), Error> {
        if self.pending.len() < MAX_PENDING {
            return Ok(());
        }
        self.pending.sort_by_key(|e| e.time_ns);
        let middle = self.pending[MAX_PENDING / 2].time_ns;
        self.pass(middle)
    }

    fn pass(&mut self, until: u64) -> Result<(), Error> {
        self.pending.sort_by_key(|e| e.time_ns);
        let count = self.pending.partition_point(|e| e.time_ns <= until);
        if count == 0 {
            return Ok(());
        }
        let passed = self.passed;
        self.out_of_order += self.pending[..count].partition_point(|e| e.time_ns < passed) as u64;
        self.passed = self.passed.max(self.pending[count - 1].time_ns);
        self.sink.events(&self.pending[..count])?;
        self.pending.drain(..count);
        Ok(())
    }
}

impl<S: Sink> Feed for Sorter<S> {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.pending.push(event);
        self.bound()
    }

    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        self.pass(time_ns)
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        self.sink.counted(&row)
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
    use vmtax_events::{Kind, NO_PID, NO_VCPU};

    #[derive(Default)]
    struct Collect(Vec<Event>);

    impl Sink for Collect {
        fn events(&mut self, events: &[Event]) -> Result<(), Error> {
            self.0.extend_from_slice(events);
            Ok(())
        }
        fn counted(&mut self, _: &ExitRow) -> Result<(), Error> {
            Ok(())
        }
        fn thread_name(&mut self, _: u32, _: u32, _: &str) -> Result<(), Error> {
            Ok(())
        }
    }

    fn event(time_ns: u64, cpu: u32) -> Event {
        Event { time_ns, pid: NO_PID, tid: 1, cpu, vcpu: NO_VCPU, kind: Kind::Entry }
    }

    #[test]
    fn the_diagram_of_the_module() {
        let mut sorter = Sorter::new(Collect::default());
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
        let mut sorter = Sorter::new(Collect::default());
        sorter.event(event(10, 0)).unwrap();
        sorter.release(10).unwrap();
        sorter.event(event(5, 1)).unwrap();
        sorter.event(event(11, 0)).unwrap();
        let (sink, late) = sorter.finish().unwrap();
        assert_eq!((times(&sink.0), late), (vec![10, 5, 11], 1));
    }

    #[test]
    fn without_releases_the_window_is_bounded() {
        let mut sorter = Sorter::new(Collect::default());
        for t in 0..MAX_PENDING as u64 + 10 {
            sorter.event(event(t, 0)).unwrap();
            assert!(sorter.pending.len() <= MAX_PENDING);
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
            let mut sorter = Sorter::new(Collect::default());
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
