//! Suites: tables of operations. Each says what the guest executes, and what is known of the exits it must take.

mod bounce;
mod definition;
pub mod memory;
mod nested_ops;
pub mod own;
mod perf;
pub mod pmu;
mod primitives;
mod timers;

pub use definition::{Definition, Kind, Least, Ordered};
use definition::{clean, line, nothing};

/// A suite.
#[derive(Debug)]
pub struct Suite {
    /// Its word.
    pub name: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// Its operations, in order.
    pub operations: &'static [Definition],
    /// It makes sense in L2 too.
    pub nests: bool,
}

/// All suites.
pub const SUITES: [Suite; 7] = [
    Suite {
        name: "primitives",
        summary: "what guests do that may take an exit",
        operations: primitives::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "nested-ops",
        summary: "the instructions of a hypervisor, as L1 issues them",
        operations: nested_ops::OPERATIONS,
        nests: false,
    },
    Suite {
        name: "timers",
        summary: "one timer workload with different clocks, APICs and idle loops",
        operations: timers::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "bounce",
        summary: "ring traffic, with and without copies through a shared buffer",
        operations: bounce::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "memory",
        summary: "first touches of memory of each kind, and what conversions between private and shared leave of it",
        operations: memory::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "pmu",
        summary: "a guest's perf on a virtual PMU in user space, host events created anew and reused",
        operations: pmu::OPERATIONS,
        nests: false,
    },
    Suite {
        name: "perf",
        summary: "what KVM sees of a guest that multiplexes, samples or switches its own counters",
        operations: perf::OPERATIONS,
        nests: true,
    },
];

/// The operation that does nothing: what the loop around all others costs.
pub const EMPTY: Definition = Definition {
    name: "empty",
    summary: "the loop alone: subtracted from all others",
    count: 200,
    kind: Kind::None,
    code: clean(line(nothing)),
};

impl Suite {
    /// The suite of this name.
    pub fn named(name: &str) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.name == name)
    }
}

/// The operation of this name in any suite.
pub fn operation(name: &str) -> Option<&'static Definition> {
    SUITES
        .iter()
        .flat_map(|suite| suite.operations)
        .chain([&EMPTY])
        .chain(own::operations())
        .find(|definition| definition.name == name)
}
