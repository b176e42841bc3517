//! Saves of a VM that runs and writes to its memory meanwhile: what comes back is the memory of one moment.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use vmtax_pageops::checkpoint::Checkpoint;

use super::clients::{CHECK, MEMORY, TRIES, files, freeze, holds_one_moment, is_one_sentence};
use super::guest::{RunningGuest, check, is_migrating};
use super::soak::{BackendKind, Composition, DimmPlace, SoakVm};
use super::{ended, name, ok, refused, signal, start};

/// Saves that are restored: a few, or as many as `./x bench live` asks for.
fn rounds() -> usize {
    std::env::var("VMTAX_LIVE").map_or(4, |rounds| rounds.parse().unwrap())
}

/// The guest looks at every word that it wrote: one page of an earlier moment, and it counts bad words.
#[test]
fn a_live_save_is_of_one_moment() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(2);
    let (base, target) = (path("base.ckpt"), path("x.ckpt"));
    let save = ["save", "--qmp", name(&guest.qmp), "--live", "--format", "json", "-o"];
    ok(&[&save[..], &[name(&base)]].concat());
    holds_one_moment(dir.path(), &base);
    let ways: [&[&str]; 4] = [
        &["--parent", name(&base)],
        &["--zstd"],
        &["--zstd", "--parent", name(&base)],
        &["--accel", "model"],
    ];
    let mut pages = 0;
    for round in 0..rounds() {
        let saved = ok(&[&save[..], &[name(&target)], ways[round % ways.len()]].concat());
        let saved: Value = serde_json::from_str(&saved).unwrap();
        assert_eq!((&saved["live"], &saved["running"]), (&json!(true), &json!(true)), "{saved}");
        // All of it in the first pass, and what the guest wrote meanwhile in further ones and in the pause.
        assert!(saved["passes"][0]["pages"].as_u64().unwrap() > 8192, "{saved}");
        pages += saved["pause"]["pages"].as_u64().unwrap();
        assert!(saved["pause"]["seconds"].as_f64() < saved["seconds"].as_f64(), "{saved}");
        assert!(saved["phases"]["fingerprint"]["cpu_seconds"].is_f64(), "{saved}");
        // The VM does not stand still for what can be copied.
        assert_eq!(saved["pause"]["written_after"], json!(true), "{saved}");
        holds_one_moment(dir.path(), &target);
        guest.passed(1);
    }
    assert!(pages > 0, "the guest wrote nothing, so nothing was tested");
    assert!(guest.passes().iter().all(|pass| pass.bad == 0));
    println!(
        "{} live saves restored, {pages} pages written in their pauses, 0 bad words",
        rounds() + 1
    );
}

/// An increment of an idle guest is small, also when it is saved live; and it goes on counting from there.
#[test]
fn a_live_increment_is_small_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    let guest = RunningGuest::start(dir.path(), "vm", "128M", "", false);
    guest.counted(3);
    let (base, child) = (path("base.ckpt"), path("child.ckpt"));
    let save = ["save", "--qmp", name(&guest.qmp), "--live", "-o"];
    let said = ok(&[&save[..], &[name(&base)]].concat());
    assert!(
        said.contains("pages written while the VM ran: ") && said.contains("pause: "),
        "{said}"
    );
    ok(&[&save[..], &[name(&child), "--parent", name(&base)]].concat());
    let size = |path: &PathBuf| path.metadata().unwrap().len();
    assert!(size(&child) * 4 < size(&base), "{} after {}", size(&child), size(&base));
    let saved = guest.counts().len();
    check(&guest.counted(saved + 2));
    drop(guest);
    for checkpoint in [&base, &child] {
        let guest = RunningGuest::start(dir.path(), "again", "128M", "", true);
        ok(&["restore", name(checkpoint), "--qmp", name(&guest.qmp)]);
        check(&guest.counted(2));
    }
}

/// A VM is not stopped if it would stand still for too long.
#[test]
fn a_pause_that_would_be_too_long_does_not_begin() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(1);
    let checkpoint = dir.path().join("x.ckpt");
    let save =
        ["save", "--live", "--qmp", name(&guest.qmp), "-o", name(&checkpoint), "--max-pause"];
    let mut monitor = guest.monitor();
    monitor.forget();
    let (code, said) = refused(&[&save[..], &["1ns"]].concat());
    assert_eq!(code, 6, "{said}");
    assert!(said.contains("x.ckpt: is not written: after ") && said.lines().count() == 1, "{said}");
    assert!(said.contains("--max-pause allows 1ns "), "{said}");
    assert_eq!(files(dir.path()), []);
    assert!(!monitor.has_seen("STOP") && monitor.status() == "running");
    ok(&[&save[..], &["1h"]].concat());
    assert!(monitor.has_seen("STOP") && monitor.status() == "running");
    holds_one_moment(dir.path(), &checkpoint);
}

/// A stopped VM needs no passes; it is saved as without `--live`.
#[test]
fn a_live_save_of_a_stopped_vm_leaves_it_stopped() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(1);
    let mut monitor = guest.monitor();
    monitor.run("stop", json!({}));
    let checkpoint = dir.path().join("x.ckpt");
    let said = ok(&["save", "--live", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    assert!(said.contains("none, it was stopped") && said.contains("stays stopped"), "{said}");
    assert_eq!(monitor.status(), "postmigrate");
    monitor.run("cont", json!({}));
    // One that runs, and is to stay stopped.
    ok(&["save", "--live", "--stopped", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    assert_eq!(monitor.status(), "postmigrate");
    monitor.run("cont", json!({}));
    guest.passed(1);
    holds_one_moment(dir.path(), &checkpoint);
}

/// Memory that is plugged in after its blocks were listed would not be in the checkpoint.
///
/// It is plugged in before the migration of the device state begins: QEMU 7.2 with TCG can deadlock in `object-add` while a migration
/// is set up (its thread holds the list of memory blocks and waits for a vCPU, which waits for the main lock that `object-add` holds).
#[test]
fn memory_hotplug_during_a_save_leaves_no_checkpoint() {
    let composition = Composition::of(&[
        (BackendKind::Nameless, DimmPlace::Node),
        (BackendKind::Nameless, DimmPlace::Spare),
    ]);
    for more in [&["--live"][..], &[]] {
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < TRIES, "{TRIES} saves were over before memory could be plugged in");
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let output = dir.path().join("x.ckpt");
            let mut vm = SoakVm::start(&composition, dir.path(), "vm", false);
            vm.fill(&composition);
            vm.monitor.forget();
            let args = ["save", "--qmp", name(&vm.qmp), "-o", name(&output)];
            let child = start(&[&args[..], more].concat());
            vm.monitor.wait("STOP");
            let pid = vm.child.id();
            let in_time = freeze(&child) && !is_migrating(pid) && {
                // A `migrate` that was sent before is executed before this is answered twice.
                vm.monitor.status();
                vm.monitor.status();
                !is_migrating(pid)
            };
            if in_time {
                let dimm = json!({ "driver": "pc-dimm", "memdev": composition.blocks[1].id });
                vm.monitor.run("device_add", dimm);
            }
            signal(&child, Signal::CONT);
            let (code, said) = ended(child);
            if in_time && code == 7 {
                assert!(
                    said.contains("memory was plugged in or out") && is_one_sentence(&said),
                    "{said}"
                );
                assert!(!output.exists());
                assert_eq!(vm.monitor.status(), "running");
                break;
            }
            assert_eq!(code, 0, "{said}");
            // The blocks were compared before: the checkpoint is of the memory without it.
            assert_eq!(Checkpoint::open(&output).unwrap().regions().count(), 1);
        }
    }
}
