//! The tables of `vmtax report` against those of `perf kvm stat report`, row by row, digit by digit.
//!
//! The expected texts were printed by perf itself (each capture's README says how). Where perf and we
//! differ the difference is listed here, with the reason; anything else fails.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod captures;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use captures::{expected as read, json, report as run, unpack};
use serde_json::Value;

/// A row of perf's table.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    samples: u64,
    /// Minimum, maximum and mean in µs, and the standard error in percent of the mean, as printed.
    printed: [String; 4],
}

type Rows = BTreeMap<String, Row>;

/// One comparison.
struct Case {
    capture: &'static str,
    input: &'static str,
    /// (table, file with perf's text)
    tables: &'static [(&'static str, &'static str)],
    /// (table, row, perf's samples, vmtax's): where they differ. The times of such rows are not compared.
    differences: &'static [(&'static str, &'static str, u64, u64)],
}

const CASES: &[Case] = &[
    Case {
        capture: "amd-nested",
        input: "kvmstat.perf.data.zst",
        tables: &[("", "kvmstat.txt")],
        differences: &[],
    },
    Case {
        capture: "amd-two-vms",
        input: "two-vms.perf.data.zst",
        tables: &[
            ("vmexit", "two-vms.kvmstat-vmexit.txt"),
            ("ioport", "two-vms.kvmstat-ioport.txt"),
            ("mmio", "two-vms.kvmstat-mmio.txt"),
            ("msr", "two-vms.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
    Case {
        capture: "amd-same-workload",
        input: "workload.perf.data.zst",
        tables: &[
            ("vmexit", "workload.kvmstat-vmexit.txt"),
            ("ioport", "workload.kvmstat-ioport.txt"),
            ("mmio", "workload.kvmstat-mmio.txt"),
            ("msr", "workload.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
    Case {
        capture: "amd-sched",
        input: "sched.perf.data.zst",
        tables: &[
            ("vmexit", "sched.kvmstat-vmexit.txt"),
            ("ioport", "sched.kvmstat-ioport.txt"),
            ("mmio", "sched.kvmstat-mmio.txt"),
            ("msr", "sched.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
    Case {
        capture: "amd-midrun",
        input: "midrun.perf.data.zst",
        tables: &[
            ("vmexit", "midrun.kvmstat-vmexit.txt"),
            ("ioport", "midrun.kvmstat-ioport.txt"),
            ("mmio", "midrun.kvmstat-mmio.txt"),
            ("msr", "midrun.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
    Case {
        capture: "amd-nested-exact",
        input: "nested-exact.perf.data.zst",
        tables: &[
            ("vmexit", "nested-exact.kvmstat-vmexit.txt"),
            ("ioport", "nested-exact.kvmstat-ioport.txt"),
            ("mmio", "nested-exact.kvmstat-mmio.txt"),
            ("msr", "nested-exact.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
    Case {
        capture: "intel-cpuid",
        input: "intel.perf.data.zst",
        tables: &[
            ("vmexit", "intel.kvmstat-vmexit.txt"),
            ("ioport", "intel.kvmstat-ioport.txt"),
            ("mmio", "intel.kvmstat-mmio.txt"),
            ("msr", "intel.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
    Case {
        capture: "intel-nested",
        input: "intel-nested.perf.data.zst",
        tables: &[
            ("vmexit", "intel-nested.kvmstat-vmexit.txt"),
            ("ioport", "intel-nested.kvmstat-ioport.txt"),
            ("mmio", "intel-nested.kvmstat-mmio.txt"),
            ("msr", "intel-nested.kvmstat-msr.txt"),
        ],
        differences: &[],
    },
];

#[test]
fn tables_equal_perf_kvm_stat_report() {
    let mut wrong = Vec::new();
    for case in CASES {
        let input = without_sched(&unpack(case.capture, case.input));
        for (event, by) in
            [("vmexit", "reason"), ("ioport", "detail"), ("mmio", "detail"), ("msr", "detail")]
        {
            let expected = expected(case, event);
            let ours = ours(&input, event, by);
            wrong.extend(differences(case, event, &expected, &ours));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn vms_that_perf_merges_stay_apart() {
    // `perf kvm stat report --vcpu 0` adds up vCPU 0 of both VMs: 1,800 CPUIDs. The guests executed 1,200 and
    // 600 (captures/amd-two-vms/README.md), and vCPU 1 of the first another 600.
    let input = without_sched(&unpack("amd-two-vms", "two-vms.perf.data.zst"));
    let merged = parse(&read("amd-two-vms", "two-vms.kvmstat-vmexit-vcpu0.txt"));
    assert_eq!(merged["cpuid"].samples, 1800);
    let report = json(&input, &["--event", "vmexit", "--by", "reason,vm,vcpu"]);
    let mut cpuids = BTreeMap::new();
    for row in report["tables"][0]["rows"].as_array().unwrap() {
        if row["reason"] == "cpuid" {
            cpuids.insert(
                (row["vm"].as_u64().unwrap(), row["vcpu"].as_u64().unwrap()),
                row["count"].as_u64().unwrap(),
            );
        }
    }
    assert_eq!(cpuids, BTreeMap::from([((116, 0), 1200), ((116, 1), 600), ((142, 0), 600)]));
    // Each VM alone equals what perf says of its process.
    for (vm, file) in
        [("116", "two-vms.kvmstat-vmexit-p116.txt"), ("142", "two-vms.kvmstat-vmexit-p142.txt")]
    {
        let alone = rows(&json(&input, &["--event", "vmexit", "--by", "reason", "--vm", vm]));
        assert_eq!(alone, parse(&read("amd-two-vms", file)), "VM {vm}");
    }
}

#[test]
fn losses_that_perf_hides_are_shown() {
    // 20,000 CPUIDs were executed; the recorder says itself how many events it dropped.
    let input = unpack("amd-cpuid", "lost.perf.data.zst");
    let report = json(&input, &["--event", "vmexit", "--by", "reason"]);
    let lost = report["losses"]["recorder_lost"].as_u64().unwrap();
    let counted = rows(&report)["cpuid"].samples;
    let dump = perf(&["report", "--stats", "-i", input.to_str().unwrap()]);
    let announced: u64 = dump
        .lines()
        .filter(|l| l.contains("LOST_SAMPLES events:") && !l.contains('%'))
        .filter_map(|l| l.split_whitespace().last()?.parse::<u64>().ok())
        .sum();
    assert!(lost >= announced && announced > 0, "{lost} {announced}");
    assert!(counted < 20_000);
    // perf pairs an exit from before a gap with an entry from behind it: one CPUID too many. All it says of
    // the loss is "lost 2 chunks", a number of LOST records; how many events went with them it does not say.
    let perf_says =
        perf(&["kvm", "-i", input.to_str().unwrap(), "stat", "report", "--event", "vmexit"]);
    assert_eq!(parse(&perf_says)["cpuid"].samples, counted + 1);
    assert!(!perf_says.contains(&announced.to_string()), "{perf_says}");
    let text = run(&input, &["--event", "vmexit"]);
    assert!(text.contains("lost by the recorder"), "{text}");
}

#[test]
fn preemption_is_taken_out_of_exits() {
    // perf books 4.07 ms on the average host interrupt; nearly all of that is the other vCPU's turn.
    let input = unpack("amd-sched", "sched.perf.data.zst");
    let report = json(&input, &[]);
    for vcpu in report["run"]["vcpus"].as_array().unwrap() {
        let of = |field: &str| vcpu[field].as_u64().unwrap() as f64;
        assert!(of("preempted_ns") > 10.0 * of("exit_kernel_ns"), "{vcpu}");
        let parts = [
            "guest_ns",
            "exit_kernel_ns",
            "exit_user_ns",
            "halted_ns",
            "preempted_ns",
            "unknown_ns",
        ];
        assert_eq!(
            parts.iter().map(|p| vcpu[*p].as_u64().unwrap()).sum::<u64>(),
            vcpu["wall_ns"].as_u64().unwrap()
        );
    }
}

#[test]
fn ancillary_exits_equal_what_the_guests_did() {
    // Bare hypervisors of known code: each CPUID of L2 is forwarded to L1, which answers with one VM entry (and on
    // AMD with VMLOAD and VMSAVE around it).
    let cases = [
        (
            "amd-nested-exact",
            "nested-exact.perf.data.zst",
            "cpuid",
            100,
            vec![("vmload", 100), ("vmrun", 100), ("vmsave", 100)],
        ),
        ("intel-nested", "intel-nested.perf.data.zst", "CPUID", 100, vec![("VMRESUME", 100)]),
    ];
    for (capture, file, reason, to_l1, ancillary) in cases {
        let report = json(&unpack(capture, file), &["--event", "nested"]);
        let rows = report["nested"]["rows"].as_array().unwrap();
        let row = rows.iter().find(|r| r["reason"] == reason).unwrap();
        assert_eq!(row["to_l1"], to_l1, "{capture}");
        let mut got: Vec<(&str, u64)> = row["ancillary"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| (a["reason"].as_str().unwrap(), a["count"].as_u64().unwrap()))
            .collect();
        got.sort_unstable();
        // L1 also answers its own housekeeping (cpuid, port writes) in between; the hypervisor's own
        // instructions are exact.
        got.retain(|(name, _)| ancillary.iter().any(|(wanted, _)| wanted == name));
        assert_eq!(got, ancillary, "{capture}");
    }
}

/// The recording with the tracepoint sched_switch under another name, which nobody knows: times as perf has them, with the time
/// that the scheduler took.
fn without_sched(input: &Path) -> PathBuf {
    let mut bytes = std::fs::read(input).unwrap();
    let (known, other) = (b"name: sched_switch\n", b"name: sched_xwitch\n");
    let places: Vec<usize> = bytes
        .windows(known.len())
        .enumerate()
        .filter(|(_, window)| *window == known)
        .map(|(at, _)| at)
        .collect();
    for at in places {
        bytes[at..at + known.len()].copy_from_slice(other);
    }
    let name = format!("no-sched-{}", input.file_name().unwrap().to_string_lossy());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Tests run at the same time, as processes or as threads: each writes a file of its own, and it appears whole.
    let part =
        path.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&part, bytes).unwrap();
    std::fs::rename(part, &path).unwrap();
    path
}

fn differences(case: &Case, event: &str, expected: &Rows, ours: &Rows) -> Vec<String> {
    let mut wrong = Vec::new();
    let keys: std::collections::BTreeSet<&String> = expected.keys().chain(ours.keys()).collect();
    for key in keys {
        let known = case.differences.iter().find(|(e, k, ..)| *e == event && k == key);
        let samples = |rows: &Rows| rows.get(key).map_or(0, |r| r.samples);
        let (theirs, mine) = (samples(expected), samples(ours));
        let agrees = match known {
            Some(&(_, _, perf, us)) => (theirs, mine) == (perf, us),
            None => expected.get(key) == ours.get(key),
        };
        if !agrees {
            wrong.push(format!(
                "{} {event} {key}:\n  perf {:?}\n  ours {:?}",
                case.capture,
                expected.get(key),
                ours.get(key)
            ));
        }
    }
    wrong
}

fn expected(case: &Case, event: &str) -> Rows {
    match case.tables {
        // One file with four reports, one after the other.
        [("", file)] => {
            let text = read(case.capture, file);
            let heading = match event {
                "vmexit" => "VM-EXIT",
                "ioport" => "IO Port Access",
                "mmio" => "MMIO Access",
                _ => "MSR Access",
            };
            let start = text.find(heading).unwrap_or(text.len());
            let end = text[start..].find("Total Samples").map_or(text.len(), |n| start + n);
            parse(&text[start..end])
        }
        tables => {
            let file = tables.iter().find(|(e, _)| *e == event).unwrap().1;
            parse(&read(case.capture, file))
        }
    }
}

/// perf's table: name (which may hold spaces), samples, share, time share, min, max, mean, standard error.
fn parse(text: &str) -> Rows {
    let mut rows = Rows::new();
    for line in text.lines().filter(|l| l.contains("( +-")) {
        let line = line.replace("( +-", " ").replace([')', '%'], " ").replace("us", " ");
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, numbers) = words.split_at(words.len() - 7);
        let printed = [3, 4, 5, 6].map(|i| numbers[i].to_owned());
        rows.insert(name.join(" "), Row { samples: numbers[0].parse().unwrap(), printed });
    }
    rows
}

fn ours(input: &Path, event: &str, by: &str) -> Rows {
    rows(&json(input, &["--event", event, "--by", by]))
}

/// Our JSON in perf's words and digits.
fn rows(report: &Value) -> Rows {
    let mut rows = Rows::new();
    for row in report["tables"][0]["rows"].as_array().unwrap() {
        let name = match row.get("reason") {
            Some(reason) => reason.as_str().unwrap().to_owned(),
            None => perf_name(&row["detail"]),
        };
        let us = |ns: f64| format!("{:.2}", ns / 1000.0);
        let mean = row["mean_ns"].as_f64().unwrap_or(0.0);
        let error = row["stderr_ns"].as_f64().unwrap_or(0.0);
        let percent = if mean > 0.0 { 100.0 * error / mean } else { 0.0 };
        let printed = [
            us(row["min_ns"].as_f64().unwrap_or(0.0)),
            us(row["max_ns"].as_f64().unwrap_or(0.0)),
            us(mean),
            format!("{percent:.2}"),
        ];
        // perf cannot time an exit without an end, and does not count it.
        let samples = row["timed"].as_u64().unwrap();
        if samples > 0 {
            rows.insert(name, Row { samples, printed });
        }
    }
    rows
}

/// `0xcf8:POUT`, `0x6e0:W`: perf's names of accesses.
fn perf_name(detail: &Value) -> String {
    let suffix = match detail["kind"].as_str().unwrap() {
        "port-in" => "PIN",
        "port-out" => "POUT",
        "msr-write" | "mmio-write" => "W",
        _ => "R",
    };
    format!("{}:{suffix}", detail["hex"].as_str().unwrap())
}

fn perf(args: &[&str]) -> String {
    let output = Command::new("perf").args(args).output();
    let output =
        output.unwrap_or_else(|e| panic!("perf: {e}; `./x test` installs it (package linux-perf)"));
    // Reports go to one or the other, by whether there is a terminal.
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}
