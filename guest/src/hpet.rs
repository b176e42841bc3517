//! A device of the host that interrupts again and again: a timer of its HPET that Linux leaves to programs (Linux `drivers/char/hpet.c`).

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::AsRawFd;

use crate::Result;

/// Interrupts a second.
const FREQUENCY: libc::c_ulong = 4000;

/// Linux `include/uapi/linux/hpet.h`.
const HPET_IE_ON: libc::c_ulong = 0x6801;
const HPET_EPI: libc::c_ulong = 0x6804;
const HPET_IRQFREQ: libc::c_ulong = 0x4008_6806;

/// Lets a timer interrupt this processor until the file is closed.
pub(crate) fn interrupt(cpu: u32) -> Result<File> {
    let path = "/dev/hpet";
    let file = File::open(path).map_err(|e| format!("{path}: {e}"))?;
    for (order, value) in [(HPET_IRQFREQ, FREQUENCY), (HPET_EPI, 0), (HPET_IE_ON, 0)] {
        // SAFETY: all of them take a number.
        if unsafe { libc::ioctl(file.as_raw_fd(), order as _, value) } < 0 {
            return Err(format!("{path}: order {order:#x}: {}", Error::last_os_error()));
        }
    }
    let number = number().ok_or("/proc/interrupts has no line of the HPET")?;
    let affinity = format!("/proc/irq/{number}/smp_affinity_list");
    fs::write(&affinity, cpu.to_string()).map_err(|e| format!("{affinity}: {e}"))?;
    Ok(file)
}

/// The number of its interrupt.
fn number() -> Option<u32> {
    let text = fs::read_to_string("/proc/interrupts").ok()?;
    let is_hpet = |line: &&str| {
        line.split_whitespace().next_back().is_some_and(|name| name.starts_with("hpet"))
    };
    text.lines().filter(is_hpet).find_map(|line| line.split(':').next()?.trim().parse().ok())
}
