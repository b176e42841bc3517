//! Memory of a resumed VM: the first access to each 4 KiB page, by the way in which the page comes from a snapshot.
//!
//! The snapshot is a memfd whose pages are in the page cache: what a disk takes is left out. A name has the memory, what was done to it
//! before the batch (populated with `MAP_POPULATE`, pre-faulted with `KVM_PRE_FAULT_MEMORY`), and the access. `read-write` is a load of each page
//! and then a store to it, so that its difference to `read` is what a store costs after a load. What preparing takes is `prepared`.

use iced_x86::code_asm::{dword_ptr, eax, rbx};
use vmtax_guest::order::Backing;

use super::arm;
use super::definition::{Definition, GuestCode, OnArm, line};
use super::memory::{BOTH, Before, COLD, PAGES, POPULATED, PREFAULTED, definition, faults};
use super::primitives::{PAGE_4K, touch_4k};
use crate::payload::{Assemble, Assembler};

const PRIVATE: Backing = Backing::Snapshot { shared: false };
const SHARED: Backing = Backing::Snapshot { shared: true };
const BY_4K: Backing = Backing::Userfault(4 << 10);
const BY_64K: Backing = Backing::Userfault(64 << 10);

/// What a page is accessed with: on x86, and on arm64.
#[derive(Clone, Copy)]
struct ResumeAccess {
    x86: fn(&mut Assembler) -> Assemble,
    arm: OnArm,
}

const READ: ResumeAccess = ResumeAccess { x86: read, arm: arm::READ_4K };
const WRITE: ResumeAccess = ResumeAccess { x86: touch_4k, arm: arm::TOUCH_4K };
const READ_WRITE: ResumeAccess = ResumeAccess { x86: read_write, arm: arm::READ_WRITE_4K };

/// Not on arm64: memory that is pre-faulted, and guest_memfd.
const fn pages(
    name: &'static str,
    summary: &'static str,
    of: (Backing, Before),
    access: ResumeAccess,
) -> Definition {
    // A page of 2 MiB takes one exit for all of them.
    let exits = match of.0 {
        Backing::Hugetlb | Backing::Thp => None,
        _ => access.arm.exits,
    };
    let on_arm = match of.0 {
        Backing::GuestMemfd => None,
        _ if of.1.prefaults() => None,
        _ => Some(OnArm { exits, ..access.arm }),
    };
    let code = GuestCode { arm: on_arm, ..line(access.x86) };
    definition((name, summary), PAGES, faults(of.1), of, code)
}

pub(super) const OPERATIONS: &[Definition] = &[
    pages(
        "resume-private-read",
        "load from each page of a private mapping of the snapshot",
        (PRIVATE, COLD),
        READ,
    ),
    pages("resume-private-write", "store to each page of it", (PRIVATE, COLD), WRITE),
    pages(
        "resume-private-read-write",
        "load from each page of it, then store to it",
        (PRIVATE, COLD),
        READ_WRITE,
    ),
    pages(
        "resume-private-populated-read",
        "load; mapped with MAP_POPULATE",
        (PRIVATE, POPULATED),
        READ,
    ),
    pages(
        "resume-private-prefault-read",
        "load; mapped by KVM_PRE_FAULT_MEMORY",
        (PRIVATE, PREFAULTED),
        READ,
    ),
    pages(
        "resume-private-prefault-write",
        "store after KVM_PRE_FAULT_MEMORY",
        (PRIVATE, PREFAULTED),
        WRITE,
    ),
    pages("resume-private-populated-prefault-read", "load after both", (PRIVATE, BOTH), READ),
    pages("resume-private-populated-prefault-write", "store after both", (PRIVATE, BOTH), WRITE),
    pages(
        "resume-shared-read",
        "load from each page of a shared mapping of the snapshot",
        (SHARED, COLD),
        READ,
    ),
    pages("resume-shared-write", "store to each page of it", (SHARED, COLD), WRITE),
    pages(
        "resume-shared-read-write",
        "load from each page of it, then store to it",
        (SHARED, COLD),
        READ_WRITE,
    ),
    pages(
        "resume-uffd-4k-read",
        "load; userfaultfd copies 4 KiB at each fault",
        (BY_4K, COLD),
        READ,
    ),
    pages(
        "resume-uffd-4k-read-write",
        "load and store; userfaultfd copies 4 KiB",
        (BY_4K, COLD),
        READ_WRITE,
    ),
    pages(
        "resume-uffd-64k-read",
        "load; userfaultfd copies 64 KiB at each fault",
        (BY_64K, COLD),
        READ,
    ),
    pages(
        "resume-hugetlb-write",
        "store to each page of new memory, in hugetlb pages",
        (Backing::Hugetlb, COLD),
        WRITE,
    ),
    pages(
        "resume-thp-write",
        "store to each page of new memory, in transparent huge pages",
        (Backing::Thp, COLD),
        WRITE,
    ),
    pages(
        "resume-guest-memfd-write",
        "store to each page of new memory, in a guest_memfd",
        (Backing::GuestMemfd, COLD),
        WRITE,
    ),
    pages(
        "resume-small-write",
        "store to each page of new memory, in pages of 4 KiB",
        (Backing::Small, COLD),
        WRITE,
    ),
];

fn read(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, dword_ptr(rbx))?;
    asm.a.add(rbx, PAGE_4K as i32)
}

fn read_write(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, dword_ptr(rbx))?;
    asm.a.mov(dword_ptr(rbx), eax)?;
    asm.a.add(rbx, PAGE_4K as i32)
}
