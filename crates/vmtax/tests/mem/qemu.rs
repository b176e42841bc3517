//! Real VMs: saved, killed, restored, going on.

use std::fs;
use std::path::Path;

use super::guest::{RunningGuest, check, qmp};
use super::{name, ok, refused};

#[test]
fn a_vm_is_saved_killed_restored_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    let mut guest = RunningGuest::start(dir.path(), "first", "192M", "", false);
    guest.counted(3);

    let (base, child, last) = (path("base.ckpt"), path("child.ckpt"), path("last.ckpt"));
    let socket = guest.qmp.clone();
    let socket = name(&socket);
    // Whole lines before and after a save: in between lies its moment.
    let before_base = guest.counts().len();
    ok(&["save", "--qmp", socket, "-o", name(&base)]);
    let after_base = guest.counts().len();
    // It goes on by itself.
    guest.counted(after_base + 3);
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

    for (name_of, checkpoint, moment) in
        [("again", &last, at_last..=at_last), ("older", &base, before_base..=after_base)]
    {
        let mut guest = RunningGuest::start(dir.path(), name_of, "192M", "", true);
        ok(&["restore", name(checkpoint), "--qmp", name(&guest.qmp)]);
        let counts = guest.counted(4);
        check(&counts);
        // From where it was saved: the line under way, or the next.
        let first = counts[0].count as usize;
        assert!(
            (*moment.start()..=moment.end() + 2).contains(&first),
            "went on with {first}, was saved at {moment:?}"
        );
        guest.kill();
    }
}

/// A save that fails lets the VM go on.
#[test]
fn a_vm_goes_on_after_a_save_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", "128M", "", false);
    guest.counted(2);
    let output = dir.path().join("no/such/folder/x.ckpt");
    let (code, sentence) = refused(&["save", "--qmp", name(&guest.qmp), "-o", name(&output)]);
    assert_eq!(code, 5, "{sentence}");
    let before = guest.counts().len();
    check(&guest.counted(before + 2));
}
