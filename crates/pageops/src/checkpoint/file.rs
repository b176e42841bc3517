//! A file that has no name until it is whole.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What becomes `path`. Dropped before [`NewFile::publish`] it leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    /// The name it has meanwhile, on file systems without nameless files.
    named: Option<PathBuf>,
}

impl NewFile {
    /// Begins a file that becomes `path`.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        if path.file_name().is_none() || path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        match options.clone().custom_flags(libc::O_TMPFILE).open(&folder) {
            Ok(file) => Ok(NewFile { file, path: path.to_owned(), folder, named: None }),
            Err(error)
                if [Some(libc::EOPNOTSUPP), Some(libc::EISDIR)].contains(&error.raw_os_error()) =>
            {
                let name = part(path);
                remove(&name)?;
                let file = options.create_new(true).open(&name)?;
                Ok(NewFile { file, path: path.to_owned(), folder, named: Some(name) })
            }
            Err(error) => Err(error),
        }
    }

    /// The file itself, for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Has the disk begin with a part of it, so that the sync at the end finds little left. Where this cannot be
    /// done nothing is lost.
    pub(super) fn begin_sync(&self, part: Range<u64>) {
        let bounds =
            (libc::off64_t::try_from(part.start), libc::off64_t::try_from(part.end - part.start));
        let (Ok(start), Ok(len)) = bounds else { return };
        // SAFETY: starts writing what the file has already; changes nothing.
        unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE);
        }
    }

    /// Syncs it and puts it in the place of whatever had its name, in one step.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if self.named.is_none() {
            let name = part(&self.path);
            remove(&name)?;
            link(&self.file, &name)?;
            self.named = Some(name);
        }
        if let Some(name) = &self.named {
            fs::rename(name, &self.path)?;
        }
        self.named = None;
        File::open(&self.folder)?.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.named {
            // Nothing can be done about a file that cannot be removed.
            let _ = fs::remove_file(name);
        }
    }
}

/// The name between none and its own.
fn part(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    path.with_file_name(name)
}

fn remove(name: &Path) -> io::Result<()> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn link(file: &File, name: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(name.as_os_str().as_bytes())?;
    let here = libc::AT_FDCWD;
    // SAFETY: both names are C strings.
    let done =
        unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
