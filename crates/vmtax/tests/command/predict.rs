//! `vmtax predict`: published costs times what a recording counts.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::check::{Program, check, stdout};

/// Ten seconds: 1,000 CPUID, 500 RDMSR, 20 VMCALL, 4,000 WRMSR.
const COUNTS: &str = "@reason[10]: 1000\n@reason[31]: 500\n@reason[18]: 20\n@reason[32]: 4000\n";

fn predicted(folder: &Path, words: &str) -> Value {
    serde_json::from_slice(&stdout(folder, &format!("predict {words} --format json"))).unwrap()
}

/// Of each row: exits, count, now, there, added a second.
fn rows(report: &Value) -> Vec<Value> {
    let rows = report["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            json!([
                row["exits"],
                row["count"],
                row["now_ns"],
                row["there_ns"],
                row["added_ns_per_second"]
            ])
        })
        .collect()
}

#[test]
fn exits_of_which_a_cost_is_published_and_the_others() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counts"), COUNTS).unwrap();
    let report = predicted(folder.path(), "counts --isa vmx --length 10s --to snp");
    let expected = [
        // 100 a second, 3,859 - 1,232 ns each; 50 and 3,573 - 1,290; 2 and 3,553 - 1,255.
        json!(["cpuid", 1000, 1232.0, 3859.0, 262_700.0]),
        json!(["rdmsr", 500, 1290.0, 3573.0, 114_150.0]),
        json!(["hypercall", 20, 1255.0, 3553.0, 4_596.0]),
        json!(["timer-arm", 4000, null, null, null]),
    ];
    assert_eq!(rows(&report), expected);
    assert_eq!(report["added_ns_per_second"], json!(381_446.0));
    assert_eq!((&report["exits"], &report["exits_with_cost"]), (&json!(5520), &json!(1520)));
    // A setting that removes what has no cost leaves the known sum as it is.
    let remedies = report["remedies"].as_array().unwrap();
    let deadline = remedies.iter().find(|one| one["check"] == "tsc-deadline").unwrap();
    assert_eq!(
        (&deadline["exits"], &deadline["added_ns_per_second"]),
        (&json!(4000), &json!(381_446.0))
    );
}

#[test]
fn of_tdx_nothing_is_published_and_nothing_invented() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counts"), COUNTS).unwrap();
    let report = predicted(folder.path(), "counts --isa vmx --length 10s --to tdx");
    assert_eq!(report["added_ns_per_second"], Value::Null);
    assert_eq!(report["costs"], Value::Null);
    assert!(rows(&report).iter().all(|row| row[3].is_null()), "{report}");
    let text =
        String::from_utf8(stdout(folder.path(), "predict counts --isa vmx --to tdx")).unwrap();
    assert!(
        text.contains(
            "\nNothing can be predicted: of none of these exits is a cost known there.\n"
        ),
        "{text}"
    );
}

#[test]
fn nested_costs_are_the_published_ratio_of_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    // A CPUID of 2 us every millisecond, for a second.
    for at in 0..1000 {
        let line = |event: &str, us: u32| format!("CPU 0/KVM 1234 [000] 100.{us:06}: {event}\n");
        text += &line(
            "kvm:kvm_exit: vcpu 0 reason CPUID rip 0x1000 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
            at * 1000,
        );
        text += &line("kvm:kvm_entry: vcpu 0, rip 0x1002", at * 1000 + 2);
    }
    fs::write(folder.path().join("script"), text).unwrap();
    let report = predicted(folder.path(), "script --to nested");
    assert_eq!(
        rows(&report)[0].as_array().unwrap()[..4],
        [json!("cpuid"), json!(1000), json!(2000.0), json!(50_000.0)]
    );
    // The same under an emulator: its times are none.
    let report = predicted(folder.path(), "script --to nested --emulated it");
    assert_eq!(rows(&report)[0], json!(["cpuid", 1000, null, null, null]));
}

#[test]
fn what_cannot_be_predicted() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("counts"), COUNTS).unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                "predict counts --to snp",
                2,
                "counts: holds bare exit numbers; say whose with --isa vmx or --isa svm",
            ),
            ("predict none --to snp", 3, "none: cannot be read: No such file*"),
            ("predict counts --isa vmx --to moon", 2, "*invalid value 'moon'*"),
        ],
    );
}
