//! A comparison as JSON: `vmtax-diff-1`, explained in `docs/json.md`.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::Diff;
use vmtax_analyse::diff::DiffTable;
use vmtax_events::Losses;

use super::{Json, shape, write};
use crate::calls::difference;
use crate::{Compares, Comparison, RunSubject, diff as described, table};

/// Name and version of the shape.
const SCHEMA: &str = "vmtax-diff-1";

impl Compares for Json {
    fn compare(&self, comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
        let diff = &comparison.diff;
        let object = DiffObject {
            schema: SCHEMA,
            tool: shape::ToolJson { name: "vmtax", version: comparison.tool_version },
            per: diff.per.name(),
            base: side(comparison.base, diff.base_units),
            other: side(comparison.other, diff.other_units),
            verdict: crate::text::diff::verdict(comparison),
            setup: described::setup(diff),
            unsaid: &diff.unsaid,
            tables: diff.tables.iter().map(|one| table(diff, one)).collect(),
            functions: described::with_trees(comparison, difference::table),
        };
        write(&object, out)
    }
}

#[derive(Serialize)]
struct DiffObject<'a> {
    schema: &'static str,
    tool: shape::ToolJson<'a>,
    per: &'static str,
    base: DiffSideJson<'a>,
    other: DiffSideJson<'a>,
    verdict: String,
    setup: table::Table,
    unsaid: &'a [&'static str],
    tables: Vec<DiffTableJson>,
    /// Where both have call trees.
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<table::Table>,
}

#[derive(Serialize)]
struct DiffSideJson<'a> {
    source: &'a str,
    emulated: Option<&'a str>,
    /// Seconds, exits of L2, operations; 1 for whole recordings.
    units: f64,
    complete: bool,
    losses: &'a Losses,
}

#[derive(Serialize)]
struct DiffTableJson {
    by: Vec<&'static str>,
    rows: table::Table,
}

fn side(subject: RunSubject<'_>, units: f64) -> DiffSideJson<'_> {
    DiffSideJson {
        source: subject.source,
        emulated: subject.emulated(),
        units,
        complete: subject.ledger.complete,
        losses: &subject.ledger.losses,
    }
}

fn table(diff: &Diff, table: &DiffTable) -> DiffTableJson {
    DiffTableJson {
        by: table.by.iter().map(|by| by.name()).collect(),
        rows: described::exits(diff, table),
    }
}
