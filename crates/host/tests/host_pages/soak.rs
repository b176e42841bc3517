//! The probe on this machine, many times under load: `./x soak probe [N]`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmtax_analyse::host_pages::{PagesVerdict, judge};
use vmtax_host::host_pages::this_system;

/// Busy loops beside it.
const LOOPS: usize = 4;

/// What the runs found.
#[derive(Default)]
struct SoakFound {
    verdicts: BTreeMap<PagesVerdict, usize>,
    doubts: Vec<String>,
    /// Smallest and largest of all runs, ns: a load that hits, and one that misses the first TLB.
    times: [Option<(f64, f64)>; 2],
    took_ns: Vec<u64>,
    regions: Vec<usize>,
}

impl SoakFound {
    fn add(&mut self) {
        let pages = this_system();
        let judged = judge(&pages);
        *self.verdicts.entry(judged.verdict).or_default() += 1;
        self.took_ns.push(pages.took_ns);
        self.doubts.extend(judged.doubt.map(|doubt| format!("{doubt:?}")));
        let Some(paging) = judged.paging else { return };
        let regions = paging.regions;
        self.regions.push(regions.small + regions.large + regions.unclear);
        for (ends, time) in self.times.iter_mut().zip([paging.hit.min, paging.first_miss.min]) {
            let (low, high) = ends.unwrap_or((time, time));
            *ends = Some((low.min(time), high.max(time)));
        }
    }
}

#[test]
#[ignore = "long: ./x soak probe [N]"]
fn probe() {
    let runs = std::env::var("VMTAX_PROBES").ok().map_or(1000, |n| n.parse().unwrap());
    let (stop, mut found) = (AtomicBool::new(false), SoakFound::default());
    thread::scope(|scope| {
        for _ in 0..LOOPS {
            // No hint of a spin loop: it would leave the core to a sibling.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box(0);
                }
            });
        }
        (0..runs).for_each(|_| found.add());
        stop.store(true, Ordering::Relaxed);
    });
    found.took_ns.sort_unstable();
    found.regions.sort_unstable();
    println!("{runs} runs beside {LOOPS} busy loops: {:?}, {:?}", found.verdicts, found.doubts);
    println!(
        "ns of a load that hits, and that misses the first TLB, from smallest to largest: {:?}",
        found.times
    );
    println!("regions: {:?} to {:?}", found.regions.first(), found.regions.last());
    let took = |at: usize| found.took_ns.get(at).map_or(0, |ns| ns / 1_000_000);
    println!("took, ms: median {}, longest {}", took(runs / 2), took(runs - 1));
    let undecided = found.verdicts.remove(&PagesVerdict::Undecided).unwrap_or(0);
    assert_eq!(found.verdicts.len(), 1, "verdicts contradict each other");
    assert!(undecided * 100 <= runs, "{undecided} runs are undecided");
}
