//! What threads with names of vCPUs' wait for a processor, in a recording of the scheduler without KVM's events.
//!
//! A wait begins where such a thread is preempted and ends where it runs again. Left out on purpose: what it waits behind a wake-up, which
//! `sched_switch` does not show.

use std::collections::{BTreeMap, HashMap};

use rustc_hash::{FxBuildHasher, FxHashMap};
use vmtax_events::{ScheduledRow, is_vcpu_thread};

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
    ran_ns: u64,
    waited_ns: u64,
}

impl ScheduledVcpus {
    pub(super) fn new() -> ScheduledVcpus {
        ScheduledVcpus {
            cpus: HashMap::with_hasher(FxBuildHasher),
            waits_on: HashMap::with_hasher(FxBuildHasher),
            takers: HashMap::with_hasher(FxBuildHasher),
            ran_ns: 0,
            waited_ns: 0,
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
        (ran_ns.saturating_add(waited_ns) >= ENOUGH_NS).then_some(ScheduledRow {
            ran_ns,
            waited_ns,
            takers,
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
