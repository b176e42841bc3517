//! Results of benchmarks by set-up, as people post them: tables with a column or a row for each set-up, and figures below a title each.
//!
//! ```text
//! | vhost | IOMMU | TCP BW      |        Without patch:                 === write, MiB/s
//! |-------|-------|-------------|        boot: 0.092668 seconds             plain   999.6 982.2 977.4
//! | on    | on    | 0.68 MB/s   |        With patch:                        shared  455.9 451.0 436.5
//! | on    | off   | 518.94 MB/s |        boot: 0.064787 seconds
//! ```
//!
//! Only values whose unit is known are read, and a cell that holds more than one value is none. What compares no values may state relative changes
//! (`+6.65%`, `1.03x`) or compare in sentences: these are read where there is nothing else. Left out: what the figures mean.

mod programs;
mod prose;
mod setup;
mod value;

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Better, Sample};

use self::setup::{is_setup_word, remainder};
use self::value::{Value, change, digits, known, number, plain, unit_in, value};

/// More lines than a post has.
const LINES: usize = 10_000;
/// More values than a post has.
const VALUES: usize = 10_000;
/// A shorter line of dashes is none under a title.
const UNDERLINE: usize = 4;
/// Longer titles and labels are sentences.
const LABEL: usize = 80;

/// Parts of words that name what was measured, and no set-up.
const METRICS: &[&str] = &[
    "read",
    "write",
    "iops",
    "latency",
    "bandwidth",
    "throughput",
    "time",
    "mean",
    "median",
    "average",
    "duration",
    "speed",
];
/// The same, as whole words.
const METRIC_WORDS: &[&str] = &[
    "metric", "lat", "bw", "avg", "min", "max", "p50", "p90", "p95", "p99", "run", "run1", "run2",
    "run3", "tx", "rx", "send", "recv", "value", "boot", "total", "stddev",
];
/// Cells of a column that says whether something is there.
const SWITCHES: &[&str] = &["on", "off", "yes", "no", "enabled", "disabled", "true", "false"];

struct PostedTable {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Values of a line below a title.
struct PostedLine {
    title: String,
    /// The part of the post, and what stands above it: each is between two fences.
    part: usize,
    heading: String,
    label: String,
    unit: String,
    values: Vec<f64>,
    /// They are repetitions, and the unit is the title's.
    repeats: bool,
}

/// The values of a post, with set-ups as categories; `None` if it compares none.
pub fn read(text: &str) -> Option<Vec<Sample>> {
    let Blocks { tables, lines, changes } = blocks(text);
    let mut samples = of_lines(&lines);
    if !of_titled(&tables, &mut samples) {
        tables.iter().for_each(|table| of_table(table, &mut samples));
    }
    let ends = |samples: &mut Vec<Sample>| {
        samples.retain(|one| one.value.is_finite() && !one.category.is_empty());
        samples.truncate(VALUES);
    };
    ends(&mut samples);
    if compares(&samples) {
        return Some(samples);
    }
    let mut samples = of_changes(&tables, &changes);
    ends(&mut samples);
    if samples.len() > 1 {
        return Some(samples);
    }
    let mut samples = prose::read(text);
    ends(&mut samples);
    (!samples.is_empty()).then_some(samples)
}

/// Whether something has values of several set-ups.
fn compares(samples: &[Sample]) -> bool {
    let mut setups: BTreeMap<(&str, &str, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in samples {
        let key = (one.workload.as_str(), one.metric.as_str(), kind_of(&one.unit));
        setups.entry(key).or_default().insert(&one.category);
    }
    setups.values().any(|all| all.len() > 1)
}

/// Units of one kind are converted: bits, bytes, times.
fn kind_of(unit: &str) -> &str {
    match unit {
        _ if unit.ends_with("its/sec") || unit.ends_with("bit/s") || unit.ends_with("bps") => {
            "bits"
        }
        _ if unit.ends_with("B/s") || unit.ends_with("B/sec") => "bytes",
        "ns" | "us" | "usec" | "ms" | "msec" | "s" | "sec" | "secs" | "second" | "seconds"
        | "min" | "minutes" => "time",
        other => other,
    }
}

/// What a post has.
#[derive(Default)]
struct Blocks {
    tables: Vec<PostedTable>,
    lines: Vec<PostedLine>,
    /// Title, label, and a relative change.
    changes: Vec<(String, String, f64)>,
}

/// Tables, and lines with figures, each with the title above it.
fn blocks(text: &str) -> Blocks {
    let Blocks { mut tables, mut lines, mut changes } = Blocks::default();
    let mut title = String::new();
    let (mut heading, mut part, mut is_fenced) = (String::new(), 0, false);
    let mut in_table = false;
    // The line before is a title that the next one may go on with.
    let mut is_begun = false;
    let mut previous = "";
    for line in text.lines().take(LINES) {
        let line = line.trim_start_matches(['>', ' ', '\t']).trim_end();
        let cells = cells(line);
        if cells.len() > 1 {
            let is_rule = cells.iter().all(|cell| cell.chars().all(|c| "-:=+ ".contains(c)));
            match tables.last_mut().filter(|_| in_table) {
                Some(_) if is_rule => {}
                Some(table) => {
                    // The corner of a head may be blank.
                    if table.rows.is_empty() && table.head.len() + 1 == cells.len() {
                        table.head.insert(0, String::new());
                    }
                    table.rows.push(cells);
                }
                None => {
                    tables.push(PostedTable { title: title.clone(), head: cells, rows: Vec::new() })
                }
            }
            in_table = true;
            continue;
        }
        in_table = false;
        let before = std::mem::replace(&mut previous, line);
        // A line under a title; what stands above may look like a program's output.
        if line.len() >= UNDERLINE
            && ['#', '=', '-', '~'].iter().any(|mark| line.chars().all(|c| c == *mark))
        {
            let found = as_label(before.trim_matches(['#', '=', ' ', ':', '-']));
            if let Some(found) =
                found.filter(|_| figures(before, "").is_none() && !before.starts_with('$'))
            {
                title = found;
            }
            is_begun = false;
            continue;
        }
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            part += usize::from(is_fenced);
            is_begun = false;
            continue;
        }
        if !is_fenced && line.chars().any(char::is_alphabetic) {
            heading = as_heading(line);
        }
        if let Some((before, after)) = two_values(line) {
            for (title, value) in [("before", before.1), ("after", after)] {
                lines.push(PostedLine {
                    title: title.to_owned(),
                    part,
                    heading: heading.clone(),
                    label: before.0.clone(),
                    unit: value.unit.unwrap_or_default(),
                    values: vec![value.number],
                    repeats: false,
                });
            }
        } else if let Some((label, unit, values, repeats)) = figures(line, &title) {
            let (title, heading) = (title.clone(), heading.clone());
            lines.push(PostedLine { title, part, heading, label, unit, values, repeats });
        } else if let Some((label, change)) = change_of(line) {
            changes.push((title.clone(), label, change));
        } else if let Some(found) = as_title(line) {
            let goes_on = is_begun && found.starts_with(char::is_lowercase);
            title = if goes_on { format!("{title} {found}") } else { found };
            is_begun = line.len() > LABEL / 2 && !line.ends_with(['.', ':']);
            continue;
        }
        is_begun = false;
    }
    Blocks { tables, lines, changes }
}

/// What stands above a fence: the beginning of its last sentence.
fn as_heading(line: &str) -> String {
    let last = line.trim_end_matches(['.', ' ']).rsplit(". ").next().unwrap_or(line);
    plain(last.trim_matches(['#', '=', ' ', ':', '-'])).chars().take(LABEL).collect()
}

/// `boot: 1.2 s -> 0.9 s (-25 %)`: what was measured, before and after. One of the two has a unit.
fn two_values(line: &str) -> Option<((String, Value), Value)> {
    let (before, after) = ARROWS.iter().find_map(|arrow| line.split_once(arrow))?;
    let words: Vec<&str> = before.split_whitespace().collect();
    // The value may be of two words.
    let (label, mut before) = [2, 1].into_iter().find_map(|length| {
        let (label, words) = words.split_at(words.len().checked_sub(length)?);
        Some((label.join(" "), value(&words.join(" "))?))
    })?;
    let words: Vec<&str> = after.split_whitespace().take(2).collect();
    let trimmed = |text: &str| text.trim_end_matches([',', ';', '.']).to_owned();
    let mut after =
        [2, 1].into_iter().find_map(|length| value(&trimmed(&words.get(..length)?.join(" "))))?;
    before.unit = before.unit.or_else(|| after.unit.clone());
    after.unit = after.unit.or_else(|| before.unit.clone());
    let label = as_label(label.trim_end_matches([':', '=', ' ']))?;
    before.unit.is_some().then_some(((label, before), after))
}

/// Arrows between two values, or behind a label.
const ARROWS: [&str; 5] = ["-->", "->", "=>", "\u{2192}", "\u{21d2}"];

/// A line with a relative change: `2 VMs:  +6.65%`, `boot time  -12 %`.
fn change_of(line: &str) -> Option<(String, f64)> {
    if let Some((label, rest)) = line.rsplit_once(':')
        && let Some(found) = change(rest, false)
    {
        return Some((as_label(label)?, found));
    }
    let at = line.rfind(['+', '-', '\u{2212}']).filter(|at| line[..*at].ends_with([' ', '\t']))?;
    Some((as_label(&line[..at])?, change(&line[at..], false)?))
}

/// Relative changes, of tables and of lines below titles.
fn of_changes(tables: &[PostedTable], lines: &[(String, String, f64)]) -> Vec<Sample> {
    /// Words of a head or a title by which a share without a sign is a change.
    const RELATIVE: [&str; 14] = [
        "change",
        "diff",
        "delta",
        "improvement",
        "overhead",
        "slowdown",
        "speedup",
        "regression",
        "gain",
        "vs",
        "relative",
        "reduction",
        "loss",
        "penalty",
    ];
    let is_relative = |text: &str| {
        let text = text.to_lowercase();
        RELATIVE
            .iter()
            .any(|word| text.split(|c: char| !c.is_alphanumeric()).any(|one| one.starts_with(word)))
    };
    let mut samples = Vec::new();
    for table in tables {
        for at in 1..table.head.len() {
            let head = table.head[at].as_str();
            let bare = is_relative(head) || is_relative(&table.title);
            let found: Vec<(&Vec<String>, f64, &str)> = table
                .rows
                .iter()
                .filter_map(|row| {
                    let cell = row.get(at)?;
                    let factor = plain(cell);
                    let factor =
                        factor.trim_start_matches(['~', '\u{2248}']).strip_suffix(['x', '\u{d7}']);
                    change(cell, bare)
                        .map(|change| (row, change, "%"))
                        .or_else(|| Some((row, digits(factor?.trim()).filter(|_| bare)?, "times")))
                })
                .collect();
            if 2 * found.len() < table.rows.len() {
                continue;
            }
            let rows_are_metrics = table.rows.iter().any(|row| names_metric(&row[0]));
            samples.extend(found.into_iter().map(|(row, change, unit)| match rows_are_metrics {
                true => sample(head, (&row[0], ""), (unit, change)),
                false => sample(&row[0], (head, ""), (unit, change)),
            }));
        }
    }
    samples.extend(lines.iter().map(|(title, label, change)| {
        match names_metric(label) || title.is_empty() {
            true => {
                sample(if title.is_empty() { "change" } else { title }, (label, ""), ("%", *change))
            }
            false => sample(label, (title, ""), ("%", *change)),
        }
    }));
    samples
}

/// Cells of a table's row.
fn cells(line: &str) -> Vec<String> {
    if !line.contains(['|', '\u{2502}']) {
        return Vec::new();
    }
    let line = line.trim_matches(['|', '\u{2502}']);
    line.split(['|', '\u{2502}']).map(plain).collect()
}

/// The values of a line that has some: its label, their unit, and whether they are repetitions.
fn figures(line: &str, title: &str) -> Option<(String, String, Vec<f64>, bool)> {
    let single = |label: &str, value: Value| {
        Some((label.to_owned(), value.unit?, vec![value.number], false))
    };
    // fio's groups, and bash's time.
    for label in ["READ", "WRITE"] {
        if let Some(rest) = line.strip_prefix(label).and_then(|rest| rest.strip_prefix(": bw=")) {
            let end = rest.find([' ', ',']).unwrap_or(rest.len());
            return single(label, value(&rest[..end])?);
        }
    }
    if let Some(rest) = line.strip_prefix("real")
        && let Some((minutes, seconds)) = rest.trim().split_once('m')
        && let (Ok(minutes), Some(seconds)) = (minutes.parse::<f64>(), seconds.strip_suffix('s'))
    {
        // Some languages have a comma there.
        let number = 60.0 * minutes + seconds.replace(',', ".").parse::<f64>().ok()?;
        return single("real", Value { number, unit: Some("s".to_owned()) });
    }
    if let Some((label, found)) = programs::read(line) {
        // criterion's longer names are on the line before.
        let is_named = line.starts_with("time:") && !title.is_empty() && !title.contains(' ');
        return single(if is_named { title } else { &label }, found);
    }
    // Intel's Memory Latency Checker, of one node: `0   169.3`.
    if title.starts_with("Measuring idle latencies")
        && let [node, found] = line.split_whitespace().collect::<Vec<_>>()[..]
        && node.parse::<u8>().is_ok()
    {
        let unit = unit_in(title);
        return single("idle latency", Value { number: digits(found)?, unit });
    }
    // Behind a value stands what else the program says of it: `[ 300 IOPS]`, `< 24 us>`.
    let start = line.split(['[', '<']).next().unwrap_or(line).trim();
    if let Some((label, rest)) = start.rsplit_once(": ").or_else(|| start.split_once(':'))
        && let Some(found) = value(rest).filter(|found| found.unit.is_some())
    {
        let label = as_label(label)?;
        return single(&label, found);
    }
    // `LABEL --> 31.33   (93.8%)`, `LABEL  474.69 MB/s`.
    if let Some((label, rest)) = ARROWS.iter().find_map(|arrow| line.split_once(arrow))
        && let Some(found) = value(rest).filter(|found| found.unit.is_some() || is_named(label))
    {
        let unit = found.unit.unwrap_or_default();
        return Some((as_label(label)?, unit, vec![found.number], false));
    }
    if let Some((label, found)) = labelled(start) {
        return single(&label, found);
    }
    // Three values and more, whose unit the title has.
    let unit = unit_in(title)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let first = words.iter().position(|word| number(word).is_some())?;
    let values: Vec<f64> = words[first..].iter().map_while(|word| number(word)).collect();
    let label = as_label(&words[..first].join(" "))?;
    let is_row = values.len() > 2 && first + values.len() == words.len();
    is_row.then_some((label, unit, values, true))
}

/// A label that names a set-up.
fn is_named(label: &str) -> bool {
    label.split_whitespace().any(is_setup_word)
}

/// `AES-GCM-256-Go   197.24 MB/s    (selected)`: a label, a value and its unit, and nothing else.
fn labelled(line: &str) -> Option<(String, Value)> {
    /// More words are a sentence.
    const WORDS: usize = 6;
    let line = match line.split_once(" (") {
        Some((before, inside)) if inside.ends_with(')') && before.contains(' ') => before,
        _ => line,
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let (label, found) = [2, 1].into_iter().find_map(|length| {
        let (label, words) = words.split_at(words.len().checked_sub(length)?);
        let found = value(&words.join(" ")).filter(|found| found.unit.is_some())?;
        Some((label, found))
    })?;
    (label.len() <= WORDS).then(|| Some((as_label(&label.join(" "))?, found)))?
}

/// A label: short, and with a letter.
fn as_label(text: &str) -> Option<String> {
    let text = plain(text);
    let is_short = text.chars().count() <= LABEL;
    (is_short && text.chars().any(char::is_alphabetic)).then_some(text)
}

/// A line that may be a title: no command, no output of a program, no long sentence.
fn as_title(line: &str) -> Option<String> {
    // An item of a list, `2. 1000 instances`.
    let is_item = line.split_once(". ").is_some_and(|(number, rest)| {
        number.parse::<u8>().is_ok() && rest.starts_with(char::is_alphanumeric)
    });
    if is_item && line.len() <= LABEL / 2 {
        return Some(line.trim_end_matches(':').to_owned());
    }
    let has_value = line
        .split_whitespace()
        .next()
        .is_some_and(|word| value(word.trim_end_matches(',')).is_some());
    let assigns = line
        .match_indices('=')
        .any(|(at, _)| line[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    let is_command = ["$ ", "# ", " --", "./"]
        .iter()
        .any(|mark| line.trim_start_matches(['#', ' ']).contains(mark));
    // bash's user and sys.
    let is_time = |word: &str| {
        word.strip_suffix('s').and_then(|word| word.split_once('m')).is_some_and(
            |(minutes, seconds)| digits(minutes).is_some() && digits(seconds).is_some(),
        )
    };
    let has_value = has_value || line.split_whitespace().any(is_time);
    // A command may be told of: `make -j4   # host`.
    if is_command
        && let Some((_, comment)) = line.trim_start_matches(['#', ' ']).rsplit_once(" # ")
        && let Some(comment) = as_label(comment)
    {
        return Some(comment);
    }
    let is_output = has_value
        || assigns
        || is_command
        || ["time ", "```", "Numa node"].iter().any(|start| line.starts_with(start));
    let text = line.trim_matches(['#', '=', ' ', ':', '-']).split("<-").next()?.trim();
    as_label(text).filter(|_| !is_output).map(|text| text.trim_end_matches(':').to_owned())
}

fn names_metric(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    METRICS.iter().any(|part| text.contains(part)) || words.any(|word| METRIC_WORDS.contains(&word))
}

fn sample(setup: &str, (workload, metric): (&str, &str), (unit, number): (&str, f64)) -> Sample {
    Sample {
        workload: workload.to_owned(),
        category: setup.to_owned(),
        repeat: 0,
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        value: number,
        better: known(unit).unwrap_or(Better::Neither),
    }
}

/// Figures below titles: set-ups are the titles, if lines of one label are below several, or labels with repetitions.
fn of_lines(lines: &[PostedLine]) -> Vec<Sample> {
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
    let repeated = lines
        .iter()
        .filter(|line| line.repeats)
        .map(|line| (line.label.clone(), (line.title.as_str(), ""), line));
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
    samples.chain(grouped.iter().cloned()).collect()
}

/// Lines of one thing in several set-ups, which their labels name: `with vhost: 9.4 Gbit/s`, `without: 3.1 Gbit/s`.
fn of_setups(lines: &[PostedLine]) -> Vec<Sample> {
    type Measured<'a> = (&'a str, usize, String, String);
    let mut groups: BTreeMap<Measured<'_>, Vec<&PostedLine>> = BTreeMap::new();
    for line in lines.iter().filter(|line| !line.repeats) {
        if let Some(thing) = remainder(&line.label) {
            let key = (line.title.as_str(), line.part, thing, line.unit.to_lowercase());
            groups.entry(key).or_default().push(line);
        }
    }
    let mut samples = Vec::new();
    for ((title, _, thing, unit), lines) in groups {
        let labels: BTreeSet<&str> = lines.iter().map(|line| line.label.as_str()).collect();
        if labels.len() < 2 {
            continue;
        }
        let name = match (title, thing.as_str()) {
            ("", "") => match known(&unit) {
                None => "figures",
                Some(_) if kind_of(&unit) == "time" => "time",
                Some(_) => unit.as_str(),
            },
            ("", thing) => thing,
            (title, _) => title,
        };
        for line in lines {
            samples.extend(
                line.values
                    .iter()
                    .map(|number| sample(&line.label, (name, ""), (&line.unit, *number))),
            );
        }
    }
    samples
}

/// A table's columns that have values, with the units of their heads.
impl PostedTable {
    fn of_values(&self) -> Vec<(usize, Option<String>)> {
        let mut columns = Vec::new();
        for at in 1..self.head.len() {
            let cells: Vec<&String> = self.rows.iter().filter_map(|row| row.get(at)).collect();
            let values: Vec<Value> = cells.iter().filter_map(|cell| value(cell)).collect();
            let unit = unit_in(&self.head[at]);
            let has_unit = unit.is_some() || values.iter().any(|value| value.unit.is_some());
            if (has_unit || self.rows_are_named())
                && 2 * values.len() >= cells.len()
                && !values.is_empty()
            {
                columns.push((at, unit));
            }
        }
        columns
    }

    /// Each row is of a set-up by its name, and each column of a number: values may have no unit.
    fn rows_are_named(&self) -> bool {
        let is_number = |head: &String| number(head).is_some();
        self.rows.len() > 1
            && self.head.len() > 2
            && self.head[1..].iter().all(is_number)
            && self.rows.iter().all(|row| is_named(&row[0]))
    }

    /// What a row is of: its cells before the first column of values.
    fn label(&self, row: &[String], first: usize) -> String {
        let named = |at: usize| match self.head[at].is_empty() || first == 1 {
            true => row[at].clone(),
            false => format!("{} {}", self.head[at], row[at]),
        };
        (0..first.min(row.len())).map(named).collect::<Vec<_>>().join(", ")
    }

    /// The values: row, its label, the column's head, unit, number.
    fn values(&self) -> Vec<(String, &str, String, f64)> {
        let columns = self.of_values();
        let Some((first, _)) = columns.first() else { return Vec::new() };
        let mut all = Vec::new();
        for row in &self.rows {
            let label = self.label(row, *first);
            for (at, unit) in &columns {
                let Some(found) = row.get(*at).and_then(|cell| value(cell)) else { continue };
                let unit = found.unit.or_else(|| unit.clone());
                let Some(unit) = unit.or_else(|| self.rows_are_named().then(String::new)) else {
                    continue;
                };
                all.push((label.clone(), self.head[*at].as_str(), unit, found.number));
            }
        }
        all
    }

    /// The rows are of one job, whose name stands behind a dash and may be that of a metric: `24.05 - randread`, `Revert - randread`.
    fn is_of_one_job(&self) -> bool {
        let parts = |row: &Vec<String>| {
            row[0].split_once(" - ").map(|(setup, job)| (setup.to_owned(), job.to_owned()))
        };
        let Some(names) = self.rows.iter().map(parts).collect::<Option<Vec<_>>>() else {
            return false;
        };
        names.iter().all(|(setup, job)| *job == names[0].1 && !names_metric(setup))
    }

    fn has_switches(&self) -> bool {
        let first = self.of_values().first().map_or(0, |(at, _)| *at);
        let is_switch = |cell: &String| SWITCHES.contains(&cell.to_lowercase().as_str());
        (0..first).any(|at| self.rows.iter().filter_map(|row| row.get(at)).any(is_switch))
    }
}

/// A table's row, the head of its column, and a unit.
type Measured<'a> = (String, &'a str, String);

/// Tables of one head and of several titles: the titles are set-ups, if rows of one label are below several.
fn of_titled(tables: &[PostedTable], samples: &mut Vec<Sample>) -> bool {
    let mut found: BTreeMap<Measured<'_>, Vec<(&str, f64)>> = BTreeMap::new();
    for table in tables.iter().filter(|table| !table.has_switches()) {
        for (label, head, unit, number) in table.values() {
            let same =
                tables.iter().any(|other| other.title != table.title && other.head == table.head);
            if same {
                found.entry((label, head, unit)).or_default().push((&table.title, number));
            }
        }
    }
    found.retain(|_, values| values.iter().any(|(title, _)| *title != values[0].0));
    for ((label, head, unit), values) in &found {
        samples.extend(
            values.iter().map(|(title, number)| sample(title, (label, head), (unit, *number))),
        );
    }
    !found.is_empty()
}

/// A table: its rows are set-ups, or its columns, or both.
fn of_table(table: &PostedTable, samples: &mut Vec<Sample>) {
    let values = table.values();
    if table.rows_are_named() {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            let of_what = format!("{} {head}", table.head[0]);
            sample(label, (of_what.trim(), ""), (unit, *number))
        };
        samples.extend(values.iter().map(of));
        return;
    }
    let heads: BTreeSet<&str> = values.iter().map(|(_, head, ..)| *head).collect();
    let is_one_unit = |head: &str| {
        let units: BTreeSet<&str> =
            values.iter().filter(|one| one.1 == head).map(|one| kind_of(&one.2)).collect();
        units.len() == 1
    };
    let rows_differ = !heads.iter().all(|head| is_one_unit(head));
    let rows_are_metrics = rows_differ
        || names_metric(&table.head[0])
        || !table.is_of_one_job() && table.rows.iter().any(|row| names_metric(&row[0]));
    let columns_are_setups = heads.len() > 1 && !heads.iter().any(|head| names_metric(head));
    if columns_are_setups {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            sample(head, (label, ""), (unit, *number))
        };
        samples.extend(values.iter().map(of));
    }
    if !rows_are_metrics && (!columns_are_setups || table.has_switches()) {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            // `1.5 MB` alone says nothing.
            let is_bare = label.starts_with(|c: char| c.is_ascii_digit())
                && label.split_whitespace().count() <= 2
                && !table.head[0].is_empty();
            let named = if is_bare { format!("{} {label}", table.head[0]) } else { label.clone() };
            sample(&named, (&table.title, head), (unit, *number))
        };
        samples.extend(values.iter().map(of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set-ups with their values by what was measured.
    fn read_values(text: &str) -> Vec<String> {
        let samples = read(text).unwrap_or_default();
        let shown = |one: &Sample| {
            format!("{} {}: {} {} {}", one.workload, one.metric, one.category, one.value, one.unit)
        };
        samples.iter().map(shown).collect()
    }

    #[test]
    fn a_cell_has_one_value() {
        let of =
            |cell: &str| value(cell).map(|value| (value.number, value.unit.unwrap_or_default()));
        let is = |number: f64, unit: &str| Some((number, unit.to_owned()));
        assert_eq!(of("~175 MB/s"), is(175.0, "MB/s"));
        assert_eq!(of("**522,998 cycles**"), is(522_998.0, "cycles"));
        assert_eq!(of("253k (??)"), is(253_000.0, ""));
        assert_eq!(of("88.4k IOPS"), is(88_400.0, "IOPS"));
        assert_eq!(of("4488ms"), is(4488.0, "ms"));
        assert_eq!(of("43.1MiB/s"), is(43.1, "MiB/s"));
        for none in [
            "36,92",
            "48.5 / 49.5 ms",
            "19,095 B / 247 lines",
            "1.2.3",
            "",
            "-",
            ">210000",
            "8Gi",
            "on",
            "(",
            "1(2",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn rows_are_setups() {
        let text = "**Linux:**\n\n| vhost | IOMMU | TCP BW (64K) | Notes |\n|---|---|---|---|\n| on | off | **453.55 MB/s** | now |\n| on | on | 0.91 MB/s | ~500x |\n";
        assert_eq!(
            read_values(text),
            [
                "Linux TCP BW (64K): vhost on, IOMMU off 453.55 MB/s",
                "Linux TCP BW (64K): vhost on, IOMMU on 0.91 MB/s"
            ]
        );
    }

    #[test]
    fn rows_of_one_job_are_setups() {
        let head = "| Name | IOPS | Avg Latency (ms) |\n|--|--|--|\n";
        let two = "| 24.05 - 4k_randread | 12,025,425.08 | 422.46 |\n| Revert - 4k_randread | 14,827,449.27 | 344.49 |\n";
        let all = read_values(&format!("{head}{two}"));
        assert_eq!(all.len(), 4);
        assert_eq!(all[0], " IOPS: 24.05 - 4k_randread 12025425.08 IOPS");
        let jobs = "| 24.05 - 4k_randread | 1,200 | 4 |\n| 24.05 - 4k_randwrite | 1,400 | 3 |\n";
        assert_eq!(read_values(&format!("{head}{jobs}")), Vec::<String>::new());
        let times = "with settings (stimer)\nreal    1m49,131s\nwithout:\nreal    2m4,707s\n";
        assert_eq!(
            read_values(times),
            ["real : with settings (stimer) 109.131 s", "real : without 124.707 s"]
        );
    }

    #[test]
    fn columns_are_setups() {
        let text = "| Metric | Without vhost | With vhost |\n|--|--|--|\n| Throughput | ~175 MB/s | ~580 MB/s |\n| TCP timeouts | 25,480 | 0 |\n";
        let expected = ["Throughput : Without vhost 175 MB/s", "Throughput : With vhost 580 MB/s"];
        assert_eq!(read_values(text), expected);
    }

    /// As criterion, Intel's Memory Latency Checker and people have them; the names are made up.
    #[test]
    fn parts_and_times_of_several_units() {
        let criterion = "- Kernel A\n```\nvm/create\n        time:   [1.80 ms 1.90 ms 2.00 ms]\n```\n- Kernel B\n```\nvm/create\n        time:   [7.0 ms 8.0 ms 9.0 ms]\n```\n";
        assert_eq!(
            read_values(criterion),
            ["vm/create : Kernel A 1.9 ms", "vm/create : Kernel B 8 ms"]
        );
        let mlc = |part: &str, value: &str| {
            format!(
                "### {part}\n```\nMeasuring idle latencies for random access (in ns)...\n                Numa node\nNuma node            0\n       0         {value}\nALL Reads        :      70000.5\n```\n"
            )
        };
        assert_eq!(
            read_values(&format!("{}{}", mlc("Firmware A", "130.1"), mlc("Firmware B", "90.2"))),
            [
                "idle latency : Firmware A 130.1 ns",
                "ALL Reads : Firmware A 70000.5 MB/s",
                "idle latency : Firmware B 90.2 ns",
                "ALL Reads : Firmware B 70000.5 MB/s"
            ]
        );
        let table = "Disks | First boot | Second boot\n-- | -- | --\n1 | 50sec | 30sec\n16 | 1min20sec | 1m5s\n";
        assert_eq!(
            read_values(table),
            [
                " First boot: Disks 1 50 sec",
                " Second boot: Disks 1 30 sec",
                " First boot: Disks 16 80 s",
                " Second boot: Disks 16 65 s"
            ]
        );
        let threads = "|Threads|1|8|\n|---|-|-|\n| Host| 1485.33 | 1606.92 |\n| QEMU guest| 802.77 | 1574.90 |\n";
        assert_eq!(
            read_values(threads),
            [
                "Threads 1 : Host 1485.33 ",
                "Threads 8 : Host 1606.92 ",
                "Threads 1 : QEMU guest 802.77 ",
                "Threads 8 : QEMU guest 1574.9 "
            ]
        );
        let labels = "Timings:\n20G master:  92s\n20G master+reverts: 57s\n50G master: 526s\n50G master+reverts: 142s\n";
        assert_eq!(read_values(labels).len(), 4);
        for none in [
            "a | b | c\n- | - | -\nx | 1m | 2h3\ny | 1s2m | 4\n",
            "|n|1|2|\n|-|-|-|\n|x|3|4|\n|y|5|6|\n",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn titles_are_setups() {
        let tables = "Results using bus=virtio\n```\nsize | read-iops\n4KiB | 120,883\n```\nResults using default bus=sata\n```\nsize | read-iops\n4KiB | 20,632\n```\n";
        assert_eq!(
            read_values(tables),
            [
                "4KiB read-iops: Results using bus=virtio 120883 iops",
                "4KiB read-iops: Results using default bus=sata 20632 iops"
            ]
        );
        let times = "Emulated device:\n```\ntime cat x\n\nreal\t0m6.756s\nuser\t0m0.035s\n\nreal\t0m6.758s\n```\n\nVirtIO console\n```\ntime cat x\n\nreal\t1m0.421s\n```\n";
        assert_eq!(
            read_values(times),
            [
                "real : Emulated device 6.756 s",
                "real : Emulated device 6.758 s",
                "real : VirtIO console 60.421 s"
            ]
        );
        let fio = "9p (cache=none)\n-----\n\n   READ: bw=43.1MiB/s (45.2MB/s), io=\n3070MiB (3219MB), run=71260-71260msec\n\nvirtiofs\n---\n> READ: bw=211MiB/s (222MB/s)\n";
        assert_eq!(
            read_values(fio),
            ["READ : 9p (cache=none) 43.1 MiB/s", "READ : virtiofs 211 MiB/s"]
        );
    }

    #[test]
    fn labels_are_setups_of_repetitions() {
        let text = "=== 1000 files, mean ms/file\n    plain    0.56 0.54 0.58\n    virtiofs 0.41 0.40 0.42\n";
        let all = read_values(text);
        assert_eq!(all.len(), 6);
        assert_eq!(all[3], "1000 files, mean ms/file : virtiofs 0.41 ms");
    }

    #[test]
    fn a_title_with_a_line_under_it_may_look_like_output() {
        let text = "# VMM A queue_size=1024\n##########\n$ a --disk x\nREAD: bw=131MiB/s (137MB/s), io=7832MiB\n\n# VMM B queue_size=1024\n##########\nREAD: bw=67.3MiB/s (70.6MB/s), io=4000MiB\n";
        assert_eq!(
            read_values(text),
            ["READ : VMM A queue_size=1024 131 MiB/s", "READ : VMM B queue_size=1024 67.3 MiB/s"]
        );
    }

    /// A list of different things compares nothing.
    #[test]
    fn what_compares_nothing_is_not_read() {
        for text in [
            "",
            "total time: 3064 ms\ndowntime: 10 ms\nsetup: 6 ms\n",
            "| metric | value |\n|--|--|\n| boot time | 3 s |\n| load time | 5 s |\n",
            "a | b\n1 | 2\n",
            "||||\n|\n| | |\n",
            "real 0m1.0s\n",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
