//! One processor: its TLBs, what its page walker keeps, and its data caches, all with least-recently-used replacement.
//!
//! The walker of AMD's processors is modelled: it keeps entries of the guest's tables by guest-virtual address, entries of the nested tables by
//! guest-physical address, and nested translations of the guest's tables. Each reference that is left reads an entry at its host-physical address
//! through the data caches, which the program's own accesses share. Of a processor that is not [timed](Processor::is_timed) only misses are counted.
//!
//! What is dropped, and when ([`Dropped`]), is what AMD64 Architecture Programmer's Manual says, volume 2, 5.5.2 and 15.16, of a processor without PCID: what the emulated
//! one is. TLBs hold entries of one ASID: KVM gives a guest another one to drop what the old one has.

use vmtax_events::Simulated;

use super::processor::{Processor, Tlb};
use super::tables::{Nested, Walk, shift};

/// Entries with least-recently-used replacement in each set.
struct Lru {
    ways: usize,
    sets: u64,
    entries: Vec<Entry>,
    clock: u64,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Plus 1; 0 of a free one.
    tag: u64,
    used: u64,
    page: PageKind,
}

/// What INVLPG and a write to CR3 look at.
#[derive(Clone, Copy, Default)]
struct PageKind {
    is_global: bool,
    /// A part of a large page of the guest.
    is_of_large: bool,
}

impl Lru {
    fn new(entries: usize, ways: usize) -> Lru {
        let ways = ways.max(1);
        let sets = (entries / ways).max(1) as u64;
        Lru { ways, sets, entries: vec![Entry::default(); sets as usize * ways], clock: 0 }
    }

    /// All entries in one set.
    fn full(entries: usize) -> Lru {
        Lru::new(entries, entries)
    }

    fn set(&mut self, index: u64) -> &mut [Entry] {
        self.clock += 1;
        let first = (index % self.sets) as usize * self.ways;
        &mut self.entries[first..first + self.ways]
    }

    /// Whether it is there, which is a use of it.
    fn has(&mut self, index: u64, tag: u64) -> bool {
        let clock = self.clock + 1;
        match self.set(index).iter_mut().find(|entry| entry.tag == tag + 1) {
            Some(entry) => {
                entry.used = clock;
                true
            }
            None => false,
        }
    }

    /// Puts it in the place of what was used longest ago.
    fn put(&mut self, index: u64, tag: u64) {
        self.put_page(index, tag, PageKind::default());
    }

    fn put_page(&mut self, index: u64, tag: u64, page: PageKind) {
        let used = self.clock + 1;
        if let Some(entry) = self.set(index).iter_mut().min_by_key(|entry| entry.used) {
            *entry = Entry { tag: tag + 1, used, page };
        }
    }

    /// Frees the entries of which this is so. They are the first to be used again.
    fn drop_if(&mut self, is_dropped: impl Fn(&Entry) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| is_dropped(entry)) {
            *entry = Entry::default();
        }
    }

    fn clear(&mut self) {
        self.drop_if(|_| true);
    }
}

/// What a processor drops of what its TLBs and its walker keep of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// All but global pages: a write to CR3. The walker drops all entries of the guest's tables.
    NotGlobal,
    /// One page, whatever its size, at this address: INVLPG. The walker drops all entries of the guest's tables above those of pages.
    Page(u64),
    /// All, those of the nested tables, too: the guest has another ASID, or TLB_CONTROL says so.
    All,
}

/// A processor with nothing in its TLBs and caches.
pub(super) struct Model {
    processor: &'static Processor,
    is_timed: bool,
    first: Lru,
    first_large: Option<Lru>,
    first_stores: Option<Lru>,
    second: Lru,
    second_large: Option<Lru>,
    guest: [Lru; 3],
    nested: [Lru; 3],
    /// Nested translations of the guest's tables.
    tables: Option<Lru>,
    caches: Vec<Lru>,
    /// By instruction, in the order of [`Model::access`]'s numbers.
    pub(super) counts: Vec<Simulated>,
    /// The instruction that accesses.
    at: usize,
}

/// An access, and to what it is translated.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) address: u64,
    pub(super) physical: u64,
    pub(super) is_store: bool,
}

/// Lines of a KiB.
const LINES: usize = 16;

impl Model {
    pub(super) fn new(processor: &'static Processor) -> Model {
        let tlb = |tlb: &Tlb| Lru::new(tlb.entries, tlb.ways);
        let other = |of: &Option<Tlb>| of.as_ref().map(tlb);
        let walker = processor.walker.as_ref();
        let (guest, nested) = walker.map_or(([0; 3], [0; 3]), |one| (one.guest, one.nested));
        let tables = walker.map_or(0, |one| one.tables);
        let caches = processor.cache.iter();
        Model {
            processor,
            is_timed: processor.is_timed(),
            first: tlb(&processor.first_tlb),
            first_large: other(&processor.first_tlb_large),
            first_stores: other(&processor.first_tlb_stores),
            second: tlb(&processor.second_tlb),
            second_large: other(&processor.second_tlb_large),
            guest: guest.map(Lru::full),
            nested: nested.map(Lru::full),
            tables: (tables > 0).then(|| Lru::full(tables)),
            caches: caches.map(|cache| Lru::new(cache.kib * LINES, cache.ways)).collect(),
            counts: Vec::new(),
            at: 0,
        }
    }

    fn counts(&mut self) -> &mut Simulated {
        &mut self.counts[self.at]
    }

    fn takes(&mut self, cycles: Option<u64>) {
        if self.is_timed {
            self.counts().cycles += cycles.unwrap_or(0);
        }
    }

    fn first(&mut self, is_large: bool, is_store: bool) -> &mut Lru {
        match (&mut self.first_stores, &mut self.first_large) {
            (Some(stores), _) if is_store => stores,
            (_, Some(large)) if is_large => large,
            _ => &mut self.first,
        }
    }

    fn second(&mut self, is_large: bool) -> &mut Lru {
        self.second_large.as_mut().filter(|_| is_large).unwrap_or(&mut self.second)
    }

    /// An access by the instruction of this number to an address of the page whose walk is given, and to what it is translated to.
    pub(super) fn access(&mut self, at: usize, walk: &Walk, access: Access) {
        let Access { address, physical, is_store } = access;
        self.at = at;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, Simulated::default());
        }
        let is_large = walk.leaf > 1 && walk.page.leaf > 1;
        let page = page_of(address, is_large);
        let tag = tag_of(address, is_large);
        let kind = PageKind { is_global: walk.is_global, is_of_large: walk.leaf > 1 };
        if !self.first(is_large, is_store).has(page, tag) {
            self.counts().l1_misses += 1;
            self.takes(self.processor.second_tlb.cycles);
            if !self.second(is_large).has(page, tag) {
                self.counts().walks += 1;
                self.walk(walk, address);
                self.second(is_large).put_page(page, tag, kind);
            }
            self.first(is_large, is_store).put_page(page, tag, kind);
        }
        let (found, cycles) = self.latency(physical, 0);
        self.counts().data_misses += u64::from(found > 0);
        self.takes(cycles);
    }

    pub(super) fn drop_kept(&mut self, dropped: Dropped) {
        let is_dropped = |entry: &Entry| match dropped {
            Dropped::All => true,
            Dropped::NotGlobal => !entry.page.is_global,
            // A large page of the guest on small ones of the host is in many entries.
            Dropped::Page(at) => {
                let is_of_same = entry.tag > 0 && (entry.tag - 1) >> 1 >> 9 == page_of(at, true);
                [false, true].iter().any(|size| entry.tag == tag_of(at, *size) + 1)
                    || entry.page.is_of_large && (entry.tag - 1) & 1 == 0 && is_of_same
            }
        };
        let tlbs = [&mut self.first, &mut self.second].into_iter();
        let others = [&mut self.first_large, &mut self.first_stores, &mut self.second_large];
        tlbs.chain(others.into_iter().flatten()).for_each(|tlb| tlb.drop_if(is_dropped));
        self.guest.iter_mut().for_each(Lru::clear);
        if dropped == Dropped::All {
            self.nested.iter_mut().chain(&mut self.tables).for_each(Lru::clear);
        }
    }

    /// The cache that has a line, which all nearer ones get; behind the last is memory. And its latency.
    fn latency(&mut self, physical: u64, nearest: usize) -> (usize, Option<u64>) {
        let line = physical >> 6;
        let memory = self.caches.len();
        let found = (nearest..memory).find(|at| self.caches[*at].has(line, line)).unwrap_or(memory);
        self.caches[nearest..found].iter_mut().for_each(|cache| cache.put(line, line));
        let memory = self.processor.memory.as_ref().map(|memory| memory.cycles);
        (found, self.processor.cache.get(found).map_or(memory, |cache| cache.cycles))
    }

    /// The walker reads an entry.
    fn reference(&mut self, physical: u64) {
        let walker = self.processor.walker.as_ref();
        let (nearest, more) =
            walker.map_or((0, 0), |one| (one.reads.saturating_sub(1), one.cycles));
        let (found, cycles) = self.latency(physical, nearest);
        let cycles = cycles.map(|cycles| cycles + more);
        self.counts().references[found] += 1;
        self.counts().walk_cycles += cycles.unwrap_or(0);
        self.takes(cycles);
    }

    fn walk(&mut self, walk: &Walk, address: u64) {
        if !self.is_timed {
            return;
        }
        let top = walk.entries.len();
        let from = first_to_read(&mut self.guest, (walk.leaf, top), address);
        for level in (walk.leaf..=from).rev() {
            let place = &walk.entries[level - 1];
            let is_known =
                self.tables.as_mut().is_some_and(|known| known.has(0, place.address >> 12));
            if !is_known {
                self.nested(place);
                if let Some(known) = &mut self.tables {
                    known.put(0, place.address >> 12);
                }
            }
            self.reference(place.physical);
            if level > walk.leaf {
                keep(&mut self.guest, level, address);
            }
        }
        self.nested(&walk.page);
    }

    fn nested(&mut self, of: &Nested) {
        let from = first_to_read(&mut self.nested, (of.leaf, of.levels), of.address);
        for level in (of.leaf..=from).rev() {
            self.reference(of.entries[level - 1]);
            if level > of.leaf {
                keep(&mut self.nested, level, of.address);
            }
        }
    }
}

fn page_of(address: u64, is_large: bool) -> u64 {
    address >> shift(if is_large { 2 } else { 1 })
}

/// An entry is a page's, and its size.
fn tag_of(address: u64, is_large: bool) -> u64 {
    page_of(address, is_large) << 1 | u64::from(is_large)
}

/// The level, between a page's and the highest, from which on entries are read: below the nearest entry that is kept.
fn first_to_read(kept: &mut [Lru; 3], (leaf, top): (usize, usize), address: u64) -> usize {
    let mut above = leaf + 1..=top;
    let known = above.find(|level| place(kept, *level).has(0, key(*level, address)));
    known.map_or(top, |level| level - 1)
}

fn keep(kept: &mut [Lru; 3], level: usize, address: u64) {
    place(kept, level).put(0, key(level, address));
}

/// Entries of the levels above 512 GiB are with those of it.
fn place(kept: &mut [Lru; 3], level: usize) -> &mut Lru {
    &mut kept[level.min(4) - 2]
}

fn key(level: usize, address: u64) -> u64 {
    (address >> shift(level)) << 3 | level as u64
}
