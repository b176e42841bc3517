//! Memory that is mapped in small pages, by KVM's counters, by faults, or by the kind of VM.

use std::collections::BTreeMap;

use vmtax_events::{Detail, DetailKind};

use super::super::certainty::Certainty;
use super::super::finding::{Evidence, Finding, FoundKind, PerWork, SIMULATED_WALKS};
use super::super::mapping;
use super::super::subject::Subject;
use super::super::sums::{RecordingSums, add, faults_wait, is_most, total};
use crate::Ledger;
use crate::remedy::{Context, IF_MAPPED_SMALL, IF_NOT_LOGGED, RemedyId, VmKind};
use crate::vm_facts::mapped;

/// Faults in one region of 2 MiB from which on it is mapped in 4 KiB pages.
const FAULTS_OF_4K: u64 = 8;
/// The same on arm64, whose pages have 4, 16 or 64 KiB: more than there are of 16 KiB.
const FAULTS_OF_4K_ON_ARM: u64 = 129;

/// Faults in one region of 2 MiB after a conversion from which on most of its 4 KiB pages were mapped anew: half of them.
const FAULTS_OF_A_SHATTERED_REGION: u64 = 256;
/// At most one conversion for this many faults: a conversion that is followed by the fault of its own page alone shatters nothing.
const FAULTS_OF_A_CONVERSION: u64 = 64;

/// Mapping a region of 2 MiB page by page takes so many faults. A few pages fault twice (two vCPUs at once, a read before a write).
const FAULTS_TO_MAP: u64 = 512 + 512 / 4;

/// Faults of each region of 2 MiB.
fn faults_by_region(ledger: &Ledger) -> BTreeMap<Detail, u64> {
    let mut regions: BTreeMap<Detail, u64> = BTreeMap::new();
    for (key, tally) in &ledger.exits {
        if key.detail.kind == DetailKind::PageFault {
            add(regions.entry(key.detail).or_default(), tally.count);
        }
    }
    regions
}

/// Regions of 2 MiB that fault page by page while the guest converts a few pages: one private page in a region has KVM map all of
/// it in 4 KiB pages, and converting it back does not bring the large page back.
pub(in crate::explain) fn shattered(
    ledger: &Ledger,
    context: &Context,
    sums: &RecordingSums,
) -> Option<Finding> {
    let conversions = sums.by_subject.get(&Subject::Conversions).map_or(0, |sum| sum.count);
    if conversions == 0 || mapping::is_small(ledger) == Some(false) {
        return None;
    }
    let faults = faults_by_region(ledger);
    let bursts: Vec<u64> =
        faults.into_values().filter(|n| *n >= FAULTS_OF_A_SHATTERED_REGION).collect();
    let all = total(bursts.iter().copied());
    if bursts.is_empty() || all / conversions < FAULTS_OF_A_CONVERSION {
        return None;
    }
    let mut finding = Finding::new(FoundKind::ShatteredRegions, Certainty::Possible);
    finding.evidence.push(Evidence::ConversionFaults {
        conversions,
        faults: all,
        regions: bursts.len(),
        each: FAULTS_OF_A_SHATTERED_REGION,
    });
    finding.weight = 0.015;
    finding.advise(&[RemedyId::ConvertRegions], context);
    Some(finding)
}

/// Pages that were mapped fault again: most faults are in regions that have more of them than pages. Something takes the pages
/// away or write-protects them. The lab's operations touch the same memory again by design.
pub(in crate::explain) fn refaults(ledger: &Ledger) -> Option<Evidence> {
    if ledger.recording.emulated.is_some() {
        return None;
    }
    let regions = faults_by_region(ledger);
    let all = total(regions.values().copied());
    let again = regions.values().filter(|count| **count > FAULTS_TO_MAP);
    let (regions, faults) =
        again.fold((0u64, 0u64), |(n, sum), count| (n + 1, sum.saturating_add(*count)));
    is_most(faults, all).then_some(Evidence::Refaults { faults, regions })
}

/// Regions of 2 MiB that fault often are mapped in small pages.
pub(in crate::explain) fn small_by_faults(ledger: &Ledger) -> Option<Evidence> {
    let regions = faults_by_region(ledger);
    let faults = if ledger.isa().facts().is_x86() { FAULTS_OF_4K } else { FAULTS_OF_4K_ON_ARM };
    let often = regions.values().filter(|count| **count >= faults).count();
    if refaults(ledger).is_some() {
        return None;
    }
    (often > 0 && often * 2 >= regions.len()).then_some(Evidence::FaultyRegions {
        often,
        all: regions.len(),
        faults,
    })
}

/// Memory that is mapped in small pages.
pub(in crate::explain) fn of_memory(
    (ledger, base): (&Ledger, Option<&Ledger>),
    context: &Context,
    sums: &RecordingSums,
) -> Option<Finding> {
    let small = mapping::is_small(ledger);
    let private = matches!(context.kind, VmKind::Tdx | VmKind::Snp);
    if small == Some(false) || small.is_none() && !private {
        // A few faults are the host's own doing (reclaim, balancing), whatever they show.
        let faults = [Subject::MemoryFaults, Subject::Stage2Faults];
        let mut sums_of_faults = faults.iter().filter_map(|subject| sums.by_subject.get(subject));
        let matters = sums_of_faults.any(|sum| sums.matters(sum));
        let only_waits = faults_wait(ledger, sums);
        let faults =
            small_by_faults(ledger).filter(|_| small.is_none() && matters && !only_waits)?;
        if context.may_shadow {
            return None;
        }
        let found = FoundKind::SmallPages { private: false };
        let mut finding = Finding::new(found, Certainty::Likely);
        finding.evidence.push(faults);
        let mut finding = finish_memory(finding, ledger, context);
        only_if_mapping(&mut finding);
        return Some(finding);
    }
    let counted = small == Some(true);
    let certainty = if counted { Certainty::Certain } else { Certainty::Likely };
    let mut finding = Finding::new(FoundKind::SmallPages { private: !counted }, certainty);
    let share = |(small, all): (f64, f64)| small / all;
    if let Some((small, all)) = mapped(ledger) {
        // The difference between two hosts is the answer to why one of them is slower.
        let base = base.and_then(mapped).map(share);
        finding.evidence.push(Evidence::MappedSmall { share: share((small, all)), all, base });
    }
    if private {
        finding.evidence.push(Evidence::PrivateMemory(context.kind));
    }
    Some(finish_memory(finding, ledger, context))
}

/// Misses of the TLB for a thousand instructions from which on they cost several percent: a walk takes tens of cycles.
const COSTLY_MISSES: f64 = 1.0;

/// The TLB misses more often than in the base; whether the host's pages are why, other findings say.
pub(in crate::explain) fn of_tlb(
    ledger: &Ledger,
    base: &Ledger,
    context: &Context,
) -> Option<Finding> {
    if mapping::is_small(ledger).is_some() || matches!(context.kind, VmKind::Tdx | VmKind::Snp) {
        return None;
    }
    let there = mapping::misses(base);
    let mut more: Vec<(&str, f64, f64, PerWork)> = mapping::misses(ledger)
        .into_iter()
        .filter_map(|(name, here, per)| {
            let (_, base, _) = there.iter().find(|(n, _, p)| *n == name && *p == per)?;
            (here > base * mapping::MORE_MISSES).then_some((name, here, *base, per))
        })
        .collect();
    more.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (_, most, _, per) = *more.first()?;
    let costly = per == PerWork::ThousandInstructions && most >= COSTLY_MISSES;
    let certainty = if costly { Certainty::Likely } else { Certainty::Possible };
    let mut finding = Finding::new(FoundKind::TlbMisses, certainty);
    finding.evidence.extend(more.iter().map(|(name, here, base, per)| Evidence::MoreMisses {
        name: (*name).to_owned(),
        here: *here,
        base: *base,
        per: *per,
    }));
    finding.weight = 0.02;
    finding.advise(&[RemedyId::HugePages], context);
    for advice in &mut finding.remedies {
        advice.condition = Some(IF_MAPPED_SMALL);
    }
    Some(finding)
}

/// Faults alone do not tell mapping from tracking of writes.
pub(in crate::explain) fn only_if_mapping(finding: &mut Finding) {
    for advice in &mut finding.remedies {
        advice.condition.get_or_insert(IF_NOT_LOGGED);
    }
}

fn finish_memory(mut finding: Finding, ledger: &Ledger, context: &Context) -> Finding {
    finding.weight = 0.015;
    if context.guest_memfd && !matches!(context.kind, VmKind::Tdx | VmKind::Snp) {
        finding.evidence.push(Evidence::GuestMemfd);
    }
    if ledger.isa().facts().is_x86() {
        finding.evidence.push(Evidence::SimulatedWalks(&SIMULATED_WALKS));
    }
    finding.advise(&[RemedyId::HugePages], context);
    if context.guest_memfd {
        finding.advise(&[RemedyId::PreFault], context);
    }
    finding
}

/// What helps a confidential VM that waits for its private memory. One that does not has nothing of it.
pub(in crate::explain) fn advise_private(all: &mut [Finding], context: &Context) {
    let ids: &[RemedyId] = match context.kind {
        VmKind::Tdx => &[RemedyId::PreFault, RemedyId::PrivateHugePages],
        VmKind::Snp => &[RemedyId::PreFault],
        _ => return,
    };
    let small = all.iter_mut().find(|one| matches!(one.found, FoundKind::SmallPages { .. }));
    if let Some(finding) = small {
        finding.advise(ids, context);
    }
}
