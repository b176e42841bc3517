//! A comparison as JSON: `vmtax-diff-1`, explained in `docs/json.md`.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::Diff;
use vmtax_analyse::diff::DiffTable;
use vmtax_events::Losses;

use super::{Json, shape, write};
use crate::{Compares, Comparison, Subject, diff as described, table};

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
            verdict: crate::text::diff::verdict(comparison),
            setup: described::setup(diff),
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
    verdict: String,
    setup: table::Table,
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
struct Table {
    by: Vec<&'static str>,
    rows: table::Table,
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

fn table(diff: &Diff, table: &DiffTable) -> Table {
    Table { by: table.by.iter().map(|by| by.name()).collect(), rows: described::exits(diff, table) }
}
