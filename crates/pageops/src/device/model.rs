//! DSA in software: queues that hold descriptors, engines that execute them on the addresses that they name, and
//! faults by script. For tests of everything that is written for the real one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Completion, Descriptor, Limits, Portal, Record, Status, Submit, flag, opcode};
use crate::delta::{self, Delta};
use crate::{Cpu, delta::MAX_REGION};

/// What the model is like.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of its queue in reports.
    pub name: String,
    /// Engines that take from the queue.
    pub engines: usize,
    /// Descriptors the queue holds.
    pub depth: u32,
    /// ENQCMD with retry; else a full queue drops what comes, as hardware does.
    pub shared: bool,
    /// Descriptors in a batch.
    pub batch: u32,
    /// Bytes of an operation.
    pub transfer: u64,
    /// NUMA node that it says it is on.
    pub node: Option<u32>,
    /// Time that an engine takes for a descriptor, at least.
    pub service: Duration,
    /// What goes wrong.
    pub script: Script,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "model".to_owned(),
            engines: 1,
            depth: 128,
            shared: false,
            batch: 32,
            transfer: 2 << 20,
            node: None,
            service: Duration::ZERO,
            script: Script::default(),
        }
    }
}

/// What goes wrong with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A page is not there after this share (in 256ths) of the bytes.
    PageFault {
        /// How much was done.
        done: u8,
        /// It was to be written.
        write: bool,
    },
    /// It ends with this status, and nothing was done.
    Status(u8),
    /// It is done, and no record is written.
    Lost,
    /// Its record comes later.
    Late(Duration),
    /// The engine stops for good, before it.
    Dead,
}

/// Faults by the descriptor's number (those of batches count, batches do not), and at random.
#[derive(Clone, Debug, Default)]
pub struct Script {
    at: Vec<(u64, Fault)>,
    random: Option<(u64, u64, Vec<Fault>)>,
}

impl Script {
    /// A fault of the n-th descriptor, from 0.
    pub fn at(mut self, n: u64, fault: Fault) -> Script {
        self.at.push((n, fault));
        self
    }

    /// One in `every` descriptors has one of `faults`; `seed` makes it the same every time.
    pub fn random(mut self, every: u64, seed: u64, faults: &[Fault]) -> Script {
        self.random = Some((every, seed, faults.to_vec()));
        self
    }

    fn fault(&self, n: u64) -> Option<Fault> {
        if let Some((_, fault)) = self.at.iter().find(|(at, _)| *at == n) {
            return Some(*fault);
        }
        let (every, seed, faults) = self.random.as_ref()?;
        let mut x = (n ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
        x.is_multiple_of(*every).then(|| faults[(x / every) as usize % faults.len()])
    }
}

/// What the model saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
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

struct State {
    queue: VecDeque<Descriptor>,
    /// Taken by an engine and not ended.
    busy: usize,
    next: u64,
    seen: Seen,
    closed: bool,
    /// Descriptors that an engine died of.
    stuck: usize,
}

struct Inner {
    config: Config,
    state: Mutex<State>,
    /// Something to do, or an end.
    work: Condvar,
    /// An engine ended a descriptor.
    ended: Condvar,
    absent: Mutex<Vec<Range<u64>>>,
    resolved: AtomicU64,
}

/// A device with one queue. Dropping it ends its engines.
pub struct Model {
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

impl Model {
    /// Starts its engines.
    pub fn new(config: Config) -> Model {
        let state = State {
            queue: VecDeque::new(),
            busy: 0,
            next: 0,
            seen: Seen::default(),
            closed: false,
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
        Model { inner, engines }
    }

    /// Its queue.
    pub fn portal(&self) -> ModelPortal {
        ModelPortal { inner: Arc::clone(&self.inner) }
    }

    /// What it saw so far.
    pub fn seen(&self) -> Seen {
        lock(&self.inner.state).seen
    }

    /// Page faults that it resolved because a descriptor asked for that.
    pub fn resolved(&self) -> u64 {
        self.inner.resolved.load(Ordering::Relaxed)
    }

    /// From now on these addresses are not there.
    pub fn absent(&self, addresses: Range<u64>) {
        lock(&self.inner.absent).push(addresses);
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.inner.close();
        for engine in self.engines.drain(..) {
            // An engine that panicked has said so.
            let _ = engine.join();
        }
    }
}

impl Portal for ModelPortal {
    fn name(&self) -> &str {
        &self.inner.config.name
    }

    fn limits(&self) -> Limits {
        let c = &self.inner.config;
        Limits { depth: c.depth, batch: c.batch, transfer: c.transfer, node: c.node }
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
        state.queue.push_back(*descriptor);
        self.inner.work.notify_one();
        Submit::Accepted
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

impl Inner {
    /// Ends everything; returns when no engine touches memory any more.
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
            let descriptor = {
                let mut state = lock(&self.state);
                loop {
                    if state.closed {
                        return;
                    }
                    // A drain waits until what was taken before it has ended.
                    let ready = match state.queue.front() {
                        Some(d) => d.opcode() != opcode::DRAIN || state.busy + state.stuck == 0,
                        None => false,
                    };
                    if ready && let Some(descriptor) = state.queue.pop_front() {
                        state.busy += 1;
                        break descriptor;
                    }
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            free = free.max(Instant::now());
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
        if !descriptor.src.is_multiple_of(64) {
            self.report(descriptor, &fail(Status::ListMisaligned));
        } else if count < 2 || count > self.config.batch {
            self.report(descriptor, &fail(Status::BadCount));
        } else if self.hole(descriptor.src, u64::from(count) * 64).is_some() {
            self.report(descriptor, &fail(Status::BatchPageFault));
        } else {
            let mut all = true;
            for i in 0..u64::from(count) {
                let at: *const Descriptor = pointer(descriptor.src + 64 * i).cast_const().cast();
                // SAFETY: whoever submitted the batch keeps its list until it is completed.
                let one = unsafe { *at };
                // No batch in a batch.
                let done = if one.opcode() == opcode::BATCH {
                    let bad = fail(Status::BadOpcode);
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
            let status = if all { Status::Success } else { Status::BatchFailed };
            self.report(descriptor, &Completion { completed: count, ..fail(status) });
        }
        true
    }

    /// Executes one that is no batch; `None` if the engine died.
    fn one(&self, descriptor: &Descriptor, free: &mut Instant) -> Option<Completion> {
        let fault = {
            let mut state = lock(&self.state);
            // Drains are the driver's own; the script counts work.
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
            // Sleeping a little too long each time must not add up: time is owed to `free`.
            if *free > now + Duration::from_micros(200) {
                std::thread::sleep(*free - now);
            }
        }
        let done = match fault {
            Some(Fault::Dead) => return None,
            Some(Fault::Status(code)) => {
                let status = Status::from_code(code);
                Completion { status, write_fault: code & 0x80 != 0, ..completion() }
            }
            Some(Fault::PageFault { done, write }) => {
                let bytes = (u64::from(descriptor.size) * u64::from(done) / 256) as u32 & !63;
                self.partly(descriptor, bytes, write)
            }
            _ => self.execute(descriptor),
        };
        match fault {
            Some(Fault::Lost) => return Some(done),
            Some(Fault::Late(time)) => std::thread::sleep(time),
            _ => {}
        }
        self.report(descriptor, &done);
        Some(done)
    }

    fn report(&self, descriptor: &Descriptor, completion: &Completion) {
        let wanted = flag::CR_ADDR_VALID | flag::REQUEST_CR;
        if descriptor.flags() & wanted != wanted {
            return;
        }
        if !descriptor.completion.is_multiple_of(32) {
            // Hardware puts this into its error log.
            lock(&self.state).seen.unreported += 1;
            return;
        }
        let record: *const Record = pointer(descriptor.completion).cast_const().cast();
        // SAFETY: whoever submitted it keeps the record until it is written.
        unsafe { &*record }.write(completion);
    }

    /// Where a range is first not there.
    fn hole(&self, start: u64, len: u64) -> Option<u64> {
        let absent = lock(&self.absent);
        let overlap = absent.iter().filter(|a| a.start < start + len && start < a.end);
        overlap.map(|a| a.start.max(start)).min()
    }

    /// Copies and fills stop after some bytes, as they do at a page that is not there; others have done nothing.
    fn partly(&self, descriptor: &Descriptor, bytes: u32, write: bool) -> Completion {
        let can = matches!(descriptor.opcode(), opcode::MEMMOVE | opcode::FILL);
        let bytes = if can { bytes } else { 0 };
        if bytes > 0 {
            self.perform(&Descriptor { size: bytes, ..*descriptor });
        }
        let base = if write { descriptor.dst } else { descriptor.src };
        Completion {
            status: Status::PageFault,
            write_fault: write,
            completed: bytes,
            fault_address: base + u64::from(bytes),
            ..completion()
        }
    }

    fn execute(&self, descriptor: &Descriptor) -> Completion {
        let fail = |status| Completion { status, ..completion() };
        let unknown = descriptor.flags() & !flag::ALL;
        if unknown != 0 {
            return Completion { value: u64::from(unknown), ..fail(Status::BadFlags) };
        }
        let size = u64::from(descriptor.size);
        let op = descriptor.opcode();
        match op {
            opcode::NOOP | opcode::DRAIN => return fail(Status::Success),
            opcode::MEMMOVE..=opcode::DUALCAST
            | opcode::CRCGEN
            | opcode::COPY_CRC
            | opcode::CFLUSH => {}
            _ => return fail(Status::BadOpcode),
        }
        if size == 0 || size > self.config.transfer {
            return fail(Status::BadSize);
        }
        if op == opcode::CR_DELTA && (size > MAX_REGION as u64 || !size.is_multiple_of(8)) {
            return fail(Status::BadSize);
        }
        let overlap = |a: u64, b: u64| a < b + size && b < a + size;
        let overlaps = match op {
            opcode::DUALCAST => overlap(descriptor.dst, descriptor.operands[0]),
            opcode::COPY_CRC => overlap(descriptor.src, descriptor.dst),
            _ => false,
        };
        if overlaps {
            return fail(Status::Overlap);
        }
        // What is read, then what is written.
        let (src, dst) = (descriptor.src, descriptor.dst);
        let ranges: &[(u64, bool)] = match op {
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
        self.perform(descriptor)
    }

    /// Does it on the memory that it names.
    fn perform(&self, d: &Descriptor) -> Completion {
        let cpu = Cpu::best();
        let size = d.size as usize;
        let ok = |result| Completion { status: Status::Success, result, ..completion() };
        // SAFETY: whoever submitted it keeps what it names readable and writable until it is completed; sizes were
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
                opcode::AP_DELTA => {
                    let record = bytes(d.src, d.operands[0] as u32 as usize);
                    match delta::apply(record, std::slice::from_raw_parts_mut(pointer(d.dst), size))
                    {
                        Ok(()) => ok(0),
                        Err(_) => Completion { status: Status::BadSize, ..completion() },
                    }
                }
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
