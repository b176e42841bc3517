//! Recordings that end early: the data before the cut is reported with the loss, or one sentence says
//! why nothing can be read.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::captures::{json, unpack};
use crate::check::{Program, check, complaints, stdout, vmtax};

/// (capture, input, whether a cut between two records goes unnoticed because nothing says how long it is)
const INPUTS: [(&str, &str, bool); 9] = [
    ("amd-cpuid", "zstd.perf.data.zst", false),
    ("amd-cpuid", "lost.perf.data.zst", false),
    ("amd-nested", "kvmstat.perf.data.zst", false),
    ("amd-nested", "v6.trace.dat.zst", false),
    ("amd-nested", "v7.trace.dat", false),
    ("amd-pipe", "pipe.perf.data.zst", true),
    ("amd-pipe", "pipe-zstd.perf.data.zst", true),
    ("amd-same-workload", "workload.ftrace.txt.zst", true),
    ("amd-same-workload", "workload.script.txt.zst", true),
];

/// Where each is cut, in thousandths of its length, and in bytes from its start and its end.
const SHARES: [usize; 12] = [10, 50, 100, 200, 333, 500, 600, 700, 800, 900, 970, 995];
const BYTES: [usize; 8] = [1, 8, 16, 50, 104, 1000, 4096, 20_000];

#[test]
fn a_cut_recording_is_reported_or_refused() {
    for (capture, input, is_stream) in INPUTS {
        let whole = unpack(capture, input);
        let exits = exits(&json(&whole, &["--event", "vmexit"]));
        let bytes = fs::read(&whole).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let from_start = BYTES.iter().copied();
        let from_end = BYTES.iter().map(|n| bytes.len() - n);
        let shares = SHARES.iter().map(|share| bytes.len() / 1000 * share);
        let mut reported = 0;
        for length in from_start.chain(from_end).chain(shares) {
            fs::write(folder.path().join("cut"), &bytes[..length]).unwrap();
            let what = format!("{capture}/{input} cut to {length} of {} bytes", bytes.len());
            if let Some(report) = report(folder.path(), &what) {
                reported += 1;
                let count = self::exits(&report);
                assert!(count <= exits, "{what}: {count} of {exits} exits");
                let is_noted = !report["losses"]["truncated"].as_array().unwrap().is_empty();
                assert_eq!(report["run"]["complete"], !is_noted, "{what}");
                assert!(
                    is_noted || is_stream || count == exits,
                    "{what}: {count} of {exits} exits"
                );
            }
        }
        assert!(reported > 3, "{capture}/{input}: only {reported} cuts could be reported");
    }
}

/// The report of `cut`, or nothing when it was correctly rejected. Importing it gives the same.
fn report(folder: &Path, what: &str) -> Option<Value> {
    let output = vmtax(folder, "report cut --format json --event vmexit");
    if output.status.success() {
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{what}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(vmtax(folder, "import cut -o run").status.success(), "{what}");
        let imported = vmtax(folder, "report run --format json --event vmexit").stdout;
        let imported: Value = serde_json::from_slice(&imported).unwrap();
        for part in ["tables", "losses"] {
            assert_eq!(imported[part], report[part], "{what}");
        }
        assert_eq!(imported["run"]["complete"], report["run"]["complete"], "{what}");
        fs::remove_dir_all(folder.join("run")).unwrap();
        return Some(report);
    }
    let wrong = complaints(&output, 4, "cut: *");
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    check(&Program::new(), folder, &[("import cut -o run", 4, "cut: *")]);
    None
}

fn exits(report: &Value) -> u64 {
    report["tables"][0]["total"]["count"].as_u64().unwrap()
}

/// perf writes where the data ends when it is done. Killed, it leaves 0 there, and no list of tracepoint formats.
#[test]
fn a_killed_recorder_is_reported() {
    const DATA_OFFSET: usize = 40;
    const DATA_SIZE: usize = 48;
    let folder = tempfile::tempdir().unwrap();
    for (capture, input) in
        [("amd-cpuid", "zstd.perf.data.zst"), ("amd-nested", "kvmstat.perf.data.zst")]
    {
        let mut bytes = fs::read(unpack(capture, input)).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let end = word(DATA_OFFSET) + word(DATA_SIZE);
        bytes.truncate(end);
        bytes[DATA_SIZE..DATA_SIZE + 8].fill(0);
        fs::write(folder.path().join("killed"), &bytes).unwrap();
        let sentence =
            "killed: at byte 40: *perf was stopped before it finished the file; record again*";
        check(
            &Program::new(),
            folder.path(),
            &[("report killed", 4, sentence), ("import killed -o run", 4, sentence)],
        );
    }
}

/// Several recordings in one import: when the second cannot be read, what was stored of the first stays and
/// says that it is incomplete.
#[test]
fn a_second_recording_that_is_damaged_leaves_no_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let good = fs::read(unpack("amd-cpuid", "zstd.perf.data.zst")).unwrap();
    fs::write(folder.path().join("good"), &good).unwrap();
    fs::write(folder.path().join("cut"), &good[..1000]).unwrap();
    let output = vmtax(folder.path(), "import good cut -o run");
    let wrong = complaints(&output, 4, "cut: at byte *");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_incomplete(&folder.path().join("run"));
}

/// The run is gone, or says itself that it is not whole.
pub(crate) fn assert_incomplete(run: &Path) {
    if run.exists() {
        let manifest = fs::read(run.join("run.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["complete"], false);
        let report = json(run, &[]);
        assert_eq!(report["run"]["complete"], false);
        assert_eq!(report["losses"]["truncated"].as_array().unwrap().len(), 1, "{report}");
    }
}

/// Recordings of different hosts do not mix.
#[test]
fn recordings_of_two_hosts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, capture, input) in [
        ("one", "amd-cpuid", "zstd.perf.data.zst"),
        ("other", "intel-cpuid", "intel.perf.data.zst"),
    ] {
        fs::copy(unpack(capture, input), folder.path().join(name)).unwrap();
    }
    let output = vmtax(folder.path(), "import one other -o run");
    let wrong = complaints(&output, 4, "other: is of another host*; import it into a separate run");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_incomplete(&folder.path().join("run"));
}

/// What a recording lacks is in every output of every command that draws conclusions from it.
#[test]
fn losses_are_in_every_output() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(unpack("amd-pipe", "pipe.perf.data.zst")).unwrap();
    fs::write(folder.path().join("whole"), &bytes).unwrap();
    fs::write(folder.path().join("cut"), &bytes[..bytes.len() / 2]).unwrap();
    let report: Value =
        serde_json::from_slice(&stdout(folder.path(), "report cut --format json")).unwrap();
    let lost = report["losses"]["truncated"][0].as_str().unwrap().to_lowercase();
    for (command, formats) in [
        ("explain cut", &["text", "json", "html"][..]),
        ("explain whole --against cut", &["text", "json", "html"]),
        ("diff whole cut", &["text", "json", "html", "csv"]),
        ("diff cut whole", &["text", "json", "html", "csv"]),
    ] {
        for format in formats {
            let words = format!("{command} --format {format}");
            // A sentence may begin with it.
            let said = String::from_utf8(stdout(folder.path(), &words)).unwrap().to_lowercase();
            assert!(said.contains(&lost), "{words} does not say: {lost}");
            let of_whole = words.replace("cut", "whole");
            let said = String::from_utf8(stdout(folder.path(), &of_whole)).unwrap().to_lowercase();
            assert!(!said.contains(&lost), "{of_whole}");
        }
    }
}

/// A list whose last line has no end may have been cut in a number.
#[test]
fn truncated_lists_are_marked() {
    let folder = tempfile::tempdir().unwrap();
    let results = "workload,category,metric,value\nw,VM,speed,120\nw,SNP,speed,100\n";
    for (name, text) in [("whole.csv", results), ("cut.csv", &results[..results.len() - 2])] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::write(folder.path().join("stats"), "exits 10\nexits 2").unwrap();
    let notes = |words: &str| {
        let said: Value = serde_json::from_slice(&stdout(folder.path(), words)).unwrap();
        said["losses"]["notes"].as_array().unwrap().len()
    };
    assert_eq!(notes("explain whole.csv --format json"), 0);
    assert_eq!(notes("explain cut.csv --format json"), 1);
    stdout(folder.path(), "import whole.csv -o run --stats stats");
    assert_eq!(notes("explain run --format json"), 1);
}
