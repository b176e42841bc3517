//! First touches of memory of each kind, and conversions between private and shared memory.
//!
//! A name says all of an operation: `touch-4k-guest-memfd-populated-prefault` stores to each 4 KiB page of memory that is a
//! guest_memfd, whose pages the host had, and which was pre-faulted. Operations that a kernel cannot run are skipped with a reason.
//!
//! | backing | memory |
//! |---|---|
//! | `thp`, `small` | anonymous, with transparent huge pages or without |
//! | `hugetlb` | a memfd of 2 MiB pages |
//! | `guest-memfd` | an ordinary VM's guest_memfd, mapped by the VMM |
//! | `private` | a software-protected VM's private memory |

use iced_x86::code_asm::{dword_ptr, eax, ecx, edx, rbx, rsi};
use vmtax_guest::order::{Backing, Touch};

use super::definition::{Definition, ExpectedExits, GuestCode, line, nothing, whole};
use super::primitives::{PAGE_2M, PAGE_4K, start_touching, touch_2m, touch_4k};
use crate::payload::{Assemble, Assembler};

/// Regions of 2 MiB in a batch; one at L2.
const REGIONS: u32 = 4;
pub(super) const PAGES: u32 = PAGE_2M / PAGE_4K;
/// `KVM_HC_MAP_GPA_RANGE`, with the attributes of private and of shared memory.
const MAP_GPA_RANGE: u32 = 12;
pub(super) const PRIVATE: u32 = 1 << 4;
pub(super) const SHARED: u32 = 0;

/// What was done to memory before a batch touches it.
#[derive(Clone, Copy)]
pub(super) struct Before {
    populated: bool,
    prefault: bool,
}

impl Before {
    pub(super) const fn prefaults(self) -> bool {
        self.prefault
    }
}

pub(super) const COLD: Before = Before { populated: false, prefault: false };
pub(super) const POPULATED: Before = Before { populated: true, prefault: false };
pub(super) const PREFAULTED: Before = Before { populated: false, prefault: true };
pub(super) const BOTH: Before = Before { populated: true, prefault: true };

/// All touches of each backing, then the rest.
macro_rules! operations {
    ($($word:literal $backing:ident $what:literal,)+ rest: $($rest:expr,)+) => {
        pub(super) const OPERATIONS: &[Definition] = &[
            $(
                small(concat!("touch-4k-", $word), concat!("first store to each 4 KiB page of ", $what), Backing::$backing, COLD),
                small(concat!("touch-4k-", $word, "-populated"), "the same, and the host has the pages", Backing::$backing, POPULATED),
                small(concat!("touch-4k-", $word, "-prefault"), "the same, after KVM_PRE_FAULT_MEMORY", Backing::$backing, PREFAULTED),
                small(concat!("touch-4k-", $word, "-populated-prefault"), "the same, after both", Backing::$backing, BOTH),
                large(concat!("touch-2m-", $word), concat!("first store to each 2 MiB of ", $what), Backing::$backing, COLD),
                large(concat!("touch-2m-", $word, "-populated"), "the same, and the host has the pages", Backing::$backing, POPULATED),
                large(concat!("touch-2m-", $word, "-prefault"), "the same, after KVM_PRE_FAULT_MEMORY", Backing::$backing, PREFAULTED),
                large(concat!("touch-2m-", $word, "-populated-prefault"), "the same, after both", Backing::$backing, BOTH),
            )+
            $($rest,)+
        ];
    };
}

operations! {
    "thp" Thp "transparent huge pages",
    "small" Small "memory without huge pages",
    "hugetlb" Hugetlb "hugetlb pages",
    "guest-memfd" GuestMemfd "a guest_memfd",
    "private" Private "a software-protected VM's private memory",
    rest:
    hypercall("convert-4k-shared", "4 KiB of private memory made shared by hypercall", Backing::Private, PAGES, to_shared_4k),
    hypercall("convert-4k-private", "4 KiB of shared memory made private by hypercall", Backing::Shared, PAGES, to_private_4k),
    hypercall("convert-2m-shared", "2 MiB of private memory made shared by hypercall", Backing::Private, 1, to_shared_2m),
    hypercall("convert-2m-private", "2 MiB of shared memory made private by hypercall", Backing::Shared, 1, to_private_2m),
    implicit("convert-4k-implicit", "an access to private memory, at which the VMM makes its 4 KiB shared", PAGE_4K, PAGES, touch_4k),
    implicit("convert-2m-implicit", "an access to private memory, at which the VMM makes its 2 MiB shared", PAGE_2M, 1, touch_2m),
    shattering("shatter", "one 4 KiB page of a shared 2 MiB page made private, then each 4 KiB page touched", shatter),
    shattering("shatter-back", "as shatter; then the page made shared again and each page touched again", shatter_back),
}

pub(super) const fn definition(
    (name, summary): (&'static str, &'static str),
    in_region: u32,
    kind: ExpectedExits,
    (backing, before): (Backing, Before),
    code: GuestCode,
) -> Definition {
    let touch = Touch {
        bytes: REGIONS * PAGE_2M,
        backing,
        populated: before.populated,
        prefault: before.prefault,
        counted: true,
    };
    let code = GuestCode { batch: start_touching, touch: Some(touch), ..code };
    Definition { name, summary, count: REGIONS * in_region, kind, code }
}

/// Pre-faulted memory may take no fault at all; other memory takes some.
pub(super) const fn faults(before: Before) -> ExpectedExits {
    if before.prefault { ExpectedExits::Measured } else { ExpectedExits::Some }
}

const fn small(
    name: &'static str,
    summary: &'static str,
    backing: Backing,
    before: Before,
) -> Definition {
    definition((name, summary), PAGES, faults(before), (backing, before), line(touch_4k))
}

const fn large(
    name: &'static str,
    summary: &'static str,
    backing: Backing,
    before: Before,
) -> Definition {
    definition((name, summary), 1, faults(before), (backing, before), line(touch_2m))
}

/// Of memory that is mapped, as far as its host can.
const fn hypercall(
    name: &'static str,
    summary: &'static str,
    backing: Backing,
    in_region: u32,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    let kind = super::definition::each("hypercall", "VMCALL");
    definition((name, summary), in_region, kind, (backing, BOTH), line(body))
}

const fn implicit(
    name: &'static str,
    summary: &'static str,
    unit: u32,
    in_region: u32,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    let kind = super::definition::each("npf", "EPT_VIOLATION");
    definition((name, summary), in_region, kind, (Backing::Unbacked(unit), POPULATED), line(body))
}

const fn shattering(
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    let kind = super::definition::each("hypercall", "VMCALL");
    definition((name, summary), 1, kind, (Backing::Shared, BOTH), whole(nothing, body))
}

/// Asks for so many pages from rbx on to become private or shared.
pub(super) fn convert(asm: &mut Assembler, pages: u32, attributes: u32) -> Assemble {
    asm.a.mov(eax, MAP_GPA_RANGE)?;
    asm.a.mov(ecx, pages)?;
    asm.a.mov(edx, attributes)?;
    asm.hypercall()
}

fn to_shared_4k(asm: &mut Assembler) -> Assemble {
    convert(asm, 1, SHARED)?;
    asm.a.add(rbx, PAGE_4K as i32)
}

fn to_private_4k(asm: &mut Assembler) -> Assemble {
    convert(asm, 1, PRIVATE)?;
    asm.a.add(rbx, PAGE_4K as i32)
}

fn to_shared_2m(asm: &mut Assembler) -> Assemble {
    convert(asm, PAGES, SHARED)?;
    asm.a.add(rbx, PAGE_2M as i32)
}

fn to_private_2m(asm: &mut Assembler) -> Assemble {
    convert(asm, PAGES, PRIVATE)?;
    asm.a.add(rbx, PAGE_2M as i32)
}

/// Stores to each 4 KiB page of the 2 MiB at rbx.
fn touch_region(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rsi, rbx)?;
    asm.a.mov(ecx, PAGES)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    asm.a.mov(dword_ptr(rsi), eax)?;
    asm.a.add(rsi, PAGE_4K as i32)?;
    asm.a.dec(ecx)?;
    asm.a.jnz(again)
}

fn shatter(asm: &mut Assembler) -> Assemble {
    convert(asm, 1, PRIVATE)?;
    touch_region(asm)?;
    asm.a.add(rbx, PAGE_2M as i32)
}

fn shatter_back(asm: &mut Assembler) -> Assemble {
    convert(asm, 1, PRIVATE)?;
    touch_region(asm)?;
    convert(asm, 1, SHARED)?;
    touch_region(asm)?;
    asm.a.add(rbx, PAGE_2M as i32)
}
