//! Who runs while a vCPU that could run waits for its CPU.
//!
//! ```text
//!  sched_switch  vCPU ──> kworker      kworker ──> stress      stress ──> vCPU
//!                     │◄── kworker ──►│         │◄── stress ──►│
//! ```
//!
//! The CPU of a preempted vCPU is the one it was taken from; a vCPU that is moved to another CPU waits no longer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};
use vmtax_events::{ExitKey, PreemptedRow};

use super::thread::{AccountThread, TakenBy};

/// Preempted vCPUs of one CPU that are followed. More wait for it in no real recording.
const MAX_WAITERS: usize = 64;
/// Limit of distinct rows of one interval; rows beyond it have no thread's name.
const MAX_ROWS: usize = 16_384;
/// Stands for threads that there was no room for.
const OTHERS: u32 = u32::MAX;

/// Exits, and who ran meanwhile: the thread's name, and the VM and the vCPU that it runs.
type NamedExits = (ExitKey, String, Option<(u32, u32)>);

/// A vCPU thread that waits.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// Its place among the threads.
    thread: usize,
    /// Its id, as the place may be another's by now.
    tid: u32,
    running: u32,
    since_ns: u64,
    /// `running` has had no time of this wait yet.
    is_new: bool,
}

/// The vCPU threads that wait, by CPU, and who ran meanwhile.
#[derive(Debug)]
pub(super) struct WaitingVcpus {
    by_cpu: FxHashMap<u32, Vec<Waiter>>,
    rows: FxHashMap<(ExitKey, u32), (u64, u64)>,
}

impl WaitingVcpus {
    pub(super) fn new() -> WaitingVcpus {
        WaitingVcpus {
            by_cpu: HashMap::with_hasher(FxBuildHasher),
            rows: HashMap::with_hasher(FxBuildHasher),
        }
    }

    /// Another thread runs on this CPU from now on: the one before had it until now.
    #[inline]
    pub(super) fn switched(
        &mut self,
        cpu: u32,
        now_ns: u64,
        next_tid: u32,
        threads: &mut [AccountThread],
    ) {
        if self.by_cpu.is_empty() {
            return;
        }
        let Some(waiters) = self.by_cpu.get_mut(&cpu) else { return };
        waiters.retain_mut(|waiter| {
            let waits = waiter.credit(now_ns, threads);
            *waiter = Waiter { running: next_tid, since_ns: now_ns, is_new: true, ..*waiter };
            waits && next_tid != waiter.tid
        });
        if waiters.is_empty() {
            self.by_cpu.remove(&cpu);
        }
    }

    /// A vCPU thread was preempted.
    pub(super) fn add(&mut self, cpu: u32, now_ns: u64, running: u32, thread: usize, tid: u32) {
        let waiters = self.by_cpu.entry(cpu).or_default();
        waiters.retain(|waiter| waiter.tid != tid);
        if waiters.len() < MAX_WAITERS {
            let since_ns = now_ns;
            waiters.push(Waiter { thread, tid, running, since_ns, is_new: true });
        }
    }

    /// A vCPU thread runs again, here or elsewhere.
    #[cold]
    pub(super) fn ended(&mut self, cpu: u32, now_ns: u64, tid: u32, threads: &mut [AccountThread]) {
        let Some(waiters) = self.by_cpu.get_mut(&cpu) else { return };
        waiters.retain_mut(|waiter| {
            if waiter.tid == tid {
                waiter.credit(now_ns, threads);
            }
            waiter.tid != tid
        });
        if waiters.is_empty() {
            self.by_cpu.remove(&cpu);
        }
    }

    /// An exit is counted, with those that had its CPU meanwhile.
    pub(super) fn count(&mut self, key: ExitKey, taken: &[TakenBy]) {
        for taken in taken {
            let exact = (key, taken.tid);
            let at = if self.rows.len() < MAX_ROWS || self.rows.contains_key(&exact) {
                exact
            } else {
                (key, OTHERS)
            };
            let (count, time_ns) = self.rows.entry(at).or_default();
            *count = count.saturating_add(taken.count);
            *time_ns = time_ns.saturating_add(taken.time_ns);
        }
    }

    /// The rows of the interval that ends, by key and name.
    pub(super) fn take_rows<'n>(
        &mut self,
        interval_start_ns: u64,
        name_of: impl Fn(u32) -> Option<&'n str>,
        vcpu_of: impl Fn(u32) -> Option<(u32, u32)>,
    ) -> Vec<PreemptedRow> {
        let mut rows: BTreeMap<NamedExits, (u64, u64)> = BTreeMap::new();
        for ((key, tid), (count, time_ns)) in self.rows.drain() {
            let name = match (name_of(tid), tid) {
                (Some(name), _) if !name.is_empty() => name.to_owned(),
                (_, OTHERS) => "others".to_owned(),
                _ => format!("thread {tid}"),
            };
            let sum = rows.entry((key, name, vcpu_of(tid))).or_default();
            *sum = (sum.0.saturating_add(count), sum.1.saturating_add(time_ns));
        }
        let row = |((key, name, by_vcpu), (count, time_ns))| {
            let by = Arc::from(name);
            PreemptedRow { interval_start_ns, key, by, by_vcpu, count, time_ns }
        };
        rows.into_iter().map(row).collect()
    }
}

impl Waiter {
    /// Gives the one that runs its time. Whether the vCPU still waits.
    fn credit(&mut self, now_ns: u64, threads: &mut [AccountThread]) -> bool {
        let Some(thread) = threads.get_mut(self.thread).filter(|thread| thread.tid == self.tid)
        else {
            return false;
        };
        if !matches!(thread.switched_out, Some((_, true))) || thread.open.is_none() {
            return false;
        }
        thread.taken_by(self.running, now_ns.saturating_sub(self.since_ns), self.is_new);
        self.is_new = false;
        true
    }
}
