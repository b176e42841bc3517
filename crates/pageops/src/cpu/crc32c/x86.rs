//! CRC-32C by the CRC instruction and carry-less multiplication, which run beside each other in the processor.
//!
//! The instruction takes 8 bytes a cycle, of three streams or more because it answers late; multiplication folds
//! a further stream meanwhile, and joins them all. How much is folded depends on how wide it is: 128 bits
//! ([`narrow`]), 256 ([`wide`]) or 512 ([`widest`]), which alone is faster than with the instruction beside it.

use std::arch::x86_64::*;

use super::x_to;

/// What a product of two reversed values of 32 bits, taken as one of 64, is too high by once the CRC
/// instruction has reduced it.
const EXCESS: usize = 33;

/// Moves a CRC forward over zeros: `shift` is x^(8n - 33).
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn forward(crc: u32, shift: u32) -> u32 {
    let product = _mm_clmulepi64_si128::<0>(
        _mm_cvtsi32_si128(crc.cast_signed()),
        _mm_cvtsi32_si128(shift.cast_signed()),
    );
    _mm_crc32_u64(0, _mm_cvtsi128_si64(product).cast_unsigned()) as u32
}

/// A 128-bit remainder as a CRC.
#[target_feature(enable = "sse4.2")]
fn reduce(x: __m128i) -> u32 {
    let low = _mm_crc32_u64(0, _mm_cvtsi128_si64(x).cast_unsigned());
    let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(x, x)).cast_unsigned();
    _mm_crc32_u64(low, high) as u32
}

/// The constants that move 128 bits forward by `bits`.
const fn fold(bits: usize) -> (i64, i64) {
    (x_to(bits + 64 - EXCESS) as i64, x_to(bits - EXCESS) as i64)
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
fn folded(x: __m128i, k: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(x, k);
    let high = _mm_clmulepi64_si128::<0x11>(x, k);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}

/// # Safety
///
/// 8 bytes can be read at `p`.
#[inline(always)]
unsafe fn word(p: *const u8) -> u64 {
    // SAFETY: by the contract.
    unsafe { p.cast::<u64>().read_unaligned() }
}

/// Asks for a line to be in the cache soon. It may be of no memory at all.
#[inline(always)]
fn prefetch(p: *const u8) {
    // SAFETY: a hint, which faults nowhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// One stream, by the instruction alone.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
#[target_feature(enable = "sse4.2")]
unsafe fn serial(crc: u32, p: *const u8, len: usize) -> u32 {
    let mut wide = u64::from(crc);
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: within `len`.
        wide = _mm_crc32_u64(wide, unsafe { word(p.add(at)) });
        at += 8;
    }
    let mut crc = wide as u32;
    while at < len {
        // SAFETY: within `len`.
        crc = _mm_crc32_u8(crc, unsafe { *p.add(at) });
        at += 1;
    }
    crc
}

/// With multiplications of 128 bits: a quarter is folded, three quarters go through the instruction.
pub(in crate::cpu) mod narrow {
    use super::*;

    /// One block of `ROUNDS` rounds: 64 bytes a round are folded, 64 go to each of three streams.
    /// While a page is processed the next one is prefetched, for sequential reads: the processor's own fetching stops at
    /// the end of a page.
    ///
    /// # Safety
    ///
    /// `ROUNDS * 256` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    unsafe fn block<const ROUNDS: usize>(crc: u32, p: *const u8) -> u32 {
        const K64: (i64, i64) = fold(512);
        const K16: (i64, i64) = fold(128);
        let part = ROUNDS * 64;
        let shifts: [u32; 3] = const {
            let part = 8 * 64 * ROUNDS;
            [x_to(3 * part - EXCESS), x_to(2 * part - EXCESS), x_to(part - EXCESS)]
        };
        // SAFETY: the four parts are `part` bytes each, and together what the contract grants. Fetching ahead
        // touches nothing that can be told.
        unsafe {
            let load = |at: usize| _mm_loadu_si128(p.add(at).cast());
            let k64 = _mm_set_epi64x(K64.1, K64.0);
            let mut x0 = _mm_xor_si128(load(0), _mm_cvtsi32_si128(crc.cast_signed()));
            let (mut x1, mut x2, mut x3) = (load(16), load(32), load(48));
            let (b, c, d) = (p.add(part), p.add(2 * part), p.add(3 * part));
            let (mut crc_b, mut crc_c, mut crc_d) = (0, 0, 0);
            for round in 0..ROUNDS {
                let at = round * 64;
                if ROUNDS == 16 {
                    for i in 0..4 {
                        let next = p.wrapping_add((4 + i) * part + at);
                        prefetch(next);
                    }
                }
                for i in 0..8 {
                    crc_b = _mm_crc32_u64(crc_b, word(b.add(at + 8 * i)));
                    crc_c = _mm_crc32_u64(crc_c, word(c.add(at + 8 * i)));
                    crc_d = _mm_crc32_u64(crc_d, word(d.add(at + 8 * i)));
                }
                if round + 1 < ROUNDS {
                    x0 = folded(x0, k64, load(at + 64));
                    x1 = folded(x1, k64, load(at + 80));
                    x2 = folded(x2, k64, load(at + 96));
                    x3 = folded(x3, k64, load(at + 112));
                }
            }
            let k16 = _mm_set_epi64x(K16.1, K16.0);
            let x = folded(folded(folded(x0, k16, x1), k16, x2), k16, x3);
            forward(reduce(x), shifts[0])
                ^ forward(crc_b as u32, shifts[1])
                ^ forward(crc_c as u32, shifts[2])
                ^ crc_d as u32
        }
    }

    /// Any length.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(in crate::cpu) unsafe fn crc32c(mut crc: u32, p: *const u8, len: usize) -> u32 {
        let mut at = 0;
        // SAFETY: every step stays within `len`.
        unsafe {
            while len - at >= 4096 {
                crc = block::<16>(crc, p.add(at));
                at += 4096;
            }
            while len - at >= 1024 {
                crc = block::<4>(crc, p.add(at));
                at += 1024;
            }
            while len - at >= 256 {
                crc = block::<1>(crc, p.add(at));
                at += 256;
            }
            serial(crc, p.add(at), len - at)
        }
    }
}

/// With multiplications of 256 bits: half is folded, half goes through the instruction.
pub(in crate::cpu) mod wide {
    use super::*;

    #[target_feature(enable = "avx2,vpclmulqdq")]
    fn folded(x: __m256i, k: __m256i, next: __m256i) -> __m256i {
        let low = _mm256_clmulepi64_epi128::<0x00>(x, k);
        let high = _mm256_clmulepi64_epi128::<0x11>(x, k);
        _mm256_xor_si256(_mm256_xor_si256(low, high), next)
    }

    /// One block of `ROUNDS` rounds: 128 bytes a round are folded, 32 go to each of four streams. Fetches
    /// as [`narrow`] does.
    ///
    /// # Safety
    ///
    /// `ROUNDS * 256` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
    unsafe fn block<const ROUNDS: usize>(crc: u32, p: *const u8) -> u32 {
        const K128: (i64, i64) = fold(1024);
        const K32: (i64, i64) = fold(256);
        const K16: (i64, i64) = fold(128);
        let folds = ROUNDS * 128;
        let part = ROUNDS * 32;
        let shifts: [u32; 4] = const {
            let part = 8 * 32 * ROUNDS;
            [
                x_to(4 * part - EXCESS),
                x_to(3 * part - EXCESS),
                x_to(2 * part - EXCESS),
                x_to(part - EXCESS),
            ]
        };
        // SAFETY: the folded half and the four parts are together what the contract grants. Fetching ahead touches
        // nothing that can be told.
        unsafe {
            let load = |at: usize| _mm256_loadu_si256(p.add(at).cast());
            let both = |k: (i64, i64)| _mm256_set_epi64x(k.1, k.0, k.1, k.0);
            let k128 = both(K128);
            let seed = _mm256_zextsi128_si256(_mm_cvtsi32_si128(crc.cast_signed()));
            let mut x = [_mm256_xor_si256(load(0), seed), load(32), load(64), load(96)];
            let mut crcs = [0; 4];
            for round in 0..ROUNDS {
                if ROUNDS == 16 {
                    for i in 0..4 {
                        let next = p.wrapping_add(ROUNDS * 256 + round * 256 + 64 * i);
                        prefetch(next);
                    }
                }
                for i in 0..4 {
                    for (stream, crc) in crcs.iter_mut().enumerate() {
                        let at = folds + stream * part + round * 32 + 8 * i;
                        *crc = _mm_crc32_u64(*crc, word(p.add(at)));
                    }
                }
                if round + 1 < ROUNDS {
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = folded(*x, k128, load((round + 1) * 128 + 32 * i));
                    }
                }
            }
            let k32 = both(K32);
            let x = folded(folded(folded(x[0], k32, x[1]), k32, x[2]), k32, x[3]);
            let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = super::folded(low, _mm_set_epi64x(K16.1, K16.0), high);
            forward(reduce(x), shifts[0])
                ^ forward(crcs[0] as u32, shifts[1])
                ^ forward(crcs[1] as u32, shifts[2])
                ^ forward(crcs[2] as u32, shifts[3])
                ^ crcs[3] as u32
        }
    }

    /// Any length.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
    pub(in crate::cpu) unsafe fn crc32c(mut crc: u32, p: *const u8, len: usize) -> u32 {
        let mut at = 0;
        // SAFETY: every step stays within `len`.
        unsafe {
            while len - at >= 4096 {
                crc = block::<16>(crc, p.add(at));
                at += 4096;
            }
            while len - at >= 1024 {
                crc = block::<4>(crc, p.add(at));
                at += 1024;
            }
            while len - at >= 256 {
                crc = block::<1>(crc, p.add(at));
                at += 256;
            }
            serial(crc, p.add(at), len - at)
        }
    }
}

/// With multiplications of 512 bits: all of a page is folded.
pub(in crate::cpu) mod widest {
    use std::sync::atomic::{Ordering, compiler_fence};

    use super::*;

    /// Vectors folded side by side. A product is there after 8 cycles and each vector needs two, so that eight keep the multiplier busy.
    const LANES: usize = 8;

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn folded(x: __m512i, k: __m512i, next: __m512i) -> __m512i {
        /// Exclusive or of all three.
        const XOR: i32 = 0x96;
        let low = _mm512_clmulepi64_epi128::<0x00>(x, k);
        let high = _mm512_clmulepi64_epi128::<0x11>(x, k);
        _mm512_ternarylogic_epi64::<XOR>(low, high, next)
    }

    #[target_feature(enable = "avx512f")]
    fn four(k: (i64, i64)) -> __m512i {
        _mm512_set_epi64(k.1, k.0, k.1, k.0, k.1, k.0, k.1, k.0)
    }

    /// The vectors as one of 128 bits.
    #[target_feature(enable = "avx512f,vpclmulqdq,avx2")]
    fn join(x: [__m512i; LANES]) -> __m128i {
        const STEPS: [(i64, i64); LANES - 1] = {
            let mut steps = [(0, 0); LANES - 1];
            let mut i = 0;
            while i < LANES - 1 {
                steps[i] = fold((LANES - 1 - i) * 512);
                i += 1;
            }
            steps
        };
        const K: [(i64, i64); 3] = [fold(384), fold(256), fold(128)];
        let mut all = x[LANES - 1];
        for (x, k) in x.into_iter().zip(STEPS) {
            all = folded(x, four(k), all);
        }
        // The last quarter stays as it is; the three before it are moved there.
        let k = _mm512_set_epi64(0, 0, K[2].1, K[2].0, K[1].1, K[1].0, K[0].1, K[0].0);
        let last = _mm512_extracti32x4_epi32::<3>(all);
        let moved = folded(all, k, _mm512_zextsi128_si512(last));
        let half = _mm512_extracti64x4_epi64::<1>(moved);
        let half = _mm256_xor_si256(_mm512_castsi512_si256(moved), half);
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
    }

    /// One page, from 0: it need not wait for the page before it. Fetches the next one as [`narrow`] does.
    ///
    /// # Safety
    ///
    /// 4096 bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq,avx2,avx512f,vpclmulqdq")]
    unsafe fn page(p: *const u8) -> u32 {
        const STEP: usize = LANES * 64;
        const ROUNDS: usize = 4096 / STEP;
        const K: (i64, i64) = fold(STEP * 8);
        let k = four(K);
        // SAFETY: only asked for places within the page.
        let load = |at: usize| unsafe { _mm512_loadu_si512(p.add(at).cast()) };
        let mut x = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| load(64 * i));
        for round in 1..=ROUNDS {
            for i in 0..LANES {
                let next = p.wrapping_add(4096 + (round - 1) * STEP + 64 * i);
                prefetch(next);
            }
            // Else the compiler fetches when the page is done, which is too late.
            compiler_fence(Ordering::SeqCst);
            if round < ROUNDS {
                for (i, x) in x.iter_mut().enumerate() {
                    *x = folded(*x, k, load(round * STEP + 64 * i));
                }
            }
        }
        reduce(join(x))
    }

    /// Any length.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq,avx2,avx512f,vpclmulqdq")]
    pub(in crate::cpu) unsafe fn crc32c(mut crc: u32, p: *const u8, len: usize) -> u32 {
        const PAGE: u32 = x_to(8 * 4096 - EXCESS);
        let mut at = 0;
        // SAFETY: every step stays within `len`.
        unsafe {
            while len - at >= 4096 {
                crc = forward(crc, PAGE) ^ page(p.add(at));
                at += 4096;
            }
            wide::crc32c(crc, p.add(at), len - at)
        }
    }
}
