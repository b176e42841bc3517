//! DSA's delta record: packed entries of ten bytes, a 16-bit index of an 8-byte word and its new value.

use crate::cpu::passes::differing64;
use crate::cpu::vector::Vector;

/// Bytes of an entry.
pub const ENTRY: usize = 10;
/// The longest region: indexes have 16 bits.
pub const MAX_REGION: usize = 0x7_FFF8;

/// Result of creating a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    /// No difference; the record is empty.
    Equal,
    /// The record has this many bytes.
    Differs(usize),
    /// The record does not fit. This many bytes were written: entries of the region's beginning.
    Overflow(usize),
}

/// Errors of creating or applying a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The region is not a multiple of 8 bytes up to [`MAX_REGION`].
    #[error("a region of {0} bytes: it must be a multiple of 8, at most {MAX_REGION}")]
    Region(usize),
    /// The regions have different lengths.
    #[error("regions of {0} and {1} bytes cannot be compared")]
    Lengths(usize, usize),
    /// The record is not a multiple of ten bytes.
    #[error("a record of {0} bytes: it must be a multiple of {ENTRY}")]
    Record(usize),
    /// An entry is for a word beyond the region.
    #[error("entry {entry}: word {word} lies past the region's {words} words")]
    PastRegion {
        /// Entry of the record.
        entry: usize,
        /// Its word.
        word: usize,
        /// Words of the region.
        words: usize,
    },
}

/// Checks a region's length.
pub(crate) fn region(len: usize) -> Result<(), DeltaError> {
    if len.is_multiple_of(8) && len <= MAX_REGION { Ok(()) } else { Err(DeltaError::Region(len)) }
}

/// Writes the record that turns `old` into `new`.
///
/// # Safety
///
/// Needs the instruction set of `V`; `old` and `new` have `len` readable bytes, a multiple of 8; `dst` has `cap`
/// writable ones.
#[inline(always)]
pub(crate) unsafe fn create<V: Vector>(
    old: *const u8,
    new: *const u8,
    len: usize,
    dst: *mut u8,
    cap: usize,
) -> Delta {
    let (mut at, mut out) = (0, 0);
    while at < len {
        // SAFETY: `differing64` stays within `len`; words with a differing byte lie within it too, since it is a
        // multiple of 8; entries are written after a check against `cap`.
        unsafe {
            let mut mask = differing64::<V>(old, new, at, len);
            while mask != 0 {
                let word = mask.trailing_zeros() as usize / 8;
                mask &= !(0xff << (8 * word));
                if out + ENTRY > cap {
                    return Delta::Overflow(out);
                }
                let offset = at + 8 * word;
                let index = (offset / 8) as u16;
                dst.add(out).cast::<u16>().write_unaligned(index.to_le());
                std::ptr::copy_nonoverlapping(new.add(offset), dst.add(out + 2), 8);
                out += ENTRY;
            }
        }
        at += 64;
    }
    if out == 0 { Delta::Equal } else { Delta::Differs(out) }
}

/// Applies a record to the old region, in place. On an error nothing is changed.
pub fn apply(record: &[u8], region: &mut [u8]) -> Result<(), DeltaError> {
    self::region(region.len())?;
    let (entries, rest) = record.as_chunks::<ENTRY>();
    if !rest.is_empty() {
        return Err(DeltaError::Record(record.len()));
    }
    let words = region.len() / 8;
    let word = |entry: &[u8; ENTRY]| usize::from(u16::from_le_bytes([entry[0], entry[1]]));
    if let Some(i) = entries.iter().position(|e| word(e) >= words) {
        return Err(DeltaError::PastRegion { entry: i, word: word(&entries[i]), words });
    }
    for entry in entries {
        let at = 8 * word(entry);
        region[at..at + 8].copy_from_slice(&entry[2..]);
    }
    Ok(())
}
