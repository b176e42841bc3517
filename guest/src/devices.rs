//! What programs of a VM do with the devices of a PC: its console, its display and its real-time clock.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;

/// Characters of a line.
const LINE: usize = 63;
/// The text of a display: 80 columns of 25 lines, each a character with its colours.
const TEXT: libc::off_t = 0xb8000;
const CELLS: usize = 80 * 25;
/// An A, grey on black.
const CHARACTER: u16 = 0x0741;
/// The class of a VGA, as sysfs has it.
const VGA: &str = "0x0300";
/// `RTC_RD_TIME` of `linux/rtc.h`, and how many integers its time has.
const READ_TIME: libc::c_ulong = 0x8024_7009;
const TIME_FIELDS: usize = 9;

/// Writes so many lines to the console.
pub(crate) fn write_lines(count: u32) -> Result<()> {
    let mut console = OpenOptions::new().write(true).open("/dev/console")?;
    let line = [&[b'x'; LINE][..], b"\n"].concat();
    for _ in 0..count {
        console.write_all(&line)?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::tcdrain(console.as_raw_fd()) } != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

/// Writes so many characters to the display's text; without a display none.
pub(crate) fn write_text(count: u32) -> Result<()> {
    if !has_display() {
        return Ok(());
    }
    let memory = OpenOptions::new().read(true).write(true).open("/dev/mem")?;
    let (bytes, rights) = (2 * CELLS, libc::PROT_READ | libc::PROT_WRITE);
    let (anywhere, file) = (std::ptr::null_mut(), memory.as_raw_fd());
    // SAFETY: a new mapping; checked below.
    let text = unsafe { libc::mmap(anywhere, bytes, rights, libc::MAP_SHARED, file, TEXT) };
    if text == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    for number in 0..count as usize {
        // SAFETY: within the mapping, which begins with a page.
        unsafe { text.cast::<u16>().add(number % CELLS).write_volatile(CHARACTER) };
    }
    // SAFETY: the mapping of above, which nothing else uses.
    unsafe { libc::munmap(text, bytes) };
    Ok(())
}

fn has_display() -> bool {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let class = |device: fs::DirEntry| fs::read_to_string(device.path().join("class"));
    devices.filter_map(|device| class(device).ok()).any(|class| class.starts_with(VGA))
}

/// Reads the time so many times from the real-time clock.
pub(crate) fn read_clock(count: u32) -> Result<()> {
    let clock = File::open("/dev/rtc0").map_err(|e| Error::other(format!("/dev/rtc0: {e}")))?;
    for _ in 0..count {
        let mut time: [libc::c_int; TIME_FIELDS] = [0; TIME_FIELDS];
        // SAFETY: the kernel writes so many integers.
        if unsafe { libc::ioctl(clock.as_raw_fd(), READ_TIME as _, &raw mut time) } != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}
