//! Operations by the processor, in the thread that calls.

use std::ffi::c_char;

use super::arguments::{apart, array, bytes, bytes_mut, guarded, invalid};
use super::{PAGEOPS_EBADMSG, PAGEOPS_EOVERFLOW};
use crate::delta::{self, Delta, DeltaError};
use crate::{Cpu, PAGE, PageFacts, xbzrle};

use super::arguments::CallFailure;

/// Result of a pass over a page of 4096 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageopsFacts {
    /// All bytes are zero.
    pub zero: bool,
    /// CRC-32C, also of zero pages.
    pub crc: u32,
}

/// Name of the variant for this processor: "avx512", "avx2", "sse2", "neon", "scalar".
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_variant() -> *const c_char {
    let name = match Cpu::best().name() {
        "avx512" => c"avx512",
        "avx2" => c"avx2",
        "sse2" => c"sse2",
        "neon" => c"neon",
        _ => c"scalar",
    };
    name.as_ptr()
}

/// Whether all bytes are zero: 1 or 0; PAGEOPS_EINVAL. Compare with 1: an error is not zero either.
///
/// Threads: any, at any time.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_is_zero(p: *const u8, len: usize) -> i32 {
    // SAFETY: by the contract.
    guarded(|| Ok(i32::from(Cpu::best().is_zero(unsafe { bytes("p", p, len) }?))))
}

/// Whether the block is one repeated 8-byte word (little-endian): 1 or 0; PAGEOPS_EINVAL. The word is stored in `word`, which
/// may be NULL.
///
/// Threads: any, at any time.
///
/// # Safety
///
/// `len` bytes can be read at `p`; `word` can be written or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_same_fill(p: *const u8, len: usize, word: *mut u64) -> i32 {
    guarded(|| {
        array("word", word, usize::from(!word.is_null()))?;
        // SAFETY: by the contract.
        let found = Cpu::best().same_fill(unsafe { bytes("p", p, len) }?);
        if let Some(found) = found
            && !word.is_null()
        {
            // SAFETY: by the contract.
            unsafe { word.write(found) };
        }
        Ok(i32::from(found.is_some()))
    })
}

/// Offset of the first different byte, or `len` if the blocks are equal; PAGEOPS_EINVAL.
///
/// Threads: any, at any time.
///
/// # Safety
///
/// `len` bytes can be read at both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_compare(a: *const u8, b: *const u8, len: usize) -> i64 {
    guarded(|| {
        // SAFETY: by the contract.
        let at = unsafe { Cpu::best().compare(bytes("a", a, len)?, bytes("b", b, len)?) };
        Ok(at.unwrap_or(len) as i64)
    })
}

/// Copies; large blocks bypass the caches. 0, or PAGEOPS_EINVAL.
///
/// Threads: any; no two with blocks that overlap.
///
/// # Safety
///
/// `len` bytes can be read at `src` and written at `dst`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_copy(dst: *mut u8, src: *const u8, len: usize) -> i32 {
    guarded(|| {
        apart(("dst", dst, len), ("src", src, len))?;
        // SAFETY: by the contract, and they do not overlap.
        unsafe { Cpu::best().copy(bytes_mut("dst", dst, len)?, bytes("src", src, len)?) };
        Ok(0)
    })
}

/// Fills with an 8-byte word (little-endian). 0, or PAGEOPS_EINVAL.
///
/// Threads: any; no two with blocks that overlap.
///
/// # Safety
///
/// `len` bytes can be written at `dst`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_fill(dst: *mut u8, len: usize, word: u64) -> i32 {
    guarded(|| {
        // SAFETY: by the contract.
        Cpu::best().fill(unsafe { bytes_mut("dst", dst, len) }?, word);
        Ok(0)
    })
}

/// CRC-32C, at least 0; PAGEOPS_EINVAL. `seed` is 0, or the CRC of the preceding bytes.
///
/// Threads: any, at any time.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_crc32c(seed: u32, p: *const u8, len: usize) -> i64 {
    // SAFETY: by the contract.
    guarded(|| Ok(i64::from(Cpu::best().crc32c(seed, unsafe { bytes("p", p, len) }?))))
}

/// Copies and returns the CRC-32C, in one pass; PAGEOPS_EINVAL.
///
/// Threads: any; no two with blocks that overlap.
///
/// # Safety
///
/// `len` bytes can be read at `src` and written at `dst`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_copy_crc32c(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    seed: u32,
) -> i64 {
    guarded(|| {
        apart(("dst", dst, len), ("src", src, len))?;
        // SAFETY: by the contract, and they do not overlap.
        let (to, from) = unsafe { (bytes_mut("dst", dst, len)?, bytes("src", src, len)?) };
        Ok(i64::from(Cpu::best().copy_crc(to, from, seed)))
    })
}

/// Bytes of this number of pages.
fn pages(count: usize) -> Result<usize, CallFailure> {
    count.checked_mul(PAGE).ok_or_else(|| invalid(format!("{count} pages fit in no memory")))
}

/// Zero check and CRC-32C of `count` pages of 4096 bytes, in one pass. 0, or PAGEOPS_EINVAL.
///
/// Threads: any; no two with the same `out`.
///
/// # Safety
///
/// The pages can be read and as many facts written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_scan(
    pages: *const u8,
    count: usize,
    out: *mut PageopsFacts,
) -> i32 {
    guarded(|| {
        array("out", out, count)?;
        // SAFETY: by the contract.
        let pages = unsafe { bytes("pages", pages, self::pages(count)?) }?;
        let cpu = Cpu::best();
        for (i, page) in pages.chunks_exact(PAGE).enumerate() {
            let mut facts = [PageFacts::default()];
            cpu.scan(page, &mut facts);
            // SAFETY: by the contract.
            unsafe { out.add(i).write(PageopsFacts { zero: facts[0].zero, crc: facts[0].crc }) };
        }
        Ok(0)
    })
}

/// Zero check, CRC-32C and copy of `count` pages of 4096 bytes, in one pass. 0, or PAGEOPS_EINVAL.
///
/// Threads: any; no two with the same `out`, or with blocks that overlap.
///
/// # Safety
///
/// The pages can be read at `src` and written at `dst`, and as many facts written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_copy_scan(
    dst: *mut u8,
    src: *const u8,
    count: usize,
    out: *mut PageopsFacts,
) -> i32 {
    guarded(|| {
        array("out", out, count)?;
        let len = pages(count)?;
        apart(("dst", dst, len), ("src", src, len))?;
        // SAFETY: by the contract, and they do not overlap.
        let (to, from) = unsafe { (bytes_mut("dst", dst, len)?, bytes("src", src, len)?) };
        let cpu = Cpu::best();
        for (i, (to, from)) in to.chunks_exact_mut(PAGE).zip(from.chunks_exact(PAGE)).enumerate() {
            let mut facts = [PageFacts::default()];
            cpu.copy_scan(to, from, &mut facts);
            // SAFETY: by the contract.
            unsafe { out.add(i).write(PageopsFacts { zero: facts[0].zero, crc: facts[0].crc }) };
        }
        Ok(0)
    })
}

/// Encodes the difference, like QEMU's xbzrle_encode_buffer: bytes written, 0 if the pages are equal, PAGEOPS_EOVERFLOW if `cap`
/// is
/// too small; PAGEOPS_EINVAL, also of a page longer than 16383 bytes.
///
/// Threads: any; no two with the same `delta`.
///
/// # Safety
///
/// `len` bytes can be read at both pages and `cap` written at `delta`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_xbzrle_encode(
    old_page: *const u8,
    new_page: *const u8,
    len: usize,
    delta: *mut u8,
    cap: usize,
) -> i64 {
    guarded(|| {
        if len > xbzrle::MAX_PAGE {
            return Err(invalid(format!("a page of {len} bytes: at most {}", xbzrle::MAX_PAGE)));
        }
        apart(("delta", delta, cap), ("old_page", old_page, len))?;
        apart(("delta", delta, cap), ("new_page", new_page, len))?;
        // SAFETY: by the contract, and what is written overlaps nothing.
        let (old, new, delta) = unsafe {
            (
                bytes("old", old_page, len)?,
                bytes("new", new_page, len)?,
                bytes_mut("delta", delta, cap)?,
            )
        };
        let made = Cpu::best().xbzrle_encode(old, new, delta);
        Ok(made.map_or(i64::from(PAGEOPS_EOVERFLOW), |len| len as i64))
    })
}

/// Applies such a delta in place: the offset after the last changed byte, or PAGEOPS_EBADMSG if the delta does not belong to
/// this page, which may then be partly changed; PAGEOPS_EINVAL.
///
/// Threads: any; no two with the same `page`.
///
/// # Safety
///
/// `size` bytes can be read at `delta` and `len` written at `page`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_xbzrle_decode(
    delta: *const u8,
    size: usize,
    page: *mut u8,
    len: usize,
) -> i64 {
    guarded(|| {
        apart(("delta", delta, size), ("page", page, len))?;
        // SAFETY: by the contract, and they do not overlap.
        let (delta, page) =
            unsafe { (bytes("delta", delta, size)?, bytes_mut("page", page, len)?) };
        Ok(xbzrle::decode(delta, page).map_or(i64::from(PAGEOPS_EBADMSG), |end| end as i64))
    })
}

/// Writes a DSA delta record: its length, 0 if the blocks are equal, PAGEOPS_EOVERFLOW if `cap` is too small; PAGEOPS_EINVAL,
/// also of a
/// `len` that is no multiple of 8 or above 0x7FFF8.
///
/// Threads: any; no two with the same `record`.
///
/// # Safety
///
/// `len` bytes can be read at both blocks and `cap` written at `record`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_delta_create(
    old_block: *const u8,
    new_block: *const u8,
    len: usize,
    record: *mut u8,
    cap: usize,
) -> i64 {
    guarded(|| {
        apart(("record", record, cap), ("old_block", old_block, len))?;
        apart(("record", record, cap), ("new_block", new_block, len))?;
        // SAFETY: by the contract, and what is written overlaps nothing.
        let made = unsafe {
            Cpu::best().delta_create(
                bytes("old_block", old_block, len)?,
                bytes("new_block", new_block, len)?,
                bytes_mut("record", record, cap)?,
            )
        };
        match made {
            Ok(Delta::Equal) => Ok(0),
            Ok(Delta::Differs(size)) => Ok(size as i64),
            Ok(Delta::Overflow(_)) => Ok(i64::from(PAGEOPS_EOVERFLOW)),
            Err(error) => Err(invalid(error.to_string())),
        }
    })
}

/// Applies a DSA delta record in place. 0; PAGEOPS_EBADMSG if the record does not belong to this block, or PAGEOPS_EINVAL; both
/// change nothing.
///
/// Threads: any; no two with the same `block`.
///
/// # Safety
///
/// `size` bytes can be read at `record` and `len` written at `block`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_delta_apply(
    record: *const u8,
    size: usize,
    block: *mut u8,
    len: usize,
) -> i32 {
    guarded(|| {
        apart(("record", record, size), ("block", block, len))?;
        // SAFETY: by the contract, and they do not overlap.
        let applied = unsafe {
            delta::apply(bytes("record", record, size)?, bytes_mut("block", block, len)?)
        };
        match applied {
            Ok(()) => Ok(0),
            Err(error @ DeltaError::Region(_)) => Err(invalid(error.to_string())),
            Err(_) => Ok(PAGEOPS_EBADMSG),
        }
    })
}
