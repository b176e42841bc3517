//! A run has one writer: the error of a second one names the first; it changes nothing, and takes over when the first is killed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::captures::unpack;
use crate::check::{Program, check, stdout, vmtax};

/// Each writer, on the run `run` that another process writes.
const WRITERS: [&str; 7] = [
    "import capture -o run",
    "record -o run",
    "record --all -o ./run/",
    "lab run --operation cpuid -o run",
    "bench run matrix.toml -o run",
    "bench run matrix.toml -o run --resume",
    "bench merge part1 part2 -o run",
];

/// Cells that end when the file `go` is there; the first of them makes the file `started`.
const MATRIX: &str = r#"
name = "locks"
repeats = 5
warmup = false
limit_seconds = 600
categories = ["host"]
[[workload]]
name = "waits"
command = ["sh", "-c", ": >> FOLDER/started; until test -e FOLDER/go; do sleep 0.05; done; echo value 1"]
pattern = 'value (\d+)'
metric = "value"
unit = "count"
better = "lower"
"#;

/// A writer in a folder of its own, which is killed when the test ends.
struct LockingWriter {
    folder: tempfile::TempDir,
    child: Child,
    words: &'static str,
}

impl LockingWriter {
    fn start(words: &'static str, prepare: impl FnOnce(&mut Command)) -> LockingWriter {
        let folder = tempfile::tempdir().unwrap();
        let capture = unpack("amd-nested", "perf-script.txt");
        std::os::unix::fs::symlink(capture, folder.path().join("capture")).unwrap();
        let matrix = MATRIX.replace("FOLDER", folder.path().to_str().unwrap());
        fs::write(folder.path().join("matrix.toml"), matrix).unwrap();
        let mut command = Program::new().command(folder.path(), words);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command);
        let child = command.spawn().unwrap();
        LockingWriter { folder, child, words }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn wait_for(&mut self, what: &str, is_there: impl Fn(&Path) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(600);
        while !is_there(self.folder.path()) {
            assert!(self.child.try_wait().unwrap().is_none(), "{}: ended by itself", self.words);
            assert!(Instant::now() < deadline, "{}: there is no {what}", self.words);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every writer is refused, and nothing changes.
    fn keeps_others_out(&self) {
        let (process, words) = (self.child.id(), self.words);
        let sentence = format!(
            "*run*: is being written by process {process} (*vmtax {words}); wait for it to end, or name another folder"
        );
        let cases = WRITERS.map(|words| (words, 5, sentence.as_str()));
        check(&Program::new(), self.path(), &cases);
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for LockingWriter {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_run_that_is_imported() {
    for killed in [false, true] {
        let mut holder = LockingWriter::start("import - -o run", |command| {
            command.stdin(Stdio::piped());
        });
        let mut input = holder.child.stdin.take().unwrap();
        let text = fs::read_to_string(holder.path().join("capture")).unwrap();
        // More than is read before the run is made, and all of one moment: rows are stored when an interval is over.
        let begin = text.split_inclusive('\n').next().unwrap().repeat(1000);
        fs::write(holder.path().join("whole"), format!("{begin}{text}")).unwrap();
        input.write_all(begin.as_bytes()).unwrap();
        holder.wait_for("run", |folder| folder.join("run/run.json").exists());
        holder.keeps_others_out();
        input.write_all(text.as_bytes()).unwrap();
        if killed {
            holder.kill();
            // It has no writer any more; stored data is not overwritten.
            let sentence = "run: already holds a run; choose another folder for the run, or remove this one first";
            let cases = [("import capture -o run", 5, sentence), ("record -o run", 5, sentence)];
            check(&Program::new(), holder.path(), &cases);
        } else {
            drop(input);
            assert!(holder.child.wait().unwrap().success());
            let report =
                |input: &str| stdout(holder.path(), &format!("report {input} --format csv"));
            assert_eq!(report("run"), report("whole"));
        }
    }
}

#[test]
fn a_matrix_that_runs() {
    for killed in [false, true] {
        let mut holder = LockingWriter::start("bench run matrix.toml -o run --resume", |_| {});
        holder.wait_for("cell", |folder| folder.join("started").exists());
        holder.keeps_others_out();
        fs::write(holder.path().join("go"), "").unwrap();
        if killed {
            holder.kill();
            let again = vmtax(holder.path(), "bench run matrix.toml -o run --resume");
            assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        } else {
            assert!(holder.child.wait().unwrap().success(), "the matrix did not survive");
        }
        let csv = stdout(holder.path(), "bench compare run --all --format csv");
        let csv = String::from_utf8(csv).unwrap();
        assert!(csv.contains("1 1 1 1 1"), "{csv}");
    }
}

/// A lab run has its folder from its beginning, minutes before it writes to it. It needs no emulator to be kept waiting: its kernel is a
/// pipe without a writer.
#[test]
fn a_lab_run() {
    let mut holder = LockingWriter::start("lab run --kernel pipe -o run", |command| {
        let folder = command.get_current_dir().unwrap().to_owned();
        assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    });
    holder.wait_for("folder", |folder| folder.join("run").exists());
    holder.keeps_others_out();
    holder.kill();
    stdout(holder.path(), "import capture -o run");
}

/// Files left by writers that are killed during a write, on file systems without unnamed files.
#[test]
fn temporary_files_of_killed_writers() {
    let mut holder = LockingWriter::start("bench run matrix.toml -o run", |_| {});
    holder.wait_for("cell", |folder| folder.join("started").exists());
    holder.kill();
    let run = holder.path().join("run");
    let left = [".run.json.1-0.tmp", ".run.json.tmp", "cells/.a.1-2.tmp", "facts/.b.1-3.tmp"];
    fs::create_dir_all(run.join("bench")).unwrap();
    let left = left.into_iter().chain(["bench/.000001.parquet.1-0.tmp"]).map(|name| run.join(name));
    let left: Vec<_> = left.collect();
    left.iter().for_each(|path| fs::write(path, "half").unwrap());
    fs::write(holder.path().join("go"), "").unwrap();
    let again = vmtax(holder.path(), "bench run matrix.toml -o run --resume");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    for path in left {
        assert!(!path.exists(), "{} is still there", path.display());
    }
}
