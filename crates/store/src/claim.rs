//! The right to write to a run folder: its lock, taken before anything in it is read, removed or written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vmtax_durable::{
    Lock, LockError, create_private_folder, remove_folder, remove_temporaries, sync_folder,
};

use crate::manifest::MANIFEST;
use crate::{Error, Run};

/// Attempts to create a folder that another writer removes before it is locked.
const TRIES: usize = 16;

/// A folder that this process alone may make a run of.
///
/// Dropped before a writer has begun a run in it, it removes the folder, if it made it and it is still empty.
#[derive(Debug)]
pub struct Claim {
    folder: PathBuf,
    _lock: Lock,
    /// Remove the folder on drop.
    remove: bool,
}

impl Claim {
    /// Claims a folder for a new run: makes it, or takes an empty one. The folder above must exist.
    ///
    /// # Errors
    /// The folder holds something, another process writes to it, or the system refuses.
    pub fn new(folder: &Path) -> Result<Claim, Error> {
        for _ in 0..TRIES {
            let made = match create_private_folder(folder) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
                made => made.map(|()| true).map_err(Error::io(folder, "create the folder"))?,
            };
            if !folder.is_dir() {
                return Err(taken(folder, "is a file"));
            }
            let lock = match Lock::take(folder) {
                Err(LockError::Io(e)) if e.kind() == io::ErrorKind::NotFound => continue,
                taken => taken.map_err(Error::lock(folder))?,
            };
            let claim = Claim { folder: folder.to_owned(), _lock: lock, remove: made };
            if made {
                // The name in the folder above is part of what a crash must not lose.
                let above = folder.parent().unwrap_or(Path::new(""));
                sync_folder(above).map_err(Error::io(above, "sync the folder"))?;
            } else {
                claim.check_empty()?;
            }
            return Ok(claim);
        }
        Err(Error::io(folder, "lock the folder")(io::ErrorKind::NotFound.into()))
    }

    /// Claims the folder of an existing run, to continue it.
    pub(crate) fn of_run(folder: &Path) -> Result<Claim, Error> {
        let lock = Lock::take(folder).map_err(Error::lock(folder))?;
        Ok(Claim { folder: folder.to_owned(), _lock: lock, remove: false })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A run was begun in it.
    pub(crate) fn keep(&mut self) {
        self.remove = false;
    }

    /// Removes what killed writers left: in the folder and, one level deep, in its folders.
    pub(crate) fn remove_temporaries(&self) {
        remove_temporaries(&self.folder);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_temporaries(&entry.path());
            }
        }
    }

    /// An existing folder must be empty, except for leftovers of a writer that was killed before it wrote a manifest.
    fn check_empty(&self) -> Result<(), Error> {
        let folder = &self.folder;
        if folder.join(MANIFEST).symlink_metadata().is_ok() {
            return Err(taken(folder, "already holds a run"));
        }
        let list = || fs::read_dir(folder).map_err(Error::io(folder, "list the folder"));
        let temporary = format!(".{MANIFEST}.");
        let is_left = |name: &str| name.starts_with(&temporary) && name.ends_with("tmp");
        if !list()?.flatten().all(|entry| entry.file_name().to_str().is_some_and(is_left)) {
            return Err(taken(folder, "is not empty"));
        }
        remove_temporaries(folder);
        if list()?.next().is_some() { Err(taken(folder, "is not empty")) } else { Ok(()) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.remove {
            // The lock is still held. What remains if this fails is an empty folder, which can be claimed again.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

fn taken(folder: &Path, found: &'static str) -> Error {
    Error::Exists { path: folder.to_owned(), found }
}

/// Removes a run without any segment, whose writer gave up: it is of no use, and its folder could not be written to again.
/// `with_folder`: the writer made the folder too. A run that another process writes to, or that cannot be removed, stays.
pub fn remove_empty_run(folder: &Path, with_folder: bool) {
    let Ok(_lock) = Lock::take(folder) else { return };
    let is_empty = Run::open(folder).is_ok_and(|run| run.manifest().segments.is_empty());
    if is_empty {
        // What remains if this fails says of itself that it is incomplete.
        let _ = match with_folder {
            true => remove_folder(folder),
            false => fs::remove_file(folder.join(MANIFEST)),
        };
    }
}
