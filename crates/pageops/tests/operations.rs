//! Every variant against a byte-wise reference, and against ISA-L where it is installed.

use proptest::prelude::*;
use vmtax_pageops::delta::{self, Delta, DeltaError, ENTRY};
use vmtax_pageops::xbzrle::{self, DecodeError, Overflow};
use vmtax_pageops::{Cpu, PAGE, PageFacts};

#[path = "../benches/peers/isal.rs"]
mod isal;

/// What the operations mean, byte by byte.
mod reference {
    use super::*;

    pub(super) fn crc32c(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        !crc
    }

    fn uleb(out: &mut Vec<u8>, value: usize) {
        if value < 0x80 {
            out.push(value as u8);
        } else {
            out.extend([(value & 0x7f) as u8 | 0x80, (value >> 7) as u8]);
        }
    }

    /// QEMU's encoder as its documentation describes it (docs/xbzrle.txt), with the places where it gives up.
    pub(super) fn xbzrle(old: &[u8], new: &[u8], cap: usize) -> Result<Vec<u8>, Overflow> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < new.len() {
            if out.len() + 2 > cap {
                return Err(Overflow);
            }
            let start = at;
            while at < new.len() && old[at] == new[at] {
                at += 1;
            }
            if at == new.len() {
                return Ok(out);
            }
            uleb(&mut out, at - start);
            if out.len() + 2 > cap {
                return Err(Overflow);
            }
            let start = at;
            while at < new.len() && old[at] != new[at] {
                at += 1;
            }
            uleb(&mut out, at - start);
            if out.len() + at - start > cap {
                return Err(Overflow);
            }
            out.extend_from_slice(&new[start..at]);
        }
        Ok(out)
    }

    pub(super) fn delta(old: &[u8], new: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        for i in 0..old.len() / 8 {
            let word = 8 * i..8 * i + 8;
            if old[word.clone()] != new[word.clone()] {
                record.extend((i as u16).to_le_bytes());
                record.extend_from_slice(&new[word]);
            }
        }
        record
    }
}

/// Bytes that are mostly alike, so that runs of all lengths arise.
fn sparse(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![12 => Just(0u8), 1 => any::<u8>()];
    proptest::collection::vec(byte, len)
}

/// Two states of a page: runs that are equal, changed throughout, or changed here and there.
fn states() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let run = (0usize..700, 0u8..4, any::<u64>());
    proptest::collection::vec(run, 0..24).prop_map(|runs| {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for (len, kind, mut state) in runs {
            for _ in 0..len.min(PAGE - old.len()) {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let byte = (state >> 56) as u8;
                old.push(byte);
                new.push(match kind {
                    0 => byte,
                    1 => !byte,
                    2 => byte ^ u8::from((state >> 40) & 7 == 0),
                    _ => (state >> 48) as u8,
                });
            }
        }
        (old, new)
    })
}

/// Bytes of the longest input, and most pages. Miri takes a second for some thousand bytes.
const LONGEST: usize = if cfg!(miri) { 700 } else { 9000 };
const PAGES: usize = if cfg!(miri) { 2 } else { 6 };

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn zero_fill_and_mismatch(bytes in sparse(0..2000usize), at in 0usize..64, word in any::<u64>()) {
        let bytes = &bytes[at.min(bytes.len())..];
        let mut filled = vec![0; bytes.len()];
        let mut expected = vec![0; bytes.len()];
        for (i, byte) in expected.iter_mut().enumerate() {
            *byte = word.to_le_bytes()[i % 8];
        }
        for cpu in Cpu::variants() {
            prop_assert_eq!(cpu.is_zero(bytes), bytes.iter().all(|b| *b == 0), "{:?}", cpu);
            cpu.fill(&mut filled, word);
            prop_assert_eq!(&filled, &expected, "{:?}", cpu);
            prop_assert_eq!(cpu.same_fill(&filled), (filled.len() >= 8).then_some(word), "{:?}", cpu);
            let zero = vec![0; bytes.len()];
            prop_assert_eq!(cpu.compare(bytes, &zero), bytes.iter().position(|b| *b != 0), "{:?}", cpu);
            let first = bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len());
            prop_assert_eq!(cpu.mismatch_word(bytes, 0), first, "{:?}", cpu);
        }
    }

    #[test]
    fn one_byte_is_enough(len in 1usize..1500, at in any::<prop::sample::Index>(), bit in 0u32..8) {
        let at = at.index(len);
        let mut bytes = vec![0xa5; len];
        let before = bytes.clone();
        bytes[at] ^= 1 << bit;
        let mut zero = vec![0; len];
        zero[at] = 1 << bit;
        for cpu in Cpu::variants() {
            prop_assert_eq!(cpu.compare(&before, &bytes), Some(at), "{:?}", cpu);
            prop_assert_eq!(cpu.mismatch_word(&bytes, 0xa5a5_a5a5_a5a5_a5a5), at, "{:?}", cpu);
            prop_assert!(!cpu.is_zero(&zero), "{:?}", cpu);
        }
    }

    #[test]
    fn crc32c(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST), split in any::<prop::sample::Index>()) {
        let expected = reference::crc32c(&bytes);
        let split = split.index(bytes.len() + 1);
        for cpu in Cpu::variants() {
            prop_assert_eq!(cpu.crc32c(0, &bytes), expected, "{:?}", cpu);
            let first = cpu.crc32c(0, &bytes[..split]);
            prop_assert_eq!(cpu.crc32c(first, &bytes[split..]), expected, "{:?} in two parts", cpu);
            let mut copy = vec![0; bytes.len()];
            prop_assert_eq!(cpu.copy_crc(&mut copy, &bytes, 0), expected, "{:?}", cpu);
            prop_assert_eq!(&copy, &bytes, "{:?}", cpu);
        }
        if let Some(isal) = isal() {
            prop_assert_eq!(isal.crc32c(&bytes), expected);
        }
    }

    #[test]
    fn xbzrle_is_qemus((old, new) in states(), cap in 0usize..5000) {
        let whole = reference::xbzrle(&old, &new, usize::MAX);
        let capped = reference::xbzrle(&old, &new, cap);
        for cpu in Cpu::variants() {
            let mut buffer = vec![0x55; 2 * PAGE + 64];
            let len = cpu.xbzrle_encode(&old, &new, &mut buffer);
            prop_assert_eq!(len.map(|len| buffer[..len].to_vec()), whole.clone(), "{:?}", cpu);
            let mut page = old.clone();
            let len = len.map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert!(xbzrle::decode(&buffer[..len], &mut page).is_ok());
            prop_assert_eq!(&page, &new, "{:?}", cpu);

            let mut small = vec![0x55; cap];
            let len = cpu.xbzrle_encode(&old, &new, &mut small);
            prop_assert_eq!(len.map(|len| small[..len].to_vec()), capped.clone(), "{:?} in {}", cpu, cap);
        }
    }

    #[test]
    fn xbzrle_survives_any_bytes(delta in sparse(0..300usize), page in sparse(0..600usize)) {
        let mut page = page;
        if let Ok(end) = xbzrle::decode(&delta, &mut page) {
            prop_assert!(end <= page.len());
        }
    }

    #[test]
    fn delta_records((old, new) in states(), cap in 0usize..6000) {
        let len = old.len() & !7;
        let (old, new) = (&old[..len], &new[..len]);
        let expected = reference::delta(old, new);
        for cpu in Cpu::variants() {
            let mut record = vec![0x55; 2 * PAGE];
            let made = cpu.delta_create(old, new, &mut record);
            let size = match made {
                Ok(Delta::Equal) => 0,
                Ok(Delta::Differs(size)) => size,
                other => return Err(TestCaseError::fail(format!("{cpu:?}: {other:?}"))),
            };
            prop_assert_eq!(&record[..size], &expected[..], "{:?}", cpu);
            let mut region = old.to_vec();
            prop_assert_eq!(delta::apply(&record[..size], &mut region), Ok(()));
            prop_assert_eq!(&region[..], new, "{:?}", cpu);

            let mut small = vec![0x55; cap];
            let whole = expected.len() <= cap;
            let fits = if whole { expected.len() } else { cap / ENTRY * ENTRY };
            let wanted = match (fits, whole) {
                (0, true) => Delta::Equal,
                (size, true) => Delta::Differs(size),
                (size, false) => Delta::Overflow(size),
            };
            prop_assert_eq!(cpu.delta_create(old, new, &mut small), Ok(wanted), "{:?} in {}", cpu, cap);
            prop_assert_eq!(&small[..fits], &expected[..fits], "{:?}", cpu);
        }
    }

    #[test]
    fn fused_passes(pages in proptest::collection::vec(prop_oneof![Just(0u64), any::<u64>()], 0..PAGES)) {
        let mut memory = Vec::new();
        for mut state in pages {
            for _ in 0..PAGE {
                state = state.wrapping_mul(6364136223846793005);
                memory.push((state >> 56) as u8);
            }
        }
        let expected: Vec<PageFacts> = memory
            .chunks(PAGE)
            .map(|p| PageFacts { zero: p.iter().all(|b| *b == 0), crc: reference::crc32c(p) })
            .collect();
        for cpu in Cpu::variants() {
            let mut facts = vec![PageFacts::default(); expected.len()];
            cpu.scan(&memory, &mut facts);
            prop_assert_eq!(&facts, &expected, "{:?}", cpu);

            let mut facts = vec![PageFacts::default(); expected.len()];
            let mut copy = vec![1; memory.len()];
            cpu.copy_scan(&mut copy, &memory, &mut facts);
            prop_assert_eq!(&facts, &expected, "{:?}", cpu);
            prop_assert_eq!(&copy, &memory, "{:?}", cpu);

            let mut zero = Vec::new();
            cpu.zero_pages(&memory, PAGE, &mut |i| zero.push(i));
            let wanted: Vec<usize> = (0..expected.len()).filter(|i| expected[*i].zero).collect();
            prop_assert_eq!(zero, wanted, "{:?}", cpu);

        }
    }

    #[test]
    fn long_copies(len in 0usize..5000, from in 0usize..70, to in 0usize..70) {
        let long = if cfg!(miri) { 0 } else { 1 << 20 };
        let src: Vec<u8> = (0..long + len + from).map(|i| (i * 7 + i / 251) as u8).collect();
        for cpu in Cpu::variants() {
            let mut dst = vec![0; long + len + to + 3];
            cpu.copy(&mut dst[to..][..long + len], &src[from..]);
            prop_assert_eq!(&dst[to..][..long + len], &src[from..], "{:?}", cpu);
            prop_assert!(dst[..to].iter().chain(&dst[to + long + len..]).all(|b| *b == 0));
        }
    }
}

fn isal() -> Option<isal::Isal> {
    if cfg!(miri) { None } else { isal::Isal::open() }
}

#[test]
fn isal_agrees_on_zero() {
    if cfg!(miri) {
        return;
    }
    let Some(isal) = isal() else { return vmtax_skipped::package("libisal2") };
    let mut bytes = vec![0; 70_000];
    for len in [0, 1, 7, 8, 15, 16, 31, 63, 64, 65, 255, 256, 4095, 4096, 65_536, 70_000] {
        assert!(Cpu::best().is_zero(&bytes[..len]) && isal.is_zero(&bytes[..len]), "{len}");
        for at in (0..len).step_by(1 + len / 37) {
            bytes[at] = 1;
            let got = (Cpu::best().is_zero(&bytes[..len]), isal.is_zero(&bytes[..len]));
            assert_eq!(got, (false, false), "{at} of {len}");
            bytes[at] = 0;
        }
    }
}

#[test]
fn crc32c_of_known_bytes() {
    // RFC 3720, B.4.
    let rising: Vec<u8> = (0..32).collect();
    let falling: Vec<u8> = (0..32).rev().collect();
    let cases: [(&[u8], u32); 5] = [
        (&[0; 32], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&rising, 0x46dd_794e),
        (&falling, 0x113f_db5c),
        (b"123456789", 0xe306_9283),
    ];
    for cpu in Cpu::variants() {
        for (bytes, crc) in cases {
            assert_eq!(cpu.crc32c(0, bytes), crc, "{cpu:?}");
        }
    }
}

#[test]
fn hostile_deltas_are_refused() {
    let decode = |delta: &[u8]| xbzrle::decode(delta, &mut [0; 200]);
    assert_eq!(decode(&[]), Ok(0));
    assert_eq!(decode(&[0, 1, 9]), Ok(1));
    assert_eq!(decode(&[5]), Err(DecodeError::Truncated { at: 0 }));
    assert_eq!(decode(&[5, 0, 0]), Err(DecodeError::Empty { at: 1 }));
    assert_eq!(decode(&[1, 1, 9, 0, 1, 9]), Err(DecodeError::Empty { at: 3 }));
    assert_eq!(decode(&[0x80, 0x80, 1]), Err(DecodeError::Length { at: 0 }));
    assert_eq!(decode(&[0xc9, 1, 1, 9]), Err(DecodeError::PastPage { at: 0, past: 1 }));
    assert_eq!(decode(&[0xc7, 1, 2, 9, 9]), Err(DecodeError::PastPage { at: 2, past: 1 }));
    assert_eq!(decode(&[0, 3, 9, 9]), Err(DecodeError::Truncated { at: 2 }));

    let apply = |record: &[u8], len| delta::apply(record, &mut vec![0; len]);
    assert_eq!(apply(&[0; 9], 64), Err(DeltaError::Record(9)));
    assert_eq!(apply(&[], 12), Err(DeltaError::Region(12)));
    let entry = [8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(apply(&entry, 64), Err(DeltaError::PastRegion { entry: 0, word: 8, words: 8 }));
    assert_eq!(apply(&entry, 72), Ok(()));
    let region = vec![0; delta::MAX_REGION + 8];
    let made = Cpu::best().delta_create(&region, &region, &mut []);
    assert_eq!(made, Err(DeltaError::Region(delta::MAX_REGION + 8)));
}

proptest! {
    /// Two hashes of a page: the same in every variant, as the definition has them, and others for a page that differs in one bit.
    #[test]
    fn fingerprints_are_the_same_in_every_variant(seed in any::<u64>(), bit in 0..8 * PAGE) {
        let mut state = seed;
        let mut word = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state ^ state >> 29
        };
        let mut keys = [0; PAGE / 8 + 2];
        keys.iter_mut().for_each(|key| *key = word());
        let mut page = [0; PAGE];
        page.as_chunks_mut::<8>().0.iter_mut().for_each(|chunk| *chunk = word().to_le_bytes());
        let nh = |page: &[u8; PAGE], keys: &[u64]| -> u64 {
            let words = page.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w));
            words.zip(keys).fold(0, |sum: u64, (word, key)| {
                let low = u64::from((word as u32).wrapping_add(*key as u32));
                let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
                sum.wrapping_add(low.wrapping_mul(u64::from(high)))
            })
        };
        let expected = [nh(&page, &keys), nh(&page, &keys[2..])];
        let mut other = page;
        other[bit / 8] ^= 1 << (bit % 8);
        for cpu in Cpu::variants() {
            prop_assert_eq!(cpu.fingerprint(&page, &keys), expected, "{:?}", cpu);
            prop_assert!(cpu.fingerprint(&other, &keys) != expected, "{:?}", cpu);
        }
    }
}
