//! What counters of the processor show beside a base.

use vmtax_events::Stat;

use super::super::certainty::Certainty;
use super::super::finding::{Evidence, Finding, Found};
use crate::Ledger;

/// How much more a counter must count than in the base.
const MORE: f64 = 1.5;

/// A counter: for a thousand instructions where those are counted in both.
fn counter(ledger: &Ledger, wanted: &str) -> Option<f64> {
    let stem = |name: &str| name.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let stat = |stat: &&Stat| stem(&stat.name) == wanted;
    ledger.stats.iter().find(stat).map(|stat| stat.value)
}

/// What counters show beside a base.
pub(in crate::explain) fn of_counters(ledger: &Ledger, base: Option<&Ledger>) -> Option<Finding> {
    let base = base?;
    let ratio = |name: &str| {
        let (here, there) = (counter(ledger, name)?, counter(base, name)?);
        (there > 0.0).then_some((here, there, here / there))
    };
    let (here, there, times) = ratio("branch-misses")?;
    let same_work = ratio("instructions").map_or(1.0, |(.., times)| times);
    if times < MORE * same_work {
        return None;
    }
    let mut finding = Finding::new(Found::BranchMisses, Certainty::Likely);
    finding.evidence.push(Evidence::Counter { name: "branch-misses", here, base: there });
    for name in ["dtlb-load-misses", "l1-dcache-load-misses", "llc-load-misses", "instructions"] {
        if let Some((here, base, _)) = ratio(name) {
            finding.evidence.push(Evidence::Counter { name, here, base });
        }
    }
    finding.weight = 0.02;
    Some(finding)
}
