//! Another client controls the same QEMU: a checkpoint without an error is of one moment.
//!
//! The guest writes all of 32 MiB over and over and looks at every word before it writes it, so a checkpoint of two moments
//! has bad words.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use vmtax_pageops::checkpoint::Checkpoint;

use super::guest::{Monitor, PATIENCE, RunningGuest};
use super::{ended, name, ok, signal, start};

pub(super) const MEMORY: &str = "128M";
pub(super) const CHECK: &str = "check=32";

/// Holds a program where it is, and gives false if it has ended.
pub(super) fn freeze(child: &Child) -> bool {
    signal(child, Signal::STOP);
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
    };
    let began = std::time::Instant::now();
    loop {
        match state(child.id()) {
            'T' | 't' => return true,
            'Z' => return false,
            state => assert!(began.elapsed() < PATIENCE, "SIGSTOP and in state {state}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Names and ids of all in a folder but sockets and consoles.
pub(super) fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    use std::os::unix::fs::MetadataExt;
    let kept = |path: &PathBuf| path.extension().is_some_and(|e| e == "ckpt" || e == "part");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(kept);
    let mut files: Vec<_> = entries.map(|p| (p.clone(), p.metadata().unwrap().ino())).collect();
    files.sort();
    files
}

/// Tries of what is to happen at a moment of a save or restore, which on a busy computer is over in most of them.
pub(super) const TRIES: usize = 200;

/// Whether a save that was held said one thing, without what its guard says if that took long.
pub(super) fn is_one_sentence(said: &str) -> bool {
    said.lines().filter(|line| !line.contains("the save was stopped for 10s")).count() == 1
}

/// Puts a checkpoint into a new QEMU, whose guest must find no bad word in two whole passes.
pub(super) fn holds_one_moment(folder: &Path, checkpoint: &Path) {
    ok(&["verify", name(checkpoint)]);
    let guest = RunningGuest::start(folder, "again", MEMORY, "", true);
    ok(&["restore", name(checkpoint), "--qmp", name(&guest.qmp)]);
    // The first line may end a pass that began before the checkpoint; then come two whole ones.
    let passes = guest.passed(3);
    assert!(passes.iter().all(|pass| pass.bad == 0), "{}: {passes:?}", checkpoint.display());
}

/// The action of another client during a save.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meddling {
    Resume,
    /// Between two checks of the VM, which is then stopped again.
    ResumeAndStop,
    Reset,
}

impl Meddling {
    fn apply(self, monitor: &mut Monitor, guest: &RunningGuest) {
        match self {
            Meddling::Resume => drop(monitor.run("cont", json!({}))),
            Meddling::ResumeAndStop => {
                monitor.run("cont", json!({}));
                guest.passed(2);
                monitor.run("stop", json!({}));
            }
            Meddling::Reset => {
                monitor.run("system_reset", json!({}));
                monitor.wait("RESET");
            }
        }
    }
}

/// Interferes with a save, which must fail and leave an existing file unchanged.
fn refused(guest: &RunningGuest, folder: &Path, save: &[&str], meddling: Meddling) {
    let mut monitor = guest.monitor();
    for _ in 0..TRIES {
        // Not of the first try: a save that was over has replaced its file.
        let before = files(folder);
        monitor.forget();
        let child = start(save);
        monitor.wait("STOP");
        // The device state is saved and the memory is not, unless it was faster than we are.
        let saves_memory = loop {
            match monitor.status().as_str() {
                "postmigrate" => break true,
                "running" => break false,
                _ => {}
            }
        };
        let in_time = saves_memory && freeze(&child) && files(folder) == before;
        if in_time {
            meddling.apply(&mut monitor, guest);
        }
        if saves_memory {
            signal(&child, Signal::CONT);
        }
        let (code, said) = ended(child);
        // It may have had all it needs, and was about to resume the VM itself; or its guard continued it before anybody meddled.
        if code == 0 {
            if in_time {
                holds_one_moment(folder, Path::new(save[4]));
                monitor.resume();
            }
            continue;
        }
        assert!(in_time, "{said}");
        let word = if meddling == Meddling::Reset { "was reset" } else { "was resumed" };
        assert_eq!(code, 7, "{meddling:?} {save:?}: {said}");
        assert!(is_one_sentence(&said) && said.contains(word), "{said}");
        assert_eq!(files(folder), before, "{meddling:?} {save:?}");
        // The other client has decided whether it runs.
        let status = monitor.status();
        let expected: &[&str] = match meddling {
            Meddling::Resume => &["running"],
            Meddling::ResumeAndStop => &["paused", "postmigrate"],
            Meddling::Reset => &["prelaunch", "paused", "postmigrate"],
        };
        assert!(expected.contains(&status.as_str()), "{meddling:?}: {status}");
        monitor.resume();
        return;
    }
    panic!("{TRIES} saves were over before anybody could meddle");
}

#[test]
fn a_vm_that_is_resumed_while_it_is_saved_gives_no_checkpoint() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    // It is to come back from a reset.
    let guest = RunningGuest::with(dir.path(), "vm", MEMORY, CHECK, &["-action", "reboot=reset"]);
    guest.passed(2);
    let (base, old, new) = (path("base.ckpt"), path("old.ckpt"), path("new.ckpt"));
    let save = ["save", "--qmp", name(&guest.qmp), "-o"];
    for output in [&base, &old] {
        ok(&[&save[..], &[name(output)]].concat());
    }
    let ways: [&[&str]; 5] = [
        &[],
        &["--zstd"],
        &["--parent", name(&base)],
        &["--zstd", "--parent", name(&base)],
        &["--live"],
    ];
    for way in ways {
        for meddling in [Meddling::Resume, Meddling::ResumeAndStop] {
            refused(&guest, dir.path(), &[&save[..], &[name(&old)], way].concat(), meddling);
        }
        refused(&guest, dir.path(), &[&save[..], &[name(&new)], way].concat(), Meddling::Resume);
        guest.passed(1);
    }
    // It is none the worse for all that, and can be saved.
    for way in ways {
        ok(&[&save[..], &[name(&new)], way].concat());
        holds_one_moment(dir.path(), &new);
    }
    refused(&guest, dir.path(), &[&save[..], &[name(&old)]].concat(), Meddling::Reset);
}

/// Resumed at any moment of saves in any way: each gives a checkpoint of one moment, or none. `./x bench resumes` asks for more
/// rounds.
#[test]
fn a_checkpoint_is_of_one_moment_whenever_somebody_resumes() {
    let rounds = std::env::var("VMTAX_RESUMES").map_or(5, |rounds| rounds.parse().unwrap());
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(2);
    let (base, target) = (path("base.ckpt"), path("x.ckpt"));
    let save = ["save", "--qmp", name(&guest.qmp), "-o"];
    ok(&[&save[..], &[name(&base)]].concat());
    let began = std::time::Instant::now();
    ok(&[&save[..], &[name(&target)]].concat());
    let whole = began.elapsed();
    let ways: [&[&str]; 5] = [
        &["--live"],
        &[],
        &["--parent", name(&base)],
        &["--live", "--parent", name(&base)],
        &["--zstd", "--parent", name(&base)],
    ];
    let mut monitor = guest.monitor();
    let mut moments = super::kills::Moments::new();
    let (mut taken, mut refused) = (0, 0);
    for round in 0..rounds {
        let before = Checkpoint::open(&target).unwrap().id();
        let args = [&save[..], &[name(&target)], ways[round % ways.len()]].concat();
        let child = start(&args);
        std::thread::sleep(moments.below(whole.mul_f64(1.2)));
        // While the device state ends QEMU itself refuses that.
        if monitor.attempt("cont") && round % 2 == 1 {
            monitor.run("stop", json!({}));
        }
        let (code, said) = ended(child);
        let after = Checkpoint::open(&target).unwrap().id();
        match code {
            0 => {
                taken += 1;
                assert!(after != before);
                holds_one_moment(dir.path(), &target);
            }
            7 => {
                refused += 1;
                assert!(said.contains("resumed"), "{said}");
                assert_eq!(after, before, "{args:?}");
            }
            _ => panic!("round {round}, {args:?}: {code} {said}"),
        }
        monitor.resume();
        guest.passed(1);
    }
    println!("{rounds} saves with a resume: {taken} of one moment, {refused} refused, 0 bad words");
}

/// Another client stopped it, and resumes it.
#[test]
fn a_vm_that_somebody_stopped_is_saved_and_stays_stopped() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(2);
    let mut monitor = guest.monitor();
    monitor.run("stop", json!({}));
    let checkpoint = dir.path().join("x.ckpt");
    let said = ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    assert!(said.contains("was stopped before, and stays stopped"), "{said}");
    assert_eq!(monitor.status(), "postmigrate");
    // QEMU does not save it again before it has run.
    let again = super::refused(&["save", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    assert!(again.0 == 3 && again.1.contains("give it `cont`"), "{again:?}");
    monitor.run("cont", json!({}));
    guest.passed(1);
    holds_one_moment(dir.path(), &checkpoint);
}

/// QEMU is killed, not told to quit: it answers nothing while it sends the state of its devices to a program that is stopped.
#[test]
fn a_qemu_killed_during_a_save_leaves_no_checkpoint() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dir.path().join("x.ckpt");
    for _ in 0..TRIES {
        let mut guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
        guest.passed(1);
        let mut monitor = guest.monitor();
        let child = start(&["save", "--qmp", name(&guest.qmp), "-o", name(&output)]);
        monitor.wait("STOP");
        freeze(&child);
        guest.kill();
        signal(&child, Signal::CONT);
        let (code, said) = ended(child);
        // It has ended if it was faster than the signal, and was about to resume the VM if it was nearly so.
        let is_written = code == 7 && said.contains("is written, but the VM may still be stopped");
        if code == 0 || is_written {
            ok(&["verify", name(&output)]);
            fs::remove_file(&output).unwrap();
            continue;
        }
        assert!(code == 3 && is_one_sentence(&said) && said.contains("did it end?"), "{said}");
        assert_eq!(files(dir.path()), []);
        return;
    }
    panic!("{TRIES} saves were over before QEMU could be killed");
}

/// Another client uses a QEMU during a restore: the VM continues correctly, or the restore fails.
#[test]
fn a_restore_that_is_disturbed_is_right_or_fails() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoint = dir.path().join("x.ckpt");
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(2);
    ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    drop(guest);
    for (command, stopped) in [("cont", false), ("cont", true), ("stop", false), ("quit", false)] {
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < TRIES, "{TRIES} restores were over before anybody could meddle");
            let guest = RunningGuest::start(dir.path(), "again", MEMORY, "", true);
            let memory = guest.memory();
            let mut monitor = guest.monitor();
            let used = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&memory).unwrap());
            let before = used();
            let mut args = vec!["restore", name(&checkpoint), "--qmp", name(&guest.qmp)];
            args.extend(stopped.then_some("--stopped"));
            let mut child = start(&args);
            while used() < before + 8192 && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            // In the middle of the memory, unless it was faster than we are.
            let in_time = child.try_wait().unwrap().is_none()
                && freeze(&child)
                && monitor.status() == "inmigrate";
            if in_time {
                monitor.run(command, json!({}));
            }
            if child.try_wait().unwrap().is_none() {
                signal(&child, Signal::CONT);
            }
            let (code, said) = ended(child);
            if !in_time {
                assert_eq!(code, 0, "{said}");
                continue;
            }
            // It had put all of the memory there, and was loading the state of the devices.
            let is_late = said.contains("QEMU did not load the device state")
                || (stopped && said.contains("another client resumed it"));
            if code == 7 && is_late {
                assert_eq!(said.lines().count(), 1, "{said}");
                continue;
            }
            if command == "quit" {
                assert_eq!(code, 3, "{said}");
                assert!(said.contains("did it end?") && said.lines().count() == 1, "{said}");
                break;
            }
            assert_eq!(code, 0, "{command}: {said}");
            if stopped {
                assert_eq!(monitor.status(), "paused");
                monitor.run("cont", json!({}));
            }
            let passes = guest.passed(3);
            assert!(passes.iter().all(|pass| pass.bad == 0), "{command}: {passes:?}");
            break;
        }
    }
}
