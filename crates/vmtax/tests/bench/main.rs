//! `vmtax bench`: real programs, kills, published tables, parts, bad input, and VMs on an emulator.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod arm;
mod confidential;
mod documents;
mod endless;
mod errors;
mod exits;
mod kills;
mod network;
mod pinned;
mod processors;
mod profiled;
mod programs;
mod remote;
mod slurm;
mod ssh;
mod stopped;
mod tables;
mod traffic;
mod vms;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// `vmtax` with these words, and the cache of kernels that the tests of the lab have.
fn vmtax(words: &[&str]) -> Output {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache");
    Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .args(words)
        .env("XDG_CACHE_HOME", cache)
        .output()
        .unwrap()
}

/// `vmtax bench` with these words.
fn bench(words: &[&str]) -> Output {
    vmtax(&[&["bench"], words].concat())
}

/// What a run that succeeds prints.
fn ok(words: &[&str]) -> String {
    let output = bench(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "vmtax bench {words:?}: {:?} {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the sentence of a run that fails, and the lines below it.
fn refused(words: &[&str]) -> (i32, String) {
    let output = bench(words);
    assert!(!output.status.success(), "vmtax bench {words:?} did not fail");
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(sentence.starts_with("vmtax: "), "{sentence}");
    let below = sentence.lines().skip(1);
    assert!(below.clone().all(|line| line.starts_with("  ")), "not one sentence: {sentence}");
    (output.status.code().unwrap(), sentence)
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whether a program runs whose command line has `: MARK;`. The test's own has not.
fn runs(mark: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!(": {mark};"))
    })
}

/// Runs a matrix, again while cells of it fail: where the computer stood still for the second that a program measures there is nothing to
/// read. What the last run prints.
fn measured(folder: &Path, text: &str, run: &Path) -> String {
    let path = matrix(folder, text);
    let mut shown = String::new();
    for _ in 0..5 {
        // Nothing is there the first time.
        let _ = fs::remove_dir_all(run);
        let output = bench(&["run", name(&path), "-o", name(run)]);
        let error = String::from_utf8_lossy(&output.stderr);
        // No cell was measured: the computer stood still for all of them.
        if output.status.code() == Some(7) && error.contains("no cell was measured") {
            continue;
        }
        assert!(output.status.success(), "{:?} {error}", output.status);
        shown = String::from_utf8(output.stdout).unwrap();
        if !shown.contains("failed (") {
            break;
        }
    }
    shown
}

/// Writes a program. By another process: one that is open for writing cannot be started, and children that other tests start meanwhile would
/// hold our descriptor.
fn program(path: &Path, text: &str) {
    let source = path.with_extension("text");
    fs::write(&source, text).unwrap();
    let installed = Command::new("install").args(["-m", "755"]).arg(&source).arg(path).status();
    assert!(installed.unwrap().success());
    fs::remove_file(source).unwrap();
}

/// A matrix file in a folder.
fn matrix(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("matrix.toml");
    fs::write(&path, text).unwrap();
    path
}

/// What `vmtax report` prints of a run.
fn reported(run: &Path, words: &[&str]) -> String {
    let output = vmtax(&[&["report", name(run)], words].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// No call tree of the run is missing or shorter than the clock says.
fn trees_are_whole(run: &Path) {
    let report: Value = serde_json::from_str(&reported(run, &["--format", "json"])).unwrap();
    let notes = report["losses"]["notes"].as_array().unwrap();
    assert!(!notes.iter().any(|note| note.as_str().unwrap().contains("call tree")), "{notes:?}");
}

/// A row of a CSV, by column.
type CsvRow = BTreeMap<String, String>;

fn csv(text: &str) -> Vec<CsvRow> {
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let head: Vec<String> = lines.next().unwrap().collect();
    let row = |line: Vec<String>| {
        assert_eq!(line.len(), head.len(), "{line:?}");
        head.iter().cloned().zip(line).collect()
    };
    lines.map(|line| row(line.collect())).collect()
}

/// Rows of the CSV, by workload, metric and category.
type BenchRows = BTreeMap<(String, String, String), CsvRow>;

fn rows(run: &Path) -> BenchRows {
    let mut rows = BenchRows::new();
    for row in csv(&ok(&["compare", name(run), "--all", "--format", "csv"])) {
        let key = ["workload", "metric", "category"].map(|column| row[column].clone());
        assert!(rows.insert(key.into(), row).is_none());
    }
    rows
}

fn row<'a>(rows: &'a BenchRows, workload: &str, metric: &str, category: &str) -> &'a CsvRow {
    let key = (workload.to_owned(), metric.to_owned(), category.to_owned());
    rows.get(&key).unwrap_or_else(|| panic!("no {key:?} among {:?}", rows.keys()))
}
