//! Processors to simulate: the files of `processors/`.

use std::sync::LazyLock;

use serde::Deserialize;

const FILES: [(&str, &str); 4] = [
    ("zen4", include_str!("../../processors/zen4.toml")),
    ("zen3", include_str!("../../processors/zen3.toml")),
    ("sapphire-rapids", include_str!("../../processors/sapphire-rapids.toml")),
    ("neoverse-n1", include_str!("../../processors/neoverse-n1.toml")),
];

/// Sizes and latencies of a processor. Those that are not published are left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Processor {
    #[serde(default)]
    pub name: String,
    /// The processor, for people.
    pub title: String,
    /// The first data TLB.
    pub(super) first_tlb: Tlb,
    /// For large pages, where these have one of their own.
    pub(super) first_tlb_large: Option<Tlb>,
    /// For stores, where these have one of their own.
    pub(super) first_tlb_stores: Option<Tlb>,
    pub(super) second_tlb: Tlb,
    pub(super) second_tlb_large: Option<Tlb>,
    /// Entries of page tables that the walker keeps.
    pub(super) walker: Option<Walker>,
    /// The data caches, nearest first: one, or three.
    pub(super) cache: Vec<Cache>,
    pub(super) memory: Option<Memory>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tlb {
    pub(super) entries: usize,
    pub(super) ways: usize,
    /// What a hit adds to the latency of an access.
    pub(super) cycles: Option<u64>,
    source: String,
}

/// What the walker keeps, and where it reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Walker {
    /// Entries of the guest's tables of 2 MiB, 1 GiB and 512 GiB for each entry, by guest-virtual address.
    pub(super) guest: [usize; 3],
    /// The same of the nested tables, by guest-physical address.
    pub(super) nested: [usize; 3],
    /// Nested translations of the guest's tables.
    pub(super) tables: usize,
    /// The nearest cache that it reads, from 1.
    pub(super) reads: usize,
    /// What a read takes beyond the latency of that cache.
    pub(super) cycles: u64,
    source: String,
}

/// A data cache with lines of 64 bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cache {
    pub(super) kib: usize,
    pub(super) ways: usize,
    /// Latency of a load.
    pub(super) cycles: Option<u64>,
    source: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    /// Latency of a load.
    pub(super) cycles: u64,
    source: String,
}

impl Processor {
    /// All of them.
    ///
    /// # Panics
    /// Never: a test reads the files, which are part of the program.
    pub fn all() -> &'static [Processor] {
        static ALL: LazyLock<Vec<Processor>> = LazyLock::new(|| {
            let read = |(name, text): (&str, &str)| {
                let processor: Processor = toml::from_str(text).expect("a file of this program");
                Processor { name: name.to_owned(), ..processor }
            };
            FILES.map(read).into()
        });
        &ALL
    }

    /// Whether all is known that the references of walks and the latencies of accesses depend on.
    pub fn is_timed(&self) -> bool {
        let tlbs = [Some(&self.first_tlb), Some(&self.second_tlb)];
        let larger = [&self.first_tlb_large, &self.first_tlb_stores, &self.second_tlb_large];
        let tlbs = tlbs.into_iter().chain(larger.map(Option::as_ref)).flatten();
        self.walker.is_some()
            && self.memory.is_some()
            && self.cache.len() == 3
            && tlbs
                .map(|tlb| tlb.cycles)
                .chain(self.cache.iter().map(|c| c.cycles))
                .all(|c| c.is_some())
    }

    /// Where its numbers are from, by part.
    pub fn sources(&self) -> Vec<(&'static str, &str)> {
        let caches = ["L1 cache", "L2 cache", "L3 cache"].into_iter().zip(&self.cache);
        let caches = caches.map(|(name, cache)| (name, cache.source.as_str()));
        let tlbs = [
            ("first TLB", Some(&self.first_tlb)),
            ("first TLB, large pages", self.first_tlb_large.as_ref()),
            ("first TLB, stores", self.first_tlb_stores.as_ref()),
            ("second TLB", Some(&self.second_tlb)),
            ("second TLB, large pages", self.second_tlb_large.as_ref()),
        ];
        let tlbs = tlbs.into_iter().filter_map(|(name, tlb)| Some((name, tlb?.source.as_str())));
        let walker = self.walker.as_ref().map(|one| ("page walker", one.source.as_str()));
        let memory = self.memory.as_ref().map(|one| ("memory", one.source.as_str()));
        tlbs.chain(caches).chain(walker).chain(memory).collect()
    }
}
