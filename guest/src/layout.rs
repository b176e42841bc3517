//! The memory layout of bare payloads: addresses, ports and the block of parameters.
//!
//! A payload starts in 64-bit mode at ring 0 with interrupts off and every address below 4 GiB mapped to itself
//! in 2 MiB pages. `rdi` holds [`PARAMETERS`] and `rsi` the vCPU's number.

/// The payload's code is copied here; its first vCPU starts at the first byte.
pub const CODE: u64 = 0x10_0000;
/// Most bytes of code.
pub const CODE_MOST: usize = 0x8_0000;
/// The block of parameters: two little-endian `u32`, batches and operations in a batch.
pub const PARAMETERS: u64 = 0x8000;
/// One `u64` for each batch: its cycles.
pub const RESULTS: u64 = 0x9000;
/// Four `u64` in which a payload counts its samples or its faults.
pub const PROFILE: u64 = 0xa000;
pub const BATCHES_MOST: u32 = 256;
/// Top of the first vCPU's stack; each next one is [`STACK_SIZE`] above.
pub const STACK: u64 = 0x2_0000;
/// Bytes of a vCPU's stack.
pub const STACK_SIZE: u64 = 0x4000;
/// Room for a payload's own tables (descriptors, VMCS, VMCB), zero at the start.
pub const TABLES: u64 = 0x4_0000;
/// Bytes of these tables that every payload uses; payloads that share a VM use no others.
pub const TABLES_SHARED: usize = 0x2000;
/// The page tables that map every address to itself.
pub const PAGE_TABLES: u64 = 0x3_0000;
/// Room for data that payloads share with the VMM's ring device.
pub const RING: u64 = 0x20_0000;
/// Bytes of memory from address 0.
pub const MEMORY: usize = 8 << 20;
/// Memory that a payload touches for the first time in each batch.
pub const TOUCH: u64 = 0x4000_0000;
/// The guest-physical address of memory with page tables of its own: the tables, in [`FRAME_TABLES`] bytes, then its frames.
pub const FRAMES: u64 = 4 << 30;
/// Bytes of those tables.
pub const FRAME_TABLES: u64 = 2 << 20;
/// The guest-virtual address of that memory: the second entry of the highest table, where nothing else is.
pub const DATA: u64 = 1 << 39;
/// The guest-virtual address of a user's program and its memory: where LLD puts programs, below where GNU ld does. They end below [`PROGRAM_END`].
pub const PROGRAM: u64 = 0x20_0000;
/// As above: what the first directory of page tables maps.
pub const PROGRAM_END: u64 = 1 << 30;
/// A page without a device: the VMM returns zeros and ignores writes.
pub const DEVICE: u64 = 0xd000_0000;

/// Ports from here on are pairs: [`begin`] and [`end`] of an operation's batch.
const MARKS: u16 = 0x6000;
/// Most operations, limited by the number of ports.
pub const OPERATIONS_MOST: u16 = 0x400;

/// Written before [`begin`], with the batch's number: memory to be touched is given back, tracing starts.
pub const PREPARE: u16 = 0x5ff8;
/// Written at the end of all batches.
pub const DONE: u16 = 0x5ff0;
/// Written by a payload that took an exception it does not know, with the syndrome.
pub const FAULT: u16 = 0x5fe8;
/// The VMM returns zeros and ignores writes.
pub const DEVICE_PORT: u16 = 0x5fe0;
/// Written in a loop that waits for another vCPU: the VMM sleeps, so that the other vCPU's thread runs.
pub const YIELD: u16 = 0x5fd8;
/// Written by a driver of the ring device: the VMM processes new entries of [`RING`].
pub const KICK: u16 = 0x5fd0;
/// L1 asks L0 to start (1) or stop (0) tracing.
pub const TRACE: u16 = 0x5fc0;
/// L1 asks its VMM to start (1) or stop (0) counting page faults, from KVM's statistics.
pub const COUNT: u16 = 0x5fb8;
/// Written where a user's program is to be started, at each of its system calls, and when it has raised an exception, whose vector is written.
pub const PROGRAM_START: u8 = 0xe4;
/// As above.
pub const PROGRAM_CALL: u8 = 0xe5;
/// As above.
pub const PROGRAM_FAULT: u8 = 0xe6;
/// On arm64 the cycles of a batch are written here, as 64 bits: a protected VM's memory cannot be read.
pub const RESULT: u16 = 0x5f98;
/// The emulated host writes this when its instructions need not be recorded from then on.
pub const UNRECORDED: u16 = 0x5fa0;
/// L1 asks L0 to wait until this number of nanoseconds will pass without clock ticks.
pub const SETTLE: u16 = 0x5fc8;
/// L1 reads its orders here, byte by byte, and writes its results: a [`crate::order`] with its length before it.
pub const CHANNEL: u16 = 0x5fb0;

/// Written before an operation's batch: the first exit of the window.
pub const fn begin(operation: u16) -> u16 {
    MARKS + 2 * operation
}

/// Written just after it.
pub const fn end(operation: u16) -> u16 {
    MARKS + 2 * operation + 1
}

/// The operation whose begin (`true`) or end a port marks.
pub const fn mark(port: u16) -> Option<(u16, bool)> {
    if port < MARKS || port >= MARKS + 2 * OPERATIONS_MOST {
        return None;
    }
    Some(((port - MARKS) / 2, (port - MARKS).is_multiple_of(2)))
}

/// The layout of payloads for arm64. They start at EL1 with the MMU off and interrupts masked; what ports are on x86 are words in memory of no
/// device of the kernel's.
pub mod arm {
    /// Guest-physical address of a payload's memory, and of its code, which starts at the first byte.
    pub const MEMORY: u64 = 0x4000_0000;
    pub const BYTES: usize = 2 << 20;
    /// As [`super::PARAMETERS`].
    pub const PARAMETERS: u64 = MEMORY + 0x10_0000;
    /// One `u64` for each batch: what the guest counted in it.
    pub const COUNTED: u64 = PARAMETERS + 0x2000;
    /// As [`super::TOUCH`].
    pub const TOUCH: u64 = 0x8000_0000;
    /// The interrupt of the counters of a vCPU: where QEMU's machine `virt` has it.
    pub const PMU_INTERRUPT: u32 = 23;
    /// KVM's interrupt controller, a GICv3: where QEMU's machine `virt` has it.
    pub const DISTRIBUTOR: u64 = 0x0800_0000;
    /// The frames of the first vCPU's redistributor.
    pub const REDISTRIBUTOR: u64 = 0x080a_0000;
    /// The serial port of an L1, a PL011: where `virt` has it.
    pub const SERIAL: u64 = 0x0900_0000;
    /// Registers of virtio devices, and bytes of each: where `virt` has the first one.
    pub const DEVICES: u64 = 0x0a00_0000;
    /// As above.
    pub const DEVICE_BYTES: u64 = 0x1000;
    /// Memory of a Linux guest through which devices with a bounce buffer reach it, and bytes of it.
    pub const BOUNCE: u64 = MEMORY + (128 << 20);
    /// As above.
    pub const BOUNCE_BYTES: u64 = 8 << 20;
    /// Memory through which an L1 and its host hand over what goes through [`super::CHANNEL`], and bytes of it: not of L1's kernel.
    pub const EXCHANGE: u64 = 0x0e00_0000;
    /// As above.
    pub const EXCHANGE_BYTES: usize = 1 << 20;
    /// Where the page of [`FIRST_PORT`] is. Each port has a page with a word at its start, because a host knows no more than the page of a store by
    /// its guest's guest.
    const PORTS: u64 = 0x0b00_0000;
    const PORT_PAGE: u64 = 0x1000;
    /// The first port that has a page.
    pub const FIRST_PORT: u16 = 0x5f00;
    /// The port after the last.
    const PORTS_END: u16 = super::MARKS + 2 * super::OPERATIONS_MOST;

    /// Where the word of port 0 would be.
    pub const PORT_ZERO: u64 = PORTS - PORT_PAGE * FIRST_PORT as u64;

    /// The word of a port, from [`FIRST_PORT`] on.
    pub const fn address(port: u16) -> u64 {
        PORTS + PORT_PAGE * (port - FIRST_PORT) as u64
    }

    /// The port whose page has this address.
    pub const fn port(address: u64) -> Option<u16> {
        if address >= PORTS && address < self::address(PORTS_END) {
            Some(FIRST_PORT + ((address - PORTS) / PORT_PAGE) as u16)
        } else {
            None
        }
    }
}
