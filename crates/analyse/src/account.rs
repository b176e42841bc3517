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
//! in the interval of its end. Its time is that from `kvm_exit` to `kvm_entry`, less the time that the scheduler took.

mod counts;
mod gaps;
mod interrupts;
mod scheduled;
mod thread;
mod unentered;
mod waiting;
mod within;

use std::collections::HashMap;

use rustc_hash::{FxBuildHasher, FxHashMap};
use vmtax_events::{
    AccessKey, AccessRow, Detail, Event, EventKind, Exit, ExitKey, ExitRow, Level, Losses,
    MAX_THREADS, NO_VCPU, RecordedGuest, RipCounts, RowSink, Vm,
};

use crate::vms::GroupedVms;
use counts::{IntervalCounts, coarser_accesses, coarser_exits};
use gaps::Gaps;
use interrupts::Interrupts;
use thread::{AccountThread, OpenExit};
use unentered::Unentered;
use waiting::WaitingVcpus;

/// Places of [`Accountant::by_cpu`]; a power of two.
const CPUS: usize = 256;

/// Said where the events name no vCPU.
const NUMBERED: &str = "The events do not say which vCPU a thread is: vCPUs have the number in the name of their thread (CPU 0/KVM), or the order in which they first ran. kvm:kvm_get_timer_map would say it (`perf record -a -e 'kvm:*'`).";

/// Choices of an accounting.
#[derive(Clone, Copy, Debug)]
pub struct AccountOptions {
    /// Length of the intervals, ns (at least 1).
    pub interval_ns: u64,
    /// The events are those of all exits. For a selection, the events in between are unknown: where a vCPU's time went,
    /// and which exit of L2 was being handled.
    pub all_exits: bool,
}

impl Default for AccountOptions {
    /// 100 ms.
    fn default() -> Self {
        AccountOptions { interval_ns: 100_000_000, all_exits: true }
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
    threads: Vec<AccountThread>,
    by_tid: FxHashMap<u32, usize>,
    /// Threads with an exit or entry in this interval.
    active: Vec<usize>,
    gaps: Gaps,
    /// Slots of `threads` whose thread ended in this interval, and those that can be taken again.
    ended: Vec<usize>,
    free: Vec<usize>,
    /// The thread of the last event on each CPU: the next is most often its, and needs no hash.
    by_cpu: Box<[usize; CPUS]>,
    vms: GroupedVms,
    exits: IntervalCounts<ExitKey>,
    accesses: IntervalCounts<AccessKey>,
    interrupts: Interrupts,
    waiting: WaitingVcpus,
    /// What waits for the recording's first entry; `None` behind it.
    unentered: Option<Box<Unentered>>,
    saw_wakeup: bool,
    /// The recording does not say which vCPUs its threads are.
    numbers_vcpus: bool,
    entries: u64,
    losses: Losses,
}

impl<R: RowSink> Accountant<R> {
    /// An accounting that hands its rows to `sink`.
    pub fn new(options: AccountOptions, sink: R) -> Accountant<R> {
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
            by_cpu: Box::new([usize::MAX; CPUS]),
            vms: GroupedVms::default(),
            exits: IntervalCounts::new(),
            accesses: IntervalCounts::new(),
            interrupts: Interrupts::new(),
            waiting: WaitingVcpus::new(),
            unentered: Some(Box::default()),
            saw_wakeup: false,
            numbers_vcpus: false,
            entries: 0,
            losses: Losses::default(),
        }
    }

    /// Where the rows go.
    pub fn sink_mut(&mut self) -> &mut R {
        &mut self.sink
    }

    /// The next events.
    pub fn events(&mut self, events: &[Event]) {
        for event in events {
            self.event(event);
        }
    }

    /// The next event.
    // Without calls, the loop of `events` takes a sixth less time; so below.
    #[inline(always)]
    pub fn event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Exit { reason, info1, info2 } => {
                let open = OpenExit::new(event.time_ns, reason, info1, info2);
                self.kvm_exit(event, open);
            }
            EventKind::Entry => self.kvm_entry(event),
            EventKind::Switch { next_tid, preempted } => self.switch(event, next_tid, preempted),
            EventKind::Woken { woken_tid } => self.woken(event, woken_tid),
            EventKind::Lost { count } => self.lost(event.cpu, count),
            EventKind::ThreadEnd => self.thread_end(event.tid),
            EventKind::Sampled { count } => self.sampled(event, count),
            _ => self.within_exit(event),
        }
    }

    /// Exits that the recorder counted already.
    pub fn counted(&mut self, row: &ExitRow) {
        self.sink.exit(row);
    }

    /// Accesses that the recorder counted already.
    pub fn accessed(&mut self, row: &AccessRow) {
        self.sink.access(row);
    }

    /// The name of a thread.
    pub fn thread_name(&mut self, tid: u32, name: &str) {
        self.vms.name(tid, name);
    }

    /// The guests that the recorder named, before their events.
    pub fn guests(&mut self, guests: &[RecordedGuest]) {
        self.vms.guests(guests);
    }

    /// The guest's instruction pointers of all entries and exits of a thread that had events before.
    pub fn rips(&mut self, tid: u32, rips: RipCounts) {
        self.vms.rips(tid, rips);
    }

    /// Ends the last interval. Returns the sink, the VMs seen, and what could not be used.
    pub fn finish(mut self) -> (R, Vec<Vm>, Losses) {
        for index in 0..self.threads.len() {
            self.abandon(index);
            // Of a recording without exits and entries accesses are all there is.
            if self.entries == 0 {
                self.accesses_end(index, None);
            }
        }
        self.without_entries();
        self.without_exits();
        self.count_interrupts();
        self.count_inhibits();
        self.end_interval();
        if self.numbers_vcpus {
            self.losses.notes.push(NUMBERED.to_owned());
        }
        let vms = self.vms.list();
        (self.sink, vms, self.losses)
    }

    /// The state of the event's thread; a new one for a thread not seen yet, or `None` when there are too many.
    #[inline(always)]
    fn thread(&mut self, event: &Event) -> Option<usize> {
        let index = match self.known_thread(event) {
            Some(index) => index,
            None => self.new_thread(event)?,
        };
        if event.vcpu != NO_VCPU && self.threads[index].vcpu != event.vcpu {
            self.has_vcpu(index, event);
        }
        Some(index)
    }

    /// The state of the event's thread, if it has one.
    #[inline(always)]
    fn known_thread(&mut self, event: &Event) -> Option<usize> {
        let last = &mut self.by_cpu[event.cpu as usize % CPUS];
        let index = match self.threads.get(*last) {
            Some(thread) if thread.tid == event.tid => *last,
            _ => {
                *last = *self.by_tid.get(&event.tid)?;
                *last
            }
        };
        let thread = &mut self.threads[index];
        if thread.gaps_seen != self.gaps.last() || thread.switched_out.is_some() {
            self.catches_up(index, event.time_ns);
        }
        self.threads[index].cpu = event.cpu;
        Some(index)
    }

    /// A thread has an event, so it learns of the losses since the one before, and it runs, whether or not the switch
    /// back was recorded.
    #[cold]
    fn catches_up(&mut self, index: usize, now_ns: u64) {
        self.settle(index);
        self.runs(index, now_ns);
    }

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

    /// The event says which vCPU its thread is.
    #[cold]
    fn has_vcpu(&mut self, index: usize, event: &Event) {
        let before = std::mem::replace(&mut self.threads[index].vcpu, event.vcpu);
        if before != NO_VCPU {
            return;
        }
        let joined = self.vms.join(event.pid, event.tid, event.vcpu);
        self.threads[index].vm = joined.vm;
        self.threads[index].is_merged = joined.is_merged;
        if let Some(vm) = self.vms.get(joined.vm).filter(|_| joined.is_new) {
            self.sink.appeared(&vm);
        }
    }

    /// Its entry does not say which vCPU the thread is: not by chance, where no entry does.
    #[cold]
    fn number(&mut self, index: usize, event: &Event) {
        let reason = self.threads[index].open.as_ref().map(|open| open.reason);
        if reason.is_none_or(|reason| reason.isa.facts().names_vcpus()) {
            return;
        }
        let vcpu = self.vms.unused(event.pid, event.tid);
        self.numbers_vcpus = true;
        self.has_vcpu(index, &Event { vcpu, ..*event });
    }

    #[cold]
    fn new_thread(&mut self, event: &Event) -> Option<usize> {
        let thread = AccountThread::new(event.tid, self.gaps.last());
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
        self.threads[index].cpu = event.cpu;
        self.by_tid.insert(event.tid, index);
        Some(index)
    }

    /// Tells a thread of the losses since its event before.
    fn settle(&mut self, index: usize) {
        if self.threads[index].gaps_seen != self.gaps.last() {
            self.settle_gaps(index);
        }
    }

    #[cold]
    fn settle_gaps(&mut self, index: usize) {
        let thread = &self.threads[index];
        if self.gaps.since(thread.gaps_seen, thread.cpu) {
            // What is open cannot be trusted.
            self.abandon(index);
            self.threads[index].forget();
        }
        self.threads[index].gaps_seen = self.gaps.last();
    }

    /// Notes that a thread has time to hand out at the end of the interval.
    #[inline]
    fn activate(&mut self, index: usize) {
        if !self.threads[index].is_active {
            self.threads[index].is_active = true;
            self.active.push(index);
        }
    }

    #[inline(always)]
    fn kvm_exit(&mut self, event: &Event, open: OpenExit) {
        self.advance(event.time_ns);
        let Some(index) = self.thread(event) else { return };
        if self.threads[index].stands_for > 0 {
            self.sampled_exit(index, &open);
            return;
        }
        match &self.threads[index].open {
            None => {}
            Some(before) if before.is_fast_path() => {
                // KVM went back into the guest without kvm_entry: the exit is whole, its end is not known.
                self.count_exit(index, None);
                self.accesses_end(index, None);
            }
            Some(_) => self.abandon(index),
        }
        // What still waits for an entry has missed it.
        self.threads[index].accesses.clear();
        self.threads[index].leave_guest(event.time_ns, open);
        self.activate(index);
    }

    #[inline(always)]
    fn kvm_entry(&mut self, event: &Event) {
        self.advance(event.time_ns);
        let Some(index) = self.thread(event) else { return };
        if self.threads[index].vcpu == NO_VCPU {
            self.number(index, event);
        }
        if self.unentered.is_some() {
            self.first_entry();
        }
        self.entries += 1;
        // The exit knows how much of its accesses' time the scheduler took.
        self.accesses_end(index, Some(event.time_ns));
        if !self.count_exit(index, Some(event.time_ns)) {
            self.losses.unpaired_entries += u64::from(self.threads[index].expects_exit());
        }
        self.count_prefaulted(index);
        self.threads[index].enter_guest(event.time_ns);
        self.activate(index);
    }

    /// Counts the open exit of a thread, which is over; `end_ns` is `None` when its entry is missing. `false`: none is open.
    #[inline]
    fn count_exit(&mut self, index: usize, end_ns: Option<u64>) -> bool {
        let Accountant { threads, sink, waiting, exits, losses, .. } = self;
        let Some(thread) = threads.get_mut(index) else { return false };
        let Some(open) = &thread.open else { return false };
        losses.vms_merged += u64::from(thread.is_merged);
        let key = thread.key(open);
        let end_ns = end_ns.filter(|_| !open.is_late);
        let (start_ns, user_start_ns) = (open.start_ns, open.user_start_ns);
        let mut duration = end_ns.and_then(|end| end.checked_sub(start_ns));
        if let (Some(whole), Some(end_ns)) = (duration, end_ns) {
            let split = open.split(whole, end_ns, key.outcome, self.saw_wakeup);
            thread.add_split(&split);
            duration = Some(whole - split.preempted_ns);
            sink.ended(&Exit {
                key,
                tid: thread.tid,
                cpu: thread.cpu,
                start_ns,
                end_ns,
                user_start_ns,
                halted_ns: split.halted_ns,
                preempted_ns: split.preempted_ns,
            });
        }
        thread.open = None;
        if !thread.taken.is_empty() {
            let taken = std::mem::take(&mut thread.taken);
            if duration.is_some() {
                waiting.count(key, &taken);
            }
        }
        exits.add(&key, coarser_exits, duration, &mut losses.details_dropped);
        true
    }

    /// The open accesses of a thread end with its entry, or without a known end.
    #[inline]
    fn accesses_end(&mut self, index: usize, end_ns: Option<u64>) {
        if !self.threads[index].accesses.is_empty() {
            self.count_accesses(index, end_ns);
        }
    }

    fn count_accesses(&mut self, index: usize, end_ns: Option<u64>) {
        let mut pending = std::mem::take(&mut self.threads[index].accesses);
        let away_ns = self.threads[index].away_ns();
        for access in pending.drain(..) {
            let duration = end_ns.and_then(|end| end.checked_sub(access.start_ns));
            let duration =
                duration.map(|ns| ns.saturating_sub(away_ns.saturating_sub(access.away_ns)));
            self.count_access(index, access.detail, access.nested, duration);
        }
        self.threads[index].accesses = pending;
    }

    fn count_access(&mut self, index: usize, detail: Detail, nested: bool, duration: Option<u64>) {
        let thread = &self.threads[index];
        let level = if nested { Level::L2 } else { Level::L1 };
        let key = AccessKey { vm: thread.vm_id(), vcpu: thread.vcpu, level, detail };
        self.accesses.add(&key, coarser_accesses, duration, &mut self.losses.accesses_dropped);
    }

    fn switch(&mut self, event: &Event, next_tid: u32, preempted: bool) {
        // Without the processor, who has it while others wait is not known.
        let has_cpu = event.cpu != u32::MAX;
        if let Some(held) = self.unentered.as_mut().filter(|_| has_cpu) {
            let place = (event.cpu, event.time_ns);
            held.scheduled.switch(place, (event.tid, preempted), next_tid, &self.vms);
        }
        if has_cpu {
            self.waiting.switched(event.cpu, event.time_ns, next_tid, &mut self.threads);
        }
        if let Some(&index) = self.by_tid.get(&event.tid) {
            self.settle(index);
            let thread = &mut self.threads[index];
            thread.cpu = event.cpu;
            thread.switched_out = Some((event.time_ns, preempted));
            if has_cpu && preempted && thread.open.is_some() {
                self.waiting.add(event.cpu, event.time_ns, next_tid, index, event.tid);
            }
        }
        if let Some(&index) = self.by_tid.get(&next_tid) {
            self.settle(index);
            self.runs(index, event.time_ns);
            self.threads[index].cpu = event.cpu;
        }
    }

    /// A thread can run: where the scheduler alone was recorded, it waits from here on.
    fn woken(&mut self, event: &Event, tid: u32) {
        if let Some(held) = &mut self.unentered {
            held.scheduled.woken(event.time_ns, tid, &self.vms);
        }
    }

    /// Events are missing: what is open on that CPU cannot be trusted.
    #[cold]
    fn lost(&mut self, cpu: u32, count: u64) {
        if count == 0 {
            self.losses.recorder_gaps += 1;
        }
        self.gaps.add(cpu);
        if let Some(held) = &mut self.unentered {
            held.scheduled.forget();
        }
    }

    #[cold]
    fn thread_end(&mut self, tid: u32) {
        let Some(index) = self.by_tid.remove(&tid) else { return };
        let vm = self.threads[index].vm_id();
        self.abandon(index);
        self.threads[index].forget();
        self.vms.leave(vm, tid);
        // No event finds the slot any more; it is free once the thread's time is handed out.
        self.ended.push(index);
        self.by_cpu.iter_mut().filter(|last| **last == index).for_each(|last| *last = usize::MAX);
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

    /// Hands out who had the CPUs of preempted vCPUs.
    fn take_waiting(&mut self, interval_start_ns: u64) {
        // Threads that ended in the interval keep their slots until it is over.
        let ended: FxHashMap<u32, usize> =
            self.ended.iter().map(|&index| (self.threads[index].tid, index)).collect();
        let vcpu_of = |tid: u32| {
            let index = self.by_tid.get(&tid).or_else(|| ended.get(&tid))?;
            let thread = &self.threads[*index];
            Some((thread.vm_id(), thread.vcpu))
        };
        let name_of = |tid| self.vms.name_of(tid);
        for row in self.waiting.take_rows(interval_start_ns, name_of, vcpu_of) {
            self.sink.preempted(&row);
        }
    }

    fn end_interval(&mut self) {
        self.count_interrupts();
        let interval_start_ns = self.interval_start;
        for (key, tally) in self.exits.drain() {
            self.sink.exit(&ExitRow { interval_start_ns, key, tally });
        }
        for (key, tally) in self.accesses.drain() {
            self.sink.access(&AccessRow { interval_start_ns, key, tally });
        }
        self.take_waiting(interval_start_ns);
        // In the order in which they appeared. Without entries there is no time to hand out.
        self.active.sort_unstable();
        let has_entries = self.unentered.is_none();
        let due = if has_entries { self.active.len() } else { 0 };
        for index in self.active.drain(..due) {
            let thread = &mut self.threads[index];
            thread.is_active = false;
            let row = thread.take_time(interval_start_ns);
            if let Some(row) = row.filter(|_| self.all_exits) {
                self.sink.time(&row);
            }
        }
        if has_entries {
            self.free.append(&mut self.ended);
        }
    }
}
