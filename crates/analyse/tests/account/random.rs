//! Random recordings: the accounting against the model, and what holds whatever a recording says.

use std::collections::BTreeSet;

use proptest::prelude::*;
use vmtax_analyse::{Filter, LedgerBuilder};
use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{Event, EventKind, NO_VCPU, Reason, Recording, Tally, TimeRow};

use super::model::{ModelTotals, totals};
use super::script::{ScriptRows, parts, reason, run};

const TIDS: [u32; 4] = [101, 102, 201, 202];

fn any_reason() -> impl Strategy<Value = Reason> {
    prop::sample::select(
        &["cpuid", "npf", "hlt", "msr", "vmgexit", "MSR_WRITE", "PREEMPTION_TIMER", "HLT"][..],
    )
    .prop_map(reason)
}

fn within_exit() -> impl Strategy<Value = EventKind> {
    let mmio = prop::sample::select(
        &[MmioAccess::Read, MmioAccess::Write, MmioAccess::UnsatisfiedRead][..],
    );
    prop_oneof![
        (any::<bool>(), 0..3u32).prop_map(|(write, index)| EventKind::Msr {
            write,
            index,
            data: 0
        }),
        (any::<bool>(), 0..3u16).prop_map(|(write, port)| EventKind::Pio {
            write,
            size: 1,
            port,
            count: 1
        }),
        (mmio, 0..3u64).prop_map(|(access, gpa)| EventKind::Mmio { access, len: 4, gpa }),
        (0..3u64).prop_map(|gpa| EventKind::FastMmio { gpa }),
        (0..3u64)
            .prop_map(|number| EventKind::Hypercall { interface: HypercallInterface::Kvm, number }),
        (0..2u32).prop_map(|function| EventKind::Cpuid { function, index: 9 }),
        (0..3u64, prop::sample::select(&[4, 7, 0x15u64][..]))
            .prop_map(|(n, error_code)| EventKind::PageFault { gpa: n * 0x15_0000, error_code }),
        (any::<bool>(), 0..3u8).prop_map(|(write, number)| EventKind::Cr {
            write,
            number,
            value: 0
        }),
        (any::<bool>(), 0..3u32).prop_map(|(write, register)| EventKind::Apic {
            write,
            register,
            value: 0
        }),
        prop::sample::select(&[0x72, 0x78u64][..]).prop_map(|code| EventKind::GhcbEnter {
            code,
            info1: 0,
            info2: 0
        }),
        Just(EventKind::GhcbMsr { value: 0x1014 }),
        Just(EventKind::Tdvmcall { leaf: 0x20 }),
        (any::<bool>(), 0..3u32).prop_map(|(write, field)| EventKind::VmcsField { write, field }),
    ]
}

fn any_kind() -> impl Strategy<Value = EventKind> {
    prop_oneof![
        8 => (any_reason(), 0..2u64).prop_map(|(reason, info1)| EventKind::Exit { reason, info1, info2: 0 }),
        8 => Just(EventKind::Entry),
        8 => within_exit(),
        2 => prop::sample::select(&[2, 5, 10u32][..])
            .prop_map(|reason| EventKind::UserspaceExit { reason, errno: 0 }),
        2 => any_reason().prop_map(|reason| EventKind::NestedExit { reason }),
        2 => any_reason().prop_map(|reason| EventKind::NestedInject { reason }),
        1 => Just(EventKind::NestedEnter),
        1 => (0..40u64, any::<bool>()).prop_map(|(ns, polled)| EventKind::Wakeup { ns, polled }),
        3 => any::<bool>().prop_map(|preempted| EventKind::Switch { next_tid: 7, preempted }),
        1 => (0..2u64).prop_map(|count| EventKind::Lost { count }),
        1 => Just(EventKind::ThreadEnd),
    ]
}

/// Thread 102 and 202 run on an old kernel, where only the entry names the vCPU.
fn event(time_ns: u64, tid: u32, cpu: u32, kind: EventKind) -> Event {
    let names_vcpu = match kind {
        EventKind::Entry => true,
        EventKind::Exit { .. } => tid % 100 == 1,
        _ => false,
    };
    let vcpu = if names_vcpu { tid % 100 - 1 } else { NO_VCPU };
    Event { time_ns, pid: tid / 100 * 100, tid, cpu, vcpu, kind }
}

/// A recording that could be: in time order, and a thread does nothing while another has its CPU.
fn recording() -> impl Strategy<Value = Vec<Event>> {
    let step = (0..20u64, 0..TIDS.len(), 0..3u32, any_kind());
    prop::collection::vec(step, 0..160).prop_map(|steps| {
        let mut now = 1000;
        let mut away = BTreeSet::new();
        let mut events = Vec::new();
        for (pause, who, cpu, kind) in steps {
            now += pause;
            let tid = TIDS[who];
            let lost = matches!(kind, EventKind::Lost { .. });
            if !lost && away.remove(&tid) {
                let back = EventKind::Switch { next_tid: tid, preempted: false };
                events.push(Event { pid: 7, ..event(now, 7, cpu, back) });
                continue;
            }
            if matches!(kind, EventKind::Switch { .. }) {
                away.insert(tid);
            }
            let cpu = if lost && cpu == 2 && pause > 15 { u32::MAX } else { cpu };
            events.push(event(now, tid, cpu, kind));
        }
        events
    })
}

/// A recording that cannot be.
fn nonsense(last_ns: u64) -> impl Strategy<Value = Vec<Event>> {
    let step = (0..=last_ns, 0..TIDS.len(), 0..3u32, any_kind(), prop::bool::weighted(0.1));
    prop::collection::vec(step, 0..160).prop_map(|steps| {
        let made = steps.into_iter().map(|(now, who, cpu, kind, back)| match kind {
            EventKind::Switch { preempted, .. } if back => {
                event(now, 7, cpu, EventKind::Switch { next_tid: TIDS[who], preempted })
            }
            kind => event(now, TIDS[who], cpu, kind),
        });
        made.collect()
    })
}

/// Rows as the model gives them. Durations cannot be had from a tally, so the model's become tallies.
fn compare(rows: &ScriptRows, model: &ModelTotals) {
    let mut got = ModelTotals::default();
    let mut exits = std::collections::BTreeMap::<_, Tally>::new();
    for row in &rows.exits {
        let k = row.key;
        let id = (k.vm, k.vcpu, k.level, k.reason, k.outcome, k.detail, k.ancillary_of);
        exits.entry(id).or_default().merge(&row.tally);
    }
    let mut accesses = std::collections::BTreeMap::<_, Tally>::new();
    for row in &rows.accesses {
        let k = row.key;
        accesses.entry((k.vm, k.vcpu, k.level, k.detail)).or_default().merge(&row.tally);
    }
    for row in &rows.times {
        let time = got.time.entry(row.vm / 100 * 100).or_default();
        time.wall_ns += row.wall_ns;
        time.guest_ns += row.guest_ns;
        time.l2_ns += row.l2_ns;
        time.exit_kernel_ns += row.exit_kernel_ns;
        time.exit_user_ns += row.exit_user_ns;
        time.halted_ns += row.halted_ns;
        time.preempted_ns += row.preempted_ns;
        time.unknown_ns += row.unknown_ns;
    }
    let tally = |durations: &Vec<Option<u64>>| {
        let mut tally = Tally::default();
        for duration in durations {
            match duration {
                Some(ns) => tally.add(*ns),
                None => tally.add_untimed(1),
            }
        }
        tally
    };
    assert_eq!(exits, model.exits.iter().map(|(&id, d)| (id, tally(d))).collect());
    assert_eq!(accesses, model.accesses.iter().map(|(&id, d)| (id, tally(d))).collect());
    let time = model.time.iter().filter(|(_, t)| t.wall_ns > 0);
    assert_eq!(got.time, time.map(|(&pid, &t)| (pid, t)).collect());
    assert_eq!(rows.losses.unpaired_exits, model.unpaired_exits);
    assert_eq!(rows.losses.unpaired_entries, model.unpaired_entries);
}

fn check_tally(t: &Tally) {
    assert_eq!(t.durations.count(), t.timed);
    assert!(t.count >= t.timed && t.count > 0, "{t:?}");
    assert!(t.timed == 0 || t.min_ns <= t.max_ns && t.max_ns <= t.time_ns, "{t:?}");
    assert_eq!(t.timed == 0, t.min_ns == u64::MAX && t.max_ns == 0 && t.time_ns == 0);
}

/// What holds of every accounting: exits are in rows or in the losses, and each row is once in its interval.
fn check_rows(rows: &ScriptRows, events: &[Event]) {
    for tally in rows.exits.iter().map(|r| &r.tally).chain(rows.accesses.iter().map(|r| &r.tally)) {
        check_tally(tally);
    }
    let exits = events.iter().filter(|e| matches!(e.kind, EventKind::Exit { .. })).count() as u64;
    let counted: u64 = rows.exits.iter().map(|r| r.tally.count).sum();
    assert_eq!(counted + rows.losses.unpaired_exits, exits);
    let once: BTreeSet<_> = rows.exits.iter().map(|r| (r.interval_start_ns, r.key)).collect();
    assert_eq!(once.len(), rows.exits.len());
    let sum =
        |part: fn(&TimeRow) -> u64| rows.times.iter().map(|r| u128::from(part(r))).sum::<u128>();
    assert!(sum(|r| r.l2_ns) <= sum(|r| r.guest_ns));
    assert!(rows.exits.is_sorted_by_key(|r| r.interval_start_ns));
    assert!(rows.accesses.is_sorted_by_key(|r| r.interval_start_ns));
    assert!(rows.times.is_sorted_by_key(|r| r.interval_start_ns));
}

fn ledger_of(rows: &ScriptRows, interval_ns: u64) -> vmtax_analyse::Ledger {
    let mut builder = LedgerBuilder::new(Filter::default(), interval_ns);
    rows.exits.iter().for_each(|r| builder.exit(r));
    rows.accesses.iter().for_each(|r| builder.access(r));
    rows.times.iter().for_each(|r| builder.time(r));
    builder.finish(Recording::default(), rows.losses.clone(), true)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_accounting_is_the_models(events in recording(), interval_ns in prop::sample::select(&[1u64, 50, 1_000_000][..])) {
        let rows = run(interval_ns, &events);
        // Without one, exits are counted without times (losses.rs).
        if events.iter().any(|event| event.kind == EventKind::Entry) {
            compare(&rows, &totals(&events));
        }
        check_rows(&rows, &events);
        for row in &rows.times {
            prop_assert_eq!(row.wall_ns, parts(row));
        }
        for exit in &rows.ended {
            prop_assert!(exit.halted_ns + exit.preempted_ns <= exit.duration_ns());
        }
    }

    #[test]
    fn time_adds_up_whatever_the_order(events in nonsense(1000)) {
        let rows = run(100, &events);
        check_rows(&rows, &events);
        for row in &rows.times {
            prop_assert_eq!(row.wall_ns, parts(row));
        }
    }

    #[test]
    fn any_time_is_accounted(events in nonsense(u64::MAX), interval_ns in prop::sample::select(&[0u64, 1 << 40, u64::MAX][..])) {
        let rows = run(interval_ns, &events);
        check_rows(&rows, &events);
        let ledger = ledger_of(&rows, interval_ns);
        prop_assert!(ledger.tax().is_none_or(|tax| tax >= 0.0));
        for time in ledger.time.values() {
            prop_assert!(time.tax().is_none_or(|tax| tax >= 0.0));
        }
    }
}
