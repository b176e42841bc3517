//! Waiting for an order such that a saved machine goes on, each time at the same moment of its time.
//!
//! QEMU's states lack the timer of EL2 (`vmstate_arm_cpu` of 7.2 has those of EL1), which a kernel with VHE uses: what it was set for never
//! comes after a restore, and the kernel does not set it for anything later. So no tick takes the processor from a thread, and no sleep
//! ends. And while no processor has work, time jumps to the next timer, so that a read of the mailbox, which takes real time, would take any
//! time of the machine's. Against both, a thread that runs when no other wants to yields and sets the timer again and again.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::system;

/// From the last look for an order, whose time is that of the saved machine, to its execution: longer than it takes to read the order.
const LATER: i64 = 2_000_000_000;

/// When [`looked`] was called last.
static LOOKED: AtomicI64 = AtomicI64::new(0);

/// There was no order.
pub(crate) fn looked() {
    LOOKED.store(system::clock(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
}

/// Does something while the processor has always work.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    let idle = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_when_idle();
            let timer = Timer::new();
            // As long as it is like every other thread, a restored machine may never take the processor from it.
            idle.wait();
            while !done.load(Ordering::Relaxed) {
                timer.ring();
                std::thread::yield_now();
            }
        });
        idle.wait();
        let answer = work();
        done.store(true, Ordering::Relaxed);
        answer
    })
}

/// Waits until the moment at which an order is executed. The sleep until a time that is over sets the timer of a restored machine.
pub(crate) fn align() {
    system::sleep_until(1);
    let looked = LOOKED.load(Ordering::Relaxed);
    system::sleep_until((looked / system::ALIGNED + 1) * system::ALIGNED + LATER);
}

/// Lets the calling thread run when no other wants to.
fn run_when_idle() {
    let priority: libc::c_int = 0;
    let idle = libc::SCHED_IDLE;
    // SAFETY: reads the parameter, which is a number.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, idle, &raw const priority) };
}

/// A timer that nobody waits for.
struct Timer(libc::c_int);

impl Timer {
    fn new() -> Timer {
        // SAFETY: takes no pointer.
        Timer(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) })
    }

    /// Sets it to a time that is over, which comes before all that the kernel has its own timer set for.
    fn ring(&self) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_nsec: 1, ..zero };
        let when = libc::itimerspec { it_interval: zero, it_value: value };
        let absolute = libc::TFD_TIMER_ABSTIME;
        // SAFETY: reads one value; a descriptor that was not made is refused.
        unsafe { libc::timerfd_settime(self.0, absolute, &raw const when, std::ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it is this value's.
        unsafe { libc::close(self.0) };
    }
}
