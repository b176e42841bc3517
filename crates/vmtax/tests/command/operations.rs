//! A run with operations: they come first, and the other tables when they are asked for.

use std::path::Path;

use vmtax_events::{
    Better, Coverage, ExitKey, ExitRow, Isa, Level, Losses, Outcome, Reason, Recording, Sample,
    Tally, TimeRow, Vm, svm,
};
use vmtax_store::{CreateOptions, RunWriter};

use crate::captures::{json, report, unpack};

/// 100 CPUIDs at L1 and at L2, each L2 exit answered by L1.
fn write_run(folder: &Path) {
    let options = CreateOptions { interval_ns: 1_000_000, ..CreateOptions::default() };
    let mut writer = RunWriter::create(folder, &options).unwrap();
    let cpuid = Reason { isa: Isa::Svm, code: svm::CPUID, flags: 0 };
    let vmrun = Reason { code: svm::VMRUN, ..cpuid };
    let key = ExitKey::of(1, cpuid);
    let mut tally = Tally::default();
    (0..100).for_each(|_| tally.add(1_000));
    for key in [
        key,
        ExitKey { vm: 2, level: Level::L2, outcome: Outcome::L1, ..key },
        ExitKey { vm: 2, reason: vmrun, ancillary_of: Some(cpuid), ..key },
    ] {
        let tally = tally.clone();
        writer.exit(&ExitRow { interval_start_ns: 0, key, tally }).unwrap();
    }
    for (vm, guest_ns, l2_ns, exit_kernel_ns) in
        [(1, 100_000, 0, 100_000), (2, 200_000, 100_000, 200_000)]
    {
        let wall_ns = guest_ns + exit_kernel_ns;
        let row = TimeRow { vm, wall_ns, guest_ns, l2_ns, ..TimeRow::default() };
        writer.time(&TimeRow { exit_kernel_ns, ..row }).unwrap();
    }
    for (workload, category, path) in [("cpuid", "L1", 1_000.0), ("cpuid@L2", "L2", 12_000.0)] {
        for (metric, value) in [(Sample::OPERATIONS, 100.0), (Sample::PATH, path)] {
            let sample = Sample {
                workload: workload.to_owned(),
                category: category.to_owned(),
                repeat: 0,
                metric: metric.to_owned(),
                unit: String::new(),
                value,
                better: Better::Neither,
            };
            writer.sample(&sample).unwrap();
        }
    }
    let vm = |id, name: &str| Vm { id, name: name.to_owned(), inferred: false, ..Vm::default() };
    let recording = Recording {
        emulated: Some("QEMU TCG (icount)".to_owned()),
        coverage: Coverage { exits: true, nested: true, ..Coverage::default() },
        vms: vec![vm(1, "cpuid"), vm(2, "cpuid@L2")],
        ..Recording::default()
    };
    writer.finish(&recording, &Losses::default()).unwrap();
}

fn titles(text: &str) -> Vec<&str> {
    let starts = ["Operations:", "Exits of L2", "VM exits by", "Time of each vCPU"];
    let title = |line: &&str| starts.iter().any(|start| line.starts_with(start));
    text.lines().filter(title).map(|line| line.split([':', ',']).next().unwrap()).collect()
}

#[test]
fn operations_come_first() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    write_run(&run);
    assert_eq!(titles(&report(&run, &[])), ["Operations", "Exits of L2"]);
    assert_eq!(titles(&report(&run, &["--event", "operations"])), ["Operations"]);
    assert_eq!(
        titles(&report(&run, &["--event", "cause"])),
        ["Time of each vCPU", "VM exits by cause"]
    );
    let all = json(&run, &[]);
    assert_eq!(all["tables"], serde_json::json!([]));
    assert_eq!(all["nested"]["rows"][0]["to_l1"], 100);
    let rows = &all["operations"]["rows"];
    let ratios: Vec<f64> =
        (0..2).map(|i| rows[i]["exits_per_operation"].as_f64().unwrap()).collect();
    assert_eq!(ratios, [1.0, 2.0]);
    assert_eq!(rows[1]["l2_over_l1"], 12.0);
    assert_eq!(rows[1]["window"]["l2"], 0.25);
    // A page has room for everything.
    let page = report(&run, &["--format", "html"]);
    for id in ["operations", "nested", "table-0-cause", "table-1-vmexit"] {
        assert!(page.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    let csv = report(&run, &["--format", "csv"]);
    assert_eq!(csv.lines().filter(|line| line.starts_with("operation")).count(), 2 + 3);
}

#[test]
fn can_be_limited_to_a_vm_by_its_name() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    write_run(&run);
    let one = json(&run, &["--vm", "cpuid@L2"]);
    let rows = one["operations"]["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["level"]), (1, &serde_json::json!("L2")));
    assert_eq!(rows[0]["l2_over_l1"], 12.0, "what it is compared with is not left out");
}

#[test]
fn of_a_recording_there_are_none() {
    let input = unpack("amd-cpuid", "zstd.perf.data.zst");
    let text = report(&input, &["--event", "operations"]);
    assert!(text.contains("none: this is no lab run"), "{text}");
    assert_eq!(
        json(&input, &["--event", "operations"])["operations"]["rows"],
        serde_json::json!([])
    );
    assert!(json(&input, &[])["operations"].is_null());
}
