//! Recordings of one workload by different recorders say the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod captures;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use captures::{expected, json, unpack};
use serde_json::Value;

/// Counts of a table's rows, by their key.
type KeyCounts = BTreeMap<String, u64>;

const EVENTS: [&str; 7] = ["vmexit", "cause", "msr", "ioport", "mmio", "cpuid", "hypercall"];

/// Every table of these inputs of a folder has the counts of the first.
fn count_the_same(folder: &str, first: &str, others: &[&str]) {
    let first = unpack(folder, first);
    for event in EVENTS {
        let expected = counts(&json(&first, &["--event", event]));
        assert!(!expected.is_empty(), "{event}");
        for other in others {
            let got = counts(&json(&unpack(folder, other), &["--event", event]));
            assert_eq!(got, expected, "{event} of {other}");
        }
    }
}

/// perf, trace-cmd and ftrace watched the same run of a VM at the same time (captures/amd-same-workload). Their
/// clocks were read one after the other, so times differ a little and counts not at all.
#[test]
fn perf_and_trace_cmd_and_ftrace_count_the_same() {
    let others = [
        "workload-v7-zstd.trace.dat",
        "workload-v7-none.trace.dat.zst",
        "workload-v6.trace.dat.zst",
        "workload.ftrace.txt.zst",
        "workload.trace-cmd.txt.zst",
        "workload.script.txt.zst",
    ];
    count_the_same("amd-same-workload", "workload.perf.data.zst", &others);
}

/// The same on VMX: `isa`, reasons and information words of the other vendor.
#[test]
fn intel_recordings_count_the_same() {
    let others = ["intel.script.txt.zst", "intel-v7-zstd.trace.dat", "intel.ftrace.txt.zst"];
    count_the_same("intel-cpuid", "intel.perf.data.zst", &others);
}

/// `trace-cmd report` prints `info 0 0` of an exit by an interrupt, and no `intr_info`: who interrupted is not in its text.
#[test]
fn intel_text_of_trace_cmd_has_no_vectors() {
    let text = unpack("intel-cpuid", "intel.trace-cmd.txt.zst");
    let whole = unpack("intel-cpuid", "intel.perf.data.zst");
    for event in EVENTS {
        let mut expected = counts(&json(&whole, &["--event", event]));
        if let Some(count) = expected.remove("cause=host-tick") {
            expected.insert("cause=host-interrupt".to_owned(), count);
        }
        assert_eq!(counts(&json(&text, &["--event", event])), expected, "{event}");
    }
}

/// A stream holds what `perf script` prints of it, compressed or not.
#[test]
fn streams_hold_every_exit() {
    for case in ["pipe", "pipe-zstd", "pipe-kvmstat"] {
        let input = unpack("amd-pipe", &format!("{case}.perf.data.zst"));
        let report = json(&input, &["--event", "vmexit", "--by", "reason"]);
        // "300 115/129 vcpu 0 cpuid": every kvm_exit, also the last of each vCPU, which has no entry.
        let mut exits = KeyCounts::new();
        for line in expected("amd-pipe", &format!("{case}.exits.txt")).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(count) = words.first().and_then(|w| w.parse::<u64>().ok()) else { continue };
            let reason = words[4..].join(" ");
            *exits.entry(format!("reason={reason}")).or_default() += count;
        }
        assert!(exits.values().sum::<u64>() > 800, "{exits:?}");
        let got = counts(&report);
        let unpaired = report["losses"]["unpaired_exits"].as_u64().unwrap();
        let missing: u64 =
            exits.iter().map(|(key, n)| n - got.get(key).copied().unwrap_or(0)).sum();
        assert_eq!(missing, unpaired, "{case}: {exits:?} {got:?}");
        assert!(got.keys().all(|key| exits.contains_key(key)), "{case}: {exits:?} {got:?}");
    }
}

/// bpftrace's counts, by number and by name, equal what the payload did (captures/amd-bpftrace).
#[test]
fn both_spellings_of_bpftrace_agree() {
    let numbers = counts(&json(
        &unpack("amd-bpftrace", "reasons.bpftrace.txt"),
        &["--event", "vmexit", "--by", "reason", "--isa", "amd"],
    ));
    let names = counts(&json(
        &unpack("amd-bpftrace", "names.bpftrace.txt"),
        &["--event", "vmexit", "--by", "reason"],
    ));
    for (key, count) in [("reason=cpuid", 500), ("reason=io", 126), ("reason=msr", 75)] {
        assert_eq!(
            (numbers.get(key), names.get(key)),
            (Some(&count), Some(&count)),
            "{numbers:?} {names:?}"
        );
    }
    let unknown = counts(&json(
        &unpack("amd-bpftrace", "reasons.bpftrace.txt"),
        &["--event", "vmexit", "--by", "reason"],
    ));
    assert_eq!(unknown, numbers, "1024 is a reason of SVM alone");
}

/// One capture, exported in every way, names its VM after the process that runs it, and never after the idle task,
/// which a recording with sched_switch names too.
#[test]
fn every_export_names_the_vm_after_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let sched = unpack("amd-sched", "sched.perf.data.zst");
    let export = |fields: &str, name: &str| {
        let text = folder.path().join(name);
        let mut perf = Command::new("perf");
        perf.args(["script", "-F", fields, "-i"]).arg(&sched);
        perf.stdout(std::fs::File::create(&text).unwrap()).stderr(Stdio::null());
        let status = perf.status().unwrap_or_else(|e| panic!("perf: {e}; `./x test` installs it"));
        assert!(status.success(), "perf script: {status}");
        text
    };
    let mut inputs = vec![
        (export("comm,tid,cpu,time,event,trace", "threads.txt"), 2),
        (export("comm,pid,tid,cpu,time,event,trace", "processes.txt"), 2),
        (unpack("amd-sched", "sched.script.txt.zst"), 2),
        (sched.clone(), 2),
    ];
    for file in [
        "workload.perf.data.zst",
        "workload-v7-zstd.trace.dat",
        "workload-v7-none.trace.dat.zst",
        "workload-v6.trace.dat.zst",
        "workload.ftrace.txt.zst",
        "workload.trace-cmd.txt.zst",
        "workload.script.txt.zst",
    ] {
        inputs.push((unpack("amd-same-workload", file), 1));
    }
    for (input, vms) in inputs {
        let report = json(&input, &[]);
        let names: Vec<&str> = report["run"]["vms"]
            .as_array()
            .unwrap()
            .iter()
            .map(|vm| vm["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, vec!["qemu-system-x86"; vms], "{}", input.display());
    }
}

fn counts(report: &Value) -> KeyCounts {
    let table = &report["tables"][0];
    let by: Vec<&str> =
        table["by"].as_array().unwrap().iter().map(|b| b.as_str().unwrap()).collect();
    let mut counts = KeyCounts::new();
    for row in table["rows"].as_array().unwrap() {
        let key: Vec<String> = by
            .iter()
            .map(|by| match &row[by] {
                Value::String(word) => format!("{by}={word}"),
                other => format!("{by}={}{}", other["kind"], other["value"]),
            })
            .collect();
        *counts.entry(key.join(" ")).or_default() += row["count"].as_u64().unwrap();
    }
    counts
}
