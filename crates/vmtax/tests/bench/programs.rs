//! Every adapter whose program the distribution has, on the program itself.

use std::fs;

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

#[test]
fn real_programs_are_run_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = ok(&["run", name(&matrix(folder.path(), MATRIX)), "-o", name(&run)]);
    let found = rows(&run);
    for (workload, metric, unit) in [
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
    ] {
        let found = row(&found, workload, metric, "host");
        assert_eq!(found["unit"], unit, "{workload}");
        let value: f64 = found["median"].parse().unwrap();
        assert!(value > 0.0 || metric == "loss", "{workload} {metric}: {value}");
    }
    assert_eq!(row(&found, "json", "speed", "host")["median"], "12.5");
    assert_eq!(row(&found, "timed", "status", "host")["median"], "0");
    // Cells that failed are named, keep what their programs said, and stop nothing.
    assert!(
        text.contains("2 cells failed (fails in host, repeat 0; says-nothing in host, repeat 0)"),
        "{text}"
    );
    let kept = |what: &str| {
        let mut files =
            fs::read_dir(run.join("cells")).unwrap().flatten().map(|entry| entry.path());
        fs::read_to_string(files.find(|path| name(path).contains(what)).unwrap()).unwrap()
    };
    assert!(kept("-fails-").contains("the disk is on fire"));
    assert!(kept("-says-nothing-").contains("what the pattern looks for is missing"));
    // Processor events are there, or why not.
    for event in ["instructions", "branch-misses", "dTLB-load-misses", "L1-dcache-load-misses"] {
        let counted =
            found.contains_key(&("cpuid".to_owned(), event.to_owned(), "host".to_owned()));
        assert!(counted || text.contains(&format!("{event} in host: not available: ")), "{text}");
    }
    let recorded = found.contains_key(&("cpuid".to_owned(), "exits".to_owned(), "host".to_owned()));
    let reason = "exits, their reasons, addresses of MMIO and MSRs in host: not available: ";
    assert!(recorded || text.contains(reason), "{text}");
    assert!(text.contains("One run each"), "{text}");
}
