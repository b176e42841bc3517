//! One check for every failing command: its exit code, its sentence, and that nothing was left behind.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A command line (words in a folder), its exit code, and its sentence after `vmtax: `, in which `*` matches anything.
pub(crate) type Case<'a> = (&'a str, i32, &'a str);

/// The account that everybody has and that owns nothing.
const NOBODY: u32 = 65534;

/// How the program is started.
pub(crate) struct Program {
    path: PathBuf,
    user: Option<u32>,
}

impl Program {
    /// The program that was built, as the user who runs the tests.
    pub(crate) fn new() -> Program {
        Program { path: PathBuf::from(env!("CARGO_BIN_EXE_vmtax")), user: None }
    }

    /// The program as a user to whom permissions apply. Instead of root it runs as `nobody`, and a copy of the
    /// program in `folder`, for he cannot reach root's.
    pub(crate) fn unprivileged(folder: &Path) -> Program {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return Program::new();
        }
        let path = folder.join("vmtax");
        // By another process: a program that is open for writing cannot be started, and children that other
        // tests start meanwhile would hold our descriptor.
        let mut copy = Command::new("cp");
        assert!(copy.arg(env!("CARGO_BIN_EXE_vmtax")).arg(&path).status().unwrap().success());
        Program { path, user: Some(NOBODY) }
    }

    /// The command line, in a folder, without standard input.
    pub(crate) fn command(&self, folder: &Path, words: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(words.split_whitespace()).current_dir(folder).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }
}

/// Writes a program. By another process, for the reason above.
pub(crate) fn executable(path: &Path, text: &str) {
    let source = path.with_extension("text");
    fs::write(&source, text).unwrap();
    let installed = Command::new("install").args(["-m", "755"]).arg(&source).arg(path).status();
    assert!(installed.unwrap().success());
    fs::remove_file(source).unwrap();
}

/// Runs a command line in a folder.
pub(crate) fn vmtax(folder: &Path, words: &str) -> Output {
    Program::new().command(folder, words).output().unwrap()
}

/// Its standard output; it must succeed without a word on standard error.
pub(crate) fn stdout(folder: &Path, words: &str) -> Vec<u8> {
    succeed(&mut Program::new().command(folder, words))
}

/// The same for a command that was made already.
pub(crate) fn succeed(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    assert_eq!(said, "", "{command:?}");
    output.stdout
}

/// Runs each case in `folder`; reports all failures together.
pub(crate) fn check(program: &Program, folder: &Path, cases: &[Case]) {
    let mut wrong = Vec::new();
    for &(words, code, sentence) in cases {
        let before = tree(folder);
        let output = program.command(folder, words).output().unwrap();
        let mut found = complaints(&output, code, sentence);
        if tree(folder) != before {
            found.push(format!("it changed the folder: {:?} -> {:?}", before, tree(folder)));
        }
        wrong.extend(found.into_iter().map(|what| format!("vmtax {words}\n    {what}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// What is not as a failing command should be.
pub(crate) fn complaints(output: &Output, code: i32, sentence: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(code) {
        wrong.push(format!("ended with {} and not with {code}: {said}", output.status));
    }
    if !output.stdout.is_empty() {
        wrong.push(format!("printed {:?}", String::from_utf8_lossy(&output.stdout)));
    }
    if !is_like(&said, &format!("vmtax: {sentence}\n")) {
        wrong.push(format!("said     {said:?}\n    and not \"vmtax: {sentence}\""));
    }
    if said.lines().count() != 1 || said.chars().any(|c| c.is_control() && c != '\n') {
        wrong.push(format!("did not say one plain line: {said:?}"));
    }
    wrong
}

/// Whether `text` matches `pattern`, in which `*` matches anything.
pub(crate) fn is_like(text: &str, pattern: &str) -> bool {
    let Some((start, mut pattern)) = pattern.split_once('*') else { return text == pattern };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    while let Some((piece, rest)) = pattern.split_once('*') {
        let Some(at) = text.find(piece) else { return false };
        text = &text[at + piece.len()..];
        pattern = rest;
    }
    text.ends_with(pattern)
}

/// Everything in a folder: name, inode, length and time of last change.
fn tree(folder: &Path) -> Vec<(PathBuf, u64, u64, i64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let data = path.symlink_metadata().unwrap();
            if data.is_dir() {
                folders.push(path.clone());
            }
            let length = if data.is_file() { data.len() } else { 0 };
            found.push((
                path,
                data.ino(),
                length,
                if data.is_file() { data.mtime_nsec() } else { 0 },
            ));
        }
    }
    found.sort();
    found
}
