//! A table of benchmark results as CSV: a line each of what ran, in which category of VM, and what was measured.
//!
//! ```text
//! workload,category,repeat,metric,unit,value,better
//! iperf-udp,VM,0,throughput,Gb/s,3.40,higher
//! iperf-udp,SNP+poll,0,throughput,Gb/s,3.25,higher
//! ```
//!
//! Columns may stand in any order; `repeat`, `unit` and `better` may be missing. Lines that begin with # are comments.

use std::io::Read;

use csv::{ReaderBuilder, StringRecord, Trim};
use vmtax_events::{Better, Recording, Sample};

use super::Imported;
use super::text::{head_lines, is_text};
use crate::{Error, Feed};

/// Columns that there must be.
const REQUIRED: [&str; 4] = ["workload", "category", "metric", "value"];
/// More lines than a table of results has.
const MOST: usize = 1 << 20;

/// Whether a file that begins with these bytes is such a table.
pub fn recognise(head: &[u8]) -> bool {
    let is_header = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        let names: Vec<&str> = line.split(',').map(|name| name.trim().trim_matches('"')).collect();
        REQUIRED.iter().all(|column| names.contains(column))
    };
    let mut lines = head_lines(head).filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    is_text(head) && lines.next().is_some_and(is_header)
}

/// Reads the whole table.
pub fn import(input: &mut dyn Read, feed: &mut impl Feed) -> Result<Imported, Error> {
    let mut input = Ends { input, last: b'\n' };
    let mut reader = ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(Trim::All)
        .flexible(true)
        .from_reader(&mut input);
    let problem = |error: csv::Error| {
        let offset = error.position().map_or(0, csv::Position::byte);
        Error::malformed(offset, "results", error.to_string())
    };
    let columns = ResultColumns::of(reader.headers().map_err(problem)?)?;
    let mut about = Imported {
        recording: Recording { format: "results".to_owned(), ..Recording::default() },
        ..Imported::default()
    };
    let mut read = 0;
    let mut lines = reader.into_records();
    for line in lines.by_ref().take(MOST) {
        let line = line.map_err(problem)?;
        read += 1;
        match columns.sample(&line) {
            Some(sample) => feed.sample(sample)?,
            None => {
                about.losses.undecodable += 1;
                if about.losses.undecodable == 1 {
                    let at = line.position().map_or(0, csv::Position::line);
                    about.losses.notes.push(format!(
                        "line {at} and maybe others are left out: a value is missing or is no number"
                    ));
                }
            }
        }
    }
    if lines.next().is_some() {
        about
            .losses
            .truncated
            .push(format!("Lines of results beyond the first {MOST} are left out."));
    }
    drop(lines);
    if read == 0 {
        return Err(Error::malformed(0, "results", "have a head and no line below it"));
    }
    if input.last != b'\n' {
        about.losses.notes.push(
            "the last line has no end: if the file was cut there, its last value is wrong"
                .to_owned(),
        );
    }
    Ok(about)
}

/// Remembers the last byte.
struct Ends<'a> {
    input: &'a mut dyn Read,
    last: u8,
}

impl Read for Ends<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.input.read(buffer)?;
        self.last = buffer[..got].last().copied().unwrap_or(self.last);
        Ok(got)
    }
}

/// Where the columns stand.
struct ResultColumns {
    workload: usize,
    category: usize,
    repeat: Option<usize>,
    metric: usize,
    unit: Option<usize>,
    value: usize,
    better: Option<usize>,
}

impl ResultColumns {
    fn of(header: &StringRecord) -> Result<ResultColumns, Error> {
        let at = |name: &str| header.iter().position(|column| column == name);
        let required = |name: &'static str| {
            at(name).ok_or_else(|| Error::malformed(0, "results", format!("have no column {name}")))
        };
        Ok(ResultColumns {
            workload: required("workload")?,
            category: required("category")?,
            repeat: at("repeat"),
            metric: required("metric")?,
            unit: at("unit"),
            value: required("value")?,
            better: at("better"),
        })
    }

    fn sample(&self, line: &StringRecord) -> Option<Sample> {
        let word = |at: usize| line.get(at).filter(|word| !word.is_empty()).map(str::to_owned);
        let optional = |at: Option<usize>| at.and_then(|at| line.get(at)).filter(|w| !w.is_empty());
        let value: f64 = line.get(self.value)?.parse().ok()?;
        Some(Sample {
            workload: word(self.workload)?,
            category: word(self.category)?,
            repeat: optional(self.repeat).map_or(Some(0), |repeat| repeat.parse().ok())?,
            metric: word(self.metric)?,
            unit: optional(self.unit).unwrap_or_default().to_owned(),
            value: Some(value).filter(|value| value.is_finite())?,
            better: optional(self.better).map_or(Some(Better::Neither), Better::from_name)?,
        })
    }
}
