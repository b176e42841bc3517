//! Runs a program to its end, with input, output and limits.
//!
//! A program cannot block this process or fill its memory: its time and output are limited, and a stop request ends it. It is
//! finished when it has ended itself, even if a child still has its output open.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Stop;
use crate::process::{ChildProcess, HandedDescriptors, Pipes};
use crate::stream::{StreamError, Until};

/// Time between two checks of the stop flag and the deadline.
const POLL: Duration = Duration::from_millis(50);
/// Time for a program to clean up after SIGTERM.
const END: Duration = Duration::from_secs(5);
/// Bytes of standard error that are kept: the last ones.
const STDERR_KEPT: usize = 64 << 10;
/// Longest quote of standard error in a message, characters.
const QUOTE: usize = 300;

/// Limits of a program.
#[derive(Clone, Copy, Debug)]
pub struct ToolLimits {
    pub time: Duration,
    /// Bytes of standard output.
    pub output: usize,
}

/// A program that is about to run.
#[derive(Debug)]
pub struct Tool {
    command: Command,
    handed: HandedDescriptors,
    input: Vec<u8>,
    limits: ToolLimits,
    stop: Stop,
}

/// A program that has ended.
#[derive(Debug)]
pub struct FinishedTool {
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// The end of its standard error.
    pub stderr: Vec<u8>,
}

/// Why a program has no result. The text is a predicate: "ssh" + " " + "timed out after 30 s".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// There is no such program.
    #[error("is not installed")]
    Missing,
    /// The system did not start it, or its pipes failed.
    #[error("cannot be run: {0}")]
    Io(io::Error),
    /// It was ended at its time limit.
    #[error("timed out after {} s", .0.as_secs())]
    Time(Duration),
    /// It was ended at its output limit.
    #[error("wrote more than {0} bytes of output")]
    Output(usize),
    /// It was ended by a stop request.
    #[error("was stopped")]
    Stopped,
}

impl Tool {
    /// A command with these limits. Its standard input is empty.
    pub fn new(command: Command, limits: ToolLimits) -> Tool {
        let (handed, stop) = (HandedDescriptors::default(), Stop::default());
        Tool { command, handed, input: Vec::new(), limits, stop }
    }

    /// With these bytes as its standard input.
    pub fn input(self, input: &[u8]) -> Tool {
        Tool { input: input.to_vec(), ..self }
    }

    /// Ended when a stop is requested.
    pub fn until(self, stop: &Stop) -> Tool {
        Tool { stop: stop.clone(), ..self }
    }

    /// With these descriptors.
    pub(crate) fn handing(self, handed: HandedDescriptors) -> Tool {
        Tool { handed, ..self }
    }

    /// Runs it to its end. If a limit is hit, it gets SIGTERM, then SIGKILL together with its process group.
    pub fn run(mut self) -> Result<FinishedTool, ToolError> {
        let until = Until::after(self.limits.time).or_stopped(self.stop.flag());
        let stdin = if self.input.is_empty() { Stdio::null() } else { Stdio::piped() };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process =
            ChildProcess::spawn(self.command, self.handed).map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => ToolError::Missing,
                _ => ToolError::Io(e),
            })?;
        let result = Exchange::new(process.pipes(), self.input, self.limits)
            .and_then(|exchange| exchange.run(&mut process, until));
        if result.is_err() {
            process.end_gently(Instant::now() + END);
        }
        result
    }
}

impl FinishedTool {
    /// The reason for a failure: the last line of standard error, or the status. Safe to print.
    pub fn reason(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            Some(line) => printable(line),
            None => self.status.to_string(),
        }
    }
}

/// A line of another program, with control characters escaped.
fn printable(line: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    };
    line.chars().take(QUOTE).map(escaped).collect()
}

/// The pipes of a running program, and what went through them.
struct Exchange {
    pipes: Pipes,
    input: Vec<u8>,
    written: usize,
    limits: ToolLimits,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Exchange {
    fn new(
        pipes: io::Result<Pipes>,
        input: Vec<u8>,
        limits: ToolLimits,
    ) -> Result<Self, ToolError> {
        let pipes = pipes.map_err(ToolError::Io)?;
        Ok(Exchange { pipes, input, written: 0, limits, stdout: Vec::new(), stderr: Vec::new() })
    }

    fn run(
        mut self,
        process: &mut ChildProcess,
        until: Until<'_>,
    ) -> Result<FinishedTool, ToolError> {
        loop {
            let left = until.left().map_err(|e| match e {
                StreamError::Stopped => ToolError::Stopped,
                _ => ToolError::Time(self.limits.time),
            })?;
            // What it wrote before it ended is in the pipes by now.
            let ended = process.ended().map_err(ToolError::Io)?;
            let wait = if ended.is_some() { Duration::ZERO } else { left.min(POLL) };
            let moved = self.transfer(wait).map_err(ToolError::Io)?;
            if self.stdout.len() > self.limits.output {
                return Err(ToolError::Output(self.limits.output));
            }
            if let (Some(status), false) = (ended, moved) {
                return Ok(FinishedTool { status, stdout: self.stdout, stderr: self.stderr });
            }
            if self.pipes.are_closed() {
                let soon = Instant::now() + left.min(POLL);
                process.wait_until(soon).map_err(ToolError::Io)?;
            }
        }
    }

    /// Waits until a pipe is ready and moves what it has room for or holds; whether one was ready.
    fn transfer(&mut self, wait: Duration) -> io::Result<bool> {
        let Pipes { stdin, stdout, stderr } = &self.pipes;
        let pipes = [(stdin, PollFlags::OUT), (stdout, PollFlags::IN), (stderr, PollFlags::IN)];
        let open = pipes.iter().filter_map(|(pipe, flags)| Some((pipe.as_ref()?, *flags)));
        let mut watched: Vec<PollFd<'_>> =
            open.map(|(pipe, flags)| PollFd::new(pipe, flags)).collect();
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos().try_into().unwrap_or(0) };
        match poll(&mut watched, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        drop(watched);
        self.write();
        take(&mut self.pipes.stdout, &mut self.stdout)?;
        take(&mut self.pipes.stderr, &mut self.stderr)?;
        let over = self.stderr.len().saturating_sub(STDERR_KEPT);
        self.stderr.drain(..over);
        Ok(true)
    }

    fn write(&mut self) {
        let Some(stdin) = &mut self.pipes.stdin else { return };
        match stdin.write(&self.input[self.written..]) {
            Ok(n) => self.written += n,
            Err(e) if is_later(&e) => return,
            // A program that ends without reading says why in its status and on standard error.
            Err(_) => self.written = self.input.len(),
        }
        if self.written == self.input.len() {
            self.pipes.stdin = None;
        }
    }
}

/// Reads once, without waiting. The pipe is closed at its end.
fn take(pipe: &mut Option<File>, into: &mut Vec<u8>) -> io::Result<()> {
    let Some(file) = pipe else { return Ok(()) };
    let mut buffer = [0; 64 << 10];
    match file.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(n) => into.extend_from_slice(&buffer[..n]),
        Err(e) if is_later(&e) => {}
        Err(e) => return Err(e),
    }
    Ok(())
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn shell(script: &str, limits: ToolLimits) -> Tool {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Tool::new(command, limits)
    }

    /// Generous: a limit that a test does not mean to hit.
    const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(600), output: 1 << 20 };

    #[test]
    fn input_goes_in_and_all_output_comes_out() {
        // Larger than a pipe in both directions, and more on standard error than is kept.
        let input: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        let script = "cat; i=0; while [ $i -lt 3000 ]; do echo line $i of standard error >&2; i=$((i+1)); done; exit 3";
        let finished = shell(script, LIMITS).input(&input).run().unwrap();
        assert_eq!(finished.stdout, input);
        assert_eq!(finished.status.code(), Some(3));
        assert!(finished.stderr.len() <= STDERR_KEPT);
        assert_eq!(finished.reason(), "line 2999 of standard error");
    }

    #[test]
    fn a_program_that_ignores_its_input_is_no_error() {
        let finished = shell("echo done", LIMITS).input(&vec![0; 1 << 20]).run().unwrap();
        assert_eq!((finished.stdout.as_slice(), finished.status.code()), (&b"done\n"[..], Some(0)));
    }

    #[test]
    fn endless_output_ends_at_the_limit() {
        let error = shell("exec cat /dev/zero", LIMITS).run().unwrap_err();
        assert!(matches!(error, ToolError::Output(limit) if limit == LIMITS.output), "{error}");
        // Standard error alone is cut, and time ends the program.
        let limits = ToolLimits { time: Duration::from_millis(300), ..LIMITS };
        let error = shell("exec cat /dev/zero >&2", limits).run().unwrap_err();
        assert!(matches!(error, ToolError::Time(_)), "{error}");
    }

    #[test]
    fn silence_ends_at_the_time_limit_also_with_closed_pipes() {
        let limits = ToolLimits { time: Duration::from_millis(300), ..LIMITS };
        for script in [
            "exec sleep 1000",
            "exec >&- 2>&-; exec sleep 1000",
            "trap '' TERM; while :; do sleep 1; done",
        ] {
            let error = shell(script, limits).run().unwrap_err();
            assert!(matches!(error, ToolError::Time(_)), "{script}: {error}");
        }
    }

    #[test]
    fn a_stop_request_ends_the_program() {
        let stop = Stop::default();
        let folder = tempfile::tempdir().unwrap();
        let started = folder.path().join("started");
        let script = format!("touch {}; exec sleep 1000", started.display());
        let tool = shell(&script, LIMITS).until(&stop);
        let runs = std::thread::spawn(move || tool.run());
        while !started.exists() {
            assert!(!runs.is_finished());
            std::thread::sleep(Duration::from_millis(2));
        }
        stop.flag().store(true, Ordering::Relaxed);
        let error = runs.join().unwrap().unwrap_err();
        assert!(matches!(error, ToolError::Stopped), "{error}");
    }

    #[test]
    fn a_child_that_keeps_the_output_open_delays_nothing() {
        // As an ssh with ControlPersist does.
        let finished = shell("sleep 1000 & echo $!", LIMITS).run().unwrap();
        assert_eq!(finished.status.code(), Some(0));
        let pid: i32 = String::from_utf8(finished.stdout).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_missing_program_is_named_as_such() {
        let error = Tool::new(Command::new("vmtax-no-such-program"), LIMITS).run().unwrap_err();
        assert!(matches!(error, ToolError::Missing), "{error}");
    }

    #[test]
    fn failure_reasons_cannot_control_the_terminal() {
        let finished = shell("printf 'a\\033[2Jb\\n\\n' >&2; exit 1", LIMITS).run().unwrap();
        assert_eq!(finished.reason(), "a\\u{1b}[2Jb");
        assert_eq!(shell("exit 9", LIMITS).run().unwrap().reason(), "exit status: 9");
    }
}
