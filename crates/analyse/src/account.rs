//! Events in time order -> counted exits, accesses and time per interval.
//!
//! One state per vCPU thread. An exit is open from its `kvm_exit` to the next `kvm_entry` of the thread;
//! what its thread reports in between belongs to it:
//!
//! ```text
//!  guest │kvm_exit  kvm_nested_vmexit?  kvm_msr | kvm_pio | kvm_mmio ...  kvm_userspace_exit?  │kvm_entry│ guest
//!        │◄──────────────── exit-kernel ──────────────────────────────────►│◄── exit-user ─────►│
//! ```
//!
//! The level of an exit, its detail and its outcome are known only when it ends, so it is counted then,
//! in the interval of its end.

mod gaps;
mod thread;
mod waiting;

use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{
    AccessKey, AccessRow, Detail, DetailKind, Event, Exit, ExitKey, ExitRow, Kind, Level, Losses,
    MAX_THREADS, NO_VCPU, Reason, RowSink, Tally, Vm, userspace,
};

use crate::vms::Vms;
use gaps::Gaps;
use thread::{OpenExit, Thread};
use waiting::Waiting;

/// Limit of distinct details.
const MAX_KEYS: usize = 16_384;

/// `KVM_MEMORY_ATTRIBUTE_PRIVATE`.
const ATTRIBUTE_PRIVATE: u64 = 1 << 3;
const PAGE: u64 = 4096;
/// Pages of 4 KiB, 2 MiB and 1 GiB.
const MOST_LEVELS: u8 = 3;

/// Choices of an accounting.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Length of the intervals, ns (at least 1).
    pub interval_ns: u64,
    /// The events are those of all exits. For a selection, the events in between are unknown: where a vCPU's time went,
    /// and which exit of L2 was being handled.
    pub all_exits: bool,
}

impl Default for Options {
    /// 100 ms.
    fn default() -> Self {
        Options { interval_ns: 100_000_000, all_exits: true }
    }
}

/// Pairs events and counts.
#[derive(Debug)]
pub struct Accountant<R> {
    sink: R,
    interval_ns: u64,
    all_exits: bool,
    interval_start: u64,
    interval_end: u64,
    threads: Vec<Thread>,
    by_tid: FxHashMap<u32, usize>,
    /// Threads with an exit or entry in this interval.
    active: Vec<usize>,
    gaps: Gaps,
    /// Slots of `threads` whose thread ended in this interval, and those that can be taken again.
    ended: Vec<usize>,
    free: Vec<usize>,
    /// The thread of the event before: the next is most often its.
    last: usize,
    vms: Vms,
    exits: Counts<ExitKey>,
    accesses: Counts<AccessKey>,
    waiting: Waiting,
    saw_wakeup: bool,
    losses: Losses,
}

impl<R: RowSink> Accountant<R> {
    /// An accounting that hands its rows to `sink`.
    pub fn new(options: Options, sink: R) -> Accountant<R> {
        Accountant {
            sink,
            interval_ns: options.interval_ns.max(1),
            all_exits: options.all_exits,
            interval_start: 0,
            interval_end: 0,
            threads: Vec::new(),
            by_tid: HashMap::with_hasher(FxBuildHasher),
            active: Vec::new(),
            gaps: Gaps::new(),
            ended: Vec::new(),
            free: Vec::new(),
            last: usize::MAX,
            vms: Vms::default(),
            exits: Counts::new(),
            accesses: Counts::new(),
            waiting: Waiting::new(),
            saw_wakeup: false,
            losses: Losses::default(),
        }
    }

    /// Where the rows go.
    pub fn sink_mut(&mut self) -> &mut R {
        &mut self.sink
    }

    /// The next event.
    #[inline]
    pub fn event(&mut self, event: &Event) {
        match event.kind {
            Kind::Exit { reason, info1, info2 } => {
                let open = OpenExit::new(event.time_ns, reason, info1, info2);
                self.kvm_exit(event, open);
            }
            Kind::Entry => self.kvm_entry(event),
            Kind::Switch { next_tid, preempted } => self.switch(event, next_tid, preempted),
            Kind::Lost { count } => self.lost(event.cpu, count),
            Kind::ThreadEnd => self.thread_end(event.tid),
            _ => self.within_exit(event),
        }
    }

    /// Exits that the recorder counted already.
    pub fn counted(&mut self, row: &ExitRow) {
        self.sink.exit(row);
    }

    /// The name of a thread.
    pub fn thread_name(&mut self, tid: u32, name: &str) {
        self.vms.name(tid, name);
    }

    /// Ends the last interval. Returns the sink, the VMs seen, and what could not be used.
    pub fn finish(mut self) -> (R, Vec<Vm>, Losses) {
        for thread in &self.threads {
            self.losses.unpaired_exits += u64::from(thread.open.is_some());
        }
        self.end_interval();
        let vms = self.vms.list();
        (self.sink, vms, self.losses)
    }

    /// The state of the event's thread; a new one for a thread not seen yet, or `None` when there are too many.
    #[inline]
    fn thread(&mut self, event: &Event) -> Option<usize> {
        let index = match self.threads.get(self.last) {
            Some(thread) if thread.tid == event.tid => self.last,
            _ => match self.by_tid.get(&event.tid) {
                Some(&index) => index,
                None => self.new_thread(event)?,
            },
        };
        self.last = index;
        self.settle(index);
        self.runs(index, event.time_ns);
        let thread = &mut self.threads[index];
        if event.vcpu != NO_VCPU && thread.vcpu != event.vcpu {
            let was_unknown = thread.vcpu == NO_VCPU;
            thread.vcpu = event.vcpu;
            if was_unknown {
                self.join_vm(event, index);
            }
        }
        self.threads[index].cpu = event.cpu;
        Some(index)
    }

    /// A thread has an event: it runs, whether or not the switch back was recorded.
    #[inline]
    fn runs(&mut self, index: usize, now_ns: u64) {
        if self.threads[index].switched_out.is_some() {
            self.ends_wait(index, now_ns);
        }
    }

    #[cold]
    fn ends_wait(&mut self, index: usize, now_ns: u64) {
        let (cpu, tid) = (self.threads[index].cpu, self.threads[index].tid);
        self.waiting.ended(cpu, now_ns, tid, &mut self.threads);
        self.threads[index].came_back(now_ns);
    }

    #[cold]
    fn join_vm(&mut self, event: &Event, index: usize) {
        let joined = self.vms.join(event.pid, event.tid, event.vcpu);
        self.threads[index].vm = joined.vm;
        self.threads[index].is_merged = joined.is_merged;
        if let Some(vm) = self.vms.get(joined.vm).filter(|_| joined.is_new) {
            self.sink.appeared(&vm);
        }
    }

    #[cold]
    fn new_thread(&mut self, event: &Event) -> Option<usize> {
        let thread = Thread::new(event.tid, self.gaps.last());
        let index = match self.free.pop() {
            Some(index) => {
                self.threads[index] = thread;
                index
            }
            None if self.threads.len() < MAX_THREADS => {
                self.threads.push(thread);
                self.threads.len() - 1
            }
            None => {
                self.losses.threads_dropped += 1;
                return None;
            }
        };
        self.by_tid.insert(event.tid, index);
        Some(index)
    }

    /// A thread has an event: it learns of the losses since the one before.
    #[inline]
    fn settle(&mut self, index: usize) {
        if self.threads[index].gaps_seen != self.gaps.last() {
            self.settle_gaps(index);
        }
    }

    #[cold]
    fn settle_gaps(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        if self.gaps.since(thread.gaps_seen, thread.cpu) {
            // What is open cannot be trusted.
            self.losses.unpaired_exits += u64::from(thread.forget());
        }
        thread.gaps_seen = self.gaps.last();
    }

    /// Notes that a thread has time to hand out at the end of the interval.
    #[inline]
    fn activate(&mut self, index: usize) {
        if !self.threads[index].is_active {
            self.threads[index].is_active = true;
            self.active.push(index);
        }
    }

    #[inline]
    fn kvm_exit(&mut self, event: &Event, open: OpenExit) {
        self.advance(event.time_ns);
        let Some(index) = self.thread(event) else { return };
        if let Some(before) = self.threads[index].open.take() {
            if before.is_fast_path() {
                // KVM went back into the guest without kvm_entry: the exit is whole, its end is not known.
                self.count_exit(index, &before, None);
                self.accesses_end(index, None);
            } else {
                self.losses.unpaired_exits += 1;
            }
        }
        // What still waits for an entry has missed it.
        self.threads[index].accesses.clear();
        self.threads[index].leave_guest(event.time_ns, open);
        self.activate(index);
    }

    #[inline]
    fn kvm_entry(&mut self, event: &Event) {
        self.advance(event.time_ns);
        let Some(index) = self.thread(event) else { return };
        match self.threads[index].open.take() {
            Some(open) => self.count_exit(index, &open, Some(event.time_ns)),
            None => self.losses.unpaired_entries += u64::from(self.threads[index].expects_exit()),
        }
        self.accesses_end(index, Some(event.time_ns));
        self.count_prefaulted(index);
        self.threads[index].enter_guest(event.time_ns);
        self.activate(index);
    }

    /// Counts an exit that is over; `end_ns` is `None` when its entry is missing.
    fn count_exit(&mut self, index: usize, open: &OpenExit, end_ns: Option<u64>) {
        let saw_wakeup = self.saw_wakeup;
        let thread = &mut self.threads[index];
        self.losses.vms_merged += u64::from(thread.is_merged);
        let detail = open.detail();
        let outcome = open.outcome(detail);
        let key = ExitKey {
            vm: thread.vm_id(),
            vcpu: thread.vcpu,
            level: if open.nested { Level::L2 } else { Level::L1 },
            reason: open.reason,
            detail,
            outcome,
            ancillary_of: if open.nested { None } else { open.ancillary_of },
        };
        let end_ns = end_ns.filter(|_| !open.is_late);
        let duration = end_ns.and_then(|end| end.checked_sub(open.start_ns));
        if let (Some(duration), Some(end_ns)) = (duration, end_ns) {
            let split = open.split(duration, end_ns, outcome, saw_wakeup);
            thread.add_split(&split);
            self.sink.ended(&Exit {
                key,
                tid: thread.tid,
                cpu: thread.cpu,
                start_ns: open.start_ns,
                end_ns,
                user_start_ns: open.user_start_ns,
                halted_ns: split.halted_ns,
                preempted_ns: split.preempted_ns,
            });
        }
        if !thread.taken.is_empty() {
            let taken = std::mem::take(&mut thread.taken);
            if duration.is_some() {
                self.waiting.count(key, &taken);
            }
        }
        let without_detail = ExitKey { detail: Detail::new(DetailKind::Overflow, 0), ..key };
        let reason = Reason { code: u32::MAX, flags: 0, ..key.reason };
        let without_reason = ExitKey { reason, ancillary_of: None, ..without_detail };
        self.exits.add([key, without_detail, without_reason], duration, &mut self.losses);
    }

    /// The open accesses of a thread end with its entry, or without a known end.
    fn accesses_end(&mut self, index: usize, end_ns: Option<u64>) {
        let mut pending = std::mem::take(&mut self.threads[index].accesses);
        for access in pending.drain(..) {
            let duration = end_ns.and_then(|end| end.checked_sub(access.start_ns));
            self.count_access(index, access.detail, access.nested, duration);
        }
        self.threads[index].accesses = pending;
    }

    fn count_access(&mut self, index: usize, detail: Detail, nested: bool, duration: Option<u64>) {
        let thread = &self.threads[index];
        let level = if nested { Level::L2 } else { Level::L1 };
        let key = AccessKey { vm: thread.vm_id(), vcpu: thread.vcpu, level, detail };
        let without_detail = AccessKey { detail: Detail::new(DetailKind::Overflow, 0), ..key };
        self.accesses.add([key, without_detail, without_detail], duration, &mut self.losses);
    }

    /// An event between an exit and its entry.
    fn within_exit(&mut self, event: &Event) {
        use DetailKind as K;
        let pick = |write: bool, writes: K, reads: K| if write { writes } else { reads };
        match event.kind {
            Kind::Msr { write, index, .. } => {
                self.access(event, Detail::new(pick(write, K::MsrWrite, K::MsrRead), index.into()));
            }
            Kind::Pio { write, port, .. } => {
                self.access(event, Detail::new(pick(write, K::PortOut, K::PortIn), port.into()));
            }
            Kind::Mmio { access: MmioAccess::Write, gpa, .. } => {
                self.access(event, Detail::new(K::MmioWrite, gpa));
            }
            Kind::Mmio { access: MmioAccess::Read, gpa, .. } => self.mmio_read(event, gpa),
            Kind::Mmio { access: MmioAccess::UnsatisfiedRead, gpa, .. } => {
                self.detail(event, Detail::new(K::MmioRead, gpa));
            }
            Kind::FastMmio { gpa } => self.access(event, Detail::new(K::MmioWrite, gpa)),
            Kind::Hypercall { interface, number } => {
                let kind = match interface {
                    HypercallInterface::Kvm => K::Hypercall,
                    HypercallInterface::HyperV => K::HypervHypercall,
                    HypercallInterface::Xen => K::XenHypercall,
                };
                self.access(event, Detail::new(kind, number));
            }
            Kind::Cpuid { function, index } => {
                self.access(event, Detail::cpuid(function, index));
            }
            Kind::PageFault { gpa, .. } => self.detail(event, crate::detail::page_fault(gpa)),
            Kind::Cr { write, number, .. } => {
                self.detail(event, Detail::new(pick(write, K::CrWrite, K::CrRead), number.into()));
            }
            Kind::Apic { write, register, .. } => {
                let kind = pick(write, K::ApicWrite, K::ApicRead);
                self.detail(event, Detail::new(kind, register.into()));
            }
            Kind::GhcbEnter { code, .. } => self.detail(event, Detail::new(K::Ghcb, code)),
            Kind::GhcbMsr { value } => self.detail(event, Detail::new(K::GhcbMsr, value & 0xfff)),
            Kind::Tdvmcall { leaf } => self.detail(event, Detail::new(K::Tdvmcall, leaf)),
            Kind::VmcsField { field, .. } => {
                self.detail(event, Detail::new(K::VmcsField, field.into()))
            }
            Kind::UserspaceExit { reason, .. } => self.userspace_exit(event, reason),
            Kind::SetAttributes { start, end, attributes } => {
                self.converted(event, (start, end), attributes);
            }
            Kind::MapRequest { level, .. } => self.mapped(event, level),
            Kind::Wakeup { ns, polled } => {
                self.saw_wakeup = true;
                if let Some(open) = self.open(event) {
                    open.woken(ns, polled);
                }
            }
            Kind::Information { info1, info2 } => {
                if let Some(open) = self.open(event) {
                    open.inform(info1, info2);
                }
            }
            Kind::NestedExit { .. } => {
                if let Some(index) = self.known_thread(event)
                    && self.threads[index].was_nested()
                {
                    // The interval of the exit may be over.
                    self.activate(index);
                }
            }
            Kind::NestedInject { reason } => self.nested_inject(event, reason),
            Kind::NestedEnter => {
                if let Some(index) = self.known_thread(event) {
                    self.threads[index].ancillary_of = None;
                }
            }
            Kind::Exit { .. }
            | Kind::Entry
            | Kind::Switch { .. }
            | Kind::Lost { .. }
            | Kind::ThreadEnd => {}
        }
    }

    fn known_thread(&mut self, event: &Event) -> Option<usize> {
        let index = match self.threads.get(self.last) {
            Some(thread) if thread.tid == event.tid => self.last,
            _ => *self.by_tid.get(&event.tid)?,
        };
        self.settle(index);
        self.runs(index, event.time_ns);
        self.threads[index].cpu = event.cpu;
        Some(index)
    }

    fn open(&mut self, event: &Event) -> Option<&mut OpenExit> {
        let index = self.known_thread(event)?;
        self.threads[index].open.as_mut()
    }

    fn detail(&mut self, event: &Event, detail: Detail) {
        if let Some(open) = self.open(event) {
            open.learn(detail);
        }
    }

    /// An access that lasts until the next entry.
    fn access(&mut self, event: &Event, detail: Detail) {
        let Some(index) = self.thread(event) else { return };
        let thread = &mut self.threads[index];
        if let Some(open) = &mut thread.open {
            open.learn(detail);
        }
        if !thread.begin_access(event.time_ns, detail) {
            // Too many in one exit to time them all.
            let nested = self.threads[index].in_nested_exit();
            self.count_access(index, detail, nested, None);
        }
    }

    /// An MMIO read ends with its tracepoint; it began with the exit.
    fn mmio_read(&mut self, event: &Event, gpa: u64) {
        self.advance(event.time_ns);
        let Some(index) = self.thread(event) else { return };
        let detail = Detail::new(DetailKind::MmioRead, gpa);
        let mut duration = None;
        if let Some(open) = &mut self.threads[index].open {
            open.learn(detail);
            duration = event.time_ns.checked_sub(open.start_ns);
        }
        let nested = self.threads[index].in_nested_exit();
        self.count_access(index, detail, nested, duration);
    }

    fn userspace_exit(&mut self, event: &Event, reason: u32) {
        if let Some(open) = self.open(event) {
            open.user_start_ns.get_or_insert(event.time_ns);
            open.user_halt |= reason == userspace::HLT;
            if reason == userspace::MEMORY_FAULT {
                let region = open.region();
                self.access(event, Detail::new(DetailKind::MemoryFault, region));
            }
        }
    }

    /// The VMM made guest memory private or shared.
    fn converted(&mut self, event: &Event, (start, end): (u64, u64), attributes: u64) {
        let Some(index) = self.known_thread(event) else { return };
        let kind = if attributes & ATTRIBUTE_PRIVATE == 0 {
            DetailKind::ToShared
        } else {
            DetailKind::ToPrivate
        };
        let bytes = end.saturating_sub(start).saturating_mul(PAGE);
        let nested = self.threads[index].in_nested_exit();
        self.count_access(index, Detail::new(kind, bytes), nested, None);
    }

    /// A page is mapped. For a page fault that is while KVM handles an exit; otherwise the VMM asked for it.
    fn mapped(&mut self, event: &Event, level: u8) {
        let known = self.by_tid.contains_key(&event.tid);
        // A thread that is alone in its process may be one of the kernel's, which maps pages that were swapped out.
        let may_be_vcpu = event.pid != 0 && event.pid != event.tid;
        let index = match known {
            true => self.known_thread(event),
            false if may_be_vcpu => self.thread(event),
            false => None,
        };
        let Some(index) = index else { return };
        let in_kernel =
            self.threads[index].open.as_ref().is_some_and(|open| open.user_start_ns.is_none());
        if !in_kernel && (1..=MOST_LEVELS).contains(&level) {
            let waiting = &mut self.threads[index].prefaulted[usize::from(level - 1)];
            *waiting += 1;
            // Before it first runs it is not known which VM's it is.
            if self.threads[index].vcpu != NO_VCPU {
                self.count_prefaulted(index);
            }
        }
    }

    fn count_prefaulted(&mut self, index: usize) {
        let prefaulted = std::mem::take(&mut self.threads[index].prefaulted);
        let nested = self.threads[index].in_nested_exit();
        for (level, pages) in (0..).zip(prefaulted) {
            let detail = Detail::new(DetailKind::PreFault, PAGE << (9 * level));
            for _ in 0..pages {
                self.count_access(index, detail, nested, None);
            }
        }
    }

    fn nested_inject(&mut self, event: &Event, reason: Reason) {
        let Some(index) = self.known_thread(event) else { return };
        let thread = &mut self.threads[index];
        let mut of = reason;
        if let Some(open) = &mut thread.open {
            open.injected = true;
            if open.nested {
                of = open.reason;
            }
        }
        thread.ancillary_of = Some(of).filter(|_| self.all_exits);
    }

    fn switch(&mut self, event: &Event, next_tid: u32, preempted: bool) {
        self.waiting.switched(event.cpu, event.time_ns, next_tid, &mut self.threads);
        if let Some(&index) = self.by_tid.get(&event.tid) {
            self.settle(index);
            let thread = &mut self.threads[index];
            thread.cpu = event.cpu;
            thread.switched_out = Some((event.time_ns, preempted));
            if preempted && thread.open.is_some() {
                self.waiting.add(event.cpu, event.time_ns, next_tid, index, event.tid);
            }
        }
        if let Some(&index) = self.by_tid.get(&next_tid) {
            self.settle(index);
            self.runs(index, event.time_ns);
            self.threads[index].cpu = event.cpu;
        }
    }

    /// Events are missing: what is open on that CPU cannot be trusted.
    #[cold]
    fn lost(&mut self, cpu: u32, count: u64) {
        if count == 0 {
            self.losses.recorder_gaps += 1;
        }
        self.gaps.add(cpu);
    }

    #[cold]
    fn thread_end(&mut self, tid: u32) {
        let Some(index) = self.by_tid.remove(&tid) else { return };
        let vm = self.threads[index].vm_id();
        self.losses.unpaired_exits += u64::from(self.threads[index].forget());
        self.vms.leave(vm, tid);
        // No event finds the slot any more; it is free once the thread's time is handed out.
        self.ended.push(index);
        self.last = usize::MAX;
    }

    /// Ends the interval when `time_ns` is past it.
    #[inline]
    fn advance(&mut self, time_ns: u64) {
        if time_ns >= self.interval_end {
            self.end_interval();
            self.interval_start = time_ns - time_ns % self.interval_ns;
            self.interval_end = self.interval_start.saturating_add(self.interval_ns);
        }
    }

    fn end_interval(&mut self) {
        let interval_start_ns = self.interval_start;
        for (key, tally) in self.exits.rows.drain(..) {
            self.sink.exit(&ExitRow { interval_start_ns, key, tally });
        }
        self.exits.index.clear();
        for (key, tally) in self.accesses.rows.drain(..) {
            self.sink.access(&AccessRow { interval_start_ns, key, tally });
        }
        self.accesses.index.clear();
        for row in self.waiting.take_rows(interval_start_ns, |tid| self.vms.name_of(tid)) {
            self.sink.preempted(&row);
        }
        // In the order in which they appeared.
        self.active.sort_unstable();
        for index in self.active.drain(..) {
            let thread = &mut self.threads[index];
            thread.is_active = false;
            let row = thread.take_time(interval_start_ns);
            if let Some(row) = row.filter(|_| self.all_exits) {
                self.sink.time(&row);
            }
        }
        self.free.append(&mut self.ended);
    }
}

/// Slots of [`Counts::recent`]: more than a recording has keys that are counted often.
const RECENT: usize = 256;

/// Tallies by key, within one interval.
#[derive(Debug)]
struct Counts<K> {
    index: FxHashMap<K, usize>,
    rows: Vec<(K, Tally)>,
    /// Places in `rows` of keys that were counted lately, by [`Spread`]. A key is compared there faster than it is hashed.
    recent: Box<[usize; RECENT]>,
    /// Every key seen in any interval: up to [`MAX_KEYS`] exact ones, then as many coarse ones.
    known: FxHashSet<K>,
}

/// A number of a few bits that mostly differs where keys do.
trait Spread {
    fn spread(&self) -> usize;
}

impl Spread for ExitKey {
    #[inline]
    fn spread(&self) -> usize {
        let ExitKey { vm, vcpu, level, reason, detail, outcome, .. } = self;
        let about = detail.value ^ u64::from(reason.code) << 32 ^ (*outcome as u64) << 48;
        fold(*vm, *vcpu, about ^ (*level as u64) << 56)
    }
}

impl Spread for AccessKey {
    #[inline]
    fn spread(&self) -> usize {
        let AccessKey { vm, vcpu, level, detail } = self;
        fold(*vm, *vcpu, detail.value ^ (detail.kind as u64) << 48 ^ (*level as u64) << 56)
    }
}

#[inline]
fn fold(vm: u32, vcpu: u32, about: u64) -> usize {
    // Multiplied by 2^64 / phi, the upper bits depend on all.
    let who = u64::from(vm) << 32 | u64::from(vcpu);
    let mixed = (about ^ who.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize
}

impl<K: Copy + Eq + Hash + Spread> Counts<K> {
    fn new() -> Counts<K> {
        Counts {
            index: HashMap::with_hasher(FxBuildHasher),
            rows: Vec::new(),
            recent: Box::new([usize::MAX; RECENT]),
            known: FxHashSet::default(),
        }
    }

    /// Counts one under the first of `keys`, from exact to coarse, that there is room for.
    #[inline]
    fn add(&mut self, keys: [K; 3], duration: Option<u64>, losses: &mut Losses) {
        let slot = &mut self.recent[keys[0].spread() % RECENT];
        let tally = match self.rows.get_mut(*slot) {
            Some((key, tally)) if *key == keys[0] => tally,
            _ => {
                let at = match self.index.get(&keys[0]) {
                    Some(&at) => at,
                    None => self.insert(keys, losses),
                };
                self.recent[keys[0].spread() % RECENT] = at;
                &mut self.rows[at].1
            }
        };
        match duration {
            Some(ns) => tally.add(ns),
            None => tally.add_untimed(1),
        }
    }

    #[cold]
    fn insert(&mut self, [exact, coarse, coarsest]: [K; 3], losses: &mut Losses) -> usize {
        let mut fits = |key: &K, most: usize| {
            self.known.contains(key) || (self.known.len() < most && self.known.insert(*key))
        };
        let key = if fits(&exact, MAX_KEYS) {
            exact
        } else {
            losses.details_dropped += 1;
            // A few more: real recordings have few reasons, however many details.
            if fits(&coarse, 2 * MAX_KEYS) { coarse } else { coarsest }
        };
        if let Some(&at) = self.index.get(&key) {
            return at;
        }
        self.rows.push((key, Tally::default()));
        self.index.insert(key, self.rows.len() - 1);
        self.rows.len() - 1
    }
}
