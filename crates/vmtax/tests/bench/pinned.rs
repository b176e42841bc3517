//! `+pinned`: each vCPU's thread stays on a processor of its own, as the kernel says.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::{matrix, name};

const MATRIX: &str = r#"
repeats = 1
warmup = false
categories = ["plain+pinned"]
[vm]
accel = "tcg"
cpus = 2
memory = 256
[[workload]]
use = "cpuid"
set = { seconds = 2 }
"#;

/// The processors of those threads of this process's children that stay on one.
fn processors(parent: u32) -> Vec<usize> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !read(format!("/proc/{pid}/status")).contains(&format!("\nPPid:\t{parent}\n")) {
            continue;
        }
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let path = task.path().display().to_string();
            let status = read(format!("{path}/status"));
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            // All other threads may run on several: "0-3".
            found.extend(line.and_then(|list| list.trim().parse::<usize>().ok()));
        }
    }
    found
}

#[test]
fn vcpus_stay_on_processors_of_their_own() {
    let set = sched_getaffinity(None).unwrap();
    let mut allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    if allowed.len() < 2 {
        return vmtax_skipped::system("this computer offers one processor");
    }
    // The last two, so that with more than two the first ones are not for vmtax, as in a container.
    let own = allowed.split_off(allowed.len() - 2);
    // Again if nobody looked while the cell ran.
    let mut looks = (0..10).map(|_| pinned_during_a_run(&own));
    assert!(looks.any(|seen| seen.contains(&own)), "vCPUs were never on {own:?}");
}

/// The processors that vCPUs were pinned to during a run on these, at every look.
fn pinned_during_a_run(own: &[usize]) -> BTreeSet<Vec<usize>> {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache");
    let vmtax = Command::new("taskset")
        .args(["--cpu-list", &format!("{},{}", own[0], own[1]), env!("CARGO_BIN_EXE_vmtax")])
        .args(["bench", "run", name(&matrix(folder.path(), MATRIX)), "-o", name(&run)])
        .env("XDG_CACHE_HOME", cache)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut vmtax = vmtax.unwrap();
    let mut seen = BTreeSet::new();
    // It is pinned as soon as QEMU answers, which is long before the cell ends.
    while vmtax.try_wait().unwrap().is_none() {
        let mut pinned = processors(vmtax.id());
        pinned.sort_unstable();
        seen.insert(pinned);
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = vmtax.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    seen
}
