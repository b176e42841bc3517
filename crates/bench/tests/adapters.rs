//! Each adapter on an output of its program: the values, and what it refuses. `outputs/README.md` says where they are from.

use std::fs;
use std::path::Path;

use vmtax_bench::adapter::{ADAPTERS, Adapter};
use vmtax_capture::program::{ClientOutput, OutputRefusal, ProgramReading};

fn output(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outputs").join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read(adapter: &str, text: &str) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let adapter = Adapter::named(adapter).unwrap_or_else(|| panic!("no adapter {adapter}"));
    // GNU time reports on standard error.
    let output = if ["build", "compile"].contains(&adapter.name) {
        ClientOutput { stderr: text, ..ClientOutput::default() }
    } else {
        ClientOutput { stdout: text, ..ClientOutput::default() }
    };
    adapter.readings(&output)
}

/// Metric, unit and value.
type ExpectedMetric = (&'static str, &'static str, f64);

/// Adapter, output, and values that it holds.
const CASES: &[(&str, &str, &[ExpectedMetric])] = &[
    (
        "ping",
        "ping.txt",
        &[("latency", "us", 108.0), ("latency-max", "us", 380.0), ("loss", "%", 0.0)],
    ),
    (
        "iperf-tcp",
        "iperf-tcp.json",
        &[("throughput", "bit/s", 5_341_011_985.316_97), ("retransmits", "count", 0.0)],
    ),
    // The sender's figure, 584 Mbit/s, is also under `sum`: more than half of it was lost.
    (
        "iperf-udp",
        "iperf-udp.json",
        &[
            ("throughput", "bit/s", 258_862_371.923_586_7),
            ("jitter", "us", 481.788_406_093_417),
            ("loss", "%", 55.718_533_201_189_3),
        ],
    ),
    ("iperf-udp", "iperf.txt", &[("throughput", "bit/s", 64.8e6), ("jitter", "us", 23.0)]),
    (
        "onnxruntime",
        "onnxruntime.txt",
        &[("latency", "us", 14_522.400_799_978_64), ("rate", "1/s", 68.859_137_946_493_72)],
    ),
    (
        "redis",
        "redis.csv",
        &[
            ("set-rate", "1/s", 10_256.41),
            ("set-latency-p99", "us", 7175.0),
            ("get-rate", "1/s", 13_888.89),
        ],
    ),
    (
        "redis-memtier",
        "memtier-redis.txt",
        &[("rate", "1/s", 45_238.22), ("latency", "us", 46.13), ("get-latency-p99.9", "us", 999.0)],
    ),
    (
        "memcached",
        "memtier.txt",
        &[("rate", "1/s", 9905.5), ("latency", "us", 1210.0), ("latency-p99", "us", 3400.0)],
    ),
    (
        "nginx",
        "wrk.txt",
        &[
            ("rate", "1/s", 19_144.35),
            ("transfer", "B/s", 2.74 * 1_048_576.0),
            ("latency", "us", 980.0),
            ("latency-p50", "us", 243.0),
        ],
    ),
    ("npb", "npb.txt", &[("time", "s", 38.71), ("speed", "Mop/s", 185.36)]),
    ("npb", "npb-ua.txt", &[("time", "s", 1.58), ("speed", "Mop/s", 7.88)]),
    ("benchdnn", "benchdnn.txt", &[("time", "us", 85_900.0), ("speed", "Gflop/s", 97.655)]),
    (
        "schbench",
        "schbench.txt",
        &[
            ("wakeup-latency-p99.0", "us", 42.0),
            ("request-latency-p99.0", "us", 4510.0),
            ("rate", "1/s", 510.27),
        ],
    ),
    ("hackbench", "hackbench.txt", &[("time", "s", 0.225)]),
    ("perf-messaging", "perf-bench.txt", &[("time", "s", 1.476)]),
    (
        "sysbench-cpu",
        "sysbench.txt",
        &[("rate", "1/s", 1639.32), ("latency", "us", 600.0), ("latency-p95", "us", 4330.0)],
    ),
    ("fio", "fio.json", &[]),
    ("fio-disk", "fio.json", &[]),
    ("compile", "time.txt", &[("time", "s", 62.34)]),
    (
        "build",
        "time.txt",
        &[("time", "s", 62.34), ("user-time", "s", 101.25), ("memory", "KiB", 204_800.0)],
    ),
    ("cpuid", "builtin.txt", &[("time", "ns", 71.25), ("rounds", "count", 1_400_000.0)]),
];

fn value<'a>(readings: &'a [ProgramReading], metric: &str) -> Option<&'a ProgramReading> {
    readings.iter().find(|reading| reading.metric == metric)
}

#[test]
fn values_and_units() {
    for (adapter, file, expected) in CASES {
        let readings = read(adapter, &output(file)).unwrap_or_else(|e| panic!("{adapter}: {e}"));
        for (metric, unit, number) in *expected {
            let found = value(&readings, metric)
                .unwrap_or_else(|| panic!("{adapter} has no {metric}: {readings:?}"));
            assert!(
                (found.value - number).abs() <= number.abs() * 1e-9,
                "{adapter} {metric}: {}",
                found.value
            );
            assert_eq!(found.unit, *unit, "{adapter} {metric}");
        }
    }
}

#[test]
fn every_adapter_has_an_output_here() {
    for adapter in ADAPTERS.iter().filter(|adapter| !adapter.is_builtin()) {
        assert!(CASES.iter().any(|(name, ..)| *name == adapter.name), "{}", adapter.name);
    }
}

#[test]
fn headlines_are_among_the_values() {
    for (adapter, file, _) in CASES {
        let headline = Adapter::named(adapter).map(|adapter| adapter.headline).unwrap_or_default();
        let readings = read(adapter, &output(file)).unwrap_or_default();
        assert!(value(&readings, headline).is_some(), "{adapter}: {headline} of {readings:?}");
    }
}

/// An output that ends anywhere is refused, or gives what the whole one gives.
#[test]
fn truncated_output_never_gives_a_wrong_value() {
    for (adapter, file, _) in CASES {
        let text = output(file);
        let whole = read(adapter, &text).unwrap_or_default();
        let mut refused = 0;
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            match read(adapter, &text[..end]) {
                Err(_) => refused += 1,
                Ok(readings) => {
                    for reading in readings {
                        assert_eq!(
                            Some(&reading),
                            value(&whole, &reading.metric),
                            "{adapter} cut at {end}"
                        );
                    }
                }
            }
        }
        assert!(
            refused * 2 > text.len(),
            "{adapter}: only {refused} of {} cuts are refused",
            text.len()
        );
    }
}

/// Adapter, output, what is replaced in it by what, and what the refusal says.
const REFUSED: &[(&str, &str, &str, &str, &str)] = &[
    ("ping", "ping.txt", " ms\n", " furlongs\n", "unit"),
    ("ping", "ping.txt", "5 received", "0 received", "no packet came back"),
    ("ping", "ping.txt", "5 received", "7 received", "impossible"),
    ("ping", "ping.txt", "0.039/0.108", "0.109/0.108", "impossible"),
    (
        "iperf-tcp",
        "iperf-tcp.json",
        "\"end\"",
        "\"error\": \"unable to connect\", \"end\"",
        "unable to connect",
    ),
    ("iperf-tcp", "iperf-tcp.json", "sum_received", "sum_receive", "sum_received"),
    ("iperf-udp", "iperf.txt", "64.8 Mbits/sec", "64.8 Mfoo/sec", "unit"),
    ("iperf-udp", "iperf.txt", "receiver", "sender", "receiver"),
    ("redis", "redis.csv", "10256.41", "fast", "not a number"),
    ("redis", "redis.csv", "\"10256.41\"", "\"0\"", "impossible"),
    ("redis", "redis.csv", "\"SET\"", "Error: connection reset", "reports a failure"),
    ("redis-memtier", "memtier-redis.txt", "ALL STATS", "SOME STATS", "ALL STATS"),
    ("memcached", "memtier.txt", "Totals", "Total", "Totals"),
    ("nginx", "wrk.txt", "0.98ms", "0.98parsecs", "unit"),
    (
        "nginx",
        "wrk.txt",
        "Requests/sec",
        "  Socket errors: connect 0, read 7, write 0, timeout 0\nRequests/sec",
        "Socket errors",
    ),
    ("nginx", "wrk.txt", "Requests/sec", "  Non-2xx or 3xx responses: 12\nRequests/sec", "Non-2xx"),
    ("npb", "npb.txt", "SUCCESSFUL", "UNSUCCESSFUL", "not verified"),
    ("npb", "npb.txt", " Verification ", " Verify ", "Verification"),
    ("benchdnn", "benchdnn.txt", "failed:0", "failed:1", "reports a failure"),
    ("benchdnn", "benchdnn.txt", "%-time%", "%-ticks%", "mean"),
    ("benchdnn", "benchdnn.txt", "tests:1", "tests:2", "a result"),
    ("schbench", "schbench.txt", "(usec) runtime 30", "(nsec) runtime 30", "unit"),
    ("hackbench", "hackbench.txt", "Time:", "Took:", "Time:"),
    ("perf-messaging", "perf-bench.txt", "[sec]", "[min]", "unit"),
    ("sysbench-cpu", "sysbench.txt", "Latency (ms)", "Latency (us)", "Latency (ms)"),
    ("sysbench-cpu", "sysbench.txt", "CPU speed:", "FATAL: out of memory", "reports a failure"),
    ("fio", "fio.json", "\"error\": 0", "\"error\": 5", "error 5"),
    ("build", "time.txt", "Exit status: 0", "Exit status: 2", "ended with 2"),
    ("build", "time.txt", "1:02.34", "one minute", "not a number"),
    ("cpuid", "builtin.txt", "operations 1400000", "operations 0", "nothing was done"),
];

#[test]
fn invalid_values_are_rejected_by_name() {
    for (adapter, file, from, to, says) in REFUSED {
        let text = output(file);
        assert!(text.contains(from), "{adapter}: {from:?}");
        let text = text.replace(from, to);
        // The least time may be missing where the mean is there.
        if *says == "mean" {
            let readings = read(adapter, &text).unwrap();
            assert_eq!(value(&readings, "time").unwrap().value, 86_300.0);
            continue;
        }
        let refusal =
            read(adapter, &text).err().unwrap_or_else(|| panic!("{adapter} takes {to:?}"));
        assert!(refusal.to_string().contains(says), "{adapter} {to:?}: {refusal}");
    }
    for adapter in ADAPTERS {
        assert!(read(adapter.name, "").is_err(), "{}", adapter.name);
        assert!(read(adapter.name, "Segmentation fault\n").is_err(), "{}", adapter.name);
    }
}
