//! The text of a recording says what the recording says, exit for exit and nanosecond for nanosecond.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::captures::{json, unpack};

const TABLES: &str = "vmexit,cause,msr,ioport,mmio,cpuid,hypercall,nested";

/// `perf script --ns` of every event.
fn perf_script(recording: &Path, text: &Path) {
    let mut perf = Command::new("perf");
    perf.args(["script", "--ns", "-F", "comm,pid,tid,cpu,time,event,trace", "-i"]).arg(recording);
    perf.stdout(File::create(text).unwrap()).stderr(Stdio::null());
    let status = perf.status().unwrap_or_else(|e| {
        panic!("perf: {e}; `./x test` installs it (package linux-perf), or set it up by hand")
    });
    assert!(status.success(), "perf script: {status}");
}

#[test]
fn perf_script_says_what_the_recording_says() {
    let folder = tempfile::tempdir().unwrap();
    for (capture, input) in [
        ("amd-nested", "all.perf.data.zst"),
        ("amd-nested", "kvmstat.perf.data.zst"),
        ("amd-two-vms", "two-vms.perf.data.zst"),
        ("amd-sched", "sched.perf.data.zst"),
        ("amd-nested-exact", "nested-exact.perf.data.zst"),
        ("intel-cpuid", "intel.perf.data.zst"),
        ("intel-nested", "intel-nested.perf.data.zst"),
    ] {
        let recording = unpack(capture, input);
        let text = folder.path().join("script.txt");
        perf_script(&recording, &text);
        for by in ["reason,level", "reason,level,detail,outcome,vm,vcpu"] {
            let args = ["--event", TABLES, "--by", by];
            let [binary, text] = [json(&recording, &args), json(&text, &args)];
            let [ours, theirs] = [&binary, &text].map(rows);
            assert!(ours.len() > 5, "{capture}/{input}");
            for (key, row) in &ours {
                assert_eq!(theirs.get(key), Some(row), "{capture}/{input}: {key}");
            }
            assert_eq!(theirs.len(), ours.len(), "{capture}/{input}");
            // Of events that never came a text cannot say that they were recorded.
            assert_eq!(text["nested"]["rows"], binary["nested"]["rows"], "{capture}/{input}");
            assert_eq!(times(&text), times(&binary), "{capture}/{input}");
        }
    }
}

/// Rows of all tables by what they are about.
fn rows(report: &Value) -> BTreeMap<String, &Value> {
    let mut rows = BTreeMap::new();
    for table in report["tables"].as_array().unwrap() {
        for row in table["rows"].as_array().unwrap() {
            let by = table["by"].as_array().unwrap();
            let key: Vec<String> =
                by.iter().map(|by| row[by.as_str().unwrap()].to_string()).collect();
            rows.insert(format!("{} {}", table["event"], key.join(" ")), row);
        }
    }
    rows
}

/// Each vCPU's time split. What a text calls a VM is another matter: it may not have the process.
fn times(report: &Value) -> Vec<Value> {
    let mut times = report["run"]["vcpus"].as_array().unwrap().clone();
    for time in &mut times {
        time.as_object_mut().unwrap().remove("vm_name");
        // Null where the text shows no event of nesting, 0 where the binary lists the tracepoint.
        time.as_object_mut().unwrap().remove("l2_ns");
    }
    times
}

/// `trace-cmd convert` wrote the one from the other.
#[test]
fn both_versions_of_trace_dat_read_the_same() {
    let v6 = unpack("amd-nested", "v6.trace.dat.zst");
    let v7 = unpack("amd-nested", "v7.trace.dat");
    for by in ["reason,level", "reason,level,cause,detail,outcome,vm,vcpu"] {
        let args = ["--event", TABLES, "--by", by];
        let [mut v6, mut v7] = [json(&v6, &args), json(&v7, &args)];
        for report in [&mut v6, &mut v7] {
            assert!(report["tables"][0]["total"]["count"].as_u64().unwrap() > 40_000);
            report["run"]["source"].take();
        }
        assert_eq!(v6, v7);
    }
}
