//! Memory that is mapped in small pages, by KVM's counters, by faults, or by the kind of VM.

use std::collections::BTreeMap;

use vmtax_events::{Detail, DetailKind};

use super::super::{Certainty, memory, percent};
use super::{Finding, Sums};
use crate::Ledger;
use crate::remedy::{Context, VmKind};

/// Faults in one region of 2 MiB from which on it is mapped in 4 KiB pages.
const FAULTS_OF_4K: u64 = 8;

/// Faults in one region of 2 MiB after a conversion from which on most of its 4 KiB pages were mapped anew: half of them.
const FAULTS_OF_A_SHATTERED_REGION: u64 = 256;
/// At most one conversion for so many faults: a conversion that is followed by the fault of its own page alone shatters nothing.
const FAULTS_OF_A_CONVERSION: u64 = 64;

/// Faults of each region of 2 MiB.
fn faults_by_region(ledger: &Ledger) -> BTreeMap<Detail, u64> {
    let mut regions: BTreeMap<Detail, u64> = BTreeMap::new();
    for (key, tally) in &ledger.exits {
        if key.detail.kind == DetailKind::PageFault {
            *regions.entry(key.detail).or_default() += tally.count;
        }
    }
    regions
}

/// Regions of 2 MiB that fault page by page while the guest converts a few pages: one private page in a region has KVM map all of
/// it in 4 KiB pages, and converting it back does not bring the large page back.
pub(in crate::explain) fn shattered(
    ledger: &Ledger,
    context: &Context,
    sums: &Sums,
) -> Option<Finding> {
    let conversions = sums.by_subject.get("conversions").map_or(0, |sum| sum.count);
    if conversions == 0 || memory::is_small(ledger) == Some(false) {
        return None;
    }
    let faults = faults_by_region(ledger);
    let bursts: Vec<u64> =
        faults.into_values().filter(|n| *n >= FAULTS_OF_A_SHATTERED_REGION).collect();
    let all: u64 = bursts.iter().sum();
    if bursts.is_empty() || all / conversions < FAULTS_OF_A_CONVERSION {
        return None;
    }
    let mut finding = Finding::new(
        "shattered-regions",
        "conversions of single pages break up huge pages: KVM maps a region of 2 MiB that is private in part in pages of 4 KiB",
        Certainty::Possible,
    );
    finding.evidence.push(format!(
        "{conversions} conversions, and {all} faults in {} regions of 2 MiB, {FAULTS_OF_A_SHATTERED_REGION} and more in each",
        bursts.len()
    ));
    finding.disproof = "pages_2m of `vmtax pages` does not fall while the guest converts, or there were no 2M pages before";
    finding.next = "`vmtax pages` before and after the conversions; `vmtax lab run --operation shatter,shatter-back` shows the same on an emulated host";
    finding.weight = 0.015;
    finding.advise(&["convert-regions"], context);
    Some(finding)
}

/// Regions of 2 MiB that fault often are mapped in small pages.
pub(in crate::explain) fn small_by_faults(ledger: &Ledger) -> Option<String> {
    let regions = faults_by_region(ledger);
    let often = regions.values().filter(|count| **count >= FAULTS_OF_4K).count();
    (often > 0 && often * 2 >= regions.len()).then(|| {
        format!(
            "{often} of {} regions of 2 MiB faulted {FAULTS_OF_4K} times and more",
            regions.len()
        )
    })
}

/// Memory that is mapped in small pages.
pub(in crate::explain) fn of_memory(
    ledger: &Ledger,
    context: &Context,
    sums: &Sums,
) -> Option<Finding> {
    let small = memory::is_small(ledger);
    let private = matches!(context.kind, VmKind::Tdx | VmKind::Snp);
    if small == Some(false) || small.is_none() && !private {
        // A few faults are the host's own doing (reclaim, balancing), whatever they show.
        let matters = sums.by_subject.get("memory-faults").is_some_and(|sum| sums.matters(sum));
        let faults = small_by_faults(ledger).filter(|_| small.is_none() && matters)?;
        let mut finding = Finding::new(
            "small-pages",
            "the guest's memory is mapped in pages of 4 KiB",
            Certainty::Likely,
        );
        finding.evidence.push(faults);
        return Some(finish_memory(finding, context));
    }
    let mut finding = match (small, private) {
        (Some(true), _) => Finding::new(
            "small-pages",
            "the guest's memory is mapped in pages of 4 KiB",
            Certainty::Certain,
        ),
        _ => Finding::new(
            "small-pages",
            "the guest's memory is private, which Linux maps in pages of 4 KiB",
            Certainty::Likely,
        ),
    };
    if let Some((small, all)) = memory::mapped(ledger) {
        finding.evidence.push(format!(
            "{} of {:.0} MiB mapped in pages of 4 KiB, by KVM's counters",
            percent(small / all),
            all / 1_048_576.0
        ));
    }
    if private {
        finding.evidence.push(format!(
            "it is a {} guest: Linux up to 7.3 maps guest_memfd in pages of 4 KiB",
            context.kind.name()
        ));
    }
    Some(finish_memory(finding, context))
}

fn finish_memory(mut finding: Finding, context: &Context) -> Finding {
    finding.disproof = "`vmtax pages` shows 2M and 1G";
    finding.next = "`vmtax pages` on the host while the VM runs; dTLB-load-misses in the guest; perf annotate of its hottest function";
    finding.weight = 0.015;
    if context.guest_memfd && !matches!(context.kind, VmKind::Tdx | VmKind::Snp) {
        finding.evidence.push(
            "it comes from guest_memfd: Linux up to 7.3 maps that in pages of 4 KiB, and no setting changes that"
                .to_owned(),
        );
    }
    finding.advise(&["huge-pages", "pre-fault"], context);
    finding
}
