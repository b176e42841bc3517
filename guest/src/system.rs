//! System calls that the standard library has no word for.

use std::ffi::CString;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::Result;

fn text(string: &str) -> Result<CString> {
    CString::new(string).map_err(|_| format!("{string:?} has a NUL byte in it"))
}

/// `mount(2)` of a file system that has no device. Already mounted is fine.
pub(crate) fn mount(kind: &str, target: &str) -> Result<()> {
    std::fs::create_dir_all(target).map_err(|e| format!("{target}: {e}"))?;
    let (kind_c, target_c) = (text(kind)?, text(target)?);
    // SAFETY: the strings live over the call; no data is passed.
    let answer = unsafe {
        libc::mount(kind_c.as_ptr(), target_c.as_ptr(), kind_c.as_ptr(), 0, std::ptr::null())
    };
    if answer == 0 || Error::last_os_error().raw_os_error() == Some(libc::EBUSY) {
        return Ok(());
    }
    Err(format!("mounting {kind} on {target}: {}", Error::last_os_error()))
}

/// Loads a kernel module with its parameters. Already there is fine.
pub(crate) fn load_module(path: &Path, parameters: &str) -> Result<()> {
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let parameters = text(parameters)?;
    // SAFETY: the descriptor is open and the string lives over the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), 0) };
    if answer == 0 || Error::last_os_error().raw_os_error() == Some(libc::EEXIST) {
        return Ok(());
    }
    Err(format!("loading {}: {}", path.display(), Error::last_os_error()))
}

/// Lets this thread, and threads it starts, use all I/O ports.
pub(crate) fn all_ports() -> Result<()> {
    // SAFETY: changes the calling thread's I/O privilege level only.
    if unsafe { libc::iopl(3) } == 0 {
        return Ok(());
    }
    Err(format!("iopl: {}", Error::last_os_error()))
}

/// Lets go of the console's terminal. A serial port that a saved state was restored with may send bytes for ever, and a
/// terminal that is open would answer each.
pub(crate) fn leave_console() -> Result<()> {
    let nothing = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|e| format!("/dev/null: {e}"))?;
    for standard in 0..3 {
        // SAFETY: both descriptors are open; the standard ones belong to this process alone.
        if unsafe { libc::dup2(nothing.as_raw_fd(), standard) } < 0 {
            return Err(format!("dup2: {}", Error::last_os_error()));
        }
    }
    Ok(())
}

/// Prints a line on the console by way of the kernel's log, at a level that `quiet` lets through.
pub(crate) fn say(line: &str) {
    let written = std::fs::write("/dev/kmsg", format!("<1>{line}"));
    // Without it there is no one to tell.
    drop(written);
}

/// Ends the machine.
pub(crate) fn power_off() -> ! {
    // SAFETY: plain system calls. All output has been written to the console or the mailbox.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
    loop {
        std::thread::park();
    }
}

/// Waits until the kernel's next clock tick is at least this far away: what follows then runs undisturbed. More than most
/// of a period is not to be had.
///
/// Ticks are a period apart, but for the drift of the timer that makes them: a tick that was seen tells of the next ones for
/// a while.
pub(crate) fn away_from_tick(need: Duration) {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
    let period = resolution.tv_nsec;
    if period <= 0 {
        return;
    }
    static SEEN: AtomicI64 = AtomicI64::new(i64::MIN);
    let (now, seen) = (clock(libc::CLOCK_MONOTONIC), SEEN.load(Ordering::Relaxed));
    if now.saturating_sub(seen) < MEMORY {
        let left = period - (now - seen).rem_euclid(period);
        let need = i64::try_from(need.as_nanos()).unwrap_or(i64::MAX).min(period / 10 * 9);
        if left >= need {
            return;
        }
        sleep(left - EARLY);
    }
    SEEN.store(next_tick(), Ordering::Relaxed);
}

/// How long a tick that was seen tells of the next ones, ns: a timer of 1.19 MHz is off by 15 us then.
const MEMORY: i64 = 250_000_000;
/// How long before a tick to wake up for it, ns.
const EARLY: i64 = 100_000;

/// Waits for a tick, and says when it was: the coarse clock moves with the ticks. What it then shows is rounded; only when
/// it moves says when they are.
fn next_tick() -> i64 {
    let before = clock(libc::CLOCK_MONOTONIC_COARSE);
    while clock(libc::CLOCK_MONOTONIC_COARSE) == before {}
    clock(libc::CLOCK_MONOTONIC)
}

fn sleep(ns: i64) {
    if let Ok(ns) = u64::try_from(ns) {
        std::thread::sleep(Duration::from_nanos(ns));
    }
}

/// A clock's time, nanoseconds.
fn clock(which: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The running kernel's release.
pub(crate) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Interrupts a process, as Ctrl-C would.
pub(crate) fn interrupt(pid: u32) {
    // SAFETY: sends a signal to a child of ours that has not been waited for.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGINT) };
}
