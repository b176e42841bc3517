//! A program beside the suite: perf in the same emulated host counts the same, and costs what it costs.

use std::process::Command;

use serde_json::json as value;

use crate::run::{json, output, paths, refused};

#[test]
fn perf_in_the_same_host_counts_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let report = json(&[
        "lab",
        "run",
        "--operation",
        "cpuid,rdmsr",
        "--observe",
        "perf kvm stat record -a -o perf.data",
        "-o",
        run,
    ]);
    let observed = paths(&report);
    // Five measured batches and the one before them, 20 operations each.
    let recording = format!("{run}/observer/perf.data");
    let perf =
        Command::new("perf").args(["kvm", "-i", &recording, "stat", "report"]).output().unwrap();
    let text = String::from_utf8_lossy(&perf.stdout) + String::from_utf8_lossy(&perf.stderr);
    let samples = |reason: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(reason));
        line.and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned)
    };
    assert_eq!(
        (samples("cpuid").as_deref(), samples("msr").as_deref()),
        (Some("120"), Some("120")),
        "{text}"
    );
    let ours = output(&["report", &recording, "--event", "vmexit", "--format", "csv"]);
    let ours = String::from_utf8(ours.stdout).unwrap();
    assert!(ours.lines().any(|line| line.contains("cpuid") && line.contains("120")), "{ours}");
    assert_adds("perf kvm stat record", observed["cpuid L1"], 3166.0);
}

/// What a program adds to a CPUID exit, in instructions, is within 5 % of what was measured before this project began, by
/// other means, on the same kind of host.
fn assert_adds(what: &str, observed: f64, before: f64) {
    let alone = paths(&json(&["lab", "run", "--operation", "cpuid"]))["cpuid L1"];
    let added = observed - alone;
    assert!(
        (added - before).abs() < before * 0.05,
        "{what} adds {added} instructions, before {before}"
    );
}

#[test]
fn ftrace_costs_what_it_costs() {
    let ftrace = "trace-cmd record -C local -e kvm:kvm_exit -e kvm:kvm_entry -o trace.dat";
    let report = json(&["lab", "run", "--operation", "cpuid", "--observe", ftrace]);
    assert_adds(ftrace, paths(&report)["cpuid L1"], 1227.0);
}

#[test]
fn bpftrace_with_its_script_and_shell() {
    let folder = tempfile::tempdir().unwrap();
    let script = "tracepoint:kvm:kvm_exit { @start[tid] = nsecs; @why[tid] = args->exit_reason; }
        tracepoint:kvm:kvm_entry /@start[tid]/ { @ns[@why[tid]] = hist(nsecs - @start[tid]); delete(@start[tid]); }";
    let path = folder.path().join("latency.bt");
    std::fs::write(&path, script).unwrap();
    let (path, run) = (path.to_str().unwrap(), folder.path().join("run"));
    let report = json(&[
        "lab",
        "run",
        "--operation",
        "cpuid",
        "--observe",
        &format!("bpftrace {path}"),
        "--bring",
        path,
        "--bring",
        "/bin/sh",
        "-o",
        run.to_str().unwrap(),
    ]);
    assert_adds("bpftrace", paths(&report)["cpuid L1"], 4039.0);
    // It saw the 120 CPUIDs of six batches; 0x72 is their reason.
    let said = std::fs::read_to_string(run.join("observer/observer.txt")).unwrap();
    let of_cpuid = said.split("@ns[114]:").nth(1).unwrap().split("@ns[").next().unwrap();
    let counts =
        of_cpuid.lines().filter_map(|line| line.split(')').nth(1)?.split_whitespace().next());
    assert_eq!(counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>(), 120, "{said}");
}

/// With an observer exits are not recorded: whatever it does to the kernel's tracing, they are unknown and not 0.
#[test]
fn exits_beside_an_observer_are_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let script = path("off.sh");
    std::fs::write(&script, "echo 0 > /sys/kernel/tracing/tracing_on; exec sleep 1000\n").unwrap();
    let observer = format!("sh {script}");
    let (plain, observed) = (path("plain"), path("observed"));
    let arguments = ["lab", "run", "--operation", "cpuid,rdtsc"];
    let beside = ["--observe", &observer, "--bring", &script, "--bring", "/usr/bin/sleep"];
    json(&[&arguments[..], &["-o", &plain]].concat());
    let report = json(&[&arguments[..], &beside, &["-o", &observed]].concat());
    for row in report["operations"]["rows"].as_array().unwrap() {
        let found = value!([row["recorded"], row["exits_per_operation"], row["exits"]]);
        assert_eq!(found, value!([false, null, []]));
        assert!(row["path"]["median"].as_f64().unwrap() >= 1.0, "{row}");
    }
    let notes = report["losses"]["notes"].to_string();
    assert!(notes.contains("exits were not recorded: an observer ran beside the suite"), "{notes}");
    let printed = |arguments: &[&str]| String::from_utf8(output(arguments).stdout).unwrap();
    let shown = printed(&["report", &observed]);
    assert!(shown.contains("2 operations ran at L1; exits were not recorded."), "{shown}");
    let cpuid: Vec<&str> = shown
        .lines()
        .find(|line| line.trim_start().starts_with("cpuid "))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!((cpuid[2], cpuid[cpuid.len() - 2..].join(" ").as_str()), ("-", "not recorded"));
    // Beside a run that has exits nothing is called fewer.
    let compared = printed(&["lab", "compare", &plain, &observed]);
    assert!(compared.contains("- exits, ") && !compared.contains("0, not 1"), "{compared}");
    let (code, said) = refused(&["diff", &plain, &observed]);
    assert!(code == 4 && said.contains("exits were not recorded"), "{code} {said}");
    let budget = path("budget.toml");
    json(&[&arguments[..], &["--budget", &budget, "--bless"]].concat());
    let (code, said) = refused(&[&arguments[..], &beside, &["--budget", &budget]].concat());
    assert!(code == 6 && said.contains("cpuid L1: exits were not recorded: 20 -> 0"), "{said}");
}
