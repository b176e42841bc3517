//! `vmtax record` on the emulated arm64 host, beside the kernel's own recording of the same run: the same counts.
//!
//! The programs there are that of `./x package arm64`, and Debian's busybox, which gives a shell.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{counts, differences, losses};
use crate::arm::newer_qemu;

/// The folder of this repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The static program for arm64, if it was made.
fn program() -> Option<PathBuf> {
    let program = root().join("target/package-arm64/bin/vmtax");
    if !program.exists() {
        vmtax_skipped::system("there is no program for arm64: ./x package arm64");
        return None;
    }
    Some(program)
}

/// `./vmtax` in the script is the static program for arm64.
pub(super) fn observe(folder: &Path, script: &str, arguments: &[&str]) -> Option<PathBuf> {
    observe_with(None, folder, script, arguments)
}

/// With the QEMU of this folder.
fn observe_with(
    qemu: Option<&Path>,
    folder: &Path,
    script: &str,
    arguments: &[&str],
) -> Option<PathBuf> {
    let program = program()?;
    let mut fetch = Command::new(root().join("packaging/arm64-packages"));
    let fetched = fetch.arg(folder.join("debian")).arg("busybox-static").output().unwrap();
    assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
    let busybox = folder.join("debian/root/bin/busybox");
    let path = folder.join("script.sh");
    std::fs::write(&path, script.replace("./vmtax", program.to_str().unwrap())).unwrap();
    let observer = format!("{} sh {}", busybox.display(), path.display());
    let brought = [path.to_str().unwrap(), program.to_str().unwrap()];
    let mut all: Vec<&str> = brought.iter().flat_map(|file| ["--bring", file]).collect();
    all.extend(["--host", "arm"]);
    all.extend(arguments);
    Some(super::observe_on(qemu, folder, &observer, &all))
}

/// The recorders begin before the kernel records and end after it; VMs run only while all do.
const WATCHERS: &str = "
t=/sys/kernel/tracing/instances/own
mkdir $t
echo mono >$t/trace_clock
echo 30000 >$t/buffer_size_kb
./vmtax record -o live --interval 2s >live.said 2>&1 & live=$!
./vmtax record -o raw --raw >raw.said 2>&1 & raw=$!
sleep 2
echo 1 >$t/events/kvm/enable
echo 1 >$t/events/sched/sched_switch/enable
echo 1 >$t/tracing_on
trap asked=1 INT
while [ -z \"$asked\" ]; do sleep 1; done
echo 0 >$t/tracing_on
cat $t/trace >trace.txt
kill -INT $live $raw
wait
";

fn same_as_trace(qemu: Option<&Path>, arguments: &[&str]) -> Option<BTreeMap<String, u64>> {
    let folder = tempfile::tempdir().unwrap();
    let found = observe_with(qemu, folder.path(), WATCHERS, arguments)?;
    let trace = counts(&found.join("trace.txt"));
    for run in ["live", "raw"] {
        let live = counts(&found.join(run));
        let wrong = differences(&live, &trace);
        assert!(wrong.is_empty(), "{run}: {} rows:\n{}", wrong.len(), wrong.join("\n"));
        assert_eq!(losses(&found.join(run))["recorder_lost"], 0);
    }
    Some(trace)
}

fn of(counts: &BTreeMap<String, u64>, what: &str) -> u64 {
    counts.iter().filter(|(key, _)| key.contains(what)).map(|(_, count)| count).sum()
}

#[test]
#[ignore = "a minute; after ./x package arm64"]
fn counts_on_arm64_are_those_of_the_trace() {
    let Some(counts) = same_as_trace(None, &[]) else { return };
    for what in ["HVC64,", "ID_AA64MMFR0_EL1", "ICC_SGI1R_EL1", ",mmio-write,", "WFx,"] {
        assert!(of(&counts, what) >= 120, "{what}: {counts:#?}");
    }
}

#[test]
#[ignore = "minutes; after ./x package arm64"]
fn counts_of_nested_arm64_are_those_of_the_trace() {
    let Some(qemu) = newer_qemu() else { return };
    let arguments = ["--kernel", "debian:7.3", "--nested", "--operation", "hvc-psci,mmio-write"];
    let Some(counts) = same_as_trace(Some(&qemu), &arguments) else { return };
    assert!(of(&counts, ",L2,") > 100, "{counts:#?}");
}

/// selftest runs its five VMs alone, and beside two recorders.
const STARTS: &str = "
trap asked=1 INT
./vmtax record --starts -o starts.txt -- ./vmtax selftest -o table.txt
while [ -z \"$asked\" ]; do sleep 1; done
";

#[test]
#[ignore = "a minute; after ./x package arm64"]
fn starts_on_arm64_are_timed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(found) = observe(folder.path(), STARTS, &["--operation", "hvc-psci"]) else { return };
    let text = std::fs::read_to_string(found.join("starts.txt")).unwrap();
    eprintln!("{text}");
    assert!(text.starts_with("Recorded: 15 VMs were created"), "{text}");
}
