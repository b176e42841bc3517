//! Folders that are whole or absent: filled under a name that starts with a dot, then renamed.
//!
//! A kill leaves the dotted folder behind; the next process that makes the same folder removes it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder that is being made. Dropping it removes it, unless it was published.
#[derive(Debug)]
pub(crate) struct NewFolder {
    target: PathBuf,
    path: PathBuf,
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
        let path = parent.join(format!(".{name}.{}.tmp", std::process::id()));
        remove(&path)?;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(NewFolder { target: target.to_owned(), path, published: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the folder in place of `target`.
    pub(crate) fn publish(mut self) -> io::Result<()> {
        remove(&self.target)?;
        fs::rename(&self.path, &self.target)?;
        self.published = true;
        Ok(())
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

/// Removes what processes that are gone left of this folder.
fn remove_abandoned(parent: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        let maker = found
            .strip_prefix(&format!(".{name}."))
            .and_then(|rest| rest.strip_suffix(".tmp"))
            .and_then(|number| number.parse::<u32>().ok());
        if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
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
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("state");
        // No process has this number: it is above the kernel's limit.
        let abandoned = folder.path().join(".state.4194305.tmp");
        fs::create_dir(&abandoned).unwrap();
        let new = NewFolder::beside(&target).unwrap();
        assert!(!abandoned.exists());
        fs::write(new.path().join("a"), "1").unwrap();
        new.publish().unwrap();
        drop(NewFolder::beside(&target).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
    }
}
