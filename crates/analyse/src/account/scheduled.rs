//! What threads with names of vCPUs' wait for a processor, in a recording of the scheduler without KVM's events.
//!
//! A wait begins where such a thread is preempted, or woken (`sched_wakeup`, `sched_waking`), and ends where it runs again:
//!
//! ```text
//!  processor 2:  kworker ─────────────────────┐ switch        swapper ──────────┐ switch
//!                     ▲ vCPU is woken         ▼ vCPU runs          ▲ woken      ▼ vCPU runs
//!                     └─ waits for kworker ───┘                    └─ idle state┘
//! ```
//!
//! Who had the processor until the switch is what it waited for. Behind the idle task nothing else ran: that time is the idle state's and the
//! interrupt's that ends it, which counts as late, and as no contention.

use std::collections::{BTreeMap, HashMap};

use rustc_hash::{FxBuildHasher, FxHashMap};
use vmtax_events::{IDLE_TASK, ScheduledRow, Tally, is_vcpu_thread};

use crate::vms::GroupedVms;

/// Shorter recordings are a few turns of the scheduler.
const ENOUGH_NS: u64 = 100_000_000;
/// Limit of threads that are told apart, and of those that wait for one processor.
const MAX_THREADS: usize = 16_384;
const MAX_WAITERS: usize = 64;

/// A processor since its last switch.
#[derive(Debug)]
struct ScheduledCpu {
    since_ns: u64,
    runs: u32,
    /// Threads of vCPUs that it was taken from.
    waiters: Vec<u32>,
}

/// Threads of vCPUs, and who ran in their place.
#[derive(Debug)]
pub(super) struct ScheduledVcpus {
    cpus: FxHashMap<u32, ScheduledCpu>,
    /// Where each one waits.
    waits_on: FxHashMap<u32, u32>,
    takers: FxHashMap<u32, (u64, u64)>,
    /// When each one was woken that does not run yet.
    woken_at: FxHashMap<u32, u64>,
    wake_ups: Tally,
    ran_ns: u64,
    waited_ns: u64,
}

impl ScheduledVcpus {
    pub(super) fn new() -> ScheduledVcpus {
        ScheduledVcpus {
            cpus: HashMap::with_hasher(FxBuildHasher),
            waits_on: HashMap::with_hasher(FxBuildHasher),
            takers: HashMap::with_hasher(FxBuildHasher),
            woken_at: HashMap::with_hasher(FxBuildHasher),
            wake_ups: Tally::default(),
            ran_ns: 0,
            waited_ns: 0,
        }
    }

    /// A thread can run. One that is preempted waits already, and of two marks of one wake-up the first counts.
    pub(super) fn woken(&mut self, now_ns: u64, tid: u32, names: &GroupedVms) {
        let is_vcpu = names.name_of(tid).is_some_and(is_vcpu_thread);
        let is_known = self.waits_on.contains_key(&tid) || self.woken_at.contains_key(&tid);
        if is_vcpu && !is_known && self.woken_at.len() < MAX_THREADS {
            self.woken_at.insert(tid, now_ns);
        }
    }

    /// A thread runs that was woken, behind another one.
    fn runs_late(&mut self, (cpu, now_ns): (u32, u64), behind: u32, tid: u32) {
        let Some(woken_ns) = self.woken_at.remove(&tid) else { return };
        let Some(late_ns) = now_ns.checked_sub(woken_ns) else { return };
        self.wake_ups.add(late_ns);
        if behind == IDLE_TASK {
            return;
        }
        self.waited_ns = self.waited_ns.saturating_add(late_ns);
        // For how long the other one ran is known from its own switch on.
        let Some(state) = self.cpus.get(&cpu).filter(|state| state.runs == behind) else { return };
        let ns = now_ns.saturating_sub(state.since_ns.max(woken_ns));
        if self.takers.len() < MAX_THREADS || self.takers.contains_key(&behind) {
            let taken = self.takers.entry(behind).or_default();
            *taken = (taken.0.saturating_add(1), taken.1.saturating_add(ns));
        }
    }

    /// A processor goes from one thread to another.
    pub(super) fn switch(
        &mut self,
        (cpu, now_ns): (u32, u64),
        (tid, preempted): (u32, bool),
        next_tid: u32,
        names: &GroupedVms,
    ) {
        let is_vcpu = |tid| names.name_of(tid).is_some_and(is_vcpu_thread);
        // It runs, so what woke it is over.
        self.woken_at.remove(&tid);
        self.runs_late((cpu, now_ns), tid, next_tid);
        self.hand_out(cpu, now_ns, is_vcpu);
        // It may have waited for another processor.
        if let Some(other) = self.waits_on.remove(&next_tid) {
            if other != cpu {
                self.hand_out(other, now_ns, is_vcpu);
            }
            if let Some(other) = self.cpus.get_mut(&other) {
                other.waiters.retain(|waiter| *waiter != next_tid);
            }
        }
        let has_room = self.cpus.len() < MAX_THREADS || self.cpus.contains_key(&cpu);
        if !has_room {
            return;
        }
        let state = self.cpus.entry(cpu).or_insert_with(|| ScheduledCpu {
            since_ns: now_ns,
            runs: next_tid,
            waiters: Vec::new(),
        });
        (state.since_ns, state.runs) = (now_ns, next_tid);
        if preempted && is_vcpu(tid) && state.waiters.len() < MAX_WAITERS {
            state.waiters.push(tid);
            self.waits_on.insert(tid, cpu);
        }
        if !state.waiters.is_empty()
            && (self.takers.len() < MAX_THREADS || self.takers.contains_key(&next_tid))
        {
            self.takers.entry(next_tid).or_default().0 += 1;
        }
    }

    /// The time since a processor's last event is that of its thread, and of those that wait for it.
    fn hand_out(&mut self, cpu: u32, now_ns: u64, is_vcpu: impl Fn(u32) -> bool) {
        let Some(state) = self.cpus.get_mut(&cpu) else { return };
        let ns = now_ns.saturating_sub(state.since_ns);
        state.since_ns = now_ns.max(state.since_ns);
        if is_vcpu(state.runs) {
            self.ran_ns = self.ran_ns.saturating_add(ns);
        }
        let waited_ns = ns.saturating_mul(state.waiters.len() as u64);
        self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        if let Some(taken) = self.takers.get_mut(&state.runs) {
            taken.1 = taken.1.saturating_add(waited_ns);
        }
    }

    /// Events are missing: nobody is known to wait.
    pub(super) fn forget(&mut self) {
        self.cpus.clear();
        self.waits_on.clear();
        self.woken_at.clear();
    }

    /// The sums, if there is enough of them.
    pub(super) fn take(&mut self, names: &GroupedVms) -> Option<ScheduledRow> {
        let (ran_ns, waited_ns) = (self.ran_ns, self.waited_ns);
        let mut takers: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (tid, (count, time_ns)) in self.takers.drain().filter(|(_, taken)| taken.1 > 0) {
            let name = names.name_of(tid).filter(|name| !name.is_empty());
            let name = name.map_or_else(|| format!("thread {tid}"), str::to_owned);
            let sum = takers.entry(name).or_default();
            *sum = (sum.0.saturating_add(count), sum.1.saturating_add(time_ns));
        }
        let wake_ups = std::mem::take(&mut self.wake_ups);
        (ran_ns.saturating_add(waited_ns) >= ENOUGH_NS).then_some(ScheduledRow {
            ran_ns,
            waited_ns,
            takers,
            wake_ups,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_runs_while_a_vcpu_waits() {
        let mut names = GroupedVms::default();
        for (tid, name) in [(1, "CPU 0/KVM"), (2, "CPU 1/KVM"), (3, "stress"), (0, "swapper/0")] {
            names.name(tid, name);
        }
        let mut all = ScheduledVcpus::new();
        for (cpu, ms, tid, preempted, next) in [
            (0, 0, 0, false, 1),
            // vCPU 0 ran for 60 ms, and waits for 40 behind stress.
            (0, 60, 1, true, 3),
            (0, 100, 3, true, 1),
            // Sleep is no wait.
            (0, 120, 1, false, 0),
            // vCPU 1 waits on processor 0 behind the idle task, and goes on elsewhere.
            (0, 200, 0, false, 2),
            (0, 210, 2, true, 0),
            (1, 215, 0, false, 2),
            (1, 235, 2, false, 0),
        ] {
            all.switch((cpu, ms * MS), (tid, preempted), next, &names);
        }
        let row = all.take(&names).unwrap();
        assert_eq!((row.ran_ns, row.waited_ns), (110 * MS, 45 * MS));
        let takers = [("stress", (1, 40 * MS)), ("swapper/0", (1, 5 * MS))];
        let takers = takers.map(|(name, taken)| (name.to_owned(), taken));
        assert_eq!(row.takers, BTreeMap::from(takers));
    }

    #[test]
    fn what_a_woken_vcpu_waits() {
        let mut names = GroupedVms::default();
        for (tid, name) in [(1, "CPU 0/KVM"), (3, "kworker/2:1"), (0, "swapper/2")] {
            names.name(tid, name);
        }
        let mut all = ScheduledVcpus::new();
        let us = |us: u64| us * 1000;
        // Behind the idle task: 50 us late, and no contention. sched_waking comes before sched_wakeup, and the first counts.
        all.switch((2, 0), (1, false), 0, &names);
        all.woken(us(100), 1, &names);
        all.woken(us(102), 1, &names);
        all.switch((2, us(150)), (0, false), 1, &names);
        all.switch((2, us(100_150)), (1, false), 3, &names);
        // Behind a worker, which had the processor before: 8 ms. Other threads' wake-ups are not asked for.
        all.woken(us(101_000), 3, &names);
        all.woken(us(102_150), 1, &names);
        all.switch((2, us(110_150)), (3, true), 1, &names);
        // A preempted one waits already.
        all.switch((2, us(120_150)), (1, true), 3, &names);
        all.woken(us(121_150), 1, &names);
        all.switch((2, us(122_150)), (3, false), 1, &names);
        all.switch((2, us(130_150)), (1, false), 0, &names);
        let row = all.take(&names).unwrap();
        let ms = |ms: u64| ms * MS;
        assert_eq!((row.ran_ns, row.waited_ns), (ms(118), ms(10)));
        assert_eq!(row.takers, BTreeMap::from([("kworker/2:1".to_owned(), (2, ms(10)))]));
        let wake_ups = row.wake_ups;
        assert_eq!(
            (wake_ups.count, wake_ups.time_ns, wake_ups.min_ns, wake_ups.max_ns),
            (2, us(8050), us(50), us(8000))
        );
    }

    #[test]
    fn a_few_turns_and_losses_show_nothing() {
        let mut names = GroupedVms::default();
        names.name(1, "CPU 0/KVM");
        let mut all = ScheduledVcpus::new();
        all.switch((0, 0), (0, false), 1, &names);
        all.switch((0, 90 * MS), (1, true), 2, &names);
        assert_eq!(all.take(&names), None);
        all.forget();
        all.switch((0, 900 * MS), (2, true), 1, &names);
        assert_eq!(all.take(&names), None);
    }
}
