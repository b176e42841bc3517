//! `+pinned`: each vCPU's thread stays on a processor of its own, as the kernel says.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

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
fn processors(parent: u32) -> Vec<String> {
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
            let list = line.map(|list| list.trim().to_owned());
            // All other threads may run anywhere.
            found.extend(list.filter(|list| list.parse::<u32>().is_ok()));
        }
    }
    found
}

#[test]
fn vcpus_stay_on_processors_of_their_own() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: one processor");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache");
    let mut vmtax = Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .args(["bench", "run", name(&matrix(folder.path(), MATRIX)), "-o", name(&run)])
        .env("XDG_CACHE_HOME", cache)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = BTreeSet::new();
    // It is pinned as soon as QEMU answers, which is long before the cell ends.
    let status = loop {
        if let Some(status) = vmtax.try_wait().unwrap() {
            break status;
        }
        seen.insert(processors(vmtax.id()));
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{status}");
    let apart = |list: &Vec<String>| {
        let different: BTreeSet<&String> = list.iter().collect();
        list.len() == 2 && different.len() == 2
    };
    assert!(seen.iter().any(apart), "{seen:?}");
}
