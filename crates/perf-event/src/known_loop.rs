//! A loop of a known number of instructions, against which counters can be held.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// Instructions and branches of one turn of [`known_loop`].
pub const INSTRUCTIONS_OF_A_TURN: u64 = 2;
pub const BRANCHES_OF_A_TURN: u64 = 1;

/// Turns `times` times, at least once: counts down and jumps.
#[cfg(target_arch = "x86_64")]
pub fn known_loop(times: u64) {
    // SAFETY: counts down a register of its own; no memory, no stack.
    unsafe {
        asm!("2:", "sub {n}, 1", "jnz 2b", n = inout(reg) times.max(1) => _, options(nomem, nostack));
    }
}

/// Turns `times` times, at least once: counts down and jumps.
#[cfg(target_arch = "aarch64")]
pub fn known_loop(times: u64) {
    // SAFETY: counts down a register of its own; no memory, no stack.
    unsafe {
        asm!("2:", "subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) times.max(1) => _, options(nomem, nostack));
    }
}

/// Such a loop is not written for this processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn known_loop(_: u64) {}
