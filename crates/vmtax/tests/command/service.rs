//! `vmtax record --tree` as a service, as far as no KVM is needed: its flags, the units of examples/, and the upload of closed runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::captures::unpack;
use crate::check::{Program, check, executable, stdout, vmtax};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

#[test]
fn flags_of_a_tree_need_a_tree() {
    let folder = tempfile::tempdir().unwrap();
    let check = |words: &str| check(&Program::new(), folder.path(), &[(words, 2, "*")]);
    for words in [
        "record --rotate 1h",
        "record --rotate-size 1G",
        "record --keep 1d",
        "record --disk-share 5",
        "record --tree tree -o run",
        "record --tree tree -- true",
        "record --tree tree --disk-share 0",
        "record --tree tree --disk-share 101",
        "record --tree tree --rotate 0s",
        "record --tree tree --rotate-size 64K",
    ] {
        check(words);
    }
}

/// A command line of an example is one that this vmtax takes: it fails for want of KVM, or records for a moment.
#[test]
fn the_command_lines_of_the_examples_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(example("record/vmtax-record.service")).unwrap();
    let line =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/vmtax ")).unwrap();
    assert!(line.contains("--tree /var/lib/vmtax "), "{line}");
    let line = format!("{} --duration 1s", line.replace("/var/lib/vmtax", "tree"));
    let output = vmtax(folder.path(), &line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{line}: {said}");
    let daemons = fs::read_to_string(example("kubernetes/daemonset.yaml")).unwrap();
    let args = daemons.lines().find_map(|line| line.trim().strip_prefix("args: [")).unwrap();
    let words: Vec<&str> =
        args.trim_end_matches(']').split(", ").map(|w| w.trim_matches('"')).collect();
    // A port that nobody may take here would be another failure.
    let line = words.join(" ").replace(":9435", ":0").replace("export", "export --textfile m.prom");
    let output = vmtax(folder.path(), &line);
    let said = String::from_utf8_lossy(&output.stderr);
    // Both at once are refused, by names that both exist.
    assert_eq!(output.status.code(), Some(2), "{line}: {said}");
    assert!(said.contains("--listen") && said.contains("--textfile"), "{said}");
}

/// A program in the place of rclone that copies on this disk, and writes down what it was asked.
const RCLONE: &str = r#"#!/bin/sh
set -eu
echo "$1 $#" >>"$LOG"
case $1 in
copy)
  [ "$2 $3 $4 $5" = "--exclude /run.json --exclude .*" ]
  mkdir -p "$7"
  (cd "$6" && find . -name '.*' ! -name . -prune -o -type f ! -path ./run.json -print) | while read -r file; do
    mkdir -p "$7/$(dirname "$file")"
    cp "$6/$file" "$7/$file"
  done
  [ ! -e "$7/run.json" ]
  ;;
copyto) [ -d "$(dirname "$3")/exits" ]; cp "$2" "$3" ;;
*) exit 1 ;;
esac
"#;

#[test]
fn closed_runs_are_uploaded_once_and_their_manifest_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::copy(unpack("amd-nested", "perf-script.txt"), path("good")).unwrap();
    let day = path("tree/host=web1/date=2026-01-31");
    fs::create_dir_all(&day).unwrap();
    for name in ["100000Z", "110000Z", "120000Z"] {
        stdout(folder.path(), &format!("import good -o {}", day.join(name).display()));
    }
    // The last one is still open.
    let open = day.join("120000Z/run.json");
    let manifest = fs::read_to_string(&open).unwrap();
    fs::write(&open, manifest.replace("\"complete\": true", "\"complete\": false")).unwrap();
    fs::create_dir(path("bin")).unwrap();
    executable(&path("bin/rclone"), RCLONE);
    let upload = || {
        let mut command = Command::new("sh");
        command.arg(example("record/vmtax-upload")).args(["tree/", "store/fleet/"]);
        let search = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{search}", path("bin").display()));
        command.env("LOG", path("log")).current_dir(folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(path("log")).unwrap().lines().count()
    };
    assert_eq!(upload(), 4);
    let store = path("store/fleet/host=web1/date=2026-01-31");
    for name in ["100000Z", "110000Z"] {
        let report =
            |run: &Path| stdout(folder.path(), &format!("report {} --format csv", run.display()));
        assert!(report(&store.join(name)) == report(&day.join(name)), "{name}");
        assert!(!store.join(name).join(".uploaded").exists());
    }
    assert!(!store.join("120000Z").exists());
    // Again: nothing, until the open run is closed.
    assert_eq!(upload(), 4);
    fs::write(&open, manifest).unwrap();
    assert_eq!(upload(), 6);
    assert!(store.join("120000Z/run.json").exists());
}
