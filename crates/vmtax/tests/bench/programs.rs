//! Every adapter whose program the distribution has, on the program itself.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{matrix, name, ok, row, rows};

const MATRIX: &str = r#"
name = "programs"
repeats = 1
warmup = false
counters = true
categories = ["host"]
[[workload]]
use = "ping"
set = { count = 10 }
[[workload]]
use = "iperf-tcp"
set = { seconds = 1 }
[[workload]]
use = "iperf-udp"
set = { seconds = 1 }
[[workload]]
use = "redis"
set = { requests = 500 }
[[workload]]
use = "nginx"
set = { seconds = 1 }
[[workload]]
use = "hackbench"
set = { loops = 10 }
[[workload]]
use = "perf-messaging"
set = { loops = 10 }
[[workload]]
use = "sysbench-cpu"
set = { seconds = 1 }
[[workload]]
use = "fio"
set = { seconds = 1, size = "1m" }
[[workload]]
use = "cpuid"
set = { seconds = 0.05 }
[[workload]]
use = "timer"
set = { seconds = 0.05 }
[[workload]]
use = "matmul"
set = { seconds = 0.05 }
[[workload]]
use = "touch-4k"
set = { seconds = 0.05 }
[[workload]]
use = "loopback"
set = { seconds = 0.05 }
[[workload]]
name = "timed"
command = ["time", "-v", "true"]
pattern = 'Exit status: (\d+)'
metric = "status"
unit = "count"
better = "lower"
[[workload]]
name = "json"
command = ["printf", '{"results": [{"speed": 12.5}]}']
json = "/results/0/speed"
metric = "speed"
unit = "1/s"
better = "higher"
[[workload]]
name = "elapsed"
command = ["true"]
[[workload]]
name = "fails"
command = ["sh", "-c", "echo 'the disk is on fire' >&2; exit 3"]
[[workload]]
name = "says-nothing"
command = ["true"]
pattern = 'rate (\d+)'
metric = "rate"
unit = "1/s"
better = "higher"
"#;

/// Metrics of workloads, and their units. All are above zero, but for what was lost.
const METRICS: [(&str, &str, &str); 18] = [
    ("ping", "latency", "us"),
    ("iperf-tcp", "throughput", "bit/s"),
    ("iperf-udp", "throughput", "bit/s"),
    ("iperf-udp", "loss", "%"),
    ("redis", "set-rate", "1/s"),
    ("redis", "get-latency-p99", "us"),
    ("nginx", "rate", "1/s"),
    ("nginx", "latency-p99", "us"),
    ("hackbench", "time", "s"),
    ("perf-messaging", "time", "s"),
    ("sysbench-cpu", "rate", "1/s"),
    ("fio", "read-rate", "1/s"),
    ("cpuid", "time", "ns"),
    ("timer", "time", "ns"),
    ("matmul", "time", "ns"),
    ("touch-4k", "time", "ns"),
    ("loopback", "time", "ns"),
    ("elapsed", "time", "s"),
];

/// What is not as it should be. Where the computer stood still for the second that a program measures it may be a cell or a number.
fn wrong(run: &Path) -> Vec<String> {
    let cells = cells(run).into_iter();
    let failed = cells.filter(|(_, said)| !said.starts_with("problem: none\n"));
    let ours = |name: &str| ["fails", "says-nothing"].contains(&name);
    let mut wrong: Vec<String> = failed
        .filter(|(name, _)| !ours(name))
        .map(|(name, said)| format!("{name}: {said}"))
        .collect();
    if !wrong.is_empty() {
        return wrong;
    }
    let found = rows(run);
    for (workload, metric, unit) in METRICS {
        let row = row(&found, workload, metric, "host");
        assert_eq!(row["unit"], unit, "{workload}");
        let value: f64 = row["median"].parse().unwrap();
        if value <= 0.0 && metric != "loss" {
            wrong.push(format!("{workload} {metric}: {value}"));
        }
    }
    wrong
}

/// Workload of each cell, and what its programs said.
fn cells(run: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(run.join("cells")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    let cell = |path: &PathBuf| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let (_, workload) = stem.split_once('-').unwrap();
        (workload.trim_end_matches("-host-0").to_owned(), fs::read_to_string(path).unwrap())
    };
    files.iter().map(cell).collect()
}

/// iperf3 serves a client at a time, and refuses others: only the client may connect to it, and the measured run has a
/// server that has not to end something before.
#[test]
fn servers_see_their_client_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = r#"
name = "servers"
repeats = 1
categories = ["host"]
[[workload]]
use = "iperf-udp"
set = { seconds = 1 }
"#;
    ok(&["run", name(&matrix(folder.path(), text)), "-o", name(&run)]);
    let cells = cells(&run);
    let [(_, said)] = &cells[..] else { panic!("{cells:?}") };
    assert!(said.starts_with("problem: none\n"), "{said}");
    let (_, server) = said.split_once("--- server ---").unwrap();
    assert_eq!(server.matches("Accepted connection").count(), 2, "{server}");
    assert_eq!(server.matches("(test #1)").count(), 2, "{server}");
    assert!(!server.contains("error"), "{server}");
}

#[test]
fn real_programs_are_run_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut text = String::new();
    for _ in 0..5 {
        // Nothing is there the first time.
        let _ = fs::remove_dir_all(&run);
        text = ok(&["run", name(&matrix(folder.path(), MATRIX)), "-o", name(&run)]);
        if wrong(&run).is_empty() {
            break;
        }
    }
    assert_eq!(wrong(&run), [""; 0]);
    let cells = cells(&run);
    let failed: Vec<&(String, String)> =
        cells.iter().filter(|(_, said)| !said.starts_with("problem: none\n")).collect();
    let names: Vec<&str> = failed.iter().map(|(workload, _)| workload.as_str()).collect();
    assert_eq!(names, ["fails", "says-nothing"], "{failed:#?}");
    let found = rows(&run);
    assert_eq!(row(&found, "json", "speed", "host")["median"], "12.5");
    assert_eq!(row(&found, "timed", "status", "host")["median"], "0");
    // Cells that failed are named, keep what their programs said, and stop nothing.
    assert!(
        text.contains("2 cells failed (fails in host, repeat 0; says-nothing in host, repeat 0)"),
        "{text}"
    );
    let kept = |workload: &str| &cells.iter().find(|(name, _)| name == workload).unwrap().1;
    assert!(kept("fails").contains("the disk is on fire"));
    assert!(kept("says-nothing").contains("a match of the pattern is missing"));
    // Processor events are there, or why not.
    for event in [
        "instructions",
        "branch-misses",
        "dTLB-load-misses",
        "L1-dcache-load-misses",
        "LLC-load-misses",
    ] {
        let counted =
            found.contains_key(&("cpuid".to_owned(), event.to_owned(), "host".to_owned()));
        assert!(counted || text.contains(&format!("{event} in host: not available: ")), "{text}");
    }
    let recorded = found.contains_key(&("cpuid".to_owned(), "exits".to_owned(), "host".to_owned()));
    let reason = "exits, their reasons, addresses of MMIO and MSRs in host: not available: ";
    assert!(recorded || text.contains(reason), "{text}");
    assert!(text.contains("One run each"), "{text}");
}
