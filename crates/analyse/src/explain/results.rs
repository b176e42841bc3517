//! What results of benchmarks say of set-ups: each workload's verdict, the worst first, each category beside its baseline and
//! beside the plain VM with the same options.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vmtax_events::{Better, Isa, Sample};

use super::category::{CategoryParts, has_option};
use super::certainty::Certainty;
use super::finding::{Evidence, Finding, FoundKind};
use super::step::{ExplainStep, Question, Says, StepAnswer, ToRecord};
use super::workload::{
    CategoryBeside, CategoryResult, ENOUGH, LOSS, MOST, Recovered, WorkloadResults,
};
use crate::bench::compare;
use crate::remedy::{COSTS_MORE, Context, RemedyId, VmKind};
use crate::samples;

/// No VM at all, as `vmtax bench` calls it.
const HOST: &str = "host";

/// Units that differ from another by a factor alone.
const UNITS: &[(&[&str], &str, f64)] = &[
    (&["bit/s", "bits/s", "bits/sec", "b/s", "bps"], "bit/s", 1.0),
    (&["kbit/s", "Kbits/s", "Kbits/sec", "Kb/s", "kb/s", "kbps"], "bit/s", 1e3),
    (&["Mbit/s", "Mbits/s", "Mbits/sec", "Mb/s", "Mbps"], "bit/s", 1e6),
    (&["Gbit/s", "Gbits/s", "Gbits/sec", "Gb/s", "Gbps"], "bit/s", 1e9),
    (&["B/s"], "B/s", 1.0),
    (&["kB/s", "KB/s", "KB/sec"], "B/s", 1e3),
    (&["MB/s", "MB/sec"], "B/s", 1e6),
    (&["GB/s", "GB/sec"], "B/s", 1e9),
    (&["KiB/s", "KiB/sec"], "B/s", 1024.0),
    (&["MiB/s", "MiB/sec"], "B/s", 1_048_576.0),
    (&["GiB/s", "GiB/sec"], "B/s", 1_073_741_824.0),
    (&["ns"], "ns", 1.0),
    (&["us", "\u{b5}s", "usec"], "ns", 1e3),
    (&["ms", "msec"], "ns", 1e6),
    (&["s", "sec", "secs", "second", "seconds"], "ns", 1e9),
    (&["min", "mins", "minute", "minutes"], "ns", 60e9),
    (&["hours"], "ns", 3600e9),
];

/// Options that may get a loss back, and their remedies.
const OPTIONS: &[(&str, RemedyId)] = &[
    ("poll", RemedyId::GuestIdlePoll),
    // The published categories call the guest's cpuidle_haltpoll.force=Y so: "Performance analysis of confidential VMs" (TU Munich, 2024).
    ("hpoll", RemedyId::GuestHaltpoll),
    ("haltpoll", RemedyId::GuestHaltpoll),
    ("halt_poll_ns", RemedyId::HaltPoll),
    ("vhost", RemedyId::Vhost),
    ("pinned", RemedyId::VcpuPinning),
    ("hugepages", RemedyId::HugePages),
];

/// What a confidential VM cannot do without and a plain one can be made to do.
const BURDEN: &str = "swiotlb";

/// The format of results whose set-ups have names of their own, not those of kinds of VM and options.
pub const POSTED_FIGURES: &str = "figures";

struct ResultsTable<'a> {
    name: String,
    unit: &'a str,
    better: Better,
    values: BTreeMap<CategoryParts, Vec<f64>>,
    /// Of the computer without a VM.
    host: Vec<f64>,
    /// Categories as they were written first.
    names: BTreeMap<CategoryParts, &'a str>,
}

impl ResultsTable<'_> {
    fn at(&self, category: &CategoryParts) -> Option<(f64, &[f64])> {
        let values = self.values.get(category)?;
        Some((samples::median(values)?, values))
    }

    /// How much worse `values` are than those of `other`.
    fn beside(&self, other: &str, there: &[f64], values: &[f64]) -> Option<CategoryBeside> {
        let against = compare(other, there, values, self.better)?;
        Some(CategoryBeside {
            category: other.to_owned(),
            value: samples::median(there)?,
            loss: against.overhead.map_or(0.0, |overhead| overhead.value),
            differs: against.differs() || are_apart(there, values),
            proven: against.differs() && values.len().min(there.len()) >= ENOUGH,
        })
    }

    /// The plain VM with the same options.
    fn plain(&self, category: &CategoryParts) -> Option<&CategoryParts> {
        let is_it = |other: &&CategoryParts| {
            let same_host = other.vendor() == category.vendor() || other.vendor() == Isa::Unknown;
            other.vm_kind() == VmKind::Plain && other.options == category.options && same_host
        };
        (category.vm_kind() != VmKind::Plain).then(|| self.values.keys().find(is_it))?
    }

    /// The same with one option less, the one that changes most.
    fn baseline(&self, category: &CategoryParts) -> Option<&CategoryParts> {
        let fewer = |other: &&CategoryParts| {
            other.kind == category.kind
                && other.options.len() + 1 == category.options.len()
                && other.options.iter().all(|option| category.options.contains(option))
        };
        self.values.keys().filter(fewer).max_by(|a, b| {
            let change = |c: &CategoryParts| self.at(c).map_or(0.0, |(v, _)| v.abs());
            change(a).total_cmp(&change(b))
        })
    }

    fn row(&self, category: &CategoryParts) -> Option<CategoryResult> {
        let (value, values) = self.at(category)?;
        let beside = |other: &CategoryParts| {
            let (_, there) = self.at(other)?;
            self.beside(&self.name_of(other), there, values)
        };
        let host = || (!self.host.is_empty()).then(|| self.beside(HOST, &self.host, values))?;
        Some(CategoryResult {
            category: self.name_of(category),
            value,
            runs: values.len(),
            plain: self.plain(category).and_then(beside).or_else(host),
            baseline: self.baseline(category).and_then(beside),
        })
    }

    /// As it was written.
    fn name_of(&self, category: &CategoryParts) -> String {
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

/// Whether all values of one set are larger than all of the other.
fn are_apart(a: &[f64], b: &[f64]) -> bool {
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most(a) < least(b) || most(b) < least(a)
}

/// What a unit is a multiple of.
fn base_unit(unit: &str) -> Option<(&'static str, f64)> {
    let row = UNITS.iter().find(|(names, ..)| names.contains(&unit));
    row.map(|(_, base, factor)| (*base, *factor))
}

/// Every workload, worst first. Of emulated VMs the host is no baseline.
pub(super) fn workloads(samples: &[Sample], emulated: bool) -> Vec<Arc<WorkloadResults>> {
    let mut tables: BTreeMap<(&str, &str, &str), ResultsTable<'_>> = BTreeMap::new();
    let mut units: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for sample in samples {
        units.entry((&sample.workload, &sample.metric)).or_default().insert(&sample.unit);
    }
    for sample in samples.iter().filter(|sample| sample.better != Better::Neither) {
        let category = CategoryParts::read(&sample.category);
        let is_host = !emulated && sample.category.trim().eq_ignore_ascii_case(HOST);
        if category.is_none() && !is_host {
            continue;
        }
        let (workload, metric, mut unit) = (&*sample.workload, &*sample.metric, &*sample.unit);
        let mut value = sample.value;
        let several = units.get(&(workload, metric)).is_some_and(|units| units.len() > 1);
        if several && let Some((base, factor)) = base_unit(unit) {
            (unit, value) = (base, value * factor);
        }
        let table = tables.entry((workload, metric, unit)).or_insert_with(|| ResultsTable {
            name: format!("{workload} {metric}"),
            unit,
            better: sample.better,
            values: BTreeMap::new(),
            host: Vec::new(),
            names: BTreeMap::new(),
        });
        let Some(category) = category else {
            table.host.push(value);
            continue;
        };
        table.names.entry(category.clone()).or_insert(sample.category.trim());
        table.values.entry(category).or_default().push(value);
    }
    let several =
        |table: &&ResultsTable<'_>| table.values.len() + usize::from(!table.host.is_empty()) > 1;
    let mut workloads: Vec<Arc<WorkloadResults>> =
        tables.values().filter(several).map(|table| Arc::new(workload(table))).collect();
    workloads.sort_by(|a, b| b.loss().total_cmp(&a.loss()));
    workloads
}

/// Options that are tried to get a loss back: no set-ups whose loss is to be explained.
fn is_tried(category: &CategoryParts) -> bool {
    category
        .options
        .iter()
        .any(|o| ["poll", "hpoll", "haltpoll", "halt_poll_ns"].contains(&o.as_str()))
}

/// Values of set-ups with names of their own.
struct PostedSetups<'a> {
    better: Better,
    values: BTreeMap<&'a str, Vec<f64>>,
}

impl PostedSetups<'_> {
    /// Each set-up beside the best; `None` of one alone.
    fn results(&self, name: String, unit: &str) -> Option<WorkloadResults> {
        let table = ResultsTable {
            name,
            unit,
            better: self.better,
            values: BTreeMap::new(),
            host: Vec::new(),
            names: BTreeMap::new(),
        };
        let median = |values: &[f64]| samples::median(values).unwrap_or_default();
        let order = |a: &[f64], b: &[f64]| match self.better {
            Better::Higher => median(a).total_cmp(&median(b)),
            _ => median(b).total_cmp(&median(a)),
        };
        let (best, there) = self.values.iter().max_by(|a, b| order(a.1, b.1))?;
        // Without a unit, and of changes, nobody knows which is the best.
        let is_known = self.better != Better::Neither;
        let row = |(setup, values): (&&str, &Vec<f64>)| CategoryResult {
            category: (*setup).to_owned(),
            value: median(values),
            runs: values.len(),
            plain: (is_known && setup != best).then(|| table.beside(best, there, values)).flatten(),
            baseline: None,
        };
        let rows: Vec<CategoryResult> = self.values.iter().map(row).collect();
        let losing = rows.iter().filter_map(|row| {
            Some((row.plain.as_ref().filter(|plain| plain.is_loss())?.loss, row))
        });
        let worst = losing.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, row)| row.clone());
        let (name, unit) = (table.name, unit.to_owned());
        let is_relative = is_relative(&unit);
        (rows.len() > 1 || is_relative).then(|| WorkloadResults {
            name,
            unit,
            has_kinds: false,
            is_relative,
            better: self.better,
            worst,
            bounce: None,
            changed: None,
            recovered: Vec::new(),
            rows,
        })
    }
}

/// Every workload of set-ups with names of their own, worst first.
pub(super) fn posted(samples: &[Sample]) -> Vec<Arc<WorkloadResults>> {
    let mut workloads: BTreeMap<(&str, &str, &str), PostedSetups<'_>> = BTreeMap::new();
    let known = || samples.iter();
    for sample in known() {
        // Of several units of a kind the base.
        let (base, factor) = base_unit(&sample.unit).unwrap_or((&sample.unit, 1.0));
        let is_alike = |other: &Sample| {
            (&other.workload, &other.metric) != (&sample.workload, &sample.metric)
                || other.unit == sample.unit
        };
        let (unit, factor) =
            if known().all(is_alike) { (sample.unit.as_str(), 1.0) } else { (base, factor) };
        let setups = workloads
            .entry((&sample.workload, &sample.metric, unit))
            .or_insert_with(|| PostedSetups { better: sample.better, values: BTreeMap::new() });
        setups.values.entry(&sample.category).or_default().push(sample.value * factor);
    }
    let results = |((workload, metric, unit), setups): (&(&str, &str, &str), &PostedSetups<'_>)| {
        setups.results(format!("{workload} {metric}").trim().to_owned(), unit)
    };
    let mut all: Vec<Arc<WorkloadResults>> =
        workloads.iter().filter_map(results).map(Arc::new).collect();
    all.sort_by(|a, b| b.loss().total_cmp(&a.loss()).then(b.span().total_cmp(&a.span())));
    all
}

/// Whether values are changes against something that a post does not show.
fn is_relative(unit: &str) -> bool {
    unit.starts_with('%') || unit.starts_with("times")
}

fn workload(table: &ResultsTable<'_>) -> WorkloadResults {
    let rows: Vec<(CategoryResult, &CategoryParts)> =
        table.values.keys().filter_map(|c| Some((table.row(c)?, c))).collect();
    let mut losing: Vec<(&CategoryBeside, &CategoryResult, &CategoryParts)> = rows
        .iter()
        .filter(|(_, category)| !is_tried(category))
        .filter_map(|(row, category)| Some((row.plain.as_ref()?, row, *category)))
        .filter(|(plain, ..)| plain.is_loss())
        .collect();
    losing.sort_by(|a, b| b.0.loss.total_cmp(&a.0.loss));
    let recovered: Vec<Recovered> =
        losing.iter().flat_map(|(plain, _, category)| recover(table, category, plain)).collect();
    let bounce = losing.first().and_then(|(plain, _, category)| bounce(table, category, plain));
    let worst = losing.first().map(|(_, row, _)| (*row).clone());
    let rows: Vec<CategoryResult> = rows.into_iter().map(|(row, _)| row).collect();
    let changed = rows.iter().all(|row| row.plain.is_none()).then(|| most_changed(&rows)).flatten();
    WorkloadResults {
        name: table.name.clone(),
        unit: table.unit.to_owned(),
        has_kinds: true,
        is_relative: false,
        better: table.better,
        worst,
        bounce,
        changed,
        recovered,
        rows,
    }
}

/// Options that got most of a category's loss back, `loss`.
fn recover(
    table: &ResultsTable<'_>,
    category: &CategoryParts,
    loss: &CategoryBeside,
) -> Vec<Recovered> {
    let there = match table.plain(category) {
        Some(plain) => table.values.get(plain),
        None => Some(&table.host),
    };
    let each = |(option, _): &(&str, RemedyId)| {
        let (_, values) = table.at(&category.with(option))?;
        let (_, without) = table.at(category)?;
        let remains = table.beside(&loss.category, there?, values)?.loss;
        let back = 1.0 - remains / loss.loss;
        let differs = table.beside(&loss.category, without, values)?.differs;
        (back >= MOST && differs).then(|| Recovered {
            option: (*option).to_owned(),
            category: table.name_of(category),
            part: back,
            loss: loss.loss,
            certainty: table.certainty(values, without),
            kind: category.vm_kind(),
        })
    };
    OPTIONS.iter().filter_map(each).collect()
}

/// The part of a loss that a plain VM with a bounce buffer has too.
fn bounce(
    table: &ResultsTable<'_>,
    category: &CategoryParts,
    loss: &CategoryBeside,
) -> Option<f64> {
    let plain = table.plain(category)?;
    let burdened = CategoryParts { kind: plain.kind.clone(), options: category.options.clone() };
    let (_, alone) = table.at(&burdened.with(BURDEN))?;
    let (_, there) = table.at(plain)?;
    Some((table.beside(&loss.category, there, alone)?.loss / loss.loss).clamp(0.0, 1.0))
}

/// Without kinds to compare: the category whose last option changes most.
fn most_changed(rows: &[CategoryResult]) -> Option<CategoryResult> {
    let change =
        |row: &&CategoryResult| row.baseline.as_ref().map_or(0.0, |baseline| baseline.loss.abs());
    let told =
        |row: &&CategoryResult| row.baseline.as_ref().is_some_and(|baseline| baseline.differs);
    let most = rows.iter().filter(told).max_by(|a, b| change(a).total_cmp(&change(b)))?;
    (change(&most) >= LOSS).then(|| most.clone())
}

/// The step, where there are results.
pub(super) fn step(workloads: &[Arc<WorkloadResults>], is_posted: bool) -> Option<ExplainStep> {
    let worst = workloads.first()?;
    let answer = match worst.loss() {
        _ if is_posted && worst.better == Better::Neither => StepAnswer::Unknown,
        loss if loss >= LOSS => StepAnswer::Yes,
        _ if workloads.iter().any(|one| one.unproven().is_some()) => StepAnswer::Unknown,
        _ => StepAnswer::No,
    };
    let thin = workloads.iter().flat_map(|w| &w.rows).any(|row| row.runs < ENOUGH);
    let evidence = workloads.iter().cloned().map(Evidence::Workload).collect();
    let step = ExplainStep::new(Question::Results, answer, Says::Worst(Arc::clone(worst)));
    let step = step.evidence(evidence);
    if is_posted {
        return Some(step.next(ToRecord::ExitsOfSetups));
    }
    Some(if thin { step.next(ToRecord::Repetitions) } else { step })
}

/// What got losses back, as findings.
pub(super) fn findings(workloads: &[Arc<WorkloadResults>], context: &Context) -> Vec<Finding> {
    let mut found: BTreeMap<RemedyId, Finding> = BTreeMap::new();
    for workload in workloads {
        for one in &workload.recovered {
            let Some((_, remedy)) = OPTIONS.iter().find(|(name, _)| *name == one.option) else {
                continue;
            };
            let finding = found.entry(*remedy).or_insert_with(|| {
                let mut finding =
                    Finding::new(FoundKind::Recovery(one.option.clone()), one.certainty);
                finding.advise(&[*remedy], &Context { kind: one.kind, ..*context });
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
            finding.refused.push((*remedy, COSTS_MORE));
        }
    }
    found.into_values().collect()
}

/// What an option costs most: the loss against the category without it, from 5 % on, and where.
fn harm(workloads: &[Arc<WorkloadResults>], option: &str) -> Option<(f64, Evidence)> {
    let worse = |workload: &Arc<WorkloadResults>| {
        let rows = workload.rows.iter().filter(|row| has_option(&row.category, option));
        let lost = rows.filter_map(|row| {
            let baseline = row.baseline.as_ref()?;
            let adds = !has_option(&baseline.category, option);
            (baseline.is_loss() && adds).then_some((baseline.loss, row))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;

    fn samples(sets: &[(&str, &[f64])]) -> Vec<Sample> {
        let of_set = |(category, values): &(&str, &[f64])| -> Vec<Sample> {
            let sample = |(repeat, value): (usize, &f64)| Sample {
                workload: "build".to_owned(),
                category: (*category).to_owned(),
                repeat: u32::try_from(repeat).unwrap(),
                metric: "time".to_owned(),
                unit: "s".to_owned(),
                value: *value,
                better: Better::Lower,
            };
            values.iter().enumerate().map(sample).collect()
        };
        sets.iter().flat_map(of_set).collect()
    }

    /// Medians of few scattered values may differ by a third where the shift, which the table shows, is nothing: both are of the
    /// shift, and what is not told apart is no loss.
    #[test]
    fn losses_are_the_overheads_of_the_table() {
        for (values, loses) in [([90.0, 136.0, 139.0], false), ([136.0, 138.0, 171.0], true)] {
            let all = samples(&[
                ("plain", &[100.0, 101.0, 140.0][..2 + usize::from(!loses)]),
                ("snp", &values),
            ]);
            let found = workloads(&all, false);
            let row = found[0].rows.iter().find(|row| row.category == "snp").unwrap();
            let shown = bench::table(&all, false).unwrap();
            let shown = shown.rows.iter().find(|row| row.category == "snp").unwrap();
            let overhead = shown.against.as_ref().unwrap().overhead.unwrap().value;
            assert_eq!(row.plain.as_ref().unwrap().loss, overhead);
            assert_eq!(found[0].worst.is_some(), loses, "{overhead}");
            assert_eq!(overhead >= LOSS, loses);
        }
    }

    /// An option that overlaps with what it is to improve is no remedy.
    #[test]
    fn an_option_must_be_told_apart() {
        let recovers = |with: &[f64]| {
            let all = samples(&[
                ("plain", &[100.0, 101.0, 102.0]),
                ("snp", &[150.0, 152.0, 160.0]),
                ("snp+poll", with),
            ]);
            !workloads(&all, false)[0].recovered.is_empty()
        };
        assert!(recovers(&[103.0, 104.0, 105.0]));
        assert!(!recovers(&[103.0, 104.0, 155.0]));
    }

    /// Without a plain VM, and beside one, losses are those against the host; `private` is a kind of VM.
    #[test]
    fn the_host_is_the_last_baseline() {
        let all = samples(&[
            ("host", &[20.0]),
            ("plain", &[29.0]),
            ("plain+pinned", &[20.5]),
            ("private", &[31.0]),
        ]);
        let found = workloads(&all, false);
        let beside = |category: &str| {
            let row = found[0].rows.iter().find(|row| row.category == category).unwrap();
            row.plain.as_ref().unwrap().category.clone()
        };
        assert_eq!((beside("plain"), beside("private")), ("host".to_owned(), "plain".to_owned()));
        assert_eq!(found[0].worst.as_ref().unwrap().category, "plain");
        assert_eq!(found[0].recovered[0].option, "pinned");
    }
}
