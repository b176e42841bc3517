//! Memory of huge pages, and what gives pages of files back.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::Result;

/// Alignment and size of huge pages.
pub(super) const HUGE: usize = 2 << 20;
pub(super) const HUGETLB: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn system(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Drops pages of a file.
pub(super) fn punch(file: &OwnedFd, from: usize, bytes: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a descriptor of the caller; where this fails the batch takes no faults, which is noticed.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, from as libc::off_t, bytes as libc::off_t) };
}

/// A file of so many bytes in huge pages.
pub(super) fn huge_memfd(bytes: usize) -> Result<OwnedFd> {
    // SAFETY: the name is a string with its end; the descriptor is new and nobody else's.
    let file = unsafe {
        match libc::memfd_create(c"touched".as_ptr(), libc::MFD_HUGETLB | libc::MFD_HUGE_2MB) {
            -1 => return Err(system("memfd_create of huge pages")),
            file => OwnedFd::from_raw_fd(file),
        }
    };
    // SAFETY: a descriptor of this function.
    if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
        return Err(system("a memfd of huge pages"));
    }
    Ok(file)
}

/// Has so many bytes of huge pages ready; what was set before.
pub(super) fn reserve(bytes: usize) -> Result<String> {
    let read = || fs::read_to_string(HUGETLB).map_err(|e| format!("{HUGETLB}: {e}"));
    let before = read()?;
    let number = before.trim().parse::<usize>().unwrap_or(0) + bytes.div_ceil(HUGE);
    fs::write(HUGETLB, number.to_string()).map_err(|e| format!("{HUGETLB}: {e}"))?;
    if read()?.trim().parse() != Ok(number) {
        return Err(format!("{HUGETLB}: the host has no room for {number} pages"));
    }
    Ok(before)
}
