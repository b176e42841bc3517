//! An init of 400 bytes, assembled here: it writes READY and the TSC to sector 0 of the mailbox, waits for an order
//! in sector 1, and obeys.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vmtax_machine::cpio::{ArchiveEntry, archive};

/// Echoes sector 1 to sector 2 and powers off.
pub(crate) const ECHO: u8 = b'E';
/// Says HUNG in sector 0 and never does anything again.
pub(crate) const HANG: u8 = b'H';
/// Ends, which makes Linux panic.
pub(crate) const PANIC: u8 = b'P';

const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;
const BUFFER: u64 = BASE + 0x1000;

/// An initramfs that holds the program.
pub(crate) fn initramfs() -> Vec<u8> {
    let program = elf(program().expect("the program assembles"));
    archive(&[
        ArchiveEntry::folder("dev"),
        ArchiveEntry::device("dev/console", 5, 1),
        ArchiveEntry::file("init", 0o755, &program),
    ])
    .expect("the archive is small")
}

fn program() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let (mut read, mut write, mut transfer) =
        (a.create_label(), a.create_label(), a.create_label());
    let (mut order, mut echo, mut hang, mut panic) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    let mut forever = a.create_label();
    // close(0), close(1), close(2): Bochs sends zeros to a terminal that is open (see `bochs/saved.rs`).
    for descriptor in 0..3 {
        a.mov(eax, 3)?;
        a.mov(edi, descriptor)?;
        a.syscall()?;
    }
    // iopl(3); from here on ports can be used.
    a.mov(eax, 172)?;
    a.mov(edi, 3)?;
    a.syscall()?;
    a.mov(rbx, BUFFER)?;
    a.mov(rax, u64::from_le_bytes(*b"READY\0\0\0"))?;
    a.mov(qword_ptr(rbx), rax)?;
    a.rdtsc()?;
    a.mov(dword_ptr(rbx + 8), eax)?;
    a.mov(dword_ptr(rbx + 12), edx)?;
    a.xor(ebp, ebp)?;
    a.call(write)?;
    a.set_label(&mut order)?;
    a.mov(ebp, 1)?;
    a.call(read)?;
    a.mov(al, byte_ptr(rbx))?;
    for (letter, label) in [(ECHO, echo), (HANG, hang), (PANIC, panic)] {
        a.cmp(al, i32::from(letter))?;
        a.je(label)?;
    }
    a.jmp(order)?;

    a.set_label(&mut echo)?;
    a.mov(ebp, 2)?;
    a.call(write)?;
    // reboot(LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_POWER_OFF)
    a.mov(edi, 0xfee1_deadu32)?;
    a.mov(esi, 672_274_793)?;
    a.mov(edx, 0x4321_fedc)?;
    a.mov(eax, 169)?;
    a.syscall()?;

    a.set_label(&mut hang)?;
    a.mov(rax, u64::from_le_bytes(*b"HUNG\0\0\0\0"))?;
    a.mov(qword_ptr(rbx), rax)?;
    a.xor(ebp, ebp)?;
    a.call(write)?;
    a.set_label(&mut forever)?;
    a.jmp(forever)?;

    a.set_label(&mut panic)?;
    a.mov(edi, 3)?;
    a.mov(eax, 60)?;
    a.syscall()?;

    // Reads sector ebp into the buffer at rbx.
    a.set_label(&mut read)?;
    a.mov(ah, 0x20)?;
    a.call(transfer)?;
    a.mov(rdi, rbx)?;
    a.rep().insw()?;
    a.ret()?;
    // Writes the buffer to sector ebp.
    a.set_label(&mut write)?;
    a.mov(ah, 0x30)?;
    a.call(transfer)?;
    a.mov(rsi, rbx)?;
    a.rep().outsw()?;
    ready(&mut a, 0x80, 0)?;
    a.ret()?;
    // Gives the drive command ah for sector ebp and waits for its data; dx and ecx are set for them.
    a.set_label(&mut transfer)?;
    a.nop()?;
    ready(&mut a, 0x80, 0)?;
    for (port, value) in [(0x376, 2), (0x176, 0xe0), (0x172, 1), (0x174, 0), (0x175, 0)] {
        a.mov(edx, port)?;
        a.mov(al, value)?;
        a.out(dx, al)?;
    }
    a.mov(edx, 0x173)?;
    a.mov(cl, ah)?;
    a.mov(eax, ebp)?;
    a.out(dx, al)?;
    a.mov(edx, 0x177)?;
    a.mov(al, cl)?;
    a.out(dx, al)?;
    ready(&mut a, 0x88, 0x08)?;
    a.mov(edx, 0x170)?;
    a.mov(ecx, 256)?;
    a.ret()?;
    a.assemble(BASE + HEADERS)
}

/// Waits until the drive's status, masked, has this value.
fn ready(a: &mut CodeAssembler, mask: u32, value: i32) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.set_label(&mut again)?;
    a.mov(edx, 0x177)?;
    a.mov(cl, ah)?;
    a.in_(al, dx)?;
    a.mov(ah, cl)?;
    a.and(al, mask as i32)?;
    a.cmp(al, value)?;
    a.jne(again)
}

/// A program of one segment that may be read, written and run, with a page behind it.
fn elf(code: Vec<u8>) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    let length = HEADERS + code.len() as u64;
    for half in [2u16, 62] {
        out.extend(half.to_le_bytes());
    }
    out.extend(1u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    out.extend(1u32.to_le_bytes());
    out.extend(7u32.to_le_bytes());
    for word in [0, BASE, BASE, length, BUFFER + 0x1000 - BASE, 0x1000] {
        out.extend(word.to_le_bytes());
    }
    out.extend(code);
    out
}
