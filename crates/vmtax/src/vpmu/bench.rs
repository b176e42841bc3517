//! `vmtax vpmu bench`: the published tables computed, and both policies on this machine's software events.

use serde_json::{Value, json};
use vmtax_vpmu::Activity;
use vmtax_vpmu::bench::script::Script;
use vmtax_vpmu::bench::steady::{Steady, SteadyError, measure};
use vmtax_vpmu::bench::why::Why;
use vmtax_vpmu::bench::{Comparison, Figure, Row, compare};
use vmtax_vpmu::host::perf_event::Software;

use super::emulated::{self, Emulated};
use super::{BenchArgs, print};

/// A software event and what its steady state came to.
type Measured = (&'static str, Result<Steady, SteadyError>);

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let comparison = compare(&Script::default())?;
    let events = [
        ("task-clock", Software::TaskClock),
        ("context-switches", Software::ContextSwitches),
        ("page-faults", Software::PageFaults),
    ];
    let events = if args.turns > 0 { &events[..] } else { &[] };
    let measured: Vec<Measured> =
        events.iter().map(|(name, event)| (*name, measure(*event, args.turns))).collect();
    let hosts = args.emulated.iter().map(|word| emulated::run(word.host(), args.batches));
    let hosts = hosts.collect::<anyhow::Result<Vec<Emulated>>>()?;
    print(
        args.format,
        || {
            let mut out = text(&comparison, &measured);
            hosts.iter().for_each(|host| out.push_str(&host.text()));
            out
        },
        || as_json(&comparison, &measured, &hosts),
    )
}

/// Legacy and reuse, and why they differ from what was published.
fn figures(row: &Row, figure: Figure) -> (u64, u64, Option<&Why>) {
    let (why_max, why_total) = (row.why_max.as_ref(), row.why_total.as_ref());
    match figure {
        Figure::Max if row.published.first_time => (row.legacy.max, row.reuse.max, why_max),
        Figure::Max => (row.legacy.max, row.reuse.max_settled, why_max),
        Figure::Total => (row.legacy.total, row.reuse.total, why_total),
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |r| format!("{r:.1}x"))
}

/// One of the published tables.
fn table(comparison: &Comparison, figure: Figure) -> String {
    let title = match figure {
        Figure::Max => "longest call",
        Figure::Total => "all calls",
    };
    // Version 2's longest calls were published without the first ones, which create events, but for one.
    let first = |row: &Row| match figure {
        Figure::Max => row.reuse.max.to_string(),
        Figure::Total => String::new(),
    };
    let head = if figure == Figure::Max { "reuse, first" } else { "" };
    let mut out = format!(
        "\n{title:<22}{:>13}{head:>14}{:>13}{:>11}{:>11}\n",
        "legacy", "reuse", "ratio", "published"
    );
    let mut notes = String::new();
    for row in &comparison.rows {
        let Some(published) = row.published.ratio(figure) else { continue };
        let (legacy, reuse, why) = figures(row, figure);
        let name = row.operation.name();
        out.push_str(&format!(
            "{name:<22}{legacy:>13}{:>14}{reuse:>13}{:>11}{published:>10.1}x\n",
            first(row),
            times(row.ratio(figure))
        ));
        if let Some(why) = why {
            notes.push_str(&format!(
                "  {name}: {}; {}: {} with {}\n",
                why.reason,
                if why.shown { "shown" } else { "inferred, not shown" },
                times(why.ratio),
                why.varied.says()
            ));
        }
    }
    out + &notes
}

fn text(comparison: &Comparison, measured: &[Measured]) -> String {
    let mut out = String::from(
        "A guest's perf on a PMU in virtual time, nanoseconds of the host. A ratio that is not within a factor of two of\n\
         the published one says why; that is shown if varying what it names brings it there\n",
    );
    out.push_str(&table(comparison, Figure::Max));
    out.push_str(&table(comparison, Figure::Total));
    out.push('\n');
    for (name, a) in [("legacy", comparison.legacy), ("reuse", comparison.reuse)] {
        out.push_str(&format!(
            "{name:<8}creates {:>6}  closes {:>6}  enables {:>6}  reads {:>6}  interrupts {:>6}\n",
            a.creates, a.closes, a.enables, a.reads, a.interrupts
        ));
    }
    if !measured.is_empty() {
        out.push_str("\nA profiling guest's steady state on this kernel's software events\n\n");
    }
    for (name, result) in measured {
        match result {
            Ok(steady) => {
                let Steady { rounds, creates, time } = steady;
                out.push_str(&format!(
                    "{name:<18}{rounds} rounds: creates {} -> {} ({:+.1} %), a round {:.1?} -> {:.1?} ({:.1}x)\n",
                    creates[0],
                    creates[1],
                    change(steady),
                    time[0],
                    time[1],
                    time_ratio(steady)
                ));
            }
            Err(error) => out.push_str(&format!("{name:<18}unknown: {error}\n")),
        }
    }
    out
}

/// Events created under reuse, against legacy, in percent.
fn change(steady: &Steady) -> f64 {
    100.0 * (steady.creates[1] as f64 / steady.creates[0].max(1) as f64 - 1.0)
}

fn time_ratio(steady: &Steady) -> f64 {
    steady.time[0].as_secs_f64() / steady.time[1].as_secs_f64()
}

/// Name and version of the JSON's shape.
const SCHEMA: &str = "vmtax-vpmu-bench-1";

fn as_json(comparison: &Comparison, measured: &[Measured], hosts: &[Emulated]) -> Value {
    let figure = |row: &Row, figure| {
        let (legacy, reuse, why) = figures(row, figure);
        let published = match figure {
            Figure::Max => row.published.max,
            Figure::Total => row.published.total,
        };
        json!({
            "legacy": legacy,
            "reuse": reuse,
            "ratio": row.ratio(figure),
            "published": published.map(|(legacy, reuse)| json!({ "legacy": legacy, "reuse": reuse })),
            "published_ratio": row.published.ratio(figure),
            "why": why.map(|why| json!({
                "reason": why.reason,
                "shown": why.shown,
                "varied": why.varied.says(),
                "ratio": why.ratio,
            })),
        })
    };
    let rows: Vec<Value> = comparison
        .rows
        .iter()
        .map(|row| {
            json!({
                "operation": row.operation.name(),
                "calls": row.legacy.calls,
                "reuse_first_max_ns": row.reuse.max,
                "max_ns": figure(row, Figure::Max),
                "total_ns": figure(row, Figure::Total),
            })
        })
        .collect();
    let activity = |a: Activity| {
        json!({
            "creates": a.creates,
            "closes": a.closes,
            "enables": a.enables,
            "disables": a.disables,
            "reads": a.reads,
            "periods": a.periods,
            "interrupts": a.interrupts,
            "delivered": a.delivered,
            "merged": a.merged,
            "dropped": a.dropped,
            "throttles": a.throttles,
        })
    };
    let steady: Vec<Value> = measured
        .iter()
        .map(|(name, result)| match result {
            Ok(s) => json!({
                "event": name,
                "rounds": s.rounds,
                "creates": { "legacy": s.creates[0], "reuse": s.creates[1] },
                "creates_change_percent": change(s),
                "round_ns": { "legacy": s.time[0].as_nanos() as u64, "reuse": s.time[1].as_nanos() as u64 },
                "time_ratio": time_ratio(s),
            }),
            Err(error) => json!({ "event": name, "unknown": error.to_string() }),
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "operations": rows,
        "legacy": activity(comparison.legacy),
        "reuse": activity(comparison.reuse),
        "samples": comparison.samples,
        "steady": steady,
        "emulated": hosts.iter().map(Emulated::json).collect::<Vec<_>>(),
    })
}
