//! System calls that the standard library has no word for.

use std::ffi::CString;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::Result;

fn text(string: &str) -> Result<CString> {
    CString::new(string).map_err(|_| format!("{string:?} has a NUL byte in it"))
}

/// `mount(2)` of a file system that has no device. Already mounted is fine.
pub(crate) fn mount(kind: &str, target: &str) -> Result<()> {
    std::fs::create_dir_all(target).map_err(|e| format!("{target}: {e}"))?;
    let (kind_c, target_c) = (text(kind)?, text(target)?);
    // SAFETY: the strings live over the call; no data is passed.
    let answer = unsafe { libc::mount(kind_c.as_ptr(), target_c.as_ptr(), kind_c.as_ptr(), 0, std::ptr::null()) };
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
    let answer = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), 0) };
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

/// The running kernel's release.
pub(crate) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Collects children that ended; the first process has to.
pub(crate) fn interrupt(pid: u32) {
    // SAFETY: sends a signal to a child of ours that has not been waited for.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGINT) };
}
