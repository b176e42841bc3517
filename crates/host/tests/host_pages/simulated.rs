//! A processor with two levels of data TLBs, and noise: how long a chain of loads takes on it.
//!
//! The sizes are parameters; those of named processors are about what their vendors publish, and no result depends on them.

use std::collections::HashMap;

use vmtax_events::setting::host_pages::{HugePageSource, REGION};
use vmtax_host::host_pages::{Area, LoadChain, Loads};

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// Which entry of a set makes room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Replacement {
    Lru,
    /// The tree of bits of many processors, for any number of ways.
    Tree,
    Random,
    Fifo,
}

/// Entries, ways, replacement.
pub(crate) type TlbSize = (usize, usize, Replacement);

/// A processor. Times are of one load, ns. Its name is for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) name: &'static str,
    /// The first TLB, and that for pages of 2 MiB and more, if it is another.
    pub(crate) first: TlbSize,
    pub(crate) first_large: Option<TlbSize>,
    pub(crate) second: TlbSize,
    /// Bytes of neighbouring small pages of the host that one entry covers.
    pub(crate) joins: usize,
    /// A load that hits everywhere, what a miss of the first TLB adds, and a walk.
    pub(crate) times: [f64; 3],
}

/// What disturbs a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// Of all chunks: those that are interrupted.
    pub(crate) interrupted: f64,
    /// Of all chunks: those beside a neighbour, which makes each load take longer.
    pub(crate) disturbed: f64,
    /// The processor's clock changes by this part.
    pub(crate) clock: f64,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// A set-associative TLB. An entry is a page: its size, and its number.
struct Tlb {
    ways: usize,
    replacement: Replacement,
    entries: Vec<Option<(usize, usize)>>,
    /// By way: when it was used (LRU) or filled (FIFO), or bits of a tree, by set.
    state: Vec<u64>,
    clock: u64,
}

impl Tlb {
    fn new((entries, ways, replacement): TlbSize) -> Tlb {
        let state = vec![0; entries];
        Tlb { ways, replacement, entries: vec![None; entries], state, clock: 0 }
    }

    /// Whether a page is there; it is afterwards.
    fn hits(&mut self, page: (usize, usize), random: &mut Random) -> bool {
        self.clock += 1;
        let first = page.1 % (self.entries.len() / self.ways) * self.ways;
        let set = first..first + self.ways;
        if let Some(way) = set.clone().find(|at| self.entries[*at] == Some(page)) {
            self.touch(first, way - first, false);
            return true;
        }
        let empty = set.clone().find(|at| self.entries[*at].is_none());
        let way = empty.map_or_else(|| self.victim(first, random), |at| at - first);
        self.entries[first + way] = Some(page);
        self.touch(first, way, true);
        false
    }

    fn touch(&mut self, first: usize, way: usize, is_new: bool) {
        match self.replacement {
            Replacement::Lru => self.state[first + way] = self.clock,
            Replacement::Fifo if is_new => self.state[first + way] = self.clock,
            Replacement::Tree => {
                // Each node on the way points away from what was used.
                let (mut low, mut high, mut node) = (0, self.ways, 1);
                while high - low > 1 {
                    let middle = low.midpoint(high);
                    let is_right = way >= middle;
                    self.state[first + node % self.ways] = u64::from(!is_right);
                    (low, high) = if is_right { (middle, high) } else { (low, middle) };
                    node = 2 * node + usize::from(is_right);
                }
            }
            Replacement::Fifo | Replacement::Random => {}
        }
    }

    fn victim(&self, first: usize, random: &mut Random) -> usize {
        match self.replacement {
            Replacement::Random => random.below(self.ways),
            Replacement::Lru | Replacement::Fifo => {
                (0..self.ways).min_by_key(|way| self.state[first + way]).unwrap_or(0)
            }
            Replacement::Tree => {
                let (mut low, mut high, mut node) = (0, self.ways, 1);
                while high - low > 1 {
                    let middle = low.midpoint(high);
                    let is_right = self.state[first + node % self.ways] == 1;
                    (low, high) = if is_right { (middle, high) } else { (low, middle) };
                    node = 2 * node + usize::from(is_right);
                }
                low
            }
        }
    }
}

/// A VM on such a processor.
pub(crate) struct SimulatedVm {
    processor: Processor,
    noise: Noise,
    page: usize,
    huge: usize,
    regions: usize,
    /// The host's page of each region, bytes, and of all other memory.
    host: Vec<usize>,
    elsewhere: usize,
    random: Random,
    chunks: u64,
    /// What the loads of a chain wait for their translations, by its first place and its length.
    known: HashMap<(Area, usize, usize), f64>,
    first: Tlb,
    first_large: Option<Tlb>,
    second: Tlb,
}

impl SimulatedVm {
    /// A VM of which `small` of `regions` regions, at random, are in the host's pages of `host` bytes, the others in 2 MiB.
    pub(crate) fn new(
        processor: Processor,
        noise: Noise,
        (page, huge): (usize, usize),
        (regions, small, host): (usize, usize, usize),
        seed: u64,
    ) -> SimulatedVm {
        let mut random = Random(seed);
        let mut all: Vec<usize> =
            (0..regions).map(|at| if at < small { host } else { 2 * MIB }).collect();
        for last in (1..regions).rev() {
            all.swap(last, random.below(last + 1));
        }
        let elsewhere = if small * 2 > regions { host } else { 2 * MIB };
        let large = processor.first_large.map(Tlb::new);
        let (first, second) = (Tlb::new(processor.first), Tlb::new(processor.second));
        SimulatedVm {
            processor,
            noise,
            page,
            huge,
            regions,
            host: all,
            elsewhere,
            random,
            chunks: 0,
            known: HashMap::new(),
            first,
            first_large: large,
            second,
        }
    }

    /// The entry that a load needs: bytes, and number.
    fn entry(&self, area: Area, place: usize) -> (usize, usize) {
        let (guest, host) = match area {
            Area::Small => (self.page, self.elsewhere),
            Area::Huge => (self.huge, self.host[self.region(place)]),
        };
        // Pages of the guest's smallest size are not neighbours in the host.
        let joined = if area == Area::Huge { self.processor.joins.max(host) } else { host };
        let bytes = guest.min(joined);
        (bytes, place / bytes + if area == Area::Huge { 1 << 40 } else { 0 })
    }

    fn region(&self, place: usize) -> usize {
        let (page, inside) = (place / (3 * self.huge), place % (3 * self.huge));
        (page * self.huge + inside) / REGION
    }

    fn load(&mut self, entry: (usize, usize)) -> f64 {
        let [_, miss, walk] = self.processor.times;
        let first = match &mut self.first_large {
            Some(large) if entry.0 >= 2 * MIB => large,
            _ => &mut self.first,
        };
        if first.hits(entry, &mut self.random) {
            0.0
        } else if self.second.hits(entry, &mut self.random) {
            miss
        } else {
            walk
        }
    }

    /// What a load of a chain that was followed twice waits for its translation, on average.
    fn steady(&mut self, chain: &LoadChain) -> f64 {
        let entries: Vec<(usize, usize)> =
            chain.places.iter().map(|place| self.entry(chain.area, *place)).collect();
        let mut follow = |times: usize| {
            let all = (0..times).flat_map(|_| &entries);
            all.map(|entry| self.load(*entry)).sum::<f64>() / (times * entries.len()) as f64
        };
        follow(2);
        follow(3)
    }

    /// What disturbs a chunk: a factor, and ns for each load.
    fn disturbance(&mut self) -> (f64, f64) {
        let Noise { interrupted, disturbed, clock } = self.noise;
        let phase = (self.chunks as f64 / 500.0).sin().abs();
        let mut added = 0.0;
        if self.random.part() < interrupted {
            added += 10_f64.powf(3.0 * self.random.part()) - 1.0;
        }
        if self.random.part() < disturbed {
            added += 3.0 * self.random.part();
        }
        ((1.0 + clock * phase) * (1.0 + 0.01 * self.random.part()), added)
    }
}

impl Loads for SimulatedVm {
    fn page(&self) -> usize {
        self.page
    }

    fn huge(&self) -> usize {
        self.huge
    }

    fn source(&self) -> HugePageSource {
        HugePageSource::Thp
    }

    fn regions(&self) -> Vec<usize> {
        let in_page = self.huge / REGION;
        (0..self.regions).map(|at| at / in_page * 3 * self.huge + at % in_page * REGION).collect()
    }

    fn small_pages(&self) -> usize {
        8192
    }

    fn time(&mut self, chain: &LoadChain, _: usize) -> f64 {
        self.chunks += 1;
        let loads = chain.places.len();
        let key = (chain.area, chain.places[0], loads);
        let waits = match self.known.get(&key) {
            Some(waits) => *waits,
            None => {
                let waits = self.steady(chain);
                self.known.insert(key, waits);
                waits
            }
        };
        let data = match loads {
            0..=512 => self.processor.times[0],
            513..=16_383 => 3.0 * self.processor.times[0],
            _ => 8.0 * self.processor.times[0],
        };
        let (factor, added) = self.disturbance();
        (data + waits) * factor + added
    }
}
