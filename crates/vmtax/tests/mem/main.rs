//! `vmtax mem`: images, real VMs, other clients, other machines, disks, kills, hostile files and monitors, and what a
//! save costs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod against;
mod chains;
mod clients;
mod disks;
mod guest;
mod hostile;
mod kills;
mod live;
mod machines;
mod monitor;
mod qemu;
mod scan;
mod soak;
mod streams;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Runs `vmtax mem`.
fn mem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmtax")).arg("mem").args(args).output().unwrap()
}

/// Starts `vmtax mem`.
fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    command.arg("mem").args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Exit code and standard error of a run.
fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap_or_else(|| panic!("{:?}: {said}", output.status)), said)
}

/// Sends a signal to a program that was started here and not yet waited for.
fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// What a run that succeeds prints.
fn ok(args: &[&str]) -> String {
    let output = mem(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "vmtax mem {args:?}: {:?} {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the sentence of a run that fails.
fn refused(args: &[&str]) -> (i32, String) {
    let output = mem(args);
    assert!(!output.status.success(), "vmtax mem {args:?} did not fail");
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "not one sentence: {sentence}");
    (output.status.code().unwrap(), sentence)
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The words of a save of an image that is based on a checkpoint.
fn child_of<'a>(parent: &'a Path, image: &'a Path, output: &'a Path) -> [&'a str; 7] {
    ["save", "--image", name(image), "--parent", name(parent), "-o", name(output)]
}

/// Pages of noise, made of a seed, with every fourth one zero.
fn image(pages: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = vec![0; pages * 4096];
    for (i, page) in bytes.chunks_exact_mut(4096).enumerate() {
        if i % 4 != 3 {
            for word in page.chunks_exact_mut(8) {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                word.copy_from_slice(&(state ^ state >> 33).to_le_bytes());
            }
        }
    }
    bytes
}
