//! The operations of a lab run: exits of a VM, its samples and its time, put together.

use vmtax_analyse::{Filter, Ledger, LedgerBuilder, OperationRow, Operations, Path, Ratio};
use vmtax_events::{Better, Coverage, Level, Losses, Recording, Sample, Vm};

use super::script::rows;

/// CPUID at both levels and an instruction that does not exit, 100 times each. VM 3 is not the first with its
/// name, one tick came between.
const ROWS: &str = "
    exit @0 1/0 cpuid cpuid=0:0 kernel : 10 10 10
    exit @100 1/0 cpuid cpuid=0:0 kernel : 10
    exit @0 1/0 interrupt kernel : 10
    exit @0 2/0 L2 cpuid cpuid=0:0 l1 : 5 5 5 5
    exit @0 2/0 L2 interrupt kernel : 5
    exit @0 2/1 L2 cpuid cpuid=0:0 l1 : 5
    exit @0 2/0 vmload kernel of:cpuid : 1 1 1 1 1 1 1 1 1 1
    exit @0 2/0 msr msr-read=0x1d9 kernel of:cpuid : 2 2 2 2 2
    exit @0 2/0 msr msr-read=0x1d9 user of:cpuid : 2
    exit @0 2/0 vmrun kernel of:cpuid : 3 3 3 3 3
    exit @0 2/0 hlt halted : 9
    exit @0 9/0 hlt halted : 9
    time @0 1/0 guest=20 kernel=70 user=10
    time @100 1/0 guest=20 kernel=60 preempted=20
    time @0 2/0 guest=30 l2=10 kernel=60 halted=10
    time @0 2/1 guest=30 l2=0 kernel=70";

fn sample(workload: &str, category: &str, repeat: u32, metric: &str, value: f64) -> Sample {
    Sample {
        workload: workload.to_owned(),
        category: category.to_owned(),
        repeat,
        metric: metric.to_owned(),
        unit: String::new(),
        value,
        better: Better::Neither,
    }
}

fn samples() -> Vec<Sample> {
    let paths = |workload: &str, category: &str, lengths: &[f64]| -> Vec<Sample> {
        let path = |(i, &n)| sample(workload, category, i as u32, Sample::PATH, n);
        lengths.iter().enumerate().map(path).collect()
    };
    [
        vec![sample("cpuid", "L1", 0, Sample::OPERATIONS, 4.0)],
        paths("cpuid", "L1", &[100.0, 103.0, 99.0]),
        paths("cpuid@L2", "L2", &[2_400.0, 2_410.0, 2_390.0, 2_402.0]),
        vec![sample("cpuid@L2", "L2", 0, Sample::OPERATIONS, 5.0)],
        vec![sample("rdtsc", "L1", 0, Sample::OPERATIONS, 1_000.0)],
        vec![sample("cpuid", "L1", 0, "temperature", 1e9)],
    ]
    .concat()
}

fn vms(names: &[(u32, &str)]) -> Vec<Vm> {
    names
        .iter()
        .map(|&(id, name)| Vm { id, name: name.to_owned(), inferred: false, ..Vm::default() })
        .collect()
}

fn ledger(filter: Filter, samples: &[Sample], vms: Vec<Vm>) -> Ledger {
    let rows = rows(ROWS);
    let mut builder = LedgerBuilder::new(filter, 100);
    rows.exits.iter().for_each(|r| builder.exit(r));
    rows.times.iter().for_each(|r| builder.time(r));
    samples.iter().for_each(|s| builder.sample(s));
    let coverage = Coverage { exits: true, nested: true, userspace: true, ..Coverage::default() };
    builder.finish(Recording { coverage, vms, ..Recording::default() }, Losses::default(), true)
}

const VMS: [(u32, &str); 3] = [(1, "cpuid"), (2, "cpuid@L2"), (3, "rdtsc")];

fn operations() -> Vec<OperationRow> {
    Operations::new(&ledger(Filter::default(), &samples(), vms(&VMS))).rows
}

/// (level, reason, ancillary, count) of each kind of exit.
fn kinds(row: &OperationRow) -> Vec<(Level, String, bool, u64)> {
    let kind = |e: &vmtax_analyse::OperationExit| {
        (e.level, e.reason.name().into_owned(), e.ancillary_of.is_some(), e.count)
    };
    row.exits.iter().map(kind).collect()
}

#[test]
fn an_operation_at_l1() {
    let rows = operations();
    let row = &rows[0];
    assert_eq!((row.name.as_str(), row.vm, row.level, row.count), ("cpuid", Some(1), Level::L1, 4));
    let expected = [(Level::L1, "cpuid", false, 4), (Level::L1, "interrupt", false, 1)];
    assert_eq!(kinds(row), expected.map(|(l, name, a, n)| (l, name.to_owned(), a, n)));
    assert_eq!(row.per_operation(4).exact(), Some(1));
    assert_eq!(row.exits_per_operation(), Ratio { part: 5, whole: 4 });
    assert_eq!(
        (row.exits_per_operation().exact(), row.exits_per_operation().value()),
        (None, Some(1.25))
    );
    assert_eq!(
        row.path,
        Some(Path { median: 100.0, min: 99.0, max: 103.0, apart: 3.0, batches: 3 })
    );
    assert_eq!(row.path.and_then(|p| p.spread()), Some(0.04));
    assert_eq!((row.l2_over_l1, row.l2_exits(), row.to_l1, row.ancillary()), (None, 0, 0, 0));
    let shares = [row.share_l0(), row.share_l1(), row.share_l2(), row.share_halted()];
    assert_eq!(shares, [Some(0.8), Some(0.2), None, Some(0.0)]);
}

#[test]
fn an_operation_at_l2() {
    let rows = operations();
    let row = &rows[1];
    assert_eq!((row.name.as_str(), row.vm, row.level, row.count), ("cpuid", Some(2), Level::L2, 5));
    use Level::{L1, L2};
    let expected = [
        (L2, "cpuid", false, 5),
        (L2, "interrupt", false, 1),
        (L1, "hlt", false, 1),
        (L1, "vmload", true, 10),
        (L1, "msr", true, 6),
        (L1, "vmrun", true, 5),
    ];
    assert_eq!(kinds(row), expected.map(|(l, name, a, n)| (l, name.to_owned(), a, n)));
    assert_eq!((row.l2_exits(), row.to_l1, row.ancillary()), (6, 5, 21));
    assert_eq!(row.ancillary_per_exit(), Ratio { part: 21, whole: 5 });
    assert_eq!(
        row.path,
        Some(Path { median: 2_401.0, min: 2_390.0, max: 2_410.0, apart: 1.0, batches: 4 })
    );
    assert_eq!(row.l2_over_l1, Some(24.01));
    let shares = [row.share_l0(), row.share_l1(), row.share_l2(), row.share_halted()];
    assert_eq!(shares, [Some(0.65), Some(0.25), Some(0.05), Some(0.05)]);
}

#[test]
fn an_operation_without_exits_is_there() {
    let rows = operations();
    assert_eq!(rows.len(), 3);
    let row = &rows[2];
    assert_eq!((row.name.as_str(), row.vm, row.count), ("rdtsc", Some(3), 1_000));
    assert_eq!((row.exits.len(), row.exits_per_operation().exact()), (0, Some(0)));
    assert_eq!((row.path, row.share_l0()), (None, None));
}

#[test]
fn only_a_lab_run_has_operations() {
    let other = [sample("redis", "snp", 0, "latency", 3.0), sample("cpuid", "L1", 0, "path", 3.0)];
    for samples in [&[][..], &other[..]] {
        let ledger = ledger(Filter::default(), samples, vms(&VMS));
        assert_eq!(Operations::new(&ledger), Operations::default());
    }
}

#[test]
fn a_filter_leaves_operations_out_and_not_what_they_are_compared_with() {
    let filter = Filter { vms: [2].into(), ..Filter::default() };
    let rows = Operations::new(&ledger(filter, &samples(), vms(&VMS))).rows;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].vm, rows[0].l2_over_l1), (Some(2), Some(24.01)));
}

#[test]
fn samples_of_a_stored_run_can_be_anything() {
    for bad in [f64::NAN, f64::INFINITY, -1.0, 0.5, 1e300] {
        let samples = [
            sample("cpuid", "L1", 0, Sample::OPERATIONS, bad),
            sample("cpuid", "L1", 0, Sample::PATH, f64::NAN),
            sample("cpuid", "L1", 1, Sample::PATH, f64::NEG_INFINITY),
            sample("cpuid", "L1", 2, Sample::PATH, 0.0),
            sample("cpuid@L2", "L2", 0, Sample::OPERATIONS, 1.0),
            sample("cpuid@L2", "L2", 0, Sample::PATH, 7.0),
        ];
        let rows = Operations::new(&ledger(Filter::default(), &samples, vms(&VMS))).rows;
        assert_eq!(rows[0].count, 0, "{bad}");
        assert_eq!(
            (rows[0].exits_per_operation().value(), rows[0].exits_per_operation().exact()),
            (None, None)
        );
        assert_eq!(rows[0].path.map(|p| (p.median, p.spread())), Some((0.0, None)));
        assert_eq!(rows[1].l2_over_l1, None, "no path to compare with");
    }
}

#[test]
fn names_that_are_shared_or_unknown() {
    let samples = [
        sample("twice", "L1", 0, Sample::OPERATIONS, 2.0),
        sample("twice", "L1", 1, Sample::OPERATIONS, 3.0),
        sample("nobody@L2", "SNP", 0, Sample::OPERATIONS, 1.0),
    ];
    let ledger = ledger(Filter::default(), &samples, vms(&[(9, "twice"), (1, "twice")]));
    let rows = Operations::new(&ledger).rows;
    // Both VMs of the name, and both windows.
    assert_eq!((rows[0].vm, rows[0].count), (Some(1), 5));
    assert_eq!(rows[0].exits.iter().map(|e| e.count).sum::<u64>(), 6);
    assert_eq!(
        (rows[1].name.as_str(), rows[1].vm, rows[1].level),
        ("nobody", None, Level::Unknown)
    );
}
