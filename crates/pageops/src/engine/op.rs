//! One operation: as a descriptor, and on the CPU.

use crate::Cpu;
use crate::delta::{self, Delta, ENTRY};
use crate::device::rules::{DELTA_ALIGN, LEAST_RECORD};
use crate::device::{Completion, CompletionRecord, Descriptor, opcode};

/// An operation on memory that it names by address.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Whether `word` fills it; a zero check with 0.
    Compval {
        /// What is looked at.
        src: *const u8,
        /// How much.
        len: usize,
        /// The word.
        word: u64,
    },
    /// Whether two blocks are equal.
    Compare {
        /// One.
        a: *const u8,
        /// The other.
        b: *const u8,
        /// How much.
        len: usize,
    },
    /// Copy between blocks that do not overlap.
    Copy {
        /// From.
        src: *const u8,
        /// To.
        dst: *mut u8,
        /// How much.
        len: usize,
    },
    /// Fill with a word.
    Fill {
        /// To.
        dst: *mut u8,
        /// How much.
        len: usize,
        /// The word.
        word: u64,
    },
    /// CRC-32C.
    Crc {
        /// Of what.
        src: *const u8,
        /// How much.
        len: usize,
        /// 0, or the CRC of the preceding bytes.
        seed: u32,
    },
    /// Copy and CRC-32C.
    CopyCrc {
        /// From.
        src: *const u8,
        /// To.
        dst: *mut u8,
        /// How much.
        len: usize,
        /// 0, or the CRC of the preceding bytes.
        seed: u32,
    },
    /// Create a delta record. `len` is a multiple of 8, at most [`delta::MAX_REGION`]. A device does it where all addresses are multiples
    /// of 8 and there is room for 80 bytes; it may call a record that would just fit an overflow.
    DeltaCreate {
        /// The old state.
        old: *const u8,
        /// The new one.
        new: *const u8,
        /// How much.
        len: usize,
        /// Where the record goes.
        record: *mut u8,
        /// Room for it.
        cap: u32,
    },
    /// Apply a delta record. A device does it where both addresses are multiples of 8 and the record has an entry.
    DeltaApply {
        /// The record.
        record: *const u8,
        /// Its size.
        size: u32,
        /// The old state, which becomes the new one.
        region: *mut u8,
        /// How much.
        len: usize,
    },
}

// SAFETY: addresses only; the contract is documented where operations are submitted.
unsafe impl Send for Op {}

/// A result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationValue {
    /// Nothing to say.
    Done,
    /// Of a comparison.
    Equal(bool),
    /// A CRC-32C.
    Crc(u32),
    /// Of creating a delta.
    Delta(Delta),
    /// The delta or its region is not one.
    Invalid,
}

/// The capacity for a delta record that is given to a device: whole entries, and at most the maximum for the region.
fn record_room(len: usize, cap: u32) -> u32 {
    let most = (len / 8 * ENTRY).max(LEAST_RECORD) as u32;
    (cap - cap % ENTRY as u32).min(most)
}

impl Op {
    /// Bytes that it works on.
    pub fn bytes(&self) -> usize {
        match *self {
            Op::Compval { len, .. }
            | Op::Compare { len, .. }
            | Op::Copy { len, .. }
            | Op::Fill { len, .. }
            | Op::Crc { len, .. }
            | Op::CopyCrc { len, .. }
            | Op::DeltaCreate { len, .. }
            | Op::DeltaApply { len, .. } => len,
        }
    }

    /// Bytes that the queue's limit must allow; `None` if no device takes it: it has no bytes, or is a delta whose addresses or
    /// sizes the specification does not allow.
    pub(super) fn transfer(&self) -> Option<u64> {
        let aligned = |p: *const u8| (p.addr() as u64).is_multiple_of(DELTA_ALIGN);
        let right = match *self {
            Op::DeltaCreate { old, new, record, len, cap } => {
                aligned(old)
                    && aligned(new)
                    && aligned(record)
                    && cap as usize >= LEAST_RECORD
                    && delta::region(len).is_ok()
            }
            Op::DeltaApply { record, size, region, len } => {
                aligned(record)
                    && aligned(region)
                    && size > 0
                    && (size as usize).is_multiple_of(ENTRY)
                    && delta::region(len).is_ok()
            }
            _ => true,
        };
        let record = match *self {
            Op::DeltaCreate { len, cap, .. } => record_room(len, cap),
            Op::DeltaApply { size, .. } => size,
            _ => 0,
        };
        (right && self.bytes() > 0).then(|| (self.bytes() as u64).max(u64::from(record)))
    }

    /// As a descriptor that reports to `record`. The size fits: queues take less than 4 GiB.
    pub(super) fn descriptor(&self, record: *const CompletionRecord) -> Descriptor {
        let at = |p: *const u8| p.expose_provenance() as u64;
        let (code, src, dst, operands) = match *self {
            Op::Compval { src, word, .. } => (opcode::COMPVAL, at(src), word, [0; 3]),
            Op::Compare { a, b, .. } => (opcode::COMPARE, at(a), at(b), [0; 3]),
            Op::Copy { src, dst, .. } => (opcode::MEMMOVE, at(src), at(dst), [0; 3]),
            Op::Fill { dst, word, .. } => (opcode::FILL, word, at(dst), [0; 3]),
            Op::Crc { src, seed, .. } => (opcode::CRCGEN, at(src), 0, [u64::from(seed), 0, 0]),
            Op::CopyCrc { src, dst, seed, .. } => {
                (opcode::COPY_CRC, at(src), at(dst), [u64::from(seed), 0, 0])
            }
            Op::DeltaCreate { old, new, record, len, cap } => {
                let room = u64::from(record_room(len, cap));
                (opcode::CR_DELTA, at(old), at(new), [at(record), room, 0])
            }
            Op::DeltaApply { record, size, region, .. } => {
                (opcode::AP_DELTA, at(record), at(region), [u64::from(size), 0, 0])
            }
        };
        Descriptor {
            src,
            dst,
            size: self.bytes() as u32,
            operands,
            ..Descriptor::new(code, record)
        }
    }

    /// What a completion says; `None` if this operation cannot have had that result.
    pub(super) fn value(&self, completion: &Completion) -> Option<OperationValue> {
        let delta = || completion.value as u32 as usize;
        Some(match (self, completion.result) {
            (Op::Compval { .. } | Op::Compare { .. }, 0) => OperationValue::Equal(true),
            (Op::Compval { .. } | Op::Compare { .. }, 1) => OperationValue::Equal(false),
            (Op::Crc { .. } | Op::CopyCrc { .. }, _) => {
                OperationValue::Crc(completion.value as u32)
            }
            (Op::DeltaCreate { .. }, 0) => OperationValue::Delta(Delta::Equal),
            (Op::DeltaCreate { cap, .. }, 1) if delta() <= *cap as usize => {
                OperationValue::Delta(Delta::Differs(delta()))
            }
            (Op::DeltaCreate { cap, .. }, 2) if delta() <= *cap as usize => {
                OperationValue::Delta(Delta::Overflow(delta()))
            }
            (Op::Copy { .. } | Op::Fill { .. } | Op::DeltaApply { .. }, _) => OperationValue::Done,
            _ => return None,
        })
    }

    /// Where the CPU resumes after a page fault. Only operations that write each byte once can be resumed.
    pub(super) fn resume_at(&self, completion: &Completion) -> usize {
        let done = completion.completed as usize;
        match self {
            Op::Copy { len, .. } | Op::Fill { len, .. } if completion.result == 0 => {
                done.min(*len) & !7
            }
            _ => 0,
        }
    }

    /// Does it here, from a byte on.
    ///
    /// # Safety
    ///
    /// Its memory can be read and written, and no other code accesses it.
    pub(super) unsafe fn on_cpu(&self, cpu: Cpu, from: usize) -> OperationValue {
        use std::slice::{from_raw_parts, from_raw_parts_mut};
        // SAFETY: by the contract; slices live within this function, and `from` is at most the length.
        unsafe {
            match *self {
                Op::Compval { src, len, word } => {
                    OperationValue::Equal(cpu.mismatch_word(from_raw_parts(src, len), word) == len)
                }
                Op::Compare { a, b, len } => OperationValue::Equal(
                    cpu.compare(from_raw_parts(a, len), from_raw_parts(b, len)).is_none(),
                ),
                Op::Copy { src, dst, len } => {
                    let rest = len - from;
                    cpu.copy(
                        from_raw_parts_mut(dst.add(from), rest),
                        from_raw_parts(src.add(from), rest),
                    );
                    OperationValue::Done
                }
                Op::Fill { dst, len, word } => {
                    cpu.fill(from_raw_parts_mut(dst.add(from), len - from), word);
                    OperationValue::Done
                }
                Op::Crc { src, len, seed } => {
                    OperationValue::Crc(cpu.crc32c(seed, from_raw_parts(src, len)))
                }
                Op::CopyCrc { src, dst, len, seed } => OperationValue::Crc(cpu.copy_crc(
                    from_raw_parts_mut(dst, len),
                    from_raw_parts(src, len),
                    seed,
                )),
                Op::DeltaCreate { old, new, len, record, cap } => {
                    let record = from_raw_parts_mut(record, cap as usize);
                    let (old, new) = (from_raw_parts(old, len), from_raw_parts(new, len));
                    cpu.delta_create(old, new, record)
                        .map_or(OperationValue::Invalid, OperationValue::Delta)
                }
                Op::DeltaApply { record, size, region, len } => {
                    let record = from_raw_parts(record, size as usize);
                    let applied = delta::apply(record, from_raw_parts_mut(region, len));
                    applied.map_or(OperationValue::Invalid, |()| OperationValue::Done)
                }
            }
        }
    }
}
