//! `vmtax vpmu`: the policies of a virtual PMU side by side, and its gates.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

use serde_json::Value;

fn command(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmtax")).arg("vpmu").args(args).output().unwrap()
}

fn vpmu(args: &[&str]) -> Output {
    let output = command(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&vpmu(&[args, &["--format", "json"]].concat()).stdout).unwrap()
}

#[test]
fn bench_shows_measured_values_first_with_their_source() {
    let text = String::from_utf8(vpmu(&["bench", "--turns", "0"]).stdout).unwrap();
    let first = text.lines().next().unwrap();
    assert_eq!(first, "Measured on emulated hosts");
    assert!(text.lines().nth(1).unwrap().starts_with("A recording of "), "{text}");
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    // Measured, computed, published.
    let order =
        ["amd: QEMU TCG", "intel: Bochs", "the policies over the same guests", "\nPrecision: "];
    let order = order.map(at);
    assert!(order.is_sorted() && !text.contains("unknowable"), "{order:?}");
    for constant in ["create 30,000,000", "stop 2,000,000", "Assumed: ", "take 200 ns"] {
        assert!(text.contains(constant), "{text}");
    }
    let report = json(&["bench", "--turns", "0"]);
    assert_eq!(report["schema"], "vmtax-vpmu-bench-5");
    assert_eq!(report["emulated"]["recorded"], true);
    // The text above the table lists the costs that the mediated instructions do not include.
    assert_eq!(
        report["emulated"]["mediated_lacks"],
        serde_json::json!({ "reads": 16, "writes": 25 })
    );
    assert!(at("16 reads (RDPMC, RDMSR) and 25 WRMSR") < at("amd: QEMU TCG"));
    for host in report["emulated"]["recording"]["hosts"].as_array().unwrap() {
        assert!(host["accelerator"].as_str().unwrap().starts_with("emulated:"));
        let operations = host["operations"].as_array().unwrap();
        assert_eq!(operations.len(), 6);
        let switch = operations.iter().find(|o| o["operation"] == "pmu-switch").unwrap();
        assert_eq!(switch["creates"]["legacy"], 6.0);
        assert_eq!(
            (&switch["creates"]["reuse"], &switch["creates"]["mediated"]),
            (&0.0.into(), &0.0.into())
        );
    }
    assert_eq!(report["steady"].as_array().unwrap().len(), 0);
}

/// A row of arm64 beside one of Intel says so, and each base has its own columns.
#[test]
fn published_rows_stand_beside_measured_and_computed_ones() {
    let text = String::from_utf8(vpmu(&["bench", "--turns", "0"]).stdout).unwrap();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    let order = [
        "Measured: KVM's own virtual PMU on arm64",
        "Instructions that a guest counted on arm64, and executed",
        "Operations of a guest: published, measured on arm64, computed",
        "measured: Linux 6.1",
        "; not hardware; published and computed: Intel",
        "the policies over the same guests",
    ];
    assert!(order.map(at).is_sorted(), "{text}");
    let report = json(&["bench", "--turns", "0"]);
    assert_eq!(report["kvm"]["recorded"], true);
    let rows = report["operations"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for kernel in report["kvm"]["recording"]["kernels"].as_array().unwrap() {
        let accelerator = kernel["accelerator"].as_str().unwrap();
        assert!(accelerator.starts_with("emulated:") && accelerator.contains("arm64"), "{kernel}");
        let measured = kernel["operations"].as_array().unwrap();
        for row in rows {
            let found = measured.iter().find(|one| one["operation"] == row["on_arm"]);
            assert!(found.is_some_and(|one| one["path"].as_f64() > Some(500.0)), "{row}");
        }
        for one in kernel["counts"].as_array().unwrap() {
            let counted = one["counted"].as_array().unwrap();
            assert!(counted.len() > 5 && counted.iter().all(|n| *n == one["executed"]), "{one}");
        }
    }
}

#[test]
fn lost_samples_and_shares_stand_beside_the_published_ones() {
    let text = String::from_utf8(vpmu(&["bench", "--turns", "0"]).stdout).unwrap();
    let samples = |row: &str| {
        let (basis, guest) = row.split_once(", ").unwrap();
        let table = &text[text.find("\nPrecision: ").unwrap()..];
        let rest = |line: &str| {
            Some(line.trim().strip_prefix(basis)?.trim().strip_prefix(guest)?.to_owned())
        };
        let rest = table.lines().find_map(rest).unwrap_or_else(|| panic!("{row}: {text}"));
        rest.split_whitespace().next().unwrap().replace(',', "").parse::<u64>().unwrap()
    };
    // The same in every run: its time is virtual.
    assert!(text.contains("a host that costs nothing takes 18,704"), "{text}");
    assert_eq!(samples("computed, legacy"), 1159);
    assert_eq!(samples("computed, reuse"), 18620);
    assert!(samples("computed, mediated") > 17768);
    assert_eq!(samples("published, guest, legacy"), 5198);
    assert_eq!(samples("published, guest, version 2"), 22550);
    assert_eq!(samples("published, host"), 20652);
    let report = json(&["bench", "--turns", "0"]);
    let contention = report["computed"]["contention"].as_array().unwrap();
    assert_eq!(contention.len(), 6);
    let policies = report["computed"]["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 9);
    for row in policies {
        let seen = if row["policy"] == "mediated" { 0.0 } else { 1.0 };
        assert_eq!(row["seen"], seen, "{row}");
    }
}

#[test]
fn a_steady_guest_creates_no_events_under_reuse() {
    let report = json(&["bench", "--turns", "2"]);
    for event in report["steady"].as_array().unwrap() {
        // Where perf_event_open is not allowed, that is what it must say.
        match event["unknown"].as_str() {
            Some(why) => assert!(why.contains("perf_event_paranoid"), "{event}"),
            None => {
                assert_eq!(event["creates"]["legacy"], 200, "{event}");
                assert_eq!(event["creates"]["reuse"], 0, "{event}");
            }
        }
    }
}

#[test]
fn the_gates_hold_for_all_policies() {
    let gates = json(&["selftest"]);
    assert_eq!(gates["schema"], "vmtax-vpmu-selftest-1");
    let gates = gates["gates"].as_array().unwrap();
    assert_eq!(gates.len(), 17);
    for policy in ["legacy", "reuse", "mediated"] {
        assert!(gates.iter().filter(|g| g["policy"] == policy).count() >= 5, "{policy}");
    }
    assert!(gates.iter().all(|g| g["holds"] == true), "{gates:?}");
}

#[test]
fn a_linux_guest_without_the_module_is_refused_with_the_reason() {
    let output = command(&["run", "--", "perf", "stat", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--module"));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("module");
    vpmu(&["module", folder.to_str().unwrap()]);
    let source = std::fs::read_to_string(folder.join("vmtax_rdpmc.c")).unwrap();
    assert!(source.contains("register_die_notifier"));
    assert!(folder.join("Kbuild").exists());
}
