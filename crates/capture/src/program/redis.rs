//! redis-benchmark and memtier_benchmark: operations per second and latencies.

use super::text::{brief, number};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// Columns of `redis-benchmark --csv` and their metrics; older versions have only the first two and no header.
const COLUMNS: [(&str, &str); 5] = [
    ("avg_latency_ms", "latency"),
    ("p50_latency_ms", "latency-p50"),
    ("p95_latency_ms", "latency-p95"),
    ("p99_latency_ms", "latency-p99"),
    ("max_latency_ms", "latency-max"),
];

/// All that redis-benchmark says.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let mut lines = output.stdout.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let first = lines.peek().ok_or_else(|| OutputRefusal::missing("every line"))?;
    if let Some(line) =
        output.stdout.lines().find(|line| line.starts_with("Error") || line.contains("ERR "))
    {
        return Err(OutputRefusal::Failed(brief(line)));
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
        let test = test.ok_or_else(|| OutputRefusal::missing("test"))?;
        let test = test.split([' ', '(']).next().unwrap_or_default().to_owned();
        let rps = cell("rps").ok_or_else(|| OutputRefusal::missing(format!("rps of {test}")))?;
        readings.push(ProgramReading::higher(
            format!("{test}-rate"),
            unit::PER_SECOND,
            number("rps", rps)?,
        ));
        if row.len() != head.len() {
            return Err(OutputRefusal::missing(format!("a column of {test}")));
        }
        for (column, metric) in COLUMNS {
            if let Some(ms) = cell(column) {
                let us = number(column, ms)? * 1e3;
                readings.push(ProgramReading::lower(
                    format!("{test}-{metric}"),
                    unit::MICROSECONDS,
                    us,
                ));
            }
        }
    }
    sane(readings)
}

fn cells(line: &str) -> Vec<String> {
    line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
}

/// memtier_benchmark's text. Its JSON is no JSON on a pipe, where it cannot go back over its last comma (JSON_handler.cpp,
/// `close_nesting`).
pub fn memtier(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    if !text.contains("ALL STATS") {
        return Err(OutputRefusal::missing("ALL STATS"));
    }
    let mut readings = Vec::new();
    for (row, prefix) in [("Totals", ""), ("Sets", "set-"), ("Gets", "get-")] {
        let found = match RedisStats::of(text, row) {
            Ok(found) => found,
            Err(_) if row != "Totals" => continue,
            Err(refusal) => return Err(refusal),
        };
        if found.cells.len() != found.columns.len() {
            return Err(OutputRefusal::missing(format!("a column of {row}")));
        }
        let rate = found.rate()?;
        if rate.value == 0.0 && row != "Totals" {
            continue;
        }
        readings.push(ProgramReading { metric: format!("{prefix}{}", rate.metric), ..rate });
        for (column, metric) in LATENCIES {
            if let Some(ms) = found.value(column) {
                let us = number(column, ms)? * 1e3;
                readings.push(ProgramReading::lower(
                    format!("{prefix}{metric}"),
                    unit::MICROSECONDS,
                    us,
                ));
            }
        }
    }
    sane(readings)
}

/// Columns of the table and their metrics; older versions have the mean alone.
const LATENCIES: [(&str, &str); 5] = [
    ("Avg. Latency", "latency"),
    ("Latency", "latency"),
    ("p50 Latency", "latency-p50"),
    ("p99 Latency", "latency-p99"),
    ("p99.9 Latency", "latency-p99.9"),
];

/// The rate alone, of memtier_benchmark's text.
pub fn memtier_rate(text: &str) -> Result<ProgramReading, OutputRefusal> {
    RedisStats::of(text, "Totals")?.rate()
}

/// A row of the last table, as each of several runs has one: `Type Ops/sec Hits/sec Misses/sec Avg. Latency p50 Latency ... KB/sec`.
struct RedisStats<'a> {
    columns: Vec<String>,
    cells: Vec<&'a str>,
}

impl<'a> RedisStats<'a> {
    fn of(text: &'a str, row: &str) -> Result<RedisStats<'a>, OutputRefusal> {
        let is_head =
            |line: &&str| line.trim_start().starts_with("Type") && line.contains("Ops/sec");
        let head = text.lines().find(is_head);
        let columns = columns(head.ok_or_else(|| OutputRefusal::missing("the head of the table"))?);
        let line = text.lines().rev().find(|line| line.trim_start().starts_with(row));
        let line = line.ok_or_else(|| OutputRefusal::missing(row))?;
        Ok(RedisStats { columns, cells: line.split_whitespace().collect() })
    }

    /// The cell of a column; `---` is no value.
    fn value(&self, column: &str) -> Option<&'a str> {
        let at = self.columns.iter().position(|name| name == column)?;
        self.cells.get(at).copied().filter(|cell| *cell != "---")
    }

    fn rate(&self) -> Result<ProgramReading, OutputRefusal> {
        let rate = self.value("Ops/sec").ok_or_else(|| OutputRefusal::missing("Ops/sec"))?;
        Ok(ProgramReading::higher("rate", unit::PER_SECOND, number("Ops/sec", rate)?))
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
