//! Waiting for a byte in memory without burning the processor: UMONITOR and UMWAIT with a bound, else PAUSE.

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
pub(crate) fn cpuid7_ecx() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ecx }
}

/// Waits until `done`, looking at most every time that the line at `at` is written, or a short while has passed.
/// False if `bound` passes first.
pub fn until(at: *const u8, bound: Duration, mut done: impl FnMut() -> bool) -> bool {
    /// Looks before the thread lets others run.
    const LOOKS: u32 = 64;
    const SLEEP: Duration = Duration::from_micros(50);
    let umwait = has_umwait();
    let start = Instant::now();
    let mut looks = 0;
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= bound {
            return false;
        }
        looks += 1;
        if umwait {
            wait_line(at, &mut done);
        } else if looks < LOOKS {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(SLEEP.min(bound));
        }
    }
}

/// Waits for a write to a line, at most some 100,000 cycles of the time stamp counter.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn wait_line(at: *const u8, done: &mut impl FnMut() -> bool) {
    // SAFETY: only called where the processor has WAITPKG; the instructions read the line and write no memory.
    unsafe {
        std::arch::asm!("umonitor {0}", in(reg) at, options(nostack, preserves_flags));
        // A write between the first look and the monitor would be missed.
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
