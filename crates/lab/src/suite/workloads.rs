//! Built-in workloads in a Linux guest of the arm64 host: ordinary, or protected where the host is so.
//!
//! They are the programs of `vmtax bench` (`vmtax-builtin`), a fixed number of rounds in place of a time. Left out: `ipi`, as the small VMM has one vCPU, and
//! `cpuid`, as reads of ID registers by a program are no exits.

use vmtax_guest::order::LinuxWork;

use super::definition::{Definition, ExpectedExits, GuestCode, line, nothing};

const PAGES_OF_32M: u32 = 8_192;
const PAGES_OF_8M: u32 = 2_048;
const WAKE_UPS: u32 = 200;

pub(super) const OPERATIONS: &[Definition] = &[
    workload("linux-matmul", "a row of a matrix product, in small pages", (1, 1)),
    workload("linux-touch-4k", "first touch of a 4 KiB page of a program", (PAGES_OF_32M, 1)),
    workload("linux-touch-2m", "the same in huge pages of the guest", (PAGES_OF_32M, 1)),
    workload("linux-timer", "a thread sleeps 50 us", (WAKE_UPS, WAKE_UPS)),
    // Two threads are woken in each round.
    workload("linux-wakeup", "a thread is woken by another one", (WAKE_UPS, WAKE_UPS / 2)),
    workload(
        "linux-loopback",
        "a byte to a server on the loopback, and back",
        (WAKE_UPS, WAKE_UPS),
    ),
];

/// Of each batch it keeps what it touched. After other workloads the guest would give it memory that they have used and given back.
pub(super) const FIRST_TOUCH: &[Definition] = &[workload(
    "linux-touch-new",
    "first touch of a 4 KiB page that the guest never used",
    (PAGES_OF_8M, 1),
)];

const fn workload(
    name: &'static str,
    summary: &'static str,
    (count, rounds): (u32, u32),
) -> Definition {
    let code = GuestCode { linux: Some(LinuxWork::Workload(rounds)), ..line(nothing) };
    Definition { name, summary, count, kind: ExpectedExits::Measured, code: code.only_on_arm() }
}
