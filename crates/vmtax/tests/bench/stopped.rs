//! SIGTERM during a cell: the run ends soon, prints how to continue, and leaves no process.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{matrix, name, refused};

/// A cell that would take ten minutes.
const MATRIX: &str = r#"
repeats = 1
warmup = false
exits = false
limit_seconds = 600
categories = ["PLACE"]
[vm]
accel = "tcg"
memory = 256
[[workload]]
use = "cpuid"
set = { seconds = 600 }
"#;

fn children(parent: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let status = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("status")).ok();
    let is_child = |status: &String| status.contains(&format!("\nPPid:\t{parent}\n"));
    processes.filter_map(status).filter(is_child).collect()
}

#[test]
fn a_stop_ends_a_cell_on_the_host_and_in_a_vm() {
    for place in ["host", "plain"] {
        let folder = tempfile::tempdir().unwrap();
        let path = matrix(folder.path(), &MATRIX.replace("PLACE", place));
        let (run, temporary) = (folder.path().join("run"), folder.path().join("temporary"));
        fs::create_dir(&temporary).unwrap();
        let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache");
        let vmtax = Command::new(env!("CARGO_BIN_EXE_vmtax"))
            .args(["bench", "run", name(&path), "-o", name(&run)])
            .env("TMPDIR", &temporary)
            .env("XDG_CACHE_HOME", cache)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut vmtax = vmtax.unwrap();
        let pid = vmtax.id();
        // The cell runs once the place has said what it is and has something to do.
        let facts = run.join("facts").join(format!("{place}.json"));
        while !facts.exists() || children(pid).is_empty() {
            if let Some(status) = vmtax.try_wait().unwrap() {
                let output = vmtax.wait_with_output().unwrap();
                panic!("it ended with {status}: {}", String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_child(&vmtax), Signal::TERM).unwrap();
        let asked = Instant::now();
        let output = vmtax.wait_with_output().unwrap();
        let (time, error) = (asked.elapsed(), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{place}: {error}");
        assert_eq!(
            error, "vmtax: stopped; the same command with --resume continues the run\n",
            "{place}"
        );
        // Less than a second on an idle machine; the cell would take 600.
        assert!(time < Duration::from_secs(240), "{place}: {time:?}");
        assert!(children(pid).is_empty(), "{place}");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{place}");
        // It was not recorded as a failed cell.
        let (_, sentence) = refused(&["compare", name(&run)]);
        assert!(sentence.contains("has no results"), "{place}: {sentence}");
    }
}
