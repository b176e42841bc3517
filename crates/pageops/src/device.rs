//! Intel DSA as programs see it: descriptors, completion records, queues.
//!
//! [`idxd`] is the hardware, [`model`] does the same in software, with configurable faults. Both are a [`Portal`], so all code above them
//! ([`crate::engine`]) is the same. This code has only run against the model, never on hardware.

pub mod idxd;
pub mod model;
pub mod rules;
pub mod wait;

use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, Ordering};

/// Operation codes.
pub mod opcode {
    /// Nothing; completes.
    pub const NOOP: u8 = 0x00;
    /// A list of descriptors.
    pub const BATCH: u8 = 0x01;
    /// Completes when all earlier ones in its queue have.
    pub const DRAIN: u8 = 0x02;
    /// Copy.
    pub const MEMMOVE: u8 = 0x03;
    /// Fill with an 8-byte pattern.
    pub const FILL: u8 = 0x04;
    /// Compare two blocks.
    pub const COMPARE: u8 = 0x05;
    /// Compare a block with an 8-byte pattern.
    pub const COMPVAL: u8 = 0x06;
    /// Create a delta record.
    pub const CR_DELTA: u8 = 0x07;
    /// Apply a delta record.
    pub const AP_DELTA: u8 = 0x08;
    /// Copy to two places.
    pub const DUALCAST: u8 = 0x09;
    /// CRC-32C.
    pub const CRCGEN: u8 = 0x10;
    /// Copy and CRC-32C.
    pub const COPY_CRC: u8 = 0x11;
    /// Flush from the caches.
    pub const CFLUSH: u8 = 0x20;
}

/// Flags of a descriptor.
pub mod flag {
    /// Wait for the descriptors before it in its batch.
    pub const FENCE: u32 = 1;
    /// Resolve page faults instead of completing partially.
    pub const BLOCK_ON_FAULT: u32 = 2;
    /// The completion address is valid.
    pub const CR_ADDR_VALID: u32 = 4;
    /// Write a completion record.
    pub const REQUEST_CR: u32 = 8;
    /// Interrupt when done.
    pub const REQUEST_INTERRUPT: u32 = 0x10;
    /// Compare the result with the expected one; another one is [`super::Status::FalsePredicate`].
    pub const CHECK_RESULT: u32 = 0x80;
    /// Write into the caches.
    pub const CACHE_CONTROL: u32 = 0x100;
    /// All valid flags.
    pub const ALL: u32 = FENCE
        | BLOCK_ON_FAULT
        | CR_ADDR_VALID
        | REQUEST_CR
        | REQUEST_INTERRUPT
        | CHECK_RESULT
        | CACHE_CONTROL;
}

/// A descriptor of 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// pasid:20, reserved:11, priv:1. The queue's process is put in by the device.
    pub pasid: u32,
    /// flags:24, opcode:8.
    pub flags_opcode: u32,
    /// Address of the completion record.
    pub completion: u64,
    /// Source, or pattern, or list of descriptors.
    pub src: u64,
    /// Destination, or second source, or pattern to compare with.
    pub dst: u64,
    /// Bytes, or descriptors in a batch.
    pub size: u32,
    /// Interrupt handle.
    pub interrupt: u16,
    /// Reserved.
    pub reserved: u16,
    /// By operation: expected result; delta address, its greatest size and mask of expected results (bit r: result r), or its
    /// size; CRC seed and its address; second destination.
    pub operands: [u64; 3],
}

const _: () = {
    assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
    assert!(offset_of!(Descriptor, flags_opcode) == 4);
    assert!(offset_of!(Descriptor, completion) == 8);
    assert!(offset_of!(Descriptor, src) == 16);
    assert!(offset_of!(Descriptor, dst) == 24);
    assert!(offset_of!(Descriptor, size) == 32);
    assert!(offset_of!(Descriptor, interrupt) == 36);
    assert!(offset_of!(Descriptor, operands) == 40);
    assert!(size_of::<CompletionRecord>() == 32 && align_of::<CompletionRecord>() == 32);
    assert!(offset_of!(CompletionRecord, result) == 1);
    assert!(offset_of!(CompletionRecord, completed) == 4);
    assert!(offset_of!(CompletionRecord, fault_address) == 8);
    assert!(offset_of!(CompletionRecord, value) == 16);
};

impl Descriptor {
    /// One of this operation that reports to `record`.
    pub fn new(opcode: u8, record: *const CompletionRecord) -> Descriptor {
        let flags = flag::CR_ADDR_VALID | flag::REQUEST_CR;
        Descriptor {
            flags_opcode: flags | u32::from(opcode) << 24,
            completion: record.expose_provenance() as u64,
            ..Descriptor::default()
        }
    }

    /// Its operation.
    pub fn opcode(&self) -> u8 {
        (self.flags_opcode >> 24) as u8
    }

    /// Its flags.
    pub fn flags(&self) -> u32 {
        self.flags_opcode & 0xff_ffff
    }
}

/// A completion record of 32 bytes. The device writes the status last.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct CompletionRecord {
    status: AtomicU8,
    result: AtomicU8,
    reserved: [u8; 2],
    completed: std::sync::atomic::AtomicU32,
    fault_address: std::sync::atomic::AtomicU64,
    value: std::sync::atomic::AtomicU64,
    reserved2: u64,
}

/// A record once it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status, without the bit for write faults.
    pub status: Status,
    /// The page fault was a write.
    pub write_fault: bool,
    /// Result of the operation.
    pub result: u8,
    /// Bytes done, or descriptors of a batch.
    pub completed: u32,
    /// Fault address.
    pub fault_address: u64,
    /// CRC, or size of the delta record, or flags that are not allowed.
    pub value: u64,
}

/// Outcome of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Done.
    Success,
    /// Done, and the result is not what was expected.
    FalsePredicate,
    /// Stopped at a page fault.
    PageFault,
    /// A descriptor of the batch did not succeed.
    BatchFailed,
    /// Page fault on the list of descriptors.
    BatchPageFault,
    /// Entries of a delta record are not in ascending order.
    DeltaOrder,
    /// An entry of a delta record is beyond the region.
    DeltaRange,
    /// No such operation.
    BadOpcode,
    /// A flag that is not allowed.
    BadFlags,
    /// A reserved field is not zero.
    ReservedNonzero,
    /// A size of 0, or above the limit.
    BadSize,
    /// A batch of fewer than 2 descriptors, or above the limit.
    BadCount,
    /// A delta record of a size that is not allowed.
    BadDeltaSize,
    /// Blocks that may not overlap do.
    Overlap,
    /// The low 12 bits of two destinations differ.
    DualcastMisaligned,
    /// The list of descriptors is not aligned.
    ListMisaligned,
    /// The interrupt handle does not belong to this process.
    BadInterruptHandle,
    /// The completion record is not aligned.
    RecordMisaligned,
    /// An address of a delta operation is not aligned.
    AddressMisaligned,
    /// The privilege bit is not the queue's.
    BadPrivilege,
    /// An unknown code.
    Other(u8),
}

impl Status {
    /// Codes and their meaning.
    const CODES: [(u8, Status); 20] = [
        (0x01, Status::Success),
        (0x02, Status::FalsePredicate),
        (0x03, Status::PageFault),
        (0x05, Status::BatchFailed),
        (0x06, Status::BatchPageFault),
        (0x07, Status::DeltaOrder),
        (0x08, Status::DeltaRange),
        (0x10, Status::BadOpcode),
        (0x11, Status::BadFlags),
        (0x12, Status::ReservedNonzero),
        (0x13, Status::BadSize),
        (0x14, Status::BadCount),
        (0x15, Status::BadDeltaSize),
        (0x16, Status::Overlap),
        (0x17, Status::DualcastMisaligned),
        (0x18, Status::ListMisaligned),
        (0x19, Status::BadInterruptHandle),
        (0x1b, Status::RecordMisaligned),
        (0x1c, Status::AddressMisaligned),
        (0x1d, Status::BadPrivilege),
    ];

    /// Of a status byte; 0x80 is not part of the code.
    pub fn from_code(byte: u8) -> Status {
        let code = byte & 0x7f;
        Status::CODES.iter().find(|c| c.0 == code).map_or(Status::Other(code), |c| c.1)
    }

    /// The code.
    pub fn code(self) -> u8 {
        match self {
            Status::Other(code) => code,
            _ => Status::CODES.iter().find(|c| c.1 == self).map_or(0, |c| c.0),
        }
    }
}

impl CompletionRecord {
    /// The result, once the device has written it.
    pub fn read(&self) -> Option<Completion> {
        let status = self.status.load(Ordering::Acquire);
        (status & 0x7f != 0).then(|| Completion {
            status: Status::from_code(status),
            write_fault: status & 0x80 != 0,
            result: self.result.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
            fault_address: self.fault_address.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
        })
    }

    /// Clears it.
    pub fn clear(&self) {
        self.status.store(0, Ordering::Relaxed);
    }

    /// Writes it as a device does: the status last.
    pub(crate) fn write(&self, completion: &Completion) {
        self.result.store(completion.result, Ordering::Relaxed);
        self.completed.store(completion.completed, Ordering::Relaxed);
        self.fault_address.store(completion.fault_address, Ordering::Relaxed);
        self.value.store(completion.value, Ordering::Relaxed);
        let fault = if completion.write_fault { 0x80 } else { 0 };
        self.status.store(completion.status.code() | fault, Ordering::Release);
    }
}

/// Limits of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Descriptors it holds.
    pub depth: u32,
    /// Descriptors in a batch; below 2: it takes none.
    pub batch: u32,
    /// Bytes of one operation.
    pub transfer: u64,
    /// NUMA node; `None` if unknown.
    pub node: Option<u32>,
}

/// Outcome of a submission.
#[derive(Debug)]
pub enum Submit {
    /// The device has it.
    Accepted,
    /// The queue is full; try again.
    Busy,
    /// It is closed or failed.
    Refused(std::io::Error),
}

/// A queue of a device.
pub trait Portal: Send {
    /// Its name in reports: `wq0.0`.
    fn name(&self) -> &str;
    /// Its limits.
    fn limits(&self) -> QueueLimits;
    /// Submits a descriptor.
    ///
    /// # Safety
    ///
    /// What it and the descriptors of its batch name stays readable and writable until the record of each was
    /// written, a later drain completed, or the portal was closed.
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submit;
    /// Closes it. When this returns, the device no longer accesses memory of descriptors submitted here.
    fn close(&mut self);
}
