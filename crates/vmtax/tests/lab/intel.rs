//! The Intel host.

use crate::run::{assert_exits, assert_same_paths, assert_versioned, exits, json};

/// Exits of one operation. What depends on time is not here.
pub(crate) const L1: &[(&str, &str)] = &[
    ("cpuid L1", "L1 CPUID 1"),
    ("hypercall L1", "L1 VMCALL KVM_HC_VAPIC_POLL_IRQ 1"),
    ("rdmsr L1", "L1 MSR_READ IA32_APIC_BASE 1"),
    ("wrmsr L1", "L1 MSR_WRITE IA32_PAT 1"),
    ("tsc-deadline L1", "L1 MSR_WRITE IA32_TSC_DEADLINE 1"),
    ("x2apic-self-ipi L1", "L1 MSR_WRITE X2APIC_EOI 1, L1 MSR_WRITE X2APIC_ICR 1"),
    ("pio-user L1", "L1 IO_INSTRUCTION 1"),
    ("pio-pit L1", "L1 IO_INSTRUCTION PIT channel 0 1"),
    ("pio-pic L1", "L1 IO_INSTRUCTION PIC 1 data 1"),
    ("mmio-user L1", "L1 EPT_MISCONFIG 1"),
    ("touch-4k L1", "L1 EPT_VIOLATION 1"),
    ("touch-2m L1", "L1 EPT_VIOLATION 1"),
    ("cr4-write L1", "L1 CR_ACCESS CR4 1"),
    ("cr0-write L1", "L1 CR_ACCESS CR0 1"),
    ("wbinvd L1", "L1 WBINVD 1"),
    ("xsetbv L1", "L1 XSETBV 1"),
    ("rdtsc L1", ""),
    ("invlpg L1", ""),
    ("ud2 L1", "L1 EXCEPTION_NMI 1"),
];

#[test]
fn operations_take_exactly_the_exits_they_must() {
    let report = json(&["lab", "run", "--host", "intel"]);
    eprintln!("{:#?}", exits(&report));
    assert_exits(&report, L1);
    assert_versioned(&report["run"]["accelerator"], "emulated:Bochs ", "");
    let again = json(&["lab", "run", "--host", "intel"]);
    assert_exits(&again, L1);
    assert_same_paths(&report, &again);
}

/// What docs/lab.md says that the host has is in use: without it other exits are taken.
#[test]
fn features_are_in_use() {
    let of = |words: &[&str], operation: &str, reason: &str| {
        let report = json(&[&["lab", "run", "--host", "intel"], words].concat());
        let all = exits(&report);
        let found = all.get(operation).unwrap_or_else(|| panic!("{operation}: {all:?}"));
        (found.split(", ").any(|one| one.split(' ').nth(1) == Some(reason)), found.clone())
    };
    let touch = ["--operation", "touch-4k"];
    let nested = ["--nested", "--operation", "cpuid"];
    let (with, found) = of(&touch, "touch-4k L1", "EPT_VIOLATION");
    assert!(with, "{found}");
    let without = ["--option", "kvm_intel.ept=0"];
    let (without, found) = of(&[&touch[..], &without].concat(), "touch-4k L1", "EPT_VIOLATION");
    assert!(!without, "{found}");
    // KVM takes the preemption timer only if the kernel believes that the TSC is slower than it is.
    let expiry = ["--operation", "deadline-x2apic-poll", "--option", "tsc_early_khz=400000"];
    let (with, found) = of(&expiry, "deadline-x2apic-poll L1", "PREEMPTION_TIMER");
    assert!(with, "{found}");
    let without = [&expiry[..], &["--option", "kvm_intel.preemption_timer=0"]].concat();
    let (without, found) = of(&without, "deadline-x2apic-poll L1", "PREEMPTION_TIMER");
    assert!(!without, "{found}");
    // With VMCS shadowing a CPUID of L2 takes one VMREAD of L1, of a field that is not shadowed.
    let (_, with) = of(&nested, "cpuid L2", "VMREAD");
    let without = ["--option", "kvm_intel.enable_shadow_vmcs=0"];
    let (_, without) = of(&[&nested[..], &without].concat(), "cpuid L2", "VMREAD");
    let accesses = |found: &str| found.matches("VMREAD").count() + found.matches("VMWRITE").count();
    assert!(accesses(&with) <= 2 && accesses(&without) >= 4, "{with}\n{without}");
}
