//! The report as JSON, for programs: the shape is `vmtax-report-2`, published in
//! `docs/report.schema.json` and explained in `docs/json.md`.
//!
//! Fields may be added to this version; none is renamed, removed or given another meaning. Strings
//! from a recording are passed on as they are, but the JSON writes characters that a terminal would
//! act on as `\uXXXX`, so that it can be looked at.

mod diff;
pub(crate) mod shape;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;
use vmtax_analyse::{Ledger, SortedTable, ledger};
use vmtax_events::{NO_VCPU, Recording};

use crate::table::Cell;
use crate::{Document, Renderer, exits, names, nested, operations, time};

/// Threads that had the CPUs of preempted vCPUs: at most so many.
const TAKERS: usize = 64;

/// Name and version of the shape.
pub const SCHEMA: &str = "vmtax-report-2";

/// Renders JSON: one object on one line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Renderer for Json {
    fn render(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        write(&report(document), out)
    }
}

/// One object on one line, for every document of this tool.
pub(crate) fn write(document: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let mut json = serde_json::Serializer::with_formatter(&mut *out, Harmless);
    document.serialize(&mut json)?;
    out.write_all(b"\n")
}

/// Compact JSON that escapes [`names::is_hidden`] characters beside those that JSON must escape.
struct Harmless;

impl Formatter for Harmless {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| names::is_hidden(*c)) {
            writer.write_all(&fragment.as_bytes()[plain..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }
}

fn report(document: &Document) -> shape::ReportJson<'_> {
    shape::ReportJson {
        schema: SCHEMA,
        tool: shape::ToolJson { name: "vmtax", version: &document.tool_version },
        run: run(document),
        operations: document.operations.as_ref().map(|all| shape::OperationsJson {
            rows: operations::described::table(all, &BTreeMap::new()),
        }),
        tables: document.tables.iter().map(|one| table(&document.ledger.recording, one)).collect(),
        nested: document
            .nested
            .as_ref()
            .map(|all| shape::NestedJson { known: all.known, rows: nested::reasons(all) }),
        budget: document.budget.as_ref().map(|kept| shape::BudgetJson {
            file: &kept.file,
            violations: kept.violations().count() as u64,
            notes: &kept.notes,
            numbers: crate::budget::table(kept),
        }),
        functions: document.calls.map(|shown| crate::calls::table(&document.ledger, shown)),
        losses: &document.ledger.losses,
    }
}

fn run(document: &Document) -> shape::RunJson<'_> {
    let ledger = &document.ledger;
    let recording = &ledger.recording;
    let said = |text: &'_ String| (!text.is_empty()).then(|| text.clone());
    let coverage = recording.coverage;
    shape::RunJson {
        source: &document.source,
        format: said(&recording.format),
        tool: said(&recording.tool),
        command: said(&recording.command),
        hostname: said(&recording.hostname),
        kernel: said(&recording.kernel),
        arch: said(&recording.arch),
        cpu: said(&recording.cpu),
        cpus: (recording.cpus > 0).then_some(recording.cpus),
        clock: said(&recording.clock),
        accelerator: names::accelerator(recording),
        coverage,
        vms: recording
            .vms
            .iter()
            .map(|vm| shape::VmJson { id: vm.id, name: said(&vm.name), inferred: vm.inferred })
            .collect(),
        complete: ledger.complete,
        start_ns: ledger.start_ns,
        end_ns: ledger.end_ns,
        vcpus: time::table(ledger),
        tax: ledger.tax(),
        contention: ledger.contention(),
        taken_by: takers(ledger),
    }
}

fn takers(ledger: &Ledger) -> Vec<shape::TakerJson<'_>> {
    let takers = ledger.takers().into_iter().take(TAKERS);
    takers.map(|(taker, taken)| shaped(taker, taken, &ledger.recording)).collect()
}

fn shaped<'a>(
    taker: &'a ledger::Taker,
    taken: ledger::TakenTime,
    recording: &Recording,
) -> shape::TakerJson<'a> {
    shape::TakerJson {
        name: &taker.name,
        vm: taker.vcpu.map(|(vm, _)| vm),
        vcpu: taker.vcpu.map(|(_, vcpu)| vcpu).filter(|vcpu| *vcpu != NO_VCPU),
        own: taker.is_own,
        recorder: taker.is_recorder(recording),
        count: taken.count,
        time_ns: taken.time_ns,
    }
}

fn table(recording: &Recording, table: &SortedTable) -> shape::TableJson {
    shape::TableJson {
        event: table.kind.name(),
        by: table.by.iter().map(|by| by.name()).collect(),
        rows: exits::table(recording, table),
        total: Cell::Object(exits::tally_fields(&table.total)),
    }
}
