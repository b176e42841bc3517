//! Files that are whole or absent: private, synced, and under their final name only when complete.
//!
//! ```text
//! write .NAME.tmp -> fsync it -> rename to NAME -> fsync the folder
//! ```
//!
//! Whatever fails, the temporary file is removed; a kill leaves it behind under a name that starts
//! with a dot and that no reader takes for data.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;

/// Makes a folder that only its owner can enter, whatever the umask.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE_FOLDER).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_FOLDER))
}

/// Makes names in a folder survive a crash. File systems that cannot sync a folder are left alone.
pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    // A relative path of one part has the empty path as its parent.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(path).and_then(|folder| folder.sync_all()) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Err(Error::io(path, "sync the folder")(e))
        }
        _ => Ok(()),
    }
}

/// A complete, synced file that does not have its final name yet. Dropping it removes it.
pub(crate) struct Temporary {
    path: PathBuf,
    target: PathBuf,
}

impl Temporary {
    /// Writes and syncs `bytes` next to `target`, which has to have a parent and a file name.
    pub(crate) fn write(
        target: &Path,
        bytes: &[u8],
        what: &'static str,
    ) -> Result<Temporary, Error> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.tmp"));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(PRIVATE_FILE)
            .open(&path)
            .map_err(Error::io(target, what))?;
        // From here on the file is ours to remove.
        let temporary = Temporary { path, target: target.to_owned() };
        file.set_permissions(Permissions::from_mode(PRIVATE_FILE))
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| file.sync_all())
            .map_err(Error::io(target, what))?;
        Ok(temporary)
    }

    /// Gives the file its final name, replacing what had it.
    pub(crate) fn publish(self) -> Result<Published, Error> {
        fs::rename(&self.path, &self.target).map_err(Error::io(&self.target, "rename the file"))?;
        // The temporary name is gone: dropping `self` now removes nothing.
        Ok(Published { path: self.target.clone(), keep: false })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Best effort: there is nobody left to tell, and the name says that it is no data.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what a killed writer of `target` may have left beside it.
pub(crate) fn forget_temporary(target: &Path) {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // Where it is not there all is well; where it cannot be removed the next write says so.
    let _ = fs::remove_file(target.with_file_name(format!(".{name}.tmp")));
}

/// A file that has its final name but that nothing refers to yet. Dropping it removes it unless
/// [`Published::keep`] was called.
pub(crate) struct Published {
    path: PathBuf,
    keep: bool,
}

impl Published {
    /// Makes its name survive a crash.
    pub(crate) fn sync_folder(&self) -> Result<(), Error> {
        self.path.parent().map_or(Ok(()), sync_folder)
    }

    /// The file is referred to now.
    pub(crate) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if !self.keep {
            // Best effort, as for `Temporary`: readers ignore what the manifest does not list.
            let _ = fs::remove_file(&self.path);
        }
    }
}
