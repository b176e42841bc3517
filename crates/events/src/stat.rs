//! Sampled counters: KVM's statistics, sizes of mapped pages, the processor's counters.

/// One counter, read once.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    /// When, ns on the recorder's clock; 0 where it is not known.
    pub time_ns: u64,
    /// The [`crate::Vm`] that it is of, or [`Stat::HOST`].
    pub vm: u32,
    /// The counter's name, as the one who keeps it calls it: `pages_4k`, `dTLB-load-misses`. Hostile text.
    pub name: String,
    /// Unit of `value`: `pages`, `count`, ...
    pub unit: String,
    pub value: f64,
}

impl Stat {
    /// In place of a VM: the host, or unknown.
    pub const HOST: u32 = u32::MAX;

    /// Pages of 4 KiB, 2 MiB and 1 GiB that are mapped in the nested page tables, as KVM counts them.
    pub const PAGES: [(&'static str, u64); 3] =
        [("pages_4k", 4 << 10), ("pages_2m", 2 << 20), ("pages_1g", 1 << 30)];
}
