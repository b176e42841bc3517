//! What was last written of every page, as a fingerprint, so that a running VM's memory can be looked at again and what differs
//! be written again.
//!
//! The fingerprint is no checksum of the file: it is made with keys that are drawn anew for each checkpoint and forgotten. Of a page
//! that differs it is the same with a probability of at most 2^-60 (NH gives 2^-64 over the page, its sum modulo a prime of 61
//! bits the rest), whatever the page holds: with a CRC, two states of a page that a guest chose (or that merely differ by a regular
//! pattern) may be equal every time.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use crate::cpu::FingerprintKeys;
use crate::{Cpu, PAGE};

/// 2^61 - 1, a prime.
const PRIME: u128 = (1 << 61) - 1;

/// How a page was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Sort {
    Raw = 1,
    Compressed,
    Delta,
    Filled,
    Zero,
    Unchanged,
}

impl Sort {
    const ALL: [Sort; 6] =
        [Sort::Raw, Sort::Compressed, Sort::Delta, Sort::Filled, Sort::Zero, Sort::Unchanged];
}

/// What was last written of every page.
pub struct Latest {
    cpu: Cpu,
    keys: Box<FingerprintKeys>,
    mix: [u64; 4],
    of_zero: u64,
    regions: Vec<RegionPages>,
}

/// Of one region. Both are allocated by the system as they are written, so pages that are never looked at take nothing.
struct RegionPages {
    /// 0: a page that is zero, or that was never written.
    fingerprints: Vec<u64>,
    /// A [`Sort`]; 0: never written.
    sorts: Vec<u8>,
}

impl Latest {
    /// With new keys.
    pub(super) fn new() -> io::Result<Latest> {
        let mut random = File::open("/dev/urandom")?;
        let mut word = || -> io::Result<u64> {
            let mut bytes = [0; 8];
            random.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let mut keys = Box::new([0; PAGE / 8 + 2]);
        for key in keys.iter_mut() {
            *key = word()?;
        }
        let mix = [word()? >> 3, word()? >> 3, word()? >> 3, word()? >> 3];
        let mut latest = Latest { cpu: Cpu::best(), keys, mix, of_zero: 0, regions: Vec::new() };
        latest.of_zero = latest.fingerprint(&[0; PAGE]);
        Ok(latest)
    }

    pub(super) fn region(&mut self, pages: u64) {
        let pages = pages as usize;
        self.regions.push(RegionPages { fingerprints: vec![0; pages], sorts: vec![0; pages] });
    }

    /// Of a page; 0 of a zero page.
    fn fingerprint(&self, page: &[u8; PAGE]) -> u64 {
        let [a, b] = self.cpu.fingerprint(page, &self.keys);
        let parts = [a & 0xffff_ffff, a >> 32, b & 0xffff_ffff, b >> 32];
        let products =
            parts.iter().zip(self.mix).map(|(part, mix)| u128::from(*part) * u128::from(mix));
        (products.sum::<u128>() % PRIME) as u64 ^ self.of_zero
    }

    /// These bytes are what is written of pages from `first` on.
    pub(super) fn wrote(&mut self, region: usize, first: u64, bytes: &[u8]) {
        for (page, at) in bytes.as_chunks::<PAGE>().0.iter().zip(first as usize..) {
            let fingerprint = self.fingerprint(page);
            self.regions[region].fingerprints[at] = fingerprint;
        }
    }

    /// How pages are written now.
    pub(super) fn sorted(&mut self, region: usize, pages: Range<u64>, sort: Sort) {
        self.regions[region].sorts[pages.start as usize..pages.end as usize].fill(sort as u8);
    }

    /// How many pages are written in each way.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Sort, u64)> {
        let mut counts = [0; 7];
        for sort in self.regions.iter().flat_map(|r| &r.sorts) {
            counts[usize::from(*sort)] += 1;
        }
        Sort::ALL.into_iter().map(move |sort| (sort, counts[sort as usize]))
    }

    /// Adds the pages from `first` on whose bytes are not what was last written of them. Several threads may ask at a time.
    pub fn differing(&self, region: usize, first: u64, bytes: &[u8], found: &mut Vec<Range<u64>>) {
        let written = &self.regions[region].fingerprints;
        for (page, at) in bytes.as_chunks::<PAGE>().0.iter().zip(first..) {
            if self.fingerprint(page) != written[at as usize] {
                join(found, at..at + 1);
            }
        }
    }

    /// Adds the pages of a range, of which the memory has no bytes any more, that were last written as something else than zeros.
    pub fn lost(&self, region: usize, range: Range<u64>, found: &mut Vec<Range<u64>>) {
        let written = &self.regions[region].fingerprints[range.start as usize..range.end as usize];
        for (fingerprint, at) in written.iter().zip(range.start..) {
            if *fingerprint != 0 {
                join(found, at..at + 1);
            }
        }
    }
}

fn join(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}
