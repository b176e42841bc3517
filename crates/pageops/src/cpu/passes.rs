//! The passes over bytes, written once over [`Vector`]. What they must give is what the scalar instance gives.
//!
//! # Safety
//!
//! Every function needs the instruction set of `V`, and `len` bytes that can be read (or written, for a
//! destination) behind each pointer. Sources and destinations do not overlap unless it says otherwise.

use super::vector::Vector;

/// Whether all bytes are zero.
#[inline(always)]
pub(crate) unsafe fn is_zero<V: Vector>(p: *const u8, len: usize) -> bool {
    // Many loads a test: fewer tests leave more of the loads' throughput. A kilobyte is enough of that, and what comes from memory
    // gets slower with more.
    let loads = if V::BYTES > 32 { 16 } else { 32 };
    let step = loads * V::BYTES;
    let mut at = 0;
    // SAFETY: every load is within `len` bytes: loops stop before the end, and the last vector is placed so that
    // it ends with the buffer, which holds at least one vector by then.
    unsafe {
        if len >= V::BYTES && !V::load(p).is_zero() {
            return false;
        }
        while at + step <= len {
            let q = p.add(at);
            let mut any = [
                V::load(q),
                V::load(q.add(V::BYTES)),
                V::load(q.add(2 * V::BYTES)),
                V::load(q.add(3 * V::BYTES)),
            ];
            for i in 4..loads {
                any[i % 4] = any[i % 4].or(V::load(q.add(i * V::BYTES)));
            }
            if !any[0].or(any[1]).or(any[2].or(any[3])).is_zero() {
                return false;
            }
            at += step;
        }
        while at + V::BYTES <= len {
            if !V::load(p.add(at)).is_zero() {
                return false;
            }
            at += V::BYTES;
        }
        if at < len && len >= V::BYTES {
            return V::load(p.add(len - V::BYTES)).is_zero();
        }
        (at..len).all(|i| *p.add(i) == 0)
    }
}

/// Place of the first byte that is not `word` repeated from the start (little-endian); `len` if there is none.
#[inline(always)]
pub(crate) unsafe fn mismatch_word<V: Vector>(p: *const u8, len: usize, word: u64) -> usize {
    let mut at = 0;
    // SAFETY: every load is within `len` bytes, by the loops' conditions.
    unsafe {
        let pattern = V::splat(word.to_le());
        while at + 4 * V::BYTES <= len {
            let q = p.add(at);
            let a = V::load(q).xor(pattern).or(V::load(q.add(V::BYTES)).xor(pattern));
            let b = V::load(q.add(2 * V::BYTES)).xor(pattern);
            let b = b.or(V::load(q.add(3 * V::BYTES)).xor(pattern));
            if !a.or(b).is_zero() {
                break;
            }
            at += 4 * V::BYTES;
        }
        while at + V::BYTES <= len {
            let differing = V::load(p.add(at)).differing(pattern);
            if differing != 0 {
                return at + differing.trailing_zeros() as usize;
            }
            at += V::BYTES;
        }
        let bytes = word.to_le_bytes();
        while at < len && *p.add(at) == bytes[at % 8] {
            at += 1;
        }
    }
    at
}

/// Place of the first byte that differs; `len` if none does. `a` and `b` may overlap.
#[inline(always)]
pub(crate) unsafe fn mismatch<V: Vector>(a: *const u8, b: *const u8, len: usize) -> usize {
    let mut at = 0;
    // SAFETY: every load is within `len` bytes, by the loops' conditions.
    unsafe {
        while at + 4 * V::BYTES <= len {
            let (p, q) = (a.add(at), b.add(at));
            let mut any = V::load(p).xor(V::load(q));
            for i in 1..4 {
                let i = i * V::BYTES;
                any = any.or(V::load(p.add(i)).xor(V::load(q.add(i))));
            }
            if !any.is_zero() {
                break;
            }
            at += 4 * V::BYTES;
        }
        while at + V::BYTES <= len {
            let differing = V::load(a.add(at)).differing(V::load(b.add(at)));
            if differing != 0 {
                return at + differing.trailing_zeros() as usize;
            }
            at += V::BYTES;
        }
        while at < len && *a.add(at) == *b.add(at) {
            at += 1;
        }
    }
    at
}

/// Which of the 64 bytes at `at` differ. Bytes past `len` do not.
#[inline(always)]
pub(crate) unsafe fn differing64<V: Vector>(
    a: *const u8,
    b: *const u8,
    at: usize,
    len: usize,
) -> u64 {
    let mut mask = 0;
    // SAFETY: whole blocks are read with vectors that fill exactly 64 bytes below `len`, the rest by bytes.
    unsafe {
        if at + 64 <= len {
            let mut i = 0;
            while i < 64 {
                let d = V::load(a.add(at + i)).differing(V::load(b.add(at + i)));
                mask |= d << i;
                i += V::BYTES;
            }
        } else {
            for i in at..len {
                mask |= u64::from(*a.add(i) != *b.add(i)) << (i - at);
            }
        }
    }
    mask
}

/// Copies with non-temporal writes: for destinations that are not read soon.
#[inline(always)]
pub(crate) unsafe fn copy_stream<V: Vector>(dst: *mut u8, src: *const u8, len: usize) {
    // Whole lines: a line that is written in parts is slow.
    let head = dst.align_offset(64).min(len);
    // SAFETY: head, body and tail together are `len` bytes; `dst + at` is aligned in the body.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        let mut at = head;
        while at + 4 * V::BYTES <= len {
            let q = src.add(at);
            let v = [
                V::load(q),
                V::load(q.add(V::BYTES)),
                V::load(q.add(2 * V::BYTES)),
                V::load(q.add(3 * V::BYTES)),
            ];
            for (i, v) in v.into_iter().enumerate() {
                v.stream(dst.add(at + i * V::BYTES));
            }
            at += 4 * V::BYTES;
        }
        std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at);
    }
}

/// Sum of all 8-byte words (exclusive or): what reading alone costs. `len` is a multiple of 64.
#[inline(always)]
pub(crate) unsafe fn sum<V: Vector>(p: *const u8, len: usize) -> bool {
    let mut at = 0;
    // SAFETY: loads lie within `len`, by the loop's condition.
    unsafe {
        let mut sums = [V::splat(0); 8];
        while at + 8 * V::BYTES <= len {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(V::load(p.add(at + i * V::BYTES)));
            }
            at += 8 * V::BYTES;
        }
        let mut all = sums[0];
        for sum in &sums[1..] {
            all = all.xor(*sum);
        }
        all.is_zero()
    }
}

/// Two NH hashes (the universal hash family of UMAC, RFC 4418) of a page: sums of products of its words and random keys, the
/// second with the keys moved on by 16 bytes. `keys` has 16 bytes more than a page.
#[inline(always)]
pub(crate) unsafe fn fingerprint<V: Vector>(page: *const u8, keys: *const u8) -> [u64; 2] {
    let mut words = [[0u64; 8]; 2];
    // SAFETY: loads lie within a page, or 16 bytes behind it in the keys; a vector fits into 64 bytes.
    unsafe {
        let mut sums = [[V::splat(0); 2]; 2];
        let mut at = 0;
        while at < crate::PAGE {
            for (i, sums) in sums.iter_mut().enumerate() {
                let at = at + i * V::BYTES;
                let data = V::load(page.add(at));
                sums[0] = sums[0].plus(data.product(V::load(keys.add(at))));
                sums[1] = sums[1].plus(data.product(V::load(keys.add(at + 16))));
            }
            at += 2 * V::BYTES;
        }
        for (i, words) in words.iter_mut().enumerate() {
            let sum = sums[0][i].plus(sums[1][i]);
            let to = words.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping((&raw const sum).cast(), to, V::BYTES);
        }
    }
    words.map(|words| words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)))
}
