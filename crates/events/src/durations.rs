//! Durations by size.

use rustc_hash::FxHashMap;

/// Number of octaves: bins of durations by powers of 2.
pub const OCTAVES: usize = 40;

/// Bits of a duration that its bin keeps, after the first.
const KEPT: u32 = 7;
/// Bins of a power of 2.
const BINS: u64 = 1 << KEPT;
/// In the number of an octave, to tell it from other bins.
const OCTAVE: u16 = 1 << 15;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(FxHashMap<u16, u64>);

/// Durations of one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationBin {
    /// The shortest and the longest that it can hold, ns.
    pub low_ns: u64,
    pub high_ns: u64,
    pub count: u64,
}

/// Number of the bin of a duration: below [`OCTAVE`], as 64-bit durations have 7,424 bins.
#[inline]
fn bin(ns: u64) -> u16 {
    let shift = (u64::BITS - (ns | BINS).leading_zeros()) - KEPT - 1;
    // The kept bits with the first, which is 1 unless the duration has no more than these.
    (u64::from(shift) * BINS + (ns >> shift)) as u16
}

/// What a bin holds.
fn bounds(bin: u16) -> (u64, u64) {
    if bin & OCTAVE != 0 {
        let (low, end) = octave_bounds(usize::from(bin & !OCTAVE));
        return (low, end.map_or(u64::MAX, |end| end - 1));
    }
    let bin = u64::from(bin);
    let shift = (bin / BINS).saturating_sub(1);
    let low = (bin - shift * BINS) << shift;
    (low, low + ((1 << shift) - 1))
}

impl Durations {
    #[inline]
    pub fn add(&mut self, ns: u64) {
        *self.0.entry(bin(ns)).or_default() += 1;
    }

    /// Adds durations of which only the octave is known; of none that there is.
    pub fn add_octave(&mut self, octave: usize, count: u64) {
        if count > 0 {
            self.put(OCTAVE | octave.min(OCTAVES - 1) as u16, count);
        }
    }

    pub fn of_octaves(counts: &[u64; OCTAVES]) -> Durations {
        let mut durations = Durations::default();
        counts.iter().enumerate().for_each(|(octave, count)| durations.add_octave(octave, *count));
        durations
    }

    /// Adds durations of the bin that begins with `low_ns`. False if none does.
    #[must_use]
    pub fn add_bin(&mut self, low_ns: u64, count: u64) -> bool {
        let bin = bin(low_ns);
        let begins = bounds(bin).0 == low_ns;
        if begins && count > 0 {
            self.put(bin, count);
        }
        begins
    }

    fn put(&mut self, bin: u16, count: u64) {
        let place = self.0.entry(bin).or_default();
        *place = place.saturating_add(count);
    }

    pub fn merge(&mut self, more: &Durations) {
        more.0.iter().for_each(|(bin, count)| self.put(*bin, *count));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Some are known by their octave alone.
    pub fn has_octaves(&self) -> bool {
        self.0.keys().any(|bin| bin & OCTAVE != 0)
    }

    /// The bins that hold any, in no order.
    pub fn bins(&self) -> impl Iterator<Item = DurationBin> {
        self.0.iter().map(|(bin, count)| {
            let (low_ns, high_ns) = bounds(*bin);
            DurationBin { low_ns, high_ns, count: *count }
        })
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
    pub fn parts(&self) -> ([u64; OCTAVES], Vec<(u64, u64)>) {
        let mut octaves = [0u64; OCTAVES];
        let mut bins = Vec::new();
        for (bin, count) in &self.0 {
            if bin & OCTAVE == 0 {
                bins.push((bounds(*bin).0, *count));
            } else if let Some(place) = octaves.get_mut(usize::from(bin & !OCTAVE)) {
                *place = *count;
            }
        }
        bins.sort_unstable();
        (octaves, bins)
    }

    /// Bounds of the duration of this rank, from 1 for the shortest. `None` if there are fewer.
    pub fn of_rank(&self, rank: u64) -> Option<(u64, u64)> {
        let mut bins: Vec<DurationBin> = self.bins().collect();
        let mut nth = |of: fn(&DurationBin) -> u64| {
            bins.sort_unstable_by_key(of);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_each_other_and_are_narrow() {
        let mut next = 0u64;
        for number in 0..7424u16 {
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
        assert!(bins.iter().all(|(low, count)| again.add_bin(*low, *count)));
        assert_eq!(again, durations);
        assert!(!again.add_bin(257, 1), "the bin of 257 ns begins with 256");
        assert_eq!(again, durations);
    }
}
