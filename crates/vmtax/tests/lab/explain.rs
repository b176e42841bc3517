//! What is known to be wrong with a VM, `vmtax explain` names from the recording alone, and nothing else.

use crate::run::{json, printed};

/// The findings with a remedy that it has for one VM of a run, by word.
fn signs(run: &str, vm: &str) -> Vec<String> {
    // The base is what all VMs of the run do together.
    let report = json(&["explain", run, "--vm", vm, "--against", run]);
    let findings = report["findings"].as_array().unwrap();
    let with = findings.iter().filter(|one| !one["remedies"].as_array().unwrap().is_empty());
    let mut ids: Vec<String> = with.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// Runs the lab, and holds each VM of the run against what is known of it.
fn check(arguments: &[&str], cases: &[(&str, &[&str])]) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    printed(&[&["lab", "run", "-o", run], arguments].concat());
    let wrong: Vec<String> = cases
        .iter()
        .map(|(vm, expected)| (vm, expected, signs(run, vm)))
        .filter(|(_, expected, found)| found != *expected)
        .map(|(vm, expected, found)| format!("{vm}: expected {expected:?}, found {found:?}"))
        .collect();
    assert!(wrong.is_empty(), "{arguments:?}\n{}", wrong.join("\n"));
}

#[test]
fn timers_apics_and_idle_loops() {
    check(
        &["--suite", "timers"],
        &[
            ("deadline-x2apic-hlt", &["no-virtual-apic"]),
            ("deadline-x2apic-haltpoll", &["no-virtual-apic"]),
            ("short-x2apic-haltpoll", &["no-virtual-apic"]),
            ("count-x2apic-hlt", &["apic-timer", "no-virtual-apic"]),
            ("count-xapic-hlt", &["apic-timer", "no-virtual-apic", "xapic"]),
            ("deadline-xapic-hlt", &["no-virtual-apic", "xapic"]),
            ("deadline-x2apic-poll", &["no-virtual-apic"]),
        ],
    );
}

#[test]
fn pages_and_devices() {
    check(
        &["--nested"],
        &[
            ("cpuid", &[]),
            ("hypercall", &[]),
            ("x2apic-self-ipi", &["ipi", "no-virtual-apic"]),
            ("tsc-deadline", &[]),
            ("touch-2m", &[]),
            ("context-switch", &["ipi", "no-virtual-apic"]),
            ("cpuid@L2", &[]),
            ("touch-4k", &["memory-faults", "small-pages"]),
            ("xapic-read", &["no-virtual-apic", "xapic"]),
            ("pio-user", &["device-registers"]),
            ("mmio-user", &["device-registers"]),
        ],
    );
}

#[test]
fn counters_and_who_uses_them() {
    check(
        &["--suite", "perf"],
        &[
            ("perf-none", &["no-virtual-apic"]),
            ("perf-multiplex", &["counters"]),
            ("perf-sample", &["counters", "no-virtual-apic"]),
            ("perf-switch", &["counters"]),
            ("perf-switch-seldom", &["counters", "no-virtual-apic"]),
        ],
    );
}

#[test]
fn without_nested_paging() {
    check(
        &["--operation", "cpuid,invlpg,touch-2m", "--option", "kvm_amd.npt=0"],
        &[("cpuid", &[]), ("invlpg", &["shadow-paging"])],
    );
}

#[test]
#[ignore = "two cold boots of nested Intel hosts; ./x soak runs it"]
fn without_vmcs_shadowing() {
    let nested = ["--host", "intel", "--nested", "--operation", "cpuid"];
    check(&nested, &[("cpuid", &[]), ("cpuid@L2", &[])]);
    check(
        &[&nested[..], &["--option", "kvm_intel.enable_shadow_vmcs=0"]].concat(),
        &[("cpuid", &[]), ("cpuid@L2", &["vmcs-accesses"])],
    );
}
