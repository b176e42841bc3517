//! The lock of a cache that processes share: to read it with others, or to change it alone.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::stream::Until;

/// How long another process may hold a lock: apt may fetch 100 MB over a slow line.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Time between two attempts.
const ATTEMPT: Duration = Duration::from_millis(20);

/// A lock on what is in a folder, against other processes and threads. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct MachineLock {
    _file: Option<File>,
}

impl MachineLock {
    /// A shared lock, for reading.
    pub(crate) fn shared(folder: &Path) -> io::Result<MachineLock> {
        MachineLock::wait(folder, FlockOperation::NonBlockingLockShared)
    }

    /// An exclusive lock, for writing.
    pub(crate) fn exclusive(folder: &Path) -> io::Result<MachineLock> {
        MachineLock::wait(folder, FlockOperation::NonBlockingLockExclusive)
    }

    fn wait(folder: &Path, operation: FlockOperation) -> io::Result<MachineLock> {
        fs::create_dir_all(folder)?;
        let path = folder.join(".lock");
        let file = match File::options().create(true).append(true).open(&path) {
            Ok(file) => file,
            // The cache of another user can still be read.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(MachineLock { _file: None });
            }
            Err(e) => return Err(e),
        };
        let until = Until::after(PATIENCE);
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(MachineLock { _file: Some(file) }),
                Err(Errno::WOULDBLOCK) => {
                    until.sleep(ATTEMPT).map_err(|_| {
                        let minutes = PATIENCE.as_secs() / 60;
                        let path = path.display();
                        io::Error::other(format!(
                            "another process has held {path} for {minutes} minutes; end it"
                        ))
                    })?;
                }
                // A file system without locks: published entries are complete nevertheless.
                Err(_) => return Ok(MachineLock { _file: None }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_lock_is_had_alone_or_shared() {
        let folder = tempfile::tempdir().unwrap();
        let alone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let lock = MachineLock::exclusive(folder.path()).unwrap();
                        assert!(!alone.swap(true, Ordering::SeqCst));
                        alone.store(false, Ordering::SeqCst);
                        drop(lock);
                        let one = MachineLock::shared(folder.path()).unwrap();
                        let _other = MachineLock::shared(folder.path()).unwrap();
                        assert!(!alone.load(Ordering::SeqCst));
                        drop(one);
                    }
                });
            }
        });
    }
}
