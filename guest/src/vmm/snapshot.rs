//! The snapshot that a resumed VM has its memory from: a file in the page cache, mapped, or copied page by page.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;

use crate::Result;
use crate::system::map;

const PAGE: usize = 4096;

/// `UFFDIO_API`, `UFFDIO_REGISTER`, `UFFDIO_COPY`, by Linux's `include/uapi/linux/userfaultfd.h`.
const API: u32 = 0xc018_aa3f;
const REGISTER: u32 = 0xc020_aa00;
const COPY: u32 = 0xc028_aa03;
/// `UFFD_API`, `UFFDIO_REGISTER_MODE_MISSING` and `UFFD_EVENT_PAGEFAULT`.
const VERSION: u64 = 0xaa;
const MISSING: u64 = 1;
const PAGE_FAULT: u8 = 0x12;
/// Bytes of a `struct uffd_msg`, and where it has the address of a page fault.
const MESSAGE: usize = 32;
const ADDRESS: usize = 16;

fn system(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// A file whose pages are all there and hold no zeroes.
pub(super) struct Snapshot {
    file: OwnedFd,
    bytes: usize,
}

impl Snapshot {
    pub(super) fn new(bytes: usize) -> Result<Snapshot> {
        // SAFETY: the name is a string with its end; the descriptor is new and nobody else's.
        let file = unsafe {
            match libc::memfd_create(c"snapshot".as_ptr(), 0) {
                -1 => return Err(system("memfd_create")),
                file => OwnedFd::from_raw_fd(file),
            }
        };
        let page = [0xa5u8; PAGE];
        for at in (0..bytes).step_by(PAGE) {
            // SAFETY: writes a page of this function to a descriptor of its own.
            let written = unsafe {
                libc::pwrite(file.as_raw_fd(), page.as_ptr().cast(), PAGE, at as libc::off_t)
            };
            if written != PAGE as isize {
                return Err(system("writing the snapshot"));
            }
        }
        Ok(Snapshot { file, bytes })
    }

    /// Maps it at an address.
    ///
    /// # Safety
    /// What is mapped there is the caller's, and nothing uses it.
    pub(super) unsafe fn map_at(&self, start: *mut u8, flags: libc::c_int) -> Result<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: the caller's promise.
        let mapping = unsafe {
            libc::mmap(start.cast(), self.bytes, access, flags, self.file.as_raw_fd(), 0)
        };
        if mapping == libc::MAP_FAILED { Err(system("mapping the snapshot")) } else { Ok(()) }
    }
}

/// A thread that copies pages from a snapshot to where they are missing.
pub(super) struct Pager {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Pager {
    /// Starts for this memory, with so many bytes at each fault.
    pub(super) fn start(
        snapshot: &Snapshot,
        (start, bytes): (*mut u8, usize),
        chunk: usize,
    ) -> Result<Pager> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let source = map(bytes, flags, snapshot.file.as_raw_fd())? as u64;
        // SAFETY: the descriptors are new and nobody else's.
        let (faults, stop) = unsafe {
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
            let faults = match libc::syscall(libc::SYS_userfaultfd, flags) {
                -1 => return Err(system("userfaultfd")),
                file => OwnedFd::from_raw_fd(file as i32),
            };
            match libc::eventfd(0, libc::EFD_CLOEXEC) {
                -1 => return Err(system("eventfd")),
                file => (faults, OwnedFd::from_raw_fd(file)),
            }
        };
        // `struct uffdio_api`, and `struct uffdio_register`.
        request(&faults, API, &mut [VERSION, 0, 0])?;
        request(&faults, REGISTER, &mut [start as u64, bytes as u64, MISSING, 0])?;
        let memory = start as u64;
        let ends = stop.try_clone().map_err(|e| format!("eventfd: {e}"))?;
        let body = move || {
            while let Some(fault) = next(&faults, &ends) {
                let offset = (fault - memory) / chunk as u64 * chunk as u64;
                // `struct uffdio_copy`. A page that is there already stays; the access that faulted is then woken by the one before.
                let mut copied = [memory + offset, source + offset, chunk as u64, 0, 0];
                let _ = request(&faults, COPY, &mut copied);
            }
            // SAFETY: the mapping made above, which this thread alone uses.
            unsafe { libc::munmap(source as *mut libc::c_void, bytes) };
        };
        let thread = std::thread::Builder::new()
            .name("pager".to_owned())
            .spawn(body)
            .map_err(|e| format!("thread: {e}"))?;
        Ok(Pager { stop, thread: Some(thread) })
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of this function to a descriptor of this value.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request of userfaultfd with a structure of eight-byte fields.
fn request<const N: usize>(file: &OwnedFd, request: u32, fields: &mut [u64; N]) -> Result<()> {
    assert_eq!((request >> 16 & 0x3fff) as usize, 8 * N, "another structure");
    // SAFETY: the structure is as long as the request says.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, fields.as_mut_ptr()) } {
        -1 => Err(system("userfaultfd")),
        _ => Ok(()),
    }
}

/// Waits for the next page fault, and returns its address; `None` at the end.
fn next(faults: &OwnedFd, stop: &OwnedFd) -> Option<u64> {
    let waiting =
        |file: &OwnedFd| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        let mut both = [waiting(faults), waiting(stop)];
        let mut message = [0u8; MESSAGE];
        // SAFETY: both calls fill arrays of this function, with their lengths.
        let read = unsafe {
            libc::poll(both.as_mut_ptr(), 2, -1);
            if both[1].revents != 0 {
                return None;
            }
            libc::read(faults.as_raw_fd(), message.as_mut_ptr().cast(), MESSAGE)
        };
        if read == MESSAGE as isize && message[0] == PAGE_FAULT {
            let address = message[ADDRESS..ADDRESS + 8].try_into().map(u64::from_ne_bytes);
            return address.ok();
        }
    }
}
