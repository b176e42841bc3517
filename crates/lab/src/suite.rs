//! Suites: tables of operations. Each defines the instructions that the guest executes and the exits that they must cause.

mod arm;
mod arm_nested;
mod arm_perf;
mod arm_pmu;
mod boot;
mod bounce;
pub mod chains;
mod definition;
pub mod memory;
mod nested_ops;
pub mod own;
pub mod paging;
mod perf;
pub mod pmu;
mod primitives;
mod resume;
mod start;
mod timers;
mod workloads;

pub use definition::{CountedValue, Definition, ExpectedExits, Least, Ordered};
use definition::{GuestCode, clean, line, nothing};
pub(crate) use start::LIVES_LEAST;

/// A suite.
#[derive(Debug)]
pub struct Suite {
    /// Name for `--suite`.
    pub name: &'static str,
    /// One line for `lab list`.
    pub summary: &'static str,
    /// Its operations, in order.
    pub operations: &'static [Definition],
    /// It can also run in L2.
    pub nests: bool,
}

/// All suites.
pub const SUITES: [Suite; 14] = [
    Suite {
        name: "primitives",
        summary: "instructions and events of a guest that can cause an exit",
        operations: &PRIMITIVES,
        nests: true,
    },
    Suite {
        name: "nested-ops",
        summary: "a hypervisor's instructions (VMX, SVM, EL2 of arm64), executed by L1",
        operations: &NESTED_OPS,
        nests: false,
    },
    Suite {
        name: "timers",
        summary: "a timer workload with different clock sources, APIC modes and idle loops",
        operations: timers::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "bounce",
        summary: "ring I/O, with and without copies through a bounce buffer",
        operations: bounce::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "memory",
        summary: "first accesses to memory of each backing, and conversions between private and shared",
        operations: memory::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "start",
        summary: "steps of a VM's life, from open(2) of /dev/kvm to close(2), with waiting apart",
        operations: start::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "boot",
        summary: "boot of a Linux guest, until it has powered off (arm64)",
        operations: boot::OPERATIONS,
        nests: false,
    },
    Suite {
        name: "workloads",
        summary: "the built-in workloads of `vmtax bench` in a Linux guest (arm64)",
        operations: workloads::OPERATIONS,
        nests: false,
    },
    Suite {
        name: "first-touch",
        summary: "memory that a Linux guest never used, if no other suite runs before (arm64)",
        operations: workloads::FIRST_TOUCH,
        nests: false,
    },
    Suite {
        name: "devices",
        summary: "virtio disk and network of a Linux guest, with and without a bounce buffer (arm64)",
        operations: workloads::DEVICES,
        nests: false,
    },
    Suite {
        name: "resume",
        summary: "first accesses to memory that comes from a snapshot, by the way in which it comes",
        operations: resume::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "pmu",
        summary: "a guest's PMU accesses: on a virtual PMU in user space, with host events recreated or reused; on arm64 on KVM's own",
        operations: &PMU,
        nests: false,
    },
    Suite {
        name: "perf",
        summary: "exits of a guest that multiplexes, samples or switches its own counters; on arm64 of a Linux guest",
        operations: &PERF,
        nests: true,
    },
    Suite {
        name: "paging",
        summary: "access patterns, or a program (--program), by size of pages, with simulated TLB misses and page walks",
        operations: paging::OPERATIONS,
        nests: false,
    },
];

/// The empty operation: the cost of the loop around all others.
pub const EMPTY: Definition = Definition {
    name: "empty",
    summary: "the empty loop, which is subtracted from all others",
    count: 200,
    kind: ExpectedExits::None,
    code: GuestCode { arm: Some(arm::EMPTY), ..clean(line(nothing)) },
};

static PRIMITIVES: [Definition; primitives::OPERATIONS.len() + arm::OPERATIONS.len()] =
    with_arm(primitives::OPERATIONS, arm::OPERATIONS);
static NESTED_OPS: [Definition; nested_ops::OPERATIONS.len() + arm_nested::OPERATIONS.len()] =
    with_arm(nested_ops::OPERATIONS, arm_nested::OPERATIONS);

static PMU: [Definition; pmu::OPERATIONS.len() + arm_pmu::OPERATIONS.len()] =
    with_arm(pmu::OPERATIONS, arm_pmu::OPERATIONS);

static PERF: [Definition; perf::OPERATIONS.len() + arm_perf::OPERATIONS.len()] =
    with_arm(perf::OPERATIONS, arm_perf::OPERATIONS);

/// Operations of x86, then those of arm64.
const fn with_arm<const N: usize>(of_x86: &[Definition], of_arm: &[Definition]) -> [Definition; N] {
    let mut all = [EMPTY; N];
    let (first, last) = all.split_at_mut(of_x86.len());
    first.copy_from_slice(of_x86);
    last.copy_from_slice(of_arm);
    all
}

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
        .find(|definition| definition.name == name)
}
