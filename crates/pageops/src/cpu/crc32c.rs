//! CRC-32C, on the register as it stands (no inversion): tables, and the processor's instructions.
//!
//! The instruction gives 8 bytes a cycle from three streams at once; carry-less multiplication folds a fourth
//! stream beside them, and joins the four.

/// x^n modulo the polynomial, bits reversed.
const fn x_to(n: usize) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut value: u32 = 0x8000_0000;
    let mut i = 0;
    while i < n {
        value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
        i += 1;
    }
    value
}

/// Tables for eight bytes at a time.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        tables[0][i] = value;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[k - 1][i];
            tables[k][i] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    tables
}

/// By tables: what every other way must equal.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
pub(crate) unsafe fn scalar(mut crc: u32, p: *const u8, len: usize) -> u32 {
    // SAFETY: by the contract; the bytes are nobody's to write for as long.
    let bytes = unsafe { std::slice::from_raw_parts(p, len) };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let low = u32::from_le_bytes([word[0], word[1], word[2], word[3]]) ^ crc;
        let high = u32::from_le_bytes([word[4], word[5], word[6], word[7]]);
        crc = 0;
        for i in 0..4 {
            crc ^= TABLES[7 - i][(low >> (8 * i) & 0xff) as usize];
            crc ^= TABLES[3 - i][(high >> (8 * i) & 0xff) as usize];
        }
    }
    for byte in rest {
        crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xff) as usize];
    }
    crc
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::x_to;
    use std::arch::x86_64::*;

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

    /// One block of `ROUNDS` rounds: 64 bytes a round are folded, 64 go to each of three streams. With `FETCH` the
    /// block behind is fetched meanwhile, for whoever reads on: the processor's own fetching stops at the end of
    /// a page.
    ///
    /// # Safety
    ///
    /// `ROUNDS * 256` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    unsafe fn block<const ROUNDS: usize, const FETCH: bool>(crc: u32, p: *const u8) -> u32 {
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
                if FETCH {
                    for i in 0..4 {
                        let next = p.wrapping_add((4 + i) * part + at);
                        _mm_prefetch::<_MM_HINT_T0>(next.cast());
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

    /// Any length, from memory.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(crate) unsafe fn crc32c(crc: u32, p: *const u8, len: usize) -> u32 {
        // SAFETY: by the contract.
        unsafe { run::<true>(crc, p, len) }
    }

    /// Any length, of what was just read.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(crate) unsafe fn cached(crc: u32, p: *const u8, len: usize) -> u32 {
        // SAFETY: by the contract.
        unsafe { run::<false>(crc, p, len) }
    }

    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    unsafe fn run<const FETCH: bool>(mut crc: u32, p: *const u8, len: usize) -> u32 {
        let mut at = 0;
        // SAFETY: every step stays within `len`.
        unsafe {
            while len - at >= 4096 {
                crc = block::<16, FETCH>(crc, p.add(at));
                at += 4096;
            }
            while len - at >= 1024 {
                crc = block::<4, false>(crc, p.add(at));
                at += 1024;
            }
            while len - at >= 256 {
                crc = block::<1, false>(crc, p.add(at));
                at += 256;
            }
            serial(crc, p.add(at), len - at)
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm {
    use super::x_to;
    use std::arch::aarch64::*;

    /// # Safety
    ///
    /// 8 bytes can be read at `p`.
    #[inline(always)]
    unsafe fn word(p: *const u8) -> u64 {
        // SAFETY: by the contract.
        unsafe { p.cast::<u64>().read_unaligned() }
    }

    #[target_feature(enable = "crc,aes")]
    fn forward(crc: u32, shift: u32) -> u32 {
        let product = vmull_p64(u64::from(crc), u64::from(shift));
        __crc32cd(0, product as u64)
    }

    /// Any length.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `p`.
    #[target_feature(enable = "crc,aes")]
    pub(crate) unsafe fn crc32c(mut crc: u32, mut p: *const u8, mut len: usize) -> u32 {
        const PART: usize = 336;
        const SHIFTS: [u32; 2] = [x_to(8 * 2 * PART - 33), x_to(8 * PART - 33)];
        // SAFETY: every step stays within `len`.
        unsafe {
            while len >= 3 * PART {
                let (b, c) = (p.add(PART), p.add(2 * PART));
                let (mut crc_b, mut crc_c) = (0, 0);
                for i in 0..PART / 8 {
                    crc = __crc32cd(crc, word(p.add(8 * i)));
                    crc_b = __crc32cd(crc_b, word(b.add(8 * i)));
                    crc_c = __crc32cd(crc_c, word(c.add(8 * i)));
                }
                crc = forward(crc, SHIFTS[0]) ^ forward(crc_b, SHIFTS[1]) ^ crc_c;
                p = p.add(3 * PART);
                len -= 3 * PART;
            }
            while len >= 8 {
                crc = __crc32cd(crc, word(p));
                p = p.add(8);
                len -= 8;
            }
            for i in 0..len {
                crc = __crc32cb(crc, *p.add(i));
            }
        }
        crc
    }
}
