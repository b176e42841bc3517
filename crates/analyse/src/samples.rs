//! Two small sets of values: which is larger, by how much, and how sure that is.
//!
//! | what | how | source |
//! |---|---|---|
//! | median and its interval | percentile bootstrap, 10,000 draws from a fixed seed | Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1979 |
//! | shift between two sets | median of all differences | Hodges and Lehmann, "Estimates of location based on rank tests", Annals of Mathematical Statistics 34, 1963 |
//! | whether they differ | rank-sum test, two-sided: exact over all arrangements, ties included, up to [`EXACT_MOST`] values; beyond, the normal approximation with correction for ties and continuity | Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the other", Annals of Mathematical Statistics 18, 1947 |
//! | outliers | beyond 1.5 times the distance of the quartiles; shown and kept | Tukey, "Exploratory data analysis", 1977 |
//!
//! Values of one set are taken as independent: each is a run of its own.

use statrs::distribution::{ContinuousCDF, Normal};

/// Below this many values in a set, a difference says little: five and five are the first sets for which the test reaches
/// 1 % (2 in 252 arrangements).
pub const ENOUGH: usize = 5;
/// Chance at which two sets are called different.
pub const LEVEL: f64 = 0.05;
/// Up to this many values in both sets together the test goes through all arrangements.
pub const EXACT_MOST: usize = 60;
/// Draws of the bootstrap.
const DRAWS: usize = 10_000;

/// An estimate and the interval that holds it with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// Whether there is an interval: no one value has one, and a few pairs of sets have none short of everything.
    pub fn is_bounded(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }
}

/// The median; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted)
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// The median with its bootstrap interval. That of two values is their range, which is all there is; one value has none.
pub fn median_interval(values: &[f64]) -> Option<Estimate> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let value = middle(&sorted)?;
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else { return None };
    if sorted.len() == 1 {
        return Some(Estimate { value, low: f64::NEG_INFINITY, high: f64::INFINITY });
    }
    if sorted.len() < 3 {
        return Some(Estimate { value, low: least, high: most });
    }
    let mut random = Random(0x766d_7461_785f_6d65);
    let mut drawn = vec![0.0; sorted.len()];
    let mut medians: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            drawn.iter_mut().for_each(|place| *place = sorted[random.below(sorted.len())]);
            drawn.sort_by(f64::total_cmp);
            middle(&drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((DRAWS - 1) as f64 * share).round() as usize];
    Some(Estimate { value, low: at(0.025), high: at(0.975) })
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the same draws on
/// every computer.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `n`, which is small.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// The shift from `base` to `other`, with the interval of differences that the rank-sum test does not reject at 5 %.
pub fn shift(base: &[f64], other: &[f64]) -> Option<Estimate> {
    let mut differences: Vec<f64> =
        other.iter().flat_map(|o| base.iter().map(move |b| o - b)).collect();
    differences.sort_by(f64::total_cmp);
    let value = middle(&differences)?;
    let count = differences.len();
    // So many differences lie outside on each side (Hollander and Wolfe, "Nonparametric statistical methods", 4.3).
    let outside = critical(base.len(), other.len());
    let (low, high) = match outside {
        Some(outside) if 2 * outside < count => {
            (differences[outside], differences[count - 1 - outside])
        }
        // No interval short of everything has that confidence.
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    Some(Estimate { value, low, high })
}

/// The largest number of differences that can be left out on each side at 95 %; `None` when none can.
fn critical(m: usize, n: usize) -> Option<usize> {
    if m + n > EXACT_MOST {
        let (m, n) = (m as f64, n as f64);
        let spread = (m * n * (m + n + 1.0) / 12.0).sqrt();
        return Some((m * n / 2.0 - 1.959_963_985 * spread).floor().max(1.0) as usize - 1);
    }
    let ways = arrangements(m, n);
    let all: f64 = ways.iter().sum();
    let mut below = 0.0;
    let mut found = None;
    for (u, count) in ways.iter().enumerate() {
        below += count;
        if below / all > LEVEL / 2.0 {
            break;
        }
        // A statistic of u or less is rejected, so this many differences precede the interval's first.
        found = Some(u);
    }
    found
}

/// In how many arrangements of `m` and `n` different values the statistic has each value.
fn arrangements(m: usize, n: usize) -> Vec<f64> {
    // The Gaussian binomial coefficient's coefficients, factor by factor: (1 - q^(n+i)) / (1 - q^i).
    let length = m * n + 1;
    let mut ways = vec![0.0; length];
    ways[0] = 1.0;
    for i in 1..=m {
        for at in (n + i..length).rev() {
            ways[at] -= ways[at - n - i];
        }
        for at in i..length {
            ways[at] += ways[at - i];
        }
    }
    ways
}

/// The chance that sets of equals differ as much, two-sided; `None` when one is empty.
pub fn rank_sum(base: &[f64], other: &[f64]) -> Option<f64> {
    let (m, n) = (base.len(), other.len());
    if m == 0 || n == 0 {
        return None;
    }
    let mut all: Vec<(f64, bool)> =
        base.iter().map(|v| (*v, true)).chain(other.iter().map(|v| (*v, false))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Twice the mean rank of each tie, so that ranks are whole numbers.
    let mut ranks = vec![0usize; m + n];
    let mut ties = 0.0;
    let mut start = 0;
    while start < all.len() {
        let end =
            start + all[start..].iter().take_while(|(value, _)| *value == all[start].0).count();
        ranks[start..end].fill(start + 1 + end);
        let tied = (end - start) as f64;
        ties += tied * tied * tied - tied;
        start = end;
    }
    let sum: usize =
        ranks.iter().zip(&all).filter(|(_, (_, of_base))| *of_base).map(|(rank, _)| rank).sum();
    if m + n <= EXACT_MOST {
        Some(exact(&ranks, m, sum))
    } else {
        Some(approximate(m, n, sum, ties))
    }
}

/// Over all ways to choose `m` of the ranks.
fn exact(ranks: &[usize], m: usize, sum: usize) -> f64 {
    let most: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0f64; most + 1]; m + 1];
    ways[0][0] = 1.0;
    for rank in ranks {
        for chosen in (1..=m).rev() {
            for total in (*rank..=most).rev() {
                ways[chosen][total] += ways[chosen - 1][total - rank];
            }
        }
    }
    let all: f64 = ways[m].iter().sum();
    // The distance of the sum from its mean; the distribution of ranks with ties need not be symmetric.
    let mean = m * most;
    let far = (sum * ranks.len()).abs_diff(mean);
    let extreme: f64 = ways[m]
        .iter()
        .enumerate()
        .filter(|(total, _)| (total * ranks.len()).abs_diff(mean) >= far)
        .map(|(_, w)| w)
        .sum();
    extreme / all
}

fn approximate(m: usize, n: usize, doubled: usize, ties: f64) -> f64 {
    let (m, n) = (m as f64, n as f64);
    let u = doubled as f64 / 2.0 - m * (m + 1.0) / 2.0;
    let all = m + n;
    let variance = m * n / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let far = ((u - m * n / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    Normal::standard().sf(far) * 2.0
}

/// Values far from the others, by index.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() < ENOUGH {
        return Vec::new();
    }
    // Between neighbours in proportion (type 7 of Hyndman and Fan, as R and NumPy have it).
    let quantile = |share: f64| {
        let at = (sorted.len() - 1) as f64 * share;
        let (low, part) = (at.floor() as usize, at.fract());
        sorted[low] + (sorted[(low + 1).min(sorted.len() - 1)] - sorted[low]) * part
    };
    let (first, third) = (quantile(0.25), quantile(0.75));
    let reach = 1.5 * (third - first);
    let is_far = |value: f64| value < first - reach || value > third + reach;
    values.iter().enumerate().filter(|(_, value)| is_far(**value)).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Permeability of membranes at term and at 12 to 26 weeks: Hollander and Wolfe, example 4.1, which R's help of
    /// wilcox.test has too.
    const TERM: [f64; 10] = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
    const WEEKS: [f64; 5] = [1.15, 0.88, 0.90, 0.74, 1.21];

    #[test]
    fn published_example() {
        // R: wilcox.test(x, y): W = 35, p-value = 0.2544; the one-sided 0.1272 is in its help.
        let p = rank_sum(&TERM, &WEEKS).unwrap();
        assert!((p - 0.2544).abs() < 5e-5, "{p}");
        // Hollander and Wolfe, example 4.3: the estimate of the shift is 0.305.
        let shift = shift(&WEEKS, &TERM).unwrap();
        assert!((shift.value - 0.305).abs() < 1e-12, "{shift:?}");
        // Table: the interval of 95.2 % is from the 9th smallest to the 9th largest difference, -0.15 to 0.76.
        assert!((shift.low + 0.15).abs() < 1e-12 && (shift.high - 0.76).abs() < 1e-12, "{shift:?}");
    }

    #[test]
    fn the_test_agrees_with_counting_by_hand() {
        // All five above all five: 2 of C(10,5) = 252 arrangements are as extreme.
        let low = [1.0, 2.0, 3.0, 4.0, 5.0];
        let high = [6.0, 7.0, 8.0, 9.0, 10.0];
        assert!((rank_sum(&low, &high).unwrap() - 2.0 / 252.0).abs() < 1e-12);
        assert_eq!(rank_sum(&low, &low), Some(1.0));
        assert_eq!(rank_sum(&[3.0; 5], &[3.0; 5]), Some(1.0));
        assert_eq!(rank_sum(&low, &[]), None);
        // The numbers of arrangements of three and two by statistic: 1 1 2 2 2 1 1.
        assert_eq!(arrangements(3, 2), [1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0]);
    }

    #[test]
    fn large_sets_give_what_small_ones_do() {
        let base: Vec<f64> = (0..30).map(|i| f64::from(i * 17 % 31)).collect();
        let other: Vec<f64> = (0..30).map(|i| f64::from(i * 19 % 31) + 3.0).collect();
        let exact = rank_sum(&base, &other).unwrap();
        let more: Vec<f64> = other.iter().copied().chain([18.5]).collect();
        let near = rank_sum(&base, &more).unwrap();
        assert!((exact - near).abs() < 0.02, "{exact} {near}");
    }

    #[test]
    fn medians_and_outliers() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        let found = median_interval(&values).unwrap();
        assert_eq!((found.value, found.low, found.high), (3.0, 1.0, 5.0));
        assert_eq!(median_interval(&values), median_interval(&values));
        assert!(!median_interval(&[2.0]).unwrap().is_bounded());
        assert_eq!(median_interval(&[2.0, 3.0]).unwrap().high, 3.0);
        assert_eq!(median_interval(&[]), None);
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 1.05, 9.0]), [4]);
        assert_eq!(outliers(&values), [0usize; 0]);
    }

    /// Matrices of 200 pairs of equals, ten times over: the share that is flagged is that of the test, and not of a seed.
    #[test]
    fn equal_sets_are_called_different_in_at_most_five_of_a_hundred_pairs() {
        let mut random = Random(7);
        let mut value =
            || (0..12).map(|_| (random.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>();
        for n in [5, 10] {
            let wrong = (0..2000)
                .filter(|_| {
                    let base: Vec<f64> = (0..n).map(|_| value()).collect();
                    let other: Vec<f64> = (0..n).map(|_| value()).collect();
                    rank_sum(&base, &other).unwrap() < LEVEL
                })
                .count();
            // Ranks are few, so the level that is reached is 3.2 % with five values and 4.3 % with ten.
            assert!(wrong <= 100, "{wrong} of 2000 with {n} values each");
            assert!(wrong >= 20, "{wrong} of 2000 with {n} values each: it finds nothing at all");
        }
    }

    #[test]
    fn a_difference_is_found() {
        let mut random = Random(11);
        let mut value =
            || (0..12).map(|_| (random.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>();
        let found = (0..200)
            .filter(|_| {
                let base: Vec<f64> = (0..5).map(|_| value()).collect();
                // Three standard deviations.
                let other: Vec<f64> = (0..5).map(|_| value() + 3.0).collect();
                rank_sum(&base, &other).unwrap() < LEVEL
            })
            .count();
        assert!(found >= 180, "{found} of 200");
    }
}
