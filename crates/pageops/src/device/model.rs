//! DSA in software: queues of descriptors, engines that execute them on their addresses, and scripted faults. For tests of the code that is
//! written for the hardware.

mod script;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use script::{FaultScript, ModelFault};

use super::rules::{self, QueueRules};
use super::{
    Completion, CompletionRecord, Descriptor, Portal, QueueLimits, Status, Submit, flag, opcode,
};
use crate::Cpu;
use crate::delta::{Delta, ENTRY};

/// Configuration of the model.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Name of its queue in reports.
    pub name: String,
    /// Engines of the queue.
    pub engines: usize,
    /// Descriptors the queue holds.
    pub depth: u32,
    /// ENQCMD with retry; otherwise a full queue drops submissions, as hardware does.
    pub shared: bool,
    /// Descriptors in a batch.
    pub batch: u32,
    /// Bytes of an operation.
    pub transfer: u64,
    /// Descriptors may ask that page faults are resolved.
    pub block_on_fault: bool,
    /// Reported NUMA node.
    pub node: Option<u32>,
    /// Minimum time of a descriptor.
    pub service: Duration,
    /// Faults.
    pub script: FaultScript,
}

impl Default for ModelConfig {
    fn default() -> ModelConfig {
        ModelConfig {
            name: "model".to_owned(),
            engines: 1,
            depth: 128,
            shared: false,
            batch: 32,
            transfer: 2 << 20,
            block_on_fault: true,
            node: None,
            service: Duration::ZERO,
            script: FaultScript::default(),
        }
    }
}

/// Counters of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenOperations {
    /// Descriptors executed or failed.
    pub descriptors: u64,
    /// Batches.
    pub batches: u64,
    /// Faults from the script.
    pub faults: u64,
    /// Submissions to a full dedicated queue: descriptors that were dropped.
    pub overflows: u64,
    /// Descriptors whose record could not be written.
    pub unreported: u64,
}

struct ModelState {
    /// With the times of submission.
    queue: VecDeque<(Descriptor, Instant)>,
    /// Descriptors in execution.
    busy: usize,
    next: u64,
    seen: SeenOperations,
    closed: bool,
    /// It has portals.
    opened: usize,
    /// Descriptors that an engine died of.
    stuck: usize,
}

struct Inner {
    config: ModelConfig,
    state: Mutex<ModelState>,
    /// Work is available, or the end is requested.
    work: Condvar,
    /// An engine ended a descriptor.
    ended: Condvar,
    absent: Mutex<Vec<Range<u64>>>,
    resolved: AtomicU64,
}

/// A device with one queue. Dropping it ends its engines.
pub struct DeviceModel {
    inner: Arc<Inner>,
    engines: Vec<JoinHandle<()>>,
}

/// The model's queue.
pub struct ModelPortal {
    inner: Arc<Inner>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceModel {
    /// Starts its engines.
    pub fn new(config: ModelConfig) -> DeviceModel {
        let state = ModelState {
            queue: VecDeque::new(),
            busy: 0,
            next: 0,
            seen: SeenOperations::default(),
            closed: false,
            opened: 0,
            stuck: 0,
        };
        let count = config.engines;
        let inner = Arc::new(Inner {
            config,
            state: Mutex::new(state),
            work: Condvar::new(),
            ended: Condvar::new(),
            absent: Mutex::new(Vec::new()),
            resolved: AtomicU64::new(0),
        });
        let engine = |_| {
            let inner = Arc::clone(&inner);
            std::thread::spawn(move || inner.run())
        };
        let engines = (0..count).map(engine).collect();
        DeviceModel { inner, engines }
    }

    /// Opens its queue.
    ///
    /// # Errors
    /// A dedicated queue is open already: it has one owner.
    pub fn portal(&self) -> std::io::Result<ModelPortal> {
        let mut state = lock(&self.inner.state);
        if !self.inner.config.shared && state.opened > 0 {
            return Err(std::io::ErrorKind::ResourceBusy.into());
        }
        state.opened += 1;
        Ok(ModelPortal { inner: Arc::clone(&self.inner) })
    }

    /// Counters so far.
    pub fn seen(&self) -> SeenOperations {
        lock(&self.inner.state).seen
    }

    /// Page faults that it resolved because a descriptor asked for that.
    pub fn resolved(&self) -> u64 {
        self.inner.resolved.load(Ordering::Relaxed)
    }

    /// Makes these addresses fault from now on.
    pub fn absent(&self, addresses: Range<u64>) {
        lock(&self.inner.absent).push(addresses);
    }
}

impl Drop for DeviceModel {
    fn drop(&mut self) {
        self.inner.close();
        for engine in self.engines.drain(..) {
            // A panic of an engine was already printed.
            let _ = engine.join();
        }
    }
}

impl Drop for ModelPortal {
    fn drop(&mut self) {
        lock(&self.inner.state).opened -= 1;
    }
}

impl Portal for ModelPortal {
    fn name(&self) -> &str {
        &self.inner.config.name
    }

    fn limits(&self) -> QueueLimits {
        let c = &self.inner.config;
        QueueLimits { depth: c.depth, batch: c.batch, transfer: c.transfer, node: c.node }
    }

    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submit {
        let mut state = lock(&self.inner.state);
        if state.closed {
            return Submit::Refused(std::io::ErrorKind::NotConnected.into());
        }
        if state.queue.len() + state.busy + state.stuck >= self.inner.config.depth as usize {
            if self.inner.config.shared {
                return Submit::Busy;
            }
            state.seen.overflows += 1;
            return Submit::Accepted;
        }
        state.queue.push_back((*descriptor, Instant::now()));
        self.inner.work.notify_one();
        Submit::Accepted
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

impl Inner {
    /// Stops the engines; returns when none accesses memory any more.
    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.queue.clear();
        self.work.notify_all();
        while state.busy > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One engine.
    fn run(&self) {
        let mut free = Instant::now();
        loop {
            let (descriptor, submitted) = {
                let mut state = lock(&self.state);
                loop {
                    if state.closed {
                        return;
                    }
                    // A drain waits until what was taken before it has ended.
                    let ready = match state.queue.front() {
                        Some((d, _)) => {
                            d.opcode() != opcode::DRAIN || state.busy + state.stuck == 0
                        }
                        None => false,
                    };
                    if ready && let Some(first) = state.queue.pop_front() {
                        state.busy += 1;
                        break first;
                    }
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            // Not now: a busy host wakes this thread late, and a device would not have waited.
            free = free.max(submitted);
            let alive = self.take(&descriptor, &mut free);
            let mut state = lock(&self.state);
            state.busy -= 1;
            // An engine that died never gives its descriptor back.
            state.stuck += usize::from(!alive);
            self.ended.notify_all();
            self.work.notify_all();
            if !alive {
                return;
            }
        }
    }

    /// Executes a descriptor from the queue. False if the engine died of it.
    fn take(&self, descriptor: &Descriptor, free: &mut Instant) -> bool {
        if descriptor.opcode() != opcode::BATCH {
            return self.one(descriptor, free).is_some();
        }
        lock(&self.state).seen.batches += 1;
        let count = descriptor.size;
        let fail = |status| Completion { status, ..completion() };
        if let Some((status, value)) = rules::refusal_of_any(descriptor, self.setup()) {
            self.report(descriptor, &Completion { value, ..fail(status) });
        } else if !descriptor.src.is_multiple_of(64) {
            self.report(descriptor, &fail(Status::ListMisaligned));
        } else if count < 2 || count > self.config.batch {
            self.report(descriptor, &fail(Status::BadCount));
        } else {
            return self.batch(descriptor, free);
        }
        true
    }

    /// Executes a batch: descriptors in order, until the list is not there any more, or one waits by its fence for others of which
    /// one did not succeed. False if the engine died of it.
    fn batch(&self, batch: &Descriptor, free: &mut Instant) -> bool {
        let hole = self.hole(batch.src, u64::from(batch.size) * 64);
        // The list is read up to the descriptor that has no page.
        let there = hole.map_or(batch.size, |at| ((at - batch.src) / 64) as u32);
        let mut all = true;
        for i in 0..there {
            let at: *const Descriptor = pointer(batch.src + 64 * u64::from(i)).cast_const().cast();
            // SAFETY: the submitter keeps the batch's list until it is completed.
            let one = unsafe { *at };
            if one.flags() & flag::FENCE != 0 && !all {
                let done = Completion { status: Status::BatchFailed, completed: i, ..completion() };
                self.report(batch, &done);
                return true;
            }
            // Batches cannot be nested.
            let done = if one.opcode() == opcode::BATCH {
                let bad = Completion { status: Status::BadOpcode, ..completion() };
                self.report(&one, &bad);
                Some(bad)
            } else {
                self.one(&one, free)
            };
            match done {
                Some(done) => all &= matches!(done.status, Status::Success),
                None => return false,
            }
        }
        let (status, fault_address) = match hole {
            Some(address) => (Status::BatchPageFault, address),
            None if all => (Status::Success, 0),
            None => (Status::BatchFailed, 0),
        };
        self.report(batch, &Completion { status, completed: there, fault_address, ..completion() });
        true
    }

    /// Executes one that is no batch; `None` if the engine died.
    fn one(&self, descriptor: &Descriptor, free: &mut Instant) -> Option<Completion> {
        let fault = {
            let mut state = lock(&self.state);
            // Drains are not counted by the script.
            let counted = descriptor.opcode() != opcode::DRAIN;
            let n = state.next;
            state.next += u64::from(counted);
            state.seen.descriptors += u64::from(counted);
            let fault = if counted { self.config.script.fault(n) } else { None };
            state.seen.faults += u64::from(fault.is_some());
            fault
        };
        if !self.config.service.is_zero() && descriptor.opcode() != opcode::DRAIN {
            *free += self.config.service;
            let now = Instant::now();
            // Oversleeping must not accumulate: `free` tracks the time owed.
            if *free > now + Duration::from_micros(200) {
                std::thread::sleep(*free - now);
            }
        }
        let done = match fault {
            Some(ModelFault::Dead) => return None,
            Some(ModelFault::Status(code)) => {
                let status = Status::from_code(code);
                Completion { status, write_fault: code & 0x80 != 0, ..completion() }
            }
            Some(ModelFault::PageFault { done, write }) => {
                let bytes = (u64::from(descriptor.size) * u64::from(done) / 256) as u32 & !63;
                let done = self.partly(descriptor, bytes, write);
                // It had its result before it came to the page.
                let spared = done.status != Status::PageFault;
                lock(&self.state).seen.faults -= u64::from(spared);
                done
            }
            _ => self.execute(descriptor),
        };
        match fault {
            Some(ModelFault::Lost) => return Some(done),
            Some(ModelFault::Late(time)) => std::thread::sleep(time),
            _ => {}
        }
        self.report(descriptor, &done);
        Some(done)
    }

    fn report(&self, descriptor: &Descriptor, completion: &Completion) {
        // Errors and page faults are reported though no record was requested.
        let ended = matches!(completion.status, Status::Success | Status::FalsePredicate);
        let requested = descriptor.flags() & flag::REQUEST_CR != 0 || !ended;
        if descriptor.flags() & flag::CR_ADDR_VALID == 0 || !requested {
            return;
        }
        if !descriptor.completion.is_multiple_of(32) {
            // Hardware writes this to its error log.
            lock(&self.state).seen.unreported += 1;
            return;
        }
        let record: *const CompletionRecord = pointer(descriptor.completion).cast_const().cast();
        // SAFETY: the submitter keeps the record until it is written.
        unsafe { &*record }.write(completion);
    }

    fn setup(&self) -> QueueRules {
        let ModelConfig { transfer, block_on_fault, .. } = self.config;
        QueueRules { transfer, block_on_fault }
    }

    /// The first faulting address of a range.
    fn hole(&self, start: u64, len: u64) -> Option<u64> {
        let absent = lock(&self.absent);
        let overlap = absent.iter().filter(|a| a.start < start + len && start < a.end);
        overlap.map(|a| a.start.max(start)).min()
    }

    /// Does the first bytes, as all operations do up to a page that is not there; the record has their result.
    fn partly(&self, descriptor: &Descriptor, bytes: u32, write: bool) -> Completion {
        let op = descriptor.opcode();
        let bytes = if op == opcode::CR_DELTA { bytes & !7 } else { bytes };
        let done = match op {
            _ if bytes == 0 => completion(),
            opcode::AP_DELTA => return self.apply(descriptor, Some(bytes)),
            opcode::CFLUSH => completion(),
            _ => self.perform(&Descriptor { size: bytes, ..*descriptor }),
        };
        // A comparison that is decided before it reaches the page succeeds.
        let ended = match op {
            opcode::COMPARE | opcode::COMPVAL => done.result == 1,
            opcode::CR_DELTA => done.result == 2,
            _ => false,
        };
        if ended {
            return done;
        }
        let base = if write || op == opcode::FILL { descriptor.dst } else { descriptor.src };
        Completion {
            status: Status::PageFault,
            write_fault: write,
            completed: bytes,
            fault_address: base + u64::from(bytes),
            ..done
        }
    }

    fn execute(&self, descriptor: &Descriptor) -> Completion {
        if let Some((status, value)) = rules::refusal(descriptor, self.setup()) {
            return Completion { status, value, ..completion() };
        }
        let size = u64::from(descriptor.size);
        // What is read, then what is written.
        let (src, dst) = (descriptor.src, descriptor.dst);
        let ranges: &[(u64, bool)] = match descriptor.opcode() {
            opcode::MEMMOVE | opcode::COPY_CRC => &[(src, false), (dst, true)],
            opcode::FILL | opcode::AP_DELTA => &[(dst, true)],
            opcode::COMPARE | opcode::CR_DELTA => &[(src, false), (dst, false)],
            opcode::CRCGEN | opcode::COMPVAL => &[(src, false)],
            opcode::DUALCAST => &[(src, false), (dst, true), (descriptor.operands[0], true)],
            _ => &[],
        };
        let first = ranges
            .iter()
            .filter_map(|(start, write)| Some((self.hole(*start, size)? - start, *write)));
        if let Some((bytes, write)) = first.min() {
            if descriptor.flags() & flag::BLOCK_ON_FAULT == 0 {
                return self.partly(descriptor, bytes as u32, write);
            }
            self.resolved.fetch_add(1, Ordering::Relaxed);
        }
        self.predicate(descriptor, self.perform(descriptor))
    }

    /// Another result than the one that was expected, if the descriptor says what it expects.
    fn predicate(&self, d: &Descriptor, done: Completion) -> Completion {
        let expected = match d.opcode() {
            opcode::CR_DELTA => d.operands[2] >> done.result & 1 == 1,
            _ => d.operands[0] as u8 & 1 == done.result,
        };
        let checks = d.flags() & flag::CHECK_RESULT != 0;
        if checks && !expected && done.status == Status::Success {
            return Completion { status: Status::FalsePredicate, ..done };
        }
        done
    }

    /// Applies a delta record, up to the first entry from this byte of the region on, if one is given.
    fn apply(&self, d: &Descriptor, end: Option<u32>) -> Completion {
        let len = d.operands[0] as u32 as usize;
        let mut last = None;
        for i in 0..len / ENTRY {
            // SAFETY: the submitter keeps the record and the region until it is completed; entries lie within the
            // record, and words are checked against the region.
            unsafe {
                let entry = pointer(d.src).cast_const().add(i * ENTRY);
                let word = u16::from_le(entry.cast::<u16>().read_unaligned());
                let completed = (i * ENTRY) as u32;
                let at = 8 * u32::from(word);
                let status = if last.is_some_and(|last| last >= word) {
                    Status::DeltaOrder
                } else if at >= d.size {
                    Status::DeltaRange
                } else if end.is_some_and(|end| at + 8 > end) {
                    let fault_address = d.dst + u64::from(at);
                    let status = Status::PageFault;
                    return Completion {
                        status,
                        write_fault: true,
                        completed,
                        fault_address,
                        ..completion()
                    };
                } else {
                    last = Some(word);
                    let to = pointer(d.dst).add(at as usize);
                    std::ptr::copy_nonoverlapping(entry.add(2), to, 8);
                    continue;
                };
                return Completion { status, completed, ..completion() };
            }
        }
        completion()
    }

    /// Executes it on its memory.
    fn perform(&self, d: &Descriptor) -> Completion {
        let cpu = Cpu::best();
        let size = d.size as usize;
        let ok = |result| Completion { status: Status::Success, result, ..completion() };
        // SAFETY: the submitter keeps its memory readable and writable until it is completed; sizes were
        // checked. Slices live within this function.
        unsafe {
            let bytes =
                |at: u64, len: usize| std::slice::from_raw_parts(pointer(at).cast_const(), len);
            match d.opcode() {
                opcode::MEMMOVE => {
                    std::ptr::copy(pointer(d.src).cast_const(), pointer(d.dst), size);
                    ok(0)
                }
                opcode::DUALCAST => {
                    std::ptr::copy(pointer(d.src).cast_const(), pointer(d.dst), size);
                    std::ptr::copy(pointer(d.src).cast_const(), pointer(d.operands[0]), size);
                    ok(0)
                }
                opcode::FILL => {
                    cpu.fill(std::slice::from_raw_parts_mut(pointer(d.dst), size), d.src);
                    ok(0)
                }
                opcode::COMPARE => {
                    ok(u8::from(cpu.compare(bytes(d.src, size), bytes(d.dst, size)).is_some()))
                }
                opcode::COMPVAL => {
                    ok(u8::from(cpu.mismatch_word(bytes(d.src, size), d.dst) < size))
                }
                opcode::CRCGEN => {
                    let crc = cpu.crc32c(d.operands[0] as u32, bytes(d.src, size));
                    Completion { value: u64::from(crc), ..ok(0) }
                }
                opcode::COPY_CRC => {
                    let to = std::slice::from_raw_parts_mut(pointer(d.dst), size);
                    let crc = cpu.copy_crc(to, bytes(d.src, size), d.operands[0] as u32);
                    Completion { value: u64::from(crc), ..ok(0) }
                }
                opcode::CR_DELTA => {
                    let cap = d.operands[1] as u32 as usize;
                    let record = std::slice::from_raw_parts_mut(pointer(d.operands[0]), cap);
                    match cpu.delta_create(bytes(d.src, size), bytes(d.dst, size), record) {
                        Ok(Delta::Equal) => ok(0),
                        Ok(Delta::Differs(len)) => Completion { value: len as u64, ..ok(1) },
                        Ok(Delta::Overflow(len)) => Completion { value: len as u64, ..ok(2) },
                        Err(_) => Completion { status: Status::BadSize, ..completion() },
                    }
                }
                opcode::AP_DELTA => self.apply(d, None),
                _ => ok(0),
            }
        }
    }
}

fn completion() -> Completion {
    Completion {
        status: Status::Success,
        write_fault: false,
        result: 0,
        completed: 0,
        fault_address: 0,
        value: 0,
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
