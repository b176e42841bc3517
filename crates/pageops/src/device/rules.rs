//! Descriptors that a device refuses before it accesses memory: by the DSA specification, and by the limits that DML, Intel's library, checks
//! before submission (`validation.cpp`). The model follows them; the engine does not submit such descriptors.

use super::{Descriptor, Status, flag, opcode};
use crate::delta::{ENTRY, MAX_REGION};

/// Minimum space for a delta record: the need of one cache line.
pub const LEAST_RECORD: usize = 8 * ENTRY;

/// Bytes that addresses of delta operations are aligned to.
pub const DELTA_ALIGN: u64 = 8;

/// Bits of the first word between the process and the privilege bit.
const RESERVED: u32 = 0x7ff << 20;

/// The privilege bit: not for queues of programs.
const PRIVILEGED: u32 = 1 << 31;

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueRules {
    /// Bytes of an operation.
    pub(super) transfer: u64,
    /// Page faults may be resolved.
    pub(super) block_on_fault: bool,
}

/// Why any descriptor is refused, a batch too, with the value of its record (flags that are not allowed).
pub(super) fn refusal_of_any(d: &Descriptor, setup: QueueRules) -> Option<(Status, u64)> {
    let bad_flags = d.flags() & !allowed_flags(d.opcode(), setup);
    let status = if bad_flags != 0 {
        return Some((Status::BadFlags, u64::from(bad_flags)));
    } else if d.reserved != 0 || d.pasid & RESERVED != 0 {
        Status::ReservedNonzero
    } else if d.pasid & PRIVILEGED != 0 {
        Status::BadPrivilege
    } else if d.flags() & flag::REQUEST_INTERRUPT != 0 {
        // Queues of programs have no interrupt handles: linux/idxd.h gives them none.
        Status::BadInterruptHandle
    } else {
        return None;
    };
    Some((status, 0))
}

/// Why a descriptor that is no batch is refused.
pub(super) fn refusal(d: &Descriptor, setup: QueueRules) -> Option<(Status, u64)> {
    let op = d.opcode();
    let known = matches!(
        op,
        opcode::NOOP | opcode::DRAIN | opcode::MEMMOVE
            ..=opcode::DUALCAST | opcode::CRCGEN | opcode::COPY_CRC | opcode::CFLUSH
    );
    if !known {
        return Some((Status::BadOpcode, 0));
    }
    let refused = refusal_of_any(d, setup);
    if refused.is_some() {
        return refused;
    }
    let status = if matches!(op, opcode::NOOP | opcode::DRAIN) {
        return None;
    } else if d.size == 0 || u64::from(d.size) > setup.transfer {
        Status::BadSize
    } else {
        match op {
            opcode::DUALCAST => dualcast(d)?,
            opcode::COPY_CRC if overlap(d.src, d.size, d.dst, d.size) => Status::Overlap,
            opcode::CR_DELTA => delta_create(d, setup)?,
            opcode::AP_DELTA => delta_apply(d, setup)?,
            _ => return None,
        }
    };
    Some((status, 0))
}

fn allowed_flags(op: u8, setup: QueueRules) -> u32 {
    let mut allowed = flag::ALL;
    if !matches!(op, opcode::COMPARE | opcode::COMPVAL | opcode::CR_DELTA) {
        allowed &= !flag::CHECK_RESULT;
    }
    if !setup.block_on_fault {
        allowed &= !flag::BLOCK_ON_FAULT;
    }
    allowed
}

fn overlap(a: u64, a_len: u32, b: u64, b_len: u32) -> bool {
    a < b + u64::from(b_len) && b < a + u64::from(a_len)
}

fn dualcast(d: &Descriptor) -> Option<Status> {
    let second = d.operands[0];
    // Bits 11:0 of both destinations.
    if d.dst & 0xfff != second & 0xfff {
        return Some(Status::DualcastMisaligned);
    }
    let blocks = [(d.dst, second), (d.src, d.dst), (d.src, second)];
    let overlaps = blocks.iter().any(|(a, b)| overlap(*a, d.size, *b, d.size));
    overlaps.then_some(Status::Overlap)
}

fn aligned(addresses: &[u64]) -> bool {
    addresses.iter().all(|address| address.is_multiple_of(DELTA_ALIGN))
}

fn region(d: &Descriptor) -> bool {
    (d.size as usize).is_multiple_of(8) && d.size as usize <= MAX_REGION
}

fn delta_create(d: &Descriptor, setup: QueueRules) -> Option<Status> {
    let room = d.operands[1] as u32;
    let room_is_right = (room as usize).is_multiple_of(ENTRY)
        && room as usize >= LEAST_RECORD
        && u64::from(room) <= setup.transfer;
    if d.operands[1] >> 32 != 0 {
        Some(Status::ReservedNonzero)
    } else if !aligned(&[d.src, d.dst, d.operands[0]]) {
        Some(Status::AddressMisaligned)
    } else if !region(d) {
        Some(Status::BadSize)
    } else if !room_is_right {
        Some(Status::BadDeltaSize)
    } else {
        None
    }
}

fn delta_apply(d: &Descriptor, setup: QueueRules) -> Option<Status> {
    let len = d.operands[0] as u32;
    let len_is_right =
        len != 0 && (len as usize).is_multiple_of(ENTRY) && u64::from(len) <= setup.transfer;
    if !aligned(&[d.src, d.dst]) {
        Some(Status::AddressMisaligned)
    } else if !region(d) {
        Some(Status::BadSize)
    } else if !len_is_right {
        Some(Status::BadDeltaSize)
    } else if overlap(d.src, len, d.dst, d.size) {
        Some(Status::Overlap)
    } else {
        None
    }
}
