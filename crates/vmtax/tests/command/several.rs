//! `vmtax report` of several recordings, a column for each.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::captures::unpack;
use crate::check::{Program, check, stdout};
use crate::terminal::Terminal;

fn json(folder: &Path, words: &str) -> Value {
    serde_json::from_slice(&stdout(folder, &format!("{words} --format json"))).unwrap()
}

fn text(folder: &Path, words: &str) -> String {
    String::from_utf8(stdout(folder, words)).unwrap()
}

/// Two recordings of emulated AMD hosts.
fn two() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tree")).unwrap();
    fs::copy(unpack("amd-sched", "sched.perf.data.zst"), folder.path().join("tree/sched")).unwrap();
    fs::copy(unpack("amd-nested", "all.perf.data.zst"), folder.path().join("tree/nested")).unwrap();
    folder
}

/// The numbers of a column are those of the recording's own report.
#[test]
fn columns_are_the_recordings_own_reports() {
    let folder = two();
    let both = json(folder.path(), "report tree/sched tree/nested --event cause,vmexit,msr");
    assert_eq!(both["schema"], "vmtax-report-several-1");
    for name in ["sched", "nested"] {
        let own = json(folder.path(), &format!("report tree/{name} --event cause,vmexit,msr"));
        let mut compared = 0;
        for table in own["tables"].as_array().unwrap() {
            let of_own: Vec<&Value> = table["rows"].as_array().unwrap().iter().collect();
            let list = both[table["event"].as_str().unwrap()].as_array().unwrap();
            let of_both: Vec<&Value> = list.iter().filter(|row| row["recording"] == name).collect();
            assert_eq!(of_own.len(), of_both.len(), "{name} {}", table["event"]);
            for (one, other) in of_own.iter().zip(of_both) {
                for key in ["cause", "reason", "level", "detail", "count"] {
                    assert_eq!(one[key], other[key], "{name} {key}");
                }
                if other["time_ns"] != Value::Null {
                    assert_eq!(one["time_ns"], other["time_ns"], "{name}");
                }
                compared += 1;
            }
        }
        assert!(compared > 5, "{name}: {compared}");
    }
}

#[test]
fn the_numbers_of_recordings_stand_side_by_side() {
    let folder = two();
    let shown = text(folder.path(), "report tree/sched tree/nested --event cause");
    let head = shown.lines().find(|line| line.trim_start().starts_with("cause"));
    assert!(head.is_some_and(|head| head.contains("sched") && head.contains("nested")), "{shown}");
    let row = shown.lines().find(|line| line.trim_start().starts_with("cpuid")).unwrap();
    let own = text(folder.path(), "report tree/sched --event cause");
    let own = own.lines().find(|line| line.trim_start().starts_with("cpuid")).unwrap();
    let count = own.split_whitespace().nth(1).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some(count), "{own}: {row}");
    assert!(shown.contains("Emulated (QEMU TCG): times do not reflect hardware."), "{shown}");
    assert!(shown.contains(": time\n") && !shown.contains(", recordings 1 to"), "{shown}");
}

/// Columns that do not fit stand in a table below. No line is wider than the terminal, but for that of the recordings.
#[test]
fn a_narrow_terminal_gets_the_columns_in_groups() {
    let folder = two();
    let program = env!("CARGO_BIN_EXE_vmtax");
    let files = "tree/sched tree/nested tree/sched tree/nested";
    let line = format!("{program} report {files} --event cause; echo code $?; sleep 600");
    let terminal = Terminal::start((64, 120), &line, folder.path());
    let shown = terminal.wait("the report", |screen| screen.contains("code 0"));
    for (first, last) in [(1, 2), (3, 4)] {
        let title = format!(": count, recordings {first} to {last} of 4");
        assert!(shown.contains(&title), "{title}:\n{shown}");
    }
    let head = shown.lines().filter(|line| line.trim_start().starts_with("cause "));
    assert!(head.clone().count() == 4 && head.clone().all(|line| line.len() < 64), "{shown}");
}

/// A terminal cannot show a timeline.
#[test]
fn binary_output_to_a_terminal_is_refused() {
    let folder = two();
    let program = env!("CARGO_BIN_EXE_vmtax");
    for output in ["", "-o /dev/tty"] {
        let line = format!(
            "{program} report tree/sched --format perfetto {output}; echo code $?; sleep 600"
        );
        let terminal = Terminal::start((120, 20), &line, folder.path());
        let shown = terminal.wait("the refusal", |screen| screen.contains("code "));
        let sentence = "vmtax: --format perfetto: is binary, and ";
        assert!(shown.starts_with(sentence) && shown.contains("code 2"), "{shown}");
        assert!(shown.replace('\n', " ").contains("name a file with -o, or"), "{shown}");
    }
    // A pipe gets it.
    assert!(stdout(folder.path(), "report tree/sched --format perfetto").len() > 1000);
}

/// Times of an emulated host do not stand beside those of another.
#[test]
fn times_of_an_emulated_host_are_not_shown_beside_others() {
    let folder = two();
    fs::write(folder.path().join("dump"), super::diff::PLAIN).unwrap();
    stdout(folder.path(), "import dump --isa vmx -o plain");
    let shown = text(folder.path(), "report tree/sched plain");
    assert!(shown.contains("left out: not all recordings are of the same kind"), "{shown}");
    assert!(!shown.contains(": time\n"), "{shown}");
    // What a recording lacks is 0 where its table has other rows.
    let row = shown.lines().find(|line| line.trim_start().starts_with("host-interrupt")).unwrap();
    assert!(row.contains("143,007"), "{row}");
}

#[test]
fn commands_for_one_recording_refuse_several() {
    let folder = two();
    fs::write(folder.path().join("empty"), "").unwrap();
    let check = |cases: &[(&str, i32, &str)]| check(&Program::new(), folder.path(), cases);
    let two = "report tree/sched tree/nested";
    check(&[
        (
            &format!("{two} --format perfetto"),
            2,
            "--format perfetto: takes one recording, and 2 are named; several have text, json, csv and html",
        ),
        (&format!("{two} --event nested"), 2, "--event: several recordings have the tables *"),
        (&format!("{two} --by vcpu"), 2, "--by vcpu: VMs of different recordings are unrelated; *"),
        (&format!("{two} -o tree/nested"), 2, "tree/nested: is the input; *"),
        ("report - -", 2, "*"),
        ("report tree/sched missing", 3, "missing: *"),
        ("report tree/sched empty", 4, "empty: *"),
    ]);
}
