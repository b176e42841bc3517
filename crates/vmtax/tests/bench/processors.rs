//! VMs on an emulated host of two processors: what vCPUs ask of each other is counted exactly in each boot, and none waits for another one's processor.

use std::path::Path;

use serde_json::Value;

use crate::exits::exits;
use crate::{matrix, name, ok, row, rows, vmtax};

const TWO: &str = r#"
name = "two processors"
repeats = 1
warmup = false
categories = ["plain"]
[vm]
accel = "amd"
processors = 2
memory = 160
[[workload]]
use = "ipi"
set = { seconds = 0.01 }
[[workload]]
use = "wakeup-across"
set = { seconds = 0.01 }
"#;

/// Interrupts for another vCPU that an operation of each workload takes.
const WORKLOADS: [(&str, f64); 2] = [("ipi", 2.0), ("wakeup-across", 1.0)];

/// What a workload took in one boot.
struct Counted {
    /// Operations of the run whose exits were recorded.
    operations: f64,
    /// Writes of the ICR, and halts.
    sent: f64,
    halted: f64,
    /// Instructions at all levels of an operation of the profiled run.
    instructions: f64,
    /// Those of them in the function in which Linux waits for another processor, as a part of all.
    waits: f64,
}

impl Counted {
    fn of(run: &Path, workload: &str) -> Counted {
        let found = rows(run);
        let value = |metric: &str| -> f64 {
            row(&found, workload, metric, "plain")["median"].parse().unwrap()
        };
        let cell = format!("{workload} in plain (repeat 0)");
        let recorded = exits(run, &cell);
        let count = |is: &dyn Fn(&str, &str) -> bool| -> f64 {
            let alike = recorded.iter().filter(|(reason, detail, _)| is(reason, detail));
            alike.map(|(.., count)| *count as f64).sum()
        };
        let folded = vmtax(&["report", name(run), "--format", "folded"]);
        let folded = String::from_utf8(folded.stdout).unwrap();
        let of_cell = folded.lines().filter(|line| line.starts_with(&cell));
        let own = of_cell.map(|line| line.rsplit_once(' ').unwrap());
        let own: Vec<(&str, f64)> = own.map(|(at, own)| (at, own.parse().unwrap())).collect();
        let all: f64 = own.iter().map(|(_, own)| own).sum();
        let is_wait = |(at, _): &&(&str, f64)| at.ends_with("L1 smp_call_function_many_cond");
        let waits: f64 = own.iter().filter(is_wait).map(|(_, own)| own).sum();
        assert_eq!(all, value("profile-begun") - value("profile-undone"), "{workload}");
        Counted {
            operations: count(&|_, _| true) / value("exits"),
            sent: count(&|_, detail| detail == "X2APIC_ICR"),
            halted: count(&|reason, _| reason == "hlt"),
            instructions: all / value("profile-operations"),
            waits: waits / all,
        }
    }
}

/// Two boots. Each wake-up is one interrupt and one halt; the program's start, its end and ticks add some.
#[test]
fn interrupts_between_processors_are_the_same_in_each_boot() {
    let folder = tempfile::tempdir().unwrap();
    let path = matrix(folder.path(), TWO);
    let runs = ["one", "two"].map(|boot| {
        let run = folder.path().join(boot);
        let text = ok(&["run", name(&path), "--profile", "--fresh", "-o", name(&run)]);
        assert!(text.contains("(QEMU TCG) with 2 processors that take turns)"), "{text}");
        let report = vmtax(&["report", name(&run), "--format", "json"]);
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        let notes = report["losses"]["notes"].as_array().unwrap();
        let is_lost = |note: &Value| note.as_str().unwrap().contains("call tree");
        assert!(!notes.iter().any(is_lost), "{notes:?}");
        run
    });
    for (workload, each) in WORKLOADS {
        let [one, two] = [0, 1].map(|boot| Counted::of(&runs[boot], workload));
        for Counted { operations, sent, halted, waits, .. } in [&one, &two] {
            assert!(*operations > 100.0, "{workload}: {operations}");
            let expected = each * operations.round();
            for (what, found) in [("sent", sent), ("halted", halted)] {
                let more = found - expected;
                assert!((0.0..=20.0).contains(&more), "{workload}: {what} {found} of {expected}");
            }
            // On one processor it is a fifth of all.
            assert!(*waits < 0.01, "{workload}: {waits}");
        }
        let (one, two) = (one.instructions, two.instructions);
        assert!((one - two).abs() < 0.05 * one, "{workload}: {one} and {two}");
    }
}

/// What would run, and the run's own words.
#[test]
fn a_dry_run_shows_processors_and_vcpus() {
    let folder = tempfile::tempdir().unwrap();
    let text = TWO.replace("\"plain\"]", "\"plain\", \"plain+nested\"]");
    let text = ok(&["run", name(&matrix(folder.path(), &text)), "--dry-run"]);
    let shown =
        "  processors: 2 of the emulated host, 2 vCPUs, each pinned to one; processors take turns";
    assert_eq!(text.lines().filter(|line| *line == shown).count(), 2, "{text}");
    let lines = |word: &str| text.lines().filter(|line| line.contains(word)).count();
    // The host starts its processors; it and L1 each run a VM of two vCPUs.
    assert_eq!((lines(" maxcpus=1 vmtax.online"), lines(" vmtax.cpus=2")), (2, 3), "{text}");
}
