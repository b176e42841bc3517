//! Exits over time of a long recording: counts stay exact, and memory does not grow with its length. One test alone in its
//! process, for its memory is measured.

#![expect(clippy::unwrap_used, reason = "a test that cannot read /proc has failed")]

use vmtax_analyse::{Filter, LedgerBuilder};
use vmtax_events::{Detail, DetailKind, ExitKey, ExitRow, Isa, Losses, Reason, Recording, Tally};

const INTERVAL_NS: u64 = 100_000_000;
/// Ten minutes.
const INTERVALS: u64 = 6_000;
const KINDS: u64 = 300;

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
}

/// Exits of one kind in one interval.
fn row(interval: u64, kind: u64) -> ExitRow {
    let mut tally = Tally::default();
    (0..kind % 3 + 1).for_each(|_| tally.add(1000));
    ExitRow {
        interval_start_ns: interval * INTERVAL_NS,
        key: ExitKey {
            detail: Detail::new(DetailKind::MsrWrite, kind),
            ..ExitKey::of(1, Reason { isa: Isa::Svm, code: 0x7c, flags: 0 })
        },
        tally,
    }
}

#[test]
fn long_recordings_keep_exact_counts_in_bounded_memory() {
    let mut builder = LedgerBuilder::new(Filter::default(), INTERVAL_NS);
    // The ledger itself, and the timeline's numbers of kinds.
    (0..KINDS).for_each(|kind| builder.exit(&row(0, kind)));
    let before = resident_kb();
    for interval in 1..INTERVALS {
        (0..KINDS).for_each(|kind| builder.exit(&row(interval, kind)));
    }
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 4 << 10, "{grown} KB of {INTERVALS} intervals are kept");

    let ledger = builder.finish(Recording::default(), Losses::default(), true);
    let timeline = &ledger.timeline;
    assert!(timeline.slots.len() <= 600, "{}", timeline.slots.len());
    let joined = timeline.step_ns / INTERVAL_NS;
    for wanted in [0, 7, KINDS - 1] {
        let detail = Detail::new(DetailKind::MsrWrite, wanted);
        let series = timeline.series_of_kinds(|kind| kind.detail == detail);
        let each = ((wanted % 3 + 1) * joined) as f64;
        assert_eq!(series, vec![each; series.len()], "kind {wanted}");
    }
    let all = timeline.series_of_kinds(|_| true);
    let of_cause = timeline.series(|slot| slot.by_cause.values().map(|(count, _)| count).sum());
    assert_eq!(all, of_cause);
    assert!(!timeline.more_kinds);
}
