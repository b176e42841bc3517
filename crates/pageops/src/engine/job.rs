//! The engine on a separate thread: any thread submits jobs, and polls, waits for or awaits them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Dispatcher, EngineConfig, EngineStats, Op, OperationOutcome};
use crate::device::Portal;

/// Operations submitted together.
pub struct OperationsJob {
    shared: Arc<SharedJob>,
}

struct SharedJob {
    state: Mutex<JobProgress>,
    done: Condvar,
}

#[derive(Default)]
struct JobProgress {
    outcomes: Vec<Option<OperationOutcome>>,
    left: usize,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobProgress {
    /// The outcomes in the order of the operations, once all are available.
    fn ended(&self) -> Option<Vec<OperationOutcome>> {
        (self.left == 0).then(|| self.outcomes.iter().copied().flatten().collect())
    }
}

impl OperationsJob {
    /// The outcomes, if all are available; for every call and every thread.
    pub fn poll(&self) -> Option<Vec<OperationOutcome>> {
        lock(&self.shared.state).ended()
    }

    /// The engine ended before the job did: its thread panicked. The job never gets its outcomes.
    pub fn is_abandoned(&self) -> bool {
        // The engine keeps its half while the job is unfinished.
        let state = lock(&self.shared.state);
        state.left > 0 && Arc::strong_count(&self.shared) == 1
    }

    /// Waits for the outcomes, as [`OperationsJob::poll`] gives them; `None` if `bound` passed first.
    pub fn wait(&self, bound: Duration) -> Option<Vec<OperationOutcome>> {
        // A bound beyond the clock's range is no bound.
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        let deadline = Instant::now() + bound.min(YEAR);
        let mut state = lock(&self.shared.state);
        while state.left > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.ended()
    }
}

impl Future for OperationsJob {
    type Output = Vec<OperationOutcome>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<OperationOutcome>> {
        let mut state = lock(&self.shared.state);
        match state.ended() {
            Some(outcomes) => Poll::Ready(outcomes),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

enum JobMessage {
    Job(Vec<Op>, Arc<SharedJob>),
    Stats(Sender<EngineStats>),
}

/// An engine with its thread. It finishes submitted jobs when dropped.
pub struct ThreadedEngine {
    sender: Option<Sender<JobMessage>>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadedEngine {
    /// Starts it on these queues.
    pub fn start(config: EngineConfig, portals: Vec<Box<dyn Portal>>) -> ThreadedEngine {
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || {
            let dispatcher = Dispatcher::new(config, portals);
            JobRunner { dispatcher, jobs: HashMap::new(), next: 0 }.run(&receiver);
        });
        ThreadedEngine { sender: Some(sender), thread: Some(thread) }
    }

    /// Submits operations.
    ///
    /// # Safety
    ///
    /// What the operations read stays readable and unwritten, and what they write stays writable and unread, until
    /// the job has its outcomes or the engine was dropped; dropping or forgetting the job ends nothing.
    pub unsafe fn submit(&self, ops: Vec<Op>) -> OperationsJob {
        let outcomes = vec![None; ops.len()];
        let progress = JobProgress { left: ops.len(), outcomes, waker: None };
        let shared = Arc::new(SharedJob { state: Mutex::new(progress), done: Condvar::new() });
        if let Some(sender) = &self.sender {
            // The thread ends only after this sender.
            let _ = sender.send(JobMessage::Job(ops, Arc::clone(&shared)));
        }
        OperationsJob { shared }
    }

    /// Statistics so far.
    pub fn stats(&self) -> EngineStats {
        let (sender, receiver) = channel();
        if let Some(messages) = &self.sender {
            let _ = messages.send(JobMessage::Stats(sender));
        }
        receiver.recv_timeout(Duration::from_secs(10)).unwrap_or_default()
    }
}

impl Drop for ThreadedEngine {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was already printed.
            let _ = thread.join();
        }
    }
}

struct JobRunner {
    dispatcher: Dispatcher,
    /// By the tag of the first operation: (job, operations not yet ended).
    jobs: HashMap<u64, (Arc<SharedJob>, usize)>,
    next: u64,
}

/// Most operations of a job: the low bits of a tag.
const BITS: u32 = 32;

impl JobRunner {
    fn run(&mut self, receiver: &Receiver<JobMessage>) {
        let mut open = true;
        while open || !self.dispatcher.is_idle() || !self.jobs.is_empty() {
            if self.dispatcher.is_idle() && self.jobs.is_empty() && open {
                // Nothing to do: wait for a message without polling.
                match receiver.recv() {
                    Ok(message) => self.take(message),
                    Err(_) => open = false,
                }
                continue;
            }
            loop {
                match receiver.try_recv() {
                    Ok(message) => self.take(message),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        open = false;
                        break;
                    }
                }
            }
            self.dispatcher.wait(Duration::from_millis(1));
            self.give_out();
            if let Err(RecvTimeoutError::Disconnected) =
                receiver.recv_timeout(Duration::ZERO).map(|m| self.take(m))
            {
                open = false;
            }
        }
    }

    fn take(&mut self, message: JobMessage) {
        match message {
            JobMessage::Stats(sender) => {
                // The requester may have ended.
                let _ = sender.send(self.dispatcher.stats());
            }
            JobMessage::Job(ops, shared) => {
                if ops.is_empty() {
                    return;
                }
                let number = self.next;
                self.next += 1;
                self.jobs.insert(number, (shared, ops.len()));
                let tagged =
                    ops.into_iter().enumerate().map(|(i, op)| (number << BITS | i as u64, op));
                // SAFETY: by the contract of `Engine::submit`.
                unsafe { self.dispatcher.submit(tagged) };
                self.give_out();
            }
        }
    }

    fn give_out(&mut self) {
        let mut touched: HashMap<u64, Vec<(usize, OperationOutcome)>> = HashMap::new();
        while let Some((tag, outcome)) = self.dispatcher.pop() {
            let place = (tag & ((1 << BITS) - 1)) as usize;
            touched.entry(tag >> BITS).or_default().push((place, outcome));
        }
        for (number, outcomes) in touched {
            let Some((shared, left)) = self.jobs.get_mut(&number) else { continue };
            *left -= outcomes.len();
            let ended = *left == 0;
            let mut state = lock(&shared.state);
            for (place, outcome) in outcomes {
                state.outcomes[place] = Some(outcome);
                state.left -= 1;
            }
            if ended {
                shared.done.notify_all();
                if let Some(waker) = state.waker.take() {
                    waker.wake();
                }
                drop(state);
                self.jobs.remove(&number);
            }
        }
    }
}
