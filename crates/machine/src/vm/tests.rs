//! What another client of the same QEMU does is seen, whenever it does it. (That real QEMUs send these events is tested with
//! real QEMUs by the program's tests.)

use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::*;
use crate::qmp::fake::{Fake, event, ok};

/// The commands that a fake QEMU got.
type HeardCommands = Arc<Mutex<Vec<String>>>;

/// A QEMU in these states, one per query-status, the last for ever; `before` gives what is sent before an answer.
fn fake(
    states: &'static [&'static str],
    mut before: impl FnMut(&str, usize) -> String + Send + 'static,
) -> (Fake, HeardCommands) {
    let heard = HeardCommands::default();
    let log = Arc::clone(&heard);
    let mut asked = 0;
    let fake = Fake::answering(move |name, _| {
        log.lock().unwrap().push(name.to_owned());
        if name != "query-status" {
            return before(name, asked) + &ok("{}");
        }
        let state = states[asked.min(states.len() - 1)];
        asked += 1;
        let running = state == "running";
        before(name, asked) + &ok(&format!("{{\"status\": \"{state}\", \"running\": {running}}}"))
    });
    (fake, heard)
}

fn heard(heard: &HeardCommands) -> Vec<String> {
    heard.lock().unwrap().clone()
}

fn connect(fake: &Fake) -> QemuVm {
    QemuVm::connect(fake.path(), Stop::default()).unwrap()
}

#[test]
fn a_paused_vm_resumes() {
    let (fake, log) = fake(&["running", "paused", "paused", "postmigrate"], |name, _| match name {
        "stop" => event("STOP"),
        _ => String::new(),
    });
    let mut vm = connect(&fake);
    let mut pause = Pause::begin(&mut vm, false).unwrap();
    pause.check().unwrap();
    pause.check().unwrap();
    pause.end().unwrap();
    assert_eq!(
        heard(&log),
        ["query-status", "stop", "query-status", "query-status", "query-status", "cont"]
    );
}

/// It stays as it was found, or as was asked for.
#[test]
fn a_vm_to_be_left_paused_stays_paused() {
    for (states, leave) in [(&["paused", "paused"], false), (&["running", "paused"], true)] {
        let (fake, log) = fake(states, |_, _| String::new());
        let mut vm = connect(&fake);
        let mut pause = Pause::begin(&mut vm, leave).unwrap();
        pause.check().unwrap();
        pause.end().unwrap();
        assert!(!heard(&log).contains(&"cont".to_owned()), "{states:?}");
    }
}

/// It may run now, or have been stopped again between two looks; each is the end of the pause, and who did that decides
/// whether it runs.
#[test]
fn another_client_is_noticed() {
    const STOPPED: &[&str] = &["running", "paused", "paused"];
    let cases: [(&[&str], &str, &str); 6] = [
        (&["running", "paused", "running"], "", "resumed"),
        (STOPPED, "RESUME STOP", "resumed"),
        (STOPPED, "WAKEUP", "resumed"),
        (STOPPED, "RESET", "reset"),
        (&["running", "paused", "prelaunch"], "RESET", "reset"),
        (&["running", "paused", "restore-vm"], "", "restore-vm"),
    ];
    for (states, events, word) in cases {
        let (fake, log) = fake(states, move |name, asked| match (name, asked) {
            ("query-status", 3) => events.split_whitespace().map(event).collect(),
            _ => String::new(),
        });
        let mut vm = connect(&fake);
        let mut pause = Pause::begin(&mut vm, false).unwrap();
        let error = pause.check().unwrap_err();
        assert!(matches!(error, VmError::Disturbed { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        pause.end().unwrap();
        assert!(!heard(&log).contains(&"cont".to_owned()), "{states:?} {events}");
    }
}

/// Events of the time before it was stopped are history.
#[test]
fn events_before_the_pause_are_ignored() {
    let (fake, _) = fake(&["running", "paused"], |name, _| match name {
        "stop" => event("STOP") + &event("RESUME") + &event("RESET") + &event("STOP"),
        _ => String::new(),
    });
    let mut vm = connect(&fake);
    let mut pause = Pause::begin(&mut vm, false).unwrap();
    pause.check().unwrap();
}

#[test]
fn a_stop_without_effect_is_an_error() {
    let (fake, log) = fake(&["running", "running"], |_, _| String::new());
    let mut vm = connect(&fake);
    let error = Pause::begin(&mut vm, false).unwrap_err();
    assert!(matches!(error, VmError::Disturbed { .. }), "{error}");
    assert_eq!(heard(&log), ["query-status", "stop", "query-status"]);
}

#[test]
fn a_vm_that_cannot_be_saved_is_not_touched() {
    for state in ["inmigrate", "suspended", "postmigrate", "save-vm"] {
        let states: &'static [&'static str] = Vec::leak(vec![state]);
        let (fake, log) = fake(states, |_, _| String::new());
        let error = Pause::begin(&mut connect(&fake), false).unwrap_err();
        assert!(matches!(error, VmError::Unfit { .. }), "{error}");
        assert_eq!(heard(&log), ["query-status"]);
    }
}

/// `stop` may have taken effect although no answer came: the VM is resumed, and the user is informed if that fails.
#[test]
fn a_failed_pause_is_undone_or_reported() {
    let refuse = |command: &'static str| {
        Fake::answering(move |name, _| {
            let refused = "{\"error\": {\"desc\": \"no\"}, \"id\": ID}\n".to_owned();
            match name {
                "query-status" => ok("{\"status\": \"running\", \"running\": true}"),
                "stop" => refused,
                name if name == command => refused,
                _ => ok("{}"),
            }
        })
    };
    let error = Pause::begin(&mut connect(&refuse("")), false).unwrap_err();
    assert!(matches!(error, VmError::Qmp(_)), "{error}");
    let error = Pause::begin(&mut connect(&refuse("cont")), false).unwrap_err();
    assert!(matches!(error, VmError::LeftStopped(_)), "{error}");
    assert!(error.to_string().ends_with(LEFT_STOPPED), "{error}");
}

/// Disks as query-block lists them.
#[test]
fn disks_are_read_with_what_they_are_overlays_of() {
    let folder = tempfile::tempdir().unwrap();
    let (top, base) = (folder.path().join("top.qcow2"), folder.path().join("base.img"));
    std::fs::write(&base, "x").unwrap();
    let answer = serde_json::json!([
        { "device": "d0", "qdev": "/machine/peripheral/vb/virtio-backend", "inserted": {
            "ro": false, "node-name": "#block165", "drv": "qcow2", "image": {
                "virtual-size": 1048576, "filename": top, "backing-image": { "filename": base } } } },
        { "device": "", "qdev": "/machine/unattached/device[3]", "inserted": {
            "ro": true, "node-name": "n", "drv": "raw", "image": { "filename": "nbd://h/e" } } },
        { "device": "cd", "removable": true },
    ]);
    let fake = Fake::answering(move |_, _| ok(&answer.to_string()));
    let mut vm = connect(&fake);
    let mut disks = vm.disks().unwrap();
    assert_eq!(disks.len(), 2, "a drive without a medium is no disk");
    let (first, second) = (&disks[0], &disks[1]);
    assert_eq!((first.name.as_str(), first.bytes, first.writable), ("vb", 1 << 20, true));
    assert_eq!(first.images.len(), 2);
    assert_eq!(first.images[0].modified_ns, None);
    assert!(first.images[1].modified_ns.is_some_and(|ns| ns > 0));
    assert_eq!((second.name.as_str(), second.file(), second.writable), ("n", "nbd://h/e", false));
    // The file does not exist, so the place of its overlay is unknown.
    let error = vm.plan_overlays(&mut disks, None, "monday").unwrap_err().to_string();
    assert!(error.contains("--snapshot-disks=DIR"), "{error}");
    vm.plan_overlays(&mut disks, Some(folder.path()), "monday").unwrap();
    let overlay = folder.path().canonicalize().unwrap().join("base.monday.qcow2");
    assert_eq!(disks[0].overlay.as_deref(), overlay.to_str());
    assert_eq!(disks[1].overlay, None);
    // QEMU would write over a file that is there.
    std::fs::write(&overlay, "somebody's").unwrap();
    let error = vm.plan_overlays(&mut disks, Some(folder.path()), "monday").unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
}

fn disk(name: &str, files: &[(&str, i64)], overlay: Option<&str>) -> MediumDisk {
    let image =
        |(file, ns): &(&str, i64)| DiskImage { file: (*file).into(), modified_ns: Some(*ns) };
    MediumDisk {
        name: name.into(),
        bytes: 1 << 20,
        writable: true,
        images: files.iter().map(image).collect(),
        overlay: overlay.map(str::to_owned),
        ..MediumDisk::default()
    }
}

#[test]
fn disks_of_another_moment_are_named() {
    let saved = [disk("vb", &[("/d.img", 5)], Some("/d.monday.qcow2"))];
    let check = |here: MediumDisk| DiskCheck::new(&saved, &[here]);
    let good = [
        disk("vb", &[("/d.img", 5)], None),
        disk("vb", &[("/new.qcow2", 9), ("/d.img", 5)], None),
        // There is only one, whatever it is called.
        disk("other", &[("/d.img", 5)], None),
    ];
    for here in good {
        assert_eq!(check(here), DiskCheck::default());
    }
    let bad = [
        (disk("vb", &[("/d.img", 6)], None), "/d.img was written after the VM was saved"),
        (
            disk("vb", &[("/d.monday.qcow2", 9), ("/d.img", 5)], None),
            "/d.monday.qcow2 is what the saved VM went on writing to",
        ),
        (MediumDisk { bytes: 3, ..disk("vb", &[("/d.img", 5)], None) }, "saved with 1048576 bytes"),
    ];
    for (here, words) in bad {
        let check = check(here);
        assert_eq!((check.differences.len(), check.notes.len()), (1, 0), "{check:?}");
        assert!(check.differences[0].contains(words), "{check:?}");
    }
    let copy = check(disk("vb", &[("/copy.img", 9)], None));
    assert!(copy.differences.is_empty() && copy.notes.len() == 1, "{copy:?}");
    assert!(DiskCheck::new(&saved, &[]).differences[0].contains("does not have it"));
    let unwritten = MediumDisk { writable: false, ..saved[0].clone() };
    assert_eq!(DiskCheck::new(&[unwritten], &[]), DiskCheck::default());
}

fn hardware() -> Hardware {
    let properties = |pairs: &[(&str, Value)]| {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    let device = |id: &str, model: &str, addr: u64| VmDevice {
        id: id.into(),
        model: model.into(),
        bus: "/machine/q35/pcie.0".into(),
        properties: properties(&[("addr", addr.into())]),
    };
    Hardware {
        qemu: "7.2.22".into(),
        machine: "pc-q35-7.2".into(),
        options: properties(&[("hpet", true.into())]),
        accelerator: "other".into(),
        memory_bytes: 1 << 30,
        memory: vec![Backend { id: "mem".into(), bytes: 1 << 30, share: true }],
        cpu: CpuModel {
            model: "max".into(),
            properties: properties(&[
                ("avx2", true.into()),
                ("svm", false.into()),
                ("level", 13.into()),
                ("vendor", "AuthenticAMD".into()),
            ]),
        },
        processors: properties(&[("maxcpus", 2.into()), ("cores", 2.into())]),
        slots: properties(&[("slots", 0.into()), ("max-size", (1 << 30).into())]),
        blocks: properties(&[("pc.bios", (256 << 10).into())]),
        vcpus: (0..2).map(|i| [("core-id".to_owned(), i)].into()).collect(),
        devices: vec![device("vb", "virtio-blk-pci", 8), device("", "virtio-net-pci", 16)],
        onboard: [("hpet".to_owned(), 1), ("ich9-ahci".to_owned(), 1)].into(),
        disks: Vec::new(),
    }
}

#[test]
fn the_same_machine_has_no_differences() {
    let saved = hardware();
    assert_eq!(saved.differences(&saved), [""; 0]);
    // Through the checkpoint and back.
    let text = serde_json::to_vec(&saved).unwrap();
    assert_eq!(serde_json::from_slice::<Hardware>(&text).unwrap(), saved);
    let mut here = saved.clone();
    // Ids and the order are names; a newer QEMU knows more.
    here.devices.reverse();
    here.devices[1].id = "disk0".into();
    here.cpu.properties.insert("avx10".into(), true.into());
    here.options.insert("new".into(), true.into());
    here.qemu = "9.1.0".into();
    assert_eq!(saved.differences(&here), [""; 0]);
    // What a QEMU could not tell is not compared.
    let unknown = Hardware { vcpus: saved.vcpus.clone(), ..Hardware::default() };
    let found = unknown.differences(&Hardware { devices: vec![], onboard: [].into(), ..saved });
    assert_eq!(found, ["memory backend mem: the saved VM did not have it"]);
}

/// Makes another machine of one.
type MachineChange<'a> = &'a dyn Fn(&mut Hardware);

#[test]
fn each_difference_is_a_sentence() {
    let change = |change: MachineChange<'_>| {
        let mut here = hardware();
        change(&mut here);
        hardware().differences(&here)
    };
    let cases: [(MachineChange<'_>, &[&str]); 15] = [
        (
            &|h| {
                h.machine = "pc-i440fx-7.2".into();
                h.onboard.clear();
                h.options.insert("hpet".into(), false.into());
                h.devices[0].properties.insert("addr".into(), 24.into());
                h.devices.iter_mut().for_each(|d| d.bus = "/machine/i440fx/pci.0".into());
            },
            &["machine type: saved with pc-q35-7.2, this QEMU has pc-i440fx-7.2"],
        ),
        (&|h| h.accelerator = "kvm".into(), &["accelerator: saved with other, this QEMU has kvm"]),
        (
            &|h| {
                h.memory_bytes = 1 << 29;
                h.memory[0].bytes = 1 << 29;
            },
            &[
                "memory: saved with 1024 MiB, this QEMU has 512 MiB",
                "memory backend mem: saved with 1024 MiB, this QEMU has 512 MiB",
            ],
        ),
        (
            &|h| h.memory[0].id = "ram".into(),
            &[
                "memory backend mem: this QEMU does not have it",
                "memory backend ram: the saved VM did not have it",
            ],
        ),
        (
            &|h| {
                h.cpu.model = "qemu64".into();
                h.cpu.properties.insert("avx2".into(), false.into());
                h.cpu.properties.insert("svm".into(), true.into());
                h.cpu.properties.insert("level".into(), 16.into());
            },
            &[
                "CPU model: saved with max, this QEMU has qemu64",
                "CPU features that the saved VM had and this QEMU does not have: avx2",
                "CPU features that the saved VM did not have and this QEMU has: svm",
                "CPU property level: saved with 13, this QEMU has 16",
            ],
        ),
        (
            &|h| {
                h.vcpus.truncate(1);
                h.processors.insert("cores".into(), 1.into());
            },
            &["vCPUs: saved with 2, this QEMU has 1"],
        ),
        (
            &|h| drop(h.processors.insert("maxcpus".into(), 4.into())),
            &["vCPU maxcpus: saved with 2, this QEMU has 4"],
        ),
        (
            &|h| drop(h.slots.insert("slots".into(), 2.into())),
            &["memory slots: saved with 0, this QEMU has 2"],
        ),
        (
            &|h| drop(h.blocks.insert("pc.bios".into(), (128 << 10).into())),
            &["length of pc.bios: saved with 262144, this QEMU has 131072"],
        ),
        (
            &|h| h.vcpus[1] = [("core-id".to_owned(), 5)].into(),
            &["vCPU topology: saved with core-id 0, 1, this QEMU has core-id 0, 5"],
        ),
        (
            &|h| drop(h.options.insert("hpet".into(), false.into())),
            &["machine option hpet: saved with on, this QEMU has off"],
        ),
        (
            &|h| h.onboard.retain(|model, _| model != "ich9-ahci"),
            &["onboard ich9-ahci: saved with 1, this QEMU has 0"],
        ),
        (
            &|h| drop(h.devices.remove(1)),
            &["device virtio-net-pci at 02.0: this QEMU does not have it"],
        ),
        (
            &|h| {
                let mut more = h.devices[0].clone();
                (more.id, more.model) = ("rng".into(), "virtio-rng-pci".into());
                h.devices.push(more);
            },
            &["device rng (virtio-rng-pci at 01.0): the saved VM did not have it"],
        ),
        (
            &|h| drop(h.devices[0].properties.insert("addr".into(), 0x21.into())),
            &["device vb (virtio-blk-pci at 01.0): addr: saved with 01.0, this QEMU has 04.1"],
        ),
    ];
    for (changed, expected) in cases {
        assert_eq!(change(changed), expected);
    }
    let other = change(&|h| h.devices[0].model = "virtio-blk-device".into());
    assert_eq!(
        other,
        [
            "device vb (virtio-blk-pci at 01.0): this QEMU has vb (virtio-blk-device at 01.0) instead"
        ]
    );
    // A hundred features are no wall of text.
    let many = |on: bool| {
        let mut h = hardware();
        h.cpu.properties = (0..100).map(|i| (format!("f{i:03}"), on.into())).collect();
        h
    };
    let found = many(true).differences(&many(false));
    assert_eq!(found.len(), 1);
    assert!(found[0].ends_with("f015 and 84 more"), "{}", found[0]);
}
