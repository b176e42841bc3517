//! A full disk: the sentence says so, and what is left does not look whole.
//!
//! The disk is a tmpfs in a mount namespace of the test's own (`unshare`), so nothing has to be unmounted and invisible to
//! other processes. Where the system refuses that the test is skipped.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::captures::unpack;
use crate::check::complaints;
use crate::damage::assert_incomplete;

/// The flags of `unshare` that this system allows to this user.
fn namespace(disk: &Path) -> Option<&'static str> {
    ["-m", "-rm"].into_iter().find(|flags| {
        let mut probe = Command::new("unshare");
        probe.args([flags, "sh", "-c", "mount -t tmpfs none \"$0\""]).arg(disk);
        probe.output().is_ok_and(|output| output.status.success())
    })
}

/// Runs a shell script with a disk of `size` at `./disk`. `$vmtax` is the program, `$input` a recording.
fn with_disk(folder: &Path, size: &str, input: &Path, script: &str) -> Option<Output> {
    fs::create_dir_all(folder.join("disk")).unwrap();
    let Some(flags) = namespace(&folder.join("disk")) else {
        vmtax_skipped::system("no tmpfs can be mounted here, so no disk can be filled");
        return None;
    };
    let script = format!("mount -t tmpfs -o size={size} none disk || exit 99\n{script}");
    let mut command = Command::new("unshare");
    command.args([flags, "sh", "-c", &script]).current_dir(folder);
    command.env("vmtax", env!("CARGO_BIN_EXE_vmtax")).env("input", input);
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(99), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

#[test]
fn an_import_onto_a_full_disk_leaves_no_whole_run() {
    let input = unpack("amd-nested", "all.perf.data.zst");
    let mut stored = 0;
    // From too small for the manifest to nearly large enough for all of it.
    for size in ["4k", "8k", "12k", "40k", "400k", "1000k", "1400k", "2000k"] {
        let folder = tempfile::tempdir().unwrap();
        let script = "\"$vmtax\" import \"$input\" --raw --interval 1us -o disk/run; code=$?
            find disk -name '.*' -type f >&2
            [ ! -e disk/run ] || cp -a disk/run run
            exit $code";
        let Some(output) = with_disk(folder.path(), size, &input, script) else { return };
        let wrong = complaints(
            &output,
            5,
            "disk/run*No space left on device (os error 28); free some space, or write to another file system",
        );
        assert!(wrong.is_empty(), "{size}: {wrong:?}");
        let run = folder.path().join("run");
        assert_incomplete(&run);
        stored += usize::from(run.join("exits").exists());
    }
    assert!(stored > 0, "no disk was large enough for anything");
}

#[test]
fn a_report_onto_a_full_disk_leaves_no_file() {
    let input = unpack("amd-nested", "all.perf.data.zst");
    for format in ["json", "html", "perfetto"] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "\"$vmtax\" report \"$input\" --format {format} -o disk/report; code=$?
             ls -A disk; exit $code"
        );
        let Some(output) = with_disk(folder.path(), "8k", &input, &script) else { return };
        let wrong = complaints(
            &output,
            5,
            "disk/report: cannot be written: No space left on device (os error 28); free some space, or write to another file system",
        );
        assert!(wrong.is_empty(), "{format}: {wrong:?}");
    }
}

/// What comes through a pipe and is read out of order is stored in the folder for temporary files first.
#[test]
fn a_full_temporary_folder_is_an_error() {
    let input = unpack("amd-nested", "v7.trace.dat");
    let folder = tempfile::tempdir().unwrap();
    let script =
        "cat \"$input\" | TMPDIR=disk \"$vmtax\" report -; code=$?; ls -A disk; exit $code";
    let Some(output) = with_disk(folder.path(), "100k", &input, script) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.starts_with("vmtax: ")).collect();
    let [ours] = ours[..] else { panic!("{said}") };
    let ours = Output { stderr: format!("{ours}\n").into_bytes(), ..output };
    let wrong = complaints(
        &ours,
        5,
        "disk: cannot store standard input there: *; set TMPDIR to a folder with enough space",
    );
    assert!(wrong.is_empty(), "{wrong:?}");
}
