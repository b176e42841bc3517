//! Cycles of a thread, counted by the processor.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

/// Kind of cycles counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Cycles in the program and in the kernel.
    All,
    /// Cycles in the program: this user may not count kernel mode (perf_event_paranoid).
    User,
}

impl Counted {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Counted::All => "user and kernel",
            Counted::User => "user",
        }
    }
}

/// The first published part of `struct perf_event_attr` (PERF_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    breakpoint_address: u64,
}

/// A kind of event and its number.
type Event = (u32, u64);

/// PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES.
const CYCLES: Event = (0, 0);
/// Pinned: always on the processor or in error, never multiplexed.
const PINNED: u64 = 1 << 2;
const NO_KERNEL: u64 = 1 << 5;
const NO_HYPERVISOR: u64 = 1 << 6;
/// PERF_FLAG_FD_CLOEXEC
const FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// A counter of the thread that opened it.
#[derive(Debug)]
pub(super) struct Counter {
    file: File,
    counted: Counted,
}

impl Counter {
    /// Counts cycles. `None` where the processor (or the hypervisor below) has no counter, or the system denies it.
    pub(super) fn open() -> Option<Counter> {
        Counter::of(CYCLES)
    }

    fn of(event: Event) -> Option<Counter> {
        let open = |counted, more| {
            let attributes = Attributes {
                kind: event.0,
                size: size_of::<Attributes>() as u32,
                config: event.1,
                flags: PINNED | NO_HYPERVISOR | more,
                ..Attributes::default()
            };
            let (own, any, none, flags) = (0, -1, -1, FD_CLOEXEC);
            // SAFETY: the structure is owned here and has the stated length; the rest are numbers.
            let opened = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    own,
                    any,
                    none,
                    flags,
                )
            };
            let descriptor = i32::try_from(opened).ok().filter(|d| *d >= 0)?;
            // SAFETY: the descriptor is new and owned here.
            Some(Counter { file: unsafe { File::from_raw_fd(descriptor) }, counted })
        };
        open(Counted::All, 0).or_else(|| open(Counted::User, NO_KERNEL))
    }

    /// The kind of cycles.
    pub(super) fn counted(&self) -> Counted {
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
    const TASK_CLOCK: Event = (1, 1);

    /// A software event is counted by the same calls; a machine without a cycle counter gives `None`.
    #[test]
    fn what_is_counted_grows_with_the_thread() {
        assert!(Counter::of((u32::MAX, 0)).is_none());
        let Some(counter) = Counter::of(TASK_CLOCK) else {
            return vmtax_skipped::system("perf_event_open is denied");
        };
        let before = counter.read().unwrap();
        let mut sum = 0u64;
        while counter.read().unwrap() < before + 1_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        if let Some(cycles) = Counter::open() {
            let before = cycles.read();
            std::hint::black_box((0..100_000u64).map(std::hint::black_box).sum::<u64>());
            assert!(cycles.read() > before, "{:?}", cycles.counted());
        }
    }
}
