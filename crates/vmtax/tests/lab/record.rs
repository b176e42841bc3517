//! `vmtax record` in the emulated hosts, beside the kernel's own recording of the same run: the same counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::arm::path_with;
use crate::run::{json, paths, printed, vmtax};

mod arm;
mod choice;
mod crowd;
mod selftest;
mod service;

/// The command without what a debugger wants: it is copied into the host, which has it in memory.
pub(crate) fn stripped(folder: &Path) -> PathBuf {
    let program = folder.join("vmtax");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_vmtax"));
    assert!(strip.status().unwrap().success());
    program
}

/// Runs the lab with an observer; returns what it left.
pub(crate) fn observe(folder: &Path, observer: &str, arguments: &[&str]) -> PathBuf {
    observe_on(None, folder, observer, arguments)
}

/// With the QEMU of a folder, if there is one.
fn observe_on(qemu: Option<&Path>, folder: &Path, observer: &str, arguments: &[&str]) -> PathBuf {
    let run = folder.join("run");
    let run_name = run.to_str().unwrap();
    let mut command =
        vmtax(&[&["lab", "run", "-o", run_name, "--observe", observer], arguments].concat());
    if let Some(qemu) = qemu {
        command.env("PATH", path_with(qemu));
    }
    let made = command.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    run.join("observer")
}

/// All that a report counts, by what it is about: every table but those of time.
fn counts(run: &Path) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let tables = [
        ("vmexit", "reason,detail,level"),
        ("vmexit", "cause,level"),
        ("msr", "detail,level"),
        ("ioport", "detail,level"),
        ("mmio", "detail,level"),
        ("cpuid", "detail,level"),
        ("hypercall", "detail,level"),
        ("conversion", "detail,level"),
        ("nested", ""),
    ];
    for (table, by) in tables {
        let run = run.to_str().unwrap();
        let mut arguments = vec!["report", run, "--event", table, "--format", "csv"];
        if !by.is_empty() {
            arguments.extend(["--by", by]);
        }
        add(&mut counts, &printed(&arguments));
    }
    counts
}

/// Adds the rows of one report: all columns before the counts are the key.
fn add(counts: &mut BTreeMap<String, u64>, csv: &str) {
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let (accelerator, vm, count) = (place("accelerator"), place("vm"), place("count"));
    for line in lines.filter(|line| !line.starts_with("time,") && !line.starts_with("losses,")) {
        // The accelerator alone has quotes, and is left out.
        let unquoted: String = line.split('"').step_by(2).collect();
        let mut cells: Vec<&str> = unquoted.split(',').collect();
        let number = cells[count].parse().unwrap_or_else(|_| panic!("{line}"));
        cells[accelerator] = "";
        let key = cells[..vm].join(",");
        assert_eq!(counts.insert(format!("{} {key}", head.len()), number), None, "{line}");
    }
}

fn differences(live: &BTreeMap<String, u64>, trace: &BTreeMap<String, u64>) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = live.keys().chain(trace.keys()).collect();
    keys.iter()
        .filter(|key| live.get(**key) != trace.get(**key))
        .map(|key| format!("{key}: live {:?}, trace {:?}", live.get(*key), trace.get(*key)))
        .collect()
}

fn losses(run: &Path) -> Value {
    let report = json(&["report", run.to_str().unwrap()]);
    report["losses"].clone()
}

/// Further recorders beside the one that is compared first, by their run folders: what starts each.
const KINDS: [(&str, &str); 2] = [
    ("raw", "./vmtax record -o raw --raw --most-keys 4000 >raw.said 2>&1 &"),
    // No root, and no capability but the two that recording needs. Debian lets only root place a probe otherwise.
    (
        "bare/run",
        "mkdir -m 777 bare
        echo 2 >/proc/sys/kernel/perf_event_paranoid
        setpriv --reuid 1000 --clear-groups --inh-caps -all,+bpf,+perfmon --ambient-caps -all,+bpf,+perfmon \
            --bounding-set -all,+bpf,+perfmon ./vmtax record -o bare/run --most-keys 4000 >bare.said 2>&1 &",
    ),
];

/// No observer sleeps before all are working: an idle observer counts as ready. The ring buffer of the
/// kernel must hold all of a run: a recorder that loses events cannot be compared.
const WATCHERS: &str = r#"
OTHERS
./vmtax record -o live --interval 2s -- trace-cmd record -b 30000 -C mono -e kvm -e sched:sched_switch PROBES -o trace.dat & live=$!
end() {
    kill -INT $live
    wait $live
    kill -TERM $(pidof vmtax)
    wait
    exit 0
}
trap end INT
while kill -0 $live; do wait $live; done
"#;

/// Live recordings of a whole run of the lab, of these kinds besides the usual one, against the same run's tracepoints.
fn same_as_trace(arguments: &[&str], kinds: &[&str], probes: &str) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().unwrap();
    let others = KINDS.iter().filter(|(kind, _)| kinds.contains(kind));
    let others: Vec<&str> = others.map(|(_, command)| *command).collect();
    let script = WATCHERS.replace("OTHERS", &others.join("\n")).replace("PROBES", probes);
    let found = observe_script(folder.path(), &script, &[], arguments);
    let trace = counts(&found.join("trace.dat"));
    let trace_losses = losses(&found.join("trace.dat"));
    let same = |run: &str| {
        let live = counts(&found.join(run));
        let wrong = differences(&live, &trace);
        assert!(wrong.is_empty(), "{run}: {} rows:\n{}", wrong.len(), wrong.join("\n"));
        same_losses(&losses(&found.join(run)), &trace_losses, run);
        live
    };
    let live = same("live");
    for run in kinds {
        same(run);
    }
    // KVM says of these VMs that it can read their registers.
    for run in kinds.iter().chain(&["live"]) {
        let manifest = fs::read(found.join(run).join("run.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let vms = manifest["recording"]["vms"].as_array().unwrap();
        let is_open = |vm: &Value| vm["state_protected"] == Value::Bool(false);
        assert!(!vms.is_empty() && vms.iter().all(is_open), "{run}: {vms:?}");
    }
    if kinds.contains(&"raw") {
        // Single events, counted by the rules for recordings, come to what was counted in the kernel.
        let (raw, again) = (found.join("raw"), found.join("again"));
        printed(&["import", raw.to_str().unwrap(), "-o", again.to_str().unwrap(), "--raw"]);
        same("again");
        assert_eq!(times(&again), times(&raw));
    }
    live
}

/// Runs the lab with a shell script as the observer; `./vmtax` in it is the command. Returns what it left.
pub(crate) fn observe_script(
    folder: &Path,
    script: &str,
    brought: &[&str],
    arguments: &[&str],
) -> PathBuf {
    let tools = ["trace-cmd", "mkdir", "sleep", "setpriv", "pidof", "dmesg"];
    let tools = tools.map(|tool| format!("/usr/bin/{tool}"));
    let brought = [&tools.each_ref().map(String::as_str)[..], brought].concat();
    observe_in("/bin/sh", folder, script, (&brought, arguments))
}

/// The same in another shell, with these programs alone.
pub(crate) fn observe_in(
    shell: &str,
    folder: &Path,
    script: &str,
    (brought, arguments): (&[&str], &[&str]),
) -> PathBuf {
    // Files that are brought lie at the place that they have here.
    let (program, path) = (stripped(folder), folder.join("script.sh"));
    fs::write(&path, script.replace("./vmtax", program.to_str().unwrap())).unwrap();
    let observer = format!("{shell} {}", path.display());
    let own = [path.to_str().unwrap(), program.to_str().unwrap()];
    let mut flags: Vec<&str> =
        own.iter().chain(brought).flat_map(|file| ["--bring", file]).collect();
    flags.extend(arguments);
    observe(folder, &observer, &flags)
}

fn same_losses(live: &Value, trace: &Value, run: &str) {
    for loss in ["recorder_lost", "unpaired_exits", "unpaired_entries", "details_dropped"] {
        assert_eq!(live[loss], trace[loss], "{run}: {loss}");
    }
    assert_eq!(live["recorder_lost"].as_u64(), Some(0), "{run}: {live}");
}

/// Where the time of all vCPUs went, as a report says it: ns by part.
fn times(run: &Path) -> BTreeMap<String, u64> {
    let run = run.to_str().unwrap();
    let report = printed(&["report", run, "--event", "cause", "--format", "csv"]);
    let mut times = BTreeMap::new();
    for line in report.lines().filter(|line| line.starts_with("time,")) {
        // The part, the vCPU, its time.
        let cells: Vec<&str> = line.split(',').filter(|cell| !cell.is_empty()).collect();
        let time: u64 = cells[cells.len() - 1].parse().unwrap();
        *times.entry(cells[2].to_owned()).or_default() += time;
    }
    assert!(times["guest"] > 0 && times["exit-kernel"] > 0, "{times:?}");
    times
}

/// What it adds to a CPUID exit, in instructions, with details, levels and histograms. `perf kvm stat record`, which
/// writes an event to be counted later, adds 3,166; a quarter of that would be 790. It adds 724.
const MOST: f64 = 740.0;

#[test]
fn it_costs_less_than_a_quarter_of_perf() {
    let folder = tempfile::tempdir().unwrap();
    let observer = format!("{} record -o live --interval 1000s", stripped(folder.path()).display());
    let alone = paths(&json(&["lab", "run", "--operation", "cpuid"]))["cpuid L1"];
    let observed = json(&["lab", "run", "--operation", "cpuid", "--observe", &observer]);
    let added = paths(&observed)["cpuid L1"] - alone;
    eprintln!("vmtax record adds {added} instructions");
    assert!(added > 300.0 && added <= MOST, "vmtax record adds {added} instructions");
}

#[test]
fn counts_on_amd_are_those_of_the_trace() {
    amd(&["raw"]);
}

#[test]
#[ignore = "two minutes"]
fn counts_on_amd_are_those_of_the_trace_in_every_way() {
    amd(&["raw", "bare/run"]);
}

fn amd(kinds: &[&str]) {
    let counts = same_as_trace(&["--nested"], kinds, "");
    let of = |what: &str| -> u64 {
        counts.iter().filter(|(key, _)| key.contains(what)).map(|(_, count)| count).sum()
    };
    // Both could be empty in the same way: six batches, of 20 at L1 and of 5 at L2.
    assert!(of(",cpuid,L1,") >= 120 && of(",cpuid,L2,") >= 30, "{counts:#?}");
    assert!(of(",vmrun,L1,") > 1000 && of(",msr,L1,") > 1000, "{counts:#?}");
}

#[test]
#[ignore = "minutes"]
fn counts_on_two_processors_are_those_of_the_trace() {
    let arguments = ["--processors", "2", "--suite", "primitives,timers"];
    let counts = same_as_trace(&arguments, &["raw"], "");
    let cpuid = counts.iter().filter(|(key, _)| key.contains(",cpuid,L1,"));
    assert!(cpuid.map(|(_, count)| count).sum::<u64>() >= 120, "{counts:#?}");
}

#[test]
fn counts_on_intel_are_those_of_the_trace() {
    intel(&["raw"]);
}

#[test]
#[ignore = "ten minutes"]
fn counts_on_intel_are_those_of_the_trace_in_every_way() {
    intel(&["raw", "bare/run"]);
}

fn intel(kinds: &[&str]) {
    let counts = same_as_trace(&["--host", "intel", "--nested"], kinds, "-e vmtax");
    let of = |what: &str| -> u64 {
        counts.iter().filter(|(key, _)| key.contains(what)).map(|(_, count)| count).sum()
    };
    assert!(of(",CPUID,L1,") >= 120 && of(",CPUID,L2,") >= 30, "{counts:#?}");
    assert!(of(",VMRESUME,L1,") > 1000, "{counts:#?}");
    // Fields have their names, and with shadowing few are left to be read by an exit.
    let unnamed = counts.keys().filter(|key| key.contains("VMREAD") && key.contains(",none,"));
    assert_eq!(unnamed.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// One recorder for each thing that goes wrong, all of the same run, beside one with which nothing does.
const TROUBLES: &str = r#"
tell() { while read -r line; do echo "$line"; done <$1; }
mkdir disk
mount -t tmpfs -o size=40k none disk
./vmtax record -o whole --interval 500ms >whole.said 2>&1 & whole=$!
./vmtax record -o few --interval 500ms --most-keys 3 >few.said 2>&1 & few=$!
./vmtax record -o killed --most-keys 1000 --interval 500ms >killed.said 2>&1 & killed=$!
./vmtax record -o churn --most-keys 1000 --interval 20ms --most-threads 4 >churn.said 2>&1 & churn=$!
./vmtax record -o tight --interval 1000s --most-keys 1000 --most-threads 3 >tight.said 2>&1 & tight=$!
./vmtax record -o mine --interval 500ms --most-keys 1000 --pid 1 >mine.said 2>&1 & mine=$!
./vmtax record -o other --interval 500ms --most-keys 1000 --pid $$ >other.said 2>&1 & other=$!
./vmtax record -o paused --interval 500ms --most-keys 1000 >paused.said 2>&1 & paused=$!
( ./vmtax record -o disk/full --most-keys 1000 --interval 100ms >full.said 2>&1; echo $? >full.code ) &
end() {
    kill -KILL $killed
    kill -CONT $paused
    kill -TERM $paused
    wait $paused; echo $? >paused.code
    kill -TERM $mine $other $tight
    wait $tight; echo $? >tight.code
    wait $mine; echo $? >mine.code
    wait $other; echo $? >other.code
    ./vmtax record -o unborn -- ./none >unborn.said 2>&1
    echo $? >unborn.code
    setpriv --bounding-set -all --inh-caps -all ./vmtax record -o denied --duration 1s >denied.said 2>&1
    echo $? >denied.code
    rmmod kvm_amd && echo gone >amd.said
    rmmod kvm 2>kvm.said || echo refused >>kvm.said
    kill -TERM $few $churn
    wait $few; echo $? >few.code
    wait $churn; echo $? >churn.code
    kill -TERM $whole
    wait $whole; echo $? >whole.code
    cp -r disk/full full
    ./vmtax record -o absent --duration 1s >absent.said 2>&1
    echo $? >absent.code
    exit 0
}
trap end INT
# It counts when it has begun its run, and for the whole of the suite nobody reads.
until [ -e paused/run.json ]; do sleep 1; done
sleep 2
kill -STOP $paused
while kill -0 $whole; do wait $whole; done
tell whole.said
"#;

#[test]
fn injected_faults_cost_exactly_their_cells() {
    let folder = tempfile::tempdir().unwrap();
    let brought = [
        "/usr/bin/mount",
        "/usr/bin/mkdir",
        "/usr/bin/cp",
        "/usr/bin/sleep",
        "/usr/bin/setpriv",
        "/usr/sbin/rmmod",
    ];
    let found = observe_in("/bin/sh", folder.path(), TROUBLES, (&brought, &[]));
    let said = |name: &str| fs::read_to_string(found.join(name)).unwrap_or_default();
    let names = [
        "whole", "few", "churn", "paused", "tight", "mine", "other", "full", "unborn", "denied",
        "absent",
    ];
    let codes = names.map(|name| said(&format!("{name}.code")).trim().to_owned());
    let all = names.map(|name| said(&format!("{name}.said"))).concat();
    assert_eq!(codes, ["0", "0", "0", "0", "0", "0", "0", "5", "3", "3", "3"], "{all}");
    for (name, expected) in [
        ("full.said", "No space left on device (os error 28); free some space"),
        (
            "denied.said",
            "recording needs CAP_BPF and CAP_PERFMON, which this process does not have",
        ),
        (
            "absent.said",
            "the module kvm is there without kvm_intel or kvm_amd, so no VM can run here",
        ),
        // What recording is attached to stays; the processor's part of KVM can go.
        ("kvm.said", "refused"),
        ("amd.said", "gone"),
    ] {
        assert!(said(name).contains(expected), "{name}: {}", said(name));
        assert!(said(name).lines().count() <= 2, "{name}: {}", said(name));
    }
    what_is_left_is_right(&found);
}

fn what_is_left_is_right(found: &Path) {
    let whole = counts(&found.join("whole"));
    // Killed between two intervals, with nothing in the open one, stopped while the suite ran, or told to record the
    // process that runs all VMs: all of it is there.
    for name in ["killed", "paused", "mine"] {
        let wrong = differences(&counts(&found.join(name)), &whole);
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
    let exits = |name: &str| -> u64 {
        let report = json(&["report", found.join(name).to_str().unwrap(), "--event", "vmexit"]);
        let rows = report["tables"][0]["rows"].as_array().unwrap();
        rows.iter().map(|row| row["count"].as_u64().unwrap()).sum()
    };
    assert_eq!(exits("other"), 0);
    assert!(!found.join("unborn").exists());
    let lost = |name: &str, what: &str| losses(&found.join(name))[what].as_u64().unwrap();
    let all = exits("whole");
    assert_eq!((lost("whole", "recorder_lost"), lost("whole", "details_dropped")), (0, 0));
    // Without room for details every exit is counted all the same.
    assert_eq!((exits("few"), lost("few", "recorder_lost")), (all, 0));
    assert!(lost("few", "details_dropped") > 1000);
    // Events of threads beyond the limit are lost: exit and entry at least of every exit that is missing, but for a
    // thread's last exit.
    for name in ["tight", "churn"] {
        let (missing, lost) = (all - exits(name), lost(name, "recorder_lost"));
        assert!(
            lost + 50 >= 2 * missing && (lost == 0) == (missing == 0),
            "{name}: {lost}, {missing}"
        );
    }
    assert!(exits("tight") < all);
    // Each thread that ended left an exit; of more threads than there is room for, so they made room for others.
    let ended = lost("churn", "unpaired_exits");
    assert!(ended > 4, "{ended}");
    // What was written before the disk was full reads, and says that it is not all.
    assert!(exits("full") > 0 && exits("full") < all);
    let report = json(&["report", found.join("full").to_str().unwrap()]);
    assert_eq!(
        report["losses"]["truncated"].as_array().map(Vec::len),
        Some(1),
        "{}",
        report["losses"]
    );
}
