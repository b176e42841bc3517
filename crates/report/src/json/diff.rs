//! A comparison as JSON: `vmtax-diff-1`, explained in `docs/json.md`.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::Diff;
use vmtax_analyse::diff::{Cell, Confidence, DiffRow, DiffTable, Difference};
use vmtax_events::Losses;

use super::{Json, key, shape, write};
use crate::{Compares, Comparison, Subject};

/// Name and version of the shape.
const SCHEMA: &str = "vmtax-diff-1";

impl Compares for Json {
    fn compare(&self, comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
        let diff = &comparison.diff;
        let object = Object {
            schema: SCHEMA,
            tool: shape::Tool { name: "vmtax", version: comparison.tool_version },
            per: diff.per.name(),
            base: side(comparison.base, diff.base_units),
            other: side(comparison.other, diff.other_units),
            setup: diff.setup.iter().map(setup).collect(),
            unsaid: &diff.unsaid,
            tables: diff.tables.iter().map(|one| table(diff, one)).collect(),
        };
        write(&object, out)
    }
}

#[derive(Serialize)]
struct Object<'a> {
    schema: &'static str,
    tool: shape::Tool<'a>,
    per: &'static str,
    base: Side<'a>,
    other: Side<'a>,
    setup: Vec<Setup<'a>>,
    unsaid: &'a [&'static str],
    tables: Vec<Table>,
}

#[derive(Serialize)]
struct Side<'a> {
    source: &'a str,
    emulated: Option<&'a str>,
    /// Seconds, exits of L2, operations; 1 for whole recordings.
    units: f64,
    complete: bool,
    losses: &'a Losses,
}

#[derive(Serialize)]
struct Setup<'a> {
    what: &'a str,
    base: Option<&'a str>,
    other: Option<&'a str>,
}

#[derive(Serialize)]
struct Table {
    by: Vec<&'static str>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    key: shape::Key,
    base: Numbers,
    other: Numbers,
    ratio: Option<f64>,
    difference: f64,
    /// Where the difference lies with 95 % confidence for all rows of the table together.
    low: Option<f64>,
    high: Option<f64>,
    /// Why `low` and `high` are missing.
    untested: Option<&'static str>,
    verdict: &'static str,
}

#[derive(Serialize)]
struct Numbers {
    count: u64,
    rate: f64,
    time_ns: Option<f64>,
}

fn side(subject: Subject<'_>, units: f64) -> Side<'_> {
    Side {
        source: subject.source,
        emulated: subject.emulated(),
        units,
        complete: subject.ledger.complete,
        losses: &subject.ledger.losses,
    }
}

fn setup(one: &Difference) -> Setup<'_> {
    let said = |text: &'_ String| !text.is_empty();
    Setup {
        what: &one.what,
        base: Some(&one.base).filter(|text| said(text)).map(String::as_str),
        other: Some(&one.other).filter(|text| said(text)).map(String::as_str),
    }
}

fn table(diff: &Diff, table: &DiffTable) -> Table {
    Table {
        by: table.by.iter().map(|by| by.name()).collect(),
        rows: table.rows.iter().map(|one| row(diff, one)).collect(),
    }
}

fn row(diff: &Diff, row: &DiffRow) -> Row {
    let numbers = |cell: Cell| Numbers {
        count: cell.count,
        rate: cell.rate,
        time_ns: cell.time_ns.filter(|_| diff.times),
    };
    let (low, high, untested) = match row.confidence {
        Confidence::Interval(interval) => (Some(interval.low), Some(interval.high), None),
        Confidence::None(why) => (None, None, Some(why)),
    };
    Row {
        key: key(&row.key),
        base: numbers(row.base),
        other: numbers(row.other),
        ratio: row.ratio(),
        difference: row.difference(),
        low,
        high,
        untested,
        verdict: row.verdict().name(),
    }
}
