//! What is known to be wrong with a VM, `vmtax explain` names from the recording alone, and nothing else.

use crate::run::{json, output};

/// The signs that it finds for one VM of a run.
fn signs(run: &str, vm: &str) -> Vec<String> {
    // The base is what all VMs of the run do together.
    let report = json(&["explain", run, "--vm", vm, "--against", run]);
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|one| one["sign"].as_str().unwrap().to_owned()).collect()
}

/// Runs the lab, and holds each VM of the run against what is known of it.
fn check(arguments: &[&str], cases: &[(&str, &[&str])]) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let made = output(&[&["lab", "run", "-o", run], arguments].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
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
            ("deadline-x2apic-hlt", &[]),
            ("deadline-x2apic-haltpoll", &[]),
            ("short-x2apic-haltpoll", &[]),
            ("count-x2apic-hlt", &["no-tsc-deadline"]),
            ("count-xapic-hlt", &["no-tsc-deadline", "xapic"]),
            ("deadline-xapic-hlt", &["xapic"]),
            ("deadline-x2apic-poll", &["polling"]),
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
            ("x2apic-self-ipi", &[]),
            ("tsc-deadline", &[]),
            ("touch-2m", &[]),
            ("context-switch", &[]),
            ("cpuid@L2", &[]),
            ("touch-4k", &["small-pages"]),
            ("xapic-read", &["xapic"]),
            ("pio-user", &["one-notification"]),
            ("mmio-user", &["one-notification"]),
        ],
    );
}

#[test]
fn counters_and_who_uses_them() {
    check(
        &["--suite", "perf"],
        &[
            ("perf-none", &[]),
            ("perf-multiplex", &["counters", "multiplexing"]),
            ("perf-sample", &["counters"]),
            ("perf-switch", &["counters"]),
            ("perf-switch-seldom", &["counters"]),
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
        &[("cpuid", &[]), ("cpuid@L2", &["no-vmcs-shadowing"])],
    );
}
