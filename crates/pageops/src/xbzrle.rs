//! XBZRLE in QEMU's wire format: the changes from an old page to a new one.
//!
//! A delta is pairs of a run of equal bytes, given by its length, and a run of new bytes, given by length and
//! content; lengths are ULEB128 of at most two bytes. A final run of equal bytes is omitted. An empty delta
//! means no change. Encoders give the same bytes as QEMU's `xbzrle_encode_buffer`, and fail in the same cases.

use crate::cpu::passes::differing64;
use crate::cpu::vector::Vector;

/// The longest page: lengths have 14 bits.
pub const MAX_PAGE: usize = 0x3fff;

/// The delta does not fit: send the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the delta does not fit; send the whole page")]
pub struct Overflow;

/// Errors of a malformed delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The delta ends inside a run.
    #[error("byte {at}: the delta ends within a run")]
    Truncated {
        /// Offset in the delta.
        at: usize,
    },
    /// A length of more than two bytes.
    #[error("byte {at}: a run's length has more than 14 bits")]
    Length {
        /// Offset in the delta.
        at: usize,
    },
    /// An empty run that must not be empty.
    #[error("byte {at}: a run of no bytes")]
    Empty {
        /// Offset in the delta.
        at: usize,
    },
    /// A run goes past the end of the page.
    #[error("byte {at}: a run ends {past} bytes past the page")]
    PastPage {
        /// Offset in the delta.
        at: usize,
        /// Number of bytes beyond it.
        past: usize,
    },
}

/// The encoder; `Err` when `cap` bytes are too few.
///
/// # Safety
///
/// Needs the instruction set of `V`; `old` and `new` have `len` readable bytes, `dst` has `cap` writable ones.
#[inline(always)]
pub(crate) unsafe fn encode<V: Vector>(
    old: *const u8,
    new: *const u8,
    len: usize,
    dst: *mut u8,
    cap: usize,
) -> Result<usize, Overflow> {
    let (mut at, mut out) = (0, 0);
    let mut block = 0;
    // SAFETY: `differing64` stays within `len`; every write is preceded by a check against `cap`, and a copy of
    // 16 bytes by one that 16 can be read and written.
    unsafe {
        let mut mask = differing64::<V>(old, new, 0, len);
        while at < len {
            if out + 2 > cap {
                return Err(Overflow);
            }
            // The next byte that differs.
            let start = at;
            let mut ahead = if at - block < 64 { mask >> (at - block) } else { 0 };
            while ahead == 0 {
                block += 64;
                if block >= len {
                    return Ok(out);
                }
                mask = differing64::<V>(old, new, block, len);
                ahead = mask;
                at = block;
            }
            at += ahead.trailing_zeros() as usize;
            out += put_length(dst.add(out), at - start);
            // The next byte that is equal.
            if out + 2 > cap {
                return Err(Overflow);
            }
            let start = at;
            let mut ahead = !mask >> (at - block);
            while ahead == 0 {
                block += 64;
                at = block;
                if block >= len {
                    break;
                }
                mask = differing64::<V>(old, new, block, len);
                ahead = !mask;
            }
            if block < len {
                at += ahead.trailing_zeros() as usize;
            }
            at = at.min(len);
            let run = at - start;
            out += put_length(dst.add(out), run);
            if out + run > cap {
                return Err(Overflow);
            }
            if run <= 16 && start + 16 <= len && out + 16 <= cap {
                std::ptr::copy_nonoverlapping(new.add(start), dst.add(out), 16);
            } else {
                std::ptr::copy_nonoverlapping(new.add(start), dst.add(out), run);
            }
            out += run;
        }
    }
    Ok(out)
}

/// Writes a length of at most 14 bits; gives its bytes, one or two.
///
/// # Safety
///
/// Two bytes can be written.
#[inline(always)]
unsafe fn put_length(dst: *mut u8, length: usize) -> usize {
    // SAFETY: by the contract.
    unsafe {
        if length < 0x80 {
            *dst = length as u8;
            1
        } else {
            *dst = (length & 0x7f) as u8 | 0x80;
            *dst.add(1) = (length >> 7) as u8;
            2
        }
    }
}

/// Applies a delta to the old page, in place. Returns the offset after the last changed byte.
/// On an error the page may be partly changed.
pub fn decode(delta: &[u8], page: &mut [u8]) -> Result<usize, DecodeError> {
    let (mut at, mut to) = (0, 0);
    while at < delta.len() {
        let (equal, used) = length(delta, at)?;
        if equal == 0 && at > 0 {
            return Err(DecodeError::Empty { at });
        }
        to += equal;
        if to > page.len() {
            return Err(DecodeError::PastPage { at, past: to - page.len() });
        }
        at += used;
        let (run, used) = length(delta, at)?;
        if run == 0 {
            return Err(DecodeError::Empty { at });
        }
        if to + run > page.len() {
            return Err(DecodeError::PastPage { at, past: to + run - page.len() });
        }
        at += used;
        let new = delta.get(at..at + run).ok_or(DecodeError::Truncated { at })?;
        page[to..to + run].copy_from_slice(new);
        to += run;
        at += run;
    }
    Ok(to)
}

/// A length and its bytes. As in QEMU at least one byte must follow a length.
fn length(delta: &[u8], at: usize) -> Result<(usize, usize), DecodeError> {
    match delta.get(at..) {
        Some([low, _, ..]) if low & 0x80 == 0 => Ok((usize::from(*low), 1)),
        Some([_, high, ..]) if high & 0x80 != 0 => Err(DecodeError::Length { at }),
        Some([low, high, ..]) => Ok((usize::from(low & 0x7f) | usize::from(*high) << 7, 2)),
        _ => Err(DecodeError::Truncated { at }),
    }
}
