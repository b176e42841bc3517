//! What is built on rows: the ledger, tables over it, the table of nesting.

use vmtax_analyse::{
    Ancillary, By, Filter, KeyValue, Ledger, LedgerBuilder, Nested, NestedRow, SortedTable,
    TableKind,
};
use vmtax_events::{
    Cause, Coverage, Detail, DetailKind, ExitKey, Level, Losses, Outcome, Recording, Tally, TimeRow,
};

use super::script::{reason, rows};

/// Two VMs; vCPU 0 of the first runs a guest of its own.
const ROWS: &str = "
    exit @0 100/0 cpuid cpuid=1:0 kernel : 10 20
    exit @100 100/0 cpuid cpuid=1:0 kernel : 30
    exit @0 100/0 hlt halted : 1000
    exit @0 100/1 io port-out=0x80 user : 50 50
    exit @0 200/0 cpuid kernel : 7
    exit @0 100/0 L2 cpuid l1 : 40 40
    exit @0 100/0 L2 npf page-fault=0 kernel : 15
    exit @0 100/0 vmrun kernel of:cpuid : 5 5
    exit @0 100/0 msr msr-write=0x10 kernel of:cpuid : 4 4 4 -
    access @0 100/0 msr-write=0x10 : 3 3 3 -
    access @100 100/0 msr-write=0x10 : 4
    access @0 100/1 port-out=0x80 : 45 45
    access @0 200/0 msr-read=0x10 : 100
    access @0 100/0 L2 cpuid=1:0 : 9
    time @0 100/0 guest=100 kernel=30 halted=70
    time @100 100/0 guest=60 kernel=10 preempted=20 unknown=10
    time @0 100/1 guest=50 user=50
    time @0 200/0 halted=10";

fn ledger_with(filter: Filter, coverage: Coverage) -> Ledger {
    let rows = rows(ROWS);
    let mut builder = LedgerBuilder::new(filter, 100);
    rows.exits.iter().for_each(|r| builder.exit(r));
    rows.accesses.iter().for_each(|r| builder.access(r));
    rows.times.iter().for_each(|r| builder.time(r));
    builder.finish(Recording { coverage, ..Recording::default() }, Losses::default(), true)
}

fn all() -> Coverage {
    Coverage { exits: true, nested: true, userspace: true, ..Coverage::default() }
}

fn ledger() -> Ledger {
    ledger_with(Filter::default(), all())
}

fn tally(durations: &[u64], untimed: u64) -> Tally {
    let mut tally = Tally::default();
    durations.iter().for_each(|&ns| tally.add(ns));
    tally.add_untimed(untimed);
    tally
}

fn key(f: impl FnOnce(&mut ExitKey)) -> ExitKey {
    let mut key = ExitKey::of(100, reason("cpuid"));
    f(&mut key);
    key
}

#[test]
fn rows_of_a_key_add_up_over_intervals() {
    let ledger = ledger();
    assert_eq!((ledger.start_ns, ledger.end_ns), (0, 200));
    let cpuid = key(|k| k.detail = Detail::cpuid(1, 0));
    assert_eq!(ledger.exits[&cpuid], tally(&[10, 20, 30], 0));
    assert_eq!(ledger.exits.len(), 8);
    let total = ledger.total();
    assert_eq!((total.count, total.timed, total.time_ns), (16, 15, 1284));
    assert!(ledger.has_nesting() && ledger.complete);
    let want = TimeRow {
        vm: 100,
        wall_ns: 300,
        guest_ns: 160,
        exit_kernel_ns: 40,
        halted_ns: 70,
        preempted_ns: 20,
        unknown_ns: 10,
        ..TimeRow::default()
    };
    assert_eq!(ledger.time[&(100, 0)].sum, want);
    assert_eq!(ledger.time[&(100, 0)].tax(), Some(40.0 / 220.0));
    assert_eq!(ledger.time[&(100, 0)].contention(), Some(20.0 / 220.0));
    assert_eq!(ledger.time[&(200, 0)].tax(), None);
    assert_eq!(ledger.tax(), Some(90.0 / 320.0));
}

#[test]
fn a_filter_leaves_out_vms_and_vcpus() {
    let count = |vms: &[u32], vcpus: &[u32]| {
        let filter =
            Filter { vms: vms.iter().copied().collect(), vcpus: vcpus.iter().copied().collect() };
        let ledger = ledger_with(filter, all());
        let accesses: u64 = ledger.accesses.values().map(|t| t.count).sum();
        (ledger.total().count, accesses, ledger.time.len())
    };
    assert_eq!(count(&[], &[]), (16, 9, 3));
    assert_eq!(count(&[200], &[]), (1, 1, 1));
    assert_eq!(count(&[], &[1]), (2, 2, 1));
    assert_eq!(count(&[100], &[0]), (13, 6, 1));
    assert_eq!(count(&[200], &[1]), (0, 0, 0));
}

#[test]
fn levels_are_unknown_where_a_vm_nests_and_nothing_tells_them_apart() {
    let ledger = ledger_with(Filter::default(), Coverage { nested: false, ..all() });
    for key in ledger.exits.keys() {
        let want = if key.vm == 100 { Level::Unknown } else { Level::L1 };
        assert_eq!(key.level, want, "{key:?}");
    }
    for key in ledger.accesses.keys() {
        assert_eq!(key.level == Level::Unknown, key.vm == 100, "{key:?}");
    }
    assert!(ledger.has_nesting());
    assert_eq!(ledger.total(), self::ledger().total());
    assert!(!Nested::new(&ledger).known);

    // Without vmrun or an equivalent there is no nesting.
    let mut builder = LedgerBuilder::new(Filter::default(), 100);
    rows("exit cpuid kernel : 10").exits.iter().for_each(|r| builder.exit(r));
    let ledger = builder.finish(Recording::default(), Losses::default(), true);
    assert!(!ledger.has_nesting());
}

#[test]
fn outcomes_are_unknown_without_the_event_that_tells_them() {
    let ledger = ledger_with(Filter::default(), Coverage { userspace: false, ..all() });
    assert!(ledger.exits.keys().all(|k| k.outcome != Outcome::Kernel));
    for (outcome, count) in
        [(Outcome::Unknown, 11), (Outcome::Halted, 1), (Outcome::L1, 2), (Outcome::User, 2)]
    {
        let of = ledger.exits.iter().filter(|(k, _)| k.outcome == outcome);
        assert_eq!(of.map(|(_, t)| t.count).sum::<u64>(), count, "{outcome:?}");
    }
}

#[test]
fn every_grouping_of_exits_has_the_same_total() {
    let ledger = ledger();
    let total = ledger.total();
    for kind in [TableKind::Vmexit, TableKind::Cause] {
        for first in By::ALL {
            for second in By::ALL {
                let table = SortedTable::new(&ledger, kind, &[first, second]);
                assert_eq!(table.total, total, "{first:?} {second:?}");
                let mut sum = Tally::default();
                table.rows.iter().for_each(|r| sum.merge(&r.tally));
                assert_eq!(sum, total, "{first:?} {second:?}");
                let by = if first == second { vec![first] } else { vec![first, second] };
                assert_eq!(table.by, by);
                assert!(table.rows.iter().all(|r| r.key.len() == by.len()));
                let order = |r: &vmtax_analyse::SortedRow| {
                    (std::cmp::Reverse((r.tally.time_ns, r.tally.count)), r.key.clone())
                };
                assert!(table.rows.is_sorted_by_key(order));
            }
        }
    }
}

/// (key, count, time) of a table's rows.
fn shown(table: &SortedTable) -> Vec<(KeyValue, u64, u64)> {
    table.rows.iter().map(|r| (r.key[0], r.tally.count, r.tally.time_ns)).collect()
}

#[test]
fn exits_by_each_word() {
    let ledger = ledger();
    let by = |by| shown(&SortedTable::new(&ledger, TableKind::Vmexit, &[by]));
    let of = |word| KeyValue::Reason(reason(word));
    assert_eq!(
        by(By::Reason),
        [
            (of("hlt"), 1, 1000),
            (of("cpuid"), 6, 147),
            (of("io"), 2, 100),
            (of("npf"), 1, 15),
            (of("msr"), 4, 12),
            (of("vmrun"), 2, 10),
        ]
    );
    assert_eq!(
        by(By::Level),
        [(KeyValue::Level(Level::L1), 13, 1189), (KeyValue::Level(Level::L2), 3, 95),]
    );
    assert_eq!(
        by(By::Cause),
        [
            (KeyValue::Cause(Cause::Idle), 1, 1000),
            (KeyValue::Cause(Cause::Cpuid), 6, 147),
            (KeyValue::Cause(Cause::DevicePio), 2, 100),
            (KeyValue::Cause(Cause::MemoryFault), 1, 15),
            (KeyValue::Cause(Cause::NestedAncillary), 4, 12),
            (KeyValue::Cause(Cause::NestedEntry), 2, 10),
        ]
    );
    let detail = |kind, value| KeyValue::Detail(Detail::new(kind, value));
    assert_eq!(
        by(By::Detail),
        [
            (KeyValue::Detail(Detail::NONE), 6, 1097),
            (detail(DetailKind::PortOut, 0x80), 2, 100),
            (KeyValue::Detail(Detail::cpuid(1, 0)), 3, 60),
            (detail(DetailKind::PageFault, 0), 1, 15),
            (detail(DetailKind::MsrWrite, 0x10), 4, 12),
        ]
    );
    assert_eq!(
        by(By::Outcome),
        [
            (KeyValue::Outcome(Outcome::Halted), 1, 1000),
            (KeyValue::Outcome(Outcome::Kernel), 11, 104),
            (KeyValue::Outcome(Outcome::User), 2, 100),
            (KeyValue::Outcome(Outcome::L1), 2, 80),
        ]
    );
    assert_eq!(by(By::Vm), [(KeyValue::Vm(100), 15, 1277), (KeyValue::Vm(200), 1, 7)]);
    assert_eq!(
        by(By::Vcpu),
        [
            (KeyValue::Vcpu(100, 0), 13, 1177),
            (KeyValue::Vcpu(100, 1), 2, 100),
            (KeyValue::Vcpu(200, 0), 1, 7),
        ]
    );
    let causes: Vec<_> = ledger.causes().into_iter().map(|(c, t)| (c, t.time_ns)).collect();
    assert_eq!(causes[..2], [(Cause::Idle, 1000), (Cause::Cpuid, 147)]);
}

#[test]
fn tables_of_accesses() {
    let ledger = ledger();
    let detail = |kind, value| KeyValue::Detail(Detail::new(kind, value));
    let table = |kind, by: &[By]| shown(&SortedTable::new(&ledger, kind, by));
    let msrs =
        [(detail(DetailKind::MsrRead, 0x10), 1, 100), (detail(DetailKind::MsrWrite, 0x10), 5, 13)];
    assert_eq!(table(TableKind::Msr, &[]), msrs);
    // Words that say nothing of accesses are left out.
    assert_eq!(table(TableKind::Msr, &[By::Cause, By::Reason, By::Outcome]), msrs);
    assert_eq!(
        table(TableKind::Msr, &[By::Vm, By::Outcome]),
        [(KeyValue::Vm(200), 1, 100), (KeyValue::Vm(100), 5, 13)]
    );
    assert_eq!(table(TableKind::Ioport, &[By::Vcpu]), [(KeyValue::Vcpu(100, 1), 2, 90)]);
    assert_eq!(table(TableKind::Cpuid, &[By::Level]), [(KeyValue::Level(Level::L2), 1, 9)]);
    assert_eq!(table(TableKind::Mmio, &[]), []);
    assert_eq!(table(TableKind::Hypercall, &[]), []);
    assert_eq!(table(TableKind::Conversion, &[]), []);
    for kind in TableKind::ALL.into_iter().filter(|k| !k.is_exits()) {
        let total = SortedTable::new(&ledger, kind, &[]).total;
        for by in By::ALL {
            assert_eq!(SortedTable::new(&ledger, kind, &[by]).total, total, "{kind:?} {by:?}");
        }
    }
}

#[test]
fn what_an_exit_of_l2_costs() {
    let nested = Nested::new(&ledger());
    let ancillary = |word, detail, tally| Ancillary { reason: reason(word), detail, tally };
    let cpuid = NestedRow {
        reason: reason("cpuid"),
        l2: tally(&[40, 40], 0),
        to_l1: 2,
        ancillary: vec![
            ancillary("msr", Detail::new(DetailKind::MsrWrite, 0x10), tally(&[4, 4, 4], 1)),
            ancillary("vmrun", Detail::NONE, tally(&[5, 5], 0)),
        ],
    };
    let npf =
        NestedRow { reason: reason("npf"), l2: tally(&[15], 0), to_l1: 0, ancillary: Vec::new() };
    assert_eq!(cpuid.ancillary_per_exit(), Some(3.0));
    assert_eq!(npf.ancillary_per_exit(), None);
    assert_eq!(nested, Nested { known: true, rows: vec![cpuid, npf] });
}

#[test]
fn the_longest_times_do_not_overflow() {
    let mut builder = LedgerBuilder::new(Filter::default(), u64::MAX);
    for vcpu in 0..2 {
        let long = u64::MAX / 2 + 1;
        let row = TimeRow { vcpu, wall_ns: u64::MAX, exit_kernel_ns: long, ..TimeRow::default() };
        builder.time(&TimeRow { exit_user_ns: long - 1, ..row });
    }
    let ledger = builder.finish(Recording::default(), Losses::default(), true);
    assert_eq!(ledger.tax(), Some(1.0));
}
