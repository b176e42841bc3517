//! What interrupts the guest, and what inhibits APICv, where the recording has KVM's tracepoints of them.

use std::collections::BTreeMap;

use vmtax_events::apicv::ApicvInhibit;
use vmtax_events::{Detail, DetailKind, interrupt};

use super::certainty::Certainty;
use super::finding::{Evidence, Finding, FoundKind, Most};
use super::subject::Subject;
use super::sums::{RecordingSums, add, halts, is_half};
use crate::Ledger;
use crate::remedy::{Context, RemedyId};

vmtax_events::words! {
    /// A timer of a PC that interrupts by itself, once it is set.
    pub enum LineTimer {
        /// KVM's PIT.
        Pit = "PIT",
        /// The line of both.
        PitOrHpet = "PIT or HPET",
        /// The real-time clock, or the HPET in its place.
        Rtc = "RTC",
    }
}

/// Interrupts that are named.
const NAMED: usize = 3;
/// From this rate on a timer is one of a clock: the RTC of Windows ticks 64 times a second, the PIT that a firmware leaves behind 18.
const TICKS: f64 = 50.0;
/// Ends of halts for an interrupt, at most and at least, where it is what wakes.
const WAKES: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Interrupts of the guest by what raised them, most frequent first: at the first place that the recording has, as one interrupt passes several.
fn raised(ledger: &Ledger) -> Vec<(Detail, u64)> {
    use DetailKind as K;
    let of = |kinds: &[DetailKind]| {
        let mut all: BTreeMap<Detail, u64> = BTreeMap::new();
        for (key, tally) in
            ledger.accesses.iter().filter(|(key, _)| kinds.contains(&key.detail.kind))
        {
            add(all.entry(key.detail).or_default(), tally.count);
        }
        all
    };
    let lines = [K::Gsi, K::IoapicPin, K::PicPin, K::AckedPin].map(|kind| of(&[kind]));
    let lines = lines.into_iter().find(|all| !all.is_empty()).unwrap_or_default();
    let mut all: Vec<(Detail, u64)> = lines.into_iter().chain(of(&[K::MsiVector])).collect();
    if all.is_empty() {
        all = of(&[K::ApicVector]).into_iter().collect();
    }
    all.sort_by_key(|(detail, count)| (std::cmp::Reverse(*count), *detail));
    all
}

/// Seconds of the recording.
fn seconds(ledger: &Ledger, sums: &RecordingSums) -> Option<f64> {
    let ns = ledger.time.values().map(|time| time.sum.wall_ns).max().unwrap_or(0);
    (sums.timed && ns > 0).then_some(ns as f64 / 1e9)
}

/// The timer whose line this is. Pin 2 of the I/O APIC has the PIT's (QEMU, hw/i386/kvm/ioapic.c and ACPI's interrupt override).
fn timer(detail: Detail) -> Option<LineTimer> {
    match (detail.kind, detail.value) {
        (DetailKind::Gsi, interrupt::BY_PIT) => Some(LineTimer::Pit),
        (DetailKind::Gsi | DetailKind::PicPin, 0) | (DetailKind::IoapicPin, 2) => {
            Some(LineTimer::PitOrHpet)
        }
        (DetailKind::Gsi | DetailKind::PicPin | DetailKind::IoapicPin, 8) => Some(LineTimer::Rtc),
        _ => None,
    }
}

/// What interrupts the guest most, a second.
pub(super) fn wakers(ledger: &Ledger, sums: &RecordingSums) -> Option<Evidence> {
    let seconds = seconds(ledger, sums)?;
    let all: Vec<(Detail, f64)> = raised(ledger)
        .into_iter()
        .map(|(detail, count)| (detail, count as f64 / seconds))
        .collect();
    (!all.is_empty()).then(|| Evidence::Wakers(Most::of(all, NAMED)))
}

/// A timer's line that is raised at a clock's rate.
pub(super) fn line_timer(
    ledger: &Ledger,
    sums: &RecordingSums,
) -> Option<(LineTimer, Detail, f64)> {
    let seconds = seconds(ledger, sums)?;
    raised(ledger)
        .into_iter()
        .map(|(detail, count)| (detail, count as f64 / seconds))
        .filter(|(_, rate)| *rate >= TICKS)
        .find_map(|(detail, rate)| Some((timer(detail)?, detail, rate)))
}

/// The timer on a line is what ends most halts.
pub(super) fn wakes(ledger: &Ledger, sums: &RecordingSums) -> Option<LineTimer> {
    let (timer, _, rate) = line_timer(ledger, sums)?;
    let halts = halts(ledger).timed as f64 / seconds(ledger, sums)?;
    (halts > 0.0 && WAKES.contains(&(rate / halts))).then_some(timer)
}

/// A timer of the PC interrupts the guest by itself.
pub(super) fn of_line_timer(
    ledger: &Ledger,
    sums: &RecordingSums,
    context: &Context,
) -> Option<Finding> {
    let (timer, detail, rate) = line_timer(ledger, sums)?;
    let mut finding = Finding::new(FoundKind::LineTimer(timer), Certainty::Certain);
    finding.evidence.push(Evidence::Wakers(Most { named: vec![(detail, rate)], more: 0 }));
    let halts = halts(ledger).timed as f64 / seconds(ledger, sums)?;
    if halts > 0.0 {
        finding.evidence.push(Evidence::HaltsEnd(halts));
    }
    if context.is_windows && timer != LineTimer::Pit {
        finding.advise(&[RemedyId::HvStimer], context);
    }
    finding.weight = 0.001;
    Some(finding)
}

/// Most interrupts on lines are a timer's: they need no MSI.
pub(super) fn lines_are_a_timers(ledger: &Ledger, sums: &RecordingSums) -> bool {
    let lines: Vec<(Detail, u64)> = raised(ledger)
        .into_iter()
        .filter(|(detail, _)| {
            !matches!(detail.kind, DetailKind::MsiVector | DetailKind::ApicVector)
        })
        .collect();
    let all = lines.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    let of_timer = line_timer(ledger, sums).and_then(|(_, timer, _)| {
        lines.iter().find(|(detail, _)| *detail == timer).map(|(_, count)| *count)
    });
    of_timer.is_some_and(|count| is_half(count, all))
}

/// What inhibits APICv or AVIC at the end of the recording: KVM's numbers, with what they mean in its kernel.
pub(super) fn inhibits(ledger: &Ledger) -> Vec<(u64, Option<ApicvInhibit>)> {
    let of = |detail: Detail| detail.kind == DetailKind::ApicvInhibit;
    let mut all: Vec<u64> =
        ledger.accesses.keys().filter(|key| of(key.detail)).map(|key| key.detail.value).collect();
    all.sort_unstable();
    all.dedup();
    let kernel = &ledger.recording.kernel;
    all.into_iter().map(|number| (number, ApicvInhibit::of(number, kernel))).collect()
}

/// Exits that APICv or AVIC would spare, while something inhibits them. Without exits that something does is all there is.
pub(super) fn of_inhibits(
    ledger: &Ledger,
    sums: &RecordingSums,
    context: &Context,
) -> Option<Finding> {
    let spared = [Subject::NoVirtualApic, Subject::Ipi, Subject::HypervApic];
    let matters = spared
        .iter()
        .any(|subject| sums.by_subject.get(subject).is_some_and(|sum| sums.matters(sum)));
    let all = inhibits(ledger);
    let (_, first) = all.first().filter(|_| matters || sums.total == 0)?;
    let mut finding = Finding::new(FoundKind::ApicvInhibited(*first), Certainty::Certain);
    finding.evidence.push(Evidence::Inhibits(all.clone()));
    let remedies: Vec<RemedyId> = all.iter().filter_map(|(_, inhibit)| remedy(*inhibit)).collect();
    finding.advise(&remedies, context);
    finding.weight = 0.001;
    Some(finding)
}

/// What takes a reason away, where a setting does.
fn remedy(inhibit: Option<ApicvInhibit>) -> Option<RemedyId> {
    match inhibit? {
        ApicvInhibit::Hyperv => Some(RemedyId::HvApicv),
        ApicvInhibit::PitReinject => Some(RemedyId::PitDiscard),
        _ => None,
    }
}
