//! Progress of reading: on a terminal, of what takes longer than two seconds, and gone at the end.

use std::fs;

use crate::terminal::Terminal;

/// A line of ftrace's text.
const LINE: &str = "  vm-100 [000] d.... 1.000000: kvm_entry: vcpu 0, rip 0xfff2\n";

#[test]
fn a_pipe_that_takes_longer_shows_bytes_and_rate() {
    let folder = tempfile::tempdir().unwrap();
    // Enough for the format to be recognised.
    fs::write(folder.path().join("head"), format!("# tracer: nop\n#\n{}", LINE.repeat(2000)))
        .unwrap();
    fs::write(folder.path().join("line"), LINE).unwrap();
    let program = env!("CARGO_BIN_EXE_vmtax");
    // The writer goes on until the progress was seen.
    let line = format!(
        "(cat head; while ! [ -e seen ]; do cat line; sleep 0.1; done) | {program} report - --event vmexit >report; \
         echo ended $?; exec sleep 1000"
    );
    let terminal = Terminal::start((100, 10), &line, folder.path());
    let screen = terminal.wait_for(" read, ");
    assert!(screen.contains("KiB read, ") && screen.contains("/s, "), "{screen}");
    fs::write(folder.path().join("seen"), "").unwrap();
    let screen = terminal.wait_for("ended 0");
    assert!(!screen.contains(" read, "), "{screen}");
    let report = fs::read_to_string(folder.path().join("report")).unwrap();
    assert!(!report.contains(" read, ") && !report.is_empty(), "{report}");
}
