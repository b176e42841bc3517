//! Waiting for an order such that a saved machine goes on, each time at the same moment of its time.
//!
//! QEMU's states lack the timer of EL2 (`vmstate_arm_cpu` of 7.2 has those of EL1), which a kernel with VHE uses: what it was set for never
//! comes after a restore, and the kernel does not set it for anything later. And while no processor has work, time jumps to the next
//! timer, so that a read of the mailbox, which takes real time, would take any time of the machine's.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::system;

/// From the last look for an order, whose time is that of the saved machine, to its execution: longer than it takes to read the order.
const LATER: i64 = 2_000_000_000;

/// When [`start_timers`] was called last.
static LOOKED: AtomicI64 = AtomicI64::new(0);

/// Has the kernel set its timer: a sleep until a time that is over comes before all that the timer was set for.
pub(crate) fn start_timers() {
    system::sleep_until(1);
    LOOKED.store(system::clock(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
}

/// Does something while the processor has always work.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let priority: libc::c_int = 0;
            // SAFETY: reads the parameter, which is a number; the calling thread then runs when no other wants to.
            unsafe {
                let idle = libc::SCHED_IDLE;
                libc::syscall(libc::SYS_sched_setscheduler, 0, idle, &raw const priority);
            }
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let answer = work();
        done.store(true, Ordering::Relaxed);
        answer
    })
}

/// Waits until the moment at which an order is executed.
pub(crate) fn align() {
    system::sleep_until(1);
    let looked = LOOKED.load(Ordering::Relaxed);
    system::sleep_until((looked / system::ALIGNED + 1) * system::ALIGNED + LATER);
}
