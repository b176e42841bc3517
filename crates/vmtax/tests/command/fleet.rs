//! `vmtax query` and `vmtax fleet` become another program, which need not be there.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::check::executable;

/// A copy of vmtax in a folder of its own, with nothing in PATH.
fn alone(folder: &Path, words: &[&str]) -> Output {
    let copy = folder.join("vmtax");
    if !copy.exists() {
        // By another process: a program that is open for writing cannot be started.
        let status = Command::new("cp").arg(env!("CARGO_BIN_EXE_vmtax")).arg(&copy).status();
        assert!(status.unwrap().success());
    }
    Command::new(copy)
        .args(words)
        .current_dir(folder)
        .env("PATH", folder.join("bin"))
        .output()
        .unwrap()
}

fn program(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    executable(path, "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\nexit 6\n");
}

#[test]
fn the_other_program_is_found_beside_or_in_path_or_missed() {
    let folder = tempfile::tempdir().unwrap();
    for words in [["query", "SELECT 1"], ["fleet", "compact"]] {
        let output = alone(folder.path(), &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.starts_with("vmtax: vmtax-fleet is neither beside vmtax nor in PATH"),
            "{said}"
        );
    }
    for place in ["bin/vmtax-fleet", "vmtax-fleet"] {
        let path = folder.path().join(place);
        program(&path);
        for (words, passed) in [
            (
                &["query", "SELECT 'a b'", "--format", "csv", "run"][..],
                "query|SELECT 'a b'|--format|csv|run|",
            ),
            (&["query", "--help"], "query|--help|"),
            (&["fleet", "compact", "-o", "x", "-y"], "compact|-o|x|-y|"),
            (&["fleet"], ""),
        ] {
            let output = alone(folder.path(), words);
            let passed = format!("{}|{passed}", path.display());
            assert_eq!(String::from_utf8_lossy(&output.stdout), passed, "{words:?}");
            assert_eq!(output.status.code(), Some(6), "its exit code is ours");
        }
    }
}
