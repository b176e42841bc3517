//! What stands for ports on arm64: words at [`vmtax_guest::layout::arm`], which L1 stores to and loads from. The emulated host's own program talks to
//! nobody outside but through the mailbox, and to it they are nothing.

use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use vmtax_guest::layout::{self, CHANNEL, arm};

use crate::Result;

/// The clock of recordings: nanoseconds of the generic timer, which are instructions where it has 1 GHz. Programs read it as
/// `CLOCK_MONOTONIC_RAW`.
pub(crate) const TRACE_CLOCK: &str = "mono_raw";

/// By how much it is ahead of the generic timer.
pub(crate) fn trace_clock_ahead() -> i64 {
    crate::system::clock(libc::CLOCK_MONOTONIC_RAW) - crate::life::machine::ticks() as i64
}

/// The pages of ports and the exchange, in L1.
static WORDS: OnceLock<Words> = OnceLock::new();

struct Words {
    ports: NonNull<u8>,
    /// Absent in a protected guest, whose host cannot access it.
    exchange: Option<NonNull<u8>>,
}

// SAFETY: device memory that lasts as long as the program, accessed by single words.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

/// All ports, from the first one that has a page: a program uses marks too.
const PORTS: u16 = layout::end(layout::OPERATIONS_MOST - 1) + 1 - arm::FIRST_PORT;
const PORT_PAGE: usize =
    (arm::address(arm::FIRST_PORT + 1) - arm::address(arm::FIRST_PORT)) as usize;

/// Finds the words of the VMM outside; of a protected guest without the exchange. The ports have their own addresses, by which a log of the emulator's exceptions
/// knows marks, where nothing else is there.
pub(crate) fn open(is_protected: bool) -> Result<()> {
    let path = "/dev/mem";
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_SYNC).open(path);
    let file = file.map_err(|e| format!("{path}: {e}"))?;
    let map = |at: u64, bytes: usize| {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let wished = std::ptr::without_provenance_mut(at as usize);
        let (file, at) = (file.as_raw_fd(), at as libc::off_t);
        // SAFETY: a new mapping of memory that no driver uses, in place of no other; checked below.
        let mapping = unsafe { libc::mmap(wished, bytes, rights, libc::MAP_SHARED, file, at) };
        match NonNull::new(mapping.cast::<u8>()) {
            Some(mapping) if mapping.as_ptr().cast() != libc::MAP_FAILED => Ok(mapping),
            _ => Err(format!("{path}: {}", std::io::Error::last_os_error())),
        }
    };
    let ports = map(arm::address(arm::FIRST_PORT), usize::from(PORTS) * PORT_PAGE)?;
    let exchange = if is_protected { None } else { Some(map(arm::EXCHANGE, arm::EXCHANGE_BYTES)?) };
    WORDS.set(Words { ports, exchange }).map_err(|_| "the ports are open already".to_owned())
}

impl Words {
    /// The word of a port.
    ///
    /// # Panics
    /// If it has no page: constants of this program have one.
    fn port(&self, port: u16) -> *mut u32 {
        let number = port.checked_sub(arm::FIRST_PORT).filter(|number| *number < PORTS);
        let number = number.expect("a port of a program");
        self.ports.as_ptr().wrapping_add(usize::from(number) * PORT_PAGE).cast()
    }

    /// Stores to a port, when all before it can be seen.
    fn store(&self, port: u16, value: u32) {
        fence(Ordering::SeqCst);
        // SAFETY: an aligned word of the mapping.
        unsafe { self.port(port).write_volatile(value) };
    }

    /// Puts bytes into the exchange. Words alone, as it is no ordinary memory.
    fn put(&self, bytes: &[u8]) {
        let Some(exchange) = self.exchange else { return };
        let words = exchange.as_ptr().cast::<u32>();
        for (index, part) in bytes.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            // SAFETY: callers have at most the bytes of the exchange.
            unsafe { words.wrapping_add(index).write_volatile(u32::from_le_bytes(word)) };
        }
    }

    fn get(&self, bytes: &mut [u8]) {
        let Some(exchange) = self.exchange else { return bytes.fill(0) };
        let words = exchange.as_ptr().cast::<u32>();
        for (index, part) in bytes.chunks_mut(4).enumerate() {
            // SAFETY: as above.
            let word = unsafe { words.wrapping_add(index).read_volatile() }.to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }
}

pub(crate) fn out8(port: u16, value: u8) {
    if let Some(words) = WORDS.get() {
        fence(Ordering::SeqCst);
        // SAFETY: the first byte of a word of the mapping.
        unsafe { words.port(port).cast::<u8>().write_volatile(value) };
    }
}

pub(crate) fn out32(port: u16, value: u32) {
    if let Some(words) = WORDS.get() {
        words.store(port, value);
    }
}

pub(crate) fn in8(port: u16) -> u8 {
    // SAFETY: as above.
    WORDS.get().map_or(0, |words| unsafe { words.port(port).cast::<u8>().read_volatile() })
}

/// Reads from the channel: how many bytes goes into the exchange, and they come there.
pub(crate) fn read_bytes(port: u16, into: &mut [u8]) {
    debug_assert_eq!(port, CHANNEL, "no other is read");
    let Some(words) = WORDS.get() else { return into.fill(0) };
    for part in into.chunks_mut(arm::EXCHANGE_BYTES) {
        words.put(&(part.len() as u32).to_le_bytes());
        fence(Ordering::SeqCst);
        // SAFETY: an aligned word of the mapping.
        unsafe { words.port(port).read_volatile() };
        fence(Ordering::SeqCst);
        words.get(part);
    }
}

/// Writes to the channel: bytes into the exchange, then how many.
pub(crate) fn write_fours(port: u16, from: &[u8]) {
    debug_assert_eq!(port, CHANNEL, "no other is written to");
    let Some(words) = WORDS.get() else { return };
    for part in from.chunks(arm::EXCHANGE_BYTES) {
        words.put(part);
        words.store(port, part.len() as u32);
    }
}

/// Says a port to a recorder inside an emulator, by the instructions by which it knows a mark: `MOVZ X9, low; MOVK X9, high, LSL 16; HINT 85`, for each port.
/// Nothing is stored anywhere, as the emulated host has no such words.
pub(crate) struct MarkCode {
    start: *mut libc::c_void,
    ports: Vec<u16>,
}

// SAFETY: the code is written before this structure exists and executed alone afterwards.
unsafe impl Send for MarkCode {}
// SAFETY: as above.
unsafe impl Sync for MarkCode {}

impl MarkCode {
    /// Bytes of a mark, with what follows it.
    const SIZE: usize = 32;
    const RETURN: [u32; 1] = [0xd65f_03c0];
    /// `MRS X0, CNTVCT_EL0; RET`.
    const CLOCK: [u32; 2] = [0xd53b_e040, 0xd65f_03c0];

    /// Code for these ports.
    pub(crate) fn new(ports: Vec<u16>) -> Result<MarkCode> {
        MarkCode::with(ports, &MarkCode::RETURN)
    }

    /// Code for these ports that reads the clock right after the mark.
    pub(crate) fn clocked(ports: Vec<u16>) -> Result<MarkCode> {
        MarkCode::with(ports, &MarkCode::CLOCK)
    }

    fn with(ports: Vec<u16>, then: &[u32]) -> Result<MarkCode> {
        let code = |port: &u16| {
            let address = arm::address(*port) as u32;
            let (low, high) = (address & 0xffff, address >> 16);
            let mut code = [0; MarkCode::SIZE / 4];
            code[..3].copy_from_slice(&[0xd280_0009 | low << 5, 0xf2a0_0009 | high << 5, HINT]);
            code[3..3 + then.len()].copy_from_slice(then);
            code
        };
        let words: Vec<u32> = ports.iter().flat_map(code).collect();
        let bytes = (4 * words.len()).max(1);
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
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), start.cast(), words.len()) };
        for at in (0..bytes).step_by(MarkCode::SIZE) {
            let line = start.wrapping_byte_add(at);
            // SAFETY: makes what was stored visible to fetches of instructions, and changes nothing.
            unsafe {
                std::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) line, options(nostack));
            }
        }
        Ok(MarkCode { start, ports })
    }

    /// Says a port; nothing if there is no code for it. Returns the time, if the code is [`MarkCode::clocked`].
    pub(crate) fn write(&self, port: u16) -> u64 {
        let Some(at) = self.ports.iter().position(|one| *one == port) else { return 0 };
        let code = self.start.wrapping_byte_add(at * MarkCode::SIZE);
        // SAFETY: the code there is a function that changes two registers, which its caller may not rely on.
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(code)() }
    }
}

impl Drop for MarkCode {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.start, (self.ports.len() * MarkCode::SIZE).max(1)) };
    }
}

/// `HINT 85`, which does nothing.
const HINT: u32 = 0xd503_2abf;

/// Says to a recorder that nothing need be recorded from here on.
pub(crate) fn unrecorded() {
    const AT: u64 = arm::address(vmtax_guest::layout::UNRECORDED);
    // SAFETY: changes a register. The three instructions are in one page.
    unsafe {
        std::arch::asm!(".p2align 4", "movz x9, {low}", "movk x9, {high}, lsl 16", ".inst {hint}",
            low = const AT & 0xffff, high = const AT >> 16, hint = const HINT, out("x9") _,
            options(nomem, nostack, preserves_flags));
    }
}

/// There is no order yet.
pub(crate) fn wait() {
    crate::awake::looked();
}
