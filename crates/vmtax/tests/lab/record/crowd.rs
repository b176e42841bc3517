//! VMs, vCPUs and details in numbers that the recorder cannot all hold, and an hour's intervals: crowd.c makes them, and what
//! it makes is known beforehand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vmtax_store::{Run, StoredTable};

use super::{losses, observe_script};
use crate::run::json;

/// Exits of this reason in a run.
fn exits(run: &Path, reason: &str) -> u64 {
    let report = json(&["report", run.to_str().unwrap(), "--event", "vmexit", "--by", "reason"]);
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let of_reason = |row: &&Value| row.to_string().contains(&format!("\"{reason}\""));
    rows.iter().filter(of_reason).map(|row| row["count"].as_u64().unwrap()).sum()
}

/// Runs a script with the programs `./crowd` and `./vmtax` when nothing else runs in an emulated host with so much more memory, MiB, and these
/// programs.
pub(super) fn crowd(folder: &Path, script: &str, memory: &str, brought: &[&str]) -> PathBuf {
    let program = folder.join("crowd");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/crowd.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-pthread", "-o"]).arg(&program).arg(source);
    assert!(gcc.status().unwrap().success());
    let program = program.to_str().unwrap();
    let script = format!(
        "end() {{\n{}\ndmesg >dmesg.txt\nexit 0\n}}\ntrap end INT\nwhile true; do sleep 1000 & wait $!; done\n",
        script.replace("./crowd", program)
    );
    let brought = [&[program], brought].concat();
    let flags = ["--operation", "cpuid", "--memory", memory];
    let found = observe_script(folder, &script, &brought, &flags);
    let said = fs::read_to_string(found.join("dmesg.txt")).unwrap();
    // The kernel warns with a trace of calls, whatever it is about.
    assert!(said.contains("clocksource") && !said.contains("Call Trace"), "{said}");
    found
}

/// The intervals of an hour, made short: 10 s each become 30 ms.
const HOUR: &str = r#"        size() {
            while read -r name value unit; do
                case $name in RssAnon:) echo $2 $value >>sizes;; esac
            done </proc/$1/status
        }
        ./crowd pulse 130 100 & calm=$!
        ./crowd pulse 1300 10 & load=$!
        ./vmtax record -o idle --interval 30ms --pid $calm & idle=$!
        ./vmtax record -o busy --interval 30ms --pid $load & busy=$!
        while kill -0 $load 2>/dev/null; do sleep 0.5; size $busy busy; size $idle idle; done
        kill -TERM $busy $idle
        wait $busy; wait $idle
        "#;

#[test]
fn dropped_events_are_counted_and_memory_is_bounded_over_an_hour() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "./vmtax record -o leaves --most-keys 2000 -- ./crowd leaves 3000 2>leaves.said
        ./vmtax record -o vcpus -- ./crowd vcpus 2 32 2>vcpus.said
        ./vmtax record -o churn --interval 100ms -- ./crowd churn 60 2>churn.said
        ./vmtax record -o ring --raw --buffer 16 -- ./crowd leaves 3000 2>ring.said
        {TAKEN}
        {HOUR}"
    );
    let found = crowd(folder.path(), &script, "256", &[]);
    let expected = [("leaves", 3000), ("vcpus", 640), ("churn", 600), ("ring", 3000)];
    all_are_counted(&found, &expected);
    // The last of the exact keys are not all of CPUIDs.
    let dropped = losses(&found.join("leaves"))["details_dropped"].as_u64().unwrap();
    assert!((1000..1050).contains(&dropped), "{dropped}");
    // Of single events that found no room the tables have all.
    let notes = losses(&found.join("ring"))["notes"].to_string();
    assert!(notes.contains("single events found no room"), "{notes}");
    who_had_the_processor(&found);
    hour(&found);
}

/// A vCPU and two programs on one processor, recorded live and by the kernel's tracepoints.
const TAKEN: &str = r#"        while :; do :; done & one=$!
        while :; do :; done & other=$!
        ./vmtax record -o taken -- trace-cmd record -b 20000 -C mono -e kvm -e sched:sched_switch -o taken.dat \
            ./crowd leaves 12000 >taken.said 2>&1
        kill $one $other
        "#;

/// The same threads, by name, as often and for as long as in the trace.
fn who_had_the_processor(found: &Path) {
    let recording = |run: &str| {
        let report = json(&["report", found.join(run).to_str().unwrap()]);
        report["run"].clone()
    };
    let (live, trace) = (recording("taken"), recording("taken.dat"));
    let contention = live["contention"].as_f64().unwrap();
    assert!(contention > 0.3, "{live}");
    let named = |of: &Value| -> Vec<(String, u64, u64)> {
        let number = |taker: &Value, key: &str| taker[key].as_u64().unwrap();
        let takers = of["taken_by"].as_array().unwrap().iter();
        let row = |taker: &Value| {
            let name = taker["name"].as_str().unwrap().to_owned();
            (name, number(taker, "count"), number(taker, "time_ns"))
        };
        takers.map(row).collect()
    };
    let (live, trace) = (named(&live), named(&trace));
    // Tasks of the kernel that ran for microseconds may have been anywhere at the ends of the two recordings.
    let (first, expected) = (&live[0], &trace[0]);
    assert_eq!((first.0.as_str(), expected.0.as_str()), ("sh", "sh"), "{live:?}, {trace:?}");
    assert!(first.1 > 10 && first.1.abs_diff(expected.1) <= 2, "{live:?}, {trace:?}");
    assert!(first.2.abs_diff(expected.2) <= expected.2 / 50, "{live:?}, {trace:?}");
}

/// Each run has so many exits for CPUID, and nothing that could not be counted.
fn all_are_counted(found: &Path, runs: &[(&str, u64)]) {
    for (run, expected) in runs {
        let said = fs::read_to_string(found.join(format!("{run}.said"))).unwrap();
        assert_eq!(said, "", "{run}");
        let run = found.join(run);
        assert_eq!((exits(&run, "cpuid"), &losses(&run)["recorder_lost"]), (*expected, &0.into()));
    }
}

/// The recorder's memory, KiB.
const MOST: u64 = 9 << 10;

fn hour(found: &Path) {
    let sizes = fs::read_to_string(found.join("sizes")).unwrap();
    for run in ["busy", "idle"] {
        let sizes: Vec<u64> =
            sizes.lines().filter_map(|line| line.strip_prefix(run)?.trim().parse().ok()).collect();
        eprintln!("memory of {run}, KiB: {sizes:?}");
        // It comes to 6.6 MB when everything has been needed once, sooner or later. 8 KB more an interval would be too much.
        let most = sizes.iter().max().unwrap();
        assert!(sizes.len() > 9 && *most < MOST, "{run}: {sizes:?}");
    }
    let run = Run::open(&found.join("busy")).unwrap();
    let exits: Vec<u64> = run.manifest().segments_of(StoredTable::Exits).map(|s| s.bytes).collect();
    eprintln!("{} intervals, of {:?} bytes", exits.len(), (exits.iter().min(), exits.iter().max()));
    assert!(exits.len() >= 300, "{}", exits.len());
    let part = |of: &[u64]| of.iter().sum::<u64>() / of.len() as u64;
    let (first, last) = (part(&exits[1..exits.len() / 3]), part(&exits[exits.len() * 2 / 3..]));
    assert!(last <= first + first / 20, "{first} bytes an interval, then {last}");
}

/// Limits at their full size: a million details and 4,096 vCPUs at a time, which take minutes.
#[test]
#[ignore = "minutes"]
fn a_million_details_and_thousands_of_vcpus_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let script = "./vmtax record -o leaves -- ./crowd leaves 1000000 2>leaves.said
        ./vmtax record -o vcpus -- ./crowd vcpus 4 1024 2>vcpus.said
        ./vmtax record -o churn --interval 100ms -- ./crowd churn 500 2>churn.said";
    let found = crowd(folder.path(), script, "768", &[]);
    let expected = [("leaves", 1_000_000), ("vcpus", 40_960), ("churn", 5000)];
    all_are_counted(&found, &expected);
    let dropped = losses(&found.join("leaves"))["details_dropped"].as_u64().unwrap();
    assert!((1_000_000 - 16_384..1_000_000 - 16_000).contains(&dropped), "{dropped}");
}
