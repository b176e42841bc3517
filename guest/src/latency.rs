//! Latencies of a workload's operations: percentiles from a histogram of fixed size, so that measuring needs no memory of the guest.

use std::time::Duration;

/// Buckets in each power of two: a percentile is at most 1/32 too high.
const PARTS: usize = 32;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
/// Powers of two up to the largest number.
const POWERS: usize = 64 - PARTS_BITS as usize + 1;

/// Latencies that were measured.
pub(crate) struct Latencies {
    buckets: Box<[u64]>,
    most: u64,
    count: u64,
    total_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        // Written once here, so that no page of it is missing while measuring.
        Latencies { buckets: vec![0; PARTS * POWERS].into(), most: 0, count: 0, total_ns: 0 }
    }
}

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.most = self.most.max(ns);
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    /// Adds those of another thread.
    pub(crate) fn merge(&mut self, other: &Latencies) {
        for (here, there) in self.buckets.iter_mut().zip(&other.buckets) {
            *here += there;
        }
        self.most = self.most.max(other.most);
        self.count += other.count;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The upper bound of the bucket with this many of 1,000 latencies below it.
    fn percentile(&self, of_1000: u64) -> u64 {
        let wanted = (self.count * of_1000).div_ceil(1000).max(1);
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= wanted {
                return upper(index).min(self.most);
            }
        }
        self.most
    }

    /// Prints a line for each percentile.
    pub(crate) fn print(&self) {
        for (name, of_1000) in [("50", 500), ("90", 900), ("99", 990), ("99.9", 999)] {
            println!("latency_p{name}_ns {}", self.percentile(of_1000));
        }
        println!("latency_max_ns {}", self.most);
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - PARTS_BITS;
    // The highest bit is in `power`; the next ones are the part.
    (power as usize + 1) * PARTS + ((ns >> power) as usize & (PARTS - 1))
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    let (power, part) = (index / PARTS, (index % PARTS) as u64);
    match power {
        0 => part,
        power => {
            let low = (PARTS as u64 + part) << (power - 1);
            low + ((1 << (power - 1)) - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_it_says() {
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 77_777, u64::MAX - 1, u64::MAX]) {
            let index = bucket(ns);
            assert!(index < PARTS * POWERS && upper(index) >= ns, "{ns}");
            assert!(index == 0 || upper(index - 1) < ns, "{ns}");
            assert!(upper(index) - ns <= ns / 32, "{ns}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|us| latencies.add(Duration::from_micros(us)));
        for (of_1000, us) in [(500, 500), (990, 990), (999, 999), (1000, 1000)] {
            let found = latencies.percentile(of_1000);
            assert!((us * 1000..=us * 1000 * 33 / 32).contains(&found), "{of_1000}: {found}");
        }
    }
}
