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

const ACCESSES: u32 = 20;

/// Of the small VMM's virtio devices, without and with a bounce buffer of the guest's.
pub(super) const DEVICES: &[Definition] = &[
    device("linux-read-4k", "a read of 4 KiB from a virtio disk, past the page cache"),
    device("linux-read-4k-bounced", "the same through a bounce buffer"),
    device("linux-read-64k", "a read of 64 KiB"),
    device("linux-read-64k-bounced", "the same through a bounce buffer"),
    device("linux-write-4k", "a write of 4 KiB"),
    device("linux-write-4k-bounced", "the same through a bounce buffer"),
    device("linux-request", "64 bytes over TCP to a server on the host, and 64 back"),
    device("linux-request-bounced", "the same through a bounce buffer"),
    device("linux-send-64k", "64 KiB over TCP to a server on the host, and a byte back"),
    device("linux-send-64k-bounced", "the same through a bounce buffer"),
];

const fn device(name: &'static str, summary: &'static str) -> Definition {
    let code = GuestCode { linux: Some(LinuxWork::Device(ACCESSES)), ..line(nothing) };
    let (count, kind) = (ACCESSES, ExpectedExits::Measured);
    Definition { name, summary, count, kind, code: code.only_on_arm() }
}

const fn workload(
    name: &'static str,
    summary: &'static str,
    (count, rounds): (u32, u32),
) -> Definition {
    let code = GuestCode { linux: Some(LinuxWork::Workload(rounds)), ..line(nothing) };
    Definition { name, summary, count, kind: ExpectedExits::Measured, code: code.only_on_arm() }
}
