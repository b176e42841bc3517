//! `vmtax vpmu bench`: the published tables computed, and both policies on this machine's software events.

use serde_json::{Value, json};
use vmtax_vpmu::Activity;
use vmtax_vpmu::bench::script::Script;
use vmtax_vpmu::bench::steady::{Steady, SteadyError, measure};
use vmtax_vpmu::bench::{Comparison, Figure, Row, compare};
use vmtax_vpmu::host::perf_event::Software;

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
    print(args.format, || text(&comparison, &measured), || as_json(&comparison, &measured))
}

/// Legacy and reuse, and why they differ from what was published.
fn figures(row: &Row, figure: Figure) -> (u64, u64, Option<&'static str>) {
    match figure {
        Figure::Max if row.published.first_time => (row.legacy.max, row.reuse.max, row.why_max),
        Figure::Max => (row.legacy.max, row.reuse.max_settled, row.why_max),
        Figure::Total => (row.legacy.total, row.reuse.total, row.why_total),
    }
}

fn text(comparison: &Comparison, measured: &[Measured]) -> String {
    let mut out =
        String::from("A guest's perf on a PMU in virtual time, nanoseconds of the host\n");
    for (figure, title) in [(Figure::Max, "longest call"), (Figure::Total, "all calls")] {
        let head = ["legacy", "reuse", "ratio", "published"];
        out.push_str(&format!(
            "\n{title:<22}{:>13}{:>13}{:>11}{:>11}\n",
            head[0], head[1], head[2], head[3]
        ));
        let mut whys: Vec<&str> = Vec::new();
        for row in &comparison.rows {
            let Some(published) = row.published.ratio(figure) else { continue };
            let (legacy, reuse, why) = figures(row, figure);
            let ratio = row.ratio(figure).map_or("-".to_owned(), |r| format!("{r:.1}x"));
            let published = format!("{published:.1}x");
            let name = row.operation.name();
            out.push_str(&format!("{name:<22}{legacy:>13}{reuse:>13}{ratio:>11}{published:>11}"));
            if let Some(why) = why {
                let known = whys.iter().position(|w| *w == why);
                let number = known.unwrap_or_else(|| {
                    whys.push(why);
                    whys.len() - 1
                });
                out.push_str(&format!("  [{}]", number + 1));
            }
            out.push('\n');
        }
        for (i, why) in whys.iter().enumerate() {
            out.push_str(&format!("  [{}] {why}\n", i + 1));
        }
    }
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

fn as_json(comparison: &Comparison, measured: &[Measured]) -> Value {
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
            "why": why,
        })
    };
    let rows: Vec<Value> = comparison
        .rows
        .iter()
        .map(|row| {
            json!({
                "operation": row.operation.name(),
                "calls": row.legacy.calls,
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
        "operations": rows,
        "legacy": activity(comparison.legacy),
        "reuse": activity(comparison.reuse),
        "samples": comparison.samples,
        "steady": steady,
    })
}
