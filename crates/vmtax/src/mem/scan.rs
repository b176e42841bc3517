//! `vmtax mem scan`.

use serde_json::json;
use vmtax_events::printable;
use vmtax_host::ram::Source;
use vmtax_host::ram::survey::{Estimates, Survey};
use vmtax_pageops::PAGE;
use vmtax_report::numbers::{self, percent, size};

use super::accel::Opened;
use super::flags::ScanArgs;

pub(super) fn run(args: &ScanArgs) -> anyhow::Result<()> {
    let mut source = Source::open(&args.target)?;
    let mut accel = Opened::new(&args.work.accel)?;
    let found = Survey::new(&mut source, accel.scanner(), args.dirty)?;
    let by = accel.describe();
    let gbits = args.bandwidth;
    args.work
        .format
        .print(|| text(&source, &found, gbits, &by), || as_json(&source, &found, gbits, &by))
}

fn text(source: &Source, found: &Survey, gbits: f64, by: &str) -> String {
    let page = PAGE as u64;
    let share = |part: u64| numbers::share(part, found.total).map_or_else(String::new, percent);
    let mut out = format!("{}\n", source.describe());
    for (bytes, why) in source.taken() {
        out.push_str(&format!("  {} {}\n", size(bytes), printable(why)));
    }
    out.push_str(&format!("\n{:<34}{:>12}{:>12}{:>8}\n", "memory", "pages", "bytes", "share"));
    let mut row = |name: &str, pages: u64| {
        out.push_str(&format!(
            "{name:<34}{pages:>12}{:>12}{:>8}\n",
            size(pages * page),
            share(pages)
        ));
    };
    row("all", found.total);
    row("  never touched (holes)", found.total - found.data);
    row("  touched", found.data);
    row("    zero", found.zero);
    row("    one repeated word", found.filled);
    row("    duplicate", found.duplicate);
    row("    other", found.other());
    match found.huge {
        Some(huge) => row("  in huge pages", huge),
        None => out.push_str("  in huge pages: unknown for files\n"),
    }
    let e = Estimates::new(found, gbits);
    out.push('\n');
    if let Some(ratio) = numbers::share(found.compressed, found.sampled) {
        let (sample, ratio) = (size(found.sampled), percent(ratio));
        out.push_str(&format!("compressed: a sample of {sample} to {ratio}\n"));
    }
    out.push_str(&format!(
        "checkpoint: about {}, compressed {}\n",
        size(e.checkpoint),
        size(e.compressed)
    ));
    if let Some(dirty) = &found.dirty {
        let bytes = (dirty.pages_per_second * PAGE as f64) as u64;
        out.push_str(&format!(
            "dirtied: {:.0} pages/s, {}/s, by {}\n",
            dirty.pages_per_second,
            size(bytes),
            dirty.by
        ));
    }
    out.push_str(&match e.migration {
        Some(seconds) => format!("migration at {gbits} Gb/s: about {seconds:.1} s\n"),
        None => format!(
            "migration at {gbits} Gb/s: does not converge, pages are dirtied faster than they are sent; use post-copy\n"
        ),
    });
    out.push_str(&format!("scanned in {:.2} s by {by}\n", found.seconds));
    out
}

fn as_json(source: &Source, found: &Survey, gbits: f64, by: &str) -> serde_json::Value {
    let e = Estimates::new(found, gbits);
    let taken = source.taken();
    let taken: Vec<_> =
        taken.iter().map(|(bytes, why)| json!({ "bytes": bytes, "why": why })).collect();
    json!({
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
