//! A system behind ssh. Here ssh is a stand-in that runs on this computer what it is told to run there: nothing of the way is
//! tested but the commands that go over it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::{matrix, name, row, rows};

const MATRIX: &str = r#"
repeats = 2
warmup = false
categories = ["there"]
ssh = { there = "root@there" }
[[workload]]
use = "cpuid"
set = { seconds = 0.05 }
[[workload]]
name = "mine"
command = ["sh", "-c", "echo rate 7"]
pattern = 'rate (\d+)'
metric = "rate"
unit = "1/s"
better = "higher"
"#;

/// Runs a matrix with this script as ssh.
fn with_ssh(folder: &Path, script: &str, run: &Path) -> Output {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("ssh"), script).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .args(["bench", "run", name(&matrix(folder, MATRIX)), "-o", name(run)])
        .env("PATH", path)
        // What it makes there lies here.
        .env("TMPDIR", folder)
        .output()
        .unwrap()
}

/// Runs the last word, as the shell there would.
const STAND_IN: &str = "#!/bin/sh\nfor word; do :; done\nexec sh -c \"$word\"\n";

#[test]
fn a_system_behind_ssh_runs_the_same_agent() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let output = with_ssh(folder.path(), STAND_IN, &run);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = rows(&run);
    assert_eq!(row(&found, "mine", "rate", "there")["values"], "7 7");
    assert_eq!(row(&found, "cpuid", "time", "there")["n"], "2");
    // The agent was taken away again.
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("tmp.")), "{left:?}");
}

#[test]
fn a_system_that_cannot_be_reached_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let refusing = "#!/bin/sh\necho 'Permission denied (publickey).\\033[31m' >&2\nexit 255\n";
    let output = with_ssh(folder.path(), refusing, &folder.path().join("run"));
    assert_eq!(output.status.code(), Some(3));
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(
        sentence.contains("there: the agent did not do its work")
            && sentence.contains("Permission denied"),
        "{sentence}"
    );
    assert_eq!(sentence.lines().count(), 1);
    assert!(!sentence.contains('\u{1b}'), "{sentence:?}");
}
