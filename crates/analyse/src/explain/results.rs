//! What results of benchmarks say of set-ups: how much a kind of VM loses, what gets it back, and what does not.
//!
//! A category is written as the kind of VM and its options: `VM`, `VM+swiotlb`, `SNP+vhost+poll`. Two categories that
//! differ in one thing say what that thing does:
//!
//! ```text
//!  loss       VM+OPTIONS                  ->  SNP+OPTIONS
//!  recovered  SNP+OPTIONS                 ->  SNP+OPTIONS+poll       as a part of the loss
//!  alone      VM+OPTIONS                  ->  VM+OPTIONS+swiotlb     what SNP cannot do without, on a VM that can
//! ```

use std::collections::BTreeMap;

use vmtax_events::{Better, Sample};

use super::{Answer, Certainty, Step, percent};
use crate::predict;

/// Losses under this are not looked into.
const LOSS: f64 = 0.05;
/// Part of a loss that is called most of it.
const MOST: f64 = 0.5;
/// Repetitions of each from which on it is said that one is larger than the other when all of them are: with five and
/// five, the chance for that among equals is 2 in 252 (the exact rank-sum test; Wilcoxon, Biometrics Bulletin 1, 1945).
const ENOUGH: usize = 5;

/// Kinds of VM, the plain one first. Source: S2's categories.
const KINDS: [(&str, &str); 3] =
    [("VM", "a plain VM"), ("SNP", "an SEV-SNP guest"), ("TDX", "a TDX guest")];

/// The kind whose costs of an exit are published.
const SNP: usize = 1;

/// Options that may get a loss back.
const REMEDIES: [(&str, &str, &str); 3] = [
    (
        "poll",
        "the guest polls when it is idle",
        "in the guest: boot with idle=poll, where its CPUs are its own",
    ),
    (
        "haltpoll",
        "the guest polls before it halts",
        "in the guest: the cpuidle driver haltpoll (modprobe cpuidle_haltpoll)",
    ),
    (
        "hpoll",
        "the host polls before it puts a halted vCPU to sleep",
        "on the host: a larger kvm.halt_poll_ns",
    ),
];

/// Other names of options.
const ALIASES: [(&str, &str); 1] = [("idle=poll", "poll")];

/// What a confidential VM cannot do without and a plain one can be made to do.
const BURDENS: [(&str, &str); 1] = [("swiotlb", "the bounce buffer")];

/// Something to change, and what it gave where it was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// What was measured: workload and metric.
    pub what: String,
    /// Its unit.
    pub unit: String,
    /// The plain VM's value.
    pub plain: f64,
    /// Without the change, and with it.
    pub values: [f64; 2],
    /// The part of the loss that came back.
    pub share: f64,
}

/// A finding of results.
pub(super) struct Remedy {
    pub(super) id: &'static str,
    pub(super) means: String,
    pub(super) remedy: &'static str,
    pub(super) certainty: Certainty,
    pub(super) evidence: String,
    pub(super) recovered: Recovered,
}

/// Values of one category.
type Values = Vec<f64>;

/// A category, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Category {
    kind: usize,
    /// Sorted.
    options: Vec<String>,
}

impl Category {
    fn read(word: &str) -> Option<Category> {
        let mut parts = word.split('+').map(str::trim);
        let kind = parts.next()?;
        let kind = KINDS.iter().position(|(name, _)| *name == kind)?;
        let known = |word: &str| {
            ALIASES
                .iter()
                .find(|(other, _)| *other == word)
                .map_or(word, |(_, name)| *name)
                .to_owned()
        };
        let mut options: Vec<String> = parts.map(known).collect();
        options.sort();
        Some(Category { kind, options })
    }

    fn with(&self, option: &str) -> Category {
        let mut other = self.clone();
        other.options.push(option.to_owned());
        other.options.sort();
        other
    }

    fn of_kind(&self, kind: usize) -> Category {
        Category { kind, ..self.clone() }
    }

    fn name(&self) -> String {
        let options = self.options.iter().map(|option| format!("+{option}"));
        format!("{}{}", KINDS[self.kind].0, options.collect::<String>())
    }
}

/// A table of results: what was measured, and its values by category.
struct Results<'a> {
    workload: &'a str,
    metric: &'a str,
    unit: &'a str,
    better: Better,
    values: BTreeMap<Category, Values>,
}

fn tables(samples: &[Sample]) -> Vec<Results<'_>> {
    let mut tables: BTreeMap<(&str, &str, &str), Results<'_>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.better != Better::Neither) {
        let Some(category) = Category::read(&sample.category) else { continue };
        let (workload, metric, unit) = (&*sample.workload, &*sample.metric, &*sample.unit);
        let table = tables.entry((workload, metric, unit)).or_insert_with(|| Results {
            workload,
            metric,
            unit,
            better: sample.better,
            values: BTreeMap::new(),
        });
        table.values.entry(category).or_default().push(sample.value);
    }
    tables.into_values().collect()
}

fn median(values: &Values) -> f64 {
    let mut sorted = values.clone();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

impl Results<'_> {
    fn at(&self, category: &Category) -> Option<(f64, &Values)> {
        let values = self.values.get(category)?;
        Some((median(values), values))
    }

    /// How much worse `to` is than `from`, as a part of `from`.
    fn loss(&self, from: f64, to: f64) -> f64 {
        let worse = if self.better == Better::Higher { from - to } else { to - from };
        if from == 0.0 { 0.0 } else { worse / from.abs() }
    }

    fn name(&self) -> String {
        format!("{} {}", self.workload, self.metric)
    }
}

/// What the results say.
pub(super) struct Found {
    pub(super) step: Step,
    pub(super) remedies: Vec<Remedy>,
    /// The largest loss that something is known about; without one, what the step says.
    pub(super) conclusion: String,
}

/// A loss, and what is known about it.
struct Loss {
    share: f64,
    evidence: Vec<String>,
    says: Option<String>,
    remedies: Vec<Remedy>,
}

/// The step, and what to change; `None` where there are no results of categories.
pub(super) fn look(samples: &[Sample]) -> Option<Found> {
    let tables = tables(samples);
    let compared: Vec<Option<Loss>> = tables
        .iter()
        .flat_map(|table| table.values.keys().filter_map(|category| loss(table, category)))
        .collect();
    if compared.is_empty() {
        return None;
    }
    let mut losses: Vec<Loss> = compared.into_iter().flatten().collect();
    losses.sort_by(|a, b| b.share.total_cmp(&a.share));
    let mut evidence = Vec::new();
    let mut remedies = Vec::new();
    let mut told = Vec::new();
    for loss in losses {
        evidence.extend(loss.evidence);
        remedies.extend(loss.remedies);
        told.extend(loss.says);
    }
    let is_snp = |table: &Results<'_>| table.values.keys().any(|category| category.kind == SNP);
    if !remedies.is_empty() && tables.iter().any(is_snp) {
        let costs = predict::published_ratio();
        evidence.push(format!(
            "what an exit of an SEV-SNP guest costs of one of a plain VM, as published: {:.1} to {:.1} times; a vCPU that polls does not exit to wait",
            costs.0, costs.1
        ));
    }
    let (answer, says) = match (evidence.is_empty(), told.is_empty()) {
        (true, _) => (Answer::No, "no kind of VM loses 5 % and more".to_owned()),
        (false, true) => {
            (Answer::Unknown, "some lose, and nothing was tried that could say why".to_owned())
        }
        (false, false) => (Answer::Yes, told.join("; ")),
    };
    let next = remedies
        .iter()
        .any(|remedy| remedy.certainty == Certainty::Possible)
        .then_some("each set-up at least five times: one run has no spread, and says little");
    let conclusion = told.into_iter().next().unwrap_or_else(|| says.clone());
    let question = "Which set-up moves the benchmark?";
    let step = Step { id: "results", question, answer, says, evidence, next };
    Some(Found { step, remedies, conclusion })
}

/// What a kind of VM loses of the plain one: the outer `None` where there are not both, the inner one where it is little.
fn loss(table: &Results<'_>, category: &Category) -> Option<Option<Loss>> {
    let is_remedied =
        |(option, ..): &(&str, &str, &str)| category.options.iter().any(|o| o == option);
    if category.kind == 0 || REMEDIES.iter().any(is_remedied) {
        return None;
    }
    let plain = category.of_kind(0);
    let (here, values) = table.at(category)?;
    let (there, plain_values) = table.at(&plain)?;
    let share = table.loss(there, here);
    if share < LOSS {
        return Some(None);
    }
    let runs = runs(&[values, plain_values]);
    let mut evidence = vec![format!(
        "{}: {} loses {} of {}: {here} of {there} {}{runs}",
        table.name(),
        category.name(),
        percent(share),
        plain.name(),
        table.unit
    )];
    let mut helps = Vec::new();
    let remedies = tried(table, category, (there, here), &mut evidence, &mut helps);
    burdens(table, category, (there, here), &mut evidence, &mut helps);
    let says = (!helps.is_empty()).then(|| {
        let what = format!("{} loses {} at {}", category.name(), percent(share), table.name());
        format!("{what}{runs}: {}", helps.join(", "))
    });
    Some(Some(Loss { share, evidence, says, remedies }))
}

/// How many runs a number stands on, when they are few.
fn runs(values: &[&Values]) -> String {
    match values.iter().map(|values| values.len()).min() {
        Some(1) => " (one run each)".to_owned(),
        Some(n) if n < ENOUGH => format!(" (medians of {n})"),
        _ => String::new(),
    }
}

/// What the remedies that were tried got back.
fn tried(
    table: &Results<'_>,
    category: &Category,
    (plain, slow): (f64, f64),
    evidence: &mut Vec<String>,
    helps: &mut Vec<String>,
) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    for (option, means, remedy) in REMEDIES {
        let with = category.with(option);
        let (Some((value, with_values)), Some((_, values))) = (table.at(&with), table.at(category))
        else {
            continue;
        };
        let share = (value - slow) / (plain - slow);
        let back = if share > 0.0 {
            format!("{} of the loss comes back", percent(share))
        } else {
            "nothing of the loss comes back".to_owned()
        };
        let runs = runs(&[with_values, values]);
        let line =
            format!("{} with {option}: {value} {}: {back}{runs}", category.name(), table.unit);
        evidence.push(line.clone());
        if share < MOST {
            continue;
        }
        helps.push(format!("{option} gets back {} of it", percent(share)));
        remedies.push(Remedy {
            id: option,
            means: format!(
                "{} loses time when it waits, and less when {means}",
                KINDS[category.kind].1
            ),
            remedy,
            certainty: certainty(table, with_values, values),
            evidence: line,
            recovered: Recovered {
                what: table.name(),
                unit: table.unit.to_owned(),
                plain,
                values: [slow, value],
                share,
            },
        });
    }
    remedies
}

/// What a plain VM loses by what this one cannot do without.
fn burdens(
    table: &Results<'_>,
    category: &Category,
    (plain, slow): (f64, f64),
    evidence: &mut Vec<String>,
    helps: &mut Vec<String>,
) {
    for (option, name) in BURDENS {
        let burdened = category.of_kind(0).with(option);
        let Some((value, values)) = table.at(&burdened) else { continue };
        let share = (plain - value) / (plain - slow);
        evidence.push(format!(
            "{name} alone, {}: {value} {}: {} of the loss{}",
            burdened.name(),
            table.unit,
            percent(share.max(0.0)),
            runs(&[values])
        ));
        let verdict = if share >= MOST { "explains most of it" } else { "does not explain it" };
        helps.push(format!("{name} {verdict} ({})", percent(share.max(0.0))));
    }
}

/// How sure it is that one set of values is better than the other.
fn certainty(table: &Results<'_>, with: &Values, without: &Values) -> Certainty {
    let better = |a: f64, b: f64| if table.better == Better::Higher { a > b } else { a < b };
    let all = with.iter().all(|a| without.iter().all(|b| better(*a, *b)));
    if with.len() >= ENOUGH && without.len() >= ENOUGH && all {
        Certainty::Likely
    } else {
        Certainty::Possible
    }
}
