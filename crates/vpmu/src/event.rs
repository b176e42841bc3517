//! Events that counters count: the architectural ones, with each vendor's codes.
//!
//! Model-specific events stay raw; only the host interprets them.

use serde::{Deserialize, Serialize};

/// Bits of an event select register.
pub mod select {
    /// Counts in user mode.
    pub const USER: u64 = 1 << 16;
    /// Counts in kernel mode.
    pub const KERNEL: u64 = 1 << 17;
    /// Interrupts on overflow.
    pub const INTERRUPT: u64 = 1 << 20;
    /// Counts at all.
    pub const ENABLE: u64 = 1 << 22;
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PmuEvent {
    /// Cycles of the core.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Cycles at the reference frequency.
    ReferenceCycles,
    /// References to the last level cache.
    CacheReferences,
    /// Misses of the last level cache.
    CacheMisses,
    /// Branches retired.
    Branches,
    /// Branches retired that were mispredicted.
    BranchMisses,
    /// Slots of the pipeline.
    Slots,
    /// An event of the processor model: code, unit mask, edge, invert and threshold as in the event select register.
    Raw(u64),
}

/// Intel's architectural events: code with unit mask; the index is the bit in CPUID.0AH:EBX
/// (Intel SDM volume 3, "Pre-defined architectural performance events").
pub const INTEL: [(u64, PmuEvent); 8] = [
    (0x003c, PmuEvent::Cycles),
    (0x00c0, PmuEvent::Instructions),
    (0x013c, PmuEvent::ReferenceCycles),
    (0x4f2e, PmuEvent::CacheReferences),
    (0x412e, PmuEvent::CacheMisses),
    (0x00c4, PmuEvent::Branches),
    (0x00c5, PmuEvent::BranchMisses),
    (0x01a4, PmuEvent::Slots),
];

/// AMD's events that are the same on every family: code with unit mask (AMD APM volume 2, "Performance monitoring
/// counters", and the families' PPRs).
pub const AMD: [(u64, PmuEvent); 4] = [
    (0x0076, PmuEvent::Cycles),
    (0x00c0, PmuEvent::Instructions),
    (0x00c2, PmuEvent::Branches),
    (0x00c3, PmuEvent::BranchMisses),
];

/// Events of Intel's fixed counters, in order.
pub const FIXED: [PmuEvent; 4] =
    [PmuEvent::Instructions, PmuEvent::Cycles, PmuEvent::ReferenceCycles, PmuEvent::Slots];

/// Event and modes that a counter is programmed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Programme {
    /// The event.
    pub event: PmuEvent,
    /// Counts in user mode.
    pub user: bool,
    /// Counts in kernel mode.
    pub kernel: bool,
}

/// One of a vCPU's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Counter {
    /// A general counter, by number.
    General(u8),
    /// A fixed counter, by number.
    Fixed(u8),
}

impl Counter {
    /// Its bit in global control and status.
    pub fn bit(self) -> u64 {
        match self {
            Counter::General(i) => 1 << i,
            Counter::Fixed(i) => 1 << (32 + i),
        }
    }
}
