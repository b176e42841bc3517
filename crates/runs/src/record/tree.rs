//! The runs of a host that records all the time: where the next one goes, and which old ones make room for it.
//!
//! ```text
//! TREE/host=HOST/date=2026-01-31/120000Z/run.json ...     one run after another, as `vmtax query` finds them
//! ```
//! A run that was not closed (power failure, SIGKILL, full disk) is closed when the tree is opened, with a loss. The oldest closed runs are removed
//! when they are too old, or when the host's runs would take more than their share of the disk. The folder of the host is locked.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::statvfs;
use vmtax_cli::exit::{Code, CodedError, say};
use vmtax_cli::output::{cannot_read, cannot_write};
use vmtax_durable::{Lock, LockError, remove_folder, remove_temporaries};
use vmtax_store::{MANIFEST, Run, RunWriter, remove_empty_run, rfc3339};

use crate::write_fault;

/// When runs are closed, and how long they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// A run is closed when it is so old.
    pub rotate: Duration,
    /// A run is closed when it takes so many bytes on disk.
    pub rotate_bytes: u64,
    /// Closed runs are removed when they are so old.
    pub keep: Option<Duration>,
    /// All runs of the host take at most this part of the file system.
    pub share: f64,
}

/// The part of the share that is left free for the next segments: an eighth.
const RESERVE: u64 = 8;
/// A run is closed before it takes this part of the share, so that there are always older ones to remove: a quarter.
const LARGEST_RUN: u64 = 4;

/// What a run that was not closed says of itself.
const INTERRUPTED: &str = "The recorder was stopped without closing this run, by a power failure, SIGKILL or a full disk: what it counted after the last \
                           interval is missing.";

struct Closed {
    folder: PathBuf,
    at: SystemTime,
    bytes: u64,
}

/// The runs of a host.
pub(super) struct RunTree {
    folder: PathBuf,
    retention: Retention,
    /// The oldest first.
    closed: VecDeque<Closed>,
    _lock: Lock,
}

impl RunTree {
    /// Opens or makes the host's folder below `tree`, and closes what was left open.
    ///
    /// # Errors
    /// The folder cannot be made, or another process records into it.
    pub(super) fn open(tree: &Path, host: &str, retention: Retention) -> anyhow::Result<RunTree> {
        let folder = tree.join(format!("host={}", plain(host)));
        let name = || folder.display().to_string();
        fs::create_dir_all(&folder).map_err(|e| cannot_write(&name(), &e))?;
        let lock = Lock::take(&folder).map_err(|error| match error {
            LockError::Held(holder) => CodedError::new(
                Code::Output,
                format!(
                    "{}: is being recorded into by {holder}; end it, or name another tree",
                    name()
                ),
            ),
            LockError::Io(e) => cannot_write(&name(), &e),
        })?;
        let mut tree = RunTree { folder, retention, closed: VecDeque::new(), _lock: lock };
        tree.close_all()?;
        Ok(tree)
    }

    /// Closes every run that was left open, and lists the closed ones.
    ///
    /// # Errors
    /// A run cannot be closed, or a folder not be listed. A damaged run is said and left alone.
    pub(super) fn close_all(&mut self) -> anyhow::Result<()> {
        let mut closed = Vec::new();
        for date in folders_in(&self.folder)? {
            for folder in folders_in(&date)? {
                if !folder.join(MANIFEST).exists() {
                    // Its recorder ended before it wrote anything. A folder that holds something else stays.
                    remove_temporaries(&folder);
                    let _ = fs::remove_dir(&folder);
                    continue;
                }
                match close(&folder)? {
                    Some(at) => {
                        let bytes = disk_bytes(&folder);
                        closed.push(Closed { folder, at, bytes });
                    }
                    None => continue,
                }
            }
        }
        closed.sort_by(|a, b| (a.at, &a.folder).cmp(&(b.at, &b.folder)));
        self.closed = closed.into();
        Ok(())
    }

    /// The folder of a run that begins now; the folder above it exists.
    pub(super) fn next_run(&self) -> anyhow::Result<PathBuf> {
        let now = rfc3339(SystemTime::now());
        let (date, time) = now.split_once('T').unwrap_or((&now, ""));
        let date = self.folder.join(format!("date={date}"));
        fs::create_dir_all(&date).map_err(|e| cannot_write(&date.display().to_string(), &e))?;
        let time = time.replace(':', "");
        // Several begin in a second if runs are closed by their size, or if the clock was set back.
        let names = (1..).map(|n| if n == 1 { time.clone() } else { format!("{time}-{n}") });
        let mut free = names.map(|name| date.join(name)).filter(|folder| !folder.exists());
        Ok(free.next().unwrap_or(date))
    }

    /// A run was closed.
    pub(super) fn closed(&mut self, folder: PathBuf) {
        let bytes = disk_bytes(&folder);
        self.closed.push_back(Closed { folder, at: SystemTime::now(), bytes });
    }

    /// Whether the open run is to be closed.
    pub(super) fn is_full_run(&self, age: Duration, bytes: u64) -> io::Result<bool> {
        let most = self.retention.rotate_bytes.min(self.most()? / LARGEST_RUN);
        Ok(age >= self.retention.rotate || bytes >= most)
    }

    /// Removes the oldest closed runs until the rest, and `open` bytes of the open run, are within the limits.
    ///
    /// # Errors
    /// The file system does not say its size, or a run cannot be removed.
    pub(super) fn make_room(&mut self, open: u64) -> anyhow::Result<()> {
        let cannot = |folder: &Path, e: &io::Error| cannot_write(&folder.display().to_string(), e);
        let most = self.most().map_err(|e| cannot(&self.folder, &e))?;
        let most = most - most / RESERVE;
        // Others may remove runs too: a user, or the upload.
        self.closed.retain(|run| run.folder.join(MANIFEST).exists());
        while let Some(oldest) = self.closed.front() {
            let age = SystemTime::now().duration_since(oldest.at).unwrap_or_default();
            let is_old = self.retention.keep.is_some_and(|keep| age > keep);
            let taken = self.closed.iter().fold(open, |sum, run| sum.saturating_add(run.bytes));
            if !is_old && taken <= most {
                break;
            }
            remove(&oldest.folder).map_err(|e| cannot(&oldest.folder, &e))?;
            self.closed.pop_front();
        }
        Ok(())
    }

    /// Bytes that the host's runs may take.
    fn most(&self) -> io::Result<u64> {
        let system = statvfs(&self.folder)?;
        let size = system.f_blocks.saturating_mul(system.f_frsize);
        Ok((size as f64 * self.retention.share) as u64)
    }
}

/// Closes a run if it was left open; when it was closed, or `None` if it is no more or cannot be read.
fn close(folder: &Path) -> anyhow::Result<Option<SystemTime>> {
    let run = match Run::open(folder) {
        Ok(run) => run,
        Err(error) => {
            say(&format!("{error}; it is left alone"));
            return Ok(None);
        }
    };
    let manifest = run.manifest();
    if !manifest.complete && manifest.segments.is_empty() {
        remove_empty_run(folder, true);
        return Ok(None);
    }
    if !manifest.complete {
        let mut losses = manifest.losses.clone();
        losses.truncated.push(INTERRUPTED.to_owned());
        let writer = RunWriter::resume(folder).map_err(write_fault)?;
        writer.finish(&manifest.recording, &losses).map_err(write_fault)?;
    }
    let path = folder.join(MANIFEST);
    let at = path.metadata().and_then(|found| found.modified());
    Ok(Some(at.map_err(|e| cannot_read(&path.display().to_string(), &e))?))
}

/// Removes a run, its manifest first: readers take what remains after a kill for no run. Then its day, if it was the last.
fn remove(folder: &Path) -> io::Result<()> {
    fs::remove_file(folder.join(MANIFEST))?;
    remove_folder(folder)?;
    if let Some(date) = folder.parent() {
        // It has other runs.
        let _ = fs::remove_dir(date);
    }
    Ok(())
}

/// The folders in a folder that have no hidden name. Links are not followed.
fn folders_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let list = fs::read_dir(folder).map_err(|e| cannot_read(&folder.display().to_string(), &e))?;
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let all = list.flatten().filter(is_folder);
    let mut shown: Vec<PathBuf> = all
        .filter(|e| !e.file_name().to_string_lossy().starts_with('.'))
        .map(|e| e.path())
        .collect();
    shown.sort();
    Ok(shown)
}

/// Bytes that a folder takes on disk.
pub(super) fn disk_bytes(folder: &Path) -> u64 {
    let own = folder.symlink_metadata().map_or(0, |found| found.blocks().saturating_mul(512));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => disk_bytes(&entry.path()),
        _ => entry.metadata().map_or(0, |found| found.blocks().saturating_mul(512)),
    });
    below.fold(own, u64::saturating_add)
}

/// A host name as part of a path.
fn plain(host: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let name: String = host.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
