//! Durations by size.

use std::fmt;

/// Number of octaves: bins of durations by powers of 2.
pub const OCTAVES: usize = 40;

/// Bits of a duration that its bin keeps, after the first.
const KEPT: u32 = 7;
/// Bins of a power of 2, and of a page.
const BINS: u64 = 1 << KEPT;
/// Pages of 64-bit durations.
const PAGES: usize = 58;

/// The octave of a duration: 0 holds 0 ns, i holds `[2^(i-1), 2^i)` ns, the last is open.
#[inline]
pub fn octave(ns: u64) -> usize {
    ((u64::BITS - ns.leading_zeros()) as usize).min(OCTAVES - 1)
}

/// Lower (inclusive) and upper (exclusive) bound of an octave, ns. The last has no upper bound.
pub fn octave_bounds(octave: usize) -> (u64, Option<u64>) {
    let low = if octave == 0 { 0 } else { 1 << (octave - 1) };
    let high = (octave + 1 < OCTAVES).then(|| 1 << octave);
    (low, high)
}

/// Durations, counted in bins.
///
/// A duration that is known is counted in a bin that is at most 1/128 (0.8 %) longer than its shortest duration: each ns below
/// 256 ns has its own. A source that counted by powers of 2 (the maps of `vmtax record`, `hist()` of bpftrace) has octaves.
#[derive(Clone)]
pub struct Durations {
    /// Bins, each counted up to 2^32 - 1; a page is there once it has a duration.
    pages: [Option<Box<[u32; BINS as usize]>>; PAGES],
    octaves: Option<Box<[u64; OCTAVES]>>,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { pages: [const { None }; PAGES], octaves: None }
    }
}

/// Durations of one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationBin {
    /// The shortest and the longest that it can hold, ns.
    pub low_ns: u64,
    pub high_ns: u64,
    pub count: u64,
}

/// Number of the bin of a duration, of 7,424.
#[inline]
fn bin(ns: u64) -> usize {
    let shift = (u64::BITS - (ns | BINS).leading_zeros()) - KEPT - 1;
    // The kept bits with the first, which is 1 unless the duration has no more than these.
    (u64::from(shift) * BINS + (ns >> shift)) as usize
}

/// What a bin holds.
fn bounds(bin: usize) -> (u64, u64) {
    let bin = bin as u64;
    let shift = (bin / BINS).saturating_sub(1);
    let low = (bin - shift * BINS) << shift;
    (low, low + ((1 << shift) - 1))
}

impl Durations {
    #[inline]
    pub fn add(&mut self, ns: u64) {
        let count = self.place(bin(ns));
        *count = count.saturating_add(1);
    }

    #[inline]
    fn place(&mut self, bin: usize) -> &mut u32 {
        let page = &mut self.pages[bin / BINS as usize];
        &mut page.get_or_insert_with(|| Box::new([0; BINS as usize]))[bin % BINS as usize]
    }

    /// Adds durations of which only the octave is known.
    pub fn add_octave(&mut self, octave: usize, count: u64) {
        if count > 0 {
            let octaves = self.octaves.get_or_insert_with(|| Box::new([0; OCTAVES]));
            let place = &mut octaves[octave.min(OCTAVES - 1)];
            *place = place.saturating_add(count);
        }
    }

    pub fn of_octaves(counts: &[u64; OCTAVES]) -> Durations {
        let mut durations = Durations::default();
        counts.iter().enumerate().for_each(|(octave, count)| durations.add_octave(octave, *count));
        durations
    }

    /// Adds durations of the bin that begins with `low_ns`. False if none does, and if the count is larger than a bin's can be.
    #[must_use]
    pub fn add_bin(&mut self, low_ns: u64, count: u64) -> bool {
        let bin = bin(low_ns);
        let Some(count) = u32::try_from(count).ok().filter(|_| bounds(bin).0 == low_ns) else {
            return false;
        };
        if count > 0 {
            let place = self.place(bin);
            *place = place.saturating_add(count);
        }
        true
    }

    pub fn merge(&mut self, more: &Durations) {
        for (page, others) in self.pages.iter_mut().zip(&more.pages) {
            let Some(others) = others else { continue };
            let counts = page.get_or_insert_with(|| Box::new([0; BINS as usize]));
            for (count, other) in counts.iter_mut().zip(others.iter()) {
                *count = count.saturating_add(*other);
            }
        }
        for (octave, count) in more.octaves.iter().flat_map(|all| all.iter().enumerate()) {
            self.add_octave(octave, *count);
        }
    }

    pub fn clear(&mut self) {
        *self = Durations::default();
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.bins().fold(0, |sum, bin| sum.saturating_add(bin.count))
    }

    /// Some are known by their octave alone.
    pub fn has_octaves(&self) -> bool {
        self.octaves.is_some()
    }

    /// Counts of the bins that hold any, ascending.
    fn counts(&self) -> impl Iterator<Item = (usize, u32)> {
        let pages = (0..).step_by(BINS as usize).zip(&self.pages);
        let counts = pages.flat_map(|(first, page)| {
            let counts = page.iter().flat_map(|counts| counts.iter());
            (first..).zip(counts.copied())
        });
        counts.filter(|(_, count)| *count > 0)
    }

    /// The bins that hold any, and the octaves behind them.
    pub fn bins(&self) -> impl Iterator<Item = DurationBin> {
        let bins = self.counts().map(|(bin, count)| {
            let (low_ns, high_ns) = bounds(bin);
            DurationBin { low_ns, high_ns, count: count.into() }
        });
        let octaves = self.octaves.iter().flat_map(|all| all.iter().enumerate());
        let octaves = octaves.filter(|(_, count)| **count > 0).map(|(octave, count)| {
            let (low_ns, end) = octave_bounds(octave);
            DurationBin { low_ns, high_ns: end.map_or(u64::MAX, |end| end - 1), count: *count }
        });
        bins.chain(octaves)
    }

    /// All by their octaves.
    pub fn octaves(&self) -> [u64; OCTAVES] {
        let mut octaves = [0u64; OCTAVES];
        for DurationBin { low_ns, count, .. } in self.bins() {
            let place = &mut octaves[octave(low_ns)];
            *place = place.saturating_add(count);
        }
        octaves
    }

    /// Those that are known by their octave alone, and the others by the start of their bins, ascending.
    pub fn parts(&self) -> ([u64; OCTAVES], impl Iterator<Item = (u64, u64)>) {
        let octaves = self.octaves.as_ref().map_or([0; OCTAVES], |octaves| **octaves);
        (octaves, self.counts().map(|(bin, count)| (bounds(bin).0, count.into())))
    }

    /// Bounds of the duration of this rank, from 1 for the shortest. `None` if there are fewer.
    pub fn of_rank(&self, rank: u64) -> Option<(u64, u64)> {
        let mut bins: Vec<DurationBin> = self.bins().collect();
        let mut nth = |of: fn(&DurationBin) -> u64| {
            bins.sort_by_key(of);
            let mut seen = 0u64;
            let at = bins.iter().find(|bin| {
                seen = seen.saturating_add(bin.count);
                seen >= rank
            });
            at.map(of)
        };
        // Octaves can overlap other bins: the shortest that it can be is found among the starts, the longest among the ends.
        Some((nth(|bin| bin.low_ns)?, nth(|bin| bin.high_ns)?))
    }
}

/// A page that is there may be empty.
impl PartialEq for Durations {
    fn eq(&self, other: &Durations) -> bool {
        self.octaves == other.octaves && self.counts().eq(other.counts())
    }
}

impl Eq for Durations {}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.bins()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_each_other_and_are_narrow() {
        let mut next = 0u64;
        for number in 0..PAGES * BINS as usize {
            let (low, high) = bounds(number);
            assert_eq!((low, bin(low), bin(high)), (next, number, number), "bin {number}");
            assert!((high - low) * BINS <= low, "bin {number}: {low} to {high}");
            next = high.wrapping_add(1);
        }
        assert_eq!((next, bin(u64::MAX)), (0, 7423), "the last ends with the largest number");
    }

    #[test]
    fn octaves_hold_what_their_bounds_say() {
        for (ns, expected) in
            [(0, 0), (1, 1), (2, 2), (3, 2), (1023, 10), (1024, 11), (u64::MAX, 39)]
        {
            assert_eq!(octave(ns), expected, "{ns}");
            let (low, end) = octave_bounds(expected);
            assert!(low <= ns && end.is_none_or(|end| ns < end), "{ns}");
        }
    }

    #[test]
    fn ranks_are_within_the_bins_of_sources_of_both_kinds() {
        let mut durations = Durations::default();
        [1000, 1100, 5000].into_iter().for_each(|ns| durations.add(ns));
        // Three of 1024 to 2047 ns.
        durations.add_octave(11, 3);
        assert!(durations.has_octaves());
        assert_eq!(durations.count(), 6);
        let ranks: Vec<_> = (1..=7).map(|rank| durations.of_rank(rank)).collect();
        assert_eq!(
            ranks,
            [
                Some((1000, 1003)),
                Some((1024, 1103)),
                Some((1024, 2047)),
                Some((1024, 2047)),
                Some((1096, 2047)),
                Some((4992, 5023)),
                None
            ]
        );
        let mut octaves = [0; OCTAVES];
        (octaves[10], octaves[11], octaves[13]) = (1, 4, 1);
        assert_eq!(durations.octaves(), octaves);
    }

    #[test]
    fn parts_make_the_same_durations_again() {
        let mut durations = Durations::default();
        (0..2000u64).for_each(|i| durations.add(i * i * i));
        durations.add_octave(39, 7);
        durations.add_octave(3, 0);
        let (octaves, bins) = durations.parts();
        let mut again = Durations::of_octaves(&octaves);
        let bins: Vec<(u64, u64)> = bins.collect();
        assert!(bins.iter().rev().all(|(low, count)| again.add_bin(*low, *count)));
        assert_eq!(again, durations);
        let mut merged = Durations::default();
        merged.add(7);
        merged.merge(&durations);
        assert_ne!(merged, durations);
        assert_eq!(merged.count(), durations.count() + 1);
        assert!(!again.add_bin(257, 1), "the bin of 257 ns begins with 256");
        assert_eq!(again, durations);
    }
}
