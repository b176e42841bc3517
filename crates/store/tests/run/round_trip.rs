//! What goes in comes out.

use std::collections::HashSet;
use std::mem;

use vmtax_events::{
    AccessKey, AccessRow, Better, Coverage, Detail, DetailKind, Durations, Event, ExitKey, ExitRow,
    Isa, Level, Losses, NO_VCPU, OCTAVES, Outcome, Reason, Recording, Sample, Tally, TimeRow, Vm,
};
use vmtax_store::{Accelerator, Run, RunWriter, SEGMENT_ROWS, Span, StoredTable, is_run};

use crate::samples::{self, Rows, first_rows, options, read_events, read_rows, write_run};

/// The largest sum of squares that a run can hold.
const SUM_SQ_MAX: u128 = 10u128.pow(38) - 1;

fn recording() -> Recording {
    Recording {
        format: "perf.data".to_owned(),
        tool: "perf 6.1.192".to_owned(),
        command: "perf kvm \"stat\"\n record".to_owned(),
        hostname: "host\u{1b}[31m".to_owned(),
        kernel: "6.1.0".to_owned(),
        arch: "x86_64".to_owned(),
        cpu: "QEMU TCG CPU version 2.5+".to_owned(),
        cpus: 192,
        clock: "mono".to_owned(),
        emulated: Some("QEMU TCG".to_owned()),
        choice: Some("of one exit in 10".to_owned()),
        coverage: Coverage { exits: true, sched: true, page_fault: true, ..Coverage::default() },
        vms: vec![
            Vm { id: 1, name: "qemu".to_owned(), inferred: false, ..Vm::default() },
            Vm { id: u32::MAX, name: String::new(), inferred: true, ..Vm::default() },
        ],
        ..Recording::default()
    }
}

fn losses() -> Losses {
    Losses {
        recorder_lost: u64::MAX,
        recorder_gaps: 1,
        unpaired_exits: 2,
        unpaired_entries: 3,
        out_of_order: 4,
        undecodable: 5,
        sampled: 10,
        details_dropped: 6,
        accesses_dropped: 9,
        threads_dropped: 7,
        vms_merged: 8,
        missing: vec!["no kvm_exit".to_owned()],
        truncated: vec!["cut".to_owned()],
        notes: vec!["note".to_owned()],
    }
}

#[test]
fn rows_of_every_kind() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 1000, 300);
    let (rows, report) = read_rows(&folder);
    assert_eq!(rows, first_rows(1000));
    assert_eq!((report.rows, report.segments, report.damaged), (5000, 20, 0));
    assert_eq!(report.losses, Losses::default());
    let (events, report) = read_events(&folder);
    assert_eq!(events, (0..1000).map(samples::event).collect::<Vec<_>>());
    assert_eq!((report.rows, report.segments, report.damaged), (1000, 4, 0));
    assert!(is_run(&folder));
    let names = ["exits", "accesses", "time", "preempted", "bench", "events"];
    let expected: HashSet<String> = names
        .iter()
        .flat_map(|t| (1..=4).map(move |n| format!("{t}/{n:06}.parquet")))
        .chain(names.iter().map(|t| (*t).to_owned()))
        .chain(["run.json".to_owned()])
        .collect();
    assert_eq!(samples::tree(&folder).into_iter().collect::<HashSet<_>>(), expected);
}

#[test]
fn manifest() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    writer.exit(&samples::exit(5000)).unwrap();
    writer.time(&samples::time(70)).unwrap();
    writer.finish(&recording(), &losses()).unwrap();
    let run = Run::open(&folder).unwrap();
    let manifest = run.manifest();
    assert!(run.is_complete());
    assert_eq!(manifest.format_version, 1);
    assert_eq!(manifest.tool_version, options().tool_version);
    assert_eq!(manifest.command, options().command);
    assert_eq!(manifest.interval_ns, options().interval_ns);
    assert_eq!(manifest.labels, options().labels);
    assert_eq!(manifest.recording, recording());
    assert_eq!(manifest.losses, losses());
    assert_eq!(manifest.accelerator, Accelerator::Emulated("QEMU TCG".to_owned()));
    assert_eq!(manifest.span, Some(Span { start_ns: 70, end_ns: 6000 }));
    assert_eq!(manifest.segments_of(StoredTable::Exits).count(), 1);
    assert_eq!(manifest.segments_of(StoredTable::Events).count(), 0);
    let shape: String =
        manifest.created.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00Z");
    // The losses of the recording are among those of reading it.
    assert_eq!(read_rows(&folder).1.losses, losses());
}

#[test]
fn the_accelerator_is_never_claimed_without_ground() {
    for (cpu, emulated, expected) in [
        ("", None, "unknown"),
        ("AMD EPYC 9654", None, "unknown"),
        ("Intel(R) Core(TM)", Some("Bochs"), "emulated:Bochs"),
        ("", Some(""), "emulated:"),
    ] {
        let recording = Recording {
            cpu: cpu.to_owned(),
            emulated: emulated.map(str::to_owned),
            ..Recording::default()
        };
        let temp = tempfile::tempdir().unwrap();
        let writer = RunWriter::create(temp.path(), &options()).unwrap();
        writer.finish(&recording, &Losses::default()).unwrap();
        let run = Run::open(temp.path()).unwrap();
        assert_eq!(run.manifest().accelerator.to_string(), expected);
        assert_eq!(run.manifest().recording, recording);
    }
}

/// Rows with the smallest and the largest number in every column.
fn extreme(n: u64, durations: Durations) -> (ExitRow, AccessRow, TimeRow) {
    let n32 = n as u32;
    let tally = Tally {
        count: n,
        timed: n,
        time_ns: n,
        min_ns: n,
        max_ns: n,
        sum_sq: if n == 0 { 0 } else { SUM_SQ_MAX },
        durations,
    };
    let reason = Reason { isa: Isa::Unknown, code: n32, flags: n32 };
    let detail = Detail::new(DetailKind::Overflow, n);
    let exit = ExitRow {
        interval_start_ns: n,
        key: ExitKey {
            vm: n32,
            vcpu: n32,
            level: Level::Unknown,
            reason,
            detail,
            outcome: Outcome::Unknown,
            ancillary_of: Some(reason),
        },
        tally: tally.clone(),
    };
    let key = AccessKey { vm: n32, vcpu: n32, level: Level::L2, detail };
    let access = AccessRow { interval_start_ns: n, key, tally };
    let time =
        TimeRow { interval_start_ns: n, vm: n32, vcpu: n32, wall_ns: n, ..TimeRow::default() };
    (exit, access, samples::with_parts(time, |_| n))
}

#[test]
fn extreme_values() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut last = [0; OCTAVES];
    last[OCTAVES - 1] = 1;
    let [last, full] = [last, [u64::MAX; OCTAVES]].map(|octaves| Durations::of_octaves(&octaves));
    let mut bins = full.clone();
    [0, 1, 255, 256, 1 << 20, u64::MAX].into_iter().for_each(|ns| bins.add(ns));
    let rows = [
        extreme(0, Durations::default()),
        extreme(1, last),
        extreme(u64::MAX - 1, full),
        extreme(u64::MAX, bins),
    ];
    assert_eq!(rows[3].0.key.vcpu, NO_VCPU);
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    let mut expected = Rows::default();
    for (exit, access, time) in rows {
        writer.exit(&exit).unwrap();
        writer.access(&access).unwrap();
        writer.time(&time).unwrap();
        expected.exits.push(exit);
        expected.accesses.push(access);
        expected.times.push(time);
    }
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    assert_eq!(read_rows(&folder).0, expected);
}

#[test]
fn values_of_samples_are_stored_to_the_bit() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let values = [0.0, -0.0, 0.1, f64::MIN_POSITIVE / 2.0, f64::MAX, f64::NEG_INFINITY, f64::NAN];
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    for value in values {
        let sample = Sample { value, repeat: u32::MAX, ..samples::sample(0) };
        writer.sample(&sample).unwrap();
    }
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    let read: Vec<u64> = read_rows(&folder).0.samples.iter().map(|s| s.value.to_bits()).collect();
    assert_eq!(read, values.map(f64::to_bits));
    // A sample has no time.
    assert_eq!(Run::open(&folder).unwrap().manifest().span, None);
}

#[test]
fn sums_of_squares_beyond_the_decimal_saturate() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    let sums = [SUM_SQ_MAX - 1, SUM_SQ_MAX, SUM_SQ_MAX + 1, i128::MAX as u128 + 1, u128::MAX];
    for sum_sq in sums {
        let mut row = samples::exit(0);
        row.tally.sum_sq = sum_sq;
        writer.exit(&row).unwrap();
    }
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    let read: Vec<u128> = read_rows(&folder).0.exits.iter().map(|r| r.tally.sum_sq).collect();
    assert_eq!(read, sums.map(|s| s.min(SUM_SQ_MAX)));
}

#[test]
fn empty_tallies_and_runs_without_rows() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    let row = ExitRow { tally: Tally::default(), ..samples::exit(1) };
    writer.exit(&row).unwrap();
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    assert_eq!(read_rows(&folder).0.exits, [row]);

    let folder = temp.path().join("empty");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    writer.segment().unwrap();
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    let (rows, report) = read_rows(&folder);
    assert_eq!((rows, report.rows), (Rows::default(), 0));
    assert_eq!(Run::open(&folder).unwrap().manifest().span, None);
    assert_eq!(samples::tree(&folder), ["run.json"]);
}

#[test]
fn events_of_every_kind() {
    let kinds = samples::every_kind();
    let variants: HashSet<_> = kinds.iter().map(mem::discriminant).collect();
    assert_eq!(variants.len(), 31, "samples::every_kind misses a variant");
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    let mut expected = Vec::new();
    for (i, kind) in kinds.into_iter().enumerate() {
        let n = if i % 2 == 0 { u64::MAX } else { i as u64 };
        let n32 = n as u32;
        let event = Event { time_ns: n, pid: n32, tid: n32, cpu: n32, vcpu: n32, kind };
        writer.event(&event).unwrap();
        expected.push(event);
    }
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    assert_eq!(read_events(&folder).0, expected);
}

#[test]
fn events_only_when_asked_for() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let no_events = vmtax_store::CreateOptions { raw_events: false, ..options() };
    let mut writer = RunWriter::create(&folder, &no_events).unwrap();
    writer.event(&samples::event(1)).unwrap();
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    assert!(read_events(&folder).0.is_empty());
    assert_eq!(samples::tree(&folder), ["run.json"]);
}

/// The words are the format. A word that changes makes old runs unreadable.
#[test]
fn stored_words_do_not_change() {
    assert_eq!(samples::LEVELS.map(|l| l.name()), ["L1", "L2", "unknown"]);
    assert_eq!(samples::ISAS.map(|i| i.name()), ["vmx", "svm", "arm64", "unknown"]);
    let outcomes = ["kernel", "user", "halted", "l1", "unknown"];
    assert_eq!(Better::ALL.map(Better::name), ["lower", "higher", "neither"]);
    assert_eq!(samples::OUTCOMES.map(|o| o.name()), outcomes);
    let kinds: Vec<&str> = (0..).map_while(DetailKind::from_u8).map(DetailKind::name).collect();
    let expected = "none msr-read msr-write port-in port-out mmio-read mmio-write page-fault \
                    hypercall hyperv-hypercall xen-hypercall cpuid cr-read cr-write apic-read \
                    apic-write ghcb ghcb-msr tdvmcall vmcs-field overflow halt memory-fault to-private to-shared pre-fault \
                    mapped-fault mapped-fetch interrupt sysreg-read sysreg-write smccc wait gsi pic-pin ioapic-pin \
                    msi-vector apic-vector acked-pin apicv-inhibit apicv-change";
    assert_eq!(kinds.join(" "), expected);
}

#[test]
fn full_buffers_become_segments() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    // Two buffers and a half; one is written while the next fills.
    for i in 0..SEGMENT_ROWS as u64 * 5 / 8 {
        writer.exit(&samples::exit(i)).unwrap();
        writer.access(&samples::access(i)).unwrap();
        writer.time(&samples::time(i)).unwrap();
        writer.sample(&samples::sample(i)).unwrap();
    }
    drop(writer);
    let unfinished = Run::open(&folder).unwrap();
    assert!(!unfinished.is_complete());
    // One row of the group filled the buffer, and all four tables went out together.
    assert_eq!(unfinished.manifest().segments.len(), 2 * 4);
    let (rows, report) = read_rows(&folder);
    let written = rows.exits.len() + rows.accesses.len() + rows.times.len() + rows.samples.len();
    assert_eq!(written, 2 * SEGMENT_ROWS);
    assert!(rows.exits.iter().zip(0..).all(|(row, i)| *row == samples::exit(i)));
    assert_eq!(report.losses.truncated.len(), 1, "{:?}", report.losses);
    assert!(report.losses.truncated[0].contains("never finished"));
}

#[test]
fn an_unfinished_run_keeps_its_description() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    writer.describe(&recording(), &losses());
    writer.span(17, 18);
    writer.exit(&samples::exit(1)).unwrap();
    writer.segment().unwrap();
    writer.exit(&samples::exit(2)).unwrap();
    drop(writer);
    let run = Run::open(&folder).unwrap();
    assert_eq!(run.manifest().recording, recording());
    assert_eq!(run.manifest().span, Some(Span { start_ns: 17, end_ns: 18 }));
    assert_eq!(read_rows(&folder).0.exits, [samples::exit(1)]);
}
