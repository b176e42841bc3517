//! CRC-32C, on the raw register (no inversion): tables, and the processor's instructions.

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
    // SAFETY: by the contract; the bytes are not written to for as long.
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
pub(crate) mod x86;

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
