//! Where an output goes: standard output, or a file that appears only when it is whole.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::exit::{Code, Fault, fail};

/// An output is written to this.
pub type Out<'a> = &'a mut (dyn Write + Send);

const BUFFER: usize = 64 << 10;

/// Standard output is a terminal that is to have colours.
pub fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Columns of the terminal that standard output is.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Opens the place and writes to it.
pub fn write<T>(
    path: Option<&Path>,
    write: impl FnOnce(Out<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    Place::open(path)?.write(write)
}

/// A place to write to.
pub enum Place {
    /// Standard output.
    Standard,
    /// A device or a pipe, which can only be written to.
    Stream(fs::File, String),
    /// A file beside its final name, private to the user.
    File(tempfile::NamedTempFile, PathBuf, String),
}

impl Place {
    /// Opens it, before anything is asked: what cannot be written need not be computed.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Place> {
        let Some(path) = path else { return Ok(Place::Standard) };
        let name = path.display().to_string();
        // Through a symbolic link to what it names: renaming would replace the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match path.metadata() {
            Ok(found) if found.is_dir() => {
                return fail(Code::Output, format!("{name}: is a folder; name a file in it"));
            }
            Ok(found) if !found.is_file() => {
                let file = fs::File::options().write(true).open(&path);
                return Ok(Place::Stream(file.map_err(|e| cannot_write(&name, &e))?, name));
            }
            _ => {}
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let folder = folder.display();
            return fail(
                Code::Output,
                format!("{name}: there is no folder {folder}; make it first"),
            );
        }
        let file = tempfile::NamedTempFile::new_in(folder).map_err(|e| cannot_write(&name, &e))?;
        Ok(Place::File(file, path, name))
    }

    /// Standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Place::Standard) && io::stdout().is_terminal()
    }

    /// Writes, and makes a file appear when all went well.
    pub fn write<T>(self, write: impl FnOnce(Out<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        match self {
            Place::Standard => through(io::stdout(), "standard output", write),
            Place::Stream(file, name) => through(file, &name, write),
            Place::File(mut file, path, name) => {
                let done = through(&mut file, &name, write)?;
                let kept = file.as_file().sync_all().and_then(|()| Ok(file.persist(&path)?));
                kept.map_err(|e| cannot_write(&name, &e))?;
                Ok(done)
            }
        }
    }
}

fn through<T>(
    out: impl Write + Send,
    name: &str,
    write: impl FnOnce(Out<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    let done = write(&mut out).map_err(|error| match error.downcast_ref::<io::Error>() {
        Some(source) => cannot_write(name, source).into(),
        None => error,
    })?;
    out.flush().map_err(|e| cannot_write(name, &e))?;
    Ok(done)
}

/// What the system's refusal to write comes to.
pub fn cannot_write(name: &str, source: &io::Error) -> Fault {
    let why = match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "you may not write there; choose another place, or run vmtax as its owner".to_owned()
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "there is no room left; free some space, or write to another file system".to_owned()
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only; write to another one".to_owned()
        }
        kind => format!("cannot write it: {kind}"),
    };
    Fault::new(Code::Output, format!("{name}: {why}")).answered(source)
}
