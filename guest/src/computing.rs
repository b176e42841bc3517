//! Loads of a VM that keep all its vCPUs busy: computing, and what one vCPU asks of the others by interrupts.

use std::io::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::system;

/// Steps of a unit of computing: some milliseconds of a processor that executes one instruction in a nanosecond.
const STEPS: u64 = 500_000;
/// Bytes whose protection changes.
const PAGE: usize = 4096;

/// So many units, each vCPU its part at the same time.
pub(crate) fn compute(units: u32) -> Result<()> {
    let cpus = system::processors();
    let done: Result<Vec<()>> = thread::scope(|scope| {
        let own = |cpu: usize| u64::from(units) * STEPS / cpus as u64 + cpu as u64;
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                scope.spawn(move || {
                    stay_on(cpu)?;
                    steps(own(cpu));
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(ended()))).collect()
    });
    done.map(drop)
}

fn steps(count: u64) {
    let mut value = 1u64;
    for _ in 0..count {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005));
    }
}

/// Takes the right to write from a page and gives it back, so often. The other vCPUs, which use the same page tables, must forget them.
pub(crate) fn protect(count: u32) -> Result<()> {
    let page = system::UntouchedMemory::new(PAGE, false).map_err(Error::other)?;
    beside_others(|| {
        for _ in 0..count {
            page.touch(PAGE);
            page.protect().map_err(Error::other)?;
        }
        Ok(())
    })
}

/// Has the other vCPUs pass a barrier, so often.
pub(crate) fn barrier(count: u32) -> Result<()> {
    system::membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
    beside_others(|| {
        (0..count).try_for_each(|_| system::membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    })
}

/// Runs this on the first vCPU while a thread of this program computes on each other one; of more than two the last stays idle, because an interrupt to all others is
/// one request (Linux arch/x86/kernel/apic/ipi.c, `native_send_call_func_ipi`).
fn beside_others(run: impl FnOnce() -> Result<()>) -> Result<()> {
    let cpus = match system::processors() {
        cpus @ (1 | 2) => cpus,
        cpus => cpus - 1,
    };
    let (ready, stop) = (AtomicUsize::new(1), AtomicBool::new(false));
    stay_on(0)?;
    thread::scope(|scope| {
        for cpu in 1..cpus {
            let (ready, stop) = (&ready, &stop);
            scope.spawn(move || {
                let _ = stay_on(cpu);
                ready.fetch_add(1, Ordering::Relaxed);
                // No PAUSE, which can be an exit.
                while !stop.load(Ordering::Relaxed) {}
            });
        }
        while ready.load(Ordering::Relaxed) < cpus {
            thread::yield_now();
        }
        let done = run();
        stop.store(true, Ordering::Relaxed);
        done
    })
}

fn stay_on(cpu: usize) -> Result<()> {
    system::stay_on(cpu).map_err(Error::other)
}

fn ended() -> Error {
    Error::other("a thread that computes ended")
}
