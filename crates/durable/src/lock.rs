//! The lock of a folder that is being written.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::temporary::is_at;

/// Bytes of a holder's command that are shown.
const COMMAND_BYTES: usize = 160;

/// Attempts at a lock whose holder cannot be named: it may have just ended.
const TRIES: usize = 3;

/// An exclusive lock on a folder. The lock is on the folder itself (flock), so it leaves no file behind, and the kernel
/// frees it when the process ends, however it ends. It holds on one machine: a network file system does not pass it on.
#[derive(Debug)]
pub struct Lock {
    _folder: File,
}

/// Why a folder cannot be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process writes to it.
    Held(LockHolder),
    /// The system's answer: the folder cannot be opened, was removed meanwhile (`NotFound`), or its file system has no locks.
    Io(io::Error),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// `None`: the system does not say, because the holder is in another container.
    pub process: Option<u32>,
    /// Its command line, or its name if the command line is unreadable. Text of another process: escape it.
    pub command: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) if self.command.is_empty() => write!(f, "process {process}"),
            Some(process) => write!(f, "process {process} ({})", self.command),
            None => f.write_str("another process, which this system does not name"),
        }
    }
}

impl Lock {
    /// Takes the lock of an existing folder, without waiting.
    ///
    /// # Errors
    /// Another process holds it; the folder cannot be opened.
    pub fn take(folder: &Path) -> Result<Lock, LockError> {
        let mut tries = 0;
        loop {
            let opened = File::open(folder).map_err(LockError::Io)?;
            match opened.try_lock() {
                // Its holder may have removed the folder before the lock was taken.
                Ok(()) if is_at(&opened, &resolved(folder)).map_err(LockError::Io)? => {
                    return Ok(Lock { _folder: opened });
                }
                Ok(()) => {}
                Err(TryLockError::Error(e)) => return Err(LockError::Io(e)),
                Err(TryLockError::WouldBlock) => {
                    let holder = holder(&opened);
                    if holder.process.is_some() || tries == TRIES {
                        return Err(LockError::Held(holder));
                    }
                }
            }
            tries += 1;
        }
    }
}

/// The target of a symbolic link.
fn resolved(folder: &Path) -> std::path::PathBuf {
    fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
}

/// The process that the kernel lists as the holder. A line: `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`; one of a process that
/// waits has `->` in it.
fn holder(folder: &File) -> LockHolder {
    let unknown = LockHolder { process: None, command: String::new() };
    let (Ok(found), Ok(locks)) = (folder.metadata(), fs::read_to_string("/proc/locks")) else {
        return unknown;
    };
    // By inode alone: the device of a subvolume or an overlay is another one here than in `stat`. The open files decide.
    let inode = format!(":{}", found.ino());
    let candidates = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "FLOCK")?;
        if words.contains(&"->") {
            return None;
        }
        words.get(at + 4)?.ends_with(&inode).then(|| words.get(at + 3)?.parse::<u32>().ok())?
    });
    let mut candidates: Vec<u32> = candidates.filter(|process| *process != 0).collect();
    candidates.sort_by_key(|process| !has_open(*process, &found));
    match candidates.first() {
        Some(process) => LockHolder { process: Some(*process), command: command(*process) },
        None => unknown,
    }
}

fn has_open(process: u32, folder: &fs::Metadata) -> bool {
    let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    open.flat_map(|entry| fs::metadata(entry.path()))
        .any(|found| (found.dev(), found.ino()) == (folder.dev(), folder.ino()))
}

fn command(process: u32) -> String {
    let read = |name: &str| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
    let mut line = read("cmdline");
    if line.is_empty() {
        line = read("comm");
    }
    let text = String::from_utf8_lossy(&line).replace('\0', " ");
    let text = text.trim();
    match text.char_indices().find(|(at, c)| at + c.len_utf8() > COMMAND_BYTES) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}
