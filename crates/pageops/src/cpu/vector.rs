//! The few vector operations that the passes are written in, for each instruction set.
//!
//! Every function is one or two instructions. Callers carry the matching `#[target_feature]`, so that all of
//! this is inlined into them.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each function is an intrinsic or two; what it needs is said once, at the trait"
)]

/// A vector of bytes.
///
/// # Safety
///
/// All functions need the instruction set of the type; `load` needs `BYTES` readable bytes at `p` and `stream`
/// as many writable ones at a `p` that `BYTES` divides. No other alignment is needed.
pub(crate) unsafe trait Vector: Copy {
    /// Bytes in it; divides 64.
    const BYTES: usize;
    /// Reads a vector.
    unsafe fn load(p: *const u8) -> Self;
    /// Every 8 bytes are `word`.
    unsafe fn splat(word: u64) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn is_zero(self) -> bool;
    /// Bit i is set if byte i differs.
    unsafe fn differing(self, other: Self) -> u64;
    /// Writes past the caches where that can be done.
    unsafe fn stream(self, p: *mut u8);
    /// In each 8 bytes: (low half + key's low half) * (high half + key's high half), the sums modulo 2^32.
    unsafe fn product(self, key: Self) -> Self;
    /// Sums of each 8 bytes, modulo 2^64.
    unsafe fn plus(self, other: Self) -> Self;
}

/// The scalar one, which all others must equal.
// SAFETY: plain reads and writes of 8 bytes, within what the trait asks of callers.
unsafe impl Vector for u64 {
    const BYTES: usize = 8;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> u64 {
        p.cast::<u64>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> u64 {
        word
    }
    #[inline(always)]
    unsafe fn or(self, other: u64) -> u64 {
        self | other
    }
    #[inline(always)]
    unsafe fn xor(self, other: u64) -> u64 {
        self ^ other
    }
    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self == 0
    }
    #[inline(always)]
    unsafe fn differing(self, other: u64) -> u64 {
        // The high bit of each byte says whether the byte is nonzero; then the eight bits are gathered.
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let x = (self ^ other).to_le();
        let nonzero = (((x & LOW) + LOW) | x) & !LOW;
        (nonzero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut u8) {
        p.cast::<u64>().write_unaligned(self);
    }
    #[inline(always)]
    unsafe fn product(self, key: u64) -> u64 {
        let low = (self as u32).wrapping_add(key as u32);
        let high = ((self >> 32) as u32).wrapping_add((key >> 32) as u32);
        u64::from(low) * u64::from(high)
    }
    #[inline(always)]
    unsafe fn plus(self, other: u64) -> u64 {
        self.wrapping_add(other)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    // SAFETY: SSE2 intrinsics on what the trait asks of callers.
    unsafe impl Vector for __m128i {
        const BYTES: usize = 16;
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            _mm_loadu_si128(p.cast())
        }
        #[inline(always)]
        unsafe fn splat(word: u64) -> Self {
            _mm_set1_epi64x(word.cast_signed())
        }
        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            _mm_or_si128(self, other)
        }
        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            _mm_xor_si128(self, other)
        }
        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            _mm_movemask_epi8(_mm_cmpeq_epi8(self, _mm_setzero_si128())) == 0xffff
        }
        #[inline(always)]
        unsafe fn differing(self, other: Self) -> u64 {
            u64::from(_mm_movemask_epi8(_mm_cmpeq_epi8(self, other)).cast_unsigned() ^ 0xffff)
        }
        #[inline(always)]
        unsafe fn stream(self, p: *mut u8) {
            #[cfg(not(miri))]
            _mm_stream_si128(p.cast(), self);
            // Miri has no non-temporal stores.
            #[cfg(miri)]
            _mm_storeu_si128(p.cast(), self);
        }
        #[inline(always)]
        unsafe fn product(self, key: Self) -> Self {
            let sums = _mm_add_epi32(self, key);
            _mm_mul_epu32(sums, _mm_srli_epi64::<32>(sums))
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            _mm_add_epi64(self, other)
        }
    }

    // SAFETY: AVX2 intrinsics on what the trait asks of callers.
    unsafe impl Vector for __m256i {
        const BYTES: usize = 32;
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            _mm256_loadu_si256(p.cast())
        }
        #[inline(always)]
        unsafe fn splat(word: u64) -> Self {
            _mm256_set1_epi64x(word.cast_signed())
        }
        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            _mm256_or_si256(self, other)
        }
        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            _mm256_xor_si256(self, other)
        }
        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            _mm256_testz_si256(self, self) != 0
        }
        #[inline(always)]
        unsafe fn differing(self, other: Self) -> u64 {
            u64::from(!_mm256_movemask_epi8(_mm256_cmpeq_epi8(self, other)).cast_unsigned())
        }
        #[inline(always)]
        unsafe fn stream(self, p: *mut u8) {
            #[cfg(not(miri))]
            _mm256_stream_si256(p.cast(), self);
            #[cfg(miri)]
            _mm256_storeu_si256(p.cast(), self);
        }
        #[inline(always)]
        unsafe fn product(self, key: Self) -> Self {
            let sums = _mm256_add_epi32(self, key);
            _mm256_mul_epu32(sums, _mm256_srli_epi64::<32>(sums))
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            _mm256_add_epi64(self, other)
        }
    }

    // SAFETY: AVX-512F and BW intrinsics on what the trait asks of callers.
    unsafe impl Vector for __m512i {
        const BYTES: usize = 64;
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            _mm512_loadu_si512(p.cast())
        }
        #[inline(always)]
        unsafe fn splat(word: u64) -> Self {
            _mm512_set1_epi64(word.cast_signed())
        }
        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            _mm512_or_si512(self, other)
        }
        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            _mm512_xor_si512(self, other)
        }
        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            _mm512_test_epi64_mask(self, self) == 0
        }
        #[inline(always)]
        unsafe fn differing(self, other: Self) -> u64 {
            _mm512_cmpneq_epi8_mask(self, other)
        }
        #[inline(always)]
        unsafe fn stream(self, p: *mut u8) {
            #[cfg(not(miri))]
            _mm512_stream_si512(p.cast(), self);
            #[cfg(miri)]
            _mm512_storeu_si512(p.cast(), self);
        }
        #[inline(always)]
        unsafe fn product(self, key: Self) -> Self {
            let sums = _mm512_add_epi32(self, key);
            _mm512_mul_epu32(sums, _mm512_srli_epi64::<32>(sums))
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            _mm512_add_epi64(self, other)
        }
    }
}

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon {
    use super::Vector;
    use std::arch::aarch64::*;

    // SAFETY: NEON intrinsics on what the trait asks of callers.
    unsafe impl Vector for uint8x16_t {
        const BYTES: usize = 16;
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            vld1q_u8(p)
        }
        #[inline(always)]
        unsafe fn splat(word: u64) -> Self {
            vreinterpretq_u8_u64(vdupq_n_u64(word))
        }
        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            vorrq_u8(self, other)
        }
        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            veorq_u8(self, other)
        }
        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            vmaxvq_u32(vreinterpretq_u32_u8(self)) == 0
        }
        #[inline(always)]
        unsafe fn differing(self, other: Self) -> u64 {
            // Each byte of the comparison keeps the bit of its place in its half; adding a half gathers them.
            let places =
                vcombine_u8(vcreate_u8(0x8040_2010_0804_0201), vcreate_u8(0x8040_2010_0804_0201));
            let bits = vandq_u8(vmvnq_u8(vceqq_u8(self, other)), places);
            u64::from(vaddv_u8(vget_low_u8(bits))) | u64::from(vaddv_u8(vget_high_u8(bits))) << 8
        }
        #[inline(always)]
        unsafe fn stream(self, p: *mut u8) {
            vst1q_u8(p, self);
        }
        #[inline(always)]
        unsafe fn product(self, key: Self) -> Self {
            let sums = vaddq_u32(vreinterpretq_u32_u8(self), vreinterpretq_u32_u8(key));
            let sums = vreinterpretq_u64_u32(sums);
            vreinterpretq_u8_u64(vmull_u32(vmovn_u64(sums), vshrn_n_u64::<32>(sums)))
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            let (a, b) = (vreinterpretq_u64_u8(self), vreinterpretq_u64_u8(other));
            vreinterpretq_u8_u64(vaddq_u64(a, b))
        }
    }
}
