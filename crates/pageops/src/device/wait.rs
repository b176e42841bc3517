//! Waiting for a byte in memory without burning the processor: UMONITOR and UMWAIT with a bound, else PAUSE in growing numbers and
//! then sleep.
//!
//! There is no third way: a program gets no interrupt and no eventfd from a queue of its own, since the kernel's interface for
//! programs (include/uapi/linux/idxd.h, read in Linux 6.1) has no call that would give one.

use std::time::{Duration, Instant};

/// Whether the processor can wait for a line of memory.
pub fn has_umwait() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        cpuid7_ecx() & (1 << 5) != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Feature bits of leaf 7.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "CPUID is unsafe to call in older Rust")]
#[expect(unused_unsafe, reason = "safe to call in newer Rust; Cargo.toml takes older ones")]
pub(crate) fn cpuid7_ecx() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ecx } }
}

/// What to do between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollRest {
    /// This number of PAUSE instructions.
    Pause(u32),
    /// Yield.
    Sleep(Duration),
}

/// Increasing pauses: a batch takes microseconds, a late one milliseconds.
#[derive(Default)]
struct Backoff {
    looks: u32,
}

impl Backoff {
    /// PAUSE 1, 2, 4, ... 512 times: some tens of microseconds together.
    const PAUSES: u32 = 10;
    const SLEEP: Duration = Duration::from_micros(50);

    fn next(&mut self) -> PollRest {
        let look = self.looks;
        self.looks += 1;
        match look.checked_sub(Backoff::PAUSES) {
            None => PollRest::Pause(1 << look),
            Some(sleeps) => PollRest::Sleep(Backoff::SLEEP * (1 << sleeps.min(3))),
        }
    }
}

/// Waits until `done`, polling when the line at `at` is written, or after a short time.
/// False if `bound` passes first.
pub fn until(at: *const u8, bound: Duration, mut done: impl FnMut() -> bool) -> bool {
    let umwait = has_umwait();
    let start = Instant::now();
    let mut backoff = Backoff::default();
    loop {
        if done() {
            return true;
        }
        let left = bound.saturating_sub(start.elapsed());
        if left.is_zero() {
            return false;
        }
        if umwait {
            wait_line(at, &mut done);
            continue;
        }
        match backoff.next() {
            PollRest::Pause(times) => (0..times).for_each(|_| std::hint::spin_loop()),
            PollRest::Sleep(time) => std::thread::sleep(time.min(left)),
        }
    }
}

/// Waits for a write to a line, at most some 100,000 cycles of the time stamp counter. Never
/// run: no processor with WAITPKG was available.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn wait_line(at: *const u8, done: &mut impl FnMut() -> bool) {
    // SAFETY: only called where the processor has WAITPKG; the instructions read the line and write no memory.
    unsafe {
        std::arch::asm!("umonitor {0}", in(reg) at, options(nostack, preserves_flags));
        // A write between the first poll and the monitor would be missed.
        if done() {
            return;
        }
        let deadline = std::arch::x86_64::_rdtsc() + 100_000;
        std::arch::asm!(
            "umwait {0:e}",
            in(reg) 1u32,
            in("eax") deadline as u32,
            in("edx") (deadline >> 32) as u32,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn wait_line(_: *const u8, _: &mut impl FnMut() -> bool) {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;

    #[test]
    fn rests_grow_and_have_a_limit() {
        let mut backoff = Backoff::default();
        let rests: Vec<PollRest> = (0..16).map(|_| backoff.next()).collect();
        let pauses: Vec<PollRest> = (0..10).map(|i| PollRest::Pause(1 << i)).collect();
        assert_eq!(rests[..10], pauses);
        let sleep = |micros| PollRest::Sleep(Duration::from_micros(micros));
        assert_eq!(rests[10..], [50, 100, 200, 400, 400, 400].map(sleep));
    }

    #[test]
    fn a_wait_sees_a_write_and_ends_at_its_bound() {
        let byte = AtomicU8::new(0);
        let at = byte.as_ptr().cast_const();
        assert!(!until(at, Duration::ZERO, || false));
        assert!(!until(at, Duration::from_millis(3), || byte.load(Ordering::Acquire) != 0));
        std::thread::scope(|scope| {
            scope.spawn(|| byte.store(1, Ordering::Release));
            assert!(until(at, Duration::from_secs(600), || byte.load(Ordering::Acquire) != 0));
        });
    }
}
