//! redis-benchmark and memtier_benchmark: operations per second and latencies.

use serde_json::Value;

use super::text::{brief, number};
use super::{Output, Reading, Refusal, sane, unit};

/// Columns of `redis-benchmark --csv` and their metrics; older versions have only the first two and no header.
const COLUMNS: [(&str, &str); 5] = [
    ("avg_latency_ms", "latency"),
    ("p50_latency_ms", "latency-p50"),
    ("p95_latency_ms", "latency-p95"),
    ("p99_latency_ms", "latency-p99"),
    ("max_latency_ms", "latency-max"),
];

/// All that redis-benchmark says.
pub fn parse(output: &Output<'_>) -> Result<Vec<Reading>, Refusal> {
    let mut lines = output.stdout.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let first = lines.peek().ok_or_else(|| Refusal::missing("every line"))?;
    if let Some(line) =
        output.stdout.lines().find(|line| line.starts_with("Error") || line.contains("ERR "))
    {
        return Err(Refusal::Failed(brief(line)));
    }
    let head: Vec<String> = if first.starts_with("\"test\"") {
        lines.next().map(cells).unwrap_or_default()
    } else {
        vec!["test".to_owned(), "rps".to_owned()]
    };
    let mut readings = Vec::new();
    for line in lines {
        let row = cells(line);
        let cell = |column: &str| {
            let at = head.iter().position(|name| name == column)?;
            row.get(at).map(String::as_str)
        };
        let test = cell("test").map(str::to_lowercase).filter(|test| !test.is_empty());
        let test = test.ok_or_else(|| Refusal::missing("test"))?;
        let test = test.split([' ', '(']).next().unwrap_or_default().to_owned();
        let rps = cell("rps").ok_or_else(|| Refusal::missing(format!("rps of {test}")))?;
        readings.push(Reading::higher(
            format!("{test}-rate"),
            unit::PER_SECOND,
            number("rps", rps)?,
        ));
        if row.len() != head.len() {
            return Err(Refusal::missing(format!("a column of {test}")));
        }
        for (column, metric) in COLUMNS {
            if let Some(ms) = cell(column) {
                let us = number(column, ms)? * 1e3;
                readings.push(Reading::lower(format!("{test}-{metric}"), unit::MICROSECONDS, us));
            }
        }
    }
    sane(readings)
}

fn cells(line: &str) -> Vec<String> {
    line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
}

/// memtier_benchmark with `--json-out-file /dev/stdout`, or its text.
pub fn memtier(output: &Output<'_>) -> Result<Vec<Reading>, Refusal> {
    match output.stdout.find("{\n").or_else(|| output.stdout.find('{')) {
        Some(start) => memtier_json(&output.stdout[start..]),
        None => memtier_text(output.stdout),
    }
}

fn memtier_json(text: &str) -> Result<Vec<Reading>, Refusal> {
    // Its own progress may follow the document on the same stream.
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let document = documents
        .next()
        .and_then(Result::ok)
        .ok_or_else(|| Refusal::missing("the end of the JSON"))?;
    let all = document.get("ALL STATS").ok_or_else(|| Refusal::missing("ALL STATS"))?;
    let mut readings = Vec::new();
    for (part, prefix) in [("Totals", ""), ("Sets", "set-"), ("Gets", "get-")] {
        let Some(part_of) = all.get(part) else {
            if part == "Totals" {
                return Err(Refusal::missing("Totals"));
            }
            continue;
        };
        let value = |field: &str| part_of.get(field).and_then(Value::as_f64);
        let rate = value("Ops/sec").ok_or_else(|| Refusal::missing(format!("{part}: Ops/sec")))?;
        if rate == 0.0 && part != "Totals" {
            continue;
        }
        readings.push(Reading::higher(format!("{prefix}rate"), unit::PER_SECOND, rate));
        let mean = value("Average Latency").or_else(|| value("Latency"));
        let percentiles = part_of.get("Percentile Latencies");
        let percentile = |name: &str| percentiles.and_then(|p| p.get(name)).and_then(Value::as_f64);
        let times = [
            ("latency", mean),
            ("latency-p50", percentile("p50.00")),
            ("latency-p99", percentile("p99.00")),
            ("latency-p99.9", percentile("p99.90")),
        ];
        for (metric, ms) in times {
            if let Some(ms) = ms {
                readings.push(Reading::lower(
                    format!("{prefix}{metric}"),
                    unit::MICROSECONDS,
                    ms * 1e3,
                ));
            }
        }
    }
    sane(readings)
}

fn memtier_text(text: &str) -> Result<Vec<Reading>, Refusal> {
    let table = text.split_once("ALL STATS").map(|(_, table)| table);
    let totals = Totals::of(table.ok_or_else(|| Refusal::missing("ALL STATS"))?)?;
    if totals.cells.len() != totals.columns.len() {
        return Err(Refusal::missing("a column of Totals"));
    }
    let mut readings = vec![totals.rate()?];
    let times = [
        ("Avg. Latency", "latency"),
        ("Latency", "latency"),
        ("p50 Latency", "latency-p50"),
        ("p99 Latency", "latency-p99"),
        ("p99.9 Latency", "latency-p99.9"),
    ];
    for (column, metric) in times {
        if let Some(ms) = totals.value(column) {
            readings.push(Reading::lower(metric, unit::MICROSECONDS, number(column, ms)? * 1e3));
        }
    }
    sane(readings)
}

/// The rate alone, of memtier_benchmark's text.
pub fn memtier_rate(text: &str) -> Result<Reading, Refusal> {
    Totals::of(text)?.rate()
}

/// Totals of the last table, as each of several runs has one: `Type Ops/sec Hits/sec Misses/sec Avg. Latency p50 Latency ... KB/sec`.
struct Totals<'a> {
    columns: Vec<String>,
    cells: Vec<&'a str>,
}

impl<'a> Totals<'a> {
    fn of(text: &'a str) -> Result<Totals<'a>, Refusal> {
        let is_head =
            |line: &&str| line.trim_start().starts_with("Type") && line.contains("Ops/sec");
        let head = text.lines().find(is_head);
        let columns = columns(head.ok_or_else(|| Refusal::missing("the head of the table"))?);
        let line = text.lines().rev().find(|line| line.trim_start().starts_with("Totals"));
        let line = line.ok_or_else(|| Refusal::missing("Totals"))?;
        Ok(Totals { columns, cells: line.split_whitespace().collect() })
    }

    /// The cell of a column; `---` is no value.
    fn value(&self, column: &str) -> Option<&'a str> {
        let at = self.columns.iter().position(|name| name == column)?;
        self.cells.get(at).copied().filter(|cell| *cell != "---")
    }

    fn rate(&self) -> Result<Reading, Refusal> {
        let rate = self.value("Ops/sec").ok_or_else(|| Refusal::missing("Ops/sec"))?;
        Ok(Reading::higher("rate", unit::PER_SECOND, number("Ops/sec", rate)?))
    }
}

/// `Avg. Latency` and `p50 Latency` are one column each.
fn columns(head: &str) -> Vec<String> {
    let mut columns: Vec<String> = Vec::new();
    for word in head.split_whitespace() {
        match columns.last_mut() {
            Some(last) if word == "Latency" && (last == "Avg." || last.starts_with('p')) => {
                last.push_str(" Latency")
            }
            _ => columns.push(word.to_owned()),
        }
    }
    columns
}
