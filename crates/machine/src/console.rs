//! The console of a machine (its serial port), and failures reported on it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{Error, Tail};

/// Lines that a [`Tail`] holds at most.
const TAIL_LINES: usize = 40;
/// Bytes from the end of the console that a [`Tail`] is taken from.
const TAIL_BYTES: u64 = 16 << 10;
/// A line longer than this is judged by its first bytes.
const LINE_BYTES: usize = 1024;
/// A guest that writes more is ended, before it fills the disk. A verbose boot writes 100 KiB.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes read between two looks at the deadline and the stop flag.
const READ_BYTES: u64 = 1 << 20;

/// Messages of Linux that mean a failure.
const FAILURES: [&str; 12] = [
    "Kernel panic - not syncing",
    "BUG: ",
    "Oops: ",
    "kernel BUG at ",
    "general protection fault",
    "double fault:",
    // khungtaskd: "INFO: task init:1 blocked for more than 120 seconds."
    " blocked for more than ",
    "rcu_sched detected stalls",
    "rcu_preempt detected stalls",
    "soft lockup",
    "Out of memory: Killed process",
    "-- System halted",
];

/// The output of a program in the machine, which says nothing about its kernel.
const PROGRAM: &str = "program: ";

/// The console file, read as the emulator writes it.
#[derive(Debug)]
pub(crate) struct Console {
    path: PathBuf,
    file: File,
    /// Bytes examined so far.
    read: u64,
    line: Vec<u8>,
    failure: Option<String>,
}

impl Console {
    /// Makes the file, empty.
    pub(crate) fn create(path: &Path) -> Result<Console, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(Error::io(path, "create the console file"))?;
        Ok(Console { path: path.to_owned(), file, read: 0, line: Vec::new(), failure: None })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its present size.
    pub(crate) fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |data| data.len())
    }

    /// The first line so far that reports a failure.
    pub(crate) fn failure(&mut self) -> Result<Option<&str>, Error> {
        let mut buffer = [0; 4096];
        let end = self.read + READ_BYTES;
        while self.failure.is_none() && self.read < end {
            let n = self
                .file
                .read_at(&mut buffer, self.read)
                .map_err(Error::io(&self.path, "read the console"))?;
            if n == 0 {
                break;
            }
            self.read += n as u64;
            for &byte in &buffer[..n] {
                self.look_at(byte);
            }
        }
        if self.failure.is_none() && self.is_full() {
            let mib = MOST_BYTES >> 20;
            self.failure = Some(format!("it wrote more than {mib} MiB to its console"));
        }
        Ok(self.failure.as_deref())
    }

    /// Whether the guest wrote more than a console may have.
    pub(crate) fn is_full(&self) -> bool {
        self.length() > MOST_BYTES
    }

    fn look_at(&mut self, byte: u8) {
        if byte != b'\n' {
            if self.line.len() < LINE_BYTES {
                self.line.push(byte);
            }
            return;
        }
        let line = printable(&self.line);
        self.line.clear();
        let is_kernels = !without_time(&line).starts_with(PROGRAM);
        if self.failure.is_none()
            && is_kernels
            && FAILURES.iter().any(|failure| line.contains(failure))
        {
            self.failure = Some(without_time(&line).to_owned());
        }
    }

    /// Adds registers at its end, once the emulator writes no more. What cannot be written is lost, as they only explain an error.
    pub(crate) fn add(&self, text: &str) {
        let text = format!("\nvmtax: registers when the machine was given up:\n{text}");
        let _ = self.file.write_all_at(text.as_bytes(), self.length());
    }

    /// The last lines. Read errors are ignored, because the tail is only an addition to an error message.
    pub(crate) fn tail(&self) -> Tail {
        let lines = self.last_bytes().map(|bytes| last_lines(&bytes)).unwrap_or_default();
        Tail { path: self.path.clone(), lines }
    }

    fn last_bytes(&self) -> io::Result<Vec<u8>> {
        let end = self.file.metadata()?.len();
        let start = end.saturating_sub(TAIL_BYTES);
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}

fn last_lines(bytes: &[u8]) -> Vec<String> {
    let lines: Vec<String> = bytes.split(|byte| *byte == b'\n').map(printable).collect();
    let lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].to_vec()
}

/// A console line without escape sequences' bytes and other control characters.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.chars().filter(|c| !c.is_control() || *c == '\t').collect::<String>().trim_end().to_owned()
}

/// `[    1.234567] text` -> `text`.
fn without_time(line: &str) -> &str {
    match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((time, text)) if time.trim().parse::<f64>().is_ok() => text,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure_in(text: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let mut console = Console::create(&path).unwrap();
        std::fs::write(&path, text).unwrap();
        console.failure().unwrap().map(str::to_owned)
    }

    #[test]
    fn failures_are_found_in_whole_lines() {
        assert_eq!(failure_in("[    0.1] fine\n"), None);
        assert_eq!(failure_in("[    1.5] program: FAIL: general protection fault\n"), None);
        assert_eq!(failure_in("[    1.5] Kernel panic - not syncing: VF"), None);
        assert_eq!(
            failure_in("ok\n[    1.5] Kernel panic - not syncing: VFS\r\n[    1.6] BUG: x\n"),
            Some("Kernel panic - not syncing: VFS".to_owned())
        );
        assert_eq!(
            failure_in("INFO: task init:1 blocked for more than 120 seconds.\n"),
            Some("INFO: task init:1 blocked for more than 120 seconds.".to_owned())
        );
    }

    #[test]
    fn a_console_without_end_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let mut console = Console::create(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Holes cost no space.
        file.set_len(MOST_BYTES).unwrap();
        assert_eq!(console.failure().unwrap(), None);
        // A call reads a part only, however much there is.
        assert!(console.read <= READ_BYTES);
        file.set_len(MOST_BYTES + 1).unwrap();
        assert_eq!(console.failure().unwrap(), Some("it wrote more than 64 MiB to its console"));
    }

    #[test]
    fn tails_are_short_and_printable() {
        let text: String = (0..100).map(|n| format!("\x1b[0mline {n}\0\r\n")).collect();
        let lines = last_lines(text.as_bytes());
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines[TAIL_LINES - 1], "[0mline 99");
    }
}
