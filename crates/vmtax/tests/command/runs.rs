//! An imported recording reports as the recording does: byte for byte.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::captures::{json, unpack};
use crate::check::{Program, stdout, succeed};

/// Every kind of recording.
const CAPTURES: [(&str, &str); 26] = [
    ("amd-bpftrace", "names.bpftrace.txt"),
    ("amd-bpftrace", "reasons.bpftrace.txt"),
    ("amd-cpuid", "zstd.perf.data.zst"),
    ("amd-cpuid", "lost.perf.data.zst"),
    ("amd-midrun", "midrun.perf.data.zst"),
    ("amd-nested", "all.perf.data.zst"),
    ("amd-nested", "kvmstat.perf.data.zst"),
    ("amd-nested", "v6.trace.dat.zst"),
    ("amd-nested", "v7.trace.dat"),
    ("amd-nested", "perf-script.txt"),
    ("amd-nested", "perf-script-lost.txt"),
    ("amd-nested", "trace-cmd-report.txt"),
    ("amd-nested", "trace-cmd-report-R.txt"),
    ("amd-nested", "trace-cmd-report-l.txt"),
    ("amd-nested-exact", "nested-exact.perf.data.zst"),
    ("amd-pipe", "pipe.perf.data.zst"),
    ("amd-pipe", "pipe-zstd.perf.data.zst"),
    ("amd-same-workload", "workload-v7-none.trace.dat.zst"),
    ("amd-same-workload", "workload.ftrace.txt.zst"),
    ("amd-sched", "sched.perf.data.zst"),
    ("amd-sched", "sched.script.txt.zst"),
    ("amd-two-vms", "two-vms.perf.data.zst"),
    ("amd-two-vms", "two-vms.script.txt.zst"),
    ("intel-cpuid", "intel.perf.data.zst"),
    ("intel-nested", "intel-nested.perf.data.zst"),
    ("intel-nested", "intel-nested.ftrace.txt.zst"),
];

const EVERYTHING: &str = "--event vmexit,cause,msr,ioport,mmio,cpuid,hypercall,nested";

/// The recording and a run of it under the same name in two folders, so that not even the name differs.
struct RunPair {
    _folder: tempfile::TempDir,
    recording: PathBuf,
    run: PathBuf,
}

impl RunPair {
    fn new(input: &Path, flags: &str) -> RunPair {
        let folder = tempfile::tempdir().unwrap();
        let [recording, run] = ["recording", "run"].map(|name| folder.path().join(name));
        fs::create_dir(&recording).unwrap();
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(input, recording.join("it")).unwrap();
        stdout(&run, &format!("import {} -o it {flags}", input.display()));
        RunPair { _folder: folder, recording, run }
    }

    /// `vmtax report it FLAGS` of both is the same.
    fn check(&self, what: &str, flags: &str) {
        let [one, other] = [&self.recording, &self.run]
            .map(|folder| stdout(folder, &format!("report it {flags}")));
        if one != other {
            let [one, other] = [one, other].map(|text| String::from_utf8_lossy(&text).into_owned());
            let differ = one.lines().zip(other.lines()).find(|(a, b)| a != b);
            panic!("{what}: report {flags}: recording and run differ: {differ:?}");
        }
    }
}

#[test]
fn a_run_reports_as_its_recording() {
    for (capture, input) in CAPTURES {
        let pair = RunPair::new(&unpack(capture, input), "--raw");
        let what = format!("{capture}/{input}");
        for format in ["text", "json", "csv", "html"] {
            pair.check(&what, &format!("--format {format}"));
            pair.check(&what, &format!("--format {format} {EVERYTHING}"));
        }
        pair.check(&what, &format!("{EVERYTHING} --by reason,level,cause,detail,outcome,vm,vcpu"));
        if !what.contains("bpftrace") {
            pair.check(&what, "--format perfetto");
        }
    }
}

#[test]
fn a_run_filters_as_its_recording() {
    let two_vms = RunPair::new(&unpack("amd-two-vms", "two-vms.perf.data.zst"), "--raw");
    let mut sizes = Vec::new();
    for filter in
        ["--vm 116", "--vm 142", "--vcpu 1", "--vm 116 --vcpu 0", "--vm 142,116 --vcpu 0,1"]
    {
        for format in ["text", "json", "csv", "html", "perfetto"] {
            two_vms.check("two VMs", &format!("{filter} --format {format}"));
        }
        let report = stdout(&two_vms.run, &format!("report it --format json {filter}"));
        let report: Value = serde_json::from_slice(&report).unwrap();
        sizes.push(report["tables"][0]["total"]["count"].as_u64().unwrap());
    }
    let whole = json(&two_vms.run.join("it"), &[]);
    let whole = whole["tables"][0]["total"]["count"].as_u64().unwrap();
    assert_eq!(sizes[0] + sizes[1], whole);
    assert_eq!(sizes[4], whole);
    assert_eq!(sizes[2] + sizes[3], sizes[0]);
    // By name: both VMs have the same.
    two_vms.check("two VMs", "--vm qemu-system-x86");
}

/// How long the intervals are changes the timeline and no total.
#[test]
fn intervals_change_no_total() {
    for (capture, input) in [
        ("amd-nested", "all.perf.data.zst"),
        ("amd-nested", "v7.trace.dat"),
        ("amd-two-vms", "two-vms.perf.data.zst"),
        ("amd-sched", "sched.script.txt.zst"),
    ] {
        let input = unpack(capture, input);
        let pair = RunPair::new(&input, "");
        let expected = stdout(&pair.recording, &format!("report it --format csv {EVERYTHING}"));
        for interval in ["1us", "10ms", "1s", "1000s"] {
            let flags = format!("--format csv {EVERYTHING} --interval {interval}");
            let words = format!("report it {flags}");
            assert!(stdout(&pair.recording, &words) == expected, "{capture}: {interval}");
        }
        let fine = RunPair::new(&input, "--interval 10us");
        let words = format!("report it --format csv {EVERYTHING}");
        assert!(stdout(&fine.run, &words) == expected, "{capture}: imported with 10us");
    }
}

/// Two recordings in one run add up.
#[test]
fn recordings_of_one_host_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let one = unpack("amd-pipe", "pipe.perf.data.zst");
    let other = unpack("amd-pipe", "pipe-zstd.perf.data.zst");
    let words =
        format!("import {} {} -o run --label a=1 --label b=2", one.display(), other.display());
    succeed(&mut Program::new().command(folder.path(), &words));
    let count = |report: &Value| report["tables"][0]["total"]["count"].as_u64().unwrap();
    let both = json(&folder.path().join("run"), &[]);
    assert_eq!(count(&both), count(&json(&one, &[])) + count(&json(&other, &[])));
    let manifest = fs::read(folder.path().join("run/run.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["labels"], serde_json::json!({"a": "1", "b": "2"}));
    assert_eq!(manifest["complete"], true);
}

#[test]
fn single_events_of_a_run_are_counted_anew() {
    for (capture, file) in [
        ("amd-nested", "all.perf.data.zst"),
        ("amd-two-vms", "two-vms.perf.data.zst"),
        ("intel-nested", "intel-nested.perf.data.zst"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (first, again) = (folder.path().join("first"), folder.path().join("again"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&again).unwrap();
        stdout(&first, &format!("import {} --raw -o it", unpack(capture, file).display()));
        stdout(&again, &format!("import {} -o it", first.join("it").display()));
        let report = format!("report it --format csv {EVERYTHING}");
        let [first, again] = [first, again].map(|folder| stdout(&folder, &report));
        assert!(first.len() > 1000 && first == again, "{capture}: {file}");
    }
}
