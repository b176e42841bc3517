//! Memory that the guest maps by page tables of its own, for the suite `paging`.
//!
//! ```text
//! FRAMES                  FRAMES + FRAME_TABLES
//!   the guest's tables      frames: contiguous, or scattered
//! ```
//! Tables and frames are of the same kind on the host, but for private frames: their tables are in shared memory of small pages, where this program can write
//! them. Tables do not change once they are made: batches find the same ones.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use vmtax_guest::layout;
use vmtax_guest::order::{Backing, Paging, Probed, Touch, UserProgram};

use super::BareVm;
use super::hugetlb::{HUGE, HUGETLB, huge_memfd, reserve};
use super::touched::{self, MMAP_AND_SHARED, guest_memfd, system};
use crate::Result;
use crate::system::map;

const PAGE: u64 = 4096;
const PRESENT_WRITABLE: u64 = 3;
const LARGE: u64 = 0x80;
/// Entries of a table.
const ENTRIES: u64 = 512;
/// Lines of a page.
const LINES: u64 = 64;

/// What this kernel lacks for such memory, as a sentence; `None` if it has all.
pub(crate) fn missing(paging: &Paging) -> Result<Option<String>> {
    let (bytes, backing) = (paging.bytes, paging.backing);
    touched::missing(&Touch { bytes, backing, populated: true, prefault: false, counted: true })
}

pub(super) struct Paged {
    mapping: *mut libc::c_void,
    mapped: usize,
    start: *mut u8,
    bytes: usize,
    file: Option<OwnedFd>,
    is_guest_memfd: bool,
    /// The guest_memfd of private frames.
    private: Option<OwnedFd>,
    /// Pages that hugetlb had before.
    reserved: Option<String>,
    /// The frames of a program's memory, by page.
    program: Vec<u64>,
}

// SAFETY: the mapping belongs to this value alone, and is accessed after `new` by the thread that runs the vCPU alone, between two runs.
unsafe impl Send for Paged {}

impl Paged {
    /// The entry that leads to the guest's tables, and where it is from [`layout::PAGE_TABLES`] on: in the highest table, or, for a program, in place of the
    /// first directory.
    pub(super) fn root(&self) -> (u64, u64) {
        if self.program.is_empty() { (8, entry(0)) } else { (PAGE, entry(PAGE)) }
    }

    /// Maps and fills it.
    pub(super) fn new(vm: &BareVm, paging: Paging, words: &[u32]) -> Result<Paged> {
        let data = u64::from(paging.bytes);
        let room = data.max(u64::from(paging.scattered_mib) << 20);
        let bytes = usize::try_from(layout::FRAME_TABLES + room).map_err(|e| e.to_string())?;
        let is_guest_memfd = paging.backing == Backing::GuestMemfd;
        let (file, reserved) = match paging.backing {
            Backing::Hugetlb => {
                let reserved = reserve(bytes)?;
                (Some(huge_memfd(bytes)?), Some(reserved))
            }
            Backing::GuestMemfd => (Some(guest_memfd(vm, bytes as u64, MMAP_AND_SHARED)?), None),
            _ => (None, None),
        };
        let private =
            paging.backing.is_protected().then(|| guest_memfd(vm, room, 0)).transpose()?;
        let (mapping, mapped) = match &file {
            Some(file) => (map(bytes, libc::MAP_SHARED, file.as_raw_fd())?, bytes),
            None => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                (map(bytes + HUGE, flags, -1)?, bytes + HUGE)
            }
        };
        let first = mapping.cast::<u8>();
        let start =
            if file.is_some() { first } else { first.wrapping_add(first.align_offset(HUGE)) };
        let program = Vec::new();
        let mut paged = Paged {
            mapping,
            mapped,
            start,
            bytes,
            file,
            is_guest_memfd,
            private,
            reserved,
            program,
        };
        paged.advise(paging.backing, 0..paged.bytes)?;
        if let Some(probed) = paging.probed {
            paged.probed(probed, words)?;
            return Ok(paged);
        }
        let frames = match words {
            [] => frames(data / PAGE, room / PAGE, paging.scattered_mib > 0),
            _ => {
                words.iter().map(|frame| layout::FRAME_TABLES + u64::from(*frame) * PAGE).collect()
            }
        };
        if paged.private.is_none() {
            frames.iter().for_each(|frame| paged.put(*frame, 0));
        }
        paged.put(0, entry(PAGE));
        let first = if paging.program { layout::PROGRAM / PAGE } else { 0 };
        for (page, frame) in (first..).zip(&frames) {
            let is_mapped = !paging.large || page % ENTRIES == 0;
            is_mapped.then(|| paged.map(page, *frame, paging.large));
        }
        if paging.chain {
            paged.chain(&frames);
        }
        if paging.program {
            // Payloads have what is below.
            let below = (0..layout::PROGRAM).step_by(HUGE);
            below.for_each(|at| paged.put(PAGE + (at >> 18), at | PRESENT_WRITABLE | LARGE));
            paged.program = frames;
        }
        Ok(paged)
    }

    /// Makes a program's memory what it is at the start.
    pub(super) fn load(&mut self, program: &UserProgram) -> Result<()> {
        for frame in &self.program {
            let page = self.start.wrapping_add(*frame as usize);
            // SAFETY: within the mapping, a whole page; the vCPU does not run.
            unsafe { page.write_bytes(0, PAGE as usize) };
        }
        program.pieces.iter().try_for_each(|(at, bytes)| self.write(u64::from(*at), bytes))
    }

    /// Writes to a program's memory.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        self.parts(at, bytes.len(), |place, length| {
            let (part, after) = rest.split_at(length);
            rest = after;
            // SAFETY: so many bytes are within a page of the mapping; the vCPU does not run.
            unsafe { place.copy_from_nonoverlapping(part.as_ptr(), length) };
        })
    }

    /// Reads from a program's memory.
    pub(super) fn read(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        self.parts(at, length, |place, length| {
            // SAFETY: so many bytes are within a page of the mapping; the vCPU does not run.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(place, length) });
        })?;
        Ok(bytes)
    }

    /// The parts of a program's memory that are in one page each.
    fn parts(&self, at: u64, length: usize, mut each: impl FnMut(*mut u8, usize)) -> Result<()> {
        let outside = || format!("the program hands over memory at {at:#x} that it does not have");
        let (mut from, end) = (at, at.checked_add(length as u64).ok_or_else(outside)?);
        while from < end {
            let page = from.checked_sub(layout::PROGRAM).ok_or_else(outside)? / PAGE;
            let frame = self.program.get(page as usize).ok_or_else(outside)?;
            let length = (end - from).min(PAGE - from % PAGE);
            each(self.start.wrapping_add((frame + from % PAGE) as usize), length as usize);
            from += length;
        }
        Ok(())
    }

    /// Asks for huge pages in these bytes, or for none.
    fn advise(&self, backing: Backing, bytes: Range<usize>) -> Result<()> {
        let advice = match backing {
            Backing::Thp => libc::MADV_HUGEPAGE,
            Backing::Small | Backing::Private => libc::MADV_NOHUGEPAGE,
            _ => return Ok(()),
        };
        let first = self.start.wrapping_add(bytes.start);
        // SAFETY: within the mapping.
        let advised = unsafe { libc::madvise(first.cast(), bytes.len(), advice) } == 0;
        // A kernel without huge pages has small ones anyway.
        if advised || backing != Backing::Thp { Ok(()) } else { Err(system("MADV_HUGEPAGE")) }
    }

    /// Writes a word at an offset from [`layout::FRAMES`].
    fn put(&self, at: u64, word: u64) {
        debug_assert!(at as usize + 8 <= self.bytes);
        // SAFETY: within the mapping, aligned; the VM does not run yet.
        unsafe { self.start.wrapping_add(at as usize).cast::<u64>().write_volatile(word) };
    }

    /// Maps a page of 4 KiB, or the 2 MiB that begin with it, to a frame: there are a table of 1 GiB, one of its directories, and tables of small
    /// pages behind.
    fn map(&self, page: u64, frame: u64, large: bool) {
        let (directory, in_table) = (page / ENTRIES, page % ENTRIES);
        let (in_directory, table) = (PAGE + 8 * directory, (2 + directory) * PAGE);
        if large {
            return self.put(in_directory, entry(frame) | LARGE);
        }
        self.put(in_directory, entry(table));
        self.put(table + 8 * in_table, entry(frame));
    }

    /// Memory for chains.
    fn probed(&self, probed: Probed, words: &[u32]) -> Result<()> {
        let (regions, small) = (u64::from(probed.regions), u64::from(probed.small));
        let region = |at: u64| (layout::FRAME_TABLES as usize) + at as usize * HUGE;
        let mut order: Vec<u64> = (0..regions).collect();
        shuffle(&mut order);
        for at in order.into_iter().take(probed.small as usize) {
            self.advise(Backing::Small, region(at)..region(at + 1))?;
        }
        if small * 2 > regions {
            self.advise(Backing::Small, region(regions)..self.bytes)?;
            self.advise(Backing::Small, 0..region(0))?;
        }
        self.put(0, entry(PAGE));
        let frames = frames((self.bytes as u64 - layout::FRAME_TABLES) / PAGE, 0, false);
        frames.iter().for_each(|frame| self.put(*frame, 0));
        let (huge, rest) = frames.split_at((regions * ENTRIES) as usize);
        let (small, rest) = rest.split_at(probed.pages as usize);
        let huge = (0..).zip(huge.iter().step_by(ENTRIES as usize));
        huge.for_each(|(at, frame)| self.map(at * ENTRIES, *frame, true));
        let first = probed.small_pages() / PAGE;
        // Contiguous frames would share sets of a data cache: a chain has one line of each, at 64 different offsets.
        let mut small = small.to_vec();
        shuffle(&mut small);
        let small = (0..).zip(&small);
        small.for_each(|(at, frame)| self.map(first + at * u64::from(probed.apart), *frame, false));
        let first = probed.words() / PAGE;
        (0..).zip(rest).for_each(|(at, frame)| self.map(first + at, *frame, false));
        // Two words at a time, in the frames of the last part.
        for (at, pair) in (0..).zip(words.chunks(2)) {
            let second = pair.get(1).copied().unwrap_or(0);
            let word = u64::from(pair[0]) | u64::from(second) << 32;
            let frame = rest.get((8 * at / PAGE) as usize).ok_or("the words have no room")?;
            self.put(frame + 8 * at % PAGE, word);
        }
        Ok(())
    }

    /// A cycle through all pages, in pseudo-random order: each has, in a line of its own choice, the address of the next.
    fn chain(&self, frames: &[u64]) {
        let mut order: Vec<u64> = (0..frames.len() as u64).collect();
        shuffle(&mut order);
        // Its first page is where the payload begins.
        let first = order.iter().position(|page| *page == 0).unwrap_or(0);
        order.rotate_left(first);
        for (at, page) in order.iter().enumerate() {
            let next = order[(at + 1) % order.len()];
            let address = layout::DATA + next * PAGE + offset_in_page(next);
            self.put(frames[*page as usize] + offset_in_page(*page), address);
        }
    }

    /// Gives it to the VM.
    ///
    /// # Safety
    /// It must outlive the VM.
    pub(super) unsafe fn attach(&self, vm: &BareVm) -> Result<()> {
        if let Some(private) = &self.private {
            let tables = layout::FRAME_TABLES as usize;
            let (at, frames) = (layout::FRAMES + layout::FRAME_TABLES, self.bytes - tables);
            // SAFETY: the caller keeps both parts.
            unsafe {
                vm.memory(layout::FRAMES, self.start, tables)?;
                vm.memory_of(private, at, self.start.wrapping_add(tables), frames)?;
            }
            return vm.make_private(at, frames as u64);
        }
        match self.file.as_ref().filter(|_| self.is_guest_memfd) {
            // SAFETY: the caller keeps it.
            Some(file) => unsafe { vm.memory_of(file, layout::FRAMES, self.start, self.bytes) },
            // SAFETY: the caller keeps it.
            None => unsafe { vm.memory(layout::FRAMES, self.start, self.bytes) },
        }
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the VM that used it is gone.
        unsafe { libc::munmap(self.mapping, self.mapped) };
        self.file = None;
        if let Some(reserved) = &self.reserved {
            // Pages that stay reserved are lost to the host, which ends soon.
            let _ = fs::write(HUGETLB, reserved);
        }
    }
}

/// An entry that leads to an offset from [`layout::FRAMES`].
fn entry(offset: u64) -> u64 {
    (layout::FRAMES + offset) | PRESENT_WRITABLE
}

fn shuffle(order: &mut [u64]) {
    let mut random = Random::default();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Where the chain's pointer is in a page: 0 in page 0, elsewhere in one of its lines.
fn offset_in_page(page: u64) -> u64 {
    (page.wrapping_mul(0x9e37_79b1) >> 26) % LINES * 64
}

/// Offsets from [`layout::FRAMES`] of so many frames, among `room` of them.
fn frames(count: u64, room: u64, scattered: bool) -> Vec<u64> {
    let offset = |frame: u64| layout::FRAME_TABLES + frame * PAGE;
    if !scattered {
        return (0..count).map(offset).collect();
    }
    let mut random = Random::default();
    let mut taken = vec![false; room as usize];
    let mut free = || loop {
        let frame = random.below(room);
        if !std::mem::replace(&mut taken[frame as usize], true) {
            return frame;
        }
    };
    (0..count).map(|_| offset(free())).collect()
}

/// xorshift64: the same frames in every run.
struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(88_172_645_463_325_252)
    }
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
