//! Where events are missing.
//!
//! A loss concerns every thread that was last seen on its CPU. A thread learns of it with its next event, so
//! a loss costs the same whether there is one thread or thousands.

use std::collections::HashMap;

use rustc_hash::{FxBuildHasher, FxHashMap};

/// A hostile recording may name any number of CPUs.
const MAX_CPUS: usize = 65_536;

/// The losses so far, numbered from 1.
#[derive(Debug)]
pub(super) struct Gaps {
    count: u64,
    /// The last loss of each CPU.
    by_cpu: FxHashMap<u32, u64>,
    /// The last loss of all CPUs.
    everywhere: u64,
}

impl Gaps {
    /// No losses.
    pub(super) fn new() -> Gaps {
        Gaps { count: 0, by_cpu: HashMap::with_hasher(FxBuildHasher), everywhere: 0 }
    }

    /// The number of the last loss, 0 before the first.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.count
    }

    /// Events of this CPU (all if it is `u32::MAX`) are missing here.
    pub(super) fn add(&mut self, cpu: u32) {
        self.count += 1;
        if cpu == u32::MAX || self.by_cpu.len() >= MAX_CPUS {
            self.everywhere = self.count;
            self.by_cpu.clear();
        } else {
            self.by_cpu.insert(cpu, self.count);
        }
    }

    /// Whether events of this CPU are missing since the loss of this number.
    pub(super) fn since(&self, seen: u64, cpu: u32) -> bool {
        self.everywhere > seen || self.by_cpu.get(&cpu).is_some_and(|&last| last > seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_concerns_its_cpu_from_then_on() {
        let mut gaps = Gaps::new();
        gaps.add(3);
        let seen = gaps.last();
        assert!(gaps.since(0, 3) && !gaps.since(0, 4) && !gaps.since(seen, 3));
        gaps.add(u32::MAX);
        assert!(gaps.since(seen, 3) && gaps.since(seen, 4));
    }

    #[test]
    fn more_cpus_than_there_can_be_are_taken_for_all() {
        let mut gaps = Gaps::new();
        for cpu in 0..=MAX_CPUS as u32 {
            gaps.add(cpu);
        }
        assert!(gaps.by_cpu.is_empty() && gaps.since(gaps.last() - 1, 7));
    }
}
