//! Memory of other processes and of files, without touching what was never touched.
//!
//! A hole of a file in memory is not read through a mapping: that would allocate it. [`extents`] asks the file
//! system where data lies; [`Pagemap`] asks the kernel which pages of a process are present.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::PAGE;

/// Where a file has data, in whole pages, ascending: all else reads as zeros. A file system that cannot tell
/// says that all is data.
pub fn extents(file: &File, len: u64) -> io::Result<Vec<Range<u64>>> {
    let page = PAGE as u64;
    let mut extents: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < len {
        let Some(start) = seek(file, at, libc::SEEK_DATA)? else { break };
        let end = seek(file, start, libc::SEEK_HOLE)?.unwrap_or(len);
        let start = start - start % page;
        let end = end.next_multiple_of(page).min(len.next_multiple_of(page));
        if end <= at {
            break;
        }
        match extents.last_mut() {
            Some(last) if last.end >= start => last.end = end,
            _ => extents.push(start..end),
        }
        at = end;
    }
    Ok(extents)
}

/// `None`: there is no data behind `at`.
fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: moves the file's position, which nobody here uses.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
        found => Ok(Some(found.cast_unsigned())),
    }
}

/// Makes a range of a file a hole. Where that cannot be done it writes zeros.
pub fn punch(file: &File, range: Range<u64>) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    if range.is_empty() {
        return Ok(());
    }
    let bounds =
        (libc::off_t::try_from(range.start), libc::off_t::try_from(range.end - range.start));
    let (Ok(start), Ok(len)) = bounds else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: changes the content of a file that the caller may write.
    if unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
        return Err(error);
    }
    let zeros = [0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let step = (range.end - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

/// A file mapped for reading, as its owner sees it.
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; it is only read.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes from the beginning. `len` is above 0.
    pub fn new(file: &File, len: usize) -> io::Result<Map> {
        let (kind, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, kind, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Map { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Looks at a part of it. What another process writes there meanwhile is seen or not, byte by byte; whoever
    /// decides twice on the same bytes copies them first. Reading a hole of a file in memory allocates it.
    ///
    /// # Panics
    ///
    /// When the range lies outside.
    pub fn with<R>(&self, range: Range<usize>, look: impl FnOnce(&[u8]) -> R) -> R {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: within the mapping, which lives as long as `self`; nobody in this process writes to it.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().add(range.start),
                range.end - range.start,
            )
        };
        look(bytes)
    }

    /// Maps a part that holds data all at once, which costs less than a fault for every few pages. Where the kernel
    /// cannot (before Linux 5.14) pages are mapped as they are read. An error if the file has no bytes there any
    /// more, or its disk fails: reading would end the program.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        if range.start >= range.end || range.end > self.len || !range.start.is_multiple_of(PAGE) {
            return Ok(());
        }
        // SAFETY: within the mapping; only what reading would do is done.
        let done = unsafe {
            libc::madvise(
                self.start.as_ptr().add(range.start).cast(),
                range.end - range.start,
                libc::MADV_POPULATE_READ,
            )
        };
        match io::Error::last_os_error() {
            _ if done == 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            error => Err(error),
        }
    }

    /// Takes the part out of this mapping (not out of the file), so that the mapping does not grow without end.
    pub fn forget(&self, range: Range<usize>) {
        if range.start < range.end && range.end <= self.len && range.start.is_multiple_of(PAGE) {
            // SAFETY: within the mapping; the pages stay in the file and come back when read again.
            unsafe {
                libc::madvise(
                    self.start.as_ptr().add(range.start).cast(),
                    range.end - range.start,
                    libc::MADV_DONTNEED,
                );
            }
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and slices of it cannot outlive it.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}

/// What the kernel knows of a range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// First address.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// In a huge page.
    pub huge: bool,
    /// Written since it was last asked to forget ([`Pagemap::forget_dirty`]).
    pub dirty: bool,
    /// The kernel's shared page of zeros.
    pub zero: bool,
}

/// /proc/PID/pagemap, asked with PAGEMAP_SCAN (Linux 6.7).
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    pid: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFNZERO: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;
const SOFT_DIRTY: u64 = 1 << 7;
/// _IOWR('f', 16, struct pm_scan_arg)
const PAGEMAP_SCAN: libc::c_ulong = (3 << 30) | (96 << 16) | ((b'f' as libc::c_ulong) << 8) | 16;

impl Pagemap {
    /// Of a process that may be looked into.
    pub fn open(pid: u32) -> io::Result<Pagemap> {
        Ok(Pagemap { file: File::open(format!("/proc/{pid}/pagemap"))?, pid })
    }

    /// Ranges that are present or swapped out, ascending. Nothing else has content.
    pub fn populated(&self, range: Range<u64>) -> io::Result<Vec<PageRange>> {
        let mut ranges: Vec<PageRange> = Vec::new();
        let mut regions = vec![Region::default(); 1024];
        let mut at = range.start;
        while at < range.end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start: at,
                end: range.end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                category_anyof_mask: PRESENT | SWAPPED,
                return_mask: PRESENT | SWAPPED | PFNZERO | HUGE | SOFT_DIRTY,
                ..ScanArg::default()
            };
            // SAFETY: the argument and the regions it names are ours, and as long as it says.
            let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let Ok(found) = usize::try_from(found) else { return Err(io::Error::last_os_error()) };
            ranges.extend(regions[..found].iter().map(|r| PageRange {
                start: r.start,
                end: r.end,
                huge: r.categories & HUGE != 0,
                dirty: r.categories & SOFT_DIRTY != 0,
                zero: r.categories & PFNZERO != 0,
            }));
            if arg.walk_end <= at {
                break;
            }
            at = arg.walk_end;
        }
        Ok(ranges)
    }

    /// Has the kernel forget which pages of the process were written. `Unsupported` where it keeps no such record.
    pub fn forget_dirty(&self) -> io::Result<()> {
        if !tells_dirty()? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        std::fs::write(format!("/proc/{}/clear_refs", self.pid), "4")
    }
}

/// Whether the kernel records written pages (CONFIG_MEM_SOFT_DIRTY): a fresh page of ours must be marked.
fn tells_dirty() -> io::Result<bool> {
    let page = vec![1u8; 2 * PAGE];
    let start = (page.as_ptr() as u64).next_multiple_of(PAGE as u64);
    let own = Pagemap::open(std::process::id())?;
    Ok(own.populated(start..start + PAGE as u64)?.iter().any(|r| r.dirty))
}

/// Bytes of this process's own memory that are in RAM (`Anonymous` of /proc/self/smaps_rollup). Memory that was only read is none of
/// it: the kernel has one page of zeros for all of that.
pub fn in_ram() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads another process's memory. Gives the bytes read, fewer than asked where some cannot be.
pub fn read_process(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: the kernel writes into the buffer, no more than its length, and checks the other address.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}
