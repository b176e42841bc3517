//! The disk under a file that is being written.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Has the disk begin with a part of a file, so that the sync at the end finds little left. Where this cannot be done nothing is
/// lost.
pub(super) fn begin_sync(file: &File, part: Range<u64>) {
    let bounds =
        (libc::off64_t::try_from(part.start), libc::off64_t::try_from(part.end - part.start));
    let (Ok(start), Ok(len)) = bounds else { return };
    // SAFETY: starts writing what the file has already; changes nothing.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE);
    }
}
