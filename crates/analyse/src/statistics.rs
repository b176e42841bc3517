//! Statistics of a [`Tally`]. Pure functions.

use vmtax_events::{HIST_BUCKETS, Tally};

/// Arithmetic mean of the timed durations, ns. `None` when nothing is timed.
pub fn mean_ns(tally: &Tally) -> Option<f64> {
    (tally.timed > 0).then(|| tally.time_ns as f64 / tally.timed as f64)
}

/// Standard error of the mean, ns: the square root of the sample variance (n-1) over n, as
/// `perf kvm stat` shows it (there in percent of the mean). 0 for one sample, `None` for none, and where the source gave
/// sums of durations alone.
pub fn standard_error_ns(tally: &Tally) -> Option<f64> {
    let n = tally.timed;
    if n == 0 {
        return None;
    }
    if n == 1 {
        return Some(0.0);
    }
    // n * sum_sq - sum^2 is exact in 128 bits as long as it does not overflow; else fall back to floats.
    let sum = u128::from(tally.time_ns);
    let centred = match (tally.sum_sq.checked_mul(u128::from(n)), sum.checked_mul(sum)) {
        // The sum of squares is never less than that of equal durations.
        (Some(a), Some(b)) if a < b => return None,
        (Some(a), Some(b)) => (a - b) as f64 / n as f64,
        _ => (tally.sum_sq as f64 - (sum as f64) * (sum as f64) / n as f64).max(0.0),
    };
    let variance = centred / (n as f64 - 1.0);
    Some((variance / n as f64).sqrt())
}

/// A quantile of a log2 histogram: it is within `low_ns..=high_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantile {
    /// Not smaller than this.
    pub low_ns: u64,
    /// Not larger than this: at most twice `low_ns`, so the bucket error is at most a factor of 2.
    pub high_ns: u64,
}

/// The bucket that holds quantile `q` (0 to 1), narrowed by the exact minimum and maximum.
/// `None` when nothing is timed, and where the source gave no histogram.
pub fn quantile(tally: &Tally, q: f64) -> Option<Quantile> {
    let counted = tally.hist.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    if tally.timed == 0 || counted < tally.timed {
        return None;
    }
    // Nearest rank: the smallest duration with at least q of all durations at or below it.
    let rank = ((q.clamp(0.0, 1.0) * tally.timed as f64).ceil() as u64).max(1);
    let mut seen = 0u64;
    for bucket in 0..HIST_BUCKETS {
        seen = seen.saturating_add(tally.hist[bucket]);
        if seen >= rank {
            let (low, high) = Tally::bucket_bounds(bucket);
            let high = high.map_or(tally.max_ns, |h| h - 1).min(tally.max_ns);
            return Some(Quantile { low_ns: low.max(tally.min_ns).min(high), high_ns: high });
        }
    }
    Some(Quantile { low_ns: tally.max_ns, high_ns: tally.max_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(durations: &[u64]) -> Tally {
        let mut t = Tally::default();
        for &d in durations {
            t.add(d);
        }
        t
    }

    #[test]
    fn sums_alone_have_a_mean_and_nothing_else() {
        let sums =
            Tally { count: 4, timed: 4, time_ns: 100, min_ns: 1, max_ns: 90, ..Tally::default() };
        assert_eq!(mean_ns(&sums), Some(25.0));
        assert_eq!((standard_error_ns(&sums), quantile(&sums, 0.5)), (None, None));
        let mut merged = tally(&[25, 25]);
        merged.merge(&sums);
        assert_eq!(quantile(&merged, 0.99), None);
    }

    #[test]
    fn mean_and_standard_error_of_known_values() {
        // 2, 4, 4, 4, 5, 5, 7, 9: mean 5, sum of squared deviations 32.
        let t = tally(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!(mean_ns(&t), Some(5.0));
        let expected = (32.0f64 / 7.0 / 8.0).sqrt();
        assert!((standard_error_ns(&t).unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn standard_error_survives_huge_values() {
        let t = tally(&[u64::MAX / 4, u64::MAX / 4]);
        let e = standard_error_ns(&t).unwrap();
        assert!(e.is_finite() && e >= 0.0);
    }

    #[test]
    fn quantiles_bracket_the_exact_ones() {
        let mut values: Vec<u64> = (0..1000u64).map(|i| i * i * 7 % 100_003).collect();
        let t = tally(&values);
        values.sort_unstable();
        for q in [0.0f64, 0.01, 0.5, 0.9, 0.99, 1.0] {
            let rank = ((q * 1000.0).ceil() as usize).max(1);
            let exact = values[rank - 1];
            let got = quantile(&t, q).unwrap();
            assert!(got.low_ns <= exact && exact <= got.high_ns, "{q}: {got:?} {exact}");
            assert!(got.high_ns <= got.low_ns.max(1) * 2);
        }
    }

    #[test]
    fn untimed_tallies_have_no_statistics() {
        let mut t = Tally::default();
        t.add_untimed(5);
        assert_eq!((mean_ns(&t), standard_error_ns(&t), quantile(&t, 0.5)), (None, None, None));
    }
}
