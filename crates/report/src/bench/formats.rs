//! A benchmark's table in every format.

use std::io::{self, Write};

use serde::Serialize;

use super::{Benchmark, SCHEMA, conclusions, functions, reasons, table, text};
use crate::html;
use crate::table::Table;
use crate::tables::AllFormats;
use crate::text::TextLayout;
use crate::traffic;

impl AllFormats for Benchmark<'_> {
    fn text(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
        text(self, look, out)
    }

    /// One object: the rows of the CSV, and what is to be said of them.
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let object = BenchObject {
            schema: SCHEMA,
            source: self.source,
            rows: table(self, &self.bench.rows),
            causes: traffic::table(self.ledger),
            exits: reasons::table(self.reasons),
            functions: functions::table(self.functions),
            findings: conclusions::sentences(self),
            indications: &self.results.unproven,
            parts: self.parts,
            warnings: self.warnings(),
        };
        crate::json::write(&object, out)
    }

    /// One line a row, all metrics, or exits by reason, or functions. Shares are of 1; what does not apply or is not known is empty.
    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.by_function {
            return functions::table(self.functions).csv(out);
        }
        if self.by_reason {
            return reasons::table(self.reasons).csv(out);
        }
        table(self, &self.bench.rows).csv(out)
    }

    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(html::bench::page(self).into_string().as_bytes())?;
        out.write_all(b"\n")
    }
}

#[derive(Serialize)]
struct BenchObject<'a> {
    schema: &'static str,
    source: &'a str,
    rows: Table,
    causes: Table,
    exits: Table,
    functions: Table,
    findings: Vec<String>,
    indications: &'a [String],
    parts: &'a [String],
    warnings: Vec<String>,
}
