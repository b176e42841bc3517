//! An interrupted import leaves a run that is marked as incomplete and readable up to some point.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::captures::json;
use crate::check::{Program, stdout};
use crate::damage::assert_incomplete;

/// Rows are stored that often, at least, whatever the interval; so what a busy computer reads for longer is stored in part.
const COMMIT_EVERY: Duration = Duration::from_secs(2);

/// A process that does not outlive the test.
struct Importer(Child);

impl Drop for Importer {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// ftrace's text of a guest that executes CPUID without end, 20 µs each.
fn recording(exits: u64) -> String {
    let mut text = String::from("# tracer: nop\n#\n");
    for n in 0..exits {
        let at = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        text.push_str(&format!(
            "             vmm-100     [000] d.... {}: kvm_exit: vcpu 0 reason cpuid rip 0xfff0 info1 \
             0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000\n\
             \x20            vmm-100     [000] d.... {}: kvm_entry: vcpu 0, rip 0xfff2\n",
            at(n * 20 + 1),
            at(n * 20 + 11),
        ));
    }
    text
}

/// Starts `vmtax import - -o run FLAGS`, feeds it `text`, and keeps its input open.
fn start(folder: &Path, flags: &str, text: &str) -> Importer {
    let mut command = Program::new().command(folder, &format!("import - -o run {flags}"));
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut importer = Importer(child);
    importer.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    importer
}

/// Waits until the run lists this many segments.
fn wait_for(importer: &mut Importer, run: &Path, segments: usize) {
    let deadline = Instant::now() + Duration::from_secs(600);
    loop {
        // The manifest is replaced as a whole, so it is never seen half-written.
        if let Ok(manifest) = fs::read(run.join("run.json")) {
            let manifest: Value = serde_json::from_slice(&manifest).unwrap();
            if manifest["segments"].as_array().unwrap().len() >= segments {
                return;
            }
        }
        assert!(importer.0.try_wait().unwrap().is_none(), "the import ended by itself");
        assert!(
            Instant::now() < deadline,
            "the import does not come as far as {segments} segments"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stopped_import_leaves_what_was_stored() {
    // 64k rows are a segment, and at 1 µs each exit is a row of its own.
    let text = recording(50_000);
    // INT does what TERM does, but a test that runs in the background of a shell starts with it ignored.
    for (signal, number) in [("KILL", 9), ("TERM", 15)] {
        for (flags, segments) in [("--interval 100ms", 0), ("--interval 1us", 3)] {
            let what = format!("{signal} {flags}");
            let folder = tempfile::tempdir().unwrap();
            let run = folder.path().join("run");
            let began = Instant::now();
            let mut importer = start(folder.path(), flags, &text);
            wait_for(&mut importer, &run, segments);
            let pid = importer.0.id().to_string();
            assert!(
                Command::new("sh")
                    .args(["-c", &format!("kill -{signal} {pid}")])
                    .status()
                    .unwrap()
                    .success()
            );
            assert_eq!(importer.0.wait().unwrap().signal(), Some(number), "{what}");
            let is_in_time = began.elapsed() < COMMIT_EVERY;
            assert_incomplete(&run);
            let rows = check_report(&run, &what);
            assert!(rows == (segments > 0) || (rows && !is_in_time), "{what}: {rows}");
        }
    }
}

/// Whether a report of it has rows; they are right.
fn check_report(run: &Path, what: &str) -> bool {
    let folder = run.parent().unwrap();
    for format in ["text", "csv", "html"] {
        let report = stdout(folder, &format!("report run --format {format}"));
        let report = String::from_utf8(report).unwrap();
        assert!(report.contains("never finished"), "{what} {format}: {report}");
    }
    let report = json(run, &["--event", "vmexit", "--by", "reason"]);
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    assert!(rows.len() <= 1, "{what}");
    if !rows.is_empty() {
        let count = rows[0]["count"].as_u64().unwrap();
        assert_eq!(rows[0]["reason"], "cpuid", "{what}");
        assert!((1000..50_000).contains(&count), "{what}: {count}");
        assert_eq!(rows[0]["time_ns"].as_u64(), Some(count * 10_000), "{what}");
    }
    !rows.is_empty()
}

/// The same text, without an interruption.
#[test]
fn an_import_that_is_not_stopped_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let mut importer = start(folder.path(), "--interval 1us", &recording(50_000));
    drop(importer.0.stdin.take());
    assert!(importer.0.wait().unwrap().success());
    let report = json(&folder.path().join("run"), &["--event", "vmexit", "--by", "reason"]);
    assert_eq!(report["run"]["complete"], true);
    assert_eq!(report["tables"][0]["rows"][0]["count"], 50_000);
}
