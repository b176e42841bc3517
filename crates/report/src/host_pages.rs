//! What `vmtax doctor --host-pages` shows: the verdict, its evidence, and times of loads.

use serde_json::{Value, json};
use vmtax_analyse::audit::{CheckFound, found_of_pages};
use vmtax_analyse::host_pages::{Judged, Reach};
use vmtax_events::setting::host_pages::{
    ChainPoint, HostPages, HugePageSource, MeasuredChains, SystemKind, Timing,
};

use crate::doctor::evidence;
use crate::doctor::words::{fix_line, found};
use crate::numbers::{duration, size};
use crate::table::{Cell, Column, Table};
use crate::tables::{Tables, TitledTable};

/// Name and version of the JSON's shape, in `docs/host-pages.schema.json`.
pub const SCHEMA: &str = "vmtax-host-pages-1";

const NOTE: &str = "Each load needs the one before; ns for each. Of all repeats the smallest counts: interruptions and neighbours only add. Packed: lines side by side; spread: each in another \
                    of the guest's smallest pages.";

/// Everything, described once.
pub fn tables(tool_version: &'static str, pages: &HostPages, judged: &Judged) -> Tables {
    let says = found_of_pages(judged);
    let measured = pages.measured.as_ref().and_then(|measured| measured.as_ref().ok());
    let sections = measured.map(|measured| sections(measured, judged)).unwrap_or_default();
    Tables {
        command: "doctor --host-pages",
        tool_version,
        facts: facts(pages, judged, &says),
        answer: vec![format!("{}.", crate::explain::sentence(&found(&says)))],
        emulation: None,
        sections,
        json: document(tool_version, pages, judged, &says),
    }
}

fn facts(pages: &HostPages, judged: &Judged, says: &CheckFound) -> Vec<(&'static str, String)> {
    let mut facts = vec![("verdict", judged.verdict.name().to_owned()), ("found", found(says))];
    facts.extend(says.evidence.iter().map(|fact| ("seen", evidence(fact))));
    facts.extend(says.fix.iter().map(|fix| ("fix", fix_line(fix))));
    if let Some(Ok(measured)) = &pages.measured {
        let (page, huge) = (size(measured.page as u64), size(measured.huge as u64));
        facts.push((
            "guest",
            format!("pages of {page}, huge pages of {huge} ({})", source(measured)),
        ));
    }
    facts.push(("took", duration(pages.took_ns as f64)));
    facts
}

fn source(measured: &MeasuredChains) -> &'static str {
    match measured.source {
        HugePageSource::Thp => "transparent",
        HugePageSource::Hugetlb => "hugetlbfs",
    }
}

fn sections(measured: &MeasuredChains, judged: &Judged) -> Vec<TitledTable> {
    let notes = vec![NOTE.to_owned()];
    let section =
        |id, title: &str, notes, table| TitledTable { id, title: title.to_owned(), notes, table };
    let regions =
        regions(judged).map(|table| section("regions", "Regions of 2 MiB", Vec::new(), table));
    let loads = section("loads", "Times of loads", notes, loads(measured));
    regions.into_iter().chain([loads]).collect()
}

fn regions(judged: &Judged) -> Option<Table> {
    let regions = judged.paging.as_ref()?.regions;
    let (low, high) = regions.share;
    let is_known = regions.small + regions.large > 0;
    let rows = [
        ("small", regions.small, Some((low, high))),
        ("large", regions.large, Some((1.0 - high, 1.0 - low))),
        ("unclear", regions.unclear, None),
    ]
    .map(|(pages, n, share)| (pages, n, share.filter(|_| is_known)));
    let table = Table::of(rows)
        .column(Column::short("pages", "pages of the host"), |(pages, ..)| Cell::Word(pages))
        .column(Column::number("regions", "regions"), |(_, n, _)| Cell::Count(*n as u64))
        .column(
            Column::number("low", "share from").help("95 % confidence interval"),
            |(.., share)| Cell::of(*share, |(low, _)| Cell::Share(low)),
        )
        .column(Column::number("high", "to"), |(.., share)| {
            Cell::of(*share, |(_, high)| Cell::Share(high))
        });
    Some(table.table())
}

fn loads(measured: &MeasuredChains) -> Table {
    let curve = measured
        .curve
        .iter()
        .map(|point| ("smallest pages", point.lines, point.packed, point.spread));
    let wide = measured.wide;
    let rows = curve.chain([("huge pages", wide.lines, wide.packed, wide.spread)]);
    Table::of(rows)
        .column(Column::words("where", "where"), |(place, ..)| Cell::Word(place))
        .column(Column::number("lines", "lines"), |(_, lines, ..)| Cell::Count(*lines as u64))
        .column(Column::number("packed_min_ns", "packed min"), |row| Cell::Number(row.2.min))
        .column(Column::minor("packed_median_ns", "median", 2).named("packed median"), |row| {
            Cell::Number(row.2.median)
        })
        .column(Column::minor("packed_p90_ns", "p90", 3).named("packed p90"), |row| {
            Cell::Number(row.2.p90)
        })
        .column(Column::number("spread_min_ns", "spread min"), |row| Cell::Number(row.3.min))
        .column(Column::minor("spread_median_ns", "median", 2).named("spread median"), |row| {
            Cell::Number(row.3.median)
        })
        .column(Column::minor("spread_p90_ns", "p90", 3).named("spread p90"), |row| {
            Cell::Number(row.3.p90)
        })
        .table()
}

fn document(version: &str, pages: &HostPages, judged: &Judged, says: &CheckFound) -> Value {
    let (is_vm, file) = match pages.machine {
        SystemKind::Vm(path) => (Some(true), Some(path)),
        SystemKind::Bare(path) => (Some(false), Some(path)),
        SystemKind::Unknown => (None, None),
    };
    json!({
        "schema": SCHEMA,
        "tool": { "name": "vmtax", "version": version },
        "machine": { "is_vm": is_vm, "path": file, "kind": judged.kind.name() },
        "verdict": judged.verdict.name(),
        "what": found(says),
        "fix": says.fix.as_ref().map(fix_line),
        "regions": judged.paging.as_ref().map(|paging| json!({
            "small": paging.regions.small,
            "large": paging.regions.large,
            "unclear": paging.regions.unclear,
            "small_share": { "low": paging.regions.share.0, "high": paging.regions.share.1 },
        })),
        "tlb": judged.paging.as_ref().map(|paging| json!({
            "first": reach(paging.first),
            "second": reach(paging.second),
        })),
        "measured": pages.measured.as_ref().and_then(|all| all.as_ref().ok()).map(all_times),
        "took_ns": pages.took_ns,
    })
}

fn reach(reach: Reach) -> Value {
    json!({ "fits": reach.fits, "exceeds": reach.exceeds })
}

fn all_times(measured: &MeasuredChains) -> Value {
    let groups = measured.groups.iter();
    json!({
        "page": measured.page,
        "huge_page": measured.huge,
        "source": source(measured),
        "curve": measured.curve.iter().map(pair).collect::<Vec<_>>(),
        "regions": measured.regions.iter().map(times).collect::<Vec<_>>(),
        "groups": groups.map(|group| json!({
            "regions": group.regions,
            "spread": times(&group.timing),
        })).collect::<Vec<_>>(),
        "beside_groups": pair(&measured.beside_groups),
        "wide": pair(&measured.wide),
    })
}

fn pair(point: &ChainPoint) -> Value {
    json!({ "lines": point.lines, "packed": times(&point.packed), "spread": times(&point.spread) })
}

fn times(timing: &Timing) -> Value {
    json!({ "min_ns": timing.min, "median_ns": timing.median, "p90_ns": timing.p90 })
}
