//! Figures below titles -> samples: which of their titles, labels and parts are set-ups.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::Sample;

use super::blocks::PostedLine;
use super::setup::remainder;
use super::value::known;
use super::{is_unmeasured, kind_of, sample};

/// Figures below titles: set-ups are the titles, if lines of one label are below several, or labels with repetitions.
pub(super) fn of_lines(lines: &[PostedLine]) -> Vec<Sample> {
    let mut titles: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in lines {
        titles.entry(&line.label).or_default().insert(&line.title);
    }
    let grouped = of_setups(lines);
    let of_group: BTreeSet<&str> = grouped.iter().map(|one| one.category.as_str()).collect();
    let is_single = |line: &&PostedLine| !line.repeats && !of_group.contains(line.label.as_str());
    let is_titled = |line: &&PostedLine| titles[line.label.as_str()].len() > 1;
    let titled = lines
        .iter()
        .filter(is_single)
        .filter(is_titled)
        .map(|line| (line.title.clone(), (line.label.as_str(), ""), line));
    let rows = with_heads(lines);
    let repeated = rows
        .iter()
        .filter(|(_, head)| head.is_none())
        .map(|(line, _)| (line.label.clone(), (line.title.as_str(), ""), *line));
    let columns = rows.iter().flat_map(|(line, head)| {
        let columns = head
            .iter()
            .flat_map(|head| head.values.iter().map(|column| format!("{} {column}", head.label)));
        let of = |(column, number): (String, &f64)| {
            sample(&line.label, (&line.title, &column), (&line.unit, *number))
        };
        columns.zip(&line.values).map(of).collect::<Vec<_>>()
    });
    // Under one title, in several parts of the post: what stands above each part tells them apart.
    let mut parts: BTreeMap<&str, BTreeMap<usize, &str>> = BTreeMap::new();
    for line in lines {
        parts.entry(&line.label).or_default().entry(line.part).or_insert(&line.heading);
    }
    let parted =
        lines.iter().filter(is_single).filter(|line| !is_titled(line)).filter_map(|line| {
            let parts = &parts[line.label.as_str()];
            let headings: BTreeSet<&str> = parts.values().copied().collect();
            let name = match headings.len() == parts.len() && !line.heading.is_empty() {
                true => line.heading.clone(),
                false => format!("part {}", line.part),
            };
            (parts.len() > 1).then_some((name, (line.label.as_str(), ""), line))
        });
    let samples = titled.chain(repeated).chain(parted).flat_map(|(setup, names, line)| {
        let values = line.values.iter();
        values.map(|number| sample(&setup, names, (&line.unit, *number))).collect::<Vec<_>>()
    });
    samples.chain(columns).chain(grouped.iter().cloned()).collect()
}

/// What a benchmark is repeated with more of.
pub(super) const SIZES: [&str; 13] = [
    "qd",
    "iodepth",
    "depth",
    "thread",
    "job",
    "numjob",
    "vcpu",
    "cpu",
    "client",
    "connection",
    "stream",
    "queue",
    "size",
];

/// Lines of several numbers: repetitions, or a table's rows below the line that has what each column was measured with (`qd 1 4 16 64`).
fn with_heads(lines: &[PostedLine]) -> Vec<(&PostedLine, Option<&PostedLine>)> {
    let mut rows = Vec::new();
    let mut head: Option<&PostedLine> = None;
    for line in lines.iter().filter(|line| line.repeats) {
        let label = line.label.to_lowercase();
        if SIZES.contains(&label.trim_end_matches('s'))
            && line.values.windows(2).all(|pair| pair[0] < pair[1])
        {
            head = Some(line);
            continue;
        }
        head = head.filter(|head| head.title == line.title);
        rows.push((line, head.filter(|head| head.values.len() == line.values.len())));
    }
    rows
}

/// How files are accessed, by fio's engines and QEMU's aio=: set-ups where they stand before a dash.
const ENGINES: [&str; 8] =
    ["mmap", "sync", "psync", "libaio", "io_uring", "posixaio", "threads", "native"];

/// What stands behind a dash and such a set-up: `mmap - read`.
fn behind_dash(label: &str) -> Option<String> {
    let (setup, thing) = label.split_once(" - ")?;
    ENGINES.contains(&setup.to_lowercase().as_str()).then(|| thing.trim().to_lowercase())
}

/// Lines of one thing in several set-ups, which their labels name: `with vhost: 9.4 Gbit/s`, `without: 3.1 Gbit/s`.
fn of_setups(lines: &[PostedLine]) -> Vec<Sample> {
    type Measured<'a> = (&'a str, usize, String, String);
    let mut groups: BTreeMap<Measured<'_>, Vec<&PostedLine>> = BTreeMap::new();
    for line in lines.iter().filter(|line| !line.repeats) {
        if let Some(thing) = remainder(&line.label).or_else(|| behind_dash(&line.label)) {
            if is_unmeasured(&line.title) || is_unmeasured(&line.label) {
                continue;
            }
            let key = (line.title.as_str(), line.part, thing, kind_of(&line.unit).to_owned());
            groups.entry(key).or_default().push(line);
        }
    }
    // Under one title may be several things.
    let mut things: BTreeMap<(&str, usize), BTreeSet<String>> = BTreeMap::new();
    for (title, part, thing, _) in groups.keys() {
        things.entry((*title, *part)).or_default().insert(thing.clone());
    }
    let mut samples = Vec::new();
    for ((title, part, thing, kind), lines) in groups {
        let labels: BTreeSet<&str> = lines.iter().map(|line| line.label.as_str()).collect();
        if labels.len() < 2 {
            continue;
        }
        let name = match (title, thing.as_str()) {
            ("", "") => match lines.iter().find_map(|line| known(&line.unit)) {
                None => "figures",
                Some(_) => kind.as_str(),
            },
            ("", thing) => thing,
            (title, _) => title,
        };
        let is_one = title.is_empty() || things[&(title, part)].len() == 1;
        let metric = if is_one { "" } else { thing.as_str() };
        for line in lines {
            samples.extend(
                line.values
                    .iter()
                    .map(|number| sample(&line.label, (name, metric), (&line.unit, *number))),
            );
        }
    }
    samples
}
