//! Records the accesses of a guest to memory, in the second batch of each operation, with the entries of the page tables that translate them.
//!
//! # The record
//!
//! `VMTAXMEM`, the version, then entries of three little-endian 64-bit words. The highest 8 bits of the first word are the entry's kind.
//!
//! | kind | rest of the first word | second and third word | meaning |
//! |---|---|---|---|
//! | `LOAD`, `STORE` | guest-virtual address, sign-extended from bit 55 | host-physical address; address of the instruction | an access |
//! | `BEGIN` | | port | the mark before a batch |
//! | `SPACE` | `COUNTED`: what follows is the operation's; `GLOBAL`: CR4.PGE | CR3; nCR3 with the number of its levels in the lowest bits | the tables of the accesses that follow. No page is walked yet |
//! | `ENTRY` | | host-physical address; value | an entry of the guest's or of KVM's tables, as it is now |
//! | `WALK` | guest-virtual address | | the entries that are recorded translate its page from here on |
//! | `FLUSH` | `ALL`: the guest's global pages, too | | the processor drops what its TLBs and its walker keep of the guest |
//! | `PAGE` | guest-virtual address | | it drops what it keeps of this page |
//! | `START` | | address | the first instruction of the process that is recorded |
//! | `PART` | | 1 or 0 | a mark of a program's own: what follows is counted, or is not; what comes before the first one is not |
//! | `EXECUTED` | | address of an instruction; number | executions of an instruction while accesses were counted; several entries add up |
//! | `FINISH` | | port | the mark after a batch |
//! | `END` | | | the machine stopped, or the mark `end` was written |
//!
//! Tables are read where they are used: when a page is accessed for the first time, when the emulator translates it otherwise than before, when a page
//! that was read-only is stored to, and anew after each entry that drops something. The reader compares each access with them.
//!
//! # What is seen
//!
//! | what | how |
//! |---|---|
//! | nCR3, ASID, TLB_CONTROL | in the VMCB to which RAX leads at VMRUN |
//! | CR3 | read behind each VMRUN and each MOV to CR3 of the guest |
//! | INVLPG | its operand is read behind it |
//! | INVPCID, INVLPGA of the host | as if they dropped everything |
//!
//! The emulated processor has neither PCID nor FLUSHBYASID: a MOV to CR3 drops all but global pages, and KVM gives a guest another ASID instead of a flush. MOV to
//! CR4 is intercepted by KVM. Of a process (`processes=on`) what is counted is what is executed with its tables, in user mode and in the kernel. It is the
//! first process that executes in user mode with other tables than those of the mark.
//!
//! Left out: the TLBs of the emulator, which drop more than a processor does; accesses of the processor's own, such as frames of interrupts that
//! VMRUN injects; the second page of an access that crosses into the next one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Write;

use crate::api::{Api, function};
use crate::ram::{ADDRESS, Ram, WRITABLE};
use crate::record::QemuMarks;
use crate::registers::Registers;
use crate::special::{Change, Operand};

const MAGIC: [u8; 8] = *b"VMTAXMEM";
const VERSION: u64 = 4;
const LOAD: u8 = 0;
const STORE: u8 = 1;
const BEGIN: u8 = 2;
const SPACE: u8 = 3;
const ENTRY: u8 = 4;
const WALK: u8 = 5;
const FLUSH: u8 = 6;
const PAGE: u8 = 7;
const START: u8 = 8;
const PART: u8 = 9;
const EXECUTED: u8 = 10;
const FINISH: u8 = 11;
const END: u8 = 12;
const COUNTED: u64 = 1;
const GLOBAL: u64 = 2;
const ALL: u64 = 1;
/// Bits of the first word behind the kind.
const REST: u64 = (1 << 56) - 1;

/// Size of a write, in bytes.
const PIECE: usize = 256 << 10;
/// The batch of each operation that is recorded; the first warms up.
const BATCH: u32 = 1;
/// Offsets in a VMCB (AMD64 Architecture Programmer's Manual, volume 2, appendix B).
const ASID: u64 = 0x58;
const NESTED_PAGING: u64 = 0x90;
const NCR3: u64 = 0xb0;
/// Bits of CR4.
const PGE: u64 = 1 << 7;
const LA57: u64 = 1 << 12;
const VMRUN: [u8; 3] = [0x0f, 0x01, 0xd8];
/// Set in addresses of a kernel.
const UPPER_HALF: u64 = 1 << 63;
/// Pages of 4 KiB in one of 2 MiB.
const SMALL_PAGES: u64 = 512;

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

/// By what a guest's addresses are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Space {
    flags: u64,
    cr3: u64,
    /// nCR3, and the levels of the nested tables: those of the host, 4 or 5.
    nested: (u64, u32),
}

/// What becomes known with the guest's next instruction.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    is_any: bool,
    /// CR3 was written.
    is_written: bool,
    drops_all: bool,
    page: Option<Operand>,
}

/// Which accesses are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    All,
    /// Those of a process that has not begun: not with this CR3.
    NotYet(u64),
    /// Those with this CR3.
    With(u64),
}

/// The state of a recording of accesses.
pub(crate) struct Accesses {
    pub(crate) api: Api,
    pub(crate) marks: QemuMarks,
    /// The port of the last `MOV EDX` of a mark.
    pub(crate) loaded: u32,
    addresses: Addresses,
    registers: Registers,
    ram: Ram,
    out: Option<File>,
    unwritten: Vec<u8>,
    /// Batches of each operation so far, by the port of its mark.
    batches: BTreeMap<u32, u32>,
    /// Between the marks of a batch that is recorded.
    on: bool,
    /// A guest executes.
    is_inside: bool,
    /// Where the host goes on after a guest: behind each VMRUN.
    left_at: HashSet<u64>,
    /// Processes of Linux guests are recorded.
    of_processes: bool,
    counted: Counted,
    pending: Pending,
    /// Of the guest that executes.
    nested: (u64, u32),
    asid: u32,
    /// As it was recorded last.
    space: Space,
    /// Host-physical pages by guest-virtual ones, as they were walked in this space, and whether they could be written to.
    pages: HashMap<u64, (u64, bool)>,
    /// Entries of tables as they were recorded last.
    entries: HashMap<u64, u64>,
    /// Instructions as they were translated, by number: their addresses, and how often they were executed.
    executed: Vec<(u64, u64)>,
    /// Numbers of those that were.
    new: Vec<usize>,
}

impl Accesses {
    pub(crate) fn new(
        api: Api,
        marks: QemuMarks,
        out: File,
        (ram, of_processes): (&str, bool),
    ) -> Result<Accesses, String> {
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
            addresses,
            registers: Registers::find().map_err(missing)?,
            ram: Ram::map(ram)?,
            out: Some(out),
            unwritten,
            batches: BTreeMap::new(),
            on: false,
            is_inside: false,
            left_at: HashSet::new(),
            of_processes,
            counted: Counted::All,
            pending: Pending::default(),
            nested: (0, 0),
            asid: 0,
            space: Space::default(),
            pages: HashMap::new(),
            entries: HashMap::new(),
            executed: Vec::new(),
            new: Vec::new(),
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
            self.on.then(|| self.begin(port));
        } else if std::mem::take(&mut self.on) {
            self.entries_of_executed();
            self.entry(FINISH, 0, [port.into(), 0]);
            self.flush();
        }
    }

    fn begin(&mut self, port: u32) {
        self.entry(BEGIN, 0, [port.into(), 0]);
        self.counted = match self.of_processes {
            true => Counted::NotYet(self.registers.cr3() & ADDRESS),
            false => Counted::All,
        };
        self.space = Space::default();
        self.entries.clear();
        self.pages.clear();
        self.pending = Pending { is_any: true, ..Pending::default() };
    }

    /// Records how often instructions were executed since this was called last.
    fn entries_of_executed(&mut self) {
        for number in std::mem::take(&mut self.new) {
            let Some((address, times)) = self.executed.get_mut(number) else { continue };
            let words = [*address, std::mem::take(times)];
            self.entry(EXECUTED, 0, words);
        }
    }

    /// A mark of a program's own is about to be executed: the first or the last instruction that counts.
    pub(crate) fn parts(&mut self, starts: bool) {
        if self.on && self.is_inside && self.space.flags & COUNTED != 0 {
            self.entries_of_executed();
            self.entry(PART, 0, [starts.into(), 0]);
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

    /// Whether a block that is translated now, and begins with the instruction at this address, is a guest's. QEMU has other blocks for a guest than for its
    /// host, whatever their addresses, and translates each when it is to be executed.
    pub(crate) fn is_of_guest(&self, first: u64) -> bool {
        self.is_inside && !self.left_at.contains(&first)
    }

    /// VMRUN is about to be executed.
    pub(crate) fn enters(&mut self) {
        self.is_inside = true;
        let vmcb = self.registers.general(0);
        let of_asid = self.ram.word(vmcb + ASID);
        let (asid, tlb_control) = (of_asid as u32, of_asid >> 32 & 0xff);
        let is_nested = self.ram.word(vmcb + NESTED_PAGING) & 1 == 1;
        let ncr3 = if is_nested { self.ram.word(vmcb + NCR3) & ADDRESS } else { 0 };
        let nested = (ncr3, if self.registers.cr4() & LA57 != 0 { 5 } else { 4 });
        let before = (self.nested, self.asid);
        (self.nested, self.asid) = (nested, asid);
        self.pending.is_any = true;
        self.pending.drops_all |= tlb_control != 0 || before != (nested, asid);
    }

    /// The instruction behind VMRUN is about to be executed.
    pub(crate) fn leaves(&mut self) {
        self.is_inside = false;
    }

    /// An instruction that changes translations is about to be executed.
    pub(crate) fn changes(&mut self, change: Change) {
        // Those that wait for the next instruction are not lost.
        self.pending.is_any = true;
        match change {
            Change::Cr3 => self.pending.is_written = true,
            Change::Page(operand) => self.pending.page = Some(operand),
            Change::All => self.pending.drops_all = true,
        }
    }

    /// The guest's next instruction is about to be executed, with which a block begins.
    fn resolve(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if pending.drops_all || pending.is_written {
            self.pages.clear();
            self.entry(FLUSH, if pending.drops_all { ALL } else { 0 }, [0, 0]);
        }
        if let Some(operand) = pending.page {
            let address = operand.address(|number| self.registers.general(number));
            let first = (address >> 12) / SMALL_PAGES * SMALL_PAGES;
            for page in first..first + SMALL_PAGES {
                self.pages.remove(&page);
            }
            self.entry(PAGE, address & REST, [0, 0]);
        }
        self.enters_space(self.registers.cr3() & ADDRESS);
    }

    fn enters_space(&mut self, cr3: u64) {
        let counts = match self.counted {
            Counted::All => true,
            Counted::NotYet(_) => false,
            Counted::With(of_process) => of_process == cr3,
        };
        let has_global = self.registers.cr4() & PGE != 0;
        let flags = if counts { COUNTED } else { 0 } | if has_global { GLOBAL } else { 0 };
        let space = Space { flags, cr3, nested: self.nested };
        if space != self.space {
            self.entries_of_executed();
            self.space = space;
            self.pages.clear();
            self.entry(SPACE, flags, [cr3, space.nested.0 | u64::from(space.nested.1)]);
        }
    }

    /// An instruction of a guest is translated. Returns its number.
    pub(crate) fn translated(&mut self, address: u64) -> usize {
        self.executed.push((address, 0));
        self.executed.len() - 1
    }

    /// It is about to be executed.
    #[inline]
    pub(crate) fn executes(&mut self, number: usize) {
        if !self.on || !self.is_inside {
            return;
        }
        if self.pending.is_any {
            self.resolve();
        }
        if let Counted::NotYet(of_mark) = self.counted {
            self.may_start(number, of_mark);
        }
        if self.space.flags & COUNTED != 0
            && let Some((_, times)) = self.executed.get_mut(number)
        {
            if *times == 0 {
                self.new.push(number);
            }
            *times += 1;
        }
    }

    /// This may be the first instruction of the process.
    fn may_start(&mut self, number: usize, of_mark: u64) {
        let address = self.executed.get(number).map_or(UPPER_HALF, |(address, _)| *address);
        let cr3 = self.space.cr3;
        if address & UPPER_HALF == 0 && cr3 != of_mark {
            self.counted = Counted::With(cr3);
            self.entry(START, 0, [address, 0]);
            self.enters_space(cr3);
        }
    }

    /// An instruction of a guest accesses memory.
    ///
    /// # Safety
    /// It is called by QEMU's callback for this access.
    pub(crate) unsafe fn reached(&mut self, info: u32, address: u64, instruction: u64) {
        if !self.on || !self.is_inside {
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
        let (page, place) = (address >> 12, physical >> 12);
        // A store to a page that was read-only has faulted before, which drops the page.
        let is_known =
            |(before, is_writable): &(u64, bool)| *before == place && (*is_writable || !is_store);
        if !self.pages.get(&page).is_some_and(is_known) {
            let is_writable = self.walk(address) || is_store;
            self.pages.insert(page, (place, is_writable));
        }
        self.entry(if is_store { STORE } else { LOAD }, address & REST, [physical, instruction]);
    }

    /// Records the entries that translate an address, as far as they are new. Returns whether all of them allow stores.
    fn walk(&mut self, address: u64) -> bool {
        let Space { cr3, nested, .. } = self.space;
        let entries = self.ram.entries(cr3, nested, address);
        let is_writable = entries.iter().all(|(_, entry)| entry & WRITABLE != 0);
        for (at, value) in entries {
            if self.entries.insert(at, value) != Some(value) {
                self.entry(ENTRY, 0, [at, value]);
            }
        }
        self.entry(WALK, address & REST, [0, 0]);
        is_writable
    }

    pub(crate) fn end(&mut self) {
        self.on = false;
        if self.out.is_some() {
            self.entry(END, 0, [0, 0]);
            self.flush();
            self.out = None;
        }
    }

    fn entry(&mut self, kind: u8, rest: u64, [second, third]: [u64; 2]) {
        let first = u64::from(kind) << 56 | rest;
        [first, second, third]
            .iter()
            .for_each(|word| self.unwritten.extend_from_slice(&word.to_le_bytes()));
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
