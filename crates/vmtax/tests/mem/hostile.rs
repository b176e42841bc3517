//! What cannot be done is said in one sentence with the exit code that is documented.

use std::fs;

use super::{image, name, ok, refused};

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
    let b = [
        "save",
        "--image",
        name(&path("b.img")),
        "-o",
        name(&path("b.ckpt")),
        "--parent",
        name(&path("a.ckpt")),
        "--format",
        "json",
    ]
    .map(str::to_owned);
    let b: Vec<&str> = b.iter().map(String::as_str).collect();
    let saved: serde_json::Value = serde_json::from_str(&ok(&b)).unwrap();
    assert_eq!(
        (&saved["pages"]["deltas"], &saved["pages"]["zero"]),
        (&1.into(), &7.into()),
        "{saved}"
    );
    ok(&["restore", name(&path("b.ckpt")), "--image", name(&path("c.img"))]);
    assert!(fs::read(path("c.img")).unwrap() == state);
    // The parent by another name in another folder.
    fs::create_dir(path("sub")).unwrap();
    let child = path("sub/d.ckpt");
    ok(&[
        "save",
        "--image",
        name(&path("a.img")),
        "-o",
        name(&child),
        "--parent",
        name(&path("b.ckpt")),
    ]);
    ok(&["restore", name(&child), "--image", name(&path("c.img"))]);
    assert!(fs::read(path("c.img")).unwrap() == image(300, 1));
}

#[test]
fn every_refusal_has_its_code_and_says_why() {
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
    let (odd, bad, cut, text) = (path("odd.img"), path("bad.ckpt"), path("cut.ckpt"), path("text"));
    let (none, folder) = (path("none"), dir.path().to_owned());
    let cases: &[(&[&str], i32, &str)] = &[
        (&["restore", name(&bad), "--image", name(&out)], 4, "page 2 of \"image\" has checksum"),
        (&["verify", name(&bad)], 4, "its bytes were damaged"),
        (&["verify", name(&cut)], 4, "the end of a checkpoint is missing"),
        (&["verify", name(&text)], 4, "is not a checkpoint"),
        (&["verify", name(&none)], 3, "No such file"),
        (&["verify", name(&folder)], 4, "is not a checkpoint"),
        (&["save", "--image", name(&odd), "-o", name(&out)], 4, "which is no number of pages"),
        (&["save", "--image", name(&none), "-o", name(&out)], 3, "cannot be opened"),
        (
            &["save", "--image", name(&image_path), "-o", name(&image_path)],
            2,
            "is given as --image too",
        ),
        (
            &[
                "save",
                "--image",
                name(&image_path),
                "-o",
                name(&checkpoint),
                "--parent",
                name(&checkpoint),
            ],
            2,
            "is given as --parent too",
        ),
        (&["save", "--image", name(&image_path), "-o", "/proc/x"], 5, ""),
        (&["save", "-o", name(&out)], 2, ""),
        (&["save", "--qmp", name(&none), "-o", name(&out)], 3, "is a QEMU with"),
        (&["restore", name(&checkpoint), "--qmp", name(&none)], 3, "is a QEMU with"),
        (&["scan", name(&none)], 3, "cannot be opened"),
        (&["scan", "4194304"], 3, "no process of this number"),
        (&["scan", "1", "--accel", "gpu"], 2, "use auto, cpu, model, or queues"),
        (
            &[
                "save",
                "--image",
                name(&image_path),
                "-o",
                name(&out),
                "--accel",
                "dsa:/dev/dsa/wq0.0",
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
        "xbzrle encode",
        "xbzrle decode",
        "scalar",
        "device",
    ] {
        assert!(table.contains(operation), "{operation} is missing:\n{table}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&ok(&["bench", "--size", "2", "--rounds", "1", "--format", "json"]))
            .unwrap();
    let speed = &json["operations"][0]["gb_per_second"]["scalar"];
    assert!(speed.as_f64().unwrap() > 0.0, "{json}");
}
