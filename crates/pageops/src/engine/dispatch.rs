//! Submits operations to queues and collects results: batches, records, drains, and the CPU for the rest.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::batch::{Batch, WaitingOperation};
use super::{
    BackendPolicy, Choice, EngineConfig, EngineStats, Op, OperationOutcome, OperationValue,
    QueueSpread, QueueStats, SeenFault,
};
use crate::Cpu;
use crate::device::{
    Completion, CompletionRecord, Descriptor, Portal, Status, Submit, opcode, wait,
};

/// A queue and its descriptors in flight.
struct DispatchQueue {
    portal: Box<dyn Portal>,
    flying: Vec<Batch>,
    bytes: u64,
    /// Descriptors in flight.
    entries: u32,
    drain: Option<Drain>,
    alive: bool,
    stats: QueueStats,
}

struct Drain {
    record: Box<CompletionRecord>,
    deadline: Instant,
}

/// The engine without a thread: the owner calls [`Dispatcher::poll`].
pub struct Dispatcher {
    config: EngineConfig,
    cpu: Cpu,
    queues: Vec<DispatchQueue>,
    waiting: VecDeque<WaitingOperation>,
    done: VecDeque<(u64, OperationOutcome)>,
    turn: usize,
    batches: u64,
    choices: BTreeMap<Choice, u64>,
    faults: BTreeMap<SeenFault, u64>,
}

impl Dispatcher {
    /// With these queues; without any, the CPU does everything.
    pub fn new(config: EngineConfig, portals: Vec<Box<dyn Portal>>) -> Dispatcher {
        let queue = |portal: Box<dyn Portal>| DispatchQueue {
            stats: QueueStats { name: portal.name().to_owned(), ..QueueStats::default() },
            portal,
            flying: Vec::new(),
            bytes: 0,
            entries: 0,
            drain: None,
            alive: true,
        };
        Dispatcher {
            config,
            cpu: Cpu::best(),
            queues: portals.into_iter().map(queue).collect(),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            turn: 0,
            batches: 0,
            choices: BTreeMap::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Adds operations. [`Dispatcher::pop`] returns their outcomes with these tags, in any order.
    ///
    /// # Safety
    ///
    /// What an operation reads stays readable and unwritten, and what it writes stays writable and unread, until
    /// its outcome was given or the dispatcher is gone.
    pub unsafe fn submit(&mut self, ops: impl IntoIterator<Item = (u64, Op)>) {
        let before = self.waiting.len();
        self.waiting.extend(ops.into_iter().map(|(tag, op)| WaitingOperation { op, tag }));
        let auto = self.config.policy == BackendPolicy::Auto;
        if auto && self.queues.iter().any(|q| q.alive) {
            let bytes: u64 = self.waiting.iter().skip(before).map(|w| w.op.bytes() as u64).sum();
            if bytes < self.config.least_bytes {
                for waiting in self.waiting.split_off(before) {
                    self.on_cpu(&waiting.op, waiting.tag, 0, Choice::CpuSmall, None);
                }
            }
        }
        self.poll();
    }

    /// Whether no operation is waiting or in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.queues.iter().all(|q| q.flying.is_empty())
    }

    /// The next available outcome, with its tag.
    pub fn pop(&mut self) -> Option<(u64, OperationOutcome)> {
        self.done.pop_front()
    }

    /// Checks records, submits waiting operations, handles timeouts. Does not block.
    pub fn poll(&mut self) {
        for i in 0..self.queues.len() {
            self.collect(i);
            self.watch(i);
        }
        self.hand_over();
    }

    /// Waits for an outcome, or until nothing is left to do. False if `bound` passed first.
    pub fn wait(&mut self, bound: Duration) -> bool {
        let start = Instant::now();
        loop {
            self.poll();
            if !self.done.is_empty() || self.is_idle() {
                return true;
            }
            let left = bound.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            // Wakes with the oldest batch of the fullest queue; others are noticed at the latest when the bound passes.
            let busiest = self.queues.iter().max_by_key(|q| q.flying.len());
            let Some(first) = busiest.and_then(|q| q.flying.first()) else { continue };
            let record = first.record();
            let look = left.min(Duration::from_micros(500));
            wait::until(std::ptr::from_ref(record).cast(), look, || record.read().is_some());
        }
    }

    /// Runs operations on borrowed memory and returns their outcomes in order.
    ///
    /// # Safety
    ///
    /// What the operations name is as [`Dispatcher::submit`] asks, for the time of this call.
    pub unsafe fn run(&mut self, ops: &[Op]) -> Vec<OperationOutcome> {
        let mut outcomes: Vec<Option<OperationOutcome>> = vec![None; ops.len()];
        let mut left = ops.len();
        // SAFETY: by the contract; this does not return before every operation has ended.
        unsafe { self.submit(ops.iter().enumerate().map(|(i, op)| (i as u64, *op))) };
        while left > 0 {
            self.wait(Duration::from_millis(100));
            while let Some((tag, outcome)) = self.pop() {
                outcomes[tag as usize] = Some(outcome);
                left -= 1;
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Statistics so far.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            choices: self.choices.clone(),
            faults: self.faults.clone(),
            batches: self.batches,
            queues: self.queues.iter().map(|q| q.stats.clone()).collect(),
        }
    }

    fn finish(
        &mut self,
        tag: u64,
        value: OperationValue,
        choice: Choice,
        fault: Option<SeenFault>,
    ) {
        *self.choices.entry(choice).or_default() += 1;
        if let Some(fault) = fault {
            *self.faults.entry(fault).or_default() += 1;
        }
        self.done.push_back((tag, OperationOutcome { value, choice, fault }));
    }

    fn on_cpu(&mut self, op: &Op, tag: u64, from: usize, choice: Choice, fault: Option<SeenFault>) {
        // SAFETY: the submitter keeps the operation's memory until its outcome was given, and no device
        // has it: it was never handed over, or has ended there, or its queue was drained or closed.
        let value = unsafe { op.on_cpu(self.cpu, from) };
        self.finish(tag, value, choice, fault);
    }

    /// Submits waiting operations to queues with space, or to the CPU.
    fn hand_over(&mut self) {
        while let Some(front) = self.waiting.front() {
            let bytes = front.op.transfer();
            if self.config.policy == BackendPolicy::Cpu {
                self.front_on_cpu(Choice::CpuByPolicy);
                continue;
            }
            if !self.queues.iter().any(|q| q.alive) {
                self.front_on_cpu(Choice::CpuNoQueue);
                continue;
            }
            let Some(bytes) = bytes else {
                self.front_on_cpu(Choice::CpuUnfit);
                continue;
            };
            let fits = |q: &DispatchQueue| bytes <= q.portal.limits().transfer;
            if !self.queues.iter().any(|q| q.alive && fits(q)) {
                self.front_on_cpu(Choice::CpuTooLarge);
                continue;
            }
            let Some(queue) = self.choose(bytes) else {
                if self.config.policy == BackendPolicy::Auto {
                    self.front_on_cpu(Choice::CpuBusy);
                    // A queue may have got space meanwhile.
                    for i in 0..self.queues.len() {
                        self.collect(i);
                    }
                    continue;
                }
                return;
            };
            self.hand_to(queue);
        }
    }

    fn front_on_cpu(&mut self, choice: Choice) {
        if let Some(waiting) = self.waiting.pop_front() {
            self.on_cpu(&waiting.op, waiting.tag, 0, choice, None);
        }
    }

    /// A queue with space.
    fn choose(&mut self, bytes: u64) -> Option<usize> {
        let config = &self.config;
        let room = |q: &DispatchQueue| {
            q.alive
                && q.drain.is_none()
                && q.flying.len() < config.in_flight as usize
                // One entry stays free for a drain.
                && q.entries + 1 < q.portal.limits().depth
                && bytes <= q.portal.limits().transfer
        };
        let count = self.queues.len();
        match config.spread {
            QueueSpread::RoundRobin => {
                let next =
                    (0..count).map(|i| (self.turn + i) % count).find(|i| room(&self.queues[*i]))?;
                self.turn = next + 1;
                Some(next)
            }
            QueueSpread::LeastLoaded => {
                let load = |q: &DispatchQueue| {
                    let near = config.node.is_none() || q.portal.limits().node == config.node;
                    (q.bytes + 1) << u32::from(!near)
                };
                // Among equals the next in turn.
                let order = (0..count).map(|i| (self.turn + i) % count);
                let best = order
                    .filter(|i| room(&self.queues[*i]))
                    .min_by_key(|i| load(&self.queues[*i]))?;
                self.turn = best + 1;
                Some(best)
            }
        }
    }

    /// Creates a batch for a queue and submits it.
    fn hand_to(&mut self, at: usize) {
        let limits = self.queues[at].portal.limits();
        // Divide the remaining work among the queues, so that the last batch does not delay the end.
        let alive = self.queues.iter().filter(|q| q.alive).count();
        let share = self.waiting.len().div_ceil(alive).max(2);
        let most = self.config.batch.min(limits.batch).max(1) as usize;
        let mut ops = Vec::new();
        while ops.len() < most.min(share) {
            match self.waiting.front() {
                Some(next) if next.op.transfer().is_some_and(|bytes| bytes <= limits.transfer) => {
                    ops.extend(self.waiting.pop_front());
                }
                _ => break,
            }
        }
        let batch = Batch::new(ops, Instant::now() + self.config.patience);
        let queue = &mut self.queues[at];
        let mut tries = 0;
        loop {
            // SAFETY: the batch and its records are kept in `flying` until each record is written, the queue is
            // drained, or it is closed; operations are kept by their submitter.
            match unsafe { queue.portal.submit(batch.descriptor()) } {
                Submit::Accepted => {
                    queue.stats.operations += batch.ops.len() as u64;
                    queue.stats.bytes += batch.bytes;
                    queue.bytes += batch.bytes;
                    queue.entries += 1;
                    queue.flying.push(batch);
                    self.batches += 1;
                    return;
                }
                Submit::Busy if tries < self.config.retries => {
                    tries += 1;
                    queue.stats.retries += 1;
                    std::hint::spin_loop();
                }
                Submit::Busy if !queue.flying.is_empty() => {
                    // It is full of our own descriptors: wait for them.
                    batch.ops.into_iter().rev().for_each(|w| self.waiting.push_front(w));
                    self.collect_or_rest(at);
                    return;
                }
                Submit::Busy => {
                    // It is full of other processes' descriptors.
                    for waiting in batch.ops {
                        self.on_cpu(&waiting.op, waiting.tag, 0, Choice::CpuBusy, None);
                    }
                    return;
                }
                Submit::Refused(error) => {
                    batch.ops.into_iter().rev().for_each(|w| self.waiting.push_front(w));
                    self.give_up(at, &format!("it takes nothing any more: {error}"));
                    return;
                }
            }
        }
    }

    /// Checks whether a full queue got space; otherwise yields.
    fn collect_or_rest(&mut self, at: usize) {
        let before = self.queues[at].flying.len();
        self.collect(at);
        self.watch(at);
        if self.queues[at].flying.len() == before {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Collects completed batches of a queue.
    fn collect(&mut self, at: usize) {
        let mut i = 0;
        while i < self.queues[at].flying.len() {
            if self.queues[at].flying[i].record().read().is_none() {
                i += 1;
                continue;
            }
            let batch = self.take(at, i);
            let late = Instant::now() > batch.deadline;
            self.settle(batch, if late { SeenFault::Late } else { SeenFault::Lost });
        }
    }

    fn take(&mut self, at: usize, i: usize) -> Batch {
        let queue = &mut self.queues[at];
        let batch = queue.flying.remove(i);
        queue.bytes -= batch.bytes;
        queue.entries -= 1;
        batch
    }

    /// Ends every operation of a batch that the device has let go; those without a record have had `missing`.
    fn settle(&mut self, batch: Batch, missing: SeenFault) {
        let late = Instant::now() > batch.deadline && missing == SeenFault::Late;
        let completions: Vec<Option<Completion>> = batch.completions().collect();
        for (waiting, completion) in batch.ops.iter().zip(completions) {
            let WaitingOperation { op, tag } = waiting;
            match completion {
                Some(c) if matches!(c.status, Status::Success | Status::FalsePredicate) => {
                    let fault = late.then_some(SeenFault::Late);
                    match op.value(&c) {
                        Some(value) => self.finish(*tag, value, Choice::Device, fault),
                        // An impossible result of the operation.
                        None => {
                            let fault = Some(SeenFault::Status(c.status));
                            self.on_cpu(op, *tag, 0, Choice::CpuAfterFault, fault);
                        }
                    }
                }
                Some(c) => {
                    let from = if c.status == Status::PageFault { op.resume_at(&c) } else { 0 };
                    let fault = Some(SeenFault::Status(c.status));
                    self.on_cpu(op, *tag, from, Choice::CpuAfterFault, fault);
                }
                None => {
                    let fault = if missing == SeenFault::Late { SeenFault::Lost } else { missing };
                    self.on_cpu(op, *tag, 0, Choice::CpuAfterFault, Some(fault));
                }
            }
        }
    }

    /// Drains a queue with a late batch, and closes it if that takes too long.
    fn watch(&mut self, at: usize) {
        let now = Instant::now();
        let queue = &mut self.queues[at];
        if !queue.alive {
            return;
        }
        match &queue.drain {
            None if queue.flying.iter().any(|b| now > b.deadline) => {
                let record = Box::new(CompletionRecord::default());
                let descriptor = Descriptor::new(opcode::DRAIN, &*record);
                queue.stats.drains += 1;
                // SAFETY: the record is kept until it is written or the portal is closed.
                match unsafe { queue.portal.submit(&descriptor) } {
                    Submit::Accepted => {
                        queue.drain = Some(Drain { record, deadline: now + self.config.drain });
                    }
                    Submit::Busy => {
                        if queue.flying.iter().any(|b| now > b.deadline + self.config.drain) {
                            self.give_up(at, "it is full and completes nothing");
                        }
                    }
                    Submit::Refused(error) => {
                        self.give_up(at, &format!("it cannot be drained: {error}"))
                    }
                }
            }
            None => {}
            Some(drain) if drain.record.read().is_some() => {
                // All earlier submissions have ended, with or without a record.
                queue.drain = None;
                while !self.queues[at].flying.is_empty() {
                    let batch = self.take(at, 0);
                    self.settle(batch, SeenFault::Late);
                }
            }
            Some(drain) if now > drain.deadline => self.give_up(at, "it did not drain in time"),
            Some(_) => {}
        }
    }

    /// Closes a queue and repeats its operations on the CPU.
    fn give_up(&mut self, at: usize, why: &str) {
        let queue = &mut self.queues[at];
        // From here on the device no longer accesses memory.
        queue.portal.close();
        queue.alive = false;
        queue.stats.dead = Some(why.to_owned());
        queue.drain = None;
        while !self.queues[at].flying.is_empty() {
            let batch = self.take(at, 0);
            self.settle(batch, SeenFault::QueueDead);
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // Records and batches are freed after this.
        for queue in &mut self.queues {
            queue.portal.close();
        }
    }
}
