//! Records the accesses of payloads to memory, in the second batch of each operation, with the page tables that translate them.
//!
//! # The record
//!
//! `VMTAXMEM`, the version, then entries of three little-endian 64-bit words. The first word of an access has bit 63 clear.
//!
//! | words | meaning |
//! |---|---|
//! | guest-virtual address, host-physical address (bit 63: a store), address of the instruction | an access |
//! | `BEGIN`, port | the mark before a batch |
//! | `TABLES`, CR3, nCR3 with the number of its levels in the lowest bits | the tables of the batch's accesses; pages follow |
//! | `PAGE`, host-physical address, 0, then 4,096 bytes | a page of a table |
//! | `PART`, 1 or 0 | a mark of a program's own: what follows is counted, or is not; what comes before the first one is not |
//! | `EXECUTED`, address of an instruction, number | executions of an instruction of a payload in the batch; several entries add up |
//! | `FINISH`, port | the mark after a batch |
//! | `LOST`, guest-virtual address, host-physical address | no VMCB translates this access |
//! | `END` | the machine stopped, or the mark `end` was written |
//!
//! CR3 and nCR3 are those of the VMCB in the machine's memory with nested paging and an RIP in a payload that translates the batch's first
//! access to the address that QEMU says. All pages of both tables are recorded then; they must not change in the batch, which the reader
//! notices as accesses that they translate otherwise.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;

use crate::api::{Api, function};
use crate::record::QemuMarks;

const MAGIC: [u8; 8] = *b"VMTAXMEM";
const VERSION: u64 = 3;
const TAG: u64 = 1 << 63;
const BEGIN: u64 = TAG | 1;
const TABLES: u64 = TAG | 2;
const PAGE: u64 = TAG | 3;
const FINISH: u64 = TAG | 4;
const LOST: u64 = TAG | 5;
const END: u64 = TAG | 6;
const EXECUTED: u64 = TAG | 7;
const PART: u64 = TAG | 8;

/// Size of a write, in bytes.
const PIECE: usize = 256 << 10;
/// The batch of each operation that is recorded; the first warms up.
const BATCH: u32 = 1;
/// Offsets in a VMCB (AMD64 Architecture Programmer's Manual, volume 2, appendix B).
const NESTED_PAGING: u64 = 0x90;
const NCR3: u64 = 0xb0;
const CR3: u64 = 0x550;
const RIP: u64 = 0x578;
/// Bits of an entry of a page table.
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PAGE_SIZE: u64 = 4096;
const VMRUN: [u8; 3] = [0x0f, 0x01, 0xd8];

/// An opaque handle of QEMU's.
#[repr(C)]
struct Physical {
    _opaque: [u8; 0],
}

/// Functions of the API that only this mode uses.
struct Addresses {
    of: unsafe extern "C" fn(u32, u64) -> *mut Physical,
    is_io: unsafe extern "C" fn(*const Physical) -> bool,
    physical: unsafe extern "C" fn(*const Physical) -> u64,
    is_store: unsafe extern "C" fn(u32) -> bool,
}

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

/// The machine's memory: as long as that of a PC below 3 GiB, physical addresses are offsets.
struct Ram {
    start: *const u8,
    bytes: u64,
}

impl Ram {
    fn map(path: &str) -> Result<Ram, String> {
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
    fn word(&self, at: u64) -> u64 {
        if at >= self.bytes || at & 7 != 0 {
            return 0;
        }
        // SAFETY: within the mapping, aligned; the vCPU that writes there is this thread.
        unsafe { self.start.add(at as usize).cast::<u64>().read_volatile() }
    }

    /// The page at an address; `None` outside.
    fn page(&self, at: u64) -> Option<&[u8]> {
        let is_inside = at & (PAGE_SIZE - 1) == 0 && at.checked_add(PAGE_SIZE)? <= self.bytes;
        // SAFETY: within the mapping; the vCPU that writes there is this thread.
        is_inside.then(|| unsafe {
            std::slice::from_raw_parts(self.start.add(at as usize), PAGE_SIZE as usize)
        })
    }

    /// Where a table of so many levels maps an address, `None` if it does not. Addresses of tables are translated by `place`.
    fn walk(
        &self,
        root: u64,
        levels: u32,
        address: u64,
        place: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let mut table = root & ADDRESS;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * level;
            let entry = self.word(place(table + 8 * (address >> shift & 511))?);
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
}

/// The tables of a guest.
#[derive(Clone, Copy)]
struct Roots {
    cr3: u64,
    ncr3: u64,
    /// Of the nested tables: those of the host, 4 or 5.
    levels: u32,
}

impl Roots {
    fn nested(self, ram: &Ram, address: u64) -> Option<u64> {
        ram.walk(self.ncr3, self.levels, address, &Some)
    }

    fn walk(self, ram: &Ram, address: u64) -> Option<u64> {
        let guest = ram.walk(self.cr3, 4, address, &|table| self.nested(ram, table))?;
        self.nested(ram, guest)
    }
}

/// The state of a recording of accesses.
pub(crate) struct Accesses {
    pub(crate) api: Api,
    pub(crate) marks: QemuMarks,
    /// The port of the last `MOV EDX` of a mark.
    pub(crate) loaded: u32,
    /// Addresses of payloads.
    pub(crate) code: Range<u64>,
    addresses: Addresses,
    ram: Ram,
    out: Option<File>,
    unwritten: Vec<u8>,
    /// Batches of each operation so far, by the port of its mark.
    batches: BTreeMap<u32, u32>,
    /// Between the marks of a batch that is recorded.
    on: bool,
    /// A guest executes, and not a program of the host, which may have the same addresses.
    pub(crate) is_inside: bool,
    /// Where the host goes on after a guest: behind each VMRUN.
    left_at: HashSet<u64>,
    /// Its tables are recorded.
    has_tables: bool,
    /// Instructions of payloads as they were translated, by number: their addresses, and how often they were executed.
    executed: Vec<(u64, u64)>,
}

impl Accesses {
    pub(crate) fn new(
        api: Api,
        marks: QemuMarks,
        out: File,
        (ram, code): (&str, &str),
    ) -> Result<Accesses, String> {
        let number =
            |text: &str| text.parse().map_err(|_| "the argument code= is no range".to_owned());
        let (from, end) = code.split_once('-').ok_or("the argument code= is no range")?;
        let missing = |name: &str| format!("this QEMU has no {name}");
        // SAFETY: the types are those of `qemu-plugin.h`.
        let addresses = unsafe {
            Addresses {
                of: function(c"qemu_plugin_get_hwaddr").map_err(missing)?,
                is_io: function(c"qemu_plugin_hwaddr_is_io").map_err(missing)?,
                physical: function(c"qemu_plugin_hwaddr_phys_addr").map_err(missing)?,
                is_store: function(c"qemu_plugin_mem_is_store").map_err(missing)?,
            }
        };
        let mut unwritten = MAGIC.to_vec();
        unwritten.extend_from_slice(&VERSION.to_le_bytes());
        Ok(Accesses {
            api,
            marks,
            loaded: 0,
            code: number(from)?..number(end)?,
            addresses,
            ram: Ram::map(ram)?,
            out: Some(out),
            unwritten,
            batches: BTreeMap::new(),
            on: false,
            is_inside: false,
            left_at: HashSet::new(),
            has_tables: false,
            executed: Vec::new(),
        })
    }

    /// An OUT that may belong to a mark is about to be executed; port 0 means the last one loaded.
    pub(crate) fn writes(&mut self, port: u32) {
        let port = if port == 0 { std::mem::take(&mut self.loaded) } else { port };
        if port == self.marks.end {
            return self.end();
        }
        if !(self.marks.first..=self.marks.last).contains(&port) || self.out.is_none() {
            return;
        }
        // Marks are pairs: begin, end.
        if (port - self.marks.first).is_multiple_of(2) {
            let batches = self.batches.entry(port).or_default();
            self.on = *batches == BATCH;
            *batches += 1;
            self.has_tables = false;
            self.on.then(|| self.entry([BEGIN, port.into(), 0]));
        } else if std::mem::take(&mut self.on) {
            self.entries_of_executed();
            self.entry([FINISH, port.into(), 0]);
            self.flush();
        }
    }

    /// Records how often instructions were executed since this was called last.
    fn entries_of_executed(&mut self) {
        let executed: Vec<(u64, u64)> =
            self.executed.iter().copied().filter(|(_, times)| *times > 0).collect();
        executed.into_iter().for_each(|(at, times)| self.entry([EXECUTED, at, times]));
        self.executed.iter_mut().for_each(|(_, times)| *times = 0);
    }

    /// A mark of a program's own is about to be executed: the first or the last instruction that counts.
    pub(crate) fn parts(&mut self, starts: bool) {
        if self.on && self.is_inside {
            self.entries_of_executed();
            self.entry([PART, starts.into(), 0]);
        }
    }

    /// Whether the instruction at an address enters a guest (true), or is the first after one (false).
    pub(crate) fn passage(&mut self, address: u64, bytes: &[u8]) -> Option<bool> {
        if bytes == VMRUN {
            self.left_at.insert(address + VMRUN.len() as u64);
            return Some(true);
        }
        self.left_at.contains(&address).then_some(false)
    }

    /// An instruction of a payload is translated. Returns its number.
    pub(crate) fn translated(&mut self, address: u64) -> usize {
        self.executed.push((address, 0));
        self.executed.len() - 1
    }

    /// It is about to be executed.
    pub(crate) fn executes(&mut self, number: usize) {
        if self.on
            && self.is_inside
            && let Some((_, times)) = self.executed.get_mut(number)
        {
            *times += 1;
        }
    }

    /// An instruction of a payload accesses memory.
    ///
    /// # Safety
    /// It is called by QEMU's callback for this access.
    pub(crate) unsafe fn reached(&mut self, info: u32, address: u64, instruction: u64) {
        if !self.on || !self.is_inside || address & TAG != 0 {
            return;
        }
        // SAFETY: guaranteed by the caller; the handle is valid during the callback.
        let (physical, is_store) = unsafe {
            let handle = (self.addresses.of)(info, address);
            if handle.is_null() || (self.addresses.is_io)(handle) {
                return;
            }
            ((self.addresses.physical)(handle), (self.addresses.is_store)(info))
        };
        if !std::mem::replace(&mut self.has_tables, true) {
            match self.find(address, physical) {
                Some(roots) => self.tables(roots),
                None => self.entry([LOST, address, physical]),
            }
        }
        self.entry([address, physical | if is_store { TAG } else { 0 }, instruction]);
    }

    /// The tables that translate this access.
    fn find(&self, address: u64, physical: u64) -> Option<Roots> {
        let ram = &self.ram;
        let of_vmcb = |vmcb: u64| {
            let [paging, ncr3, cr3, rip] =
                [NESTED_PAGING, NCR3, CR3, RIP].map(|at| ram.word(vmcb + at));
            let is_guest = paging & 1 == 1 && ncr3 & ADDRESS == ncr3 && ncr3 != 0;
            (is_guest && self.code.contains(&rip)).then_some((cr3, ncr3))
        };
        let candidates = (0..ram.bytes).step_by(PAGE_SIZE as usize).filter_map(of_vmcb);
        let roots =
            candidates.flat_map(|(cr3, ncr3)| [4, 5].map(|levels| Roots { cr3, ncr3, levels }));
        { roots }.find(|roots| roots.walk(ram, address) == Some(physical))
    }

    /// Records all pages of the guest's and the nested tables.
    fn tables(&mut self, roots: Roots) {
        self.entry([TABLES, roots.cr3, roots.ncr3 | u64::from(roots.levels)]);
        let mut pages = HashSet::new();
        let mut order = Vec::new();
        let nested = |table| Some(table);
        self.collect((roots.ncr3 & ADDRESS, roots.levels), &nested, (&mut pages, &mut order));
        let ram = &self.ram;
        let guest = |table| roots.nested(ram, table);
        self.collect((roots.cr3 & ADDRESS, 4), &guest, (&mut pages, &mut order));
        for page in order {
            let Some(bytes) = self.ram.page(page).map(<[u8]>::to_vec) else { continue };
            self.entry([PAGE, page, 0]);
            self.unwritten.extend_from_slice(&bytes);
            self.flush_if_full();
        }
    }

    /// The pages of a table and of those below it, each once.
    fn collect(
        &self,
        (table, levels): (u64, u32),
        place: &dyn Fn(u64) -> Option<u64>,
        (pages, order): (&mut HashSet<u64>, &mut Vec<u64>),
    ) {
        let Some(page) = place(table) else { return };
        if levels == 0 || !pages.insert(page) {
            return;
        }
        order.push(page);
        for index in 0..512 {
            let entry = self.ram.word(page + 8 * index);
            let is_leaf = levels == 1 || (levels <= 3 && entry & LARGE != 0);
            if entry & PRESENT != 0 && !is_leaf {
                self.collect((entry & ADDRESS, levels - 1), place, (&mut *pages, &mut *order));
            }
        }
    }

    pub(crate) fn end(&mut self) {
        self.on = false;
        if self.out.is_some() {
            self.entry([END, 0, 0]);
            self.flush();
            self.out = None;
        }
    }

    fn entry(&mut self, words: [u64; 3]) {
        words.iter().for_each(|word| self.unwritten.extend_from_slice(&word.to_le_bytes()));
        self.flush_if_full();
    }

    fn flush_if_full(&mut self) {
        if self.unwritten.len() > PIECE {
            self.flush();
        }
    }

    /// A write error ends the recording: the reader has exited, or it notices that the end mark is missing.
    fn flush(&mut self) {
        if let Some(out) = &mut self.out
            && out.write_all(&self.unwritten).is_err()
        {
            self.out = None;
            self.on = false;
        }
        self.unwritten.clear();
    }
}
