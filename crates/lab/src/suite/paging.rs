//! Access patterns on memory in pages of 4 KiB or 2 MiB, in the guest and on the host: what they cost in TLB misses and page walks.
//!
//! A name has the pattern, the guest's pages and the host's: `matmul-4k-on-2m`. Where it ends in a size (`-24g`), the frames of the guest's
//! pages are scattered over so much guest-physical memory; otherwise they are contiguous. All memory is mapped before the first batch, so that
//! batches take no page fault.
//!
//! | pattern | an operation is |
//! |---|---|
//! | `scan` | a load of 8 bytes, each next to the one before, from 4 MiB |
//! | `chase` | a load whose address is what the load before has found, from each 4 KiB page in pseudo-random order |
//! | `random` | a load from a pseudo-random 8 bytes |
//! | `matmul` | a step of a matrix product: a load from a row, a load from a column of 4,096 rows of 4,000 bytes |
//! | `packet` | 4 KiB of a buffer added up; `-bounced`: copied first, as from a bounce buffer |
//!
//! A program of the user's takes the place of the patterns ([`of_program`]), in a bare guest or as a process of a Linux guest. An operation is then a
//! run of the program.
//!
//! Left out: what the accesses cost a processor, which `paging` simulates.

use iced_x86::code_asm::{
    al, dword_ptr, eax, ecx, qword_ptr, r8, r8d, r9, r10, r11, rax, rbx, rcx, rdi, rdx, rsi, xmm0,
    xmm1,
};
use vmtax_guest::layout;
use vmtax_guest::order::{Backing, LinuxWork, Paging, RecordedProgram};

use super::Suite;
use super::definition::{Definition, ExpectedExits, GuestCode, line, nothing, whole};
use super::primitives::PAGE_4K;
use crate::paging::{BYTES as PROGRAM_BYTES, SimulatedProgram};
use crate::payload::{Assemble, Assembler};

/// Bytes of memory: more 4 KiB pages than any TLB has entries.
const BYTES: u32 = 32 << 20;
/// Times that the chain is gone through: caches that are empty at the start count little.
const ROUNDS: u32 = 64;
/// Bytes that are scanned.
const SCANNED: u32 = 4 << 20;
/// Rows of the matrix, columns that are multiplied, and bytes of a row.
const ROWS: u32 = 4096;
const COLUMNS: u32 = 64;
const ROW: i32 = 4000;
/// Packets of 4 KiB, and where their copies are.
const PACKETS: u32 = 1024;
const COPIES: u32 = 16 << 20;
/// Bytes of a Linux guest.
const LINUX_BYTES: u32 = 256 << 20;
/// MSRs of SYSCALL (AMD64 Architecture Programmer's Manual, volume 2, 6.1.1), and EFER with LMA, LME and SCE.
const EFER: u32 = 0xc000_0080;
const STAR: u32 = 0xc000_0081;
const SFMASK: u32 = 0xc000_0084;
const LONG_MODE_WITH_SYSCALL: u64 = 0x501;
/// Offsets of the vector and of the results behind the matrix.
const VECTOR: u32 = 20 << 20;
const RESULTS: u32 = 24 << 20;
/// MiB over which frames are scattered: as much as a large VM has, and no more than the memory itself.
const WIDELY: u32 = 24 << 10;
const WITHIN: u32 = BYTES >> 20;

/// How the memory is mapped: the guest's pages are large, what it is on the host, and MiB over which it is scattered.
#[derive(Clone, Copy)]
struct Mapped(bool, Backing, u32);

/// Memory that is mapped like this.
const fn mapped(Mapped(large, backing, scattered_mib): Mapped, chain: bool) -> Paging {
    Paging { bytes: 0, backing, large, scattered_mib, chain, probed: None, program: false }
}

type Part = fn(&mut Assembler) -> Assemble;

const fn of(
    name: &'static str,
    summary: &'static str,
    (start, body, count, chain): (Part, Part, u32, bool),
    Mapped(large, backing, scattered_mib): Mapped,
) -> Definition {
    let paging = Paging { bytes: BYTES, ..mapped(Mapped(large, backing, scattered_mib), chain) };
    let code = GuestCode { batch: start, paging: Some(paging), ..whole(touch_all, body) };
    Definition { name, summary, count, kind: ExpectedExits::None, code }
}

/// Each pattern with each mapping.
macro_rules! operations {
    ($($word:literal $what:literal $pattern:expr,)+ rest: $($rest:expr,)+) => {
        pub(super) const OPERATIONS: &[Definition] = &[
            $(
                of(concat!($word, "-4k-on-4k"), concat!($what, "; guest and host pages of 4 KiB"), $pattern, Mapped(false, Backing::Small, 0)),
                of(concat!($word, "-4k-on-4k-24g"), concat!($what, "; both 4 KiB, frames scattered over 24 GiB"), $pattern, Mapped(false, Backing::Small, WIDELY)),
                of(concat!($word, "-4k-on-2m"), concat!($what, "; guest 4 KiB, host 2 MiB (hugetlb)"), $pattern, Mapped(false, Backing::Hugetlb, 0)),
                of(concat!($word, "-4k-on-2m-32m"), concat!($what, "; guest 4 KiB, host 2 MiB, frames scattered over 32 MiB"), $pattern, Mapped(false, Backing::Hugetlb, WITHIN)),
                of(concat!($word, "-2m-on-4k"), concat!($what, "; guest 2 MiB, host 4 KiB"), $pattern, Mapped(true, Backing::Small, 0)),
                of(concat!($word, "-2m-on-2m"), concat!($what, "; guest and host 2 MiB (hugetlb)"), $pattern, Mapped(true, Backing::Hugetlb, 0)),
            )+
            $($rest,)+
        ];
    };
}

const MATMUL: (Part, Part, u32, bool) = (start_product, product, ROWS * COLUMNS, false);

const PACKET: (Part, Part, u32, bool) = (start_at_data, packet, PACKETS, false);
const BOUNCED: (Part, Part, u32, bool) = (start_at_data, bounced, PACKETS, false);

operations! {
    "scan" "loads of adjacent 8 bytes" (start_at_data, scan, SCANNED / 8, false),
    "chase" "loads that depend on each other, one in each 4 KiB" (start_at_data, chase, ROUNDS * (BYTES / PAGE_4K), true),
    "random" "loads from random addresses" (start_random, random, 64 << 10, false),
    "matmul" "a matrix product whose inner loop walks down a column" MATMUL,
    rest:
    of("matmul-4k-on-guest-memfd", "that matrix product; guest 4 KiB, host a guest_memfd", MATMUL, Mapped(false, Backing::GuestMemfd, 0)),
    of("matmul-2m-on-guest-memfd", "that matrix product; guest 2 MiB, host a guest_memfd", MATMUL, Mapped(true, Backing::GuestMemfd, 0)),
    of("matmul-4k-on-private", "that matrix product; guest 4 KiB, host private memory", MATMUL, Mapped(false, Backing::Private, 0)),
    of("matmul-2m-on-private", "that matrix product; guest 2 MiB, host private memory", MATMUL, Mapped(true, Backing::Private, 0)),
    of("packet-2m-on-2m", "a packet of 4 KiB is added up; guest and host 2 MiB (hugetlb)", PACKET, Mapped(true, Backing::Hugetlb, 0)),
    of("packet-bounced-2m-on-2m", "the same, copied from a bounce buffer first", BOUNCED, Mapped(true, Backing::Hugetlb, 0)),
    of("packet-bounced-2m-on-4k", "the same; guest 2 MiB, host 4 KiB", BOUNCED, Mapped(true, Backing::Small, 0)),
    of("packet-bounced-2m-on-guest-memfd", "the same; guest 2 MiB, host a guest_memfd", BOUNCED, Mapped(true, Backing::GuestMemfd, 0)),
    of("matmul-2m-on-thp", "that matrix product; guest 2 MiB, host transparent huge pages", MATMUL, Mapped(true, Backing::Thp, 0)),
}

/// The suite's operations that run a program, in place of its patterns. It is kept until the process ends.
pub fn of_program(program: SimulatedProgram) -> &'static Suite {
    let program: &'static SimulatedProgram = Box::leak(Box::new(program));
    let bare = |at| GuestCode {
        paging: Some(Paging { bytes: PROGRAM_BYTES, program: true, ..mapped(at, false) }),
        ..whole(prepare_program, start_program)
    };
    let process = |at| GuestCode {
        paging: Some(Paging { bytes: LINUX_BYTES, ..mapped(at, false) }),
        linux: Some(LinuxWork::Process),
        ..line(nothing)
    };
    let definition = |(name, summary, code): (&'static str, &'static str, GuestCode)| {
        let code = GuestCode { program: Some(program), ..code };
        Definition { name, summary, count: 1, kind: ExpectedExits::Measured, code }
    };
    let summary = "a program by size of pages, with simulated TLB misses and page walks";
    let operations = match &program.ordered {
        RecordedProgram::Bare(_) => {
            PROGRAMS.map(|(name, what, at)| definition((name, what, bare(at)))).to_vec()
        }
        RecordedProgram::Process(_) => {
            PROCESSES.map(|(name, what, at)| definition((name, what, process(at)))).to_vec()
        }
    };
    let operations = Vec::leak(operations);
    Box::leak(Box::new(Suite { name: "paging", summary, operations, nests: false }))
}

/// What a program runs on.
const PROGRAMS: [(&str, &str, Mapped); 7] = [
    (
        "program-4k-on-4k",
        "the program; guest and host pages of 4 KiB",
        Mapped(false, Backing::Small, 0),
    ),
    (
        "program-4k-on-4k-24g",
        "the program; both 4 KiB, frames scattered over 24 GiB",
        Mapped(false, Backing::Small, WIDELY),
    ),
    (
        "program-4k-on-2m",
        "the program; guest 4 KiB, host 2 MiB (hugetlb)",
        Mapped(false, Backing::Hugetlb, 0),
    ),
    ("program-2m-on-4k", "the program; guest 2 MiB, host 4 KiB", Mapped(true, Backing::Small, 0)),
    (
        "program-2m-on-2m",
        "the program; guest and host 2 MiB (hugetlb)",
        Mapped(true, Backing::Hugetlb, 0),
    ),
    (
        "program-2m-on-thp",
        "the program; guest 2 MiB, host transparent huge pages",
        Mapped(true, Backing::Thp, 0),
    ),
    (
        "program-2m-on-guest-memfd",
        "the program; guest 2 MiB, host a guest_memfd",
        Mapped(true, Backing::GuestMemfd, 0),
    ),
];

/// What a process runs on. Where its frames are is its kernel's choice.
const PROCESSES: [(&str, &str, Mapped); 6] = [
    (
        "process-4k-on-4k",
        "the program in a Linux guest; guest and host pages of 4 KiB",
        Mapped(false, Backing::Small, 0),
    ),
    (
        "process-4k-on-2m",
        "the program in a Linux guest; guest 4 KiB, host 2 MiB (hugetlb)",
        Mapped(false, Backing::Hugetlb, 0),
    ),
    (
        "process-2m-on-4k",
        "the program in a Linux guest; guest transparent huge pages, host 4 KiB",
        Mapped(true, Backing::Small, 0),
    ),
    (
        "process-2m-on-2m",
        "the program in a Linux guest; guest transparent huge pages, host 2 MiB (hugetlb)",
        Mapped(true, Backing::Hugetlb, 0),
    ),
    (
        "process-2m-on-thp",
        "the program in a Linux guest; transparent huge pages in guest and host",
        Mapped(true, Backing::Thp, 0),
    ),
    (
        "process-2m-on-guest-memfd",
        "the program in a Linux guest; guest transparent huge pages, host a guest_memfd",
        Mapped(true, Backing::GuestMemfd, 0),
    ),
];

/// Where SYSCALL leads: to the VMM, and back.
fn call(asm: &mut Assembler) -> Assemble {
    asm.a.out(layout::PROGRAM_CALL as u32, al)?;
    asm.a.jmp(rcx)
}

/// The VMM is told of an exception.
fn raised<const VECTOR: u32>(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, VECTOR)?;
    asm.a.out(layout::PROGRAM_FAULT as u32, al)
}

/// SYSCALL with its code segment, and exceptions of the processor.
fn prepare_program(asm: &mut Assembler) -> Assemble {
    asm.gate(0, raised::<0>)?;
    asm.gate(6, raised::<6>)?;
    asm.gate(13, raised::<13>)?;
    asm.gate(14, raised::<14>)?;
    asm.write_msr(EFER, LONG_MODE_WITH_SYSCALL)?;
    asm.write_msr(STAR, 8 << 32)?;
    asm.write_msr(SFMASK, 0)?;
    asm.system_calls(call)?;
    touch(asm, layout::PROGRAM, PROGRAM_BYTES)
}

fn start_program(asm: &mut Assembler) -> Assemble {
    asm.a.out(layout::PROGRAM_START as u32, al)
}

fn touch_all(asm: &mut Assembler) -> Assemble {
    touch(asm, layout::DATA, BYTES)
}

/// Writes to each 4 KiB what is there, so that all is mapped and nothing changes.
fn touch(asm: &mut Assembler, from: u64, bytes: u32) -> Assemble {
    asm.a.mov(rbx, from)?;
    asm.a.mov(ecx, bytes / PAGE_4K)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    asm.a.mov(rax, qword_ptr(rbx))?;
    asm.a.mov(qword_ptr(rbx), rax)?;
    asm.a.add(rbx, PAGE_4K as i32)?;
    asm.a.dec(rcx)?;
    asm.a.jnz(again)
}

fn start_at_data(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rbx, layout::DATA)
}

fn scan(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rax, qword_ptr(rbx))?;
    asm.a.add(rbx, 8)
}

fn chase(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rbx, qword_ptr(rbx))
}

fn start_random(asm: &mut Assembler) -> Assemble {
    start_at_data(asm)?;
    asm.a.mov(r8, 0x9e37_79b9_7f4a_7c15_u64)
}

/// xorshift64 in r8.
fn random(asm: &mut Assembler) -> Assemble {
    let shift = |asm: &mut Assembler, left: bool, by: u32| {
        asm.a.mov(rdx, r8)?;
        if left {
            asm.a.shl(rdx, by)?
        } else {
            asm.a.shr(rdx, by)?
        }
        asm.a.xor(r8, rdx)
    };
    shift(asm, true, 13)?;
    shift(asm, false, 7)?;
    shift(asm, true, 17)?;
    asm.a.mov(rdx, r8)?;
    asm.a.and(rdx, (BYTES - 8) as i32)?;
    asm.a.mov(rax, qword_ptr(rbx + rdx))
}

/// rdi goes down a column, rsi along the vector, r8 counts its rest, r9 columns.
fn start_product(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r10, layout::DATA)?;
    asm.a.mov(r11, layout::DATA + u64::from(RESULTS))?;
    asm.a.mov(rbx, layout::DATA + u64::from(VECTOR))?;
    asm.a.mov(rdi, r10)?;
    asm.a.mov(rsi, rbx)?;
    asm.a.mov(r8d, ROWS)?;
    asm.a.xor(r9, r9)?;
    asm.a.xorps(xmm1, xmm1)
}

fn product(asm: &mut Assembler) -> Assemble {
    asm.a.movss(xmm0, dword_ptr(rsi))?;
    asm.a.mulss(xmm0, dword_ptr(rdi))?;
    asm.a.addss(xmm1, xmm0)?;
    asm.a.add(rsi, 4)?;
    asm.a.add(rdi, ROW)?;
    asm.a.dec(r8)?;
    let mut same_column = asm.a.create_label();
    asm.a.jnz(same_column)?;
    asm.a.movss(dword_ptr(r11 + r9 * 4), xmm1)?;
    asm.a.xorps(xmm1, xmm1)?;
    asm.a.inc(r9)?;
    asm.a.lea(rdi, qword_ptr(r10 + r9 * 4))?;
    asm.a.mov(rsi, rbx)?;
    asm.a.mov(r8d, ROWS)?;
    // The loop goes on there.
    asm.a.set_label(&mut same_column)
}

/// rbx is the packet, and then the next one.
fn packet(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rdi, rbx)?;
    add_up(asm)
}

/// The copy is rdi's, as far from the packet for each.
fn bounced(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rsi, rbx)?;
    asm.a.lea(rdi, qword_ptr(rbx + COPIES as i32))?;
    asm.a.mov(ecx, PAGE_4K / 8)?;
    asm.a.rep().movsq()?;
    asm.a.sub(rdi, PAGE_4K as i32)?;
    add_up(asm)
}

/// Adds up what is at rdi.
fn add_up(asm: &mut Assembler) -> Assemble {
    asm.a.mov(ecx, PAGE_4K / 8)?;
    let mut next = asm.a.create_label();
    asm.a.set_label(&mut next)?;
    asm.a.add(rax, qword_ptr(rdi))?;
    asm.a.add(rdi, 8)?;
    asm.a.dec(rcx)?;
    asm.a.jnz(next)?;
    asm.a.add(rbx, PAGE_4K as i32)
}
