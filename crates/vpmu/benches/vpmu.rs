//! The published tables computed on the PMU in virtual time, and both policies on the kernel's software events.
//!
//! Run it by `cargo bench -p vmtax-vpmu`.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use vmtax_vpmu::Activity;
use vmtax_vpmu::bench::script::Script;
use vmtax_vpmu::bench::steady::{Steady, measure};
use vmtax_vpmu::bench::{Figure, compare};
use vmtax_vpmu::host::perf_event::Software;

fn main() {
    tables();
    for (name, software) in [
        ("task-clock", Software::TaskClock),
        ("context-switches", Software::ContextSwitches),
        ("page-faults", Software::PageFaults),
    ] {
        steady(name, software);
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |r| format!("{r:.1}x"))
}

/// Legacy, reuse, their ratio and the published one.
fn tables() {
    let comparison = compare(&Script::default()).unwrap();
    for (figure, title) in [(Figure::Max, "longest call, ns"), (Figure::Total, "all calls, ns")] {
        println!("{title:20} {:>12} {:>12} {:>10} {:>10}", "legacy", "reuse", "ratio", "published");
        for row in comparison.rows.iter().filter(|r| r.published.ratio(figure).is_some()) {
            let (legacy, reuse, why) = match figure {
                Figure::Max if row.published.first_time => {
                    (row.legacy.max, row.reuse.max, row.why_max)
                }
                Figure::Max => (row.legacy.max, row.reuse.max_settled, row.why_max),
                Figure::Total => (row.legacy.total, row.reuse.total, row.why_total),
            };
            let (computed, published) =
                (ratio(row.ratio(figure)), ratio(row.published.ratio(figure)));
            println!(
                "{:20} {legacy:12} {reuse:12} {computed:>10} {published:>10}",
                row.operation.name()
            );
            if let Some(why) = why {
                println!("    {why}");
            }
        }
        println!();
    }
    let print = |name, a: Activity| {
        println!(
            "{name:8} creates {:6}  closes {:6}  enables {:6}  reads {:6}",
            a.creates, a.closes, a.enables, a.reads
        );
    };
    print("legacy", comparison.legacy);
    print("reuse", comparison.reuse);
}

/// A profiling guest's steady state on one of the kernel's events.
fn steady(name: &str, software: Software) {
    let Steady { rounds, creates, time } = measure(software, 20).unwrap();
    let fewer = 100.0 * (creates[0] - creates[1]) as f64 / creates[0] as f64;
    let ratio = time[0].as_secs_f64() / time[1].as_secs_f64();
    println!(
        "\n{name}, {rounds} rounds: creates {} -> {} (-{fewer:.1} %), a round {:?} -> {:?} ({ratio:.1}x)",
        creates[0], creates[1], time[0], time[1],
    );
}
