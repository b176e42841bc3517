//! Results of benchmarks by set-up, as people post them: tables with a column or a row for each set-up, and figures below a title each.
//!
//! ```text
//! | vhost | IOMMU | TCP BW      |        Without patch:                 === write, MiB/s
//! |-------|-------|-------------|        boot: 0.092668 seconds             plain   999.6 982.2 977.4
//! | on    | on    | 0.68 MB/s   |        With patch:                        shared  455.9 451.0 436.5
//! | on    | off   | 518.94 MB/s |        boot: 0.064787 seconds
//! ```
//!
//! Only values whose unit is known are read, and a cell that holds more than one value is none. Left out: what the figures mean.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Better, Sample};

/// More lines than a post has.
const LINES: usize = 10_000;
/// More values than a post has.
const VALUES: usize = 10_000;
/// Longer titles and labels are sentences.
const LABEL: usize = 80;

/// Units, as they are written.
const UNITS: &[(&str, Better)] = &[
    ("ns", Better::Lower),
    ("us", Better::Lower),
    ("\u{b5}s", Better::Lower),
    ("\u{3bc}s", Better::Lower),
    ("usec", Better::Lower),
    ("ms", Better::Lower),
    ("msec", Better::Lower),
    ("s", Better::Lower),
    ("sec", Better::Lower),
    ("secs", Better::Lower),
    ("seconds", Better::Lower),
    ("cycles", Better::Lower),
    ("iops", Better::Higher),
    ("bit/s", Better::Higher),
    ("bits/sec", Better::Higher),
    ("kbit/s", Better::Higher),
    ("kbits/sec", Better::Higher),
    ("kbps", Better::Higher),
    ("mbit/s", Better::Higher),
    ("mbits/sec", Better::Higher),
    ("mb/s", Better::Higher),
    ("mbps", Better::Higher),
    ("gbit/s", Better::Higher),
    ("gbits/sec", Better::Higher),
    ("gb/s", Better::Higher),
    ("gbps", Better::Higher),
    ("b/s", Better::Higher),
    ("kb/s", Better::Higher),
    ("kib/s", Better::Higher),
    ("mib/s", Better::Higher),
    ("gib/s", Better::Higher),
    ("req/s", Better::Higher),
    ("requests/s", Better::Higher),
    ("requests/sec", Better::Higher),
    ("ops/s", Better::Higher),
    ("ops/sec", Better::Higher),
    ("tps", Better::Higher),
    ("qps", Better::Higher),
    ("fps", Better::Higher),
];

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

/// A value with its unit; without one it has that of its column or title.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    number: f64,
    unit: Option<String>,
}

struct PostedTable {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Values of a line below a title.
struct PostedLine {
    title: String,
    label: String,
    unit: String,
    values: Vec<f64>,
    /// They are repetitions, and the unit is the title's.
    repeats: bool,
}

/// The values of a post, with set-ups as categories; `None` if it compares none.
pub fn read(text: &str) -> Option<Vec<Sample>> {
    let (tables, lines) = blocks(text);
    let mut samples = of_lines(&lines);
    if !of_titled(&tables, &mut samples) {
        tables.iter().for_each(|table| of_table(table, &mut samples));
    }
    samples.retain(|one| one.value.is_finite());
    samples.truncate(VALUES);
    let mut setups: BTreeMap<(&str, &str, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in &samples {
        let key = (one.workload.as_str(), one.metric.as_str(), one.unit.as_str());
        setups.entry(key).or_default().insert(&one.category);
    }
    setups.values().any(|all| all.len() > 1).then_some(samples)
}

/// Tables, and lines with figures, each with the title above it.
fn blocks(text: &str) -> (Vec<PostedTable>, Vec<PostedLine>) {
    let (mut tables, mut lines): (Vec<PostedTable>, Vec<PostedLine>) = Default::default();
    let mut title = String::new();
    let mut in_table = false;
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
        if let Some((label, unit, values, repeats)) = figures(line, &title) {
            lines.push(PostedLine { title: title.clone(), label, unit, values, repeats });
        } else if let Some(found) = as_title(line) {
            title = found;
        }
    }
    (tables, lines)
}

/// Cells of a table's row.
fn cells(line: &str) -> Vec<String> {
    if !line.contains(['|', '\u{2502}']) {
        return Vec::new();
    }
    let line = line.trim_matches(['|', '\u{2502}']);
    line.split(['|', '\u{2502}']).map(plain).collect()
}

/// Without Markdown's marks.
fn plain(text: &str) -> String {
    text.replace(['*', '`'], "").trim().to_owned()
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
    if let Some((label, rest)) = line.split_once(':')
        && let Some(found) = value(rest).filter(|found| found.unit.is_some())
    {
        let label = as_label(label)?;
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

/// A label: short, and with a letter.
fn as_label(text: &str) -> Option<String> {
    let text = plain(text);
    let is_short = text.chars().count() <= LABEL;
    (is_short && text.chars().any(char::is_alphabetic)).then_some(text)
}

/// A line that may be a title: no command, no output of a program, no long sentence.
fn as_title(line: &str) -> Option<String> {
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
    let is_output =
        has_value || assigns || is_command || line.starts_with("time ") || line.starts_with("```");
    let text = line.trim_matches(['#', '=', ' ', ':', '-']).split("<-").next()?.trim();
    as_label(text).filter(|_| !is_output).map(|text| text.trim_end_matches(':').to_owned())
}

/// Bare digits, with a point or with groups of three: `40,074`, `0.092668`.
fn digits(text: &str) -> Option<f64> {
    let groups: Vec<&str> = text.split(',').collect();
    let is_grouped = match groups.as_slice() {
        [_] => true,
        [first, rest @ ..] => {
            let last = rest.len() - 1;
            (1..=3).contains(&first.len())
                && rest.iter().enumerate().all(|(at, group)| match at == last {
                    true => group.split('.').next().is_some_and(|whole| whole.len() == 3),
                    false => group.len() == 3,
                })
        }
        [] => false,
    };
    let bare = text.replace(',', "");
    let is_number = bare.starts_with(|c: char| c.is_ascii_digit())
        && bare.chars().all(|c| c.is_ascii_digit() || c == '.');
    (is_grouped && is_number).then(|| bare.parse().ok())?
}

/// A number, with k, M or G for thousands.
fn number(word: &str) -> Option<f64> {
    let factor = match word.chars().last()? {
        'k' | 'K' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        _ => return digits(word),
    };
    Some(digits(&word[..word.len() - 1])? * factor)
}

/// A cell with one value: `~175 MB/s`, `**297.7 ms**`, `253k (??)`, `4488ms`, `43.1MiB/s`.
fn value(cell: &str) -> Option<Value> {
    let cell = plain(cell);
    let cell = cell.trim_start_matches(['~', '\u{2248}', ' ']);
    let cell = match cell.split_once('(') {
        Some((before, inside)) if inside.ends_with(')') => before.trim(),
        Some(_) => return None,
        None => cell,
    };
    let cell = cell.split('\u{b1}').next()?.trim();
    if let Some(number) = number(cell) {
        return Some(Value { number, unit: None });
    }
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')?;
    let (digit, rest) = cell.split_at(end);
    let unit = |rest: &str| known(rest.trim()).map(|_| rest.trim().to_owned());
    let (factor, unit) = match unit(rest) {
        Some(unit) => (1.0, unit),
        // 12.9k IOPS.
        None => (number(&format!("1{}", rest.get(..1)?))?, unit(rest.get(1..)?)?),
    };
    Some(Value { number: digits(digit)? * factor, unit: Some(unit) })
}

/// Which values of a unit are good, if it is one.
fn known(unit: &str) -> Option<Better> {
    let unit = unit.to_lowercase();
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, better)| *better)
}

/// The unit that a head or a title names.
fn unit_in(text: &str) -> Option<String> {
    let is_mark = |c: char| c.is_whitespace() || ",()[].-_".contains(c);
    let is_enclosed =
        |word: &str| text.contains(&format!("({word})")) || text.contains(&format!("[{word}]"));
    let mut words = text.split(is_mark).filter_map(|word| {
        // Milliseconds of a file: ms/file.
        let is_time =
            |(time, _): &(&str, &str)| known(time).is_some_and(|better| better == Better::Lower);
        match known(word) {
            Some(_) => Some(word),
            None => word.split_once('/').filter(is_time).map(|(time, _)| time),
        }
    });
    // A single letter may be anything.
    words.find(|word| word.len() > 1 || is_enclosed(word)).map(str::to_owned)
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
    let is_titled = |line: &&PostedLine| !line.repeats && titles[line.label.as_str()].len() > 1;
    let titled =
        lines.iter().filter(is_titled).map(|line| (&line.title, (line.label.as_str(), ""), line));
    let repeated = lines
        .iter()
        .filter(|line| line.repeats)
        .map(|line| (&line.label, (line.title.as_str(), ""), line));
    titled
        .chain(repeated)
        .flat_map(|(setup, names, line)| {
            line.values.iter().map(move |number| sample(setup, names, (&line.unit, *number)))
        })
        .collect()
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
            if has_unit && 2 * values.len() >= cells.len() && !values.is_empty() {
                columns.push((at, unit));
            }
        }
        columns
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
                let Some(unit) = found.unit.or_else(|| unit.clone()) else { continue };
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
    let heads: BTreeSet<&str> = values.iter().map(|(_, head, ..)| *head).collect();
    let is_one_unit = |head: &str| {
        let units: BTreeSet<&str> =
            values.iter().filter(|one| one.1 == head).map(|one| one.2.as_str()).collect();
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
            sample(label, (&table.title, head), (unit, *number))
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
