//! Ring traffic of a virtio driver; in a confidential guest the driver first copies each buffer to shared memory.
//!
//! ```text
//! RING+0   available: buffers offered so far (the guest writes)
//! RING+4   used: buffers taken so far (the device writes)
//! RING+16  16 slots of 16 bytes: address, length
//! ```
//! The device is the VMM: at a write of the kick port it reads new entries.

use iced_x86::code_asm::{al, dword_ptr, dx, eax, ecx, edi, edx, esi, qword_ptr, rax, rbx};

use super::{Definition, Kind, whole};
use crate::payload::{Assembled, Assembler};
use vmtax_guest::layout;

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
];

const fn row(
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Assembler) -> Assembled,
) -> Definition {
    Definition {
        name,
        summary,
        count: 20,
        kind: Kind::Each { svm: ("io", 1), vmx: ("IO_INSTRUCTION", 1) },
        code: whole(setup, body),
    }
}

fn setup(asm: &mut Assembler) -> Assembled {
    asm.a.xor(rbx, rbx)
}

/// Offers a buffer at this address in the next slot.
fn offer(asm: &mut Assembler, address: u64) -> Assembled {
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

fn copy(asm: &mut Assembler) -> Assembled {
    asm.a.mov(esi, PRIVATE as u32)?;
    asm.a.mov(edi, SHARED as u32)?;
    asm.a.mov(ecx, PAGE / 8)?;
    asm.a.rep().movsq()
}

/// Kicks the device, and waits until it has processed all buffers.
fn kick(asm: &mut Assembler) -> Assembled {
    asm.a.mov(edx, u32::from(layout::KICK))?;
    asm.a.out(dx, al)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    asm.a.mov(eax, dword_ptr(layout::RING))?;
    asm.a.cmp(eax, dword_ptr(layout::RING + 4))?;
    asm.a.jne(again)
}

fn direct(asm: &mut Assembler) -> Assembled {
    offer(asm, PRIVATE)?;
    kick(asm)
}

fn bounced(asm: &mut Assembler) -> Assembled {
    copy(asm)?;
    offer(asm, SHARED)?;
    kick(asm)
}

fn direct_16(asm: &mut Assembler) -> Assembled {
    for _ in 0..SLOTS {
        offer(asm, PRIVATE)?;
    }
    kick(asm)
}

fn bounced_16(asm: &mut Assembler) -> Assembled {
    for _ in 0..SLOTS {
        copy(asm)?;
        offer(asm, SHARED)?;
    }
    kick(asm)
}
