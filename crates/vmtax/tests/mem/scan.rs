//! Scans see what is there and touch nothing.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use serde_json::Value;

use super::guest::RunningGuest;
use super::{image, name, ok};

const PAGE: u64 = 4096;

fn scan(args: &[&str]) -> Value {
    let mut all = vec!["scan", "--format", "json"];
    all.extend(args);
    serde_json::from_str(&ok(&all)).unwrap()
}

#[test]
fn an_image_is_told_apart() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("ram.img");
    let file = File::create(&path).unwrap();
    file.set_len(100_000 * PAGE).unwrap();
    let noise = image(64, 9);
    // 64 pages with 16 zero ones, twice; 10 filled ones; 5 zero ones.
    file.write_all_at(&noise, 10 * PAGE).unwrap();
    file.write_all_at(&noise, 5000 * PAGE).unwrap();
    file.write_all_at(&[0xab; 10 * PAGE as usize], 70_000 * PAGE).unwrap();
    file.write_all_at(&[0; 5 * PAGE as usize], 99_995 * PAGE).unwrap();
    let before = fs::metadata(&path).unwrap().blocks();
    for accel in ["cpu", "auto", "model"] {
        let found = scan(&[name(&path), "--accel", accel]);
        let pages = &found["pages"];
        assert_eq!(pages["all"], 100_000, "{accel}");
        assert_eq!(pages["touched"], 64 + 64 + 10 + 5, "{accel}");
        assert_eq!(pages["zero"], 16 + 16 + 5, "{accel}");
        assert_eq!(pages["filled"], 10, "{accel}");
        assert_eq!(pages["duplicate"], 48, "{accel}");
        let estimate = &found["estimate"]["checkpoint_bytes"];
        assert_eq!(estimate, &Value::from((96 * (PAGE + 4)) + 10 * 12), "{accel}");
    }
    assert_eq!(fs::metadata(&path).unwrap().blocks(), before, "the scan allocated memory");
    // Saving does not either, and makes as much as was said.
    let checkpoint = dir.path().join("ram.ckpt");
    ok(&["save", "--image", name(&path), "-o", name(&checkpoint)]);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), before, "saving allocated memory");
    let saved = fs::metadata(&checkpoint).unwrap().len() as f64;
    let said = (96 * (PAGE + 4) + 120) as f64;
    assert!((saved / said - 1.0).abs() < 0.05, "{saved} and not {said}");
    let text = ok(&["scan", name(&path)]);
    assert!(text.contains("never touched (holes)") && text.contains("at 10 Gb/s"), "{text}");
}

#[test]
fn a_vm_is_scanned_while_it_runs_and_no_memory_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", "256M", "", false);
    guest.counted(3);
    // Stopped, so that its own memory use does not change.
    use std::io::{BufRead, Write};
    let stream = std::os::unix::net::UnixStream::connect(&guest.qmp).unwrap();
    let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
    lines.next();
    (&stream).write_all(b"{\"execute\":\"qmp_capabilities\"}{\"execute\":\"stop\"}\n").unwrap();
    while !lines.next().unwrap().unwrap().contains("STOP") {}
    let pid = guest.pid().to_string();
    let memory = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|fd| fs::read_link(fd).is_ok_and(|to| to.starts_with("/dev/shm")))
        .unwrap();
    let before = fs::metadata(&memory).unwrap().blocks();
    assert!(before * 512 < 250 << 20, "the guest has touched everything already");
    let found = scan(&[&pid, "--dirty", "300ms"]);
    assert_eq!(fs::metadata(&memory).unwrap().blocks(), before, "the scan allocated memory");
    assert_eq!(found["pages"]["all"], 65536);
    assert_eq!(found["pages"]["touched"], before / 8);
    assert!(found["pages"]["zero"].as_u64().unwrap() > 0);
    assert_eq!(found["dirty"]["pages_per_second"], 0.0);
    (&stream).write_all(b"{\"execute\":\"cont\"}\n").unwrap();
    while !lines.next().unwrap().unwrap().contains("RESUME") {}
    // It may stand still for as long as a scan looks at it.
    let mut rates = (0..60).map(|_| {
        let found = scan(&[&pid, "--dirty", "1s"]);
        found["dirty"]["pages_per_second"].as_f64().unwrap()
    });
    assert!(rates.any(|rate| rate > 1.0), "it runs and writes nothing");
}

/// Private memory of a process is read where it is populated and nowhere else.
#[test]
fn private_memory_is_not_populated() {
    // It ends with this test, however that ends: its input is closed then.
    let script = "import mmap, sys\nm = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                  for i in range(0, 256): m[i * 65536] = 1 + i % 200\nprint('ready', flush=True)\nsys.stdin.read()";
    let Ok(mut child) = std::process::Command::new("python3")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
    else {
        return vmtax_skipped::package("python3");
    };
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    // Of that mapping alone: the program goes on, and what it does then takes memory of its own.
    let resident = |pid: u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let kib = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        let mut lines = maps.lines();
        lines.find(|line| line.starts_with("Size:") && kib(line) >= 64 << 10).unwrap();
        kib(lines.find(|line| line.starts_with("Rss:")).unwrap())
    };
    let before = resident(child.id());
    let output = super::mem(&["scan", &child.id().to_string(), "--format", "json"]);
    let after = resident(child.id());
    // Waiting closes its input first.
    assert!(child.wait().unwrap().success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("PAGEMAP_SCAN") {
        return vmtax_skipped::system(&error);
    }
    assert!(output.status.success(), "{error}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["pages"]["all"], 16384);
    let why = found["memory"][0]["why"].as_str().unwrap();
    assert!(why.contains("the largest private mapping"), "{why}");
    assert_eq!(found["pages"]["touched"], 256);
    assert!(before >= 1024, "256 pages were touched: {before} KiB");
    assert_eq!(after, before, "KiB of the mapping after and before");
}

/// A stopped QEMU with TCG, which translates into a buffer of up to 1 GiB, and what it was given as memory.
struct StoppedQemu(std::process::Child);

impl Drop for StoppedQemu {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl StoppedQemu {
    fn start(dir: &std::path::Path, words: &str) -> StoppedQemu {
        let socket = dir.join("qmp");
        let _ = fs::remove_file(&socket);
        let child = std::process::Command::new("qemu-system-x86_64")
            .args(["-display", "none", "-S", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .args(words.split(' '))
            .current_dir(dir)
            .stdin(std::process::Stdio::null())
            .spawn()
            .expect("qemu-system-x86_64");
        let mut emulator = StoppedQemu(child);
        // It answers when its machine is made.
        let start = std::time::Instant::now();
        loop {
            assert!(emulator.0.try_wait().unwrap().is_none(), "QEMU ended: {words}");
            assert!(start.elapsed() < super::guest::PATIENCE, "QEMU does not answer: {words}");
            let command = "{\"execute\":\"query-status\"}";
            if socket.exists() && std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                super::guest::qmp(&socket, &[command]);
                return emulator;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn translated_code_is_no_memory_of_a_vm() {
    const M: u64 = 1 << 20;
    let cases: &[(&str, &[(u64, &str)])] = &[
        ("-accel tcg -m 64", &[(64 * M, "as large as -m 64 says")]),
        ("-accel tcg,split-wx=on -m 64", &[(64 * M, "as large as -m 64 says")]),
        ("-accel tcg -m 2G", &[(2048 * M, "as large as -m 2G says")]),
        // The default, and larger than the screen's memory.
        ("-accel tcg", &[(128 * M, "as large as the default of -m says")]),
        (
            "-accel tcg,split-wx=on -m 96 -object memory-backend-memfd,id=r,size=96M,share=on -machine pc,memory-backend=r",
            &[(96 * M, "/memfd:memory-backend-memfd")],
        ),
        (
            "-accel tcg,split-wx=on -m 96 -object memory-backend-ram,id=r,size=96M,share=on -machine pc,memory-backend=r",
            &[(96 * M, "as large as -object r says")],
        ),
        ("-accel tcg -m 64 -mem-path .", &[(64 * M, "private memory over ")]),
        (
            "-accel tcg -m 192 -object memory-backend-ram,id=a,size=64M -object memory-backend-file,id=b,size=128M,mem-path=b.ram,share=on -numa node,memdev=a -numa node,memdev=b",
            &[(64 * M, "as large as -object a says"), (128 * M, "b.ram at ")],
        ),
    ];
    for (words, expected) in cases {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let emulator = StoppedQemu::start(dir.path(), words);
        let output = super::mem(&["scan", &emulator.0.id().to_string(), "--format", "json"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if error.contains("PAGEMAP_SCAN") {
            return vmtax_skipped::system(&error);
        }
        assert!(output.status.success(), "{words}: {error}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let memory = found["memory"].as_array().unwrap();
        assert_eq!(memory.len(), expected.len(), "{words}: {memory:?}");
        for (block, (bytes, why)) in memory.iter().zip(*expected) {
            assert_eq!(block["bytes"], *bytes, "{words}: {memory:?}");
            assert!(block["why"].as_str().unwrap().contains(why), "{words}: {memory:?}");
        }
        let all: u64 = expected.iter().map(|block| block.0).sum();
        assert_eq!(found["pages"]["all"], all / PAGE, "{words}");
        let text = ok(&["scan", &emulator.0.id().to_string()]);
        assert!(text.contains(expected[0].1), "{words}: {text}");
    }
}
