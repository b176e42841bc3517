//! Work on several threads whose results come back in the order of the jobs.
//!
//! ```text
//!  push 0 1 2 3 4 5 ──> queue ──┬─> thread A: 0 2 5 ──┬──> pop 0 1 2 3 4 5
//!                               ├─> thread B: 1 4   ──┤
//!                               └─> who waits in pop: 3
//! ```
//!
//! Each thread takes the oldest job that nobody does yet. Who waits for a result does jobs meanwhile, so that no processor is idle while
//! there are any. Without threads all jobs are done in `pop`: whatever the number of threads, the same jobs are
//! done in the same way.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Jobs of one thread that are under way.
const DEPTH: usize = 4;

/// The end that hands out jobs and takes results.
pub(crate) struct Workers<'w, J, D> {
    work: &'w (dyn Fn(J) -> D + Sync),
    desk: &'w Desk<J, D>,
    threads: usize,
    /// Jobs handed out and results taken so far.
    pushed: usize,
    popped: usize,
}

/// Where jobs and results lie.
struct Desk<J, D> {
    state: Mutex<WorkersState<J, D>>,
    /// There is a job, or there will be none.
    todo: Condvar,
    /// The oldest result is there, or will never be.
    done: Condvar,
}

struct WorkersState<J, D> {
    /// Jobs that nobody does yet, by their numbers.
    jobs: VecDeque<(usize, J)>,
    /// Results from the oldest on that was not taken.
    results: VecDeque<Option<D>>,
    /// The number of the oldest.
    first: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Somebody waits for the oldest result.
    is_awaited: bool,
    /// No more jobs come, or a thread panicked.
    is_over: bool,
}

/// Calls `drive` with this number of threads that do `work`.
pub(crate) fn with_workers<J: Send, D: Send, R>(
    threads: usize,
    work: impl Fn(J) -> D + Sync,
    drive: impl FnOnce(&mut Workers<'_, J, D>) -> R,
) -> R {
    let work: &(dyn Fn(J) -> D + Sync) = &work;
    let desk = &Desk::new();
    thread::scope(|scope| {
        // However it ends, the threads end too.
        let _end = WorkersEnd(desk);
        for _ in 0..threads {
            scope.spawn(move || {
                let _end = WorkersEnd(desk);
                while let Some((number, job)) = desk.job() {
                    desk.finish(number, work(job));
                }
            });
        }
        drive(&mut Workers { work, desk, threads, pushed: 0, popped: 0 })
    })
}

/// Ends all threads when one ends.
struct WorkersEnd<'w, J, D>(&'w Desk<J, D>);

impl<J, D> Drop for WorkersEnd<'_, J, D> {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.todo.notify_all();
        self.0.done.notify_all();
    }
}

impl<J, D> Desk<J, D> {
    fn new() -> Desk<J, D> {
        let state = WorkersState {
            jobs: VecDeque::new(),
            results: VecDeque::new(),
            first: 0,
            idle: 0,
            is_awaited: false,
            is_over: false,
        };
        Desk { state: Mutex::new(state), todo: Condvar::new(), done: Condvar::new() }
    }

    /// No job is done under the lock, so a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, WorkersState<J, D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest job that nobody does; waits for one. `None`: there will be none.
    fn job(&self) -> Option<(usize, J)> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            state = self.todo.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn push(&self, number: usize, job: J) {
        let mut state = self.lock();
        state.jobs.push_back((number, job));
        state.results.push_back(None);
        let is_idle = state.idle > 0;
        drop(state);
        // Without anybody who waits it would be a system call for nothing.
        if is_idle {
            self.todo.notify_one();
        }
    }

    fn finish(&self, number: usize, result: D) {
        let mut state = self.lock();
        let at = number - state.first;
        if let Some(slot) = state.results.get_mut(at) {
            *slot = Some(result);
        }
        let is_awaited = at == 0 && state.is_awaited;
        drop(state);
        if is_awaited {
            self.done.notify_one();
        }
    }

    /// The oldest result. While it is not there, other jobs are done. `None`: the thread that did it panicked.
    fn take(&self, work: &(dyn Fn(J) -> D + Sync)) -> Option<D> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.results.front_mut().and_then(Option::take) {
                state.results.pop_front();
                state.first += 1;
                return Some(result);
            }
            if state.is_over {
                return None;
            }
            state = match state.jobs.pop_front() {
                Some((number, job)) => {
                    drop(state);
                    self.finish(number, work(job));
                    self.lock()
                }
                None => {
                    state.is_awaited = true;
                    let mut state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.is_awaited = false;
                    state
                }
            };
        }
    }
}

impl<J, D> Workers<'_, J, D> {
    /// As many jobs are under way as there may be: take a result first.
    pub(crate) fn is_full(&self) -> bool {
        self.pushed - self.popped >= self.most()
    }

    /// How many jobs may be under way.
    pub(crate) fn most(&self) -> usize {
        match self.threads {
            0 => 1,
            // Who pops works too.
            threads => (threads + 1) * DEPTH,
        }
    }

    /// Hands out a job.
    pub(crate) fn push(&mut self, job: J) {
        self.desk.push(self.pushed, job);
        self.pushed += 1;
    }

    /// The result of the oldest job, or `None` if none is under way.
    pub(crate) fn pop(&mut self) -> Option<D> {
        if self.popped == self.pushed {
            return None;
        }
        self.popped += 1;
        // If a thread panicked there is no result; the panic is resumed when the threads are joined.
        self.desk.take(self.work)
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
    #[should_panic]
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
                while workers.pop().is_some() {}
            },
        );
    }
}
