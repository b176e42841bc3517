//! What a save costs, against QEMU's own way and a plain copy of the same stopped VM in turn: `./x bench pageops`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::guest::{RunningGuest, qmp};
use super::{mem, name};

/// Of guests that must be booted anew, and of one that serves all rounds.
const BOOTS: usize = 3;
const ROUNDS: usize = 7;

/// Processor time of a process and the children it has waited for, seconds.
fn processor_time(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = &stat[stat.rfind(')').unwrap() + 2..];
    let ticks: f64 = after.split(' ').skip(11).take(4).map(|w| w.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// Of one save: processor time of all who take part, wall time, bytes.
#[derive(Clone, Copy, Debug)]
struct SaveCost {
    processor: f64,
    wall: f64,
    bytes: f64,
}

/// Removes earlier output and waits for the disk, so that no measurement includes writes of another.
fn clear(output: &Path) {
    if output.exists() {
        fs::remove_file(output).unwrap();
    }
    assert!(Command::new("sync").status().unwrap().success());
}

fn by_vmtax(guest: &RunningGuest, output: &Path, more: &[&str]) -> SaveCost {
    clear(output);
    // Stopped, or the guest's own work would be counted.
    qmp(&guest.qmp, &["{\"execute\":\"stop\"}"]);
    let (qemu, own) = (processor_time(guest.pid()), processor_time(std::process::id()));
    let start = Instant::now();
    let save = ["save", "--qmp", name(&guest.qmp), "-o", name(output)];
    let done = mem(&[&save[..], more].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let wall = start.elapsed().as_secs_f64();
    // Our own time is small: it waits.
    let processor = processor_time(guest.pid()) - qemu + processor_time(std::process::id()) - own;
    qmp(&guest.qmp, &["{\"execute\":\"cont\"}"]);
    SaveCost { processor, wall, bytes: fs::metadata(output).unwrap().len() as f64 }
}

fn by_qemu(guest: &RunningGuest, output: &Path) -> SaveCost {
    clear(output);
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
    SaveCost { processor, wall, bytes: fs::metadata(output).unwrap().len() as f64 }
}

/// `cp` of the memory's file, and what it left synced.
fn by_copy(guest: &RunningGuest, output: &Path) -> SaveCost {
    clear(output);
    qmp(&guest.qmp, &["{\"execute\":\"stop\"}"]);
    let memory = memory_file(guest.pid());
    let own = processor_time(std::process::id());
    let start = Instant::now();
    let copied = Command::new("cp").arg("--sparse=never").args([&memory, output]).status();
    assert!(copied.unwrap().success());
    fs::File::open(output).unwrap().sync_all().unwrap();
    let wall = start.elapsed().as_secs_f64();
    let processor = processor_time(std::process::id()) - own;
    qmp(&guest.qmp, &["{\"execute\":\"cont\"}"]);
    SaveCost { processor, wall, bytes: fs::metadata(output).unwrap().len() as f64 }
}

/// The file in which a guest has its memory.
fn memory_file(pid: u32) -> PathBuf {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().map(|e| e.path());
    let is_memory =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link.starts_with("/dev/shm"));
    open.filter(is_memory).max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

/// Lines of ratios, each with what it must not exceed.
#[derive(Default)]
struct Verdicts {
    missed: bool,
}

impl Verdicts {
    #[expect(clippy::print_stdout, reason = "the figures of ./x bench pageops")]
    fn must(&mut self, what: &str, ratio: f64, limit: f64) {
        let verdict = if ratio <= limit { "ok" } else { "MISSED" };
        self.missed |= ratio > limit;
        println!("{what:<58} {ratio:>8.3}  (<= {limit:.3}) {verdict}");
    }
}

/// The median over the rounds of a ratio within a round.
fn ratio(rounds: &[(SaveCost, SaveCost)], value: impl Fn(&SaveCost) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|(a, b)| value(a) / value(b)).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a benchmark; ./x bench pageops"]
fn against_qemu_an_idle_guest() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let mut rounds = Vec::new();
    // A fresh guest each time, and vmtax first: QEMU's way reads the holes of the memory, and so fills them.
    for _ in 0..BOOTS {
        let guest = RunningGuest::start(dir.path(), "idle", "1G", "", false);
        guest.counted(3);
        let round = (by_vmtax(&guest, &ours, &[]), by_qemu(&guest, &theirs));
        println!("idle guest of 1 GiB: vmtax {:?}, QEMU {:?}", round.0, round.1);
        rounds.push(round);
    }
    let mut verdicts = Verdicts::default();
    let processor = ratio(&rounds, |c| c.processor);
    verdicts.must("idle: processor time, vmtax / QEMU", processor, 1.0 / 3.0);
    verdicts.must("idle: bytes, vmtax / QEMU", ratio(&rounds, |c| c.bytes), 1.0);
    println!(
        "idle: wall time, vmtax (synced) / QEMU (not synced) {:.2}",
        ratio(&rounds, |c| c.wall)
    );
    assert!(!verdicts.missed);
}

/// A guest that has written noise all over its memory, as much as Linux leaves it: nothing to gain, and next to nothing may be lost.
#[test]
#[ignore = "a benchmark; ./x bench pageops"]
fn against_qemu_and_cp_a_random_guest() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dir.path().join("output");
    let guest = RunningGuest::start(dir.path(), "random", "1G", "fill=840", false);
    guest.until(|| guest.text().contains("filled"));
    let (mut qemus, mut copies, mut tried) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let ours = by_vmtax(&guest, &output, &[]);
        let zstd = by_vmtax(&guest, &output, &["--zstd"]);
        let (qemu, copy) = (by_qemu(&guest, &output), by_copy(&guest, &output));
        println!(
            "random guest of 1 GiB: vmtax {ours:?}, --zstd {zstd:?}, QEMU {qemu:?}, cp {copy:?}"
        );
        qemus.push((ours, qemu));
        copies.push((ours, copy));
        tried.push((zstd, copy));
    }
    let mut verdicts = Verdicts::default();
    verdicts.must("random: processor time, vmtax / QEMU", ratio(&qemus, |c| c.processor), 1.03);
    verdicts.must("random: bytes, vmtax / QEMU", ratio(&qemus, |c| c.bytes), 1.03);
    // The VM is stopped for the whole time: both are on the disk when it continues.
    for (who, rounds) in [("vmtax", &copies), ("vmtax --zstd", &tried)] {
        let wall = ratio(rounds, |c| c.wall);
        verdicts.must(&format!("random: wall time, synced, {who} / cp"), wall, 1.03);
        verdicts.must(&format!("random: bytes, {who} / cp"), ratio(rounds, |c| c.bytes), 1.03);
        println!("random: processor time, {who} / cp {:.2}", ratio(rounds, |c| c.processor));
    }
    assert!(!verdicts.missed);
}

/// A pause in seconds, and the whole time of the save.
#[derive(Clone, Copy, Debug)]
struct PauseAndTotal {
    pause: f64,
    /// Of it, comparing memory.
    scan: f64,
    wall: f64,
    processor: f64,
}

/// A save of a VM that runs.
fn live_by_vmtax(guest: &RunningGuest, output: &Path, more: &[&str]) -> PauseAndTotal {
    clear(output);
    let save = ["save", "--qmp", name(&guest.qmp), "--format", "json", "-o", name(output)];
    let done = mem(&[&save[..], more].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let saved: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let number = |path: &str| saved.pointer(path).unwrap().as_f64().unwrap();
    PauseAndTotal {
        pause: number("/pause/seconds"),
        scan: number("/pause/compare_seconds"),
        wall: number("/seconds"),
        processor: number("/cpu_seconds"),
    }
}

/// QEMU's own migration of a VM that runs, to a file: its downtime.
fn live_by_qemu(guest: &RunningGuest, output: &Path) -> PauseAndTotal {
    clear(output);
    let qemu = processor_time(guest.pid());
    let speed =
        "{\"execute\":\"migrate-set-parameters\",\"arguments\":{\"max-bandwidth\":100000000000}}";
    let uri = format!("exec:cat > {}", output.display());
    let migrate = format!("{{\"execute\":\"migrate\",\"arguments\":{{\"uri\":\"{uri}\"}}}}");
    qmp(&guest.qmp, &[speed, &migrate]);
    loop {
        let status = qmp(&guest.qmp, &["{\"execute\":\"query-migrate\"}"]);
        match status["status"].as_str() {
            Some("completed") => {
                let seconds = |key: &str| status[key].as_f64().unwrap() / 1e3;
                let (pause, wall) = (seconds("downtime"), seconds("total-time"));
                // The guest's own work is in it.
                let processor = processor_time(guest.pid()) - qemu;
                qmp(&guest.qmp, &["{\"execute\":\"cont\"}"]);
                return PauseAndTotal { pause, scan: 0.0, wall, processor };
            }
            Some("failed" | "cancelled") => panic!("{status}"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long VMs stand still: an idle one, and one that writes 100 MB/s, each with 840 MiB of noise.
#[test]
#[ignore = "a benchmark; ./x bench pageops"]
fn against_qemu_pauses() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dir.path().join("output");
    let mut verdicts = Verdicts::default();
    for (what, arguments, limit) in
        [("idle", "fill=840", None), ("100 MB/s", "fill=560 rate=100", Some(0.150))]
    {
        let guest = RunningGuest::start(dir.path(), "live", "1G", arguments, false);
        guest.until(|| guest.text().contains("filled"));
        guest.until(|| limit.is_none() || guest.text().contains("wrote 3"));
        let (mut live, mut stopped, mut qemu) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            live.push(live_by_vmtax(&guest, &output, &["--live"]));
            stopped.push(live_by_vmtax(&guest, &output, &[]));
            qemu.push(live_by_qemu(&guest, &output));
        }
        for (who, rounds) in [("save --live", &live), ("save", &stopped), ("QEMU migrate", &qemu)] {
            let ms =
                |value: fn(&PauseAndTotal) -> f64| median(rounds.iter().map(value).collect()) * 1e3;
            println!(
                "{what}: {who:<12} pause {:>6.0} ms, whole {:>6.0} ms, processor {:>6.0} ms",
                ms(|p| p.pause),
                ms(|p| p.wall),
                ms(|p| p.processor)
            );
        }
        let pause = median(live.iter().map(|p| p.pause).collect());
        match limit {
            Some(limit) => {
                verdicts.must(&format!("{what}: pause of --live, seconds"), pause, limit)
            }
            None => {
                let rest = median(live.iter().map(|p| p.pause - p.scan).collect());
                verdicts.must(
                    &format!("{what}: pause of --live but one scan, seconds"),
                    rest,
                    0.050,
                );
            }
        }
    }
    assert!(!verdicts.missed);
}

/// Cycles of QEMU's save_snapshot and of buffer_is_zero in it, as the seed of this command published them (QEMU's list, 2023): GB, and both.
const PUBLISHED: [(u32, u64, u64); 3] = [
    (64, 19_449_838_924, 5_022_504_892),
    (128, 36_966_951_760, 10_049_561_066),
    (256, 72_744_615_676, 20_042_076_440),
];

/// Bytes that a file system or the memory has free.
fn free(folder: &Path) -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let memory = line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10;
    let disk = rustix::fs::statvfs(folder).unwrap();
    (memory, disk.f_bavail * disk.f_frsize)
}

/// The share of zero checks in a save: as published, and of VMs here, idle (next to nothing of their memory in use) and full of noise.
#[test]
#[ignore = "a benchmark; ./x bench pageops"]
fn against_published_shares_of_the_zero_check() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dir.path().join("output");
    println!("published: QEMU save_snapshot, and buffer_is_zero in it, cycles (Xeon 8457C)");
    for (gb, all, zero) in PUBLISHED {
        println!("  {gb:>4} GB {all:>14} {zero:>14} {:>6.1} %", zero as f64 * 100.0 / all as f64);
    }
    println!("here: vmtax mem save, and its zero check; median of 3");
    for gib in [1u64, 4, 16] {
        for (what, used) in [("idle", 400u64 << 20), ("noise", (gib << 30) / 100 * 82)] {
            let (memory, disk) = free(dir.path());
            // The checkpoint is in the system's cache besides the memory itself.
            if 3 * used > memory || 2 * used > disk {
                let (memory, disk) = (memory >> 20, disk >> 20);
                println!(
                    "  {gib:>4} GiB {what}: not measured: {memory} MiB of memory and {disk} MiB of disk are free"
                );
                continue;
            }
            let fill = if what == "idle" { String::new() } else { format!("fill={}", used >> 20) };
            let guest = RunningGuest::start(dir.path(), "shares", &format!("{gib}G"), &fill, false);
            guest.until(|| {
                guest.text().contains(if fill.is_empty() { "count 3" } else { "filled" })
            });
            let mut rounds = Vec::new();
            for live in [&[][..], &["--live"]].repeat(3) {
                clear(&output);
                let save =
                    ["save", "--qmp", name(&guest.qmp), "--format", "json", "-o", name(&output)];
                let done = mem(&[&save[..], live].concat());
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                let saved: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
                rounds.push((live.len(), saved));
            }
            for (live, way) in ["save", "save --live"].into_iter().enumerate() {
                let of = |path: &str| {
                    let rounds = rounds.iter().filter(|(way, _)| *way == live);
                    median(
                        rounds
                            .map(|(_, saved)| {
                                saved.pointer(path).unwrap().as_f64().unwrap_or(f64::NAN)
                            })
                            .collect(),
                    )
                };
                println!(
                    "  {gib:>4} GiB {what:<5} {way:<11} processor {:>6.0} ms, zero check {:>4.1} %, whole {:>6.0} ms, pause {:>6.0} ms",
                    of("/cpu_seconds") * 1e3,
                    of("/zero_check_share_of_processor_time") * 100.0,
                    of("/seconds") * 1e3,
                    of("/pause/seconds") * 1e3,
                );
            }
        }
    }
}
