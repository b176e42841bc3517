//! Reads memory of other processes and of files, without allocating untouched pages.
//!
//! Reading a hole of a memory file through a mapping would allocate it. [`extents`] gets the ranges with data from the file system; [`Pagemap`]
//! gets the present pages of a process from the kernel.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use crate::PAGE;

/// Parts of `range` of a file with data, in whole pages, ascending; the rest reads as zeros. File systems without holes report all as data.
/// The range begins and ends with a page.
pub fn extents(file: &File, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let page = PAGE as u64;
    let mut extents: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(start) = seek(file, at, libc::SEEK_DATA)?.filter(|at| *at < range.end) else {
            break;
        };
        let end = seek(file, start, libc::SEEK_HOLE)?.unwrap_or(range.end);
        let start = start - start % page;
        let end = end.next_multiple_of(page).min(range.end);
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

/// `None`: there is no data after `at`.
fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: moves the file's position, which is not used here.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
        found => Ok(Some(found.cast_unsigned())),
    }
}

/// Punches a hole into a file, or writes zeros if the file system cannot.
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

/// Writes to a file of memory, also to one on hugetlbfs, which can only be mapped.
pub fn write(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    match file.write_all_at(bytes, at) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !bytes.is_empty() => {
            write_mapped(file, at, bytes)
        }
        done => done,
    }
}

fn write_mapped(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    // Of hugetlbfs: the bytes of a page, and a mapping's place and length are multiples of that.
    let page = file.metadata()?.blksize().max(PAGE as u64);
    let start = at - at % page;
    let lead = (at - start) as usize;
    let len = (lead + bytes.len()).next_multiple_of(page as usize);
    let offset = libc::off_t::try_from(start).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (kind, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at a place of the kernel's choice.
    let map =
        unsafe { libc::mmap(std::ptr::null_mut(), len, kind, flags, file.as_raw_fd(), offset) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: our mapping. An error, and not SIGBUS, where there is no free huge page or the file is shorter.
    let ready = match unsafe { libc::madvise(map, len, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    if ready.is_ok() {
        // SAFETY: `lead` and the bytes lie within the mapping, which is ours and present.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast::<u8>().add(lead), bytes.len());
        }
    }
    // SAFETY: our mapping, which nobody refers to any more.
    unsafe { libc::munmap(map, len) };
    ready
}

/// A file mapped for reading, shared with its writers.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; it is only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps these bytes of a file. They are more than none, and begin with a page.
    pub fn new(file: &File, bytes: Range<u64>) -> io::Result<MappedFile> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let offset = libc::off_t::try_from(bytes.start).map_err(invalid)?;
        let len = usize::try_from(bytes.end.saturating_sub(bytes.start)).map_err(invalid)?;
        let (kind, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, kind, flags, file.as_raw_fd(), offset) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(MappedFile { start, len })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Gives access to a part of it. Concurrent writes of other processes may be visible byte by byte; copy bytes before examining them more than
    /// once. Reading a hole of a memory file allocates it.
    ///
    /// # Panics
    /// When the range is outside.
    pub fn with<R>(&self, range: Range<usize>, look: impl FnOnce(&[u8]) -> R) -> R {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: within the mapping, which lives as long as `self`; no code in this process writes to it.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().add(range.start),
                range.end - range.start,
            )
        };
        look(bytes)
    }

    /// Prefaults a part with data, which is cheaper than a fault for every few pages. Before Linux 5.14 pages are mapped as they are read. An
    /// error if the file was truncated or its disk fails: reading would raise SIGBUS.
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

    /// Unmaps the pages of a part (they stay in the file), so that the resident size stays bounded.
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

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and slices of it cannot outlive it.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}

/// A range of pages as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// First address.
    pub start: u64,
    /// End address.
    pub end: u64,
    /// In a huge page.
    pub huge: bool,
    /// Written since [`Pagemap::forget_dirty`].
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
struct MappedRegion {
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
    /// Opens the pagemap of a process.
    pub fn open(pid: u32) -> io::Result<Pagemap> {
        Ok(Pagemap { file: File::open(format!("/proc/{pid}/pagemap"))?, pid })
    }

    /// Ranges that are present or swapped out, ascending; only these have content.
    pub fn populated(&self, range: Range<u64>) -> io::Result<Vec<PageRange>> {
        let mut ranges: Vec<PageRange> = Vec::new();
        let mut regions = vec![MappedRegion::default(); 1024];
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
            // SAFETY: the argument and its regions are owned here, with the stated lengths.
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

    /// Clears the kernel's record of written pages. `Unsupported` if it keeps none.
    pub fn forget_dirty(&self) -> io::Result<()> {
        if !tells_dirty()? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        std::fs::write(format!("/proc/{}/clear_refs", self.pid), "4")
    }
}

/// Whether the kernel records written pages (CONFIG_MEM_SOFT_DIRTY), tested with a new page.
fn tells_dirty() -> io::Result<bool> {
    let page = vec![1u8; 2 * PAGE];
    let start = (page.as_ptr() as u64).next_multiple_of(PAGE as u64);
    let own = Pagemap::open(std::process::id())?;
    Ok(own.populated(start..start + PAGE as u64)?.iter().any(|r| r.dirty))
}

/// Bytes of this process's own memory that are in RAM (`Anonymous` of /proc/self/smaps_rollup). Memory that was only read does
/// not count: it is mapped to one page of zeros.
pub fn in_ram() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads another process's memory. Returns the bytes read, fewer than requested if some are unreadable.
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

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    const HUGE: u64 = 2 << 20;

    #[test]
    fn a_mapped_write_writes_these_bytes_and_no_others() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 5 * PAGE], 0).unwrap();
        let at = PAGE as u64 + 7;
        write_mapped(&file, at, &[2; PAGE]).unwrap();
        let mut found = vec![0; 5 * PAGE];
        file.read_exact_at(&mut found, 0).unwrap();
        let (start, end) = (at as usize, at as usize + PAGE);
        assert!(found[..start].iter().chain(&found[end..]).all(|byte| *byte == 1));
        assert!(found[start..end].iter().all(|byte| *byte == 2));
        // Behind the end of the file: an error, and no signal.
        assert!(write_mapped(&file, 64 * PAGE as u64, &[3; PAGE]).is_err());
    }

    /// hugetlbfs refuses write(2).
    #[test]
    fn memory_in_huge_pages_is_written() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: makes a descriptor.
        let descriptor = unsafe { libc::memfd_create(c"huge".as_ptr(), flags) };
        if descriptor < 0 {
            return vmtax_skipped::system("this kernel has no memfd of huge pages");
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(2 * HUGE).unwrap();
        let bytes = [5; 3 * PAGE];
        let at = HUGE - PAGE as u64;
        if let Err(error) = write(&file, at, &bytes) {
            // There is none (nr_hugepages is 0), which is said and does not end the program.
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EFAULT | libc::EHWPOISON)),
                "{error}"
            );
            return vmtax_skipped::system("no huge page is free");
        }
        let map = MappedFile::new(&file, 0..2 * HUGE).unwrap();
        let start = at as usize;
        map.with(0..2 * HUGE as usize, |found| {
            assert!(found[start..start + bytes.len()] == bytes);
            assert!(found[..start].iter().all(|byte| *byte == 0));
        });
    }
}
