//! Chains of dependent loads: where each load goes, in which order.
//!
//! The order is random, so that no prefetcher of lines, strides or neighbouring pages finds it. The lines of a chain are spread
//! evenly over the sets of a first-level cache, so that packed and spread chains of one length differ in their pages alone.

use vmtax_events::setting::host_pages::{COARSE, FINE, REGION};

/// Bytes of a cache line; larger ones are no harm.
const LINE: usize = 64;
/// Lines of a page of 4 KiB.
const IN_PAGE: usize = FINE / LINE;
/// The pages of [`Area::Small`] that are used are this far apart, so that no two of them can share a TLB entry. It is odd, so that
/// they use all sets of a TLB.
pub(crate) const APART: usize = 5;

/// Which memory a chain is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// Pages of the guest's smallest size.
    Small,
    /// Huge pages of the guest.
    Huge,
}

/// Loads, each of which holds the place of the next; the last that of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadChain {
    /// Its memory.
    pub area: Area,
    /// Bytes from the start of the area, in the order of the loads; each once.
    pub places: Vec<usize>,
}

impl LoadChain {
    /// Lines side by side, in pages of `page` bytes.
    pub(super) fn packed(page: usize, lines: usize) -> LoadChain {
        let place = |i: usize| small(page, i / IN_PAGE) + i % IN_PAGE * LINE;
        LoadChain::shuffled(Area::Small, (0..lines).map(place))
    }

    /// Lines, each in another page of `page` bytes.
    pub(super) fn spread(page: usize, lines: usize) -> LoadChain {
        LoadChain::shuffled(Area::Small, (0..lines).map(|i| small(page, i) + i % IN_PAGE * LINE))
    }

    /// Lines in the first parts of 4 KiB of a region.
    pub(super) fn fine(region: usize, lines: usize) -> LoadChain {
        LoadChain::shuffled(Area::Huge, (0..lines).map(|i| region + i * FINE + i % IN_PAGE * LINE))
    }

    /// A line in each part of 64 KiB of several regions.
    pub(super) fn coarse(regions: &[usize]) -> LoadChain {
        let parts = REGION / COARSE;
        let place = |i: usize| regions[i / parts] + i % parts * COARSE + i % IN_PAGE * LINE;
        LoadChain::shuffled(Area::Huge, (0..regions.len() * parts).map(place))
    }

    /// Lines in as many parts of 4 KiB all over the regions.
    pub(super) fn wide(regions: &[usize], lines: usize) -> LoadChain {
        let place = |i: usize| {
            let (region, part) = (regions[i % regions.len()], i / regions.len());
            region + part % (REGION / FINE) * FINE + i % IN_PAGE * LINE
        };
        LoadChain::shuffled(Area::Huge, (0..lines.min(regions.len() * REGION / FINE)).map(place))
    }

    /// Lines side by side in one region and the next.
    pub(super) fn wide_packed(regions: &[usize], lines: usize) -> LoadChain {
        let place = |i: usize| regions[i / (REGION / LINE)] + i % (REGION / LINE) * LINE;
        LoadChain::shuffled(Area::Huge, (0..lines.min(regions.len() * REGION / LINE)).map(place))
    }

    fn shuffled(area: Area, places: impl Iterator<Item = usize>) -> LoadChain {
        let mut places: Vec<usize> = places.collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ places.len() as u64;
        for last in (1..places.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            places.swap(last, (state % (last as u64 + 1)) as usize);
        }
        LoadChain { area, places }
    }
}

/// Where 4 KiB begin of a small page of the guest. Of larger ones the host may map each part by itself: another part of each is
/// taken, so that all sets are used of a TLB that has 16 of them, or 128.
fn small(page: usize, at: usize) -> usize {
    let parts = (page / FINE).max(1);
    let every = |sets: usize| at / (sets / parts).max(1);
    at * page * APART + (every(16) + every(128)) % parts * FINE
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pages(chain: &LoadChain, page: usize) -> usize {
        chain.places.iter().map(|place| place / page).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn chains_visit_each_place_once_and_the_pages_that_their_names_say() {
        let regions = [0, 2 * REGION, 4 * REGION, 6 * REGION];
        for (chain, loads, parts, coarse) in [
            (LoadChain::packed(4096, 448), 448, 7, 2),
            (LoadChain::packed(16384, 448), 448, 7, 7),
            (LoadChain::spread(4096, 448), 448, 448, 140),
            (LoadChain::spread(65536, 448), 448, 448, 448),
            (LoadChain::fine(2 * REGION, 448), 448, 448, 28),
            (LoadChain::coarse(&regions), 128, 128, 128),
            (LoadChain::wide(&regions, 1024), 1024, 1024, 64),
            (LoadChain::wide(&regions, 1 << 20), 2048, 2048, 128),
            (LoadChain::wide_packed(&regions, 1024), 1024, 16, 1),
        ] {
            assert_eq!(chain.places.iter().collect::<BTreeSet<_>>().len(), loads, "{chain:?}");
            let found = (chain.places.len(), pages(&chain, 4096), pages(&chain, COARSE));
            assert_eq!(found, (loads, parts, coarse));
        }
    }

    /// Packed or spread, a set of a first-level cache has as many lines.
    #[test]
    fn lines_are_spread_over_sets_alike() {
        let sets = |chain: LoadChain| {
            let mut lines = [0; 64];
            chain.places.iter().for_each(|place| lines[place / LINE % 64] += 1);
            lines
        };
        for chain in
            [LoadChain::packed(4096, 448), LoadChain::spread(4096, 448), LoadChain::fine(0, 448)]
        {
            assert_eq!(sets(chain), [7; 64]);
        }
        assert_eq!(sets(LoadChain::coarse(&[0; 8])), [4; 64]);
    }

    /// Also where a TLB's entries are parts of the guest's pages.
    #[test]
    fn spread_chains_use_all_sets_of_a_tlb() {
        for page in [4096, 16384, 65536] {
            for sets in [16, 128] {
                let mut entries = vec![0; sets];
                let chain = LoadChain::spread(page, 384);
                chain.places.iter().for_each(|place| entries[place / FINE % sets] += 1);
                let most = 384 / sets + 384 / sets / 3;
                assert!(entries.iter().all(|n| *n > 0 && *n <= most), "{page} {entries:?}");
            }
        }
    }
}
