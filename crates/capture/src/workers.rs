//! Work on several threads whose results come back in the order of the jobs.
//!
//! ```text
//!  push 0 1 2 3 4 5 ──┬─> thread A: 0 2 4 ──┬──> pop 0 1 2 3 4 5
//!                     └─> thread B: 1 3 5 ──┘
//! ```
//!
//! Jobs are handed out in turn, so the results of the threads, taken in turn, are in order. Without threads a job is done
//! where it is pushed: whatever the number of threads, the same jobs are done in the same way.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Jobs of one thread that are under way.
const DEPTH: usize = 2;

/// The end that hands out jobs and takes results.
pub(crate) struct Workers<'w, J, D> {
    work: &'w (dyn Fn(J) -> D + Sync),
    lanes: Vec<Lane<J, D>>,
    /// Jobs handed out and results taken so far.
    pushed: usize,
    popped: usize,
    /// Results of jobs that were done where they were pushed.
    done: VecDeque<D>,
}

struct Lane<J, D> {
    jobs: SyncSender<J>,
    results: Receiver<D>,
}

/// Calls `drive` with this number of threads that do `work`.
pub(crate) fn with_workers<J: Send, D: Send, R>(
    threads: usize,
    work: impl Fn(J) -> D + Sync,
    drive: impl FnOnce(&mut Workers<'_, J, D>) -> R,
) -> R {
    let work: &(dyn Fn(J) -> D + Sync) = &work;
    thread::scope(|scope| {
        let lane = |_| {
            let (jobs, todo) = sync_channel(DEPTH);
            let (finished, results) = sync_channel(DEPTH);
            scope.spawn(move || {
                for job in todo {
                    if finished.send(work(job)).is_err() {
                        break;
                    }
                }
            });
            Lane { jobs, results }
        };
        let lanes = (0..threads).map(lane).collect();
        drive(&mut Workers { work, lanes, pushed: 0, popped: 0, done: VecDeque::new() })
    })
}

impl<J, D> Workers<'_, J, D> {
    /// As many jobs are under way as there may be: take a result first.
    pub(crate) fn is_full(&self) -> bool {
        self.pushed - self.popped >= self.most()
    }

    /// How many jobs may be under way.
    pub(crate) fn most(&self) -> usize {
        (self.lanes.len() * DEPTH).max(1)
    }

    /// Hands out a job. Waits while [`Workers::is_full`].
    pub(crate) fn push(&mut self, job: J) {
        match self.lanes.get(self.pushed % self.lanes.len().max(1)) {
            None => self.done.push_back((self.work)(job)),
            // A thread ends early only by a panic, which is resumed when the threads are joined.
            Some(lane) => _ = lane.jobs.send(job),
        }
        self.pushed += 1;
    }

    /// The result of the oldest job, or `None` if none is under way.
    pub(crate) fn pop(&mut self) -> Option<D> {
        if self.popped == self.pushed {
            return None;
        }
        let lane = self.lanes.get(self.popped % self.lanes.len().max(1));
        self.popped += 1;
        match lane {
            None => self.done.pop_front(),
            Some(lane) => lane.results.recv().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes the numbers below 100 and takes their squares.
    fn squares(threads: usize) -> Vec<u64> {
        let square = |n: u64| {
            // Threads do not take the same time.
            (0..n % 7 * 1000).fold(n * n, |square, _| std::hint::black_box(square))
        };
        with_workers(threads, square, |workers| {
            let mut all = Vec::new();
            for n in 0..100 {
                if workers.is_full() {
                    all.extend(workers.pop());
                }
                workers.push(n);
            }
            all.extend(std::iter::from_fn(|| workers.pop()));
            all
        })
    }

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        let expected: Vec<u64> = (0..100).map(|n| n * n).collect();
        for threads in [0, 1, 2, 3, 8] {
            assert_eq!(squares(threads), expected, "{threads}");
        }
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_of_a_thread_goes_on() {
        with_workers(
            2,
            |n: u32| assert!(n != 5, "five"),
            |workers| {
                for n in 0..10 {
                    while workers.is_full() {
                        workers.pop();
                    }
                    workers.push(n);
                }
            },
        );
    }
}
