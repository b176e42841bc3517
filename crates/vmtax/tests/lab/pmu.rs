//! A guest of a real KVM that programs, samples and switches the counters of a virtual PMU, and profiles itself.

use serde_json::Value;

use crate::run::{self, assert_versioned, json, row};

/// Events that one operation creates under legacy; under reuse it is none. The handler of a sample sets global control,
/// and the overflow itself creates anew too, as it did in KVM.
const CREATES: [(&str, f64); 6] = [
    ("pmu-global", 6.0),
    ("pmu-eventsel", 1.0),
    ("pmu-fixed-ctrl", 1.0),
    ("pmu-read", 0.0),
    ("pmu-sample", 2.0),
    ("pmu-switch", 6.0),
];
/// Eleven batches of twenty rounds of a hundred hypercalls, of which every seventh is a sample. The batch that warms up
/// took 2000 and left 5 of a period.
const COUNTED: u64 = 11 * 20 * 100;
const SAMPLES: u64 = (5 + COUNTED) / 7;

fn bench(host: &str) -> Value {
    let report = json(&["vpmu", "bench", "--turns", "0", "--emulated", host]);
    assert_eq!(report["emulated"]["recorded"], false);
    report["emulated"]["recording"]["hosts"][0].clone()
}

/// The same host in the recording that vmtax brings.
fn recorded(host: &str) -> Value {
    let report = json(&["vpmu", "bench", "--turns", "0"]);
    let hosts = report["emulated"]["recording"]["hosts"].as_array().unwrap();
    hosts.iter().find(|one| one["host"] == host).unwrap().clone()
}

/// What vmtax brings is what is measured: events exactly, path lengths as far as kernels and compilers leave them alone.
fn check_recording(host: &str, report: &Value) {
    let recorded = recorded(host);
    let [here, there] = [report, &recorded].map(|r| r["operations"].as_array().unwrap());
    assert_eq!(here.len(), there.len());
    for (here, there) in here.iter().zip(there) {
        assert_eq!(
            (&here["operation"], &here["creates"]),
            (&there["operation"], &there["creates"])
        );
        if report["kernel"] != recorded["kernel"] {
            continue;
        }
        for policy in ["legacy", "reuse", "mediated"] {
            let [here, there] = [here, there].map(|r| number(&r["path"][policy]));
            assert!((here / there - 1.0).abs() <= 0.1, "{policy}: {here}, recorded {there}");
        }
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// What does not depend on the processor, but for how often RDPMC faults.
fn check(report: &Value, rdpmc: u64) {
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{report:#}");
    let operations = report["operations"].as_array().unwrap();
    assert_eq!(operations.len(), CREATES.len());
    for (operation, (name, creates)) in operations.iter().zip(CREATES) {
        assert_eq!(operation["operation"], name);
        assert_eq!(number(&operation["creates"]["legacy"]), creates, "{name}");
        assert_eq!(number(&operation["creates"]["reuse"]), 0.0, "{name}");
        assert_eq!(number(&operation["creates"]["mediated"]), 0.0, "{name}");
        // What does not leave the guest is its own instructions; what does is answered by KVM.
        let path = number(&operation["path"]["mediated"]);
        let alone = ["pmu-global", "pmu-read"].contains(&name);
        assert!(if alone { path <= 8.0 } else { path > 1000.0 }, "{name} {path}");
        assert!(path * 2.0 < number(&operation["path"]["reuse"]), "{name} {path}");
        let ratio = number(&operation["path_ratio"]);
        // Creating and closing costs more than all else that an operation takes; a reading is the same.
        assert!(
            if creates > 0.0 { ratio > 1.7 } else { (ratio - 1.0).abs() < 0.005 },
            "{name} {ratio}"
        );
    }
    let faults = report["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 3);
    // Twelve batches of four.
    for (fault, expected) in faults.iter().zip([48, 48, rdpmc]) {
        assert_eq!((&fault["faulted"], &fault["of"]), (&expected.into(), &48.into()), "{fault}");
    }
    let profiles = report["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 3);
    for profile in profiles {
        let legacy = profile["operation"] == "pmu-profile-legacy";
        assert_eq!(profile["counted"], COUNTED, "{profile:#}");
        assert_eq!(profile["interrupts"], SAMPLES);
        assert_eq!(profile["delivered"], SAMPLES);
        assert_eq!(profile["creates"], if legacy { 2 * SAMPLES } else { 0 });
        for none in ["merged", "dropped", "throttles", "troubles", "samples_outside"] {
            assert_eq!(profile[none], 0, "{none}");
        }
        for share in profile["shares"].as_array().unwrap() {
            // Every seventh of a program of a hundred: no chance is in it.
            assert!((number(&share["sampled"]) - number(&share["known"])).abs() < 0.001, "{share}");
        }
    }
}

/// Path lengths by operation and policy.
fn paths(report: &Value) -> Vec<(String, f64)> {
    let operations = report["operations"].as_array().unwrap().iter();
    let both = |operation: &Value| {
        ["legacy", "reuse", "mediated"].map(|policy| {
            let name = format!("{}-{policy}", operation["operation"].as_str().unwrap());
            (name, number(&operation["path"][policy]))
        })
    };
    operations.flat_map(both).collect()
}

#[test]
fn a_guest_of_kvm_costs_the_same_in_every_run_and_creates_no_events_under_reuse() {
    let report = bench("amd");
    // Linux 6.1's kvm-amd reads zero where it has no PMU.
    check(&report, 0);
    check_recording("amd", &report);
    assert_versioned(&report["accelerator"], "emulated:QEMU TCG ", " (icount)");
    // Another boot.
    let fresh = json(&["lab", "run", "--suite", "pmu", "--batches", "11", "--fresh"]);
    for (name, path) in paths(&report) {
        let again = run::path(row(&fresh, &name));
        // What makes and ends events takes so long that a tick of the clock or a grace period falls into some batches.
        let most = if name.contains("legacy") { 0.03 } else { 0.005 };
        assert!((again - path).abs() <= most * path, "{name}: {path} and {again}");
    }
}

#[test]
#[ignore = "a cold boot of an Intel host; ./x soak runs it"]
fn a_guest_of_kvm_on_intel() {
    let report = bench("intel");
    check(&report, 48);
    check_recording("intel", &report);
    let again = bench("intel");
    for ((name, one), (_, other)) in paths(&report).into_iter().zip(paths(&again)) {
        assert!((one / other - 1.0).abs() <= 0.005, "{name}: {one} and {other}");
    }
}
