//! `vmtax mem scan`.

use serde_json::json;
use vmtax_host::ram::RamSource;
use vmtax_host::ram::survey::{Estimates, Survey};
use vmtax_pageops::PAGE;
use vmtax_report::numbers::{self, percent, size};
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Tables, TitledTable};

use super::accel::OpenedBackend;
use super::flags::ScanArgs;

pub(super) fn run(args: &ScanArgs) -> anyhow::Result<()> {
    let mut source = RamSource::open(&args.target)?;
    let mut accel = OpenedBackend::new(&args.backend.accel)?;
    let found = Survey::new(&mut source, accel.scanner(), args.dirty)?;
    let by = accel.describe();
    let gbits = args.bandwidth;
    let section = |id, title: &str, table| TitledTable {
        id,
        title: title.to_owned(),
        notes: Vec::new(),
        table,
    };
    args.to.write(&Tables {
        command: "mem scan",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![
            ("Target", source.describe()),
            ("Scanned", format!("in {:.2} s by {by}", found.seconds)),
        ],
        answer: vec![answer(&found)],
        emulation: None,
        sections: vec![
            section("memory", "Memory that was scanned", memory(&source)),
            section("pages", "Pages", pages(&found)),
            section("estimates", "Estimates", estimates(&found, gbits)),
        ],
        json: as_json(&source, &found, gbits, &by),
    })
}

/// Share of unique pages.
fn answer(found: &Survey) -> String {
    let share =
        numbers::share(found.other(), found.total).map_or_else(|| "none".to_owned(), percent);
    format!(
        "{share} of {} is content of its own; the rest was never touched, is zero or one repeated word, or a duplicate.",
        size(found.total * PAGE as u64)
    )
}

/// The mappings that were taken, and why.
fn memory(source: &RamSource) -> Table {
    Table::of(source.taken())
        .column(Column::number("bytes", "size"), |(bytes, _)| Cell::Bytes(*bytes))
        .column(Column::words("why", "which, and why"), |(_, why)| Cell::Name((*why).to_owned()))
        .table()
}

/// What pages hold.
fn pages(found: &Survey) -> Table {
    let rows = [
        ("all", Some(found.total)),
        ("never touched (holes)", Some(found.total - found.data)),
        ("touched", Some(found.data)),
        ("touched: zero", Some(found.zero)),
        ("touched: one repeated word", Some(found.filled)),
        ("touched: duplicate", Some(found.duplicate)),
        ("touched: other", Some(found.other())),
        // It is unknown for files.
        ("in huge pages", found.huge),
    ];
    let known =
        |pages: Option<u64>, cell: fn(u64) -> Cell| pages.map_or(Cell::Unknown("unknown"), cell);
    Table::of(rows)
        .column(Column::short("holds", "pages"), |(holds, _)| Cell::Word(holds))
        .column(Column::number("pages", "number"), |(_, pages)| known(*pages, Cell::Count))
        .column(Column::number("bytes", "size"), |(_, pages)| {
            known(*pages, |pages| Cell::Bytes(pages * PAGE as u64))
        })
        .column(Column::number("share", "share"), |(_, pages)| match pages {
            Some(pages) => Cell::of(numbers::share(*pages, found.total), Cell::Share),
            None => Cell::Unknown("unknown"),
        })
        .table()
}

/// A size or a time that was estimated.
struct EstimateRow {
    what: &'static str,
    bytes: Cell,
    time: Cell,
    about: String,
}

/// What a checkpoint and a migration would take.
fn estimates(found: &Survey, gbits: f64) -> Table {
    let e = Estimates::new(found, gbits);
    let size_of = |what, bytes, about| {
        let (bytes, time) = (Cell::Bytes(bytes), Cell::Empty);
        EstimateRow { what, bytes, time, about }
    };
    let sample = numbers::share(found.compressed, found.sampled)
        .map_or_else(String::new, |ratio| {
            format!("a sample of {} to {}", size(found.sampled), percent(ratio))
        });
    let mut rows = vec![
        size_of("checkpoint", e.checkpoint, String::new()),
        size_of("checkpoint, compressed", e.compressed, sample),
    ];
    rows.extend(found.dirty.as_ref().map(|dirty| {
        let bytes = (dirty.pages_per_second * PAGE as f64) as u64;
        let about = format!("{} pages/s, by {}", numbers::whole(dirty.pages_per_second), dirty.by);
        size_of("dirtied in a second", bytes, about)
    }));
    let (time, about) = match e.migration {
        Some(seconds) => (Cell::Nanoseconds(seconds * 1e9), format!("at {gbits} Gb/s")),
        None => (
            Cell::Unknown("?"),
            format!(
                "at {gbits} Gb/s it does not converge: pages are dirtied faster than they are sent; use post-copy"
            ),
        ),
    };
    rows.push(EstimateRow { what: "migration", bytes: Cell::Empty, time, about });
    Table::of(rows)
        .column(Column::short("estimate", "estimate"), |it| Cell::Word(it.what))
        .column(Column::number("bytes", "size"), |it| it.bytes.clone())
        .column(Column::number("time_ns", "time"), |it| it.time.clone())
        .column(Column::words("about", "about"), |it| Cell::Name(it.about.clone()))
        .table()
}

fn as_json(source: &RamSource, found: &Survey, gbits: f64, by: &str) -> serde_json::Value {
    let e = Estimates::new(found, gbits);
    let taken = source.taken();
    let taken: Vec<_> =
        taken.iter().map(|(bytes, why)| json!({ "bytes": bytes, "why": why })).collect();
    json!({
        "schema": "vmtax-mem-scan-1",
        "target": source.describe(),
        "memory": taken,
        "page_bytes": PAGE,
        "pages": {
            "all": found.total, "touched": found.data, "holes": found.total - found.data, "zero": found.zero,
            "filled": found.filled, "duplicate": found.duplicate, "huge": found.huge,
        },
        "sample": { "bytes": found.sampled, "compressed_bytes": found.compressed },
        "dirty": found.dirty.as_ref().map(|d| json!({ "pages_per_second": d.pages_per_second, "by": d.by })),
        "estimate": {
            "checkpoint_bytes": e.checkpoint, "compressed_bytes": e.compressed,
            "migration_seconds": e.migration, "gbits_per_second": gbits,
        },
        "seconds": found.seconds,
        "accel": by,
    })
}
