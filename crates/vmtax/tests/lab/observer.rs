//! A program beside the suite: perf in the same emulated host counts the same, and costs what it costs.

use std::process::Command;

use crate::run::{json, output, paths};

#[test]
fn perf_in_the_same_host_counts_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let report = json(&[
        "lab",
        "run",
        "--operation",
        "cpuid,rdmsr",
        "--observe",
        "perf kvm stat record -a -o perf.data",
        "-o",
        run,
    ]);
    let observed = paths(&report);
    // Seven measured batches and the one before them, 50 operations each.
    let recording = format!("{run}/observer/perf.data");
    let perf =
        Command::new("perf").args(["kvm", "-i", &recording, "stat", "report"]).output().unwrap();
    let text = String::from_utf8_lossy(&perf.stdout) + String::from_utf8_lossy(&perf.stderr);
    let samples = |reason: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(reason));
        line.and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned)
    };
    assert_eq!(
        (samples("cpuid").as_deref(), samples("msr").as_deref()),
        (Some("400"), Some("400")),
        "{text}"
    );
    let ours = output(&["report", &recording, "--event", "vmexit", "--format", "csv"]);
    let ours = String::from_utf8(ours.stdout).unwrap();
    assert!(ours.lines().any(|line| line.contains("cpuid") && line.contains("400")), "{ours}");
    // What perf adds to an exit: 3,166 instructions in the facts that this project began with.
    let alone = paths(&json(&["lab", "run", "--operation", "cpuid,rdmsr"]));
    let added = observed["cpuid L1"] - alone["cpuid L1"];
    assert!(
        (added - 3166.0).abs() < 3166.0 * 0.05,
        "perf kvm stat record adds {added} instructions"
    );
}
