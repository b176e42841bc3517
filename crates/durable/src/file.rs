//! Files that are published atomically.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use crate::folder::sync_folder;
use crate::temporary::{folder_of, hold, remove_abandoned, unused_name};

/// Who may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Its owner alone (0600), whatever the umask: recordings, runs, memory.
    Private,
    /// By the umask, as for a shell's `>`: reports. A replaced file keeps its mode.
    Umask,
}

/// A file being written. If dropped before it is published, nothing is left.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    target: PathBuf,
    /// Its temporary name, if it has one.
    named: Option<PathBuf>,
}

impl NewFile {
    /// Begins a file that becomes `target`, in an existing folder.
    ///
    /// # Errors
    /// The folder's: it does not exist or cannot be written to. `target` is a folder, a device, a pipe or a socket, or has no name.
    /// A symbolic link is replaced itself.
    pub fn create(target: &Path, access: FileAccess) -> io::Result<NewFile> {
        check_target(target)?;
        let mode = match access {
            FileAccess::Private => 0o600,
            FileAccess::Umask => 0o666,
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(mode);
        let new = match nameless(&options, folder_of(target))? {
            Some(file) => {
                // No other process can hold it yet; `temporary` explains the lock.
                let _ = file.try_lock();
                NewFile { file, target: target.to_owned(), named: None }
            }
            None => NewFile::named(&mut options, target)?,
        };
        let replaced = target.metadata().ok().filter(|found| found.is_file());
        match (access, replaced) {
            (FileAccess::Private, _) => new.file.set_permissions(Permissions::from_mode(0o600))?,
            (FileAccess::Umask, Some(found)) => {
                let mode = found.permissions().mode() & 0o777;
                new.file.set_permissions(Permissions::from_mode(mode))?;
            }
            (FileAccess::Umask, None) => {}
        }
        Ok(new)
    }

    fn named(options: &mut OpenOptions, target: &Path) -> io::Result<NewFile> {
        remove_abandoned(target);
        loop {
            let name = unused_name(target)?;
            let file = match options.create_new(true).open(&name) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            if hold(&file, &name)? {
                return Ok(NewFile { file, target: target.to_owned(), named: Some(name) });
            }
        }
    }

    /// The file, to write to and to read from.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file, gives it its name in place of whatever had it, and syncs the folder.
    ///
    /// # Errors
    /// The file system's. The target is then as it was, unless only the folder could not be synced.
    pub fn publish(self) -> io::Result<()> {
        let published = self.publish_revocably()?;
        published.sync_folder()?;
        published.keep();
        Ok(())
    }

    /// Syncs the file and gives it its name. It is removed again unless [`UnpublishedFile::keep`] is called, so this is not for a
    /// file that replaces one.
    pub fn publish_revocably(mut self) -> io::Result<UnpublishedFile> {
        self.file.sync_all()?;
        if self.named.is_some() || !self.link()? {
            let name = self.take_name()?;
            fs::rename(&name, &self.target)?;
            self.named = None;
        }
        Ok(UnpublishedFile { path: self.target.clone(), keep: false })
    }

    /// Gives a nameless file its final name. False: something has that name.
    fn link(&self) -> io::Result<bool> {
        match link(&self.file, &self.target) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            linked => linked.map(|()| true),
        }
    }

    /// The temporary name that is to be renamed: a link cannot replace a file.
    fn take_name(&mut self) -> io::Result<PathBuf> {
        if let Some(name) = &self.named {
            return Ok(name.clone());
        }
        remove_abandoned(&self.target);
        loop {
            let name = unused_name(&self.target)?;
            match link(&self.file, &name) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                linked => {
                    linked?;
                    self.named = Some(name.clone());
                    return Ok(name);
                }
            }
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.named {
            // Best effort: the next writer of this target retries.
            let _ = fs::remove_file(name);
        }
    }
}

/// Checks that the present target may be replaced.
fn check_target(target: &Path) -> io::Result<()> {
    let found = target.symlink_metadata().map(|found| found.file_type());
    match found {
        _ if target.file_name().is_none() || target.is_dir() => Err(Errno::ISDIR.into()),
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            Err(io::Error::other("it is a device, a pipe or a socket, which a file cannot replace"))
        }
        _ => Ok(()),
    }
}

/// A file without a name in this folder; `None` where the file system has none, or /proc, by which it gets its name, is not
/// mounted.
fn nameless(options: &OpenOptions, folder: &Path) -> io::Result<Option<File>> {
    let mut options = options.clone();
    match options.custom_flags(OFlags::TMPFILE.bits() as i32).open(folder) {
        Ok(file) if by_descriptor(&file).symlink_metadata().is_ok() => Ok(Some(file)),
        Ok(_) => Ok(None),
        // EISDIR: a kernel or file system that does not know the flag opens the folder itself.
        Err(e) if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL].iter().any(|n| is(&e, *n)) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn is(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}

fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn link(file: &File, name: &Path) -> io::Result<()> {
    Ok(rustix::fs::linkat(CWD, by_descriptor(file), CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// A file with its final name that nothing refers to yet. It is removed on drop unless [`UnpublishedFile::keep`] was called.
#[derive(Debug)]
pub struct UnpublishedFile {
    path: PathBuf,
    keep: bool,
}

impl UnpublishedFile {
    /// Makes its name survive a crash.
    pub fn sync_folder(&self) -> io::Result<()> {
        sync_folder(folder_of(&self.path))
    }

    /// The file is referred to now.
    pub fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for UnpublishedFile {
    fn drop(&mut self) {
        if !self.keep {
            // Best effort: readers ignore unreferenced files.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes a file with this content, replacing one of this name.
pub fn write(target: &Path, access: FileAccess, bytes: &[u8]) -> io::Result<()> {
    let new = NewFile::create(target, access)?;
    new.file().write_all(bytes)?;
    new.publish()
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
