//! Writable disks: they are not part of a checkpoint, which says so, or has them kept as they were at its moment.
//!
//! The guest's writes are made by QEMU's own `qemu-io`, in the place where a guest's would arrive.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::guest::{Monitor, RunningGuest, check};
use super::{mem, name, ok};

const BYTES: u64 = 8 << 20;

/// Two disks, raw by -drive and qcow2 by -blockdev, and a CD that cannot be written.
fn arguments(raw: &Path, qcow2: &Path, cd: &Path) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    [
        "-drive",
        &format!("if=none,id=first,format=raw,file={}", text(raw)),
        "-device",
        "virtio-blk-pci,drive=first,id=one",
        "-blockdev",
        &format!("driver=qcow2,node-name=second,file.driver=file,file.filename={}", text(qcow2)),
        "-device",
        "virtio-blk-pci,drive=second,id=two",
        "-drive",
        &format!("if=none,id=cd,format=raw,readonly=on,media=cdrom,file={}", text(cd)),
        "-device",
        "ide-cd,drive=cd",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn guest(folder: &Path, name: &str, disks: &[String], incoming: bool) -> RunningGuest {
    let mut arguments: Vec<&str> = disks.iter().map(String::as_str).collect();
    if incoming {
        arguments.extend(["-incoming", "defer"]);
    }
    RunningGuest::with(folder, name, "128M", "", &arguments)
}

/// Runs a job of a QEMU to its end.
fn job(monitor: &mut Monitor, options: Value) {
    monitor.run("blockdev-create", json!({ "job-id": "j", "options": options }));
    let concluded = |jobs: &Value| jobs[0]["status"] == "concluded";
    let mut jobs = Value::Null;
    while !concluded(&jobs) {
        jobs = monitor.run("query-jobs", json!({}));
    }
    assert!(jobs[0].get("error").is_none(), "{jobs}");
    monitor.run("job-dismiss", json!({ "id": "j" }));
}

/// Makes an image, which may be an overlay, by a QEMU that is there already.
fn make_qcow2(monitor: &mut Monitor, path: &Path, backing: Option<(&Path, &str)>) {
    job(monitor, json!({ "driver": "file", "filename": path, "size": 0 }));
    monitor.run("blockdev-add", json!({ "driver": "file", "node-name": "new", "filename": path }));
    let mut options = json!({ "driver": "qcow2", "file": "new", "size": BYTES });
    if let Some((backing, format)) = backing {
        options["backing-file"] = name(backing).into();
        options["backing-fmt"] = format.into();
    }
    job(monitor, options);
    monitor.run("blockdev-del", json!({ "node-name": "new" }));
}

/// Runs a command of qemu-io on both disks as the guest has them.
fn io(monitor: &mut Monitor, command: &str) {
    for device in ["one", "two"] {
        let line = format!("qemu-io -d /machine/peripheral/{device}/virtio-backend \"{command}\"");
        let error = monitor.run("human-monitor-command", json!({ "command-line": line }));
        assert_eq!(error, "", "{line}");
    }
}

/// Fills the first 4 KiB of both disks.
fn write(monitor: &mut Monitor, byte: u8) {
    io(monitor, &format!("write -P {byte} 0 4096"));
    io(monitor, "flush");
}

/// Whether the guest finds this in the first 4 KiB of both disks. Ends it: qemu-io says what it read on QEMU's own standard output.
fn finds(guest: RunningGuest, byte: u8) -> bool {
    io(&mut guest.monitor(), &format!("read -P {byte} 0 4096"));
    let said = guest.quit();
    assert_eq!(said.matches("read 4096/4096 bytes").count(), 2, "{said}");
    !said.contains("Pattern verification failed")
}

/// Exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let output = mem(args);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

struct Disks {
    dir: tempfile::TempDir,
    raw: PathBuf,
    qcow2: PathBuf,
    cd: PathBuf,
}

impl Disks {
    fn new() -> Disks {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = |file: &str| dir.path().join(file);
        let (raw, qcow2, cd) = (path("raw.img"), path("second.qcow2"), path("cd.iso"));
        for file in [&raw, &cd] {
            File::create(file).unwrap().set_len(BYTES).unwrap();
        }
        let maker = RunningGuest::with(dir.path(), "maker", "128M", "", &["-S"]);
        make_qcow2(&mut maker.monitor(), &qcow2, None);
        Disks { dir, raw, qcow2, cd }
    }

    fn guest(&self, name: &str, incoming: bool) -> RunningGuest {
        let disks = arguments(&self.raw, &self.qcow2, &self.cd);
        guest(self.dir.path(), name, &disks, incoming)
    }

    fn first_byte(&self) -> u8 {
        let mut byte = [0];
        File::open(&self.raw).unwrap().read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    }
}

#[test]
fn disks_are_named_or_kept_and_recorded() {
    let disks = Disks::new();
    let path = |file: &str| disks.dir.path().join(file);
    let (alone, kept) = (path("alone.ckpt"), path("kept.ckpt"));
    let guest = disks.guest("vm", false);
    guest.counted(2);
    let mut monitor = guest.monitor();
    write(&mut monitor, 0x41);

    // Without being asked it warns, of those that can be written.
    let save = ["save", "--qmp", name(&guest.qmp), "-o"];
    let (code, _, said) = run(&[&save[..], &[name(&alone)]].concat());
    assert_eq!(code, 0, "{said}");
    let files = format!("one ({}), two ({})", disks.raw.display(), disks.qcow2.display());
    assert!(said.contains(&files) && said.contains("--snapshot-disks"), "{said}");
    assert!(!said.contains("cd.iso") && said.lines().count() == 1, "{said}");

    // Asked, it keeps them.
    write(&mut monitor, 0x42);
    let args = [&save[..], &[name(&kept), "--snapshot-disks", "--format", "json"]].concat();
    let (code, saved, said) = run(&args);
    assert_eq!((code, said.as_str()), (0, ""));
    let saved: Value = serde_json::from_str(&saved).unwrap();
    let overlays = [path("raw.kept.qcow2"), path("second.kept.qcow2")];
    let of = |name: &str| {
        let disks = saved["disks"].as_array().unwrap();
        disks.iter().find(|disk| disk["name"] == name).unwrap()["overlay"].clone()
    };
    for (name_of, overlay) in [("one", &overlays[0]), ("two", &overlays[1])] {
        assert_eq!(of(name_of), name(&overlay.canonicalize().unwrap()), "{saved}");
    }
    let running = guest.counts().len();
    guest.counted(running + 1);
    write(&mut monitor, 0x43);
    assert_eq!(disks.first_byte(), 0x42, "the VM wrote to what was to be kept");
    // A second one of that name would overwrite the overlays.
    let (code, _, said) = run(&args);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("exists already") && said.lines().count() == 1, "{said}");
    assert_eq!(monitor.status(), "running");
    drop(monitor);
    assert!(finds(guest, 0x43));

    restore(&disks, &alone, &kept, &overlays);
}

fn restore(disks: &Disks, alone: &Path, kept: &Path, overlays: &[PathBuf; 2]) {
    let path = |file: &str| disks.dir.path().join(file);
    let target = |name: &str, raw: &Path, qcow2: &Path| {
        let mut disks = arguments(raw, qcow2, &disks.cd);
        // An overlay is qcow2, whatever it is an overlay of.
        if raw.extension().is_some_and(|e| e == "qcow2") {
            disks[1] = disks[1].replace("format=raw", "format=qcow2");
        }
        guest(path("").as_path(), name, &disks, true)
    };
    // With disks that were written since.
    let vm = target("written", &disks.raw, &disks.qcow2);
    let (code, _, said) = run(&["restore", name(alone), "--qmp", name(&vm.qmp)]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("raw.img was written after the VM was saved"), "{said}");
    assert_eq!(vm.monitor().status(), "inmigrate");
    // With the files that the saved VM went on with.
    let vm = target("overlays", &overlays[0], &overlays[1]);
    let (code, _, said) = run(&["restore", name(kept), "--qmp", name(&vm.qmp)]);
    assert_eq!(code, 4, "{said}");
    for overlay in overlays {
        let sentence = format!("{} is what the saved VM went on writing to", overlay.display());
        assert!(said.contains(&sentence), "{said}");
    }
    drop(vm);
    // With new overlays of what was kept, as the documents say.
    let new = [path("new-raw.qcow2"), path("new-second.qcow2")];
    let maker = RunningGuest::with(&path(""), "maker", "128M", "", &["-S"]);
    make_qcow2(&mut maker.monitor(), &new[0], Some((&disks.raw, "raw")));
    make_qcow2(&mut maker.monitor(), &new[1], Some((&disks.qcow2, "qcow2")));
    drop(maker);
    let vm = target("new", &new[0], &new[1]);
    let (code, _, said) = run(&["restore", name(kept), "--qmp", name(&vm.qmp)]);
    assert_eq!((code, said.as_str()), (0, ""));
    check(&vm.counted(2));
    assert!(finds(vm, 0x42), "the disks are not of that moment");
    // A copy may be right; that cannot be seen from here.
    let copies = [path("copy.img"), path("copy.qcow2")];
    fs::copy(&disks.raw, &copies[0]).unwrap();
    fs::copy(&disks.qcow2, &copies[1]).unwrap();
    let vm = target("copies", &copies[0], &copies[1]);
    let (code, _, said) = run(&["restore", name(kept), "--qmp", name(&vm.qmp)]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        said.matches("it must hold what that held when the VM was saved").count(),
        2,
        "{said}"
    );
    check(&vm.counted(2));
    assert!(!finds(vm, 0x43), "it finds anything");
}

/// QEMU cannot make an overlay there: no checkpoint, no overlay, and the VM goes on with its disks.
#[test]
fn a_snapshot_that_fails_leaves_all_as_it_was() {
    let disks = Disks::new();
    let guest = disks.guest("vm", false);
    guest.counted(2);
    let output = disks.dir.path().join("x.ckpt");
    let save = ["save", "--qmp", name(&guest.qmp), "-o", name(&output)];
    for (folder, words) in [("/proc", "QEMU refused transaction"), ("/none/such", "no such folder")]
    {
        let option = format!("--snapshot-disks={folder}");
        let (code, _, said) = run(&[&save[..], &[&option]].concat());
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
        assert!(!output.exists());
        let running = guest.counts().len();
        check(&guest.counted(running + 1));
    }
    // The second disk's overlay cannot be made: the first one's is taken back.
    let folder = disks.dir.path().join("overlays");
    fs::create_dir(&folder).unwrap();
    let mut monitor = guest.monitor();
    let mut mirror =
        json!({ "device": "second", "job-id": "mirror", "sync": "full", "target": "mirrored" });
    make_qcow2(&mut monitor, &disks.dir.path().join("mirror.qcow2"), None);
    monitor.run(
        "blockdev-add",
        json!({ "driver": "qcow2", "node-name": "mirrored",
            "file": { "driver": "file", "filename": disks.dir.path().join("mirror.qcow2") } }),
    );
    mirror["speed"] = 4096.into();
    monitor.run("blockdev-mirror", mirror);
    let option = format!("--snapshot-disks={}", folder.display());
    let (code, _, said) = run(&[&save[..], &[&option]].concat());
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("QEMU refused") && said.lines().count() == 1, "{said}");
    assert!(!output.exists());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "overlays that nothing uses");
    let running = guest.counts().len();
    check(&guest.counted(running + 1));
    ok(&["scan", &guest.pid().to_string()]);
}

/// disk.img and disk.qcow2 in one folder get overlays of their own.
#[test]
fn disks_of_one_stem_are_both_kept() {
    let disks = Disks::new();
    let path = |file: &str| disks.dir.path().join(file);
    let (raw, qcow2, kept) = (path("disk.img"), path("disk.qcow2"), path("kept.ckpt"));
    fs::rename(&disks.raw, &raw).unwrap();
    fs::rename(&disks.qcow2, &qcow2).unwrap();
    let guest = guest(disks.dir.path(), "vm", &arguments(&raw, &qcow2, &disks.cd), false);
    write(&mut guest.monitor(), 0x51);
    ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&kept), "--snapshot-disks"]);
    write(&mut guest.monitor(), 0x52);
    assert!(path("disk.kept.qcow2").exists() && path("disk-two.kept.qcow2").exists());
    let mut byte = [0];
    File::open(&raw).unwrap().read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [0x51], "the VM wrote to what was to be kept");
    assert!(finds(guest, 0x52));
}
