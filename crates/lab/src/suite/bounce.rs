//! Ring traffic of a virtio driver; in a confidential guest the driver first copies each buffer to shared memory.
//!
//! ```text
//! RING+0   available: buffers offered so far (the guest writes)
//! RING+4   used: buffers taken so far (the device writes)
//! RING+16  16 slots of 16 bytes: address, length
//! ```
//! The device is the VMM: at a write of the kick port it reads new entries.
//!
//! `io-bounced-SIZE` and `io-converted-SIZE` are one I/O of each size by the two ways to give a device data that is in private memory: copy it
//! to a shared buffer, or make its pages shared for the device and private again. The device reads the first page alone, so its own work is the
//! same for each size.

use iced_x86::code_asm::{
    al, dword_ptr, dx, eax, ecx, edi, edx, esi, qword_ptr, r8, r8d, r9, rax, rbx, rsi,
};

use super::definition::{Definition, ExpectedExits, GuestCode, whole};
use super::memory::{PRIVATE as TO_PRIVATE, SHARED as TO_SHARED, convert};
use crate::payload::{Assemble, Assembler};
use vmtax_guest::layout;
use vmtax_guest::order::{Backing, Touch};

const PAGE: u32 = 4096;
const SLOTS: i32 = 16;
/// The driver's data.
const PRIVATE: u64 = layout::RING + 0x2_0000;
/// Shared memory, if the device cannot read the data.
const SHARED: u64 = layout::RING + 0x4_0000;

pub(super) const OPERATIONS: &[Definition] = &[
    row("ring-direct", "a 4 KiB buffer and a kick", direct),
    row("ring-bounced", "a 4 KiB buffer copied into shared memory, and a kick", bounced),
    row("ring-direct-16", "sixteen 4 KiB buffers and one kick", direct_16),
    row(
        "ring-bounced-16",
        "sixteen 4 KiB buffers copied into shared memory, and one kick",
        bounced_16,
    ),
    sized(
        "io-bounced-4k",
        "4 KiB copied into shared memory, and a kick",
        16,
        copied::<{ 4 << 10 }>,
    ),
    sized("io-bounced-16k", "the same with 16 KiB", 16, copied::<{ 16 << 10 }>),
    sized("io-bounced-64k", "the same with 64 KiB", 16, copied::<{ 64 << 10 }>),
    sized("io-bounced-256k", "the same with 256 KiB", 8, copied::<{ 256 << 10 }>),
    sized("io-bounced-2m", "the same with 2 MiB", 4, copied::<{ 2 << 20 }>),
    converting(
        "io-converted-4k",
        "4 KiB made shared and written, a kick, and made private",
        4 << 10,
        16,
        converted::<{ 4 << 10 }>,
    ),
    converting("io-converted-16k", "the same with 16 KiB", 16 << 10, 16, converted::<{ 16 << 10 }>),
    converting("io-converted-64k", "the same with 64 KiB", 64 << 10, 16, converted::<{ 64 << 10 }>),
    converting(
        "io-converted-256k",
        "the same with 256 KiB",
        256 << 10,
        8,
        converted::<{ 256 << 10 }>,
    ),
    converting("io-converted-2m", "the same with 2 MiB", 2 << 20, 4, converted::<{ 2 << 20 }>),
];

/// Data of any size, and the buffer that it is copied to.
const SOURCE: u32 = 4 << 20;
const BUFFER: u32 = 6 << 20;
const _: () = assert!(BUFFER as usize + (2 << 20) <= layout::MEMORY);

const KICKED: ExpectedExits = ExpectedExits::Each { svm: ("io", 1), vmx: ("IO_INSTRUCTION", 1) };

const fn sized(
    name: &'static str,
    summary: &'static str,
    count: u32,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    Definition { name, summary, count, kind: KICKED, code: whole(setup, body) }
}

/// Each operation of a batch has memory of its own, which is private and mapped before.
const fn converting(
    name: &'static str,
    summary: &'static str,
    size: u32,
    count: u32,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    let touch = Touch {
        bytes: size * count,
        backing: Backing::Private,
        populated: true,
        prefault: true,
        counted: true,
    };
    let code = GuestCode { batch: start, touch: Some(touch), ..whole(setup, body) };
    Definition { name, summary, count, kind: KICKED, code }
}

const fn row(
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    Definition {
        name,
        summary,
        count: 20,
        kind: ExpectedExits::Each { svm: ("io", 1), vmx: ("IO_INSTRUCTION", 1) },
        code: whole(setup, body),
    }
}

fn setup(asm: &mut Assembler) -> Assemble {
    asm.a.xor(rbx, rbx)
}

/// Offers a buffer at this address in the next slot.
fn offer(asm: &mut Assembler, address: u64) -> Assemble {
    asm.a.mov(rax, rbx)?;
    asm.a.and(rax, SLOTS - 1)?;
    asm.a.shl(rax, 4)?;
    asm.a.mov(ecx, address as u32)?;
    asm.a.mov(dword_ptr(rax + (layout::RING + 16)), ecx)?;
    asm.a.mov(dword_ptr(rax + (layout::RING + 20)), 0)?;
    asm.a.mov(dword_ptr(rax + (layout::RING + 24)), PAGE)?;
    asm.a.inc(rbx)?;
    asm.a.mov(qword_ptr(layout::RING + 8), rbx)?;
    asm.a.mov(eax, dword_ptr(layout::RING + 8))?;
    asm.a.mov(dword_ptr(layout::RING), eax)
}

fn copy(asm: &mut Assembler) -> Assemble {
    asm.a.mov(esi, PRIVATE as u32)?;
    asm.a.mov(edi, SHARED as u32)?;
    asm.a.mov(ecx, PAGE / 8)?;
    asm.a.rep().movsq()
}

fn copied<const SIZE: u32>(asm: &mut Assembler) -> Assemble {
    asm.a.mov(esi, SOURCE)?;
    asm.a.mov(edi, BUFFER)?;
    asm.a.mov(ecx, SIZE / 8)?;
    asm.a.rep().movsq()?;
    offer(asm, BUFFER.into())?;
    kick(asm)
}

fn start(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8d, layout::TOUCH as u32)
}

/// Converts the memory at r8.
fn convert_here(asm: &mut Assembler, size: u32, attributes: u32) -> Assemble {
    asm.a.mov(r9, rbx)?;
    asm.a.mov(rbx, r8)?;
    convert(asm, size / PAGE, attributes)?;
    asm.a.mov(rbx, r9)
}

fn converted<const SIZE: u32>(asm: &mut Assembler) -> Assemble {
    convert_here(asm, SIZE, TO_SHARED)?;
    // What was private is lost: the data is written when the pages are shared.
    asm.a.mov(rsi, r8)?;
    asm.a.mov(ecx, SIZE / PAGE)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    asm.a.mov(dword_ptr(rsi), eax)?;
    asm.a.add(rsi, PAGE as i32)?;
    asm.a.dec(ecx)?;
    asm.a.jnz(again)?;
    // The device has the descriptor of a page that it can read.
    offer(asm, SHARED)?;
    kick(asm)?;
    convert_here(asm, SIZE, TO_PRIVATE)?;
    asm.a.add(r8, SIZE as i32)
}

/// Kicks the device, and waits until it has processed all buffers.
fn kick(asm: &mut Assembler) -> Assemble {
    asm.a.mov(edx, u32::from(layout::KICK))?;
    asm.a.out(dx, al)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    asm.a.mov(eax, dword_ptr(layout::RING))?;
    asm.a.cmp(eax, dword_ptr(layout::RING + 4))?;
    asm.a.jne(again)
}

fn direct(asm: &mut Assembler) -> Assemble {
    offer(asm, PRIVATE)?;
    kick(asm)
}

fn bounced(asm: &mut Assembler) -> Assemble {
    copy(asm)?;
    offer(asm, SHARED)?;
    kick(asm)
}

fn direct_16(asm: &mut Assembler) -> Assemble {
    for _ in 0..SLOTS {
        offer(asm, PRIVATE)?;
    }
    kick(asm)
}

fn bounced_16(asm: &mut Assembler) -> Assemble {
    for _ in 0..SLOTS {
        copy(asm)?;
        offer(asm, SHARED)?;
    }
    kick(asm)
}
