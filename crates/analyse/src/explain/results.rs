//! What results of benchmarks say of set-ups: each workload's verdict, the worst first, each category beside its baseline and
//! beside the plain VM with the same options.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vmtax_events::{Better, Isa, Sample};

use super::category::{Category, has_option};
use super::certainty::Certainty;
use super::finding::{Evidence, Finding, Found};
use super::step::{Answer, Question, Record, Says, Step};
use super::workload::{ENOUGH, LOSS, MOST, Recovered, Row, Workload};
use crate::remedy::{COSTS_MORE, Context, VmKind};
use crate::samples;

/// Units that differ from another by a factor alone.
const UNITS: &[(&[&str], &str, f64)] = &[
    (&["bit/s", "bits/sec", "b/s", "bps"], "bit/s", 1.0),
    (&["kbit/s", "Kbits/sec", "Kb/s", "kb/s", "kbps"], "bit/s", 1e3),
    (&["Mbit/s", "Mbits/sec", "Mb/s", "Mbps"], "bit/s", 1e6),
    (&["Gbit/s", "Gbits/sec", "Gb/s", "Gbps"], "bit/s", 1e9),
    (&["B/s"], "B/s", 1.0),
    (&["kB/s", "KB/s"], "B/s", 1e3),
    (&["MB/s"], "B/s", 1e6),
    (&["GB/s"], "B/s", 1e9),
    (&["KiB/s"], "B/s", 1024.0),
    (&["MiB/s"], "B/s", 1_048_576.0),
    (&["GiB/s"], "B/s", 1_073_741_824.0),
    (&["ns"], "ns", 1.0),
    (&["us", "\u{b5}s", "usec"], "ns", 1e3),
    (&["ms", "msec"], "ns", 1e6),
    (&["s", "sec", "seconds"], "ns", 1e9),
];

/// Options that may get a loss back, and their remedies.
const OPTIONS: &[(&str, &str)] = &[
    ("poll", "guest-idle-poll"),
    ("haltpoll", "guest-haltpoll"),
    ("hpoll", "halt-poll"),
    ("vhost", "vhost"),
    ("pinned", "vcpu-pinning"),
    ("hugepages", "huge-pages"),
];

/// What a confidential VM cannot do without and a plain one can be made to do.
const BURDEN: &str = "swiotlb";

struct Table<'a> {
    name: String,
    unit: &'a str,
    better: Better,
    values: BTreeMap<Category, Vec<f64>>,
    /// Categories as they were written first.
    names: BTreeMap<Category, &'a str>,
}

impl Table<'_> {
    fn at(&self, category: &Category) -> Option<(f64, &[f64])> {
        let values = self.values.get(category)?;
        Some((samples::median(values)?, values))
    }

    /// How much worse `to` is than `from`, as a part of `from`.
    fn loss(&self, from: f64, to: f64) -> f64 {
        let worse = if self.better == Better::Higher { from - to } else { to - from };
        if from == 0.0 { 0.0 } else { worse / from.abs() }
    }

    /// The plain VM with the same options.
    fn plain(&self, category: &Category) -> Option<&Category> {
        let is_it = |other: &&Category| {
            let same_host = other.vendor() == category.vendor() || other.vendor() == Isa::Unknown;
            other.vm_kind() == VmKind::Plain && other.options == category.options && same_host
        };
        (category.vm_kind() != VmKind::Plain).then(|| self.values.keys().find(is_it))?
    }

    /// The same with one option less, the one that changes most.
    fn baseline(&self, category: &Category) -> Option<&Category> {
        let fewer = |other: &&Category| {
            other.kind == category.kind
                && other.options.len() + 1 == category.options.len()
                && other.options.iter().all(|option| category.options.contains(option))
        };
        self.values.keys().filter(fewer).max_by(|a, b| {
            let change = |c: &Category| self.at(c).map_or(0.0, |(v, _)| v.abs());
            change(a).total_cmp(&change(b))
        })
    }

    fn row(&self, category: &Category) -> Option<Row> {
        let (value, values) = self.at(category)?;
        let beside = |other: Option<&Category>| {
            let other = other?;
            let (there, _) = self.at(other)?;
            Some((self.name_of(other), there, self.loss(there, value)))
        };
        Some(Row {
            category: self.name_of(category),
            value,
            runs: values.len(),
            plain: beside(self.plain(category)),
            baseline: beside(self.baseline(category)),
        })
    }

    /// As it was written.
    fn name_of(&self, category: &Category) -> String {
        self.names.get(category).map_or_else(String::new, |name| (*name).to_owned())
    }

    fn certainty(&self, with: &[f64], without: &[f64]) -> Certainty {
        let better = |a: f64, b: f64| if self.better == Better::Higher { a > b } else { a < b };
        let all = with.iter().all(|a| without.iter().all(|b| better(*a, *b)));
        if with.len() >= ENOUGH && without.len() >= ENOUGH && all {
            Certainty::Likely
        } else {
            Certainty::Possible
        }
    }
}

/// What a unit is a multiple of.
fn base_unit(unit: &str) -> Option<(&'static str, f64)> {
    let row = UNITS.iter().find(|(names, ..)| names.contains(&unit));
    row.map(|(_, base, factor)| (*base, *factor))
}

/// Every workload, worst first.
pub(super) fn workloads(samples: &[Sample]) -> Vec<Arc<Workload>> {
    let mut tables: BTreeMap<(&str, &str, &str), Table<'_>> = BTreeMap::new();
    let mut units: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for sample in samples {
        units.entry((&sample.workload, &sample.metric)).or_default().insert(&sample.unit);
    }
    for sample in samples.iter().filter(|sample| sample.better != Better::Neither) {
        let Some(category) = Category::read(&sample.category) else { continue };
        let (workload, metric, mut unit) = (&*sample.workload, &*sample.metric, &*sample.unit);
        let mut value = sample.value;
        let several = units.get(&(workload, metric)).is_some_and(|units| units.len() > 1);
        if several && let Some((base, factor)) = base_unit(unit) {
            (unit, value) = (base, value * factor);
        }
        let table = tables.entry((workload, metric, unit)).or_insert_with(|| Table {
            name: format!("{workload} {metric}"),
            unit,
            better: sample.better,
            values: BTreeMap::new(),
            names: BTreeMap::new(),
        });
        table.names.entry(category.clone()).or_insert(sample.category.trim());
        table.values.entry(category).or_default().push(value);
    }
    let several = |table: &&Table<'_>| table.values.len() > 1;
    let mut workloads: Vec<Arc<Workload>> =
        tables.values().filter(several).map(|table| Arc::new(workload(table))).collect();
    workloads.sort_by(|a, b| b.loss().total_cmp(&a.loss()));
    workloads
}

/// Options that are tried to get a loss back: no set-ups whose loss is to be explained.
fn is_tried(category: &Category) -> bool {
    category.options.iter().any(|o| ["poll", "haltpoll", "hpoll"].contains(&o.as_str()))
}

fn workload(table: &Table<'_>) -> Workload {
    let rows: Vec<(Row, &Category)> =
        table.values.keys().filter_map(|c| Some((table.row(c)?, c))).collect();
    let mut losing: Vec<(f64, &Row, &Category, f64)> = rows
        .iter()
        .filter(|(_, category)| !is_tried(category))
        .filter_map(|(row, category)| {
            let (_, plain, loss) = row.plain.as_ref()?;
            (*loss >= LOSS).then_some((*loss, row, *category, *plain))
        })
        .collect();
    losing.sort_by(|a, b| b.0.total_cmp(&a.0));
    let recovered: Vec<Recovered> = losing
        .iter()
        .flat_map(|(loss, row, category, plain)| recover(table, row, category, (*loss, *plain)))
        .collect();
    let bounce = losing
        .first()
        .and_then(|(_, worst, category, plain)| bounce(table, category, worst.value, *plain));
    let worst = losing.first().map(|(_, row, ..)| (*row).clone());
    let rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
    let changed = rows.iter().all(|row| row.plain.is_none()).then(|| most_changed(&rows)).flatten();
    Workload {
        name: table.name.clone(),
        unit: table.unit.to_owned(),
        worst,
        bounce,
        changed,
        recovered,
        rows,
    }
}

/// Options that got most of a category's loss back.
fn recover(
    table: &Table<'_>,
    row: &Row,
    category: &Category,
    (loss, plain): (f64, f64),
) -> Vec<Recovered> {
    let each = |(option, _): &(&str, &str)| {
        let (value, values) = table.at(&category.with(option))?;
        let (_, without) = table.at(category)?;
        let back = (value - row.value) / (plain - row.value);
        (back >= MOST).then(|| Recovered {
            option: (*option).to_owned(),
            category: row.category.clone(),
            part: back,
            loss,
            certainty: table.certainty(values, without),
            kind: category.vm_kind(),
        })
    };
    OPTIONS.iter().filter_map(each).collect()
}

/// The part of a loss that a plain VM with a bounce buffer has too.
fn bounce(table: &Table<'_>, category: &Category, value: f64, plain: f64) -> Option<f64> {
    let kind = table.plain(category)?.kind.clone();
    let burdened = Category { kind, options: category.options.clone() }.with(BURDEN);
    let (alone, _) = table.at(&burdened)?;
    Some(((plain - alone) / (plain - value)).clamp(0.0, 1.0))
}

/// Without kinds to compare: the category whose last option changes most.
fn most_changed(rows: &[Row]) -> Option<Row> {
    let changes = rows.iter().filter_map(|row| Some((row.baseline.as_ref()?.2.abs(), row)));
    let (change, row) = changes.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (change >= LOSS).then(|| row.clone())
}

/// The step, where there are results.
pub(super) fn step(workloads: &[Arc<Workload>]) -> Option<Step> {
    let worst = workloads.first()?;
    let answer = if worst.loss() >= LOSS { Answer::Yes } else { Answer::No };
    let thin = workloads.iter().flat_map(|w| &w.rows).any(|row| row.runs < ENOUGH);
    let evidence = workloads.iter().cloned().map(Evidence::Workload).collect();
    let step = Step::new(Question::Results, answer, Says::Worst(Arc::clone(worst)));
    let step = step.evidence(evidence);
    Some(if thin { step.next(Record::Repetitions) } else { step })
}

/// What got losses back, as findings.
pub(super) fn findings(workloads: &[Arc<Workload>], context: &Context) -> Vec<Finding> {
    let mut found: BTreeMap<&'static str, Finding> = BTreeMap::new();
    for workload in workloads {
        for one in &workload.recovered {
            let Some((_, remedy)) = OPTIONS.iter().find(|(name, _)| *name == one.option) else {
                continue;
            };
            let finding = found.entry(remedy).or_insert_with(|| {
                let mut finding = Finding::new(Found::Recovery(one.option.clone()), one.certainty);
                finding.advise(&[remedy], &Context { kind: one.kind, ..*context });
                finding
            });
            finding.certainty = finding.certainty.max(one.certainty);
            finding.weight = finding.weight.max(one.loss * one.part.min(1.0));
            finding.evidence.push(Evidence::RecoveredPart {
                workload: workload.name.clone(),
                part: one.part,
                category: one.category.clone(),
                loss: one.loss,
            });
        }
    }
    for (option, remedy) in OPTIONS {
        let Some(finding) = found.get_mut(remedy) else { continue };
        let Some((loss, harm)) = harm(workloads, option) else { continue };
        finding.evidence.push(harm);
        if loss >= finding.weight {
            finding.remedies.clear();
            finding.refused.push((remedy, COSTS_MORE));
        }
    }
    found.into_values().collect()
}

/// What an option costs most: the loss against the category without it, from 5 % on, and where.
fn harm(workloads: &[Arc<Workload>], option: &str) -> Option<(f64, Evidence)> {
    let worse = |workload: &Arc<Workload>| {
        let rows = workload.rows.iter().filter(|row| has_option(&row.category, option));
        let lost = rows.filter_map(|row| {
            let (baseline, _, loss) = row.baseline.as_ref()?;
            (*loss >= LOSS && !has_option(baseline, option)).then_some((*loss, row))
        });
        let (loss, row) = lost.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((loss, workload.name.clone(), row.category.clone()))
    };
    let mut all: Vec<(f64, String, String)> = workloads.iter().filter_map(worse).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let more = all.len().saturating_sub(1);
    let (loss, workload, category) = all.into_iter().next()?;
    Some((loss, Evidence::Harm { workload, category, loss, more }))
}
