//! What findings cost never adds up to more than the exit tax, and contention is never part of it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vmtax_analyse::explain::{Explanation, FindingCost};
use vmtax_analyse::remedy::are_opposites;
use vmtax_analyse::{DiffSide, Filter, LedgerBuilder};
use vmtax_events::{
    Coverage, Detail, DetailKind, Durations, ExitKey, ExitRow, Isa, Level, Losses, OCTAVES,
    Outcome, PreemptedRow, Reason, Recording, Tally, TimeRow, vmx,
};

fn detail() -> impl Strategy<Value = Detail> {
    let kinds: Vec<DetailKind> = DetailKind::ALL.to_vec();
    let values = prop_oneof![
        Just(0x608u64),
        Just(0x40),
        Just(0x3f8),
        Just(0x6e0),
        Just(0x838),
        Just(0x80b),
        Just(0xfed0_00f0),
        Just(0xfe00_3000),
        Just(0xfee0_0380),
        any::<u64>(),
    ];
    (proptest::sample::select(kinds), values).prop_map(|(kind, value)| Detail { kind, value })
}

fn key() -> impl Strategy<Value = ExitKey> {
    let outcomes = [Outcome::Kernel, Outcome::User, Outcome::Unknown, Outcome::L1];
    let isas = [Isa::Vmx, Isa::Svm];
    (
        proptest::sample::select(isas.to_vec()),
        0u32..0x404,
        detail(),
        proptest::sample::select(outcomes.to_vec()),
    )
        .prop_map(|(isa, code, detail, outcome)| ExitKey {
            detail,
            outcome,
            ..ExitKey::of(1, Reason { isa, code, flags: 0 })
        })
}

proptest! {
    #[test]
    fn costs_add_up_to_the_tax_at_most(
        exits in proptest::collection::vec((key(), 1u64..1000, 1u64..100_000, 0u64..100), 1..12),
        guest_ns in 0u64..1_000_000_000,
    ) {
        let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
        let (mut spent, mut preempted) = (0u64, 0u64);
        let mut seen = BTreeMap::new();
        for (key, count, each, percent) in &exits {
            if seen.insert(*key, ()).is_some() {
                continue;
            }
            let mut tally = Tally::default();
            (0..*count).for_each(|_| tally.add(*each));
            let taken = tally.time_ns * percent / 100;
            spent += tally.time_ns - taken;
            preempted += taken;
            builder.exit(&ExitRow { interval_start_ns: 0, key: *key, tally });
            // Of some the recording does not say who ran.
            if percent % 2 == 0 {
                let by = "stress".into();
                builder.preempted(&PreemptedRow { interval_start_ns: 0, key: *key, by, by_vcpu: None, count: 1, time_ns: taken });
            }
        }
        builder.time(&TimeRow {
            vm: 1,
            wall_ns: guest_ns + spent + preempted,
            guest_ns,
            exit_kernel_ns: spent,
            preempted_ns: preempted,
            ..TimeRow::default()
        });
        let coverage = Coverage { exits: true, sched: true, userspace: true, nested: true, ..Coverage::default() };
        let recording = Recording { coverage, ..Recording::default() };
        let ledger = builder.finish(recording, Losses::default(), true);
        let labels = BTreeMap::new();
        let side = DiffSide { source: "x", ledger: &ledger, labels: &labels, seconds: None };
        let explanation = Explanation::new(&side, None);
        let advised: Vec<_> = explanation
            .findings
            .iter()
            .flat_map(|finding| finding.remedies.iter().map(|advice| advice.remedy.id))
            .collect();
        for (at, one) in advised.iter().enumerate() {
            let opposite = advised[at..].iter().find(|other| are_opposites(*one, **other));
            prop_assert!(opposite.is_none(), "{one:?} and {opposite:?}");
        }
        let mut low = 0u64;
        for finding in &explanation.findings {
            let FindingCost::Time { low_ns, high_ns, base_ns, .. } = finding.cost else { continue };
            prop_assert!(low_ns <= high_ns && high_ns <= base_ns, "{}", finding.id());
            if finding.id() == "contention" {
                prop_assert_eq!(high_ns, preempted);
                for advice in &finding.remedies {
                    prop_assert!(advice.remedy.of_contention, "{}", advice.remedy.id);
                }
                continue;
            }
            low += low_ns;
            // What the remedy removes is of this subject: contention is not what a remedy for exits gives back.
            for advice in &finding.remedies {
                prop_assert!(!advice.remedy.of_contention, "{}", advice.remedy.id);
            }
        }
        prop_assert!(low <= spent, "{low} of {spent}");
    }
}

/// Counts and times of a stored run can be anything: none overflows.
#[test]
fn huge_counts_are_explained() {
    let (count, time_ns) = (u64::MAX, u64::MAX);
    let durations = Durations::of_octaves(&[u64::MAX; OCTAVES]);
    let tally = Tally { count, timed: count, time_ns, durations, ..Tally::default() };
    let half = u64::MAX / 2;
    let time = TimeRow {
        vm: 1,
        wall_ns: u64::MAX,
        exit_kernel_ns: half,
        exit_user_ns: half,
        ..TimeRow::default()
    };
    let codes = [vmx::HLT, vmx::EPT_VIOLATION, vmx::EXTERNAL_INTERRUPT, vmx::VMRESUME, vmx::VMREAD];
    let values = [1, 0x608, 0x6e0, 0x18d, 0xfe00_3000];
    let kinds =
        [(Level::L1, Outcome::Kernel), (Level::L1, Outcome::Halted), (Level::L2, Outcome::L1)];
    for has_times in [true, false] {
        let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
        for (kind, value) in
            DetailKind::ALL.into_iter().flat_map(|kind| values.map(|value| (kind, value)))
        {
            for (code, (level, outcome)) in codes.into_iter().flat_map(|c| kinds.map(|k| (c, k))) {
                let key = ExitKey {
                    level,
                    detail: Detail { kind, value },
                    outcome,
                    ..ExitKey::of(1, Reason { isa: Isa::Vmx, code, flags: 0 })
                };
                builder.exit(&ExitRow { interval_start_ns: 0, key, tally: tally.clone() });
            }
        }
        if has_times {
            builder.time(&time);
        }
        let recording = Recording { coverage: Coverage::ALL, ..Recording::default() };
        let ledger = builder.finish(recording, Losses::default(), true);
        let labels = BTreeMap::new();
        let side = DiffSide { source: "x", ledger: &ledger, labels: &labels, seconds: None };
        for base in [None, Some(&side)] {
            assert!(!Explanation::new(&side, base).findings.is_empty());
        }
    }
}
