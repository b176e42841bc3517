//! kill -9 at any moment of saving and restoring: what is found afterwards is the old or the new, whole.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use vmtax_machine::vm::STOPPED;
use vmtax_pageops::checkpoint::{Checkpoint, RestoreTarget};

use super::clients::{CHECK, MEMORY, TRIES, freeze, holds_one_moment};
use super::guest::{Monitor, RunningGuest, check, qmp};
use super::{ended, image, name, ok, signal, start};

struct KilledMemory(Vec<u8>);

impl RestoreTarget for KilledMemory {
    fn clear(&mut self, _: usize, bytes: u64) -> io::Result<()> {
        self.0 = vec![0; bytes as usize];
        Ok(())
    }
    fn write(&mut self, _: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// The memory in a checkpoint; it must verify.
fn content(path: &Path) -> Vec<u8> {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("after a kill: {e}"));
    let mut memory = KilledMemory(Vec::new());
    checkpoint.restore(&mut memory, &mut |_| {}).unwrap_or_else(|e| panic!("after a kill: {e}"));
    memory.0
}

/// Moments at random, other ones every time; the seed is printed.
pub(super) struct Moments(u64);

impl Moments {
    #[expect(clippy::print_stdout, reason = "what is needed to repeat a failure")]
    pub(super) fn new() -> Moments {
        let seed =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
                as u64;
        println!("seed {seed}");
        Moments(seed | 1)
    }

    pub(super) fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % limit.as_nanos().max(1) as u64)
    }
}

/// How long a command may take before it is killed, at random. Other work on the computer comes and goes, so the longest time follows
/// what is found: some are to be killed, and some to end by themselves.
struct KillWindow(Duration);

impl KillWindow {
    fn new(args: &[&str]) -> KillWindow {
        KillWindow(duration(args).mul_f64(1.3))
    }

    /// Starts the command and kills it at a moment in the window. True if it had ended by itself.
    fn kill(&mut self, args: &[&str], moments: &mut Moments) -> bool {
        let ended = killed_after(args, moments.below(self.0));
        self.0 = self.0.mul_f64(if ended { 0.8 } else { 1.1 });
        ended
    }
}

/// Starts the command and kills it after a time. True if it had ended by itself.
fn killed_after(args: &[&str], time: Duration) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    let mut child =
        command.arg("mem").args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(time);
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let (status, error) = (output.status, String::from_utf8_lossy(&output.stderr));
    assert!(
        status.success() || status.signal() == Some(9),
        "{args:?} failed by itself: {status}: {error}"
    );
    status.success()
}

/// The duration without interference.
fn duration(args: &[&str]) -> Duration {
    let mut times: Vec<Duration> = (0..3)
        .map(|_| {
            let start = Instant::now();
            ok(args);
            start.elapsed()
        })
        .collect();
    times.sort();
    times[1]
}

const PAGES: usize = 6144;
/// Rounds after which it must have been killed and have ended by itself.
const MANY: usize = 1000;

/// Kills these commands in turn. What is found after each is what was there before, or what it writes: of `contents` the one with
/// its number.
fn kills(ways: &[Vec<&str>], contents: &[&[u8]], found: impl Fn() -> Vec<u8>) {
    let mut windows: Vec<KillWindow> = ways.iter().map(|args| KillWindow::new(args)).collect();
    ok(&ways[0]);
    let mut held = 0;
    let mut moments = Moments::new();
    let (mut cut, mut ended) = (0, 0);
    let mut round = 0;
    while round < 110 || ((cut < 20 || ended < 5) && round < MANY) {
        let way = round % ways.len();
        round += 1;
        if windows[way].kill(&ways[way], &mut moments) {
            ended += 1
        } else {
            cut += 1
        }
        let found = found();
        let now = contents.iter().position(|content| *content == found);
        assert!(
            now == Some(held) || now == Some(way),
            "round {round}: neither the old nor the new"
        );
        held = now.unwrap();
    }
    assert!(cut >= 20 && ended >= 5, "{cut} cut, {ended} ended by themselves");
}

#[test]
fn a_killed_save_leaves_the_old_checkpoint_or_the_new_one() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let states = [image(PAGES, 1), image(PAGES, 2)];
    let mut close = states[0].clone();
    close.iter_mut().step_by(9000).for_each(|b| *b ^= 1);
    fs::write(path("0.img"), &states[0]).unwrap();
    fs::write(path("1.img"), &states[1]).unwrap();
    fs::write(path("2.img"), &close).unwrap();
    let (base, target) = (path("base.ckpt"), path("x.ckpt"));
    ok(&["save", "--image", name(&path("0.img")), "-o", name(&base)]);
    ok(&["save", "--image", name(&path("0.img")), "-o", name(&target)]);
    let images = [path("0.img"), path("1.img"), path("2.img")];
    let ways: Vec<Vec<&str>> = (0..3)
        .map(|i| {
            let mut args = vec!["save", "--image", name(&images[i]), "-o", name(&target)];
            match i {
                1 => args.push("--zstd"),
                2 => args.extend(["--parent", name(&base)]),
                _ => {}
            }
            args
        })
        .collect();
    let contents = [&states[0][..], &states[1], &close];
    kills(&ways, &contents, || content(&target));
    // No half file under any name: at most the one moment between two names.
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap().path();
        let known = [&images[0], &images[1], &images[2], &base, &target];
        if !known.contains(&&entry) {
            let left = entry.file_name().unwrap().to_str().unwrap();
            assert!(left.starts_with(".x.ckpt.") && left.ends_with(".tmp"), "{left}");
            content(&entry);
        }
    }
    ok(&ways[0].clone());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
}

#[test]
fn a_killed_restore_leaves_the_old_image_or_the_new_one() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let states = [image(PAGES, 3), image(PAGES, 4)];
    let checkpoints = [path("0.ckpt"), path("1.ckpt")];
    for (state, checkpoint) in states.iter().zip(&checkpoints) {
        fs::write(path("now.img"), state).unwrap();
        ok(&["save", "--image", name(&path("now.img")), "-o", name(checkpoint)]);
    }
    let target = path("now.img");
    let ways: Vec<Vec<&str>> =
        checkpoints.iter().map(|c| vec!["restore", name(c), "--image", name(&target)]).collect();
    kills(&ways, &[&states[0][..], &states[1]], || fs::read(&target).unwrap());
}

/// Kills of each test of a VM: a few, or as many as `./x bench kills` asks for.
fn rounds() -> usize {
    std::env::var("VMTAX_KILLS").map_or(5, |rounds| rounds.parse().unwrap())
}

/// Puts a checkpoint into a new QEMU, which must go on counting as the saved one did.
fn goes_on(folder: &Path, checkpoint: &Path) {
    let guest = RunningGuest::start(folder, "again", "128M", "", true);
    ok(&["restore", name(checkpoint), "--qmp", name(&guest.qmp)]);
    check(&guest.counted(2));
}

#[test]
fn a_killed_save_of_a_vm_leaves_the_old_checkpoint_or_the_new_one() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let guest = RunningGuest::start(dir.path(), "killed", "128M", "", false);
    guest.counted(3);
    let (base, target) = (path("base.ckpt"), path("x.ckpt"));
    let socket = guest.qmp.clone();
    let save = ["save", "--qmp", name(&socket), "-o"];
    ok(&[&save[..], &[name(&base)]].concat());
    let to_target = [&save[..], &[name(&target)]].concat();
    let ways = [
        to_target.clone(),
        [&to_target[..], &["--live"]].concat(),
        [&to_target[..], &["--zstd"]].concat(),
        [&to_target[..], &["--live", "--parent", name(&base)]].concat(),
        [&to_target[..], &["--parent", name(&base)]].concat(),
    ];
    let mut windows: Vec<KillWindow> = ways.iter().map(|args| KillWindow::new(args)).collect();
    let id = || Checkpoint::open(&target).unwrap_or_else(|e| panic!("after a kill: {e}")).id();
    let mut held = id();
    let mut moments = Moments::new();
    let (mut tries, mut cut, mut replaced) = (0, 0, 0);
    let rounds = rounds();
    while cut < rounds && tries < 100 * rounds {
        let way = tries % ways.len();
        tries += 1;
        if !windows[way].kill(&ways[way], &mut moments) {
            cut += 1;
        }
        ok(&["verify", name(&target)]);
        if id() != held {
            // A new one must be the whole machine. One that was there before has been tried.
            held = id();
            replaced += 1;
            goes_on(dir.path(), &target);
        }
        // The save's guard resumes the VM if it was stopped.
        let before = guest.counts().len();
        guest.counted(before + 1);
    }
    check(&guest.counts());
    println!("{tries} saves of a VM: {cut} killed, {replaced} new checkpoints, all verified");
    assert!(cut == rounds, "only {cut} of {tries} were killed before they had ended");
    // After all that it can be saved as if nothing had been.
    ok(&ways[0]);
    goes_on(dir.path(), &target);
}

/// Whether a later migration of the VM would leave out shared memory.
fn ignores_shared(monitor: &mut Monitor) -> bool {
    let all = monitor.run("query-migrate-capabilities", json!({}));
    let all = all.as_array().unwrap();
    all.iter().find(|one| one["capability"] == "x-ignore-shared").unwrap()["state"] == true
}

/// A save that is killed while the VM stands still does not leave it so, unless that was asked for.
#[test]
fn a_save_killed_in_its_pause_leaves_the_vm_running() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dir.path().join("x.ckpt");
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(1);
    let mut monitor = guest.monitor();
    for way in [&[][..], &["--live"], &["--zstd"], &["--stopped"]].repeat(3) {
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < TRIES, "{TRIES} saves were over before they could be killed");
            monitor.forget();
            let save = ["save", "--qmp", name(&guest.qmp), "-o", name(&output)];
            let mut child = start(&[&save[..], way].concat());
            monitor.wait("STOP");
            // At other moments: while the device state is saved, or the memory.
            std::thread::sleep(Duration::from_millis(tries as u64 % 5 * 4));
            child.kill().unwrap();
            // The guard has the same standard error, so this ends when the guard has.
            let killed = child.wait_with_output().unwrap();
            let said = String::from_utf8(killed.stderr).unwrap();
            if way == ["--stopped"] {
                assert_eq!(said, "");
                assert_ne!(monitor.status(), "running");
                monitor.resume();
            }
            assert_eq!(monitor.status(), "running", "{said}");
            let is_killed = killed.status.signal() == Some(9);
            if is_killed && (way == ["--stopped"] || said.contains("; the VM goes on")) {
                break;
            }
        }
        guest.passed(1);
    }
    assert!(!ignores_shared(&mut monitor));
    ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&output)]);
    holds_one_moment(dir.path(), &output);
}

/// A save that is stopped while the VM stands still goes on by itself.
#[test]
fn a_save_stopped_in_its_pause_is_continued() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dir.path().join("x.ckpt");
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(1);
    let mut monitor = guest.monitor();
    for way in [&[][..], &["--live"]] {
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < TRIES, "{TRIES} saves were over before they could be stopped");
            monitor.forget();
            let save = ["save", "--qmp", name(&guest.qmp), "-o", name(&output)];
            let child = start(&[&save[..], way].concat());
            monitor.wait("STOP");
            let stopped = Instant::now();
            let in_time = freeze(&child) && !monitor.has_seen("RESUME");
            if !in_time {
                signal(&child, Signal::CONT);
            }
            let (code, said) = ended(child);
            assert_eq!(code, 0, "{said}");
            if in_time {
                // By its guard, which is ended with the save, and may not have come so far as to say it.
                assert!(stopped.elapsed() >= STOPPED, "who has continued it? {said}");
                if said.contains("the save was stopped for 10s") {
                    break;
                }
            }
        }
        assert_eq!(monitor.status(), "running");
        holds_one_moment(dir.path(), &output);
    }
}

#[test]
fn a_killed_restore_never_runs_a_vm_with_wrong_memory() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let (base, child) = (path("base.ckpt"), path("child.ckpt"));
    {
        let guest = RunningGuest::start(dir.path(), "saved", "128M", "", false);
        guest.counted(3);
        ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&base)]);
        guest.counted(guest.counts().len() + 2);
        ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&child), "--parent", name(&base)]);
    }
    let restore = |guest: &RunningGuest| {
        vec![
            "restore".to_owned(),
            name(&child).to_owned(),
            "--qmp".to_owned(),
            name(&guest.qmp).to_owned(),
        ]
    };
    let undisturbed = || {
        let guest = RunningGuest::start(dir.path(), "again", "128M", "", true);
        let args = restore(&guest);
        let start = Instant::now();
        ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
        start.elapsed()
    };
    let mut window = KillWindow(undisturbed().mul_f64(1.3));
    let mut moments = Moments::new();
    let (mut tries, mut cut, mut complete) = (0, 0, 0);
    let rounds = rounds();
    while cut < rounds && tries < 100 * rounds {
        tries += 1;
        let mut guest = RunningGuest::start(dir.path(), "again", "128M", "", true);
        let args = restore(&guest);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if !window.kill(&args, &mut moments) {
            cut += 1;
        }
        // It waits on, or has gone because its state ended early, or has all it needs.
        let status = guest.status();
        if matches!(status.as_deref(), Some("running" | "paused")) {
            complete += 1;
            qmp(&guest.qmp, &["{\"execute\":\"cont\"}"]);
            check(&guest.counted(2));
        } else {
            assert!(
                matches!(status.as_deref(), None | Some("inmigrate")),
                "restore {tries}: {status:?}"
            );
            guest.kill();
        }
    }
    println!("{tries} restores of a VM: {cut} killed, {complete} complete, all of these right");
    assert!(cut == rounds, "only {cut} of {tries} were killed before they had ended");
    ok(&["verify", name(&child)]);
    goes_on(dir.path(), &child);
}
