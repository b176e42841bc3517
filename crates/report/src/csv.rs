//! The report as one CSV (RFC 4180): every table below the other, told apart by the first column.
//!
//! | `table` | a row is |
//! |---|---|
//! | `operation` | an operation of a lab run at one level; `count` is how often it ran |
//! | `operation-exit` | exits of an operation of one kind; `l2_reason` when L1 took them for an exit of L2 |
//! | `vmexit`, `cause`, `msr`, `ioport`, `mmio`, `cpuid`, `hypercall` | a row of that table |
//! | `nested` | exits of L2 for one reason (`level` L2), or the exits of L1 that handling them took (`level` L1, `l2_reason` says for which) |
//! | `time` | a part of a vCPU's wall time: `detail_name` says which, `time_ns` how much |
//! | `losses` | something that is missing: `detail_name` says what, `count` how often; without rows nothing is known to be missing |
//!
//! In rows of operations `per_operation` is exits for each operation (exactly `count` of the exits by `count`
//! of the operation), `path` and its bounds are instructions, shares are of 1.
//!
//! Times are ns. `p50_ns`, `p90_ns` and `p99_ns` are upper bounds, at most a factor of 2 too high. A
//! cell that does not apply, or a time that is not known, is empty. `detail` is hexadecimal.
//! `accelerator` is in every row, so that files can be put together: times of an emulated host never
//! compare with those of another.
//!
//! Strings from a recording are made harmless: control characters become `\u{..}` ([`names::printable`]),
//! and a cell that a spreadsheet would take for a formula (it starts with `=`, `+`, `-` or `@`) gets an
//! apostrophe before it.

mod diff;

use std::io::{self, Write};

use vmtax_analyse::{Nested, OperationRow, Path, Table, TableRow, Value, statistics};
use vmtax_events::{Detail, DetailKind, Level, NO_VCPU, Tally, TimeRow};

use crate::{Document, Renderer, names};

/// The columns, in order.
const COLUMNS: [&str; 34] = [
    "table",
    "accelerator",
    "l2_reason",
    "reason",
    "level",
    "cause",
    "detail_kind",
    "detail",
    "detail_name",
    "outcome",
    "vm",
    "vm_name",
    "vcpu",
    "to_l1",
    "count",
    "timed",
    "time_ns",
    "min_ns",
    "max_ns",
    "mean_ns",
    "stderr_ns",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "operation",
    "per_operation",
    "path",
    "path_min",
    "path_max",
    "batches",
    "l2_over_l1",
    "share_l0",
    "share_l1",
    "share_l2",
];

/// The last columns: those that only rows of operations fill.
const OPERATION_COLUMNS: usize = 10;

/// Renders CSV.
#[derive(Clone, Copy, Debug, Default)]
pub struct Csv;

impl Renderer for Csv {
    fn render(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        if let (Some(shown), None, []) =
            (document.calls, &document.operations, &document.tables[..])
        {
            return crate::calls::table(&document.ledger, shown).csv(out);
        }
        write_record(out, &COLUMNS)?;
        for row in document.operations.iter().flat_map(|operations| &operations.rows) {
            for line in operation_lines(row) {
                write_line(out, document, &line)?;
            }
        }
        for table in &document.tables {
            for row in &table.rows {
                write_line(out, document, &table_line(table, row))?;
            }
        }
        if let Some(nested) = &document.nested {
            for line in nested_lines(nested) {
                write_line(out, document, &line)?;
            }
        }
        for line in time_lines(document).iter().chain(&loss_lines(document)) {
            write_line(out, document, line)?;
        }
        Ok(())
    }
}

/// A row before it is text. Empty strings and `None` are empty cells.
#[derive(Clone, Debug, Default)]
struct Line {
    table: &'static str,
    l2_reason: String,
    reason: String,
    level: &'static str,
    cause: &'static str,
    detail: Option<Detail>,
    /// Instead of the name of `detail`.
    detail_name: String,
    outcome: &'static str,
    vm: Option<u32>,
    vcpu: Option<u32>,
    to_l1: Option<u64>,
    tally: Option<Tally>,
    /// Instead of the count and the time of `tally`.
    count: Option<u64>,
    time_ns: Option<u64>,
    operation: Operation,
}

/// The cells that only rows of operations have.
#[derive(Clone, Debug, Default)]
struct Operation {
    name: String,
    per_operation: Option<f64>,
    path: Option<Path>,
    l2_over_l1: Option<f64>,
    shares: [Option<f64>; 3],
}

/// The operation, then its exits.
fn operation_lines(row: &OperationRow) -> Vec<Line> {
    let mut lines = vec![Line {
        table: "operation",
        level: row.level.name(),
        vm: row.vm,
        to_l1: (row.level == Level::L2).then_some(row.to_l1),
        count: Some(row.count),
        operation: Operation {
            name: row.name.clone(),
            per_operation: row.exits_per_operation().value(),
            path: row.path,
            l2_over_l1: row.l2_over_l1,
            shares: [row.share_l0(), row.share_l1(), row.share_l2()],
        },
        ..Line::default()
    }];
    lines.extend(row.exits.iter().map(|exit| Line {
        table: "operation-exit",
        l2_reason: exit.ancillary_of.map_or_else(String::new, names::reason),
        reason: names::reason(exit.reason),
        level: exit.level.name(),
        detail: Some(exit.detail),
        vm: row.vm,
        count: Some(exit.count),
        operation: Operation {
            name: row.name.clone(),
            per_operation: row.per_operation(exit.count).value(),
            ..Operation::default()
        },
        ..Line::default()
    }));
    lines
}

fn table_line(table: &Table, row: &TableRow) -> Line {
    let mut line =
        Line { table: table.kind.name(), tally: Some(row.tally.clone()), ..Line::default() };
    for value in &row.key {
        match *value {
            Value::Reason(reason) => line.reason = names::reason(reason),
            Value::Level(level) => line.level = level.name(),
            Value::Cause(cause) => line.cause = cause.name(),
            Value::Detail(detail) => line.detail = Some(detail),
            Value::Outcome(outcome) => line.outcome = outcome.name(),
            Value::Vm(vm) => line.vm = Some(vm),
            Value::Vcpu(vm, vcpu) => {
                line.vm = Some(vm);
                line.vcpu = Some(vcpu);
            }
        }
    }
    line
}

fn nested_lines(nested: &Nested) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in &nested.rows {
        let of = names::reason(row.reason);
        lines.push(Line {
            table: "nested",
            l2_reason: of.clone(),
            reason: of.clone(),
            level: Level::L2.name(),
            to_l1: Some(row.to_l1),
            tally: Some(row.l2.clone()),
            ..Line::default()
        });
        lines.extend(row.ancillary.iter().map(|ancillary| Line {
            table: "nested",
            l2_reason: of.clone(),
            reason: names::reason(ancillary.reason),
            level: Level::L1.name(),
            detail: Some(ancillary.detail),
            tally: Some(ancillary.tally.clone()),
            ..Line::default()
        }));
    }
    lines
}

fn time_lines(document: &Document) -> Vec<Line> {
    let mut lines = Vec::new();
    for ((vm, vcpu), time) in &document.ledger.time {
        let coverage = document.ledger.recording.coverage;
        let parts = TimeRow::whole_parts().map(|part| (part.name, part.told(&time.sum, &coverage)));
        let parts = std::iter::once(("wall", Some(time.sum.wall_ns))).chain(parts);
        lines.extend(parts.map(|(name, ns)| Line {
            table: "time",
            detail_name: name.to_owned(),
            vm: Some(*vm),
            vcpu: Some(*vcpu),
            time_ns: ns,
            ..Line::default()
        }));
    }
    lines
}

fn loss_lines(document: &Document) -> Vec<Line> {
    let losses = &document.ledger.losses;
    let counts = losses.counts().chain([("incomplete", u64::from(!document.ledger.complete))]);
    let counts = counts.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n));
    let missing = losses.missing.iter().map(|sentence| (format!("missing: {sentence}"), 1));
    let truncated = losses.truncated.iter().map(|sentence| (format!("truncated: {sentence}"), 1));
    counts
        .chain(missing)
        .chain(truncated)
        .map(|(detail_name, n)| Line {
            table: "losses",
            detail_name,
            count: Some(n),
            ..Line::default()
        })
        .collect()
}

fn write_line(out: &mut dyn Write, document: &Document, line: &Line) -> io::Result<()> {
    let recording = &document.ledger.recording;
    let detail = line.detail.filter(|detail| detail.kind != DetailKind::None);
    let detail_name = match detail {
        Some(detail) => names::detail_name(detail).unwrap_or_default(),
        None => line.detail_name.clone(),
    };
    let vm_name = line.vm.and_then(|vm| names::vm_name(recording, vm)).unwrap_or("");
    let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let mut cells: Vec<String> = vec![
        line.table.to_owned(),
        guarded(&names::accelerator(recording)),
        guarded(&line.l2_reason),
        guarded(&line.reason),
        line.level.to_owned(),
        line.cause.to_owned(),
        detail.map(|detail| detail.kind.name().to_owned()).unwrap_or_default(),
        detail.map(|detail| format!("{:#x}", detail.value)).unwrap_or_default(),
        guarded(&detail_name),
        line.outcome.to_owned(),
        number(line.vm.map(u64::from)),
        guarded(vm_name),
        number(line.vcpu.filter(|vcpu| *vcpu != NO_VCPU).map(u64::from)),
        number(line.to_l1),
    ];
    match &line.tally {
        Some(tally) => cells.extend(tally_cells(tally)),
        None => {
            cells.extend([number(line.count), String::new(), number(line.time_ns)]);
            cells.resize(COLUMNS.len() - OPERATION_COLUMNS, String::new());
        }
    }
    cells.extend(operation_cells(&line.operation));
    write_record(out, &cells)
}

fn operation_cells(of: &Operation) -> [String; OPERATION_COLUMNS] {
    let float = |n: Option<f64>| n.map(|n| n.to_string()).unwrap_or_default();
    let path = |part: fn(&Path) -> f64| float(of.path.as_ref().map(part));
    let [l0, l1, l2] = of.shares;
    [
        guarded(&of.name),
        float(of.per_operation),
        path(|p| p.median),
        path(|p| p.min),
        path(|p| p.max),
        of.path.map(|p| p.batches.to_string()).unwrap_or_default(),
        float(of.l2_over_l1),
        float(l0),
        float(l1),
        float(l2),
    ]
}

fn tally_cells(tally: &Tally) -> [String; 10] {
    let timed = |ns: u64| if tally.timed > 0 { ns.to_string() } else { String::new() };
    let float = |ns: Option<f64>| ns.map(|ns| format!("{ns:.3}")).unwrap_or_default();
    let quantile =
        |q: f64| statistics::quantile(tally, q).map(|q| q.high_ns.to_string()).unwrap_or_default();
    [
        tally.count.to_string(),
        tally.timed.to_string(),
        timed(tally.time_ns),
        timed(tally.min_ns),
        timed(tally.max_ns),
        float(statistics::mean_ns(tally)),
        float(statistics::standard_error_ns(tally)),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
    ]
}

/// A text that neither a terminal nor a spreadsheet acts on.
pub(crate) fn guarded(text: &str) -> String {
    let text = names::printable(text);
    // Spreadsheets skip spaces before a formula.
    if text.trim_start().starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text }
}

/// Writes a line, with quotes where they are needed.
pub fn write_record<S: AsRef<str>>(out: &mut dyn Write, cells: &[S]) -> io::Result<()> {
    for (i, cell) in cells.iter().enumerate() {
        let cell = cell.as_ref();
        if i > 0 {
            out.write_all(b",")?;
        }
        if cell.contains(['"', ',', '\n', '\r']) {
            write!(out, "\"{}\"", cell.replace('"', "\"\""))?;
        } else {
            out.write_all(cell.as_bytes())?;
        }
    }
    out.write_all(b"\r\n")
}
