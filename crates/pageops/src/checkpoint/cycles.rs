//! Cycles of a thread, counted by the processor.

use std::fs::File;
use std::io::Read;

use vmtax_perf_event::{EventAttributes, Of};

/// Kind of cycles counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleKind {
    /// Cycles in the program and in the kernel.
    All,
    /// Cycles in the program: this user may not count kernel mode (perf_event_paranoid).
    User,
}

impl CycleKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            CycleKind::All => "user and kernel",
            CycleKind::User => "user",
        }
    }
}

/// A kind of event and its number.
type CycleEvent = (u32, u64);

/// PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES.
const CYCLES: CycleEvent = (0, 0);
/// Pinned: always on the processor or in error, never multiplexed.
const PINNED: u64 = 1 << 2;
const NO_KERNEL: u64 = 1 << 5;
const NO_HYPERVISOR: u64 = 1 << 6;

/// A counter of the thread that opened it.
#[derive(Debug)]
pub(super) struct CycleCounter {
    file: File,
    counted: CycleKind,
}

impl CycleCounter {
    /// Counts cycles. `None` where the processor (or the hypervisor below) has no counter, or the system denies it.
    pub(super) fn open() -> Option<CycleCounter> {
        CycleCounter::of(CYCLES)
    }

    fn of(event: CycleEvent) -> Option<CycleCounter> {
        let open = |counted, more| {
            let attributes = EventAttributes {
                kind: event.0,
                config: event.1,
                flags: PINNED | NO_HYPERVISOR | more,
                ..EventAttributes::default()
            };
            let opened = vmtax_perf_event::open(&attributes, Of::ThisThread).ok()?;
            Some(CycleCounter { file: File::from(opened), counted })
        };
        open(CycleKind::All, 0).or_else(|| open(CycleKind::User, NO_KERNEL))
    }

    /// The kind of cycles.
    pub(super) fn counted(&self) -> CycleKind {
        self.counted
    }

    /// The count. `None` if it was not running all the time.
    pub(super) fn read(&self) -> Option<u64> {
        let mut count = [0; 8];
        (&self.file).read_exact(&mut count).ok()?;
        Some(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: nanoseconds of the thread, counted by the kernel.
    const TASK_CLOCK: CycleEvent = (1, 1);

    /// A software event is counted by the same calls; a machine without a cycle counter gives `None`.
    #[test]
    fn what_is_counted_grows_with_the_thread() {
        assert!(CycleCounter::of((u32::MAX, 0)).is_none());
        let Some(counter) = CycleCounter::of(TASK_CLOCK) else {
            return vmtax_skipped::system("perf_event_open is denied");
        };
        let before = counter.read().unwrap();
        let mut sum = 0u64;
        while counter.read().unwrap() < before + 1_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        if let Some(cycles) = CycleCounter::open() {
            let before = cycles.read();
            std::hint::black_box((0..100_000u64).map(std::hint::black_box).sum::<u64>());
            assert!(cycles.read() > before, "{:?}", cycles.counted());
        }
    }
}
