//! A benchmark's table, for a terminal, as CSV or JSON; `html/bench.rs` is the page.

pub(crate) mod conclusions;
mod formats;
pub(crate) mod functions;
pub mod parts;
pub(crate) mod reasons;

use std::io::{self, Write};

use vmtax_analyse::Ledger;
use vmtax_analyse::bench::{Against, BenchTable, ResultRow};
use vmtax_analyse::calls::beside::FunctionRow;
use vmtax_analyse::reasons::ReasonRow;
use vmtax_analyse::samples::Estimate;
use vmtax_events::Better;

use crate::explain::Results;
use crate::names::printable;
use crate::numbers::{counted, fixed, significant};
use crate::table::{Cell, Column, PEOPLE, TEXT, Table, sort_key};
use crate::text::TextLayout;
use crate::text::layout::{Paint, Style, wrap};
use crate::traffic;

/// Name and version of the JSON's shape.
pub const SCHEMA: &str = "vmtax-bench-4";

#[derive(Clone, Copy, Debug)]
pub struct Benchmark<'a> {
    /// Where it came from, as the user named it. Hostile text.
    pub source: &'a str,
    pub tool_version: &'a str,
    pub bench: &'a BenchTable,
    pub ledger: &'a Ledger,
    /// What was found of kinds of VM and their options; sentences.
    pub results: &'a Results,
    /// Overheads in parts; sentences.
    pub parts: &'a [String],
    /// Limits that the comparison has besides those of the data; sentences.
    pub limits: &'a [String],
    /// Two runs are compared: baselines are runs, not categories.
    pub of_runs: bool,
    /// Exits by reason; empty where none were recorded.
    pub reasons: &'a [ReasonRow],
    /// Show them as text and as CSV; a page and JSON always have them.
    pub by_reason: bool,
    /// Functions of workloads; empty where none were counted.
    pub functions: &'a [FunctionRow],
    /// Show them as text and as CSV; a page and JSON always have them.
    pub by_function: bool,
    /// All metrics; else the first of each workload.
    pub all: bool,
}

impl<'a> Benchmark<'a> {
    /// The rows, by workload and metric.
    pub(crate) fn groups(&self) -> Vec<&'a [ResultRow]> {
        self.bench.shown(self.all)
    }

    /// What an emulated host means for these numbers.
    pub(crate) fn emulation(&self) -> Option<String> {
        let which = self.ledger.recording.emulated.as_ref()?;
        let counted = self.bench.rows.iter().any(|row| row.metric == vmtax_analyse::bench::EXITS);
        let timed = self.bench.rows.iter().any(|row| row.unit == "ns");
        let worth = if counted && timed {
            "recorded exits are exact and comparable with hardware; times are only comparable with each other"
        } else if counted {
            "exits and path lengths are exact and comparable with hardware; there are no times"
        } else {
            "only results of this emulator are comparable; no number reflects hardware"
        };
        Some(format!("Emulated ({}): {worth}.", printable(which)))
    }

    /// Sentences on what limits these numbers.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.emulation().into_iter().chain(self.limits()).collect()
    }

    /// As [`Benchmark::warnings`], without emulation.
    pub(crate) fn limits(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        // Recorded exits are counted exactly, once.
        let measured =
            self.bench.rows.iter().filter(|row| row.metric != vmtax_analyse::bench::EXITS);
        let least = measured.map(|row| row.values.len()).min();
        match least {
            Some(1) => warnings.push(
                "One run each: without a spread, differences cannot be distinguished from chance. Measure at least five times."
                    .to_owned(),
            ),
            Some(n) if n < vmtax_analyse::samples::ENOUGH => warnings.push(format!(
                "Some cells have only {}: below five, even the largest difference can be chance.",
                counted(n as u64, "run")
            )),
            _ => {}
        }
        let compared =
            self.bench.rows.iter().filter(|row| row.against.is_some() && !row.is_thin()).count();
        if compared > 20 {
            warnings.push(format!(
                "{compared} comparisons: if all were equal, about {} would be marked as different by chance.",
                compared.div_ceil(20)
            ));
        }
        for (workload, category, path) in self.bench.apart().into_iter().take(5) {
            let path = if path.is_empty() { "inside one system" } else { path };
            warnings.push(printable(&format!(
                "{workload} in {category} is not compared with its baseline: its path ({path}) is another one."
            )));
        }
        if self.bench.has_host_beside_emulated() {
            warnings.push(
                "The host is hardware and its VMs are emulated: they are not compared.".to_owned(),
            );
        }
        let failed = &self.bench.failed;
        if !failed.is_empty() {
            let named: Vec<String> = failed
                .iter()
                .take(3)
                .map(|(workload, category, repeat)| {
                    printable(&format!("{workload} in {category}, repeat {repeat}"))
                })
                .collect();
            let more = if failed.len() > 3 { ", ..." } else { "" };
            warnings.push(format!(
                "{} failed ({}{more}); their output is in the run's folder cells.",
                counted(failed.len() as u64, "cell"),
                named.join("; ")
            ));
        }
        warnings.extend(self.limits.iter().map(|limit| printable(limit)));
        for note in self.ledger.losses.truncated.iter().chain(&self.ledger.losses.notes) {
            warnings.push(printable(note));
        }
        warnings
    }
}

/// `higher is better`, or nothing.
pub(crate) fn direction(better: Better) -> &'static str {
    match better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
        Better::Neither => "neither direction is better",
    }
}

fn percent(value: f64) -> String {
    let sign = if value < 0.0 { "" } else { "+" };
    format!("{sign}{}", fixed(value * 100.0, 1))
}

/// An overhead in words: what is better than the baseline is a gain.
pub(crate) fn overhead(value: f64) -> String {
    let part = fixed(value.abs() * 100.0, 1);
    match part.as_str() {
        "0.0" => "equal".to_owned(),
        _ if value < 0.0 => format!("{part} % better"),
        _ => format!("{part} % worse"),
    }
}

/// Writes tables for a terminal.
fn text(shown: &Benchmark<'_>, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint { color: look.color };
    for warning in shown.warnings() {
        for line in wrap(&warning, look.width, "! ", "  ") {
            paint.line(out, Style::Warning, &line)?;
        }
    }
    for group in shown.groups() {
        let head = &group[0];
        writeln!(out)?;
        let title = format!(
            "{}: {}, {}, {}",
            head.workload,
            head.metric,
            head.unit,
            direction(head.better)
        );
        paint.line(out, Style::Heading, &printable(&title))?;
        table(shown, group).text((paint, look.width), out)?;
    }
    let tables = [
        (shown.by_reason, traffic::TITLE, traffic::table(shown.ledger), traffic::NOTE),
        (shown.by_reason, reasons::TITLE, reasons::table(shown.reasons), reasons::NOTE),
        (
            shown.by_function,
            functions::TITLE,
            functions::table(&functions::most(shown.functions)),
            functions::NOTE,
        ),
    ];
    for (is_shown, title, table, note) in tables {
        if !is_shown || table.rows.is_empty() {
            continue;
        }
        writeln!(out)?;
        paint.line(out, Style::Heading, title)?;
        table.text((paint, look.width), out)?;
        for line in wrap(note, look.width, "", "") {
            paint.line(out, Style::Faint, &line)?;
        }
    }
    let said = conclusions::sentences(shown);
    for (title, sentences) in [
        ("Conclusions", said.as_slice()),
        (conclusions::INDICATIONS, &shown.results.unproven),
        (conclusions::PARTS, shown.parts),
    ] {
        if sentences.is_empty() {
            continue;
        }
        writeln!(out)?;
        paint.line(out, Style::Heading, title)?;
        for sentence in sentences {
            for line in wrap(&printable(sentence), look.width, "  - ", "    ") {
                paint.line(out, Style::Plain, &line)?;
            }
        }
    }
    writeln!(out)?;
    let legend = "Overhead: how much worse or better than the baseline (the category without its last part) and than the plain VM, by the \
                  Hodges-Lehmann shift; negative ends of an interval are better. *: rank-sum test, p below 5 %. o: outliers, which are kept.";
    for line in wrap(legend, look.width, "", "") {
        paint.line(out, Style::Faint, &line)?;
    }
    Ok(())
}

/// Rows with all columns. In a terminal, the values that a group of rows shares are above the group.
pub(crate) fn table(shown: &Benchmark<'_>, rows: &[ResultRow]) -> Table {
    let of_all = |key, title: &'static str| Column::words(key, title).without(TEXT);
    let interval = |rank, name| Column::minor("", "95 % interval", rank).named(name).only(PEOPLE);
    let path = Column::words("path", "path");
    // The usual table is of workloads that stay in one system.
    let path =
        if rows.iter().any(|row| !row.path.is_empty()) { path } else { path.without(PEOPLE) };
    let emulated = shown.ledger.recording.emulated.as_ref();
    let name = |text: &String| Cell::Name(text.clone());
    let p = |against: &Option<Against>| against.as_ref().and_then(|against| against.p);
    let range = |words: [String; 2], low| Cell::Written(words.join(" to "), sort_key(low));
    let failed = |row: &ResultRow| {
        let is_of_row =
            |(w, c, _): &&(String, String, u32)| (w, c) == (&row.workload, &row.category);
        shown.bench.failed.iter().filter(is_of_row).count() as u64
    };
    Table::of(rows)
        .column(of_all("workload", "workload"), |row| name(&row.workload))
        .column(of_all("metric", "metric"), |row| name(&row.metric))
        .column(of_all("unit", "unit"), |row| name(&row.unit))
        .column(Column::data("better"), |row| Cell::Word(row.better.name()))
        .column(Column::words("category", "category"), |row| name(&row.category))
        .column(path, |row| name(&row.path))
        .column(Column::number("n", "n"), |row| Cell::Count(row.values.len() as u64))
        .column(Column::number("median", "median"), |row| Cell::Number(row.median.value))
        .column(Column::data("median_low"), |row| end(Some(row.median), |e| e.low))
        .column(Column::data("median_high"), |row| end(Some(row.median), |e| e.high))
        .column(interval(2, "95 % interval of the median"), |row| {
            let median = Some(row.median).filter(Estimate::is_bounded);
            Cell::of(median, |e| range([e.low, e.high].map(significant), e.low))
        })
        .column(of_all("baseline", "baseline"), |row| {
            row.against.as_ref().map_or(Cell::Empty, |against| name(&against.baseline))
        })
        .column(Column::data("shift"), |row| {
            row.against.as_ref().map_or(Cell::Empty, |against| Cell::Number(against.shift.value))
        })
        .column(Column::data("overhead"), |row| value(worse(&row.against)))
        .column(Column::data("overhead_low"), |row| end(worse(&row.against), |e| e.low))
        .column(Column::data("overhead_high"), |row| end(worse(&row.against), |e| e.high))
        .column(Column::number("", "overhead").only(PEOPLE), |row| in_words(worse(&row.against)))
        .column(interval(3, "95 % interval of the overhead"), |row| {
            let worse = worse(&row.against).filter(Estimate::is_bounded);
            Cell::of(worse, |e| range([e.low, e.high].map(percent), e.low))
        })
        .column(Column::minor("", "p", 4).only(PEOPLE), |row| {
            Cell::of(p(&row.against), |p| Cell::Written(format!("{p:.4}"), sort_key(p)))
        })
        .column(Column::data("p"), |row| Cell::of(p(&row.against), Cell::Number))
        .column(Column::data("overhead_to_plain"), |row| value(worse(&row.against_plain)))
        .column(Column::data("overhead_to_plain_low"), |row| {
            end(worse(&row.against_plain), |e| e.low)
        })
        .column(Column::data("overhead_to_plain_high"), |row| {
            end(worse(&row.against_plain), |e| e.high)
        })
        .column(Column::data("p_to_plain"), |row| Cell::of(p(&row.against_plain), Cell::Number))
        .column(
            Column::minor("", "to plain", 2).only(PEOPLE).named("overhead to the plain VM"),
            |row| in_words(worse(&row.against_plain)),
        )
        .column(Column::data("differs"), |row| {
            row.against.as_ref().map_or(Cell::Empty, |against| Cell::Flag(against.differs()))
        })
        .column(Column::data("outliers"), |row| Cell::Numbers(outliers(row)))
        .column(Column::short("", "").only(PEOPLE).named("marks"), |row| {
            Cell::Name(marks(row.against.as_ref(), &outliers(row)))
        })
        .column(Column::data("failed"), |row| Cell::Count(failed(row)))
        .column(Column::data("values"), |row| Cell::Numbers(row.values.clone()))
        .column(Column::data("accelerator"), |_| {
            Cell::of(emulated, |which| Cell::Name(format!("emulated:{which}")))
        })
        .table()
}

fn worse(against: &Option<Against>) -> Option<Estimate> {
    against.as_ref()?.overhead
}

fn value(estimate: Option<Estimate>) -> Cell {
    Cell::of(estimate, |e| Cell::Number(e.value))
}

/// An end of the interval of an estimate that has one.
fn end(estimate: Option<Estimate>, part: fn(&Estimate) -> f64) -> Cell {
    Cell::of(estimate.filter(Estimate::is_bounded), |e| Cell::Number(part(&e)))
}

fn in_words(estimate: Option<Estimate>) -> Cell {
    Cell::of(estimate, |e| Cell::Written(overhead(e.value), sort_key(e.value)))
}

fn outliers(row: &ResultRow) -> Vec<f64> {
    row.outliers.iter().map(|at| row.values[*at]).collect()
}

/// The highlight of a row.
fn marks(against: Option<&Against>, outliers: &[f64]) -> String {
    let mut marks = Vec::new();
    if against.is_some_and(Against::differs) {
        marks.push("*".to_owned());
    }
    if !outliers.is_empty() {
        let which: Vec<String> = outliers.iter().map(|value| significant(*value)).collect();
        marks.push(format!("o {}", which.join(" ")));
    }
    marks.join(" ")
}
