//! A checkpoint goes into the machine that it is of, and into no other.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::guest::{RunningGuest, check};
use super::{mem, name, ok, refused};

/// Two vCPUs and a device beside those of every guest here.
const MACHINE: [&str; 4] = ["-smp", "2", "-device", "virtio-rng-pci,id=rng"];

/// Exit code and all lines of standard error.
fn said(args: &[&str]) -> (i32, String) {
    let output = mem(args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_checkpoint_goes_into_its_own_machine_only() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoint = dir.path().join("x.ckpt");
    let guest = RunningGuest::with(dir.path(), "vm", "128M", "", &MACHINE);
    guest.counted(3);
    ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    drop(guest);
    let cases: [(&[&str], &[&str]); 10] = [
        (
            &["-cpu", "max"],
            &[
                "CPU model: saved with qemu64, this QEMU has max",
                "CPU features that the saved VM did not have and this QEMU has: ",
            ],
        ),
        (
            // The name is the same.
            &["-cpu", "qemu64,-cx16,+avx"],
            &[
                "CPU features that the saved VM had and this QEMU does not have: cx16",
                "CPU features that the saved VM did not have and this QEMU has: avx",
            ],
        ),
        (&["-machine", "pc"], &["machine type: saved with pc-q35-", "this QEMU has pc-i440fx-"]),
        (
            &["-device", "virtio-balloon-pci,id=more"],
            &["device more (virtio-balloon-pci at 02.0): the saved VM did not have it"],
        ),
        (&["-smp", "1"], &["vCPUs: saved with 2, this QEMU has 1"]),
        (&["-smp", "2,maxcpus=4"], &["vCPU maxcpus: saved with 2, this QEMU has 4"]),
        (
            &["-m", "128M,slots=2,maxmem=1G"],
            &[
                "memory max-size: saved with 134217728, this QEMU has 1073741824",
                "memory slots: saved with 0, this QEMU has 2",
            ],
        ),
        (&["-bios", "bios.bin"], &["length of pc.bios: saved with 262144, this QEMU has 131072"]),
        (
            &[
                "-m",
                "192M",
                "-object",
                "memory-backend-memfd,id=big,size=192M,share=on",
                "-machine",
                "memory-backend=big",
            ],
            &["memory: saved with mem of 128 MiB, this QEMU has big of 192 MiB"],
        ),
        (&["-machine", "hpet=off"], &["machine option hpet: saved with on, this QEMU has off"]),
    ];
    for (other, sentences) in cases {
        let arguments = [&MACHINE[..], &["-incoming", "defer"], other].concat();
        let guest = RunningGuest::with(dir.path(), "other", "128M", "", &arguments);
        let memory = guest.memory();
        let before = fs::metadata(&memory).unwrap().blocks();
        let (code, text) = said(&["restore", name(&checkpoint), "--qmp", name(&guest.qmp)]);
        assert_eq!(code, 4, "{other:?}: {text}");
        for sentence in sentences {
            assert!(text.contains(sentence), "{other:?}: {text}");
        }
        // Nothing was written, and it waits as before.
        assert_eq!(guest.monitor().status(), "inmigrate");
        assert_eq!(fs::metadata(&memory).unwrap().blocks(), before, "{other:?}");
    }
    // A device elsewhere, and one that is missing.
    for (device, sentence) in [
        (
            &["-device", "virtio-rng-pci,id=rng,addr=9"][..],
            "device rng (virtio-rng-pci at 01.0): addr: saved with 01.0, this QEMU has 09.0",
        ),
        (&[], "device rng (virtio-rng-pci at 01.0): this QEMU does not have it"),
    ] {
        let arguments = [&["-smp", "2", "-incoming", "defer"], device].concat();
        let guest = RunningGuest::with(dir.path(), "other", "128M", "", &arguments);
        let (code, text) = said(&["restore", name(&checkpoint), "--qmp", name(&guest.qmp)]);
        assert_eq!(code, 4, "{text}");
        assert!(text.contains(sentence), "{text}");
    }
    // Its own, and by force one with a device more that the guest does not know of.
    for (more, force) in [(&[][..], false), (&["-device", "virtio-balloon-pci"], true)] {
        let arguments = [&MACHINE[..], &["-incoming", "defer"], more].concat();
        let guest = RunningGuest::with(dir.path(), "own", "128M", "", &arguments);
        let mut args = vec!["restore", name(&checkpoint), "--qmp", name(&guest.qmp)];
        args.extend(force.then_some("--force"));
        let (code, text) = said(&args);
        assert_eq!(code, 0, "{text}");
        assert_eq!(text.contains("the saved VM did not have it"), force, "{text}");
        assert_eq!(text.is_empty(), !force, "{text}");
        check(&guest.counted(3));
    }
    by_version_1(dir.path(), &checkpoint);
}

/// A checkpoint of version 1 has no description: a message says so, and points to QEMU's error if QEMU rejects it.
fn by_version_1(folder: &Path, checkpoint: &Path) {
    let old = folder.join("old.ckpt");
    fs::write(&old, version_1(&fs::read(checkpoint).unwrap())).unwrap();
    let note = "has format version 1, which does not hold the machine, so it cannot be compared with this QEMU";
    let guest = RunningGuest::with(
        folder,
        "own",
        "128M",
        "",
        &[&MACHINE[..], &["-incoming", "defer"]].concat(),
    );
    let (code, text) = said(&["restore", name(&old), "--qmp", name(&guest.qmp)]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(note), "{text}");
    check(&guest.counted(3));
    let other = [&MACHINE[..], &["-incoming", "defer", "-machine", "pc"]].concat();
    let guest = RunningGuest::with(folder, "old-other", "128M", "", &other);
    let (code, text) = said(&["restore", name(&old), "--qmp", name(&guest.qmp)]);
    assert_eq!(code, 7, "{text}");
    assert!(
        text.contains("QEMU did not load the device state") && text.lines().count() == 2,
        "{text}"
    );
    // Memory is compared all the same.
    let small = [&MACHINE[..], &["-incoming", "defer"]].concat();
    let guest = RunningGuest::with(folder, "old-small", "64M", "", &small);
    let (code, text) = said(&["restore", name(&old), "--qmp", name(&guest.qmp), "--force"]);
    assert_eq!(code, 4, "{text}");
    assert!(
        text.contains("memory: saved with mem of 128 MiB, this QEMU has mem of 64 MiB"),
        "{text}"
    );
}

/// A checkpoint of version 3 as version 1 was: without description and layers, and under another id (docs/checkpoint-format.md).
fn version_1(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.len() - 128;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (state_at, state, description) = (word(end + 16), word(end + 24), word(end + 72));
    let description_at = state_at + state;
    let mut old = bytes[..description_at].to_vec();
    old.extend(&bytes[description_at + description..]);
    // The number of layers is behind the regions. With one of each, the rest of the index is in the same order.
    let mut at = description_at;
    at = uleb(&old, at).1 + uleb(&old, at).0;
    let (regions, name) = uleb(&old, at);
    assert_eq!(regions, 1);
    let (_pages, layers) = uleb(&old, uleb(&old, name).1 + uleb(&old, name).0);
    assert_eq!(old.remove(layers), 1);
    let end = old.len() - 128;
    old[8] = 1;
    old[end + 8] = 1;
    let index = end - description_at;
    old[end + 32..end + 40].copy_from_slice(&(index as u64).to_le_bytes());
    old[end + 72..end + 80].fill(0);
    let mut id = Sha256::new();
    for part in [&old[..4096], &old[state_at..end], &old[end..end + 96]] {
        id.update(part);
    }
    let id = id.finalize();
    old[end + 96..].copy_from_slice(&id);
    old
}

/// A number of the index, and where the next byte is.
fn uleb(bytes: &[u8], at: usize) -> (usize, usize) {
    let length = 1 + bytes[at..].iter().take_while(|byte| **byte >= 0x80).count();
    let digits = bytes[at..at + length].iter().rev();
    (digits.fold(0, |number, byte| number << 7 | usize::from(byte & 0x7f)), at + length)
}

/// What cannot be restored says so before anything is touched.
#[test]
fn a_qemu_that_does_not_wait_is_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoint = dir.path().join("x.ckpt");
    let guest = RunningGuest::start(dir.path(), "vm", "128M", "", false);
    guest.counted(2);
    ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&checkpoint)]);
    let (code, sentence) = refused(&["restore", name(&checkpoint), "--qmp", name(&guest.qmp)]);
    assert_eq!(code, 3, "{sentence}");
    assert!(sentence.contains("start one with -incoming defer"), "{sentence}");
    let before = guest.counts().len();
    check(&guest.counted(before + 2));
    // And one that waits is not saved.
    let waiting = RunningGuest::start(dir.path(), "waiting", "128M", "", true);
    let (code, sentence) = refused(&["save", "--qmp", name(&waiting.qmp), "-o", name(&checkpoint)]);
    assert_eq!(code, 3, "{sentence}");
    assert!(sentence.contains("waits for an incoming migration"), "{sentence}");
    waiting.monitor().run("quit", json!({}));
}
