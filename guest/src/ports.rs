//! x86 port instructions. [`open`] must have been called by this thread or one before it.

use std::arch::asm;

use crate::Result;

/// The clock of recordings that the instructions of payloads read too.
pub(crate) const TRACE_CLOCK: &str = "x86-tsc";

/// By how much it is ahead of the TSC.
pub(crate) fn trace_clock_ahead() -> i64 {
    0
}
/// COM1's register of the interrupts that it may raise.
const COM1_INTERRUPTS: u16 = 0x3f9;

/// Lets this thread, and threads it starts, use all I/O ports. Disables the interrupts of the console's serial port: Bochs's says every
/// millisecond that a byte has come, and the kernel, which writes to it without interrupts, keeps a console's port open.
pub(crate) fn open() -> Result<()> {
    // SAFETY: changes the calling thread's I/O privilege level only.
    if unsafe { libc::iopl(3) } != 0 {
        return Err(format!("iopl: {}", std::io::Error::last_os_error()));
    }
    out8(COM1_INTERRUPTS, 0);
    Ok(())
}

pub(crate) fn out8(port: u16, value: u8) {
    // SAFETY: an I/O instruction; the ports used here belong to no driver.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags))
    };
}

pub(crate) fn out32(port: u16, value: u32) {
    // SAFETY: as above.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags))
    };
}

// SAFETY: the code is written before this structure exists and executed alone afterwards, by any thread that may use the ports.
unsafe impl Send for MarkCode {}
// SAFETY: as above.
unsafe impl Sync for MarkCode {}

/// Returns.
const RETURN: [u8; 1] = [0xc3];
/// Returns the time: `RDTSC; SHL RDX, 32; OR RAX, RDX; RET`.
const CLOCK: [u8; 10] = [0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0xc3];

/// Writes to ports by the instructions by which a recorder inside an emulator knows a mark: `MOV EDX, port; MOV EAX, R15D; OUT DX, EAX`, then a return, for each of them.
pub(crate) struct MarkCode {
    start: *mut libc::c_void,
    ports: Vec<u16>,
}

impl MarkCode {
    /// Bytes of a mark.
    const SIZE: usize = 32;
    const MARK: usize = 9;

    /// Code for these ports.
    pub(crate) fn new(ports: Vec<u16>) -> Result<MarkCode> {
        MarkCode::with(ports, &RETURN)
    }

    /// Code for these ports that reads the clock right after the mark.
    pub(crate) fn clocked(ports: Vec<u16>) -> Result<MarkCode> {
        MarkCode::with(ports, &CLOCK)
    }

    fn with(ports: Vec<u16>, then: &[u8]) -> Result<MarkCode> {
        let mut code = vec![0; ports.len() * MarkCode::SIZE];
        for (room, port) in code.chunks_exact_mut(MarkCode::SIZE).zip(&ports) {
            let [low, high] = port.to_le_bytes();
            let (mark, rest) = room.split_at_mut(MarkCode::MARK);
            mark.copy_from_slice(&[0xba, low, high, 0, 0, 0x44, 0x89, 0xf8, 0xef]);
            rest[..then.len()].copy_from_slice(then);
        }
        let bytes = code.len().max(1);
        // SAFETY: new memory, which this structure owns, and of which nothing but the code is executed.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(format!("memory for marks: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the mapping has room for it.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), start.cast(), code.len()) };
        Ok(MarkCode { start, ports })
    }

    /// Writes to a port; nothing if there is no code for it. Returns the time, if the code is [`MarkCode::clocked`].
    pub(crate) fn write(&self, port: u16) -> u64 {
        let Some(at) = self.ports.iter().position(|one| *one == port) else { return 0 };
        let code = self.start.wrapping_byte_add(at * MarkCode::SIZE);
        // SAFETY: the code there is a function that changes two registers, which its caller may not rely on. Nobody answers at the port.
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(code)() }
    }
}

impl Drop for MarkCode {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.start, self.ports.len().max(1) * MarkCode::SIZE) };
    }
}

/// Writes to [`vmtax_guest::layout::UNRECORDED`] with the instructions by which a recorder inside an emulator knows a mark.
pub(crate) fn unrecorded() {
    // SAFETY: an I/O instruction; nobody answers at the port.
    unsafe {
        asm!("mov edx, {port}", "mov eax, r15d", "out dx, eax", port = const vmtax_guest::layout::UNRECORDED,
            out("edx") _, out("eax") _, options(nomem, nostack, preserves_flags))
    };
}

pub(crate) fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: as above.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// Reads bytes one after the other from a port.
pub(crate) fn read_bytes(port: u16, into: &mut [u8]) {
    // SAFETY: writes into.len() bytes to `into`, no more.
    unsafe {
        asm!("rep insb", in("dx") port, inout("rdi") into.as_mut_ptr() => _, inout("rcx") into.len() => _, options(nostack, preserves_flags));
    }
}

/// Writes bytes one after the other to a port.
pub(crate) fn write_bytes(port: u16, from: &[u8]) {
    // SAFETY: reads from.len() bytes of `from`, no more.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") from.as_ptr() => _, inout("rcx") from.len() => _, options(nostack, preserves_flags, readonly));
    }
}

/// Writes bytes to a port, four at a time.
pub(crate) fn write_fours(port: u16, from: &[u8]) {
    let (fours, rest) = from.as_chunks::<4>();
    // SAFETY: reads fours.len() * 4 bytes of `fours`, no more.
    unsafe {
        asm!("rep outsd", in("dx") port, inout("rsi") fours.as_ptr() => _, inout("rcx") fours.len() => _, options(nostack, preserves_flags, readonly));
    }
    write_bytes(port, rest);
}

/// Reads 16-bit words; the length is even.
pub(crate) fn read_words(port: u16, into: &mut [u8]) {
    // SAFETY: writes len / 2 * 2 bytes to `into`, no more.
    unsafe {
        asm!("rep insw", in("dx") port, inout("rdi") into.as_mut_ptr() => _, inout("rcx") into.len() / 2 => _, options(nostack, preserves_flags));
    }
}

/// Writes 16-bit words; the length is even.
pub(crate) fn write_words(port: u16, from: &[u8]) {
    // SAFETY: reads len / 2 * 2 bytes of `from`, no more.
    unsafe {
        asm!("rep outsw", in("dx") port, inout("rsi") from.as_ptr() => _, inout("rcx") from.len() / 2 => _, options(nostack, preserves_flags, readonly));
    }
}

/// Waits before the next look for an order.
pub(crate) fn wait() {
    crate::system::align();
}
