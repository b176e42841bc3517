//! The published tables computed on the PMU in virtual time, and both policies on the kernel's software events.
//!
//! Run it by `cargo bench -p vmtax-vpmu`.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use std::time::{Duration, Instant};

use vmtax_vpmu::bench::script::Script;
use vmtax_vpmu::bench::{Figure, compare, steady_round};
use vmtax_vpmu::host::perf_event::{Options, PerfEventHost, Software, Source};
use vmtax_vpmu::{Activity, Event, Intel, Model, Pmu, Policy};

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

/// A profiling guest's steady state on one of the kernel's events, both policies by turns.
fn steady(name: &str, software: Software) {
    const ROUNDS: u64 = 50;
    const TURNS: usize = 20;
    let intel = Intel { fixed: 0, unavailable: !1, ..Intel::default() };
    let mut pmus = [Policy::Legacy, Policy::Reuse].map(|policy| {
        let host = PerfEventHost::this_thread(Options::default())
            .with_source(Event::Cycles, Source::Software(software));
        Pmu::new(Model::Intel(intel.clone()), host, policy).unwrap()
    });
    let mut times = [const { Vec::new() }; 2];
    let mut creates = [0; 2];
    for turn in 0..=TURNS {
        for (i, pmu) in pmus.iter_mut().enumerate() {
            let (begin, before) = (Instant::now(), pmu.activity().creates);
            (0..ROUNDS).for_each(|_| steady_round(pmu, 0x53_003c, 0).unwrap());
            // The first turn is not the steady state yet.
            if turn > 0 {
                times[i].push(begin.elapsed() / ROUNDS as u32);
                creates[i] += pmu.activity().creates - before;
            }
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let [legacy, reuse] = times.each_mut().map(median);
    let fewer = 100.0 * (creates[0] - creates[1]) as f64 / creates[0] as f64;
    println!(
        "\n{name}: creates {} -> {} (-{fewer:.1} %), a round {legacy:?} -> {reuse:?} ({:.1}x)",
        creates[0],
        creates[1],
        legacy.as_secs_f64() / reuse.as_secs_f64()
    );
    assert!(pmus.iter_mut().all(|p| p.notices().is_empty()), "the kernel refused something");
}
