//! What results of benchmarks say of set-ups: each workload's verdict, the worst first, each category beside its baseline and
//! beside the plain VM with the same options.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Better, Isa, Sample};

use super::category::{Category, has_option, is_category};
use super::findings::Finding;
use super::{Answer, Certainty, Step, Verdict, percent};
use crate::remedy::{Context, VmKind};
use crate::samples;

/// Losses under this are not looked into.
const LOSS: f64 = 0.05;
/// Part of a loss that is called most of it.
const MOST: f64 = 0.5;
/// Minimum repetitions of each to conclude that one is larger than the other if all values are: with five and
/// five, the chance for that among equals is 2 in 252 (the exact rank-sum test; Wilcoxon, Biometrics Bulletin 1, 1945).
const ENOUGH: usize = 5;
/// More workloads than this are a table.
const SENTENCES: usize = 2;

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

/// The result of one category of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The category.
    pub category: String,
    /// The median.
    pub value: f64,
    /// Values.
    pub runs: usize,
    /// The plain VM with the same options: name, median, and the part of it that is lost (negative: gained).
    pub plain: Option<(String, f64, f64)>,
    /// The same category without its last option, likewise.
    pub baseline: Option<(String, f64, f64)>,
}

/// A workload's verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What ran, and what was measured.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// The largest loss against a plain VM with the same options; 0 where there is none.
    pub loss: f64,
    /// The category that has it.
    pub worst: String,
    /// Its value and the plain VM's: `591 Mbit/s of 3.4 Gbit/s`.
    pub figures: String,
    /// The part of that loss that a plain VM with a bounce buffer has too.
    pub bounce: Option<f64>,
    /// The verdict, a sentence without its full stop.
    pub says: String,
    /// Options that got most of a loss back.
    pub recovered: Vec<Recovered>,
    /// Every category.
    pub rows: Vec<Row>,
}

/// An option that got most of a loss back.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// The option.
    pub option: String,
    /// The category without it.
    pub category: String,
    /// The part of the loss that it got back.
    pub part: f64,
    /// The loss, as a part of the plain VM's value.
    pub loss: f64,
    /// How sure that is.
    pub certainty: Certainty,
    kind: VmKind,
}

struct Table<'a> {
    name: String,
    unit: &'a str,
    better: Better,
    values: BTreeMap<Category, Vec<f64>>,
    /// Categories as they were written first.
    names: BTreeMap<Category, &'a str>,
}

/// A value with its unit, thousands as a prefix of units that have them.
fn figure(value: f64, unit: &str) -> String {
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let takes = ["bit/s", "B/s", "1/s", "bps"].contains(&unit);
    let (value, prefix) = prefixes
        .into_iter()
        .find(|(least, _)| takes && value >= *least)
        .map_or((value, ""), |(least, prefix)| (value / least, prefix));
    let digits =
        if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 6) };
    let digits = usize::try_from(digits).unwrap_or(0);
    let number = format!("{value:.digits$}");
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        &number
    };
    match (unit, prefix) {
        ("", _) => number.to_owned(),
        ("1/s", "") => format!("{number}/s"),
        ("1/s", prefix) => format!("{number}{prefix}/s"),
        _ => format!("{number} {prefix}{unit}"),
    }
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

    fn figure(&self, value: f64) -> String {
        figure(value, self.unit)
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
pub(super) fn workloads(samples: &[Sample]) -> Vec<Workload> {
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
    let mut workloads: Vec<Workload> = tables.values().filter(several).map(workload).collect();
    workloads.sort_by(|a, b| b.loss.total_cmp(&a.loss));
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
    let mut says = match losing.first() {
        None if rows.iter().any(|(row, _)| row.plain.is_some()) => {
            format!("{}: no kind of VM loses 5 % and more", table.name)
        }
        None => best_option(table, &rows),
        Some((loss, row, _, plain)) => format!(
            "{}: {} loses {} of {} ({} of {}{})",
            table.name,
            row.category,
            percent(*loss),
            row.plain.as_ref().map(|(name, ..)| name.as_str()).unwrap_or_default(),
            table.figure(row.value),
            table.figure(*plain),
            runs(row.runs)
        ),
    };
    let mut share_of_bounce = None;
    let recovered: Vec<Recovered> = losing
        .iter()
        .flat_map(|(loss, row, category, plain)| recover(table, row, category, (*loss, *plain)))
        .collect();
    if let Some((_, worst, category, plain)) = losing.first() {
        for one in recovered.iter().filter(|one| one.category == worst.category) {
            says += &format!("; {} gets back {} of it", one.option, part(one.part));
        }
        // Options tried in other categories are listed if none was tried for the worst.
        if let Some(one) = recovered.first().filter(|one| one.category != worst.category) {
            says += &format!(
                "; of what {} loses, {} gets back {}",
                one.category,
                one.option,
                part(one.part)
            );
        }
        share_of_bounce = bounce(table, category, worst.value, *plain);
        if let Some(share) = share_of_bounce {
            let verdict = if share >= MOST { "explains most of it" } else { "does not explain it" };
            says += &format!("; the bounce buffer alone {verdict} ({})", percent(share));
        }
    }
    let figures = losing.first().map_or_else(String::new, |(_, row, _, plain)| {
        format!("{} of {}", table.figure(row.value), table.figure(*plain))
    });
    Workload {
        name: table.name.clone(),
        unit: table.unit.to_owned(),
        loss: losing.first().map_or(0.0, |(loss, ..)| *loss),
        worst: losing.first().map_or_else(String::new, |(_, row, ..)| row.category.clone()),
        figures,
        bounce: share_of_bounce,
        says,
        recovered,
        rows: rows.into_iter().map(|(row, _)| row).collect(),
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

/// A part of a loss; more than all of it is called so.
fn part(part: f64) -> String {
    if part > 1.0 { "all".to_owned() } else { percent(part) }
}

/// The part of a loss that a plain VM with a bounce buffer has too.
fn bounce(table: &Table<'_>, category: &Category, value: f64, plain: f64) -> Option<f64> {
    let kind = table.plain(category)?.kind.clone();
    let burdened = Category { kind, options: category.options.clone() }.with(BURDEN);
    let (alone, _) = table.at(&burdened)?;
    Some(((plain - alone) / (plain - value)).clamp(0.0, 1.0))
}

/// Without kinds to compare: what an option does.
fn best_option(table: &Table<'_>, rows: &[(Row, &Category)]) -> String {
    let changes = rows.iter().filter_map(|(row, _)| {
        let (name, there, loss) = row.baseline.as_ref()?;
        Some((
            loss.abs(),
            format!(
                "{} {} {} of {name} ({} of {})",
                row.category,
                if *loss > 0.0 { "loses" } else { "gains" },
                percent(loss.abs()),
                table.figure(row.value),
                table.figure(*there)
            ),
        ))
    });
    match changes.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((change, says)) if change >= LOSS => format!("{}: {says}", table.name),
        _ => format!("{}: no category differs by 5 % and more from its baseline", table.name),
    }
}

fn runs(n: usize) -> String {
    match n {
        1 => ", one run each".to_owned(),
        n if n < ENOUGH => format!(", medians of {n}"),
        _ => String::new(),
    }
}

/// The step, where there are results.
pub(super) fn step(workloads: &[Workload]) -> Option<Step> {
    let worst = workloads.first()?;
    let loses = worst.loss >= LOSS;
    let thin = workloads.iter().flat_map(|w| &w.rows).any(|row| row.runs < ENOUGH);
    Some(Step {
        id: "results",
        question: "Which setup changes the results?",
        answer: if loses { Answer::Yes } else { Answer::No },
        says: worst.says.clone(),
        evidence: workloads.iter().map(|workload| workload.says.clone()).collect(),
        next: thin.then_some("each setup at least five times: one run has no spread"),
        misses_more: false,
    })
}

/// The verdict: a sentence for each of a few workloads, else how many lose and the worst.
pub(super) fn verdict(workloads: &[Workload]) -> Verdict {
    let says: Vec<&str> =
        workloads.iter().take(SENTENCES).map(|workload| workload.says.as_str()).collect();
    if workloads.len() <= SENTENCES {
        return Verdict { id: "results", says: says.join(". ") };
    }
    let lose = workloads.iter().filter(|workload| workload.loss >= LOSS).count();
    let says = match lose {
        0 => format!("no kind of VM loses 5 % and more in any of {} workloads", workloads.len()),
        _ => format!(
            "{lose} of {} workloads lose 5 % and more. Worst: {}",
            workloads.len(),
            // The rest is in the table.
            says.first().and_then(|says| says.split("; ").next()).unwrap_or_default()
        ),
    };
    Verdict { id: "results", says }
}

/// Why results alone allow no comparison.
pub(super) fn nothing_to_compare(samples: &[Sample]) -> Option<String> {
    let kinds: BTreeSet<&str> = samples.iter().map(|sample| &*sample.category).collect();
    let known = kinds.iter().any(|kind| is_category(kind));
    let named: Vec<&str> = kinds.iter().take(3).copied().collect();
    match (samples.is_empty(), known) {
        (true, _) => None,
        (_, true) => Some(format!(
            "no workload has results of two kinds of VM in one unit ({}): add those of the plain VM",
            named.join(", ")
        )),
        (_, false) => Some(format!(
            "no category names a kind of VM ({}): use plain, snp, tdx, and options as plain+vhost",
            named.join(", ")
        )),
    }
}

/// What got losses back, as findings.
pub(super) fn findings(workloads: &[Workload], context: &Context) -> Vec<Finding> {
    let mut found: BTreeMap<&'static str, Finding> = BTreeMap::new();
    for workload in workloads {
        for one in &workload.recovered {
            let Some((_, remedy)) = OPTIONS.iter().find(|(name, _)| *name == one.option) else {
                continue;
            };
            let finding = found.entry(remedy).or_insert_with(|| {
                let mut finding = Finding::new(
                    "results",
                    format!("{} recovers losses in the categories that have it", one.option),
                    one.certainty,
                );
                finding.advise(&[remedy], &Context { kind: one.kind, ..*context });
                finding.disproof = "with five runs of each the values overlap";
                finding.next = "each setup at least five times";
                finding
            });
            finding.certainty = finding.certainty.max(one.certainty);
            finding.weight = finding.weight.max(one.loss * one.part.min(1.0));
            finding.evidence.push(format!(
                "{}: {} of the loss of {} ({})",
                workload.name,
                part(one.part),
                one.category,
                percent(one.loss)
            ));
        }
    }
    for (option, remedy) in OPTIONS {
        let Some(finding) = found.get_mut(remedy) else { continue };
        let Some((loss, says)) = harm(workloads, option) else { continue };
        finding.evidence.push(says);
        if loss >= finding.weight {
            finding.remedies.clear();
            finding
                .refused
                .push((remedy, "it costs more in one workload than it recovers in another"));
        }
    }
    found.into_values().collect()
}

/// What an option costs most: the loss against the category without it, from 5 % on, and where.
fn harm(workloads: &[Workload], option: &str) -> Option<(f64, String)> {
    let worse = |workload: &Workload| {
        let rows = workload.rows.iter().filter(|row| has_option(&row.category, option));
        let lost = rows.filter_map(|row| {
            let (baseline, _, loss) = row.baseline.as_ref()?;
            (*loss >= LOSS && !has_option(baseline, option)).then_some((*loss, row))
        });
        let (loss, row) = lost.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((loss, format!("{} ({} loses {})", workload.name, row.category, percent(loss))))
    };
    let mut all: Vec<(f64, String)> = workloads.iter().filter_map(worse).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (loss, first) = all.first()?;
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    Some((*loss, format!("but it costs: {first}{more}")))
}
