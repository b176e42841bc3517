//! The AMD host, with nesting.

use std::process::Command;

use crate::browser::Browser;
use crate::run::{assert_exits, assert_same_paths, assert_versioned, exits, json, output, paths};

/// Exits of one operation. What depends on time (timers, context switches, lazily saved registers) is not here.
pub(crate) const L1: &[(&str, &str)] = &[
    ("cpuid L1", "L1 cpuid 1"),
    ("hypercall L1", "L1 hypercall KVM_HC_VAPIC_POLL_IRQ 1"),
    ("rdmsr L1", "L1 msr IA32_APIC_BASE 1"),
    ("wrmsr L1", "L1 msr IA32_PAT 1"),
    ("tsc-deadline L1", "L1 msr IA32_TSC_DEADLINE 1"),
    ("x2apic-self-ipi L1", "L1 msr X2APIC_EOI 1, L1 msr X2APIC_ICR 1"),
    ("xapic-read L1", "L1 npf xAPIC TPR 1"),
    ("pio-user L1", "L1 io 1"),
    ("pio-pit L1", "L1 io PIT channel 0 1"),
    ("pio-pic L1", "L1 io PIC 1 data 1"),
    ("mmio-user L1", "L1 npf 1"),
    ("touch-4k L1", "L1 npf 1"),
    ("touch-2m L1", "L1 npf 1"),
    ("pause L1", ""),
    ("cr4-write L1", "L1 write_cr4 1"),
    ("cr0-write L1", "L1 cr0_sel_write 1"),
    ("wbinvd L1", "L1 wbinvd 1"),
    ("rdtsc L1", ""),
    ("invlpg L1", ""),
    ("ud2 L1", "L1 UD excp 1"),
];

/// What KVM in L1 executes to bring L2 back.
const BACK: &str = "L1 msr IA32_DEBUGCTL 1, L1 vmload 2, L1 vmrun 1, L1 vmsave 1";

#[test]
fn operations_take_exactly_the_exits_they_must() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let report = json(&["lab", "run", "--nested", "-o", run]);
    assert_exits(&report, L1);
    let nested = |l2: &str| format!("{BACK}, L2 {l2}");
    assert_exits(
        &report,
        &[
            ("cpuid L2", &nested("cpuid 1")),
            ("hypercall L2", &nested("hypercall 1")),
            ("rdmsr L2", &nested("msr 1")),
            ("cr4-write L2", &nested("write_cr4 1")),
            ("cr0-write L2", &nested("cr0_sel_write 1")),
            ("wbinvd L2", &nested("wbinvd 1")),
            ("ud2 L2", &nested("UD excp 1")),
            ("pause L2", ""),
            ("rdtsc L2", ""),
            ("invlpg L2", ""),
        ],
    );
    assert_versioned(&report["run"]["accelerator"], "emulated:QEMU TCG ", " (icount)");
    let again = json(&["lab", "run", "--nested"]);
    assert_exits(&again, L1);
    assert_same_paths(&report, &again);
    trace_cmd_reads_the_same(&format!("{run}/trace.dat"));
    let page = folder.path().join("page.html");
    output(&["report", run, "--format", "html", "-o", page.to_str().unwrap()]);
    let mut browser = Browser::start();
    browser.open(&page);
    assert!(browser.sheets() <= 3, "the page of the demo takes {} sheets", browser.sheets());
}

/// trace-cmd counts as many exits of L1's payloads in the same file.
fn trace_cmd_reads_the_same(trace: &str) {
    let output = Command::new("trace-cmd").args(["report", "-i", trace]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // What L1 does has a thread of its own.
    let payloads: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("L1-")).collect();
    let found = ["EXIT_CPUID", "EXIT_VMMCALL", "EXIT_WBINVD"].map(|reason| {
        let exit = format!("kvm_exit:             reason {reason} ");
        payloads.iter().filter(|line| line.contains(&exit)).count()
    });
    assert_eq!(found, [20, 20, 20]);
}

/// Neither the moment at which a saved host goes on nor anything of another boot changes a number, but where two vCPUs race.
#[test]
fn a_new_boot_gives_the_same_numbers() {
    let run = ["lab", "run", "--operation", "cpuid,pio-user,touch-4k"];
    let numbers = |more: &[&str]| {
        let report = json(&[&run[..], more].concat());
        (paths(&report), exits(&report))
    };
    let saved = numbers(&[]);
    assert_eq!(saved, numbers(&[]));
    // Another boot may place objects elsewhere, which is an instruction or two (docs/measured/lab-method.md): CPUID took 2,769 once in hundreds of boots.
    let fresh = numbers(&["--fresh"]);
    assert_eq!(saved.1, fresh.1);
    for (operation, path) in &saved.0 {
        let other = fresh.0[operation];
        assert!((path - other).abs() <= 2.0, "{operation}: {path}, {other} from a new boot");
    }
}
