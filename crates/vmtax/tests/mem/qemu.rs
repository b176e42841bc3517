//! Real VMs: saved, killed, restored, going on.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::guest::{Guest, check};
use super::{mem, name, ok, refused};

/// Runs monitor commands and gives the last answer.
fn qmp(socket: &Path, commands: &[&str]) -> serde_json::Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut last = serde_json::Value::Null;
    let mut read = |wanted: &str| loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the monitor closed");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(value.get("error").is_none(), "{value}");
        if let Some(found) = value.get(wanted) {
            return found.clone();
        }
    };
    read("QMP");
    for command in ["{\"execute\":\"qmp_capabilities\"}"].iter().chain(commands) {
        stream.write_all(format!("{command}\n").as_bytes()).unwrap();
        last = read("return");
    }
    last
}

#[test]
fn a_vm_is_saved_killed_restored_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    let mut guest = Guest::start(dir.path(), "first", "192M", "", false);
    guest.counted(3);

    let (base, child, last) = (path("base.ckpt"), path("child.ckpt"), path("last.ckpt"));
    let socket = guest.qmp.clone();
    let socket = name(&socket);
    ok(&["save", "--qmp", socket, "-o", name(&base)]);
    let at_base = guest.counts().len();
    // It goes on by itself.
    guest.counted(at_base + 3);
    ok(&["save", "--qmp", socket, "-o", name(&child), "--parent", name(&base)]);
    let at_child = guest.counts().len();
    guest.counted(at_child + 3);
    let saved = ok(&[
        "save",
        "--qmp",
        socket,
        "-o",
        name(&last),
        "--parent",
        name(&child),
        "--zstd",
        "--accel",
        "model",
        "--format",
        "json",
        "--stopped",
    ]);
    let at_last = guest.counts().len();
    assert_eq!(qmp(&guest.qmp, &["{\"execute\":\"query-status\"}"])["running"], false);
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert!(saved["accel"].as_str().unwrap().contains("on devices"), "{saved}");
    check(&guest.counts());
    guest.kill();

    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(size(&child) * 10 < size(&base), "{} after {}", size(&child), size(&base));
    ok(&["verify", name(&last)]);

    for (name_of, checkpoint, before) in [("again", &last, at_last), ("older", &base, at_base)] {
        let mut guest = Guest::start(dir.path(), name_of, "192M", "", true);
        ok(&["restore", name(checkpoint), "--qmp", name(&guest.qmp)]);
        let counts = guest.counted(4);
        check(&counts);
        // From where it was saved: the line under way, or the next.
        let first = counts[0].count as usize;
        assert!(
            (before..=before + 2).contains(&first),
            "went on with {first}, was saved at {before}"
        );
        guest.kill();
    }

    // Into the wrong machine, or one that does not wait.
    let other = Guest::start(dir.path(), "other", "128M", "", true);
    let (code, sentence) = refused(&["restore", name(&last), "--qmp", name(&other.qmp)]);
    assert_eq!(code, 4, "{sentence}");
    assert!(
        sentence.contains("was saved with mem of 192.0 MiB, this QEMU has mem of 128.0 MiB"),
        "{sentence}"
    );
    let running = Guest::start(dir.path(), "running", "128M", "", false);
    let (code, sentence) = refused(&["restore", name(&last), "--qmp", name(&running.qmp)]);
    assert_eq!(code, 3, "{sentence}");
    assert!(sentence.contains("start one with -incoming defer"), "{sentence}");
}

/// A save that fails lets the VM go on.
#[test]
fn a_vm_goes_on_after_a_save_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::start(dir.path(), "vm", "128M", "", false);
    guest.counted(2);
    let output = dir.path().join("no/such/folder/x.ckpt");
    let (code, sentence) = refused(&["save", "--qmp", name(&guest.qmp), "-o", name(&output)]);
    assert_eq!(code, 5, "{sentence}");
    let before = guest.counts().len();
    check(&guest.counted(before + 2));
}

/// Processor time of a process and the children it has waited for, seconds.
fn processor_time(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = &stat[stat.rfind(')').unwrap() + 2..];
    let ticks: f64 = after.split(' ').skip(11).take(4).map(|w| w.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// Of one save: processor time of all who take part, wall time, bytes.
#[derive(Clone, Copy, Debug)]
struct Cost {
    processor: f64,
    wall: f64,
    bytes: f64,
}

fn by_vmtax(guest: &Guest, output: &Path) -> Cost {
    // Stopped, or the guest's own work would be counted.
    qmp(&guest.qmp, &["{\"execute\":\"stop\"}"]);
    let (qemu, own) = (processor_time(guest.pid()), processor_time(std::process::id()));
    let start = Instant::now();
    let done = mem(&["save", "--qmp", name(&guest.qmp), "-o", name(output)]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let wall = start.elapsed().as_secs_f64();
    // Our own time is small: it waits.
    let processor = processor_time(guest.pid()) - qemu + processor_time(std::process::id()) - own;
    qmp(&guest.qmp, &["{\"execute\":\"cont\"}"]);
    Cost { processor, wall, bytes: fs::metadata(output).unwrap().len() as f64 }
}

fn by_qemu(guest: &Guest, output: &Path) -> Cost {
    qmp(&guest.qmp, &["{\"execute\":\"stop\"}"]);
    let qemu = processor_time(guest.pid());
    let start = Instant::now();
    // No limit on its speed, as for a file.
    let speed =
        "{\"execute\":\"migrate-set-parameters\",\"arguments\":{\"max-bandwidth\":100000000000}}";
    let migrate = format!(
        "{{\"execute\":\"migrate\",\"arguments\":{{\"uri\":\"exec:cat > {}\"}}}}",
        output.display()
    );
    qmp(&guest.qmp, &[speed, &migrate]);
    loop {
        let status = qmp(&guest.qmp, &["{\"execute\":\"query-migrate\"}"]);
        match status["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => panic!("{status}"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let wall = start.elapsed().as_secs_f64();
    // `cat` is counted once QEMU has waited for it.
    std::thread::sleep(Duration::from_millis(300));
    let processor = processor_time(guest.pid()) - qemu;
    // A QEMU that has migrated saves nothing more before it has run again.
    qmp(&guest.qmp, &["{\"execute\":\"cont\"}"]);
    Cost { processor, wall, bytes: fs::metadata(output).unwrap().len() as f64 }
}

/// Against QEMU's own way, on the same stopped VM in turn: `./x bench pageops` runs this.
#[test]
#[ignore = "a benchmark; ./x bench pageops"]
fn against_qemus_own_migration() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut missed = false;
    let mut must = |what: &str, ratio: f64, limit: f64| {
        let verdict = if ratio <= limit { "ok" } else { "MISSED" };
        missed |= ratio > limit;
        println!("{what:<58} {ratio:>8.3}  (<= {limit:.3}) {verdict}");
    };
    for (which, more, processor, bytes) in
        [("idle", "", 1.0 / 3.0, 1.0), ("random", "fill=880", 1.03, 1.03)]
    {
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        let mut rounds = Vec::new();
        // A fresh guest each time, and ours first: QEMU's way reads the holes of the memory, and so fills them.
        for _ in 0..3 {
            let guest = Guest::start(dir.path(), which, "1G", more, false);
            guest.counted(3);
            let round = (by_vmtax(&guest, &ours), by_qemu(&guest, &theirs));
            println!("{which} guest of 1 GiB: vmtax {:?}, QEMU {:?}", round.0, round.1);
            rounds.push(round);
        }
        let median = |value: &dyn Fn(&(Cost, Cost)) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let what = |what: &str| format!("{which}: {what}, vmtax / QEMU");
        must(&what("processor time"), median(&|(a, b)| a.processor / b.processor), processor);
        must(&what("bytes"), median(&|(a, b)| a.bytes / b.bytes), bytes);
        println!(
            "{which}: wall time, vmtax (synced) / QEMU (not synced) {:.2}",
            median(&|(a, b)| a.wall / b.wall)
        );
    }
    assert!(!missed);
}
