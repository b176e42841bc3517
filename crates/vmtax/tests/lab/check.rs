//! Recordings that do not show what was measured: each operation that lost its exits is a failure, never a zero.

use std::fs;

use vmtax_capture::import::ImportOptions;
use vmtax_capture::{Error, ImportFormat, ImportSource, Sink, pipeline};
use vmtax_events::{Event, Isa};
use vmtax_lab::{Extent, HostKind, HostSetup, LabPlan, Outcomes, Windows, suite};
use vmtax_machine::kernel;

use crate::run::{cache, json, output, refused, text};

/// Hands events to windows.
struct ToWindows(Windows);

impl Sink for &mut ToWindows {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        events.iter().for_each(|event| _ = self.0.place(event));
        Ok(())
    }
}

/// What a recording shows.
fn windows(trace: &[u8]) -> Windows {
    let mut sink = ToWindows(Windows::default());
    let options = ImportOptions { isa: Isa::Unknown, ..ImportOptions::default() };
    pipeline::run(ImportFormat::TraceDat, ImportSource::Random(&trace), options, &mut sink)
        .unwrap();
    sink.0
}

/// The recording as a kernel without this tracepoint would have made it.
fn without(trace: &[u8], tracepoint: &str) -> Vec<u8> {
    let name = format!("name: {tracepoint}\n");
    let at = trace.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
    let mut edited = trace.to_vec();
    edited[at + 6] = b'x';
    edited
}

/// A run of these operations on the AMD host, with a trace buffer of so many KiB.
fn measured(names: &[&str], buffer_kib: u32) -> Outcomes {
    let cache = cache().join("vmtax");
    fs::create_dir_all(&cache).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let setup = HostSetup {
        options: vec![format!("vmtax.buffer={buffer_kib}")],
        ..HostSetup::plain(
            HostKind::Amd,
            kernel::distribution(&cache).unwrap(),
            cache,
            folder.path().join("console.txt"),
        )
    };
    let plan = LabPlan {
        suites: suite::SUITES.iter().collect(),
        only: names.iter().map(|name| suite::operation(name).unwrap()).collect(),
        batches: 5,
    };
    vmtax_lab::run(&setup, &plan, &|_| {}).unwrap()
}

/// The failures that a recording makes of outcomes that had none.
fn failures(outcomes: &mut Outcomes, trace: &[u8]) -> Vec<String> {
    outcomes.check_recording(HostKind::Amd, &windows(trace));
    let failures = outcomes.failures();
    outcomes.operations.iter_mut().for_each(|one| one.failure = None);
    failures
}

#[test]
fn exits_that_are_missing_are_failures() {
    let mut outcomes = measured(&["cpuid", "wbinvd", "rdtsc"], 1024);
    let trace = outcomes.trace.clone().unwrap();
    assert_eq!((failures(&mut outcomes, &trace), outcomes.trace_lost), (vec![], 0));
    // Tracing was off: no tracepoint wrote anything.
    let off = failures(&mut outcomes, &without(&trace, "kvm_exit"));
    let missing = "its batch is not in the recording: the begin mark is missing";
    assert_eq!(off, ["cpuid", "wbinvd", "rdtsc"].map(|name| format!("{name}: {missing}")));
    let no_entries = failures(&mut outcomes, &without(&trace, "kvm_entry"));
    assert!(
        no_entries[0].starts_with("cpuid: its batch is not in the recording: no VM entry of L1")
    );
    // The batches that come last are cut off.
    let cut = failures(&mut outcomes, &trace[..trace.len() - 4096]);
    assert!(cut.last().unwrap().starts_with("rdtsc: its batch is "), "{cut:?}");
}

#[test]
fn buffer_overruns_are_counted_as_losses() {
    let mut outcomes = measured(&["cpuid", "wbinvd", "pio-user", "mmio-user", "hypercall"], 4);
    let trace = outcomes.trace.clone().unwrap();
    let failures = failures(&mut outcomes, &trace);
    assert!(outcomes.trace_lost > 0);
    assert!(failures.last().unwrap().starts_with("wbinvd: its batch is "), "{failures:?}");
}

/// Linux 5.10 has no `kvm_nested_vmenter` on VMX.
#[test]
fn a_kernel_without_the_nested_enter_event_shows_the_same_exits() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let arguments = ["lab", "run", "--host", "intel", "--nested", "--operation", "cpuid,rdtsc"];
    let report = json(&[&arguments[..], &["-o", run.to_str().unwrap()]].concat());
    let trace = fs::read(run.join("trace.dat")).unwrap();
    let of_vms = |trace: &[u8]| {
        let windows = windows(trace);
        let vms = report["run"]["vms"].as_array().unwrap().iter();
        let seen = |id: u64| windows.of_vm(u32::try_from(id).unwrap());
        vms.map(|vm| (text(&vm["name"]).to_owned(), seen(vm["id"].as_u64().unwrap())))
            .collect::<Vec<_>>()
    };
    let whole = of_vms(&trace);
    let (name, of_l2) = whole.iter().find(|(name, _)| name == "cpuid@L2").unwrap();
    assert_eq!((of_l2.extent, of_l2.nested.caused()), (Extent::Whole, 5), "{name}");
    assert_eq!(of_vms(&without(&trace, "kvm_nested_vmenter")), whole);
}

#[test]
fn an_operation_that_cannot_run_is_named() {
    // Without nesting the guest's first VMRUN faults.
    let arguments = ["lab", "run", "--operation", "cpuid,vmrun", "--option", "kvm_amd.nested=0"];
    let done = output(&arguments);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(7), "{said}");
    assert!(said.starts_with("vmtax: 1 operation was not measured:\n  vmrun: "), "{said}");
    let report = String::from_utf8(done.stdout).unwrap();
    assert!(report.contains("- not measured: vmrun: "), "{report}");
    // What was measured is reported all the same.
    assert!(report.contains("cpuid"), "{report}");
    // No budget is made of it.
    let folder = tempfile::tempdir().unwrap();
    let budget = folder.path().join("budget.toml");
    let blessed = ["--budget", budget.to_str().unwrap(), "--bless"];
    let (code, _) = refused(&[&arguments[..], &blessed].concat());
    assert_eq!((code, budget.exists()), (7, false));
}

/// Linux starts with a parameter or a value that it does not know as if it were not there.
#[test]
fn an_option_that_the_kernel_does_not_know_is_refused() {
    let run = ["lab", "run", "--operation", "cpuid", "--option"];
    for (option, words) in [
        ("kvm_amd.nptt=0", "kvm_amd.nptt: the kernel knows no such parameter"),
        ("kvm.enable_pmu=1", "kvm.enable_pmu=1: the kernel runs with enable_pmu=N; "),
        ("kvm_amd.npt=maybe", "the kernel refuses kvm_amd with npt=maybe"),
        ("kvm_intel.ept=0", "kvm_intel.ept: this host has no module kvm_intel"),
        ("mitigations=perhaps", "the kernel says: Unsupported mitigations=perhaps"),
    ] {
        let (code, said) = refused(&[&run[..], &[option]].concat());
        assert_eq!(code, 2, "{option}: {said}");
        assert!(said.contains(words), "{option}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let series = folder.path().join("series");
    let series = series.to_str().unwrap();
    let vary =
        ["lab", "series", "--kernel", "distribution", "--host", "amd", "--operation", "cpuid"];
    let (code, said) =
        refused(&[&vary[..], &["--vary", "kvm_amd.bogus=1,2", "-o", series]].concat());
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("kvm_amd.bogus: the kernel knows no such parameter"), "{said}");
}
