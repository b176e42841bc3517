//! Operations on the CPU, with its vectors.
//!
//! [`Cpu::best`] measures which variant is fastest; [`Cpu::variants`] lists all that this processor supports, for tests and benchmarks. All variants
//! give the same results. Unsafe versions of the operations take raw pointers, for mapped guest memory that others may write. The checksum is
//! the crate `crc-fast`'s in all variants, which selects the processor's instructions itself.

pub(crate) mod passes;
pub(crate) mod vector;

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, Digest};

use crate::delta::{self, Delta, DeltaError};
use crate::xbzrle::{self, Overflow};

/// Results of a pass over a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFacts {
    /// All bytes are zero. `crc` is then that of a zero page too.
    pub zero: bool,
    /// CRC-32C.
    pub crc: u32,
}

/// Random words that [`Cpu::fingerprint`] hashes with.
pub type FingerprintKeys = [u64; crate::PAGE / 8 + 2];

type Compare = unsafe fn(*const u8, *const u8, usize) -> usize;

/// A variant: functions that need the same instruction set.
struct CpuKernels {
    name: &'static str,
    is_zero: unsafe fn(*const u8, usize) -> bool,
    mismatch_word: unsafe fn(*const u8, usize, u64) -> usize,
    mismatch: Compare,
    xbzrle: unsafe fn(*const u8, *const u8, usize, *mut u8, usize) -> Result<usize, Overflow>,
    delta: unsafe fn(*const u8, *const u8, usize, *mut u8, usize) -> Delta,
    copy_stream: unsafe fn(*mut u8, *const u8, usize),
    sum: unsafe fn(*const u8, usize) -> bool,
    scan: unsafe fn(*const u8, usize, u32, &mut [PageFacts]),
    zero_pages: unsafe fn(*const u8, usize, usize, &mut dyn FnMut(usize)),
    copy_scan: unsafe fn(*mut u8, *const u8, usize, u32, &mut [PageFacts]),
    copy_crc: unsafe fn(*mut u8, *const u8, usize, u32) -> u32,
    fingerprint: unsafe fn(*const u8, *const u8) -> [u64; 2],
}

/// CRC-32C on the raw register, without the inversions before and after.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
#[inline]
unsafe fn crc32c(crc: u32, p: *const u8, len: usize) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, crc.into());
    // SAFETY: by the contract; the bytes are not written to for as long.
    digest.update(unsafe { std::slice::from_raw_parts(p, len) });
    digest.get_state() as u32
}

/// Functions of one instruction set: the generic passes, compiled for it.
macro_rules! kernels {
    ($module:ident, $name:literal, $vector:ty $(, $feature:literal)?) => {
        mod $module {
            use super::*;
            use super::passes;

            $(#[target_feature(enable = $feature)])?
            unsafe fn is_zero(p: *const u8, len: usize) -> bool {
                // SAFETY: the caller's contract is the pass's.
                unsafe { passes::is_zero::<$vector>(p, len) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn mismatch_word(p: *const u8, len: usize, word: u64) -> usize {
                // SAFETY: the caller's contract is the pass's.
                unsafe { passes::mismatch_word::<$vector>(p, len, word) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn mismatch(a: *const u8, b: *const u8, len: usize) -> usize {
                // SAFETY: the caller's contract is the pass's.
                unsafe { passes::mismatch::<$vector>(a, b, len) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn xbzrle(
                old: *const u8, new: *const u8, len: usize, dst: *mut u8, cap: usize,
            ) -> Result<usize, Overflow> {
                // SAFETY: the caller's contract is the encoder's.
                unsafe { xbzrle::encode::<$vector>(old, new, len, dst, cap) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn delta(
                old: *const u8, new: *const u8, len: usize, dst: *mut u8, cap: usize,
            ) -> Delta {
                // SAFETY: the caller's contract is the function's.
                unsafe { delta::create::<$vector>(old, new, len, dst, cap) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn copy_stream(dst: *mut u8, src: *const u8, len: usize) {
                // SAFETY: the caller's contract is the pass's.
                unsafe { passes::copy_stream::<$vector>(dst, src, len) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn sum(p: *const u8, len: usize) -> bool {
                // SAFETY: the caller's contract is the pass's.
                unsafe { passes::sum::<$vector>(p, len) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn scan(p: *const u8, page: usize, of_zero: u32, out: &mut [PageFacts]) {
                for (i, facts) in out.iter_mut().enumerate() {
                    // SAFETY: the caller grants `out.len()` pages at `p`.
                    unsafe {
                        let p = p.add(i * page);
                        let zero = passes::is_zero::<$vector>(p, page);
                        *facts = PageFacts { zero, crc: if zero { of_zero } else { !crc32c(!0, p, page) } };
                    }
                }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn zero_pages(
                p: *const u8, page: usize, count: usize, found: &mut dyn FnMut(usize),
            ) {
                for i in 0..count {
                    // SAFETY: the caller grants `count` pages at `p`.
                    if unsafe { passes::is_zero::<$vector>(p.add(i * page), page) } {
                        found(i);
                    }
                }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn copy_scan(
                dst: *mut u8, src: *const u8, page: usize, of_zero: u32, out: &mut [PageFacts],
            ) {
                for (i, facts) in out.iter_mut().enumerate() {
                    // SAFETY: the caller grants `out.len()` pages at both.
                    unsafe {
                        let p = src.add(i * page);
                        let zero = passes::is_zero::<$vector>(p, page);
                        passes::copy_stream::<$vector>(dst.add(i * page), p, page);
                        // The copy has read the page into the first cache; this reads it from there.
                        let crc = if zero { of_zero } else { !crc32c(!0, p, page) };
                        *facts = PageFacts { zero, crc };
                    }
                }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize, mut crc: u32) -> u32 {
                let mut at = 0;
                while at < len {
                    let step = (len - at).min(crate::PAGE);
                    // SAFETY: within `len`, which the caller grants at both.
                    unsafe {
                        passes::copy_stream::<$vector>(dst.add(at), src.add(at), step);
                        crc = crc32c(crc, src.add(at), step);
                    }
                    at += step;
                }
                crc
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn fingerprint(page: *const u8, keys: *const u8) -> [u64; 2] {
                // SAFETY: the caller's contract is the pass's.
                unsafe { passes::fingerprint::<$vector>(page, keys) }
            }
            pub(super) static KERNELS: CpuKernels = CpuKernels {
                name: $name, is_zero, mismatch_word, mismatch, xbzrle, delta, copy_stream, sum, scan,
                zero_pages, copy_scan, copy_crc, fingerprint,
            };
        }
    };
}

kernels!(scalar, "scalar", u64);
#[cfg(target_arch = "x86_64")]
kernels!(sse2, "sse2", std::arch::x86_64::__m128i, "sse2");
#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2", std::arch::x86_64::__m256i, "avx2,bmi1,bmi2");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512", std::arch::x86_64::__m512i, "avx512f,avx512bw,avx2,bmi1,bmi2");
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
kernels!(neon, "neon", std::arch::aarch64::uint8x16_t, "neon");

/// The operations of one variant.
#[derive(Clone, Copy)]
pub struct Cpu {
    kernels: &'static CpuKernels,
    /// CRC of a zero page of [`crate::PAGE`] bytes.
    of_zero: u32,
}

/// Rounds that each variant is measured in turn; the shortest counts.
const ROUNDS: usize = 8;

/// The variant whose shortest time is the shortest, the first of equal ones.
fn fastest(variants: &[Cpu], mut time: impl FnMut(Cpu) -> Duration) -> Cpu {
    let mut shortest = vec![Duration::MAX; variants.len()];
    for _ in 0..ROUNDS {
        for (best, cpu) in shortest.iter_mut().zip(variants) {
            *best = time(*cpu).min(*best);
        }
    }
    let first = shortest.iter().zip(variants).min_by_key(|(time, _)| **time);
    first.map_or_else(Cpu::scalar, |(_, cpu)| *cpu)
}

/// The time of what saves do most: pages are read for zeros, and compared.
fn time_of_scan(cpu: Cpu, (zero, same): (&[u8], &[u8])) -> Duration {
    let start = Instant::now();
    black_box(cpu.is_zero(black_box(zero)));
    black_box(cpu.compare(black_box(zero), black_box(same)));
    start.elapsed()
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cpu").field(&self.kernels.name).finish()
    }
}

impl Cpu {
    /// The fastest variant of this processor, measured once: the widest may be slower than another.
    pub fn best() -> Cpu {
        static BEST: OnceLock<Cpu> = OnceLock::new();
        /// Both memories fit in a second-level cache.
        const BYTES: usize = 16 * crate::PAGE;
        *BEST.get_or_init(|| {
            // Zeros that were written: memory that never was is one page of the kernel's.
            let mut zero = vec![1; BYTES];
            black_box(zero.as_mut_slice()).fill(0);
            let same = zero.clone();
            fastest(&Cpu::variants(), |cpu| time_of_scan(cpu, (&zero, &same)))
        })
    }

    /// The scalar variant, the reference for the others.
    pub fn scalar() -> Cpu {
        Cpu::with(&scalar::KERNELS)
    }

    /// All supported variants, the widest first.
    pub fn variants() -> Vec<Cpu> {
        let mut variants = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            if avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                variants.push(Cpu::with(&avx512::KERNELS));
            }
            if avx2 {
                variants.push(Cpu::with(&avx2::KERNELS));
            }
            variants.push(Cpu::with(&sse2::KERNELS));
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        if std::arch::is_aarch64_feature_detected!("neon") {
            variants.push(Cpu::with(&neon::KERNELS));
        }
        variants.push(Cpu::scalar());
        variants
    }

    fn with(kernels: &'static CpuKernels) -> Cpu {
        let page = [0; crate::PAGE];
        // SAFETY: the page is owned here.
        let of_zero = !unsafe { crc32c(!0, page.as_ptr(), page.len()) };
        Cpu { kernels, of_zero }
    }

    /// Name of the variant: avx512, avx2, sse2, neon, scalar.
    pub fn name(&self) -> &'static str {
        self.kernels.name
    }

    /// Whether all bytes are zero.
    #[inline]
    pub fn is_zero(&self, bytes: &[u8]) -> bool {
        // SAFETY: the variant runs here; the slice can be read.
        unsafe { (self.kernels.is_zero)(bytes.as_ptr(), bytes.len()) }
    }

    /// The 8-byte word (little-endian) that fills all of it, if any. `None` for less than 8 bytes.
    pub fn same_fill(&self, bytes: &[u8]) -> Option<u64> {
        let word = u64::from_le_bytes(*bytes.first_chunk()?);
        (self.mismatch_word(bytes, word) == bytes.len()).then_some(word)
    }

    /// Offset of the first byte that is not `word` repeated; the length if there is none.
    pub fn mismatch_word(&self, bytes: &[u8], word: u64) -> usize {
        // SAFETY: the variant runs here; the slice can be read.
        unsafe { (self.kernels.mismatch_word)(bytes.as_ptr(), bytes.len(), word) }
    }

    /// Offset of the first byte that differs, if any.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Option<usize> {
        assert_eq!(a.len(), b.len(), "pages of one length are compared");
        // SAFETY: the variant runs here; both slices can be read.
        let at = unsafe { (self.kernels.mismatch)(a.as_ptr(), b.as_ptr(), a.len()) };
        (at < a.len()).then_some(at)
    }

    /// Copies; large copies bypass the caches.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn copy(&self, dst: &mut [u8], src: &[u8]) {
        /// Larger copies would evict everything from the L2 cache.
        const LONG: usize = 1 << 20;
        assert_eq!(dst.len(), src.len(), "a copy is as long as its source");
        if src.len() < LONG {
            return dst.copy_from_slice(src);
        }
        // SAFETY: the variant runs here; the slices are as long as each other and do not overlap.
        unsafe {
            (self.kernels.copy_stream)(dst.as_mut_ptr(), src.as_ptr(), src.len());
        }
        fence();
    }

    /// Fills with an 8-byte word (little-endian), from the start.
    pub fn fill(&self, dst: &mut [u8], word: u64) {
        let bytes = word.to_le_bytes();
        if bytes.iter().all(|b| *b == bytes[0]) {
            return dst.fill(bytes[0]);
        }
        let (words, rest) = dst.as_chunks_mut::<8>();
        words.fill(bytes);
        rest.copy_from_slice(&bytes[..rest.len()]);
    }

    /// CRC-32C; `seed` is 0, or the CRC of the preceding bytes.
    #[inline]
    pub fn crc32c(&self, seed: u32, bytes: &[u8]) -> u32 {
        // SAFETY: the slice can be read.
        !unsafe { crc32c(!seed, bytes.as_ptr(), bytes.len()) }
    }

    /// Two hashes of a page under `keys`: equal pages have equal ones in every variant. Two pages that differ have both the
    /// same with a probability of at most 2^-64, if the keys are random and neither page depends on them.
    #[inline]
    pub fn fingerprint(&self, page: &[u8; crate::PAGE], keys: &FingerprintKeys) -> [u64; 2] {
        // SAFETY: the variant runs here; a page and the keys can be read.
        unsafe { (self.kernels.fingerprint)(page.as_ptr(), keys.as_ptr().cast()) }
    }

    /// Writes DSA's delta record of `old` -> `new` into `record`.
    pub fn delta_create(
        &self,
        old: &[u8],
        new: &[u8],
        record: &mut [u8],
    ) -> Result<Delta, DeltaError> {
        if old.len() != new.len() {
            return Err(DeltaError::Lengths(old.len(), new.len()));
        }
        delta::region(old.len())?;
        let (dst, cap) = (record.as_mut_ptr(), record.len());
        // SAFETY: the variant runs here; both regions are as long, and a multiple of 8.
        Ok(unsafe { (self.kernels.delta)(old.as_ptr(), new.as_ptr(), old.len(), dst, cap) })
    }

    /// Encodes the changes, as QEMU does. 0 bytes: no change.
    ///
    /// # Panics
    ///
    /// When the lengths differ or are above [`xbzrle::MAX_PAGE`].
    pub fn xbzrle_encode(
        &self,
        old: &[u8],
        new: &[u8],
        delta: &mut [u8],
    ) -> Result<usize, Overflow> {
        assert_eq!(old.len(), new.len(), "pages of one length are compared");
        assert!(old.len() <= xbzrle::MAX_PAGE, "a page has at most {} bytes", xbzrle::MAX_PAGE);
        let (dst, cap) = (delta.as_mut_ptr(), delta.len());
        // SAFETY: the variant runs here; both pages are as long.
        unsafe { (self.kernels.xbzrle)(old.as_ptr(), new.as_ptr(), old.len(), dst, cap) }
    }

    /// Scan and checksum in one read: facts of each of `out.len()` pages.
    ///
    /// # Panics
    ///
    /// When `pages` is not as many pages of [`crate::PAGE`] bytes.
    pub fn scan(&self, pages: &[u8], out: &mut [PageFacts]) {
        assert_eq!(pages.len(), out.len() * crate::PAGE, "one fact for each page");
        // SAFETY: the variant runs here; the slice holds the pages.
        unsafe { self.scan_at(pages.as_ptr(), out) }
    }

    /// [`Cpu::scan`] of memory that is not a slice.
    ///
    /// # Safety
    ///
    /// `out.len()` pages can be read at `pages`, and are not written meanwhile.
    pub unsafe fn scan_at(&self, pages: *const u8, out: &mut [PageFacts]) {
        // SAFETY: the variant runs here; the rest is the caller's.
        unsafe { (self.kernels.scan)(pages, crate::PAGE, self.of_zero, out) }
    }

    /// Calls `found` with the number of each page of `page` bytes that is zero.
    pub fn zero_pages(&self, pages: &[u8], page: usize, found: &mut dyn FnMut(usize)) {
        // SAFETY: the variant runs here; as many whole pages lie in the slice.
        unsafe { (self.kernels.zero_pages)(pages.as_ptr(), page, pages.len() / page, found) }
    }

    /// Scan, checksum and copy in one read.
    ///
    /// # Panics
    ///
    /// When the lengths do not fit each other.
    pub fn copy_scan(&self, dst: &mut [u8], pages: &[u8], out: &mut [PageFacts]) {
        assert_eq!(pages.len(), out.len() * crate::PAGE, "one fact for each page");
        assert_eq!(dst.len(), pages.len(), "a copy is as long as its source");
        let (to, from) = (dst.as_mut_ptr(), pages.as_ptr());
        // SAFETY: the variant runs here; both slices hold the pages and do not overlap.
        unsafe { (self.kernels.copy_scan)(to, from, crate::PAGE, self.of_zero, out) }
        fence();
    }

    /// Copy and checksum in one read.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn copy_crc(&self, dst: &mut [u8], src: &[u8], seed: u32) -> u32 {
        assert_eq!(dst.len(), src.len(), "a copy is as long as its source");
        let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
        // SAFETY: the variant runs here; the slices are as long as each other and do not overlap.
        let crc = unsafe { (self.kernels.copy_crc)(to, from, src.len(), !seed) };
        fence();
        !crc
    }

    /// Reads everything, with almost no computation: the upper bound of a scan's speed. True if the exclusive or of the words is
    /// zero.
    pub fn read(&self, bytes: &[u8]) -> bool {
        // SAFETY: the variant runs here; the slice can be read.
        unsafe { (self.kernels.sum)(bytes.as_ptr(), bytes.len()) }
    }
}

/// Orders non-temporal stores before later stores.
fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_time_selects_a_variant() {
        let variants = Cpu::variants();
        let last = variants.last().unwrap().name();
        // One quick round suffices.
        let mut calls = 0;
        let found = fastest(&variants, |cpu| {
            calls += 1;
            let is_quick = cpu.name() == last && calls > variants.len();
            Duration::from_micros(if is_quick { 1 } else { 2 })
        });
        assert_eq!((found.name(), calls), (last, ROUNDS * variants.len()));
        let equal = fastest(&variants, |_| Duration::from_micros(1));
        assert_eq!(equal.name(), variants[0].name());
        let names: Vec<&str> = variants.iter().map(Cpu::name).collect();
        assert!(names.contains(&Cpu::best().name()));
    }
}
