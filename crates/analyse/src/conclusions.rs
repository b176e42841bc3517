//! What a table of benchmarks proves: the differences that the rank-sum test tells from chance, between sets of enough values.
//!
//! Left out: exits that were recorded too few times. On an emulated host one count is exact, and it is in the table.

use crate::bench::{Against, EXITS, ResultRow};
use crate::samples::{ENOUGH, Estimate};

/// A category that differs from another.
#[derive(Clone, Copy, Debug)]
pub struct CategoryDifference<'a> {
    pub row: &'a ResultRow,
    /// What it is compared with.
    pub against: &'a Against,
    /// How much worse it is, as a part of the other's median.
    pub overhead: Estimate,
    /// Chance that equals differ as much.
    pub p: f64,
}

/// The comparisons of some rows, and those of them that prove a difference.
#[derive(Clone, Debug, Default)]
pub struct Conclusions<'a> {
    /// The proven differences, the largest first.
    pub differences: Vec<CategoryDifference<'a>>,
    /// Comparisons with enough values whose difference can be chance.
    pub open: usize,
    /// Comparisons with fewer than [`ENOUGH`] values on a side.
    pub thin: usize,
}

impl<'a> Conclusions<'a> {
    /// Of these rows, each with its baseline and with the plain VM.
    pub fn new(rows: impl IntoIterator<Item = &'a ResultRow>) -> Conclusions<'a> {
        let mut found = Conclusions::default();
        for row in rows {
            let plain = row.against_plain.as_ref();
            let plain = plain.filter(|plain| {
                row.against.as_ref().is_none_or(|direct| direct.baseline != plain.baseline)
            });
            for against in row.against.iter().chain(plain) {
                let Some(overhead) = against.overhead else { continue };
                if row.is_thin() || against.runs < ENOUGH {
                    found.thin += usize::from(row.metric != EXITS);
                } else if let Some(p) = against.p.filter(|_| against.differs()) {
                    found.differences.push(CategoryDifference { row, against, overhead, p });
                } else {
                    found.open += 1;
                }
            }
        }
        let size = |one: &CategoryDifference<'_>| one.overhead.value.abs();
        found.differences.sort_by(|a, b| size(b).total_cmp(&size(a)));
        found
    }

    pub fn compared(&self) -> usize {
        self.differences.len() + self.open + self.thin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table;
    use vmtax_events::{Better, Sample};

    fn samples(category: &str, values: &[f64]) -> Vec<Sample> {
        let sample = |(repeat, value): (usize, &f64)| Sample {
            workload: "w".to_owned(),
            category: category.to_owned(),
            repeat: u32::try_from(repeat).unwrap(),
            metric: "time".to_owned(),
            unit: "s".to_owned(),
            value: *value,
            better: Better::Lower,
        };
        values.iter().enumerate().map(sample).collect()
    }

    /// One run, three runs that do not overlap, and five that do prove nothing; five that do not overlap prove a difference.
    #[test]
    fn a_conclusion_needs_significance_and_enough_runs() {
        let plain = [10.0, 11.0, 12.0, 13.0, 14.0];
        let of = |values: &[f64]| {
            let all = [samples("plain", &plain), samples("plain+poll", values)].concat();
            let bench = table(&all, false).unwrap();
            let found = Conclusions::new(&bench.rows);
            (found.differences.len(), found.open, found.thin)
        };
        assert_eq!(of(&[20.0]), (0, 0, 1));
        // Four and five have p = 2 in 126, and are too few all the same.
        assert_eq!(of(&[20.0, 21.0, 22.0, 23.0]), (0, 0, 1));
        assert_eq!(of(&[10.5, 11.5, 12.5, 13.5, 14.5]), (0, 1, 0));
        assert_eq!(of(&[20.0, 21.0, 22.0, 23.0, 24.0]), (1, 0, 0));
        let thin = [samples("plain", &plain[..3]), samples("plain+poll", &plain)].concat();
        let bench = table(&thin, false).unwrap();
        assert_eq!(Conclusions::new(&bench.rows).thin, 1, "a thin baseline proves nothing");
    }

    /// A category with two parts is compared with its baseline and with the plain VM, each once; exits of one run are no comparison.
    #[test]
    fn each_pair_is_compared_once() {
        let mut all = samples("plain", &[10.0, 11.0, 12.0, 13.0, 14.0]);
        all.extend(samples("plain+swiotlb", &[20.0, 21.0, 22.0, 23.0, 24.0]));
        all.extend(samples("plain+swiotlb+poll", &[5.0, 5.1, 5.2, 5.3, 5.4]));
        let once = all.iter().filter(|sample| sample.repeat == 0).cloned();
        let exits: Vec<_> = once.map(|s| Sample { metric: EXITS.to_owned(), ..s }).collect();
        all.extend(exits);
        let bench = table(&all, false).unwrap();
        let found = Conclusions::new(&bench.rows);
        let pairs: Vec<(&str, &str, bool)> = found
            .differences
            .iter()
            .map(|one| (&*one.row.category, &*one.against.baseline, one.overhead.value > 0.0))
            .collect();
        let both = "plain+swiotlb+poll";
        assert_eq!(
            pairs,
            [
                ("plain+swiotlb", "plain", true),
                (both, "plain+swiotlb", false),
                (both, "plain", false)
            ]
        );
        assert_eq!(found.compared(), 3);
    }
}
