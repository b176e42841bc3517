//! What results of benchmarks say of set-ups: each workload's verdict, the worst first, each category beside its baseline and
//! beside the plain VM with the same options.
//!
//! A category is a kind of VM and its options, in any spelling in use: `SNP+vhost`, `snp+vhost`, `plain+poll` (vmtax bench),
//! `amd-direct-medium-vhost-mq` (CVM_eval). Two categories that differ in one thing say what that thing does.

use std::collections::BTreeMap;

use vmtax_events::{Better, Sample};

use super::findings::Finding;
use super::{Answer, Certainty, Step, Verdict, percent};
use crate::remedy::{Context, VmKind};
use crate::samples;

/// Losses under this are not looked into.
const LOSS: f64 = 0.05;
/// Part of a loss that is called most of it.
const MOST: f64 = 0.5;
/// Repetitions of each from which on it is said that one is larger than the other when all of them are: with five and
/// five, the chance for that among equals is 2 in 252 (the exact rank-sum test; Wilcoxon, Biometrics Bulletin 1, 1945).
const ENOUGH: usize = 5;
/// Sentences of the verdict.
const SENTENCES: usize = 5;

/// Words for kinds of VM.
const KINDS: &[(&str, VmKind)] = &[
    ("vm", VmKind::Plain),
    ("plain", VmKind::Plain),
    ("normal", VmKind::Plain),
    ("amd", VmKind::Plain),
    ("intel", VmKind::Plain),
    ("snp", VmKind::Snp),
    ("sev-snp", VmKind::Snp),
    ("sev", VmKind::Sev),
    ("tdx", VmKind::Tdx),
    ("td", VmKind::Tdx),
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

/// Other spellings of options.
const ALIASES: &[(&str, &str)] = &[("idle=poll", "poll"), ("idlepoll", "poll")];

/// What a confidential VM cannot do without and a plain one can be made to do.
const BURDEN: &str = "swiotlb";

/// A category, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Category {
    kind: String,
    /// Sorted.
    options: Vec<String>,
}

fn kind_of(word: &str) -> Option<VmKind> {
    let word = word.to_ascii_lowercase();
    KINDS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
}

/// Whether a word names a kind of VM, and maybe its options: `SNP+vhost`, `amd-direct-medium`.
pub fn is_category(text: &str) -> bool {
    Category::read(text).is_some()
}

impl Category {
    fn read(text: &str) -> Option<Category> {
        let text = text.trim();
        // The kind itself may have a dash.
        let (kind, rest) = match text.split_once('+') {
            Some((kind, rest)) => (kind, rest),
            None if kind_of(text).is_some() => (text, ""),
            None => text.split_once('-').unwrap_or((text, "")),
        };
        let kind = kind.trim();
        kind_of(kind)?;
        let known = |word: &str| {
            let word = word.trim().to_ascii_lowercase();
            ALIASES
                .iter()
                .find(|(other, _)| *other == word)
                .map_or(word, |(_, name)| (*name).to_owned())
        };
        let mut options: Vec<String> =
            rest.split(['+', '-']).map(known).filter(|word| !word.is_empty()).collect();
        options.sort();
        options.dedup();
        Some(Category { kind: kind.to_owned(), options })
    }

    fn vm_kind(&self) -> VmKind {
        kind_of(&self.kind).unwrap_or(VmKind::Unknown)
    }

    fn with(&self, option: &str) -> Category {
        let mut other = self.clone();
        other.options.push(option.to_owned());
        other.options.sort();
        other
    }

    fn name(&self) -> String {
        let options = self.options.iter().map(|option| format!("+{option}"));
        format!("{}{}", self.kind, options.collect::<String>())
    }
}

/// What one category of a workload comes to.
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
    /// The verdict, a sentence without its full stop.
    pub says: String,
    /// Options that got most of a loss back: option, category, part of the loss, and how sure.
    pub recovered: Vec<(String, String, f64, Certainty)>,
    /// Every category.
    pub rows: Vec<Row>,
    kind: VmKind,
}

struct Table<'a> {
    name: String,
    unit: &'a str,
    better: Better,
    values: BTreeMap<Category, Vec<f64>>,
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
            other.vm_kind() == VmKind::Plain && other.options == category.options
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
            Some((other.name(), there, self.loss(there, value)))
        };
        Some(Row {
            category: category.name(),
            value,
            runs: values.len(),
            plain: beside(self.plain(category)),
            baseline: beside(self.baseline(category)),
        })
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

/// Every workload, worst first.
pub(super) fn workloads(samples: &[Sample]) -> Vec<Workload> {
    let mut tables: BTreeMap<(&str, &str, &str), Table<'_>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.better != Better::Neither) {
        let Some(category) = Category::read(&sample.category) else { continue };
        let (workload, metric, unit) = (&*sample.workload, &*sample.metric, &*sample.unit);
        let table = tables.entry((workload, metric, unit)).or_insert_with(|| Table {
            name: format!("{workload} {metric}"),
            unit,
            better: sample.better,
            values: BTreeMap::new(),
        });
        table.values.entry(category).or_default().push(sample.value);
    }
    let several = |table: &&Table<'_>| table.values.len() > 1;
    let mut workloads: Vec<Workload> = tables.values().filter(several).map(workload).collect();
    workloads.sort_by(|a, b| b.loss.total_cmp(&a.loss));
    workloads
}

fn workload(table: &Table<'_>) -> Workload {
    let rows: Vec<(Row, &Category)> =
        table.values.keys().filter_map(|c| Some((table.row(c)?, c))).collect();
    // What was tried to get a loss back is no set-up whose loss is to be explained.
    let is_tried = |category: &Category| {
        category.options.iter().any(|o| ["poll", "haltpoll", "hpoll"].contains(&o.as_str()))
    };
    let losing =
        rows.iter().filter(|(_, category)| !is_tried(category)).filter_map(|(row, category)| {
            let (_, plain, loss) = row.plain.as_ref()?;
            Some((*loss, row, *category, *plain))
        });
    let worst = losing.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(loss, ..)| *loss >= LOSS);
    let mut recovered = Vec::new();
    let mut says = match &worst {
        None if rows.iter().any(|(row, _)| row.plain.is_some()) => {
            format!("{}: no kind of VM loses 5 % and more", table.name)
        }
        None => best_option(table, &rows),
        Some((loss, row, _, plain)) => format!(
            "{}: {} loses {} of {} ({} of {plain} {}{})",
            table.name,
            row.category,
            percent(*loss),
            row.plain.as_ref().map(|(name, ..)| name.as_str()).unwrap_or_default(),
            row.value,
            table.unit,
            runs(row.runs)
        ),
    };
    if let Some((_, row, category, plain)) = &worst {
        for (option, _) in OPTIONS {
            let with = category.with(option);
            let (Some((value, values)), Some((_, without))) = (table.at(&with), table.at(category))
            else {
                continue;
            };
            let back = (value - row.value) / (plain - row.value);
            if back >= MOST {
                says += &format!("; {option} gets back {} of it", percent(back));
                let sure = table.certainty(values, without);
                recovered.push(((*option).to_owned(), category.name(), back, sure));
            }
        }
        let burdened = Category {
            kind: table.plain(category).map_or_else(String::new, |c| c.kind.clone()),
            options: category.options.clone(),
        }
        .with(BURDEN);
        if let Some((value, _)) = table.at(&burdened) {
            let share = ((plain - value) / (plain - row.value)).max(0.0);
            let verdict = if share >= MOST { "explains most of it" } else { "does not explain it" };
            says += &format!("; the bounce buffer alone {verdict} ({})", percent(share));
        }
    }
    let (loss, name, kind) =
        worst.as_ref().map_or((0.0, String::new(), VmKind::Unknown), |(loss, row, category, _)| {
            (*loss, row.category.clone(), category.vm_kind())
        });
    Workload {
        name: table.name.clone(),
        unit: table.unit.to_owned(),
        loss,
        worst: name,
        says,
        recovered,
        rows: rows.into_iter().map(|(row, _)| row).collect(),
        kind,
    }
}

/// Without kinds to compare: what an option does.
fn best_option(table: &Table<'_>, rows: &[(Row, &Category)]) -> String {
    let changes = rows.iter().filter_map(|(row, _)| {
        let (name, there, loss) = row.baseline.as_ref()?;
        Some((
            loss.abs(),
            format!(
                "{} {} {} of {name} ({} of {there} {})",
                row.category,
                if *loss > 0.0 { "loses" } else { "gains" },
                percent(loss.abs()),
                row.value,
                table.unit
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
        question: "Which set-up moves the benchmark?",
        answer: if loses { Answer::Yes } else { Answer::No },
        says: worst.says.clone(),
        evidence: workloads.iter().map(|workload| workload.says.clone()).collect(),
        next: thin
            .then_some("each set-up at least five times: one run has no spread, and says little"),
        misses_more: false,
    })
}

/// The verdict: at most five sentences, worst first.
pub(super) fn verdict(workloads: &[Workload]) -> Verdict {
    let says: Vec<&str> =
        workloads.iter().take(SENTENCES).map(|workload| workload.says.as_str()).collect();
    Verdict { id: "results", says: says.join(". ") }
}

/// What got losses back, as findings.
pub(super) fn findings(workloads: &[Workload], context: &Context) -> Vec<Finding> {
    let mut found: BTreeMap<&'static str, Finding> = BTreeMap::new();
    for workload in workloads {
        for (option, category, back, sure) in &workload.recovered {
            let Some((_, remedy)) = OPTIONS.iter().find(|(name, _)| name == option) else {
                continue;
            };
            let finding = found.entry(remedy).or_insert_with(|| {
                let mut finding = Finding::new(
                    "results",
                    format!("{option} gets losses back where it was tried"),
                    *sure,
                );
                finding.advise(&[remedy], &Context { kind: workload.kind, ..*context });
                finding.disproof = "with five runs of each the values overlap";
                finding.next = "each set-up at least five times";
                finding
            });
            finding.certainty = finding.certainty.max(*sure);
            finding.weight = finding.weight.max(workload.loss * back.min(1.0));
            finding.evidence.push(format!(
                "{}: {} of the loss of {category}",
                workload.name,
                percent(*back)
            ));
        }
    }
    found.into_values().collect()
}
