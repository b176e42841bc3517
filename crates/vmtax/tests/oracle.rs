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
struct PerfRow {
    samples: u64,
    /// Minimum, maximum and mean in µs, and the standard error in percent of the mean, as printed.
    printed: [String; 4],
}

type PerfRows = BTreeMap<String, PerfRow>;

struct OracleCase {
    capture: &'static str,
    input: &'static str,
    /// (table, file with perf's text)
    tables: &'static [(&'static str, &'static str)],
    /// (table, row, perf's samples, vmtax's): where they differ. The times of such rows are not compared.
    differences: &'static [(&'static str, &'static str, u64, u64)],
}

const CASES: &[OracleCase] = &[
    OracleCase {
        capture: "amd-nested",
        input: "kvmstat.perf.data.zst",
        tables: &[("", "kvmstat.txt")],
        differences: &[],
    },
    OracleCase {
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
    OracleCase {
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
    OracleCase {
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
    OracleCase {
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
    OracleCase {
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
    OracleCase {
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
    OracleCase {
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

/// Recordings of arm64: rows where perf counts another number, with perf's and ours.
type OfArm = (&'static str, &'static str, &'static [(&'static str, u64, u64)]);

/// perf on arm64 counts an exit when it has seen the entry before it, and we when we have seen the entry behind it: where the recording
/// begins with an entry and ends with an exit, perf has that last one more. ERET has no name in perf, and is `UNKNOWN` there.
const ARM: &[OfArm] = &[
    ("6.1-nvhe.perfkvmstat.perf.data.zst", "6.1-nvhe.perfkvmstat.txt", &[("DABT_LOW", 500, 499)]),
    (
        "7.3-protected.perfkvmstat.perf.data.zst",
        "7.3-protected.perfkvmstat.txt",
        &[("DABT_LOW", 108, 107)],
    ),
    ("7.3-vhe.perfkvmstat.perf.data.zst", "7.3-vhe.perfkvmstat.txt", &[("DABT_LOW", 608, 607)]),
    (
        "7.3-nested.perfkvmstat.perf.data.zst",
        "7.3-nested.perfkvmstat.txt",
        &[("ERET", 0, 565), ("IRQ", 11, 10), ("UNKNOWN", 565, 0)],
    ),
    (
        "7.3-nested.kvm-all.perf.data.zst",
        "7.3-nested.kvm-all.txt",
        &[("ERET", 0, 49), ("SYS64", 928, 927), ("UNKNOWN", 49, 0)],
    ),
];

#[test]
fn counts_of_arm64_equal_perf_kvm_stat_report() {
    let mut wrong = Vec::new();
    for &(input, text, differences) in ARM {
        let report = json(&unpack("arm64", input), &["--event", "vmexit", "--by", "reason"]);
        let ours = rows(&report);
        let theirs = parse(&read("arm64", text));
        let names: std::collections::BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        for name in names {
            let samples = |rows: &PerfRows| rows.get(name).map_or(0, |row| row.samples);
            let (perf, us) = (samples(&theirs), samples(&ours));
            let known = differences.iter().find(|(row, ..)| row == name);
            let expected = known.map_or((perf, perf), |&(_, perf, us)| (perf, us));
            if (perf, us) != expected {
                wrong.push(format!("{input} {name}: perf {perf}, ours {us}"));
            }
        }
        // The last exit, which has no entry behind it.
        let open = report["losses"]["unpaired_exits"].as_u64().unwrap();
        let all = |rows: &PerfRows| rows.values().map(|row| row.samples).sum::<u64>();
        assert_eq!(all(&ours) + open, all(&theirs), "{input}");
        // What perf prints as time of exits is the time of the guest before them.
        let guest: u64 = report["run"]["vcpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|vcpu| vcpu["guest_ns"].as_u64().unwrap())
            .sum();
        let printed = read("arm64", text);
        let (_, total) = printed.split_once("Total events handled time:").unwrap();
        let total = total.split("us").next().unwrap();
        assert_eq!(format!("{:.2}", guest as f64 / 1000.0), total, "{input}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What exits were about, against the guest's code: 50 of each operation (PSCI_VERSION by HVC and SMC, reads and writes of a register
/// that the VMM emulates and of one that KVM emulates, of ID and other registers, an IPI to itself, pages touched first).
#[test]
fn details_of_arm64_equal_what_the_guest_did() {
    let expected = [
        ("device-mmio", "DABT_LOW", "mmio-read", "0x8000008", "kernel", 50),
        ("device-mmio", "DABT_LOW", "mmio-read", "0xa000020", "user", 50),
        ("device-mmio", "DABT_LOW", "mmio-write", "0xa000020", "user", 50),
        ("hypercall", "HVC64", "smccc", "0x84000000", "kernel", 50),
        ("hypercall", "SMC64", "none", "0x0", "kernel", 50),
        ("ipi", "SYS64", "sysreg-write", "0xc65d", "kernel", 50),
        ("memory-fault", "DABT_LOW", "page-fault", "0x80000000", "kernel", 50),
        ("sysreg", "SYS64", "sysreg-read", "0xc038", "kernel", 50),
        ("sysreg", "SYS64", "sysreg-read", "0xc081", "kernel", 50),
        ("sysreg", "SYS64", "sysreg-write", "0x8084", "kernel", 50),
    ];
    for input in ["7.3-vhe.kvm-all.perf.data.zst", "6.1-nvhe.kvm-all.perf.data.zst"] {
        let by = "cause,reason,detail,outcome";
        let report = json(&unpack("arm64", input), &["--event", "vmexit", "--by", by]);
        let rows = report["tables"][0]["rows"].as_array().unwrap();
        for (cause, reason, kind, value, outcome, count) in expected {
            let found = rows.iter().find(|row| {
                row["detail"]["kind"] == kind
                    && row["detail"]["hex"] == value
                    && (row["reason"] == reason && row["outcome"] == outcome)
            });
            let found = found.unwrap_or_else(|| panic!("{input}: no {reason} {kind} {value}"));
            assert_eq!(
                (&found["cause"], &found["count"]),
                (&cause.into(), &count.into()),
                "{input} {kind} {value}"
            );
        }
    }
}

/// Advice is for arm64: nothing of x86's KVM, processors or tracepoints.
#[test]
fn explanations_of_arm64_name_nothing_of_x86() {
    for input in [
        "7.3-vhe.kvm-all.perf.data.zst",
        "7.3-vhe.perfkvmstat.perf.data.zst",
        "7.3-nested.kvm-all.perf.data.zst",
        "7.3-nested.perfkvmstat.perf.data.zst",
        "7.3-protected.kvm-all.perf.data.zst",
        "6.1-nvhe.trace.dat.zst",
        "6.1-nvhe.trace.report.txt.zst",
    ] {
        let input = unpack("arm64", input);
        let output = Command::new(env!("CARGO_BIN_EXE_vmtax"))
            .arg("explain")
            .arg("-v")
            .arg(&input)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Exits take") || text.contains("Most frequent exits"), "{text}");
        for word in [
            "APICv",
            "apicv",
            "kvm_intel",
            "kvm_amd",
            "x2APIC",
            "irq_vectors",
            "kvm_page_fault",
            "kvm_msr",
            "kvm_pio",
            "TSC",
            "HLT",
            "PAUSE",
            "idle=poll",
            "nx_huge_pages",
            "4 KiB",
            "kvm_nested_vmexit",
            "rip",
            "EPT",
            "VMCS",
            "ipiv",
            "avic",
            "guest-haltpoll",
            "tsc-deadline",
            "nested page table",
            "vmtax doctor --pages",
            "x86",
        ] {
            assert!(!text.contains(word), "{}: {word} in {text}", input.display());
        }
    }
}

/// Exits of L1 and L2, which perf adds up, and what L1 did for each exit of L2. The texts of trace-cmd and its recordings say the same.
#[test]
fn levels_of_arm64_are_told_apart() {
    let levels = |input: &Path| -> Vec<(String, String, u64)> {
        let report = json(input, &["--event", "vmexit", "--by", "level,reason"]);
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        let row =
            |row: &Value| (text(row, "level"), text(row, "reason"), row["count"].as_u64().unwrap());
        let mut rows: Vec<_> =
            report["tables"][0]["rows"].as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    };
    let expected = |rows: &[(&str, &str, u64)]| -> Vec<(String, String, u64)> {
        rows.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), *c)).collect()
    };
    // perf: DABT_LOW 146, SYS64 928, UNKNOWN 49, IRQ 2.
    let of_perf = [
        ("L1", "DABT_LOW", 98),
        ("L1", "ERET", 49),
        ("L1", "IRQ", 2),
        ("L1", "SYS64", 927),
        ("L2", "DABT_LOW", 48),
    ];
    for input in ["7.3-nested.kvm-all.perf.data.zst", "7.3-nested.kvm-all.script.txt.zst"] {
        assert_eq!(levels(&unpack("arm64", input)), expected(&of_perf), "{input}");
    }
    // awk '/kvm_nested_eret/ { l = "L2" } /kvm_inject_nested_exception/ { l = "L1" } /kvm_exit:/ { n[l " " $8]++ } END { for (k in n)
    // print k, n[k] }' counts the same in the text, and one ERET more: the last exit, which has no entry behind it.
    let of_trace_cmd = [
        ("L1", "DABT_LOW", 26),
        ("L1", "ERET", 154),
        ("L1", "IRQ", 3),
        ("L1", "SYS64", 819),
        ("L2", "DABT_LOW", 13),
        ("L2", "HVC64", 138),
    ];
    let input = unpack("arm64", "7.3-nested.trace.report.txt.zst");
    assert_eq!(levels(&input), expected(&of_trace_cmd));
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

/// Percentiles are those of the single exits that perf lists, each by its rank, and less than 1 % above them.
#[test]
fn percentiles_are_those_of_the_exits_that_perf_lists() {
    let input = unpack("amd-nested", "kvmstat.perf.data.zst");
    let text =
        perf(&["script", "--ns", "-i", input.to_str().unwrap(), "-F", "tid,time,event,trace"]);
    let mut open: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut exits: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(time), Some(event)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        // Warnings of perf are among its lines.
        let Some((seconds, ns)) = time.trim_end_matches(':').split_once('.') else { continue };
        let time = seconds.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap();
        match event {
            "kvm:kvm_exit:" => {
                let reason = line.split_once(" reason ").unwrap().1.split_once(" rip ").unwrap().0;
                open.insert(thread, (time, reason));
            }
            "kvm:kvm_entry:" => {
                if let Some((start, reason)) = open.remove(thread) {
                    exits.entry(reason).or_default().push(time - start);
                }
            }
            _ => {}
        }
    }
    let report = json(&input, &["--event", "vmexit", "--by", "reason"]);
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    assert!(rows.len() > 15 && rows.len() == exits.len(), "{} rows", rows.len());
    for row in rows {
        let durations = exits.get_mut(row["reason"].as_str().unwrap()).unwrap();
        durations.sort_unstable();
        assert_eq!(row["timed"], durations.len(), "{row}");
        for (key, percent) in [("p50_ns", 50), ("p90_ns", 90), ("p99_ns", 99)] {
            let exact = durations[(durations.len() * percent).div_ceil(100).max(1) - 1];
            let [low, high] = ["low", "high"].map(|end| row[key][end].as_u64().unwrap());
            assert!((low..=high).contains(&exact), "{key}, {exact}: {row}");
            assert!((high - exact) * 100 < exact.max(1), "{key}, {exact}: {row}");
        }
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

fn differences(
    case: &OracleCase,
    event: &str,
    expected: &PerfRows,
    ours: &PerfRows,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let keys: std::collections::BTreeSet<&String> = expected.keys().chain(ours.keys()).collect();
    for key in keys {
        let known = case.differences.iter().find(|(e, k, ..)| *e == event && k == key);
        let samples = |rows: &PerfRows| rows.get(key).map_or(0, |r| r.samples);
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

fn expected(case: &OracleCase, event: &str) -> PerfRows {
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
fn parse(text: &str) -> PerfRows {
    let mut rows = PerfRows::new();
    for line in text.lines().filter(|l| l.contains("( +-")) {
        let line = line.replace("( +-", " ").replace([')', '%'], " ").replace("us", " ");
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, numbers) = words.split_at(words.len() - 7);
        let printed = [3, 4, 5, 6].map(|i| numbers[i].to_owned());
        rows.insert(name.join(" "), PerfRow { samples: numbers[0].parse().unwrap(), printed });
    }
    rows
}

fn ours(input: &Path, event: &str, by: &str) -> PerfRows {
    rows(&json(input, &["--event", event, "--by", by]))
}

/// Our JSON in perf's words and digits.
fn rows(report: &Value) -> PerfRows {
    let mut rows = PerfRows::new();
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
            rows.insert(name, PerfRow { samples, printed });
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

/// Runs programs of arm64.
const EMULATOR: &str = "qemu-aarch64-static";

/// Where `./x package arm64` puts it: beside the folder of this build.
fn program_for_arm64() -> PathBuf {
    let debug = Path::new(env!("CARGO_BIN_EXE_vmtax")).parent().unwrap();
    debug.parent().unwrap().join("package-arm64/bin/vmtax")
}

/// The program for arm64, under an emulator of user programs, says what the program of this machine says.
#[test]
fn the_program_for_arm64_reads_what_that_for_x86_reads() {
    let program = program_for_arm64();
    if Command::new(EMULATOR).arg("--version").output().is_err() {
        return vmtax_skipped::system(
            "qemu-user-static, which `./x package` installs, is not here",
        );
    }
    if !program.exists() {
        return vmtax_skipped::system("no program for arm64 was built: `./x package arm64` does");
    }
    for (capture, input, words) in [
        ("arm64", "7.3-nested.kvm-all.perf.data.zst", &["report", "--format", "json"][..]),
        ("arm64", "7.3-vhe.zstd.perf.data.zst", &["report", "--format", "json"]),
        ("arm64", "6.1-nvhe.trace.dat.zst", &["report", "--format", "json"]),
        ("arm64", "7.3-nested.trace.report.txt.zst", &["explain", "-v"]),
        ("amd-nested", "kvmstat.perf.data.zst", &["report", "--format", "json"]),
    ] {
        let input = unpack(capture, input);
        let mut emulated = Command::new(EMULATOR);
        emulated.arg(&program);
        let theirs = emulated.args(words).arg(&input).output().unwrap();
        let mut own = Command::new(env!("CARGO_BIN_EXE_vmtax"));
        let ours = own.args(words).arg(&input).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(theirs.status.success(), "{}", text(&theirs.stderr));
        assert_eq!(text(&theirs.stdout), text(&ours.stdout), "{words:?} {}", input.display());
    }
}
