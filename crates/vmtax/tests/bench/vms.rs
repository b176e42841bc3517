//! Categories of VM on QEMU's emulator: real kernels, real programs, parity.

use std::fs;

use crate::{measured, name, ok, row, rows, vmtax};

const MATRIX: &str = r#"
name = "vms"
repeats = 1
warmup = false
limit_seconds = 600
categories = ["plain", "plain+poll+swiotlb"]
[vm]
accel = "tcg"
cpus = 2
memory = 768
[[workload]]
use = "redis"
set = { requests = 100 }
[[workload]]
use = "nginx"
set = { seconds = 1 }
[[workload]]
use = "iperf-tcp"
set = { seconds = 1 }
[[workload]]
use = "ping"
set = { count = 5 }
[[workload]]
use = "cpuid"
set = { seconds = 0.05 }
[[workload]]
use = "ipi"
set = { seconds = 0.05 }
[[workload]]
use = "touch-2m"
set = { seconds = 0.05 }
"#;

#[test]
fn programs_run_in_vms_of_two_categories() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = measured(folder.path(), MATRIX, &run);
    assert!(text.contains("Emulated (QEMU TCG)"), "{text}");
    assert!(!text.contains("failed ("), "{text}");
    let found = rows(&run);
    for (workload, metric) in [
        ("redis", "set-rate"),
        ("nginx", "rate"),
        ("iperf-tcp", "throughput"),
        ("ping", "latency"),
        ("cpuid", "time"),
        ("ipi", "time"),
        ("touch-2m", "time"),
    ] {
        for (category, baseline) in [("plain", ""), ("plain+poll+swiotlb", "plain")] {
            let row = row(&found, workload, metric, category);
            assert_eq!(
                (row["n"].as_str(), row["baseline"].as_str()),
                ("1", baseline),
                "{workload}"
            );
            assert_eq!(row["accelerator"], "emulated:QEMU TCG");
        }
    }
    // The guests are what their categories say, as they say it themselves.
    let facts =
        |category: &str| fs::read_to_string(run.join(format!("facts/{category}.json"))).unwrap();
    let (plain, changed) = (facts("plain"), facts("plain+poll+swiotlb"));
    assert!(changed.contains("idle=poll") && !plain.contains("idle=poll"));
    assert!(changed.contains("\"bounce buffer slots\": \"32768\"") && !plain.contains("\"32768\""));
    // A modern virtio device: it uses the DMA interface, and so the bounce buffer.
    assert!(plain.contains("1af4:1000") && changed.contains("1af4:1041"));
}

/// Exits of a real KVM on an emulated host, by category, and the overhead taken apart.
#[test]
fn a_run_of_the_lab_is_a_benchmark_with_exits() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let operations = "cpuid,deadline-x2apic-hlt,deadline-x2apic-poll,short-x2apic-hlt,short-x2apic-haltpoll,ring-direct,ring-bounced";
    let suites = [
        "lab",
        "run",
        "--suite",
        "primitives,timers,bounce",
        "--operation",
        operations,
        "-o",
        name(&run),
    ];
    let made = vmtax(&suites);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let found = rows(&run);
    let median = |workload: &str, metric: &str, category: &str| -> f64 {
        row(&found, workload, metric, category)["median"].parse().unwrap()
    };
    assert_eq!(median("cpuid", "exits", "plain"), 1.0);
    // A kick is a port write, with the bounce buffer and without.
    assert_eq!(median("ring", "exits", "plain"), 1.0);
    assert_eq!(median("ring", "exits", "plain+swiotlb"), 1.0);
    assert!(median("ring", "path", "plain+swiotlb") > median("ring", "path", "plain"));
    // Polling takes the halt away, and where the timer's end comes while it polls that is an exit of its own; a poll that
    // sees it come takes none.
    assert_eq!(median("timer", "exits", "plain"), 3.0);
    assert!(median("timer-5us", "exits", "plain+hpoll") < median("timer-5us", "exits", "plain"));
    assert_eq!(row(&found, "timer", "exits", "plain+poll")["baseline"], "plain");
    let text = ok(&["compare", name(&run)]);
    let parts = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(parts.contains("ring in plain+swiotlb: "), "{text}");
    assert!(parts.contains(" instructions more than in plain: 0 exits more x "), "{text}");
    let page = folder.path().join("page.html");
    ok(&["compare", name(&run), "--format", "html", "-o", name(&page)]);
    assert!(fs::read_to_string(&page).unwrap().contains("Exits and overhead"));
}
