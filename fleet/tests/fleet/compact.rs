//! Compacted days: the same answers, whenever it is killed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::questions::NAMES;
use crate::recorded::{NESTED, PLAIN, import, program, refuses, rows, run, stderr};
use crate::synth::{SynthOptions, Template, make};

pub(crate) const SUMS: [&str; 4] = [
    "SELECT host, date, run, kernel, labels, emulated, count(*), sum(count), sum(time_ns), sum(sum_sq), min(interval_start_ns) FROM exits GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY run",
    "SELECT run, sum(wall_ns), count(*), sum(exit_kernel_ns) FROM \"time\" GROUP BY run ORDER BY run",
    "SELECT detail_kind, count(*), sum(count) FROM accesses WHERE host = 'h000001' GROUP BY 1 ORDER BY 1",
    "SELECT run, vm, name FROM vms ORDER BY 1, 2, 3",
];

/// A synthetic fleet with many files.
pub(crate) fn fleet(folder: &Path, hosts: &str, days: &str) {
    import(NESTED, &folder.join("template"), PLAIN);
    let [hosts, days] = [hosts, days].map(|number| number.parse().unwrap());
    synthesize(folder, "tree", SynthOptions { hosts, days, segments: 4, ..options() });
}

fn options() -> SynthOptions {
    SynthOptions { hosts: 3, days: 2, rows: 0, segments: 1, seed: 1, command: Vec::new() }
}

/// A tree of synthetic runs, made of the run `template`.
fn synthesize(folder: &Path, tree: &str, options: SynthOptions) {
    let mut template = Template::read(&folder.join("template")).unwrap();
    assert!(template.has_exits());
    template.source = "template".to_owned();
    make(&[template], &folder.join(tree), &options).unwrap();
}

/// What every kind of query says of the tree.
fn answers(folder: &Path) -> Vec<Vec<Vec<Value>>> {
    let mut answers: Vec<_> = SUMS.iter().map(|sql| rows(folder, &[sql, "tree"])).collect();
    answers.extend(NAMES.iter().map(|name| rows(folder, &["--question", name, "tree"])));
    answers
}

/// Sums of fractions depend on their order.
pub(crate) fn rounded(answers: &[Vec<Vec<Value>>]) -> Vec<String> {
    let cell = |cell: &Value| match cell.as_f64() {
        Some(number) if cell.is_f64() => format!("{number:.9e}"),
        _ => cell.to_string(),
    };
    answers
        .iter()
        .map(|rows| {
            rows.iter()
                .map(|row| row.iter().map(cell).collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
                .join("\n")
        })
        .collect()
}

fn parquet_files(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            if path.is_dir() {
                parquet_files(&path)
            } else {
                usize::from(path.extension().is_some_and(|e| e == "parquet"))
            }
        })
        .sum()
}

#[test]
fn a_compacted_tree_gives_the_same_answers_from_few_files() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "5", "2");
    let before = rounded(&answers(folder.path()));
    let files = parquet_files(&folder.path().join("tree"));
    assert!(files > 50, "{files}");
    let output = run(folder.path(), &["compact", "tree", "--date", "2026-01-01"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(rounded(&answers(folder.path())), before, "one day of two is compacted");
    // The runs are still there; they are not read twice, nor looked at.
    fs::write(folder.path().join("tree/host=h000001/date=2026-01-01/000/run.json"), "{").unwrap();
    assert_eq!(rounded(&answers(folder.path())), before);
    let output = run(folder.path(), &["compact", "tree", "--remove"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("10 runs removed"), "{output:?}");
    assert_eq!(rounded(&answers(folder.path())), before, "the runs are removed");
    assert!(parquet_files(&folder.path().join("tree")) < files / 5);
    // A run that comes later is a sentence, and nothing is lost.
    import(NESTED, &folder.path().join("tree/host=late/date=2026-01-01/000"), PLAIN);
    refuses(folder.path(), &["compact", "tree"], 4, &["2026-01-01 is compacted already"]);
    assert_eq!(rows(folder.path(), &["SELECT count(*) FROM runs", "tree"])[0][0], 11);
}

#[test]
fn a_damaged_day_is_named_and_its_runs_are_asked() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "2", "1");
    let before = rows(folder.path(), &[SUMS[0], "tree"]);
    assert!(run(folder.path(), &["compact", "tree"]).status.success());
    let file = folder.path().join("tree/compacted/date=2026-01-01/exits/000001.parquet");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    let output = run(folder.path(), &["query", SUMS[0], "tree", "--format", "json"]);
    assert!(
        output.status.success() && stderr(&output).contains("date=2026-01-01: is damaged"),
        "{}",
        stderr(&output)
    );
    assert_eq!(crate::recorded::rows_of(&output), before);
}

/// A flipped bit need not stop a decoder: only --verify looks for it.
#[test]
fn verify_finds_a_flipped_bit_in_a_day() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "2", "1");
    let before = rows(folder.path(), &[SUMS[0], "tree"]);
    assert!(run(folder.path(), &["compact", "tree"]).status.success());
    let file = folder.path().join("tree/compacted/date=2026-01-01/accesses/000001.parquet");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let ask = |verify: &[&str]| {
        let words = [&["query"], verify, &[SUMS[0], "tree", "--format", "json"]].concat();
        let output = run(folder.path(), &words);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(crate::recorded::rows_of(&output), before);
        stderr(&output)
    };
    // The question reads no accesses.
    assert_eq!(ask(&[]), "");
    let said = ask(&["--verify"]);
    assert!(
        said.contains("date=2026-01-01: is damaged: accesses/000001.parquet has checksum"),
        "{said}"
    );
}

/// A filter on the date is answered by the day alone, and its rows are not looked at again.
#[test]
fn filters_on_the_date_decide_about_whole_days() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "3", "3");
    let ask = || -> Vec<_> {
        [
            "date = '2026-01-02'",
            "date > '2026-01-01'",
            "date <> '2026-01-03'",
            "date LIKE '%-01'",
            "date IS NULL",
            "date = '2026-01-01' OR host = 'h000001'",
            "date >= '2026-01-02' AND host <> 'h000001'",
        ]
        .map(|filter| {
            let sql = format!(
                "SELECT date, host, count(*) AS n, sum(count) AS exits FROM exits WHERE {filter} GROUP BY 1, 2 ORDER BY 1, 2"
            );
            rows(folder.path(), &[&sql, "tree"])
        })
        .into()
    };
    let before = ask();
    assert_eq!(before.iter().map(Vec::len).collect::<Vec<_>>(), [3, 6, 6, 3, 0, 5, 4]);
    assert!(run(folder.path(), &["compact", "tree", "--date", "2026-01-02"]).status.success());
    assert_eq!(ask(), before, "one day of three is compacted");
    assert!(run(folder.path(), &["compact", "tree"]).status.success());
    assert_eq!(ask(), before);
    let sums = rows(folder.path(), &[SUMS[0], "tree"]);
    // A day that says it has runs of another is no day, and its runs are asked.
    let path = folder.path().join("tree/compacted/date=2026-01-02/day.json");
    let text = fs::read_to_string(&path).unwrap();
    let run_of = "host=h000001/date=2026-01-02/000";
    assert!(text.contains(run_of));
    fs::write(&path, text.replace(run_of, "host=h000001/date=2026-01-09/000")).unwrap();
    let output = run(folder.path(), &["query", SUMS[0], "tree", "--format", "json"]);
    assert!(stderr(&output).contains("which is not of that day"), "{}", stderr(&output));
    assert_eq!(crate::recorded::rows_of(&output), sums);
}

#[test]
fn it_can_be_killed_at_any_moment() {
    // The first kill may come too late where the computer stood still.
    assert!((0..10).any(|_| killed_until_it_ends() > 0), "it was never killed");
}

/// Kills until it has come to its end by itself.
fn killed_until_it_ends() -> u32 {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "6", "2");
    let before = rounded(&[
        rows(folder.path(), &[SUMS[0], "tree"]),
        rows(folder.path(), &[SUMS[1], "tree"]),
    ]);
    let (mut wait, mut kills) = (Duration::from_millis(15), 0u32);
    loop {
        let mut child = program(folder.path())
            .args(["compact", "tree", "--remove"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if start.elapsed() >= wait => break None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        if status.is_none() {
            child.kill().unwrap();
            kills += 1;
        }
        let output = child.wait_with_output().unwrap();
        let now = rounded(&[
            rows(folder.path(), &[SUMS[0], "tree"]),
            rows(folder.path(), &[SUMS[1], "tree"]),
        ]);
        assert_eq!(now, before, "after {kills} kills");
        if let Some(status) = status {
            assert!(status.success(), "{}", stderr(&output));
            break;
        }
        // On a slow machine the first steps take longer: it is given more time each time.
        wait = wait * 5 / 4;
    }
    assert_eq!(
        fs::read_dir(folder.path().join("tree/compacted"))
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
            .count(),
        0
    );
    kills
}

#[test]
fn synthetic_fleets_are_marked_and_repeat_for_a_seed() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "3", "2");
    let labels = rows(
        folder.path(),
        &["SELECT DISTINCT split_part(labels, ',', 2), host FROM runs ORDER BY 2", "tree"],
    );
    assert!(
        labels.len() == 3 && labels.iter().all(|row| row[0] == "synthetic=template"),
        "{labels:?}"
    );
    synthesize(folder.path(), "again", options());
    assert_eq!(rows(folder.path(), &[SUMS[0], "tree"]), rows(folder.path(), &[SUMS[0], "again"]));
    synthesize(folder.path(), "other", SynthOptions { seed: 2, ..options() });
    assert_ne!(rows(folder.path(), &[SUMS[0], "tree"]), rows(folder.path(), &[SUMS[0], "other"]));
}
