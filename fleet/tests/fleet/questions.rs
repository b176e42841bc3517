//! The questions with names, on runs whose answers are known.

use std::path::Path;

use serde_json::json;
use vmtax_events::{Better, Losses, Recording, Sample, Stat, TimeRow, Vm};
use vmtax_store::{CreateOptions, RunWriter};

use crate::recorded::{INTEL, NESTED, PLAIN, SaidRun, import, refuses, rows, run, stderr};

pub(crate) const NAMES: [&str; 6] =
    ["top-causes", "tax-rose", "kernels", "small-pages", "nested", "worst-vcpus"];

/// A run of rows that are given.
fn write(run: &Path, recording: Recording, rows: &dyn Fn(&mut RunWriter)) {
    std::fs::create_dir_all(run.parent().unwrap()).unwrap();
    let mut writer = RunWriter::create(
        run,
        &CreateOptions { interval_ns: 1_000_000_000, ..CreateOptions::default() },
    )
    .unwrap();
    rows(&mut writer);
    writer.finish(&recording, &Losses::default()).unwrap();
}

fn of(host: &str, kernel: &str) -> Recording {
    Recording {
        hostname: host.to_owned(),
        kernel: kernel.to_owned(),
        cpu: "C".to_owned(),
        ..Recording::default()
    }
}

/// Student's sleep data, as R has it (`sleep`), whose Welch test R's manual shows: t = 1.8608, df = 17.776.
const BEFORE: [i64; 10] = [7, -16, -2, -12, -1, 34, 37, 8, 0, 20];
const SINCE: [i64; 10] = [19, 8, 11, 1, -1, 44, 55, 16, 46, 34];

/// A host whose tax on ten days before and since is that of the data, in percent, ten more, and `more` since.
fn student(folder: &Path, host: &str, more: i64) {
    for (month, tenths, more) in [(1, BEFORE, 0), (2, SINCE, more)] {
        for (day, tenth) in tenths.into_iter().enumerate() {
            let path = folder.join(format!("tree/host={host}/date=2026-0{month}-{:02}/0", day + 1));
            let exit_kernel_ns = (tenth + 100 + more) as u64 * 1_000_000;
            write(&path, of(host, "6.1"), &|writer| {
                // Halted time does not count.
                let row = TimeRow {
                    vm: 1,
                    wall_ns: 3_000_000_000,
                    halted_ns: 2_000_000_000,
                    exit_kernel_ns,
                    guest_ns: 1_000_000_000 - exit_kernel_ns,
                    ..TimeRow::default()
                };
                writer.time(&row).unwrap();
            });
        }
    }
}

#[test]
fn tax_rose_is_welchs_test() {
    let folder = tempfile::tempdir().unwrap();
    student(folder.path(), "same", 0);
    student(folder.path(), "rose", 20);
    student(folder.path(), "fell", -60);
    let rows =
        rows(folder.path(), &["--question", "tax-rose", "--param", "since=2026-02-01", "tree"]);
    // t = 1.8608 is no rise at this confidence.
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0][..4], [json!("rose"), json!(false), json!(10), json!(10)]);
    let number = |i: usize| rows[0][i].as_f64().unwrap();
    let error = 1.58 / 1.8608;
    for (i, expected, within) in [
        (4, 10.75, 1e-9),
        (5, 14.33, 1e-9),
        (6, 3.58, 1e-9),
        (7, error, 1e-4),
        (8, 17.776, 1e-3),
        // The quantile of t at 0.99 with 15 degrees of freedom, from the usual table.
        (9, 3.58 - 2.602 * error, 1e-3),
    ] {
        assert!(
            (number(i) - expected).abs() < within,
            "column {i}: {} is not {expected}",
            number(i)
        );
    }
}

#[test]
fn kernels_that_added_exits() {
    let folder = tempfile::tempdir().unwrap();
    for (day, kernel, exits) in [(1, "6.1", 100u64), (2, "6.9", 150), (3, "6.12", 100)] {
        let vms = vec![
            Vm { id: 1, name: "cpuid".to_owned(), inferred: false, ..Vm::default() },
            Vm { id: 2, name: "hlt".to_owned(), inferred: false, ..Vm::default() },
        ];
        let recording =
            Recording { vms, emulated: Some("QEMU TCG".to_owned()), ..of("lab", kernel) };
        write(
            &folder.path().join(format!("tree/host=lab/date=2026-01-0{day}/0")),
            recording,
            &|writer| {
                for (vm, workload, exits) in [(1, "cpuid", exits), (2, "hlt", 100)] {
                    let mut row = crate::causes::exit(vm);
                    (0..exits).for_each(|_| row.tally.add(5));
                    writer.exit(&row).unwrap();
                    let sample = Sample {
                        workload: workload.to_owned(),
                        category: "L1".to_owned(),
                        repeat: 0,
                        metric: Sample::OPERATIONS.to_owned(),
                        unit: "count".to_owned(),
                        value: 100.0,
                        better: Better::Neither,
                    };
                    writer.sample(&sample).unwrap();
                }
            },
        );
    }
    let ask = |base: &str| {
        rows(folder.path(), &["--question", "kernels", "--param", &format!("base={base}"), "tree"])
    };
    let added = json!([["cpuid", "C", true, "6.1", "6.9", 1.0, 1.5, 0.5]]);
    assert_eq!(json!(ask("")), added);
    assert_eq!(json!(ask("6.1")), added);
    assert_eq!(json!(ask("6.9")), json!([]));
}

#[test]
fn small_pages() {
    let folder = tempfile::tempdir().unwrap();
    for (host, small, large) in
        [("few", 256.0, 1000.0), ("many", 51_200.0, 100.0), ("none", 0.0, 5.0)]
    {
        write(&folder.path().join(format!("tree/{host}")), of(host, "6.1"), &|writer| {
            // Two readings: their mean counts.
            for (time_ns, more) in [(1, 0.0), (2, small)] {
                for (name, value) in [
                    ("pages_4k", small / 2.0 + more),
                    ("pages_2m", large),
                    ("pages_1g", 0.0),
                    ("other", 9e9),
                ] {
                    let unit = "pages".to_owned();
                    writer
                        .stat(&Stat { time_ns, vm: 1, name: name.to_owned(), unit, value })
                        .unwrap();
                }
            }
        });
    }
    let found = rows(folder.path(), &["--question", "small-pages", "tree"]);
    assert_eq!(json!(found[0][..1]), json!(["many"]));
    assert_eq!(json!(found[0][3..]), json!([1, 200.0, 400.0, 50.0]));
    assert_eq!(found.len(), 1);
    let all = rows(folder.path(), &["--question", "small-pages", "--param", "percent=0", "tree"]);
    assert_eq!(all.len(), 3);
}

#[test]
fn nested_exits_and_worst_vcpus_of_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let counted = import(NESTED, &folder.path().join("run"), PLAIN);
    let ancillary: u64 =
        counted.exits.iter().filter(|r| r.key.ancillary_of.is_some()).map(|r| r.tally.count).sum();
    let found = rows(folder.path(), &["--question", "nested", "--param", "limit=1000", "run"]);
    assert_eq!(found.iter().map(|row| row[4].as_u64().unwrap()).sum::<u64>(), ancillary);
    assert!(ancillary > 0);
    for row in &found {
        let of_l2: u64 = counted
            .exits
            .iter()
            .filter(|r| {
                r.key.level.name() == "L2" && r.key.reason.name() == row[2].as_str().unwrap()
            })
            .map(|r| r.tally.count)
            .sum();
        assert_eq!(row[6].as_u64(), Some(of_l2).filter(|&n| n > 0), "{row:?}");
    }
    let found = rows(folder.path(), &["--question", "worst-vcpus", "run"]);
    let mut sum = TimeRow::default();
    for row in counted.time.iter().filter(|t| {
        u64::from(t.vm) == found[0][3].as_u64().unwrap()
            && u64::from(t.vcpu) == found[0][4].as_u64().unwrap()
    }) {
        sum.wall_ns += row.wall_ns;
        sum.halted_ns += row.halted_ns;
        sum.unknown_ns += row.unknown_ns;
        sum.exit_kernel_ns += row.exit_kernel_ns;
        sum.exit_user_ns += row.exit_user_ns;
        sum.preempted_ns += row.preempted_ns;
    }
    let expected = 100.0 * vmtax_analyse::ledger::tax(&sum).unwrap();
    assert!((found[0][6].as_f64().unwrap() - expected).abs() < 1e-9, "{:?} {expected}", found[0]);
}

#[test]
fn classes_of_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = ([("rack", "r1")], [("rack", "r2"), ("zone", "z,=")]);
    import(NESTED, &folder.path().join("tree/a"), SaidRun { labels: &a, kernel: "6.1", ..PLAIN });
    import(
        NESTED,
        &folder.path().join("tree/b"),
        SaidRun { labels: &b, kernel: "6.9", host: "i", ..PLAIN },
    );
    import(INTEL, &folder.path().join("tree/c"), SaidRun { emulated: Some("Bochs"), ..PLAIN });
    let classes = |class: &str| {
        let param = format!("class={class}");
        let rows = rows(
            folder.path(),
            &["--question", "top-causes", "--param", &param, "--param", "limit=1000", "tree"],
        );
        let mut classes: Vec<String> = rows
            .iter()
            .map(|row| format!("{} {}", row[0].as_str().unwrap_or("-"), row[1]))
            .collect();
        classes.sort();
        classes.dedup();
        classes
    };
    assert_eq!(classes("rack"), ["- true", "r1 false", "r2 false"]);
    assert_eq!(classes("zone"), ["- false", "- true", "z%2C%3D false"]);
    assert_eq!(classes("kernel"), ["6.1 false", "6.1 true", "6.9 false"]);
    assert_eq!(classes("host"), ["h false", "h true", "i false"]);
}

#[test]
fn invalid_queries() {
    let folder = tempfile::tempdir().unwrap();
    import(NESTED, &folder.path().join("run"), PLAIN);
    let ask = |name: &'static str, param: &'static str| {
        ["query", "--question", name, "--param", param, "run"]
    };
    refuses(
        folder.path(),
        &ask("nothing", "a=1"),
        2,
        &["there is no question \"nothing\"", "top-causes"],
    );
    refuses(folder.path(), &ask("nested", "a=1"), 2, &["has no parameter \"a\"", "limit"]);
    refuses(
        folder.path(),
        &ask("nested", "limit=many"),
        2,
        &["--param limit: \"many\" is not a whole number"],
    );
    refuses(folder.path(), &ask("tax-rose", "since=2026"), 2, &["is not a day"]);
    let list = run(folder.path(), &["query", "--list"]);
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(
        list.status.success() && NAMES.iter().all(|name| text.contains(&format!("{name}: "))),
        "{}",
        stderr(&list)
    );
}
