//! `vmtax diff`: what differs between two recordings.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::captures::unpack;
use crate::check::{Program, check, stdout, vmtax};

/// The exits of the oneDNN-on-TDX report in ten seconds, as bpftrace printed them.
pub(crate) const PLAIN: &str = "@reason[0]: 14\n@reason[1]: 143007\n@reason[12]: 146\n@reason[18]: 1\n@reason[31]: 63\n\
                     @reason[32]: 143258\n@reason[49]: 267\n@reason[52]: 142929\n@reason[56]: 182\n";
pub(crate) const TD: &str = "@reason[1]: 271561\n@reason[48]: 5121\n@reason[77]: 137299\n";

/// A folder with its tables.
fn onednn() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), PLAIN).unwrap();
    fs::write(folder.path().join("td"), TD).unwrap();
    folder
}

fn json(folder: &Path, words: &str) -> Value {
    serde_json::from_slice(&stdout(folder, &format!("{words} --format json"))).unwrap()
}

/// Of each row: its key in one word, counts, verdict.
fn rows(report: &Value, table: usize, key: &str) -> Vec<Value> {
    let rows = report["tables"][table]["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| json!([row[key], row["base"]["count"], row["other"]["count"], row["verdict"]]))
        .collect()
}

#[test]
fn counts_without_details_have_the_causes_that_reasons_show() {
    let folder = onednn();
    let report = json(folder.path(), "diff plain td --isa vmx --length 10s");
    assert_eq!(report["schema"], "vmtax-diff-1");
    assert_eq!((&report["per"], &report["base"]["units"]), (&json!("second"), &json!(10.0)));
    let kinds = json!([{ "what": "kind of VM", "base": "plain", "other": "TDX" }]);
    assert_eq!(report["setup"], kinds);
    let expected = [
        json!(["msr", 143_321, 0, "fewer, not tested"]),
        json!(["timer-tick", 142_929, 0, "fewer, not tested"]),
        json!(["hypercall", 1, 137_299, "more, not tested"]),
        json!(["host-interrupt", 143_007, 271_561, "more, not tested"]),
        json!(["memory-fault", 0, 5_121, "more, not tested"]),
        json!(["device-mmio", 267, 0, "fewer, not tested"]),
        json!(["apic", 182, 0, "fewer, not tested"]),
        json!(["idle", 146, 0, "fewer, not tested"]),
        json!(["other", 14, 0, "fewer, not tested"]),
    ];
    assert_eq!(rows(&report, 0, "cause"), expected);
    // By reason alone the same two look like strangers.
    let expected = [
        json!(["MSR_WRITE", 143_258, 0, "fewer, not tested"]),
        json!(["PREEMPTION_TIMER", 142_929, 0, "fewer, not tested"]),
        json!(["TDCALL", 0, 137_299, "more, not tested"]),
        json!(["EXTERNAL_INTERRUPT", 143_007, 271_561, "more, not tested"]),
    ];
    assert_eq!(rows(&report, 1, "reason")[..4], expected);
}

#[test]
fn without_a_length_the_counts_stand_as_they_are() {
    let folder = onednn();
    let text = String::from_utf8(stdout(folder.path(), "diff plain td --isa vmx")).unwrap();
    let row = text.lines().find(|line| line.starts_with("  host-interrupt  ")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        words,
        ["host-interrupt", "143,007", "271,561", "1.90", "+128,554", "more,", "not", "tested"]
    );
    assert!(text.contains("Exits by cause, in the whole recording\n"), "{text}");
    let csv =
        String::from_utf8(stdout(folder.path(), "diff plain td --isa vmx --format csv")).unwrap();
    assert!(
        csv.contains(
            "cause,timer-tick,recording,142929,0,0,-142929,,,142929,0,,,\"fewer, not tested\"\r\n"
        ),
        "{csv}"
    );
}

/// Both are read at the same time; the sentence is that of the first, whichever fails first.
#[test]
fn of_two_unreadable_inputs_the_first_is_named() {
    let folder = onednn();
    fs::write(folder.path().join("empty"), "").unwrap();
    fs::write(folder.path().join("noise"), [0xff; 100_000]).unwrap();
    let first = |words: &str| {
        let output = vmtax(folder.path(), words);
        assert_ne!(output.status.code(), Some(0), "{words}");
        String::from_utf8(output.stderr).unwrap()
    };
    for command in ["diff BASE OTHER", "explain BASE --against OTHER"] {
        for (base, other) in [("empty", "noise"), ("noise", "empty"), ("missing", "noise")] {
            let said = first(&command.replace("BASE", base).replace("OTHER", other));
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(said.starts_with(&format!("vmtax: {base}: ")), "{said}");
        }
    }
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    let recording = unpack("amd-cpuid", "zstd.perf.data.zst");
    let folder = recording.parent().unwrap();
    let name = recording.file_name().unwrap().to_str().unwrap();
    for by in ["cause", "reason,level", "cause,detail,outcome"] {
        let report = json(folder, &format!("diff {name} {name} --by {by} --strict"));
        let rows = report["tables"][0]["rows"].as_array().unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row["base"], row["other"], "{row}");
            assert_eq!(row["difference"], 0.0, "{row}");
        }
    }
}

#[test]
fn halves_of_one_recording_and_another_workload() {
    // Ten seconds of a guest that only executes CPUID, at a steady rate, and of one that does so half as often, as text.
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, step_us: u64| {
        let mut text = String::new();
        for at in (0..10_000_000u64).step_by(step_us as usize) {
            // A jitter that does not repeat: the middle square of the time.
            let jitter = at / step_us * (at / step_us) % 61;
            let seconds = |at: u64| format!("{}.{:06}", 100 + at / 1_000_000, at % 1_000_000);
            let line =
                |event: &str, at: u64| format!("CPU 0/KVM 1234 [000] {}: {event}\n", seconds(at));
            text += &line(
                "kvm:kvm_exit: vcpu 0 reason EXIT_CPUID rip 0x1000 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
                at + jitter,
            );
            text += &line("kvm:kvm_entry: vcpu 0, rip 0x1002", at + jitter + 20);
        }
        fs::write(folder.path().join(name), text).unwrap();
    };
    write("base", 1_000);
    write("half", 2_000);
    let report = json(folder.path(), "diff base half --by cause");
    let row = &report["tables"][0]["rows"][0];
    assert_eq!((&row["cause"], &row["verdict"]), (&json!("cpuid"), &json!("fewer")), "{row}");
    let (low, high) = (row["low"].as_f64().unwrap(), row["high"].as_f64().unwrap());
    assert!(low <= -500.0 && -500.0 <= high && high - low < 20.0, "{low} to {high}");
    let interval = |by: &str| {
        let report = json(folder.path(), &format!("diff base half --by {by}"));
        let row = report["tables"][0]["rows"][0].clone();
        (row["low"].as_f64(), row["high"].as_f64())
    };
    // There is one kind of exit, so every table is about the same exits.
    for by in ["reason", "cause,reason", "reason,detail", "cause,reason,detail"] {
        assert_eq!(interval(by), (Some(low), Some(high)), "{by}");
    }
    assert_eq!(interval("cause,outcome"), (None, None));
    let report = json(folder.path(), "diff base base --by cause");
    assert_eq!(report["tables"][0]["rows"][0]["verdict"], "no difference shown");
}

#[test]
fn setup_differences_come_first_and_are_an_error_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let (amd, intel) = (
        unpack("amd-nested", "all.perf.data.zst"),
        unpack("intel-nested", "intel-nested.perf.data.zst"),
    );
    fs::copy(amd, folder.path().join("amd")).unwrap();
    fs::copy(intel, folder.path().join("intel")).unwrap();
    let text = String::from_utf8(stdout(folder.path(), "diff amd intel")).unwrap();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    let page = String::from_utf8(stdout(folder.path(), "diff amd intel --format html")).unwrap();
    let at_page = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
    assert!(at_page("times the exits of the base") < at_page("Exits by cause"));
    assert!(at("The setups differ") < at("CPU model") && at("CPU model") < at("Exits by cause"));
    let output = vmtax(folder.path(), "diff amd intel --strict");
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    let report = json(folder.path(), "diff amd intel --per l2-exit");
    assert_eq!(report["per"], "l2-exit");
    // An emulated host's times are not compared with another's.
    for row in report["tables"][0]["rows"].as_array().unwrap() {
        assert_eq!(
            (&row["base"]["time_ns"], &row["other"]["time_ns"]),
            (&Value::Null, &Value::Null)
        );
    }
}

#[test]
fn inputs_that_cannot_be_compared() {
    let folder = onednn();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                "diff plain td",
                2,
                "plain: has numeric exit reasons, which differ between Intel, AMD and arm64; name it with --isa intel, --isa amd or --isa arm64",
            ),
            ("diff plain none --isa vmx", 3, "none: cannot be read: No such file*"),
            (
                "diff plain td --isa vmx --per second",
                4,
                "plain: does not say how long it took; give --length*",
            ),
            (
                "diff plain td --isa vmx --per l2-exit",
                4,
                "plain: has no exit of L2; use --per second",
            ),
            ("diff plain td --isa vmx --per operation", 4, "plain: is no lab run*"),
            ("diff plain td --isa vmx --by vm", 2, "*invalid value 'vm'*"),
            ("diff plain td --isa vmx -o td", 2, "td: is the input*"),
        ],
    );
}
