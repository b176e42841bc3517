//! Failures give one sentence and the documented exit code.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::{child_of, image, name, ok, refused};

#[test]
fn images_come_back_whole_and_in_increments() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    let mut state = image(300, 1);
    fs::write(path("a.img"), &state).unwrap();
    ok(&["save", "--image", name(&path("a.img")), "-o", name(&path("a.ckpt"))]);
    state[70_000..70_100].fill(7);
    state[4096 * 50..4096 * 60].fill(0);
    fs::write(path("b.img"), &state).unwrap();
    let [parent, b_image, b] = ["a.ckpt", "b.img", "b.ckpt"].map(path);
    let words = [&child_of(&parent, &b_image, &b)[..], &["--format", "json"]].concat();
    let saved: serde_json::Value = serde_json::from_str(&ok(&words)).unwrap();
    assert_eq!(
        (&saved["pages"]["deltas"], &saved["pages"]["zero"]),
        (&1.into(), &7.into()),
        "{saved}"
    );
    ok(&["restore", name(&b), "--image", name(&path("c.img"))]);
    assert!(fs::read(path("c.img")).unwrap() == state);
    // The parent by another name in another folder.
    fs::create_dir(path("sub")).unwrap();
    let child = path("sub/d.ckpt");
    ok(&child_of(&b, &path("a.img"), &child));
    ok(&["restore", name(&child), "--image", name(&path("c.img"))]);
    assert!(fs::read(path("c.img")).unwrap() == image(300, 1));
}

#[test]
fn every_refusal_has_an_exit_code_and_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    fs::write(path("a.img"), image(300, 1)).unwrap();
    fs::write(path("odd.img"), [1; 5000]).unwrap();
    let (image_path, checkpoint, out) = (path("a.img"), path("a.ckpt"), path("out"));
    ok(&["save", "--image", name(&image_path), "-o", name(&checkpoint)]);
    let mut bytes = fs::read(&checkpoint).unwrap();
    bytes[4096 * 3 + 9] ^= 1;
    fs::write(path("bad.ckpt"), &bytes).unwrap();
    fs::write(path("cut.ckpt"), &bytes[..bytes.len() - 5000]).unwrap();
    fs::write(path("text"), "hello").unwrap();
    fs::write(path("empty"), "").unwrap();
    let empty = path("empty");
    let (odd, bad, cut, text) = (path("odd.img"), path("bad.ckpt"), path("cut.ckpt"), path("text"));
    let (none, folder) = (path("none"), dir.path().to_owned());
    let cases: &[(&[&str], i32, &str)] = &[
        (&["restore", name(&bad), "--image", name(&out)], 4, "page 2 of \"image\" has checksum"),
        (&["verify", name(&bad)], 4, "its bytes were damaged"),
        (&["verify", name(&cut)], 4, "the end of a checkpoint is missing"),
        (&["verify", name(&text)], 4, "is not a checkpoint"),
        (&["verify", name(&none)], 3, "No such file"),
        (&["verify", name(&empty)], 4, "is not a checkpoint"),
        (&["verify", name(&image_path)], 4, "is not a checkpoint"),
        (&["restore", name(&empty), "--image", name(&out)], 4, "is not a checkpoint"),
        (&["restore", name(&cut), "--image", name(&out)], 4, "the end of a checkpoint is missing"),
        (&["restore", name(&checkpoint), "--image", name(&folder)], 5, "Is a directory"),
        (&["restore", name(&checkpoint), "--image", "/proc/x"], 5, ""),
        (&["save", "--image", name(&empty), "-o", name(&out)], 4, "0 bytes"),
        (&["save", "--image", name(&folder), "-o", name(&out)], 3, "is not a file"),
        (&child_of(&cut, &image_path, &out), 4, "the end of a checkpoint is missing"),
        (&child_of(&bad, &image_path, &out), 4, "page 2 of \"image\" has checksum"),
        (&["scan", name(&empty)], 4, "0 bytes"),
        (&["scan", name(&odd)], 4, "is not a multiple of 4096"),
        (&["scan", name(&folder)], 3, "is not a file"),
        (&["scan", "2"], 4, "no memory that could be a VM's"),
        (&["save", "--qmp", name(&text), "-o", name(&out)], 3, "is a QEMU with"),
        (&["bench", "--size", "65536"], 2, "are free; choose a smaller one"),
        (&["verify", name(&folder)], 4, "is not a checkpoint"),
        (&["save", "--image", name(&odd), "-o", name(&out)], 4, "is not a multiple of 4096"),
        (&["save", "--image", name(&none), "-o", name(&out)], 3, "No such file or directory"),
        (
            &["save", "--image", name(&image_path), "-o", name(&image_path)],
            2,
            "is also --image; choose another output",
        ),
        (
            &child_of(&checkpoint, &image_path, &checkpoint),
            2,
            "is also --parent; choose another output",
        ),
        (&["save", "--image", name(&image_path), "-o", "/proc/x"], 5, ""),
        (&["save", "-o", name(&out)], 2, ""),
        (&["save", "--qmp", name(&none), "-o", name(&out)], 3, "is a QEMU with"),
        (&["restore", name(&checkpoint), "--qmp", name(&none)], 3, "is a QEMU with"),
        (&["scan", name(&none)], 3, "No such file or directory"),
        (&["scan", "4194304"], 3, "no such process or file"),
        (&["scan", "1", "--accel", "gpu"], 2, "use auto, cpu, model, or queues"),
        (
            &[
                "save",
                "--accel",
                "dsa:/dev/dsa/wq0.0",
                "--image",
                name(&image_path),
                "-o",
                name(&out),
            ],
            3,
            "wq0.0",
        ),
    ];
    for (args, code, words) in cases {
        let (found, sentence) = refused(args);
        assert_eq!(found, *code, "{args:?}: {sentence}");
        assert!(sentence.contains(words), "{args:?}: {sentence}");
    }
    assert!(!out.exists(), "a refusal left a file");
    // The old image stays where a restore into it is refused.
    refused(&["restore", name(&bad), "--image", name(&image_path)]);
    assert!(fs::read(&image_path).unwrap() == image(300, 1));
}

#[test]
fn the_table_of_speeds_has_every_operation() {
    let table = ok(&["bench", "--size", "4", "--rounds", "1", "--accel", "model"]);
    for operation in [
        "read only",
        "memcpy",
        "is zero",
        "same fill",
        "compare",
        "copy",
        "fill",
        "crc32c",
        "scan+crc",
        "scan+crc+copy",
        "delta create",
        "delta apply",
        "xbzrle encode",
        "xbzrle decode",
        "scalar",
        "model: descriptors executed in software",
        "Model: comparing pages with engines that are always busy (computed)",
    ] {
        assert!(table.contains(operation), "{operation} is missing:\n{table}");
    }
    let json = ["bench", "--size", "2", "--rounds", "1", "--accel", "model", "--format", "json"];
    let json: serde_json::Value = serde_json::from_str(&ok(&json)).unwrap();
    let by_device =
        ["is zero", "compare", "copy", "fill", "crc32c", "delta create", "delta apply", "scan+crc"];
    for row in json["operations"].as_array().unwrap() {
        let (operation, speeds) = (row["operation"].as_str().unwrap(), &row["gb_per_second"]);
        assert!(speeds["scalar"].as_f64().unwrap() > 0.0, "{row}");
        let device = by_device.contains(&operation);
        assert_eq!(speeds["model"].as_f64().is_some_and(|speed| speed > 0.0), device, "{row}");
    }
}

/// `vmtax mem`, run by a user who owns nothing. `None` where that cannot be arranged.
fn as_nobody(folder: &Path, args: &[&str]) -> Option<(i32, String)> {
    let root = rustix::process::geteuid().is_root();
    let mut command = if root {
        // The build's own folder may be closed to others.
        let copy = folder.join("vmtax");
        if !copy.exists() {
            // By another process: a program that is open for writing cannot be started.
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_vmtax")).arg(&copy).status();
            assert!(copied.unwrap().success());
        }
        let mut command = Command::new(copy);
        command.uid(65534).gid(65534);
        command
    } else {
        Command::new(env!("CARGO_BIN_EXE_vmtax"))
    };
    let output = command.arg("mem").args(args).output().ok()?;
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "not one sentence: {sentence}");
    Some((output.status.code().unwrap(), sentence))
}

#[test]
fn missing_privileges_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(dir.path(), 0o755);
    fs::write(path("open.img"), image(8, 1)).unwrap();
    ok(&["save", "--image", name(&path("open.img")), "-o", name(&path("closed.ckpt"))]);
    fs::write(path("closed.img"), image(8, 1)).unwrap();
    let _monitor = UnixListener::bind(path("closed.qmp")).unwrap();
    for closed in ["closed.img", "closed.ckpt", "closed.qmp"] {
        mode(&path(closed), 0);
    }
    fs::create_dir(path("closed")).unwrap();
    mode(&path("closed"), 0o555);
    let (opened, closed, checkpoint) = (path("open.img"), path("closed.img"), path("closed.ckpt"));
    let (monitor, out) = (path("closed.qmp"), path("closed/out"));
    let ours = std::env::temp_dir().join(format!("vmtax-rights-{}", std::process::id()));
    let cases: &[(&[&str], i32, &str)] = &[
        (&["scan", name(&closed)], 3, "run vmtax as its owner"),
        // The first process belongs to root.
        (&["scan", "1"], 3, "run vmtax as its user, or as root"),
        (&["save", "--image", name(&closed), "-o", name(&ours)], 3, "run vmtax as its owner"),
        (&["save", "--image", name(&opened), "-o", name(&out)], 5, "choose another place"),
        (&["save", "--qmp", name(&monitor), "-o", name(&ours)], 3, "as the user of the VM"),
        (&["verify", name(&checkpoint)], 3, "ermission denied"),
        (&["restore", name(&checkpoint), "--image", name(&ours)], 3, "ermission denied"),
        (&child_of(&checkpoint, &opened, &ours), 3, "ermission denied"),
    ];
    for (args, code, words) in cases {
        let Some((found, sentence)) = as_nobody(dir.path(), args) else {
            return vmtax_skipped::system("another user's program cannot be started here");
        };
        assert_eq!(found, *code, "{args:?}: {sentence}");
        assert!(sentence.contains(words), "{args:?}: {sentence}");
    }
    assert!(!ours.exists(), "a refusal left a file");
    mode(&path("closed"), 0o755);
}

/// A disk of a MiB that fills up: the old checkpoint stays, and nothing half beside it.
#[test]
fn a_full_disk_leaves_the_old_checkpoint_and_nothing_half() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    fs::write(path("small.img"), image(8, 1)).unwrap();
    fs::write(path("large.img"), image(800, 2)).unwrap();
    let large = path("large.ckpt");
    ok(&["save", "--image", name(&path("large.img")), "-o", name(&large)]);
    fs::create_dir(path("disk")).unwrap();
    let script = r#"
        cd "$1" && mount -t tmpfs -o size=1m none disk || exit 99
        "$0" mem save --image small.img -o disk/x.ckpt >out || exit 98
        "$0" mem save --image large.img -o disk/x.ckpt; echo "save $?"
        "$0" mem restore large.ckpt --image disk/y.img; echo "restore $?"
        "$0" mem verify disk/x.ckpt >out; echo "verify $?"
        "$0" mem verify disk/x.ckpt >/dev/full; echo "print $?"
        ls -A disk"#;
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_vmtax"), name(dir.path())])
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(99) && !output.stdout.is_empty() => output,
        other => {
            let reason = format!("no file system can be mounted here: {other:?}");
            return vmtax_skipped::system(&reason);
        }
    };
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(found, "save 5\nrestore 5\nverify 0\nprint 5\nx.ckpt\n");
    let said = String::from_utf8(output.stderr).unwrap();
    let sentences: Vec<&str> = said.lines().collect();
    assert_eq!(sentences.len(), 3, "{said}");
    assert!(sentences[0].contains("x.ckpt: cannot be written: No space left"), "{said}");
    assert!(sentences[1].contains("y.img: cannot be written: No space left"), "{said}");
}

/// Opening a pipe would wait for its writer, and a signal is not noticed meanwhile.
#[test]
fn a_pipe_in_place_of_an_image_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, output) = (dir.path().join("pipe"), dir.path().join("x.ckpt"));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (pipe, output) = (name(&pipe), name(&output));
    for args in [
        &["save", "--image", pipe, "-o", output][..],
        &["save", "--image", "/dev/zero", "-o", output],
        &["save", "--image", "/dev/zero", "-o", output, "--parent", pipe],
        &["scan", pipe],
    ] {
        let (code, sentence) = refused(args);
        assert!(matches!(code, 3 | 4) && sentence.contains("is not a"), "{args:?}: {sentence}");
    }
}
