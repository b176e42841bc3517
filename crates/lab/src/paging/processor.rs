//! Processors to simulate: the files of `processors/`.

use std::sync::LazyLock;

use serde::Deserialize;

const FILES: [(&str, &str); 2] = [
    ("zen4", include_str!("../../processors/zen4.toml")),
    ("zen3", include_str!("../../processors/zen3.toml")),
];

/// Sizes and latencies of a processor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Processor {
    #[serde(default)]
    pub name: String,
    /// The processor, for people.
    pub title: String,
    /// The first data TLB; pages of all sizes share it.
    pub(super) first_tlb: Tlb,
    pub(super) second_tlb: Tlb,
    /// Entries of page tables that the walker keeps.
    pub(super) walker: Walker,
    /// The data caches, nearest first.
    pub(super) cache: [Cache; 3],
    pub(super) memory: Memory,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tlb {
    pub(super) entries: usize,
    pub(super) ways: usize,
    /// What a hit adds to the latency of an access.
    pub(super) cycles: u64,
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
    source: String,
}

/// A data cache with lines of 64 bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cache {
    pub(super) kib: usize,
    pub(super) ways: usize,
    /// Latency of a load.
    pub(super) cycles: u64,
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

    /// Where its numbers are from, by part.
    pub fn sources(&self) -> Vec<(&'static str, &str)> {
        let caches = ["L1 cache", "L2 cache", "L3 cache"].into_iter().zip(&self.cache);
        let caches = caches.map(|(name, cache)| (name, cache.source.as_str()));
        let tlbs = [("first TLB", &self.first_tlb), ("second TLB", &self.second_tlb)];
        let tlbs = tlbs.into_iter().map(|(name, tlb)| (name, tlb.source.as_str()));
        let rest =
            [("page walker", self.walker.source.as_str()), ("memory", self.memory.source.as_str())];
        tlbs.chain(caches).chain(rest).collect()
    }
}
