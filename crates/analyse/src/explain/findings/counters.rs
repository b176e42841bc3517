//! What counters of the processor show beside a base.

use vmtax_events::Stat;

use super::super::certainty::Certainty;
use super::super::finding::{Evidence, Finding, FoundKind};
use crate::Ledger;
use crate::remedy::{Context, RemedyId};

/// How much more a counter must count than in the base.
const MORE: f64 = 1.5;

/// A counter: for a thousand instructions where those are counted in both.
fn counter(ledger: &Ledger, wanted: &str) -> Option<f64> {
    let stem = |name: &str| name.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let stat = |stat: &&Stat| stem(&stat.name) == wanted;
    ledger.stats.iter().find(stat).map(|stat| stat.value)
}

/// Loads from memory of another node. Linux tools/perf/util/evsel.c (generic cache events); of Intel's event lists the one for
/// loads that miss the last cache.
const REMOTE: [&str; 2] = ["node-load-misses", "mem_load_l3_miss_retired.remote_dram"];
/// Such loads for a thousand instructions from which on they cost a percent: each takes some hundred cycles more than a local one.
const COSTLY_REMOTE: f64 = 0.05;

/// A counter here, in the base, and how many times as much that is.
fn ratio(ledger: &Ledger, base: &Ledger, name: &str) -> Option<(f64, f64, f64)> {
    let (here, there) = (counter(ledger, name)?, counter(base, name)?);
    (there > 0.0).then_some((here, there, here / there))
}

fn evidence(ledger: &Ledger, base: &Ledger, names: &[&'static str]) -> Vec<Evidence> {
    let line = |name: &&'static str| {
        let (here, base, _) = ratio(ledger, base, name)?;
        Some(Evidence::Counter { name, here, base })
    };
    names.iter().filter_map(line).collect()
}

/// What counters show beside a base.
pub(in crate::explain) fn of_counters(
    ledger: &Ledger,
    base: Option<&Ledger>,
    context: &Context,
) -> Vec<Finding> {
    let Some(base) = base else { return Vec::new() };
    let work = ratio(ledger, base, "instructions").map_or(1.0, |(.., times)| times);
    let is_more =
        |name: &str| ratio(ledger, base, name).is_some_and(|(.., times)| times >= MORE * work);
    let mut found = Vec::new();
    if is_more("branch-misses") {
        let mut finding = Finding::new(FoundKind::BranchMisses, Certainty::Likely);
        let beside = ["dtlb-load-misses", "l1-dcache-load-misses", "llc-load-misses"];
        finding.evidence = evidence(ledger, base, &["branch-misses"]);
        finding.evidence.extend(evidence(ledger, base, &beside));
        finding.evidence.extend(evidence(ledger, base, &["instructions"]));
        finding.weight = 0.02;
        found.push(finding);
    }
    let instructions = counter(ledger, "instructions");
    let is_costly = |name: &str| {
        let misses = counter(ledger, name).unwrap_or(0.0);
        instructions.is_none_or(|all| misses * 1000.0 >= all * COSTLY_REMOTE)
    };
    if let Some(name) = REMOTE.into_iter().find(|name| is_more(name) && is_costly(name)) {
        let mut finding = Finding::new(FoundKind::RemoteMemory, Certainty::Likely);
        finding.evidence = evidence(ledger, base, &[name, "node-loads", "instructions"]);
        finding.weight = 0.02;
        finding.advise(&[RemedyId::NumaNode], context);
        found.push(finding);
    }
    found
}
