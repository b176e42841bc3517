//! The choice of a variant by measurement.
//!
//! Processors with the same features differ: 512-bit carry-less products are faster than 256-bit ones on one and slower on another. So the first
//! user of the CPU measures the scan (zero check and CRC-32C) of pages in the cache, which takes well below a millisecond, and all use the
//! fastest variant. The results of all variants are the same.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::PAGE;

/// Pages of a measurement: they fit in the second cache.
pub(super) const PAGES: usize = 16;
/// Measurements of each variant. The shortest counts: an interrupt only makes one longer.
const ROUNDS: usize = 16;

/// The index of the fastest of `variants`, the widest of which comes first. `scan(variant, pages)` does the work.
pub(super) fn fastest(variants: usize, scan: &mut dyn FnMut(usize, &[u8])) -> usize {
    if variants < 2 {
        return 0;
    }
    let mut pages = vec![0; PAGES * PAGE];
    let mut state = 1u64;
    for word in pages.as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *word = state.to_le_bytes();
    }
    let mut times = vec![Duration::MAX; variants];
    // In turn, so that a change of the clock rate is in all of them. The first round warms up.
    for round in 0..=ROUNDS {
        for (variant, time) in times.iter_mut().enumerate() {
            let start = Instant::now();
            scan(variant, black_box(&pages));
            let elapsed = start.elapsed();
            if round > 0 {
                *time = elapsed.min(*time);
            }
        }
    }
    chosen(&times)
}

/// The index of the shortest time; the first one unless another is shorter by a tenth, so that equal ones give the same choice each time.
fn chosen(times: &[Duration]) -> usize {
    let Some(first) = times.first() else { return 0 };
    let shortest = times.iter().enumerate().min_by_key(|(_, time)| **time);
    shortest.filter(|(_, time)| **time * 10 < *first * 9).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_is_chosen_unless_another_is_faster_by_a_tenth() {
        let times = |us: &[u64]| us.iter().map(|us| Duration::from_micros(*us)).collect::<Vec<_>>();
        assert_eq!(chosen(&times(&[100, 91, 95])), 0);
        assert_eq!(chosen(&times(&[100, 95, 89])), 2);
        assert_eq!(chosen(&times(&[100, 80, 70])), 2);
        assert_eq!(chosen(&times(&[])), 0);
    }
}
