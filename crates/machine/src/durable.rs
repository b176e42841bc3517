//! Folders that are whole or absent, and shared by all processes of a cache.
//!
//! A folder is filled under a name that starts with a dot, then renamed or exchanged with the one that it replaces, so that a reader
//! never finds it missing. A kill leaves the dotted folder behind; the next process that makes the same folder removes it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::stream::Until;

/// How long another process may hold a lock: apt may fetch 100 MB over a slow line.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Time between two attempts.
const ATTEMPT: Duration = Duration::from_millis(20);

/// A lock on what is in a folder, against other processes and threads. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Option<File>,
}

impl Lock {
    /// With many others, to read.
    pub(crate) fn shared(folder: &Path) -> io::Result<Lock> {
        Lock::wait(folder, FlockOperation::NonBlockingLockShared)
    }

    /// Alone, to change what is there.
    pub(crate) fn exclusive(folder: &Path) -> io::Result<Lock> {
        Lock::wait(folder, FlockOperation::NonBlockingLockExclusive)
    }

    fn wait(folder: &Path, operation: FlockOperation) -> io::Result<Lock> {
        fs::create_dir_all(folder)?;
        let path = folder.join(".lock");
        let file = match File::options().create(true).append(true).open(&path) {
            Ok(file) => file,
            // Somebody else's cache can still be read.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(Lock { _file: None });
            }
            Err(e) => return Err(e),
        };
        let until = Until::after(PATIENCE);
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(Lock { _file: Some(file) }),
                Err(Errno::WOULDBLOCK) => {
                    until.sleep(ATTEMPT).map_err(|_| {
                        let minutes = PATIENCE.as_secs() / 60;
                        let path = path.display();
                        io::Error::other(format!(
                            "another process has held {path} for {minutes} minutes; end it"
                        ))
                    })?;
                }
                // A file system without locks: what is published is whole there, too.
                Err(_) => return Ok(Lock { _file: None }),
            }
        }
    }
}

/// A folder that is being made. Dropping it removes it, unless it was published.
#[derive(Debug)]
pub(crate) struct NewFolder {
    target: PathBuf,
    path: PathBuf,
    /// Locked as long as it is being made.
    _lock: File,
    published: bool,
}

impl NewFolder {
    /// A private, empty folder beside `target`, which has to have a file name.
    pub(crate) fn beside(target: &Path) -> io::Result<NewFolder> {
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent)?;
        remove_abandoned(parent, &name);
        loop {
            // Process ids are not enough: containers and computers that share a folder have equal ones.
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty())?;
            let path = parent.join(format!(".{name}.{:016x}.tmp", u64::from_ne_bytes(random)));
            DirBuilder::new().mode(0o700).create(&path)?;
            // Another process may take it for abandoned before it is locked, and remove it.
            let lock = match File::open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                lock => lock?,
            };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
                && fs::metadata(&path).ok().map(|data| data.ino()) == Some(lock.metadata()?.ino())
            {
                return Ok(NewFolder {
                    target: target.to_owned(),
                    path,
                    _lock: lock,
                    published: false,
                });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the folder in place of `target`.
    pub(crate) fn publish(mut self) -> io::Result<()> {
        // Not over a folder with content: two processes that removed it first would each find the other's.
        match fs::rename(&self.path, &self.target) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            renamed => {
                renamed?;
                self.published = true;
                return Ok(());
            }
        }
        match renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::EXCHANGE) {
            // What was there is removed with this value.
            Ok(()) => Ok(()),
            // A file system that cannot exchange, such as NFS.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                remove(&self.target)?;
                fs::rename(&self.path, &self.target)?;
                self.published = true;
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.published {
            // Best effort: there is nobody left to tell, and the name says that it is no data.
            let _ = remove(&self.path);
        }
    }
}

/// Removes what processes that are gone left of this folder: nobody holds a lock on it.
fn remove_abandoned(parent: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        let is_unfinished = found
            .strip_prefix(&format!(".{name}."))
            .and_then(|rest| rest.strip_suffix(".tmp"))
            .is_some_and(|middle| middle.chars().all(|c| c.is_ascii_hexdigit()));
        if !is_unfinished {
            continue;
        }
        if let Ok(folder) = File::open(entry.path())
            && flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // Best effort: it is in nobody's way.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("state");
        let abandoned = folder.path().join(".state.4194305.tmp");
        fs::create_dir(&abandoned).unwrap();
        let new = NewFolder::beside(&target).unwrap();
        assert!(!abandoned.exists());
        // What is being made is left alone.
        drop(NewFolder::beside(&target).unwrap());
        assert!(new.path().exists());
        fs::write(new.path().join("a"), "1").unwrap();
        new.publish().unwrap();
        drop(NewFolder::beside(&target).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
    }

    /// As processes do that have the same cache: each replaces the folder, and a reader always finds a whole one.
    #[test]
    fn many_publish_the_same_folder_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("kernel");
        let publish = || {
            let new = NewFolder::beside(&target).unwrap();
            fs::write(new.path().join("image"), "whole").unwrap();
            new.publish().unwrap();
        };
        publish();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| publish()));
            }
            for _ in 0..10_000 {
                assert!(target.exists());
            }
        });
        assert_eq!(fs::read(target.join("image")).unwrap(), b"whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_lock_is_had_alone_or_shared() {
        let folder = tempfile::tempdir().unwrap();
        let alone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let lock = Lock::exclusive(folder.path()).unwrap();
                        assert!(!alone.swap(true, Ordering::SeqCst));
                        alone.store(false, Ordering::SeqCst);
                        drop(lock);
                        let one = Lock::shared(folder.path()).unwrap();
                        let _other = Lock::shared(folder.path()).unwrap();
                        assert!(!alone.load(Ordering::SeqCst));
                        drop(one);
                    }
                });
            }
        });
    }
}
