//! Statistics of a [`Tally`]. Pure functions.

use vmtax_events::Tally;

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

/// A quantile: it is within `low_ns..=high_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantile {
    /// Not smaller than this.
    pub low_ns: u64,
    /// Not larger than this: at most 1/128 more than `low_ns`, or less than twice as much where the source counted by powers of 2.
    pub high_ns: u64,
}

/// Bounds of quantile `q` (0 to 1): those of its bin, narrowed by the exact minimum and maximum.
/// `None` when nothing is timed, and where the source gave no durations.
pub fn quantile(tally: &Tally, q: f64) -> Option<Quantile> {
    if tally.timed == 0 || tally.durations.count() < tally.timed {
        return None;
    }
    // Nearest rank: the smallest duration with at least q of all durations at or below it.
    let rank = ((q.clamp(0.0, 1.0) * tally.timed as f64).ceil() as u64).max(1);
    let (low, high) = tally.durations.of_rank(rank).unwrap_or((tally.max_ns, tally.max_ns));
    let high_ns = high.min(tally.max_ns);
    Some(Quantile { low_ns: low.max(tally.min_ns).min(high_ns), high_ns })
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
            assert!((got.high_ns - got.low_ns) * 128 <= got.low_ns, "{q}: {got:?}");
        }
    }

    #[test]
    fn untimed_tallies_have_no_statistics() {
        let mut t = Tally::default();
        t.add_untimed(5);
        assert_eq!((mean_ns(&t), standard_error_ns(&t), quantile(&t, 0.5)), (None, None, None));
    }
}
