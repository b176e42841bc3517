//! A filter on what a run says of itself opens the files of those runs alone.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::json;

use crate::recorded::{NESTED, PLAIN, SaidRun, import, refuses, rows, run, stderr};

/// Three hosts, two days, two kernels: `tree/host=H/date=D/0`. Returns the rows of exits of each.
fn tree(folder: &Path) -> usize {
    static MADE: OnceLock<(tempfile::TempDir, usize)> = OnceLock::new();
    let (made, exits) = MADE.get_or_init(|| {
        let made = tempfile::tempdir().unwrap();
        let exits = make(made.path());
        (made, exits)
    });
    let copied = Command::new("cp").arg("-r").arg(made.path().join("tree")).arg(folder).status();
    assert!(copied.unwrap().success());
    *exits
}

fn make(folder: &Path) -> usize {
    let mut exits = 0;
    for (host, kernel) in [("a", "6.1"), ("b", "6.1"), ("c", "6.9")] {
        for date in ["2026-01-01", "2026-01-02"] {
            let labels = [("rack", if host == "a" { "r1" } else { "r2" })];
            let said = SaidRun {
                host,
                kernel,
                labels: &labels,
                emulated: (host == "c").then_some("QEMU TCG"),
            };
            let run = folder.join(format!("tree/host={host}/date={date}/0"));
            exits = import(NESTED, &run, said).exits.len();
        }
    }
    exits
}

/// Makes every file of the other runs unreadable as Parquet, of the same size: who opens one fails.
fn spoil(folder: &Path, keep: &dyn Fn(&str) -> bool) {
    for host in ["a", "b", "c"] {
        for date in ["2026-01-01", "2026-01-02"] {
            let run = folder.join(format!("tree/host={host}/date={date}/0"));
            if keep(&format!("{host} {date}")) {
                continue;
            }
            for entry in fs::read_dir(run.join("exits")).unwrap() {
                let path = entry.unwrap().path();
                fs::write(&path, vec![0; fs::metadata(&path).unwrap().len() as usize]).unwrap();
            }
        }
    }
}

#[test]
fn only_wanted_files_are_opened() {
    for (filter, keep, runs) in [
        ("host = 'b'", &(|run: &str| run.starts_with('b')) as &dyn Fn(&str) -> bool, 2),
        ("date = '2026-01-02'", &|run: &str| run.ends_with('2'), 3),
        (
            "date >= '2026-01-02' AND host IN ('a', 'c')",
            &|run: &str| run.ends_with('2') && !run.starts_with('b'),
            2,
        ),
        ("kernel LIKE '6.9%'", &|run: &str| run.starts_with('c'), 2),
        ("labels LIKE '%rack=r1%'", &|run: &str| run.starts_with('a'), 2),
        ("NOT emulated", &|run: &str| !run.starts_with('c'), 4),
        ("emulated AND date = '2026-01-01'", &|run: &str| run == "c 2026-01-01", 1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let exits = tree(folder.path());
        spoil(folder.path(), keep);
        // No run may be skipped as damaged: standard error is empty.
        let sql =
            format!("SELECT count(*), count(DISTINCT run) FROM exits WHERE {filter} AND count > 0");
        assert_eq!(
            rows(folder.path(), &[&sql, "tree"]),
            [[json!(exits * runs), json!(runs)]],
            "{filter}"
        );
        let whole =
            run(folder.path(), &["query", "SELECT count(*) FROM exits WHERE count > 0", "tree"]);
        assert!(stderr(&whole).contains("left out"), "{filter}: {}", stderr(&whole));
    }
}

#[test]
fn a_plan_has_the_files_of_wanted_runs_alone() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let plan = |filter: &str| {
        let sql = format!("EXPLAIN SELECT sum(count) FROM exits WHERE {filter}");
        let rows = rows(folder.path(), &[&sql, "tree", "--threads", "2"]);
        rows.iter()
            .map(|row| row[1].as_str().unwrap().matches("exits/000001.parquet").count())
            .max()
    };
    assert_eq!(plan("host = 'a' AND date = '2026-01-01'"), Some(1));
    assert_eq!(plan("host = 'a'"), Some(2));
    assert_eq!(plan("host = 'nobody'"), Some(0));
    assert_eq!(plan("count > 0"), Some(6));
}

#[test]
fn host_and_day_of_the_path_decide_whether_a_manifest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    fs::write(folder.path().join("tree/host=b/date=2026-01-01/0/run.json"), "{").unwrap();
    // The damaged run is not wanted, so it is not looked at.
    rows(folder.path(), &["SELECT count(*) FROM exits WHERE host = 'a'", "tree"]);
    rows(folder.path(), &["SELECT count(*) FROM exits WHERE date = '2026-01-02'", "tree"]);
    let output =
        run(folder.path(), &["query", "SELECT count(*) FROM exits WHERE host = 'b'", "tree"]);
    assert!(output.status.success() && stderr(&output).contains("1 run or folder was left out"));
    // Strictly, that is an error, after the rows.
    let strict = run(folder.path(), &["query", "--strict", "SELECT count(*) FROM exits", "tree"]);
    assert_eq!(strict.status.code(), Some(4));
    assert!(!strict.stdout.is_empty());
}

#[test]
fn runs_describe_themselves() {
    let folder = tempfile::tempdir().unwrap();
    import(
        NESTED,
        &folder.path().join("x/run"),
        SaidRun { host: "z", labels: &[("b", "2"), ("a", "1,=")], ..PLAIN },
    );
    let sql = "SELECT run, host, kernel, labels, emulated, accelerator FROM runs";
    let said = json!([["run", "z", "6.1", "a=1%2C%3D,b=2", false, "unknown"]]);
    assert_eq!(json!(rows(folder.path(), &[sql, "x"])), said);
    // Two runs of one name could not be distinguished.
    import(NESTED, &folder.path().join("y/run"), PLAIN);
    refuses(folder.path(), &["query", sql, "x", "y"], 4, &["would both be called run"]);
    assert_eq!(rows(folder.path(), &["SELECT count(*) FROM runs", "x/run", "y/run"]), [[json!(2)]]);
    assert_eq!(rows(folder.path(), &["SELECT count(DISTINCT run) FROM runs", "."]), [[json!(2)]]);
}

#[test]
fn patterns_name_parts_of_a_tree() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let sql = "SELECT run FROM runs ORDER BY run";
    for (pattern, found) in [
        ("tree/host=[ab]/date=*-02", &["host=a/date=2026-01-02/0", "host=b/date=2026-01-02/0"][..]),
        ("t*/host=c", &["tree/host=c/date=2026-01-01/0", "tree/host=c/date=2026-01-02/0"]),
        ("tree/host=c/date=2026-01-01/?", &["0"]),
    ] {
        let names: Vec<_> = found.iter().map(|name| vec![json!(name)]).collect();
        assert_eq!(rows(folder.path(), &[sql, pattern]), names, "{pattern}");
    }
    // Links are not followed here either, and nothing leads up.
    std::os::unix::fs::symlink("host=a", folder.path().join("tree/host=z")).unwrap();
    refuses(folder.path(), &["query", sql, "tree/host=z*"], 3, &["no folder matches it"]);
    refuses(folder.path(), &["query", sql, "tree/*/../host=a"], 3, &["no folder matches it"]);
    refuses(folder.path(), &["query", sql, "tree/host=[a"], 3, &["is no pattern"]);
    refuses(folder.path(), &["query", sql, "nowhere/*"], 3, &["no such file or folder"]);
    // What has such a name is meant itself.
    fs::rename(folder.path().join("tree/host=c"), folder.path().join("tree/[x]")).unwrap();
    assert_eq!(rows(folder.path(), &["SELECT count(*) FROM runs", "tree/[x]"]), [[json!(2)]]);
}
