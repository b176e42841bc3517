//! Completions, man pages and help.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::check::{stdout, vmtax};

const COMMANDS: [&str; 4] = ["report", "import", "record", "doctor"];

/// Runs a program with this standard input; `None` when its package is not installed.
fn feed(program: &str, package: &str, args: &[&str], input: &[u8]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        vmtax_skipped::package(package);
        return None;
    };
    child.stdin.take().unwrap().write_all(input).unwrap();
    Some(child.wait_with_output().unwrap())
}

#[test]
fn completions_are_scripts() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(folder.path(), &format!("completions {shell}"));
        let text = String::from_utf8(script.clone()).unwrap();
        for word in COMMANDS.into_iter().chain(["interval"]) {
            assert!(text.contains(word), "{shell}: {word}");
        }
        // Debian has no PowerShell, and an elvish that cannot check a script.
        if ["elvish", "powershell"].contains(&shell) {
            continue;
        }
        if let Some(output) = feed(shell, shell, &["-n"], &script) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{shell}: {said}");
        }
    }
}

/// What bash proposes after some words.
#[test]
fn bash_completes_flags_and_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let script = stdout(folder.path(), "completions bash");
    let script = String::from_utf8(script).unwrap();
    for (words, proposed) in [
        ("vmtax re", "report"),
        ("vmtax report --for", "--format"),
        ("vmtax report --format per", "perfetto"),
        ("vmtax import --lab", "--label"),
        ("vmtax query --quest", "--question"),
        ("vmtax query --format par", "parquet"),
        ("vmtax fleet comp", "compact"),
        ("vmtax lab run --suite pag", "paging"),
        ("vmtax lab run --operation touch-", "touch-4k"),
        ("vmtax lab bisect-step --operation cpu", "cpuid"),
        ("vmtax fleet compact --rem", "--remove"),
    ] {
        let list: Vec<&str> = words.split(' ').collect();
        let [.., before, last] = list[..] else { panic!("{words}") };
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={}; _vmtax vmtax {last} {before}\nprintf '%s\\n' \
             \"${{COMPREPLY[@]}}\"",
            list.len() - 1
        );
        let output = feed("bash", "bash", &[], ask.as_bytes()).unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(answer.lines().any(|line| line == proposed), "{words}: {answer:?}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    stdout(folder.path(), "man new/man1");
    // A second time replaces them.
    stdout(folder.path(), "man new/man1");
    let pages = folder.path().join("new/man1");
    let named = COMMANDS.into_iter().chain(["query", "fleet", "fleet-compact", "fleet-check"]);
    for name in named.map(|command| format!("vmtax-{command}.1")).chain(["vmtax.1".to_owned()]) {
        let page = fs::read_to_string(pages.join(&name)).unwrap();
        assert!(page.lines().any(|line| line.starts_with(".TH ")), "{name}");
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
        if let Some(output) =
            feed("groff", "groff-base", &["-man", "-Tutf8", "-ww", "-Kutf8"], page.as_bytes())
        {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{name}: {said}");
            let rendered = String::from_utf8_lossy(&output.stdout);
            assert!(rendered.contains("Example"), "{name}: {rendered}");
        }
    }
}

/// `vmtax query` passes its arguments to another program, whose flags its page has all the same.
#[test]
fn the_pages_of_query_and_fleet_are_those_of_the_other_program() {
    let folder = tempfile::tempdir().unwrap();
    stdout(folder.path(), "man man1");
    let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
    let query = page("vmtax-query.1");
    for flag in ["question", "param", "strict", "memory", "cluster"] {
        assert!(query.contains(&format!("\\-\\-{flag}")), "{flag}: {query}");
    }
    assert!(page("vmtax-fleet.1").contains("vmtax\\-fleet\\-compact(1)"));
    assert!(page("vmtax-fleet-compact.1").contains("\\-\\-remove"));
}

#[test]
fn a_man_page_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    fs::create_dir_all(pages.join("vmtax-import.1/in the way")).unwrap();
    let output = vmtax(folder.path(), "man man1");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.starts_with("vmtax: man1/vmtax-import.1: cannot be written: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for entry in fs::read_dir(pages).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with("vmtax"), "{name} is left");
    }
}

#[test]
fn every_help_has_an_example() {
    let folder = tempfile::tempdir().unwrap();
    for command in COMMANDS {
        let help = stdout(folder.path(), &format!("{command} --help"));
        let help = String::from_utf8(help).unwrap();
        let (_, examples) =
            help.split_once("\nExample").unwrap_or_else(|| panic!("{command}: {help}"));
        assert!(examples.contains(&format!("vmtax {command} ")), "{command}: {examples}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{command}: {help}");
    }
    assert!(String::from_utf8(stdout(folder.path(), "--help")).unwrap().contains("Examples:"));
}
