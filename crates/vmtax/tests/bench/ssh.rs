//! A system behind ssh. Here ssh is a program that runs the remote command on this computer, or misbehaves as a
//! hostile system would. The connection itself is not tested.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{matrix, name, program, row, rows, runs};

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

/// A folder with this script as ssh, and a matrix.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(script: &str, text: &str) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        // This folder contains the files of the other system.
        fs::create_dir(folder.path().join("there")).unwrap();
        program(&bin.join("ssh"), script);
        matrix(folder.path(), text);
        Stage { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, more: &[&str]) -> Command {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
        command
            .args(["bench", "run", name(&self.path("matrix.toml")), "-o", name(&self.path("run"))])
            .args(more)
            .env("PATH", path)
            .env("STAGE", self.folder.path())
            .env("TMPDIR", self.path("there"));
        command
    }

    fn run(&self) -> Output {
        self.command(&[]).output().unwrap()
    }

    /// The names of what was left on the other system.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("there")).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The commands that ssh was given.
    fn commands(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("commands")).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }
}

/// Notes the last word and runs it, as the shell there would.
const STAND_IN: &str = "#!/bin/sh
for word; do :; done
printf '%s\\0' \"$word\" >> \"$STAGE/commands\"
";

fn stand_in(rest: &str) -> String {
    format!("{STAND_IN}{rest}\n")
}

fn one_sentence(output: &Output, code: i32) -> String {
    let sentence = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{sentence}");
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    sentence
}

#[test]
fn a_system_behind_ssh_runs_the_same_agent() {
    let stage = Stage::new(&stand_in("exec sh -c \"$word\""), MATRIX);
    let output = stage.run();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = rows(&stage.path("run"));
    assert_eq!(row(&found, "mine", "rate", "there")["values"], "7 7");
    assert_eq!(row(&found, "cpuid", "time", "there")["n"], "2");
    // The agent was taken away again.
    assert_eq!(stage.left(), [""; 0]);
}

#[test]
fn a_system_that_cannot_be_reached_is_one_sentence() {
    let refusing = stand_in("echo 'Permission denied (publickey).\\033[31m' >&2\nexit 255");
    let stage = Stage::new(&refusing, MATRIX);
    let sentence = one_sentence(&stage.run(), 3);
    assert!(
        sentence.contains("there: the agent cannot be copied there: ssh failed: Permission denied")
            && sentence.contains("try `ssh root@there true`"),
        "{sentence}"
    );
    assert!(!sentence.contains('\u{1b}'), "{sentence:?}");
    // Nothing can be there that has to be removed.
    assert_eq!(stage.commands().len(), 1);
}

/// Whatever the other system prints, it becomes no part of a command, and only the folder with the name that was chosen here
/// is removed, without recursion.
#[test]
fn paths_printed_by_a_hostile_system_are_never_removed() {
    for answer in [
        "/",
        "/tmp/../etc",
        "/etc",
        "/tmp/tmp.0123456789",
        "/tmp/x\\n/",
        "\\n",
        "",
        "/tmp/$(id)",
        "-rf /",
        "~",
    ] {
        // It runs nothing.
        let stage =
            Stage::new(&stand_in(&format!("printf '{answer}\\n'; exec cat >/dev/null")), MATRIX);
        let sentence = one_sentence(&stage.run(), 7);
        assert!(sentence.contains("there: the agent's answer cannot be read"), "{sentence}");
        let commands = stage.commands();
        // The folder of the first command is that of all others.
        let folder = |command: &str| {
            let digits =
                command.strip_prefix("d=${TMPDIR:-/tmp}/vmtax-").unwrap().get(..32).unwrap();
            assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()), "{command}");
            digits.to_owned()
        };
        let chosen = folder(&commands[0]);
        let rest = |command: &str| command.replace(&chosen, "N");
        assert_eq!(
            commands[1..].iter().map(|command| rest(command)).collect::<Vec<_>>(),
            [
                "d=${TMPDIR:-/tmp}/vmtax-N; exec \"$d/vmtax-agent\" job 0",
                "d=${TMPDIR:-/tmp}/vmtax-N; rm -f \"$d/vmtax-agent\" && rmdir \"$d\"",
            ],
            "{answer}"
        );
    }
}

#[test]
fn a_system_that_prints_without_end_is_cut_off() {
    let stage = Stage::new(&stand_in("exec cat /dev/zero"), MATRIX);
    let sentence = one_sentence(&stage.run(), 3);
    assert!(sentence.contains("ssh wrote more than 65536 bytes of output"), "{sentence}");
    // The same once the agent is there.
    let answers =
        stand_in("case $word in *mkdir*) exec cat >/dev/null;; *) exec cat /dev/zero;; esac");
    let sentence = one_sentence(&Stage::new(&answers, MATRIX).run(), 3);
    assert!(
        sentence.contains("there: the agent: ssh wrote more than 67108864 bytes"),
        "{sentence}"
    );
}

/// What is not removed at once stays: a file that is not the agent's keeps its folder.
#[test]
fn only_the_agent_is_removed() {
    let adds = stand_in(
        "sh -c \"$word\"; s=$?; for d in \"$TMPDIR\"/vmtax-*; do touch \"$d/theirs\"; done; exit $s",
    );
    let stage = Stage::new(&adds, MATRIX);
    let output = stage.run();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // One folder for each repeat.
    let left = stage.left();
    assert_eq!(left.len(), 2, "{left:?}");
    for folder in left {
        let inside = fs::read_dir(stage.path("there").join(folder)).unwrap().flatten();
        assert_eq!(inside.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["theirs"]);
    }
}

/// Sends SIGTERM once `ready` is true, and gives what it came to.
fn terminated(stage: &Stage, ready: impl Fn() -> bool) -> (Output, Duration) {
    let vmtax = stage.command(&["--resume"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut vmtax = vmtax.unwrap();
    while !ready() {
        if let Some(status) = vmtax.try_wait().unwrap() {
            let output = vmtax.wait_with_output().unwrap();
            panic!("it ended with {status}: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&vmtax), Signal::TERM).unwrap();
    let asked = Instant::now();
    let output = vmtax.wait_with_output().unwrap();
    (output, asked.elapsed())
}

#[test]
fn a_silent_system_does_not_outlast_a_stop() {
    let mark = format!("vmtax-silent-{}", std::process::id());
    let silent = stand_in(&format!("touch \"$STAGE/asked\"; sh -c 'sleep 1000; : {mark};'"));
    let stage = Stage::new(&silent, MATRIX);
    let (output, time) = terminated(&stage, || stage.path("asked").exists());
    let sentence = one_sentence(&output, 1);
    assert!(sentence.contains("stopped; the same command with --resume"), "{sentence}");
    // On an idle machine 5 s, the time that the removal has of what may have been copied. To copy has 120 s.
    assert!(time < Duration::from_secs(110), "{time:?}");
    wait_for_no(&mark);
}

/// A stop during a job: nothing remains on the other system, and the run can be continued.
#[test]
fn a_stopped_run_leaves_nothing_there_and_is_continued() {
    let mark = format!("vmtax-stopped-{}", std::process::id());
    let text = MATRIX.replace(
        "echo rate 7",
        &format!("touch \\\"$STAGE/started\\\"; while [ ! -e \\\"$STAGE/go\\\" ]; do sleep 0.05; done; : {mark}; echo rate 7"),
    );
    let stage = Stage::new(&stand_in("exec sh -c \"$word\""), &text);
    // After a stop the removal has 5 s. Where the computer stood still for so long it is tried again.
    let left = |_| {
        let (output, time) = terminated(&stage, || stage.path("started").exists());
        let sentence = one_sentence(&output, 1);
        assert!(sentence.contains("stopped; the same command with --resume"), "{sentence}");
        assert!(time < Duration::from_secs(110), "{time:?}");
        wait_for_no(&mark);
        let left = stage.left();
        fs::remove_file(stage.path("started")).unwrap();
        left.iter()
            .for_each(|folder| fs::remove_dir_all(stage.path("there").join(folder)).unwrap());
        left
    };
    assert!((0..5).map(left).any(|left| left.is_empty()), "the agent is still there");
    fs::write(stage.path("go"), "").unwrap();
    let output = stage.command(&["--resume"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = rows(&stage.path("run"));
    let row = row(&found, "mine", "rate", "there");
    assert_eq!((row["values"].as_str(), row["failed"].as_str()), ("7 7", "0"));
}

/// SIGKILL leaves the agent's file, and no program.
#[test]
fn a_killed_run_leaves_no_program_there() {
    let mark = format!("vmtax-killed-{}", std::process::id());
    let text = MATRIX.replace(
        "echo rate 7",
        &format!("touch \\\"$STAGE/started\\\"; sleep 1000; : {mark}; echo rate 7"),
    );
    let stage = Stage::new(&stand_in("sh -c \"$word\"; exit"), &text);
    let mut vmtax = stage.command(&[]).stderr(Stdio::piped()).spawn().unwrap();
    while !stage.path("started").exists() {
        if let Some(status) = vmtax.try_wait().unwrap() {
            let error = vmtax.wait_with_output().unwrap().stderr;
            panic!("it ended with {status}: {}", String::from_utf8_lossy(&error));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(runs(&mark));
    vmtax.kill().unwrap();
    vmtax.wait().unwrap();
    wait_for_no(&mark);
}

fn wait_for_no(mark: &str) {
    let patience = Instant::now() + Duration::from_secs(300);
    while runs(mark) {
        assert!(Instant::now() < patience, "a program of the job is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}
