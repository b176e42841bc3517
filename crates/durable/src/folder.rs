//! Folders that are published atomically: filled under a temporary name, then renamed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::temporary::{folder_of, hold, remove_abandoned, unused_name};

const PRIVATE: u32 = 0o700;

/// Makes a folder that only its owner can enter, whatever the umask.
///
/// # Errors
/// The system's, `AlreadyExists` among them.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(PRIVATE))
}

/// Makes names in a folder survive a crash. File systems that cannot sync a folder are left alone.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    // A relative path of one part has the empty path as its parent.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(path).and_then(|folder| folder.sync_all()) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Err(e)
        }
        _ => Ok(()),
    }
}

/// Removes a folder with all that is in it, if it exists.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A folder being filled. If dropped before it is published, it is removed.
#[derive(Debug)]
pub struct NewFolder {
    target: PathBuf,
    path: PathBuf,
    published: bool,
    /// Locked while the folder is filled, so that other writers do not remove it as abandoned.
    _lock: File,
}

impl NewFolder {
    /// A private, empty folder beside `target`, which must have a name. Missing parents are created, and leftovers of killed writers of
    /// this target are removed.
    pub fn beside(target: &Path) -> io::Result<NewFolder> {
        fs::create_dir_all(folder_of(target))?;
        remove_abandoned(target);
        loop {
            let path = unused_name(target)?;
            match DirBuilder::new().mode(PRIVATE).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // Until it is locked another writer may take it for abandoned and remove it.
            let made = File::open(&path).and_then(|lock| {
                lock.set_permissions(Permissions::from_mode(PRIVATE))?;
                Ok(lock)
            });
            let lock = match made {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                made => made?,
            };
            if hold(&lock, &path)? {
                let target = target.to_owned();
                return Ok(NewFolder { target, path, published: false, _lock: lock });
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Publishes it. The target must not exist or be an empty folder.
    pub fn publish(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.published = true;
        sync_folder(folder_of(&self.target))
    }

    /// Publishes it, replacing the present folder. If the file system can exchange two names, a reader always finds a folder.
    pub fn replace(mut self) -> io::Result<()> {
        // Not over a folder with content: two processes that removed it first would each find the other's.
        match fs::rename(&self.path, &self.target) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            renamed => {
                renamed?;
                self.published = true;
                return sync_folder(folder_of(&self.target));
            }
        }
        match rustix::fs::renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::EXCHANGE) {
            // The old folder is removed when this value is dropped.
            Ok(()) => sync_folder(folder_of(&self.target)),
            // The file system cannot exchange names, as NFS.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                remove_folder(&self.target)?;
                self.publish()
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.published {
            // Best effort: the next writer of this target tries again.
            let _ = remove_folder(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_processes_are_removed_and_live_ones_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("state");
        let abandoned = [".state.4194305.tmp", ".state.00112233aabbccdd.tmp"]
            .map(|name| folder.path().join(name));
        let foreign = [".state.bad.tmp", ".other.1.tmp", ".state.1-0.tmp"];
        let foreign = foreign.map(|name| folder.path().join(name));
        for path in abandoned.iter().chain(&foreign) {
            fs::create_dir(path).expect("made");
            fs::write(path.join("a"), "0").expect("written");
        }
        let living = NewFolder::beside(&target).expect("a folder");
        let new = NewFolder::beside(&target).expect("a folder");
        assert!(abandoned.iter().all(|path| !path.exists()));
        assert!(foreign.iter().all(|path| path.join("a").exists()));
        assert!(living.path().exists(), "the folder of a living writer was removed");
        fs::write(new.path().join("a"), "1").expect("written");
        new.publish().expect("published");
        assert_eq!(fs::read(target.join("a")).expect("read"), b"1");
        // Another one takes its place, or is refused it.
        fs::write(living.path().join("a"), "2").expect("written");
        living.replace().expect("replaced");
        assert_eq!(fs::read(target.join("a")).expect("read"), b"2");
        let late = NewFolder::beside(&target).expect("a folder");
        assert!(late.publish().is_err());
        assert_eq!(fs::read(target.join("a")).expect("read"), b"2");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1 + foreign.len());
    }

    /// As processes do that have the same cache: each replaces the folder, and a reader always finds a whole one.
    #[test]
    fn many_publish_the_same_folder_at_once() {
        let folder = tempfile::tempdir().expect("done");
        let target = folder.path().join("kernel");
        let publish = || {
            let new = NewFolder::beside(&target).expect("done");
            fs::write(new.path().join("image"), "whole").expect("done");
            new.replace().expect("done");
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
        assert_eq!(fs::read(target.join("image")).expect("done"), b"whole");
        assert_eq!(fs::read_dir(folder.path()).expect("done").count(), 1);
    }

    /// Each removes what it takes for abandoned, and none what another has just made and not yet locked.
    #[test]
    fn many_begin_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("query");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let new = NewFolder::beside(&target).expect("a folder");
                        fs::write(new.path().join("a"), "1").expect("written");
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }
}
