//! What a benchmark's samples come to: each category beside its baseline.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Better, Sample};

use crate::samples::{self, ENOUGH, Estimate, LEVEL};

/// Metric of a cell that failed; its value is 1.
pub const FAILED: &str = "failed";
/// Metric of the path between client and server of a cell, where they are on different systems: its unit is the path, from client to server
/// (`host > user > vm`), its value 1.
pub const NETWORK_PATH: &str = "network-path";
/// Metric of what was recorded beside a workload: exits for each of its operations.
pub const EXITS: &str = "exits";
/// Its unit where a workload says how many operations it did.
pub const AN_OPERATION: &str = "exits an operation";
/// The unit of how often a thread got a processor.
pub const TURNS_OF_OPERATION: &str = "turns an operation";
/// Metric of what KVM's statistics count beside a workload on an emulated host: page faults for each of its operations.
pub const FAULTS: &str = "page-faults";
/// Its unit where a workload says how many operations it did.
pub const FAULTS_OF_OPERATION: &str = "faults an operation";
/// Plain VMs, as a matrix calls them and as published tables do.
const PLAIN: [&str; 2] = ["plain", "VM"];
/// No VM at all.
const HOST: &str = "host";

/// A table of results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchTable {
    /// One for each workload, metric and category, in the order in which they were measured.
    pub rows: Vec<ResultRow>,
    /// Cells that gave no result: workload, category, repeat.
    pub failed: Vec<(String, String, u32)>,
    /// The VMs are emulated: the host is no baseline of theirs.
    pub emulated: bool,
}

impl BenchTable {
    /// The rows by workload and metric: all metrics, or the first of each workload, and its exits.
    pub fn shown(&self, all: bool) -> Vec<&[ResultRow]> {
        let groups =
            self.rows.chunk_by(|a, b| (&a.workload, &a.metric) == (&b.workload, &b.metric));
        let mut shown: Vec<&[ResultRow]> = Vec::new();
        for group in groups {
            let first = shown.iter().all(|other| other[0].workload != group[0].workload);
            if all || first || group[0].metric == EXITS {
                shown.push(group);
            }
        }
        shown
    }

    /// Results of the host stand beside those of emulated VMs.
    pub fn has_host_beside_emulated(&self) -> bool {
        let is_host = |row: &ResultRow| row.category == HOST;
        self.emulated && self.rows.iter().any(is_host) && !self.rows.iter().all(is_host)
    }

    /// Workload, category and path of results that could be compared with their baseline, had they taken the same path.
    pub fn apart(&self) -> Vec<(&str, &str, &str)> {
        let mut found = Vec::new();
        for row in self.rows.iter().filter(|row| row.against.is_none()) {
            let alike = |other: &&ResultRow| {
                (&other.workload, &other.metric) == (&row.workload, &row.metric)
            };
            let rows = self.rows.iter().filter(alike).map(|other| &*other.category);
            let there = baselines(rows, self.emulated);
            let Some(base) = baseline(&row.category, &there) else { continue };
            let differs = |other: &ResultRow| other.category == base && other.path != row.path;
            let one = (&*row.workload, &*row.category, &*row.path);
            if self.rows.iter().filter(alike).any(differs) && !found.contains(&one) {
                found.push(one);
            }
        }
        found
    }
}

/// A workload's metric in a category.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultRow {
    pub workload: String,
    pub category: String,
    /// The path between its client and its server; empty if both are in one system.
    pub path: String,
    pub metric: String,
    pub unit: String,
    /// Which values are good news.
    pub better: Better,
    /// The values, by repeat.
    pub values: Vec<f64>,
    pub median: Estimate,
    /// Which of the values are outliers. They count all the same.
    pub outliers: Vec<usize>,
    /// Beside the baseline.
    pub against: Option<Against>,
    /// Beside the plain VM; the same as `against` where that is the baseline.
    pub against_plain: Option<Against>,
}

impl ResultRow {
    /// Fewer values than a comparison should have.
    pub fn is_thin(&self) -> bool {
        self.values.len() < ENOUGH
    }
}

/// A category beside its baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Against {
    pub baseline: String,
    /// Values of the baseline.
    pub runs: usize,
    /// The shift of the values, in their unit.
    pub shift: Estimate,
    /// How much worse it is, as a part of the baseline's median: negative when it is better. `None` where no direction is
    /// worse, or the baseline is nothing.
    pub overhead: Option<Estimate>,
    /// Chance that equals differ as much; `None` of a single value, which says nothing of chance.
    pub p: Option<f64>,
}

impl Against {
    /// The difference is no chance.
    pub fn differs(&self) -> bool {
        self.p.is_some_and(|p| p < LEVEL)
    }
}

/// The baseline of a category among those that there are: itself with fewer parts; else the plain VM with the same parts, or
/// with none; else the host.
pub fn baseline<'a>(category: &str, there: &BTreeSet<&'a str>) -> Option<&'a str> {
    let mut kind = category;
    while let Some(front) = without_last_part(kind) {
        if let Some(found) = there.get(front) {
            return Some(found);
        }
        kind = front;
    }
    if kind == HOST {
        return None;
    }
    let host = there.get(HOST).copied();
    if PLAIN.contains(&kind) {
        return host;
    }
    let parts = category.strip_prefix(kind).unwrap_or_default();
    let alike = PLAIN.iter().find_map(|plain| there.get(format!("{plain}{parts}").as_str()));
    alike.or_else(|| PLAIN.iter().find_map(|plain| there.get(*plain))).copied().or(host)
}

/// Parts of categories that take something away; other names can have a minus, too.
const TAKEN_AWAY: [&str; 9] = [
    "-ioeventfd",
    "-tsc-deadline",
    "-x2apic",
    "-thp",
    "-pv-ipi",
    "-pv-tlb-flush",
    "-kvmapf",
    "-numa-balancing",
    "-i8042",
];

fn without_last_part(category: &str) -> Option<&str> {
    let taken_away = TAKEN_AWAY.iter().find_map(|part| category.strip_suffix(part));
    taken_away.or_else(|| category.rsplit_once('+').map(|(front, _)| front))
}

/// Categories that may be a baseline: of emulated VMs the host is none, as it is no emulated machine.
fn baselines<'a>(categories: impl Iterator<Item = &'a str>, emulated: bool) -> BTreeSet<&'a str> {
    categories.filter(|category| !emulated || *category != HOST).collect()
}

/// Workload, metric, category, unit, path.
type MetricKey<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

/// Groups the samples of a benchmark run, whose VMs may be emulated. `None` when there are none.
pub fn table(samples: &[Sample], emulated: bool) -> Option<BenchTable> {
    let mut order: Vec<MetricKey<'_>> = Vec::new();
    let mut groups: BTreeMap<MetricKey<'_>, Vec<&Sample>> = BTreeMap::new();
    let mut bench = BenchTable { emulated, ..BenchTable::default() };
    let paths: BTreeMap<(&str, &str, u32), &str> = samples
        .iter()
        .filter(|sample| sample.metric == NETWORK_PATH)
        .map(|s| ((&*s.workload, &*s.category, s.repeat), &*s.unit))
        .collect();
    for sample in samples.iter().filter(|sample| sample.metric != NETWORK_PATH) {
        if sample.metric == FAILED {
            bench.failed.push((sample.workload.clone(), sample.category.clone(), sample.repeat));
            continue;
        }
        let key = (
            sample.workload.as_str(),
            sample.metric.as_str(),
            sample.category.as_str(),
            sample.unit.as_str(),
            paths
                .get(&(&*sample.workload, &*sample.category, sample.repeat))
                .copied()
                .unwrap_or(""),
        );
        let group = groups.entry(key).or_default();
        if group.is_empty() {
            order.push(key);
        }
        group.push(sample);
    }
    // Workloads and metrics in the order of their first appearance, categories with the baselines before what is compared.
    let mut workloads: Vec<String> = Vec::new();
    let mut metrics: Vec<String> = Vec::new();
    for (workload, metric, ..) in &order {
        for (seen, word) in [
            (&mut workloads, (*workload).to_owned()),
            (&mut metrics, format!("{workload}\0{metric}")),
        ] {
            if !seen.contains(&word) {
                seen.push(word);
            }
        }
    }
    let place = |list: &[String], word: &str| list.iter().position(|other| other == word);
    order.sort_by_key(|key| {
        let metric = format!("{}\0{}", key.0, key.1);
        let parts = key.2.matches('+').count();
        (
            place(&workloads, key.0),
            place(&metrics, &metric),
            kind_order(key.2),
            parts,
            key.2.to_owned(),
            key.4.to_owned(),
        )
    });
    for key in order {
        let Some(mut group) = groups.get(&key).cloned() else { continue };
        group.sort_by_key(|sample| sample.repeat);
        let values = numbers(&group);
        let Some(median) = samples::median_interval(&values) else { continue };
        // Results over different paths are not of one thing.
        let alike = groups
            .keys()
            .filter(|(w, m, _, u, path)| (*w, *m, *u, *path) == (key.0, key.1, key.3, key.4));
        let there = baselines(alike.map(|(_, _, category, ..)| *category), emulated);
        let beside = |name: &str| {
            let base = numbers(groups.get(&(key.0, key.1, name, key.3, key.4))?);
            compare(name, &base, &values, group[0].better)
        };
        let direct = baseline(key.2, &there);
        let plain = PLAIN.iter().copied().find(|plain| there.contains(plain));
        let other = plain.filter(|plain| key.2 != HOST && key.2 != *plain);
        let against = direct.and_then(beside);
        bench.rows.push(ResultRow {
            workload: key.0.to_owned(),
            category: key.2.to_owned(),
            path: key.4.to_owned(),
            metric: key.1.to_owned(),
            unit: key.3.to_owned(),
            better: group[0].better,
            outliers: samples::outliers(&values),
            against_plain: other.and_then(beside),
            values,
            median,
            against,
        });
    }
    (!bench.rows.is_empty() || !bench.failed.is_empty()).then_some(bench)
}

/// The host first, then plain VMs, then the others in the order of their names.
fn kind_order(category: &str) -> usize {
    let kind = category.split('+').next().unwrap_or_default();
    if kind == HOST {
        0
    } else if PLAIN.contains(&kind) {
        1
    } else {
        2
    }
}

fn numbers(samples: &[&Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.value).collect()
}

/// Values beside those of a baseline.
pub fn compare(baseline: &str, base: &[f64], values: &[f64], better: Better) -> Option<Against> {
    let shift = samples::shift(base, values)?;
    let single = base.len() < 2 || values.len() < 2;
    let p = if single { None } else { samples::rank_sum(base, values) };
    let middle = samples::median(base)?;
    let part = |value: f64| value / middle.abs();
    let overhead = match better {
        _ if middle == 0.0 => None,
        Better::Lower => Some(Estimate {
            value: part(shift.value),
            low: part(shift.low),
            high: part(shift.high),
        }),
        Better::Higher => Some(Estimate {
            value: part(-shift.value),
            low: part(-shift.high),
            high: part(-shift.low),
        }),
        Better::Neither => None,
    };
    Some(Against { baseline: baseline.to_owned(), runs: base.len(), shift, overhead, p })
}

/// Compares each cell of the other run with the same cell of the run of this name.
pub fn between(name: &str, base: &BenchTable, mut other: BenchTable) -> BenchTable {
    for row in &mut other.rows {
        let alike = base.rows.iter().find(|found| {
            (&found.workload, &found.metric, &found.category, &found.unit, &found.path)
                == (&row.workload, &row.metric, &row.category, &row.unit, &row.path)
        });
        row.against_plain = None;
        row.against = alike.and_then(|found| compare(name, &found.values, &row.values, row.better));
        row.outliers = samples::outliers(&row.values);
    }
    other
}

/// A cell that is in both runs, over different paths.
#[derive(Clone, Copy, Debug)]
pub struct OtherPath<'a> {
    /// The cell of the other run.
    pub row: &'a ResultRow,
    /// The path in the first run.
    pub base_path: &'a str,
}

/// The first cell that is in both runs and is not compared, because its packets took another path.
pub fn other_path<'a>(base: &'a BenchTable, other: &'a BenchTable) -> Option<OtherPath<'a>> {
    let alike = |a: &ResultRow, b: &ResultRow| {
        (&a.workload, &a.metric, &a.category) == (&b.workload, &b.metric, &b.category)
    };
    other.rows.iter().find_map(|row| {
        let found = base.rows.iter().find(|found| alike(found, row) && found.path != row.path)?;
        Some(OtherPath { row, base_path: &found.path })
    })
}

/// A workload in a category: what it does more than in the baseline, and what it loses.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchPoint {
    pub workload: String,
    pub category: String,
    /// Exits of one operation, less those in the baseline.
    pub exits: f64,
    /// The overhead of the workload's first metric.
    pub overhead: f64,
    /// The difference of that metric's medians: in units of cost an operation, where it is a cost.
    pub difference: f64,
}

/// Where exits of operations were recorded: what each category adds of them, beside its overhead. Exits a second are not comparable with them.
pub fn exits_and_overhead(bench: &BenchTable) -> Vec<BenchPoint> {
    let is_of_operation = |row: &&ResultRow| row.metric == EXITS && !row.unit.ends_with("/s");
    let exits = bench.rows.iter().filter(is_of_operation);
    exits
        .filter_map(|row| {
            let alike = |other: &&ResultRow| {
                (&other.workload, &other.category) == (&row.workload, &row.category)
                    && other.metric != EXITS
            };
            let first = bench.rows.iter().find(alike)?.against.as_ref()?;
            Some(BenchPoint {
                workload: row.workload.clone(),
                category: row.category.clone(),
                exits: row.against.as_ref()?.shift.value,
                overhead: first.overhead?.value,
                difference: first.shift.value,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(category: &str, repeat: u32, value: f64) -> Sample {
        Sample {
            workload: "w".to_owned(),
            category: category.to_owned(),
            repeat,
            metric: "rate".to_owned(),
            unit: "1/s".to_owned(),
            value,
            better: Better::Higher,
        }
    }

    #[test]
    fn baselines() {
        let there: BTreeSet<&str> =
            ["VM", "VM+vhost", "SNP", "SNP+vhost", "SNP+vhost+poll", "plain+poll", "TDX+x"].into();
        let of = |category| baseline(category, &there);
        assert_eq!(of("VM"), None);
        assert_eq!(of("VM+vhost"), Some("VM"));
        assert_eq!(of("SNP"), Some("VM"));
        assert_eq!(of("SNP+vhost+poll"), Some("SNP+vhost"));
        assert_eq!(of("TDX+x"), Some("VM"));
        assert_eq!(baseline("host", &["host", "plain"].into()), None);
        assert_eq!(baseline("plain", &["host", "plain"].into()), Some("host"));
    }

    #[test]
    fn the_host_is_no_baseline_of_emulated_vms() {
        let samples: Vec<Sample> = (0..5)
            .flat_map(|i| {
                [sample("host", i, 2000.0), sample("plain", i, 10.0), sample("plain+poll", i, 9.0)]
            })
            .collect();
        let of = |emulated| {
            let rows = table(&samples, emulated).unwrap().rows;
            let base = |row: ResultRow| (row.category, row.against.map(|against| against.baseline));
            rows.into_iter().map(base).collect::<Vec<_>>()
        };
        let name = |word: &str| word.to_owned();
        let expected = |plain: Option<&str>| {
            [
                (name("host"), None),
                (name("plain"), plain.map(name)),
                (name("plain+poll"), Some(name("plain"))),
            ]
        };
        assert_eq!(of(false), expected(Some("host")));
        assert_eq!(of(true), expected(None));
    }

    #[test]
    fn overhead_is_how_much_worse() {
        let mut samples: Vec<Sample> =
            (0..5).map(|i| sample("plain", i, 100.0 + f64::from(i))).collect();
        samples.extend((0..5).map(|i| sample("plain+swiotlb", i, 50.0 + f64::from(i))));
        samples.push(Sample {
            metric: FAILED.to_owned(),
            value: 1.0,
            ..sample("plain+poll", 0, 0.0)
        });
        let bench = table(&samples, false).unwrap();
        assert_eq!(bench.failed, [("w".to_owned(), "plain+poll".to_owned(), 0)]);
        let against = bench.rows[1].against.as_ref().unwrap();
        assert_eq!(against.baseline, "plain");
        assert_eq!(against.shift.value, -50.0);
        assert!((against.overhead.unwrap().value - 50.0 / 102.0).abs() < 1e-12);
        assert!(against.differs());
        assert!(bench.rows[0].against.is_none());
        assert!(!bench.rows[0].is_thin());
        assert_eq!(table(&[], false), None);
    }

    #[test]
    fn a_single_value_has_no_interval_and_no_p() {
        let one = compare("plain", &[2.0], &[1.0], Better::Higher).unwrap();
        assert_eq!((one.p, one.differs(), one.overhead.unwrap().value), (None, false, 0.5));
        assert!(!one.overhead.unwrap().is_bounded() && !one.shift.is_bounded());
        assert!(!samples::median_interval(&[2.0]).unwrap().is_bounded());
        let two = compare("plain", &[2.0, 3.0], &[1.0], Better::Higher).unwrap();
        assert_eq!(two.p, None);
        assert!(samples::median_interval(&[2.0, 3.0]).unwrap().is_bounded());
    }

    /// Results over different paths are not compared, and each category is compared with its direct baseline and with plain.
    #[test]
    fn only_results_over_the_same_path_are_compared() {
        let over = |category: &str, path: &str| {
            let path = Sample {
                metric: NETWORK_PATH.to_owned(),
                unit: path.to_owned(),
                ..sample(category, 0, 1.0)
            };
            [path, sample(category, 0, 10.0)]
        };
        let samples = [
            over("plain", "host > user > vm"),
            over("plain+swiotlb", "host > user > vm"),
            over("plain+swiotlb+poll", "host > user > vm"),
            over("plain+poll", "host > tap > vm"),
        ]
        .concat();
        let bench = table(&samples, false).unwrap();
        assert_eq!(bench.rows.len(), 4);
        let of = |category: &str| bench.rows.iter().find(|row| row.category == category).unwrap();
        let base = |against: &Option<Against>| against.as_ref().map(|a| a.baseline.clone());
        assert_eq!(base(&of("plain+swiotlb").against).as_deref(), Some("plain"));
        assert_eq!(base(&of("plain+swiotlb").against_plain).as_deref(), Some("plain"));
        assert_eq!(base(&of("plain").against_plain), None);
        let both = of("plain+swiotlb+poll");
        assert_eq!(base(&both.against).as_deref(), Some("plain+swiotlb"));
        assert_eq!(base(&both.against_plain).as_deref(), Some("plain"));
        assert_eq!(of("plain+poll").path, "host > tap > vm");
        assert_eq!(of("plain+poll").against, None);
        assert_eq!(bench.apart(), [("w", "plain+poll", "host > tap > vm")]);
        assert!(table(&samples[..4], false).unwrap().apart().is_empty());
    }
}
