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

/// What it says in place of the other program's answer.
const MISSING: &str = "vmtax: vmtax-fleet, the engine of queries, is neither beside vmtax nor in PATH; install the package vmtax-fleet, or build it in a clone \
                       of vmtax: cargo install --locked --path fleet";

#[test]
fn the_other_program_is_found_beside_or_in_path_or_missed() {
    let folder = tempfile::tempdir().unwrap();
    let duckdb = "; or query with DuckDB: vmtax query --duckdb -o words.sql";
    for (words, more) in [
        (&["query", "SELECT 1", "run"][..], duckdb),
        (&["query", "--question", "nested", "run"], duckdb),
        (&["fleet", "compact", "tree"], ""),
    ] {
        let output = alone(folder.path(), words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert_eq!(said, format!("{MISSING}{more}\n"));
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

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Questions and the SQL for DuckDB need no engine.
#[test]
fn questions_are_listed_and_sql_is_printed_without_the_other_program() {
    let folder = tempfile::tempdir().unwrap();
    let list = text(&alone(folder.path(), &["query", "--list"]));
    let names: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    assert_eq!(
        names,
        ["top-causes", "tax-rose", "kernels", "small-pages", "nested", "worst-vcpus"]
    );
    assert!(
        list.contains("\n  --param since=... first day to include (date; default: 0000-01-01)\n")
    );

    let sql = text(&alone(folder.path(), &["query", "--duckdb"]));
    assert!(sql.ends_with(";\n") && sql.contains("MACRO exits_named(files) AS TABLE\n"), "{sql}");
    assert_eq!(text(&alone(folder.path(), &["query", "--duckdb", "-o", "words.sql"])), "");
    assert_eq!(fs::read_to_string(folder.path().join("words.sql")).unwrap(), sql);

    let help = text(&alone(folder.path(), &["query", "--help"]));
    assert!(help.contains("Usage: vmtax query [OPTIONS]") && help.contains("--duckdb"), "{help}");
    let help = text(&alone(folder.path(), &["fleet", "compact", "--help"]));
    assert!(help.contains("Usage: vmtax fleet compact [OPTIONS] <TREE>"), "{help}");
    let wrong = alone(folder.path(), &["query", "--lst"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", String::from_utf8_lossy(&wrong.stderr));
}
