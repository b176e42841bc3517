//! Words of a guest's command line that depend on its memory: the size of a bounce buffer.

use std::borrow::Cow;

/// Bytes of a slot of the bounce buffer, and slots to a multiple of which Linux rounds (include/linux/swiotlb.h: `IO_TLB_SIZE`,
/// `IO_TLB_SEGSIZE`).
const SLOT: u64 = 2048;
const SEGMENT: u64 = 128;

/// MiB of the bounce buffer that Linux gives a confidential guest of this memory, rounded down to slots (arch/x86/mm/mem_encrypt.c,
/// `mem_encrypt_setup_arch`: 6 % of its memory, within 64 MiB and 1 GiB).
fn bounce_bytes(memory_mib: u32) -> u64 {
    (u64::from(memory_mib) << 20).saturating_mul(6).div_euclid(100).clamp(64 << 20, 1 << 30)
}

/// A word of [`super::CategoryPart::guest`] for a guest of this memory, with a bounce buffer of so many MiB or of Linux's choice.
pub fn fill(word: &'static str, memory_mib: u32, bounce_mib: Option<u32>) -> Cow<'static, str> {
    const SLABS: &str = "{slabs}";
    if !word.contains(SLABS) {
        return Cow::Borrowed(word);
    }
    let bytes = bounce_mib.map_or_else(|| bounce_bytes(memory_mib), |mib| u64::from(mib) << 20);
    let slabs = (bytes / SLOT).next_multiple_of(SEGMENT);
    Cow::Owned(word.replace(SLABS, &slabs.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounce_buffer_has_the_size_that_linux_gives_a_confidential_guest() {
        for (memory, named, slabs) in [
            (256, None, 32_768),
            (1024, None, 32_768),
            (1067, None, 32_896),
            (2048, None, 62_976),
            (16_384, None, 503_424),
            (65_536, None, 524_288),
            (1024, Some(16), 8_192),
        ] {
            let word = fill("swiotlb={slabs},force", memory, named);
            assert_eq!(word, format!("swiotlb={slabs},force"), "{memory} {named:?}");
        }
        assert_eq!(fill("idle=poll", 1024, None), "idle=poll");
    }
}
