//! `vmtax explain`: why a VM is slow, as far as its exits tell.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::captures::unpack;
use crate::check::{Program, check, stdout};

fn explained(folder: &Path, words: &str) -> Value {
    serde_json::from_slice(&stdout(folder, &format!("explain {words} --format json"))).unwrap()
}

fn answers(report: &Value) -> Vec<[&str; 2]> {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().map(|s| [s["step"].as_str().unwrap(), s["answer"].as_str().unwrap()]).collect()
}

/// Source S0: the confidential VM is slow, and takes the exits of the plain one.
#[test]
fn a_td_that_exits_as_often_as_a_plain_vm_is_not_slow_for_its_exits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), super::diff::PLAIN).unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    let report = explained(folder.path(), "td --against plain --isa vmx --length 10s");
    assert_eq!(answers(&report), [["exits", "no"], ["causes", "yes"], ["memory", "unknown"]]);
    assert_eq!(
        report["steps"][0]["says"],
        "exits are not the bottleneck, if the base is fast: 98.7 % of them are of causes that it has as often"
    );
    assert_eq!(
        report["steps"][0]["evidence"][0],
        "timer-tick: 271561 here, 285936 in the base: about equal, not tested"
    );
    assert_eq!(report["findings"], json!([]));
    // Without the base nothing is claimed.
    let report = explained(folder.path(), "td --isa vmx");
    assert_eq!(answers(&report)[0], ["exits", "unknown"]);
}

/// A VM that exits all the time, and one that hardly does, with known times.
#[test]
fn the_tax_decides_where_times_are_known() {
    let folder = tempfile::tempdir().unwrap();
    for (name, exit_us) in [("busy", 400), ("idle", 2)] {
        let mut text = String::new();
        for at in 0..1000 {
            let line =
                |event: &str, us: u32| format!("CPU 0/KVM 1234 [000] 100.{us:06}: {event}\n");
            text += &line(
                "kvm:kvm_exit: vcpu 0 reason CPUID rip 0x1000 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
                at * 1000,
            );
            text += &line("kvm:kvm_entry: vcpu 0, rip 0x1002", at * 1000 + exit_us);
        }
        fs::write(folder.path().join(name), text).unwrap();
    }
    let report = explained(folder.path(), "busy");
    assert_eq!(answers(&report)[0], ["exits", "yes"]);
    assert_eq!(
        report["steps"][0]["says"],
        "without any exit at most 40.0 % of the time would be gained"
    );
    let report = explained(folder.path(), "idle");
    assert_eq!(answers(&report)[0], ["exits", "no"]);
    let report = explained(folder.path(), "busy --emulated it");
    assert_eq!(answers(&report)[0], ["exits", "unknown"]);
}

#[test]
fn nested_recordings_have_a_step_of_their_own() {
    let recording = unpack("amd-nested", "all.perf.data.zst");
    let folder = recording.parent().unwrap();
    let report = explained(folder, recording.file_name().unwrap().to_str().unwrap());
    let steps: Vec<&str> = answers(&report).iter().map(|answer| answer[0]).collect();
    assert_eq!(steps, ["exits", "causes", "memory", "nesting"]);
    assert_eq!(answers(&report)[3], ["nesting", "yes"]);
}

#[test]
fn what_cannot_be_explained() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            ("explain td", 2, "td: holds bare exit numbers; say whose with --isa vmx or --isa svm"),
            ("explain none", 3, "none: there is no such file*"),
            ("explain td --isa vmx --against none", 3, "none: there is no such file*"),
            ("explain td --isa vmx --vm nobody", 4, "--vm nobody: there is no such VM*"),
        ],
    );
}
