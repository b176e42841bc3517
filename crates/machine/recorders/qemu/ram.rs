//! The memory of the machine, and the page tables in it.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        access: c_int,
        flags: c_int,
        file: c_int,
        from: i64,
    ) -> *mut c_void;
}

/// Bits of an entry of a page table.
const PRESENT: u64 = 1;
pub(crate) const WRITABLE: u64 = 2;
const LARGE: u64 = 1 << 7;
pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Levels of the guest's tables.
const GUEST_LEVELS: u32 = 4;

/// As long as that of a PC below 3 GiB, physical addresses are offsets.
pub(crate) struct Ram {
    start: *const u8,
    bytes: u64,
}

/// Entries of page tables: host-physical addresses and values.
pub(crate) type Entries = Vec<(u64, u64)>;

impl Ram {
    pub(crate) fn map(path: &str) -> Result<Ram, String> {
        const READ: c_int = 1;
        const SHARED: c_int = 1;
        let problem = |error: std::io::Error| format!("{path}: {error}");
        let file = File::open(path).map_err(problem)?;
        let bytes = file.metadata().map_err(problem)?.len();
        // SAFETY: a new mapping, wherever the kernel puts it; checked below.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes as usize, READ, SHARED, file.as_raw_fd(), 0)
        };
        if start as isize == -1 {
            return Err(problem(std::io::Error::last_os_error()));
        }
        Ok(Ram { start: start.cast(), bytes })
    }

    /// The word at an address; 0 outside.
    pub(crate) fn word(&self, at: u64) -> u64 {
        if at.checked_add(8).is_none_or(|end| end > self.bytes) || at & 7 != 0 {
            return 0;
        }
        // SAFETY: within the mapping, aligned; the vCPU that writes there is this thread.
        unsafe { self.start.add(at as usize).cast::<u64>().read_volatile() }
    }

    /// Where a table of so many levels maps an address, `None` if it does not. Addresses of tables are translated by `place`.
    fn walk(
        &self,
        (root, levels): (u64, u32),
        address: u64,
        read: &mut Entries,
        place: &dyn Fn(u64, &mut Entries) -> Option<u64>,
    ) -> Option<u64> {
        let mut table = root & ADDRESS;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * level;
            let at = place(table + 8 * (address >> shift & 511), read)?;
            let entry = self.word(at);
            read.push((at, entry));
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || (level < 3 && entry & LARGE != 0) {
                let mask = (1 << shift) - 1;
                return Some(entry & ADDRESS & !mask | address & mask);
            }
            table = entry & ADDRESS;
        }
        None
    }

    /// All entries that the walk of a guest-virtual address reads, by the guest's tables and nested ones of so many levels.
    pub(crate) fn entries(&self, cr3: u64, nested: (u64, u32), address: u64) -> Entries {
        let mut read = Vec::with_capacity(24);
        let by_nested = |physical: u64, read: &mut Entries| {
            self.walk(nested, physical, read, &|table, _| Some(table))
        };
        if let Some(physical) = self.walk((cr3, GUEST_LEVELS), address, &mut read, &by_nested) {
            by_nested(physical, &mut read);
        }
        read
    }
}
