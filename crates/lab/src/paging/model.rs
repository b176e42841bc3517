//! One processor: its TLBs, what its page walker keeps, and its data caches, all with least-recently-used replacement.
//!
//! The walker of AMD's processors is modelled: it keeps entries of the guest's tables by guest-virtual address, entries of the nested tables by
//! guest-physical address, and nested translations of the guest's tables. Each reference that is left reads an entry at its host-physical address
//! through the data caches, which the program's own accesses share.

use vmtax_events::Simulated;

use super::processor::Processor;
use super::tables::{Nested, Walk, shift};

/// Entries with least-recently-used replacement in each set.
struct Lru {
    ways: usize,
    sets: u64,
    /// Tag plus 1, and when it was used; tags of 0 are free.
    entries: Vec<(u64, u64)>,
    clock: u64,
}

impl Lru {
    fn new(entries: usize, ways: usize) -> Lru {
        let ways = ways.max(1);
        let sets = (entries / ways).max(1) as u64;
        Lru { ways, sets, entries: vec![(0, 0); sets as usize * ways], clock: 0 }
    }

    /// All entries in one set.
    fn full(entries: usize) -> Lru {
        Lru::new(entries, entries)
    }

    fn set(&mut self, index: u64) -> &mut [(u64, u64)] {
        self.clock += 1;
        let first = (index % self.sets) as usize * self.ways;
        &mut self.entries[first..first + self.ways]
    }

    /// Whether it is there, which is a use of it.
    fn has(&mut self, index: u64, tag: u64) -> bool {
        let clock = self.clock + 1;
        match self.set(index).iter_mut().find(|entry| entry.0 == tag + 1) {
            Some(entry) => {
                entry.1 = clock;
                true
            }
            None => false,
        }
    }

    /// Puts it in the place of what was used longest ago.
    fn put(&mut self, index: u64, tag: u64) {
        let clock = self.clock + 1;
        if let Some(entry) = self.set(index).iter_mut().min_by_key(|entry| entry.1) {
            *entry = (tag + 1, clock);
        }
    }
}

/// A processor with nothing in its TLBs and caches.
pub(super) struct Model {
    processor: &'static Processor,
    first: Lru,
    second: Lru,
    guest: [Lru; 3],
    nested: [Lru; 3],
    /// Nested translations of the guest's tables.
    tables: Option<Lru>,
    caches: [Lru; 3],
    /// By instruction, in the order of [`Model::access`]'s numbers.
    pub(super) counts: Vec<Simulated>,
    /// The instruction that accesses.
    at: usize,
}

/// Lines of a KiB.
const LINES: usize = 16;

impl Model {
    pub(super) fn new(processor: &'static Processor) -> Model {
        let (first, second) = (&processor.first_tlb, &processor.second_tlb);
        let walker = &processor.walker;
        Model {
            processor,
            first: Lru::new(first.entries, first.ways),
            second: Lru::new(second.entries, second.ways),
            guest: walker.guest.map(Lru::full),
            nested: walker.nested.map(Lru::full),
            tables: (walker.tables > 0).then(|| Lru::full(walker.tables)),
            caches: [0, 1, 2].map(|at| {
                let cache = &processor.cache[at];
                Lru::new(cache.kib * LINES, cache.ways)
            }),
            counts: Vec::new(),
            at: 0,
        }
    }

    fn counts(&mut self) -> &mut Simulated {
        &mut self.counts[self.at]
    }

    /// An access by the instruction of this number to an address of the page whose walk is given, and to what it is translated to.
    pub(super) fn access(&mut self, at: usize, walk: &Walk, (address, physical): (u64, u64)) {
        self.at = at;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, Simulated::default());
        }
        let is_large = walk.leaf > 1 && walk.page.leaf > 1;
        let level = if is_large { 2 } else { 1 };
        let page = address >> shift(level);
        // An entry is a page's, and its size.
        let tag = page << 1 | u64::from(is_large);
        if !self.first.has(page, tag) {
            self.counts().l1_misses += 1;
            self.counts().cycles += self.processor.second_tlb.cycles;
            if !self.second.has(page, tag) {
                self.counts().walks += 1;
                self.walk(walk, address);
                self.second.put(page, tag);
            }
            self.first.put(page, tag);
        }
        let (found, cycles) = self.latency(physical, 0);
        self.counts().data_misses += u64::from(found > 0);
        self.counts().cycles += cycles;
    }

    /// The cache that has a line, which all nearer ones get; 3 is memory. And its latency.
    fn latency(&mut self, physical: u64, nearest: usize) -> (usize, u64) {
        let line = physical >> 6;
        let found = (nearest..3).find(|at| self.caches[*at].has(line, line)).unwrap_or(3);
        self.caches[nearest..found].iter_mut().for_each(|cache| cache.put(line, line));
        let cache = self.processor.cache.get(found);
        (found, cache.map_or(self.processor.memory.cycles, |cache| cache.cycles))
    }

    /// The walker reads an entry.
    fn reference(&mut self, physical: u64) {
        let nearest = self.processor.walker.reads.saturating_sub(1);
        let (found, cycles) = self.latency(physical, nearest);
        self.counts().references[found] += 1;
        self.counts().walk_cycles += cycles;
        self.counts().cycles += cycles;
    }

    fn walk(&mut self, walk: &Walk, address: u64) {
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
