//! The report as one CSV (RFC 4180): all tables one below the other, identified by the first column.
//!
//! | `table` | a row is |
//! |---|---|
//! | `operation` | an operation of a lab run at one level; `count` is how often it ran |
//! | `operation-exit` | exits of an operation of one kind; `l2_reason` when L1 took them for an exit of L2 |
//! | `paging` | what an operation's accesses cost a simulated processor: `detail_name` says what and which (`paging-walks zen4`), `count` how often |
//! | `memory` | what an operation did with memory: `detail_name` says what (`faults`, `pages_4k`, ...), `count` how often |
//! | `vmexit`, `cause`, `msr`, `ioport`, `mmio`, `cpuid`, `hypercall` | a row of that table |
//! | `nested` | exits of L2 for one reason (`level` L2), or the exits of L1 that handling them took (`level` L1, `l2_reason` says for which) |
//! | `time` | a part of a vCPU's wall time: `detail_name` says which, `time_ns` how much |
//! | `losses` | something that is missing: `detail_name` says what, `count` how often; without rows nothing is known to be missing |
//!
//! In rows of operations `per_operation` is exits for each operation (exactly `count` of the exits by `count`
//! of the operation), `path` and its bounds are instructions, shares are of 1.
//!
//! Times are ns. `p50_ns`, `p90_ns` and `p99_ns` are upper bounds: less than 1 % too high, or up to twice as high where the source counted by powers of 2. A
//! cell that does not apply, or a time that is not known, is empty. `detail` is hexadecimal.
//! `accelerator` is in every row, so that files can be put together: times of an emulated host never
//! compare with those of another.
//!
//! Strings from a recording are made harmless: control characters become `\u{..}` ([`names::printable`]),
//! and a cell that a spreadsheet would take for a formula (it starts with `=`, `+`, `-` or `@`) gets an
//! apostrophe before it.

mod diff;

use std::io::{self, Write};

use vmtax_events::{NO_VCPU, TimeRow};

pub use crate::table::write_record;
use crate::table::{Cell, CsvLine, write_lines};
use crate::{Document, Renderer, exits, mapping, names, nested, operations, paging};

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

#[derive(Clone, Copy, Debug, Default)]
pub struct Csv;

impl Renderer for Csv {
    fn render(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        if let (Some(shown), None, []) =
            (document.calls, &document.operations, &document.tables[..])
        {
            return crate::calls::table(&document.ledger, shown).csv(out);
        }
        let recording = &document.ledger.recording;
        let mut lines: Vec<CsvLine> = Vec::new();
        if let Some(all) = &document.operations {
            lines.extend(operations::described::lines(recording, all));
            lines.extend(mapping::lines(recording, all));
            lines.extend(paging::lines(recording, all));
        }
        for table in &document.tables {
            lines.extend(exits::table(recording, table).csv_lines());
        }
        if let Some(nested) = &document.nested {
            lines.extend(nested::lines(nested).csv_lines());
        }
        lines.extend(time(document));
        lines.extend(losses(document));
        let accelerator = Cell::Name(names::accelerator(recording));
        lines.iter_mut().for_each(|line| line.push(("accelerator", accelerator.clone())));
        write_lines(&COLUMNS, lines, out)
    }
}

/// A line for the wall time of each vCPU and for each part of it.
fn time(document: &Document) -> Vec<CsvLine> {
    let mut lines = Vec::new();
    let recording = &document.ledger.recording;
    for (&(vm, vcpu), time) in &document.ledger.time {
        let parts = TimeRow::whole_parts()
            .map(|part| (part.name, part.told(&time.sum, &recording.coverage)));
        for (name, ns) in std::iter::once(("wall", Some(time.sum.wall_ns))).chain(parts) {
            let vcpu = (vcpu != NO_VCPU).then_some(vcpu);
            let vm_name = names::vm_name(recording, vm);
            lines.push(vec![
                ("table", Cell::Word("time")),
                ("detail_name", Cell::Word(name)),
                ("vm", Cell::Count(vm.into())),
                ("vm_name", Cell::of(vm_name, |name| Cell::Name(name.to_owned()))),
                ("vcpu", Cell::of(vcpu, |vcpu| Cell::Count(vcpu.into()))),
                ("time_ns", Cell::of(ns, Cell::Time)),
            ]);
        }
    }
    lines
}

/// A line for each thing that is missing.
fn losses(document: &Document) -> impl Iterator<Item = CsvLine> {
    let losses = &document.ledger.losses;
    let counts = losses.counts().chain([("incomplete", u64::from(!document.ledger.complete))]);
    let counts = counts.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n));
    let missing = losses.missing.iter().map(|sentence| (format!("missing: {sentence}"), 1));
    let truncated = losses.truncated.iter().map(|sentence| (format!("truncated: {sentence}"), 1));
    counts.chain(missing).chain(truncated).map(|(name, n)| {
        let name = ("detail_name", Cell::Name(name));
        vec![("table", Cell::Word("losses")), name, ("count", Cell::Count(n))]
    })
}
