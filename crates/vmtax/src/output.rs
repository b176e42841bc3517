//! Where a report goes: standard output, or a file that appears only when it is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::exit::{Code, Fault, fail};

const BUFFER: usize = 64 << 10;

/// Standard output is a terminal that is to have colours.
pub(crate) fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Columns of the terminal that standard output is.
pub(crate) fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Runs `write` with the output. A file is written beside its final name, private to the user, and
/// renamed at the end; when anything fails it is removed.
pub(crate) fn write(
    path: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some(path) = path else {
        return through(io::stdout(), write).map_err(|e| output_fault(e, "standard output"));
    };
    let name = path.display().to_string();
    // Through a symbolic link to what it names: renaming would replace the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match path.metadata() {
        Ok(found) if found.is_dir() => {
            return fail(Code::Output, format!("{name}: is a folder; name a file in it"));
        }
        // A device or a named pipe cannot be replaced, only written to.
        Ok(found) if !found.is_file() => {
            let file = File::options().write(true).open(path);
            return file
                .map_err(anyhow::Error::from)
                .and_then(|file| through(file, write))
                .map_err(|e| output_fault(e, &name));
        }
        _ => {}
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        let folder = folder.display();
        return fail(Code::Output, format!("{name}: there is no folder {folder}; make it first"));
    }
    replace(path, &folder, write).map_err(|e| output_fault(e, &name))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn replace(
    path: &Path,
    folder: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    through(&mut file, write)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

fn through(
    out: impl Write,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    write(&mut out)?;
    Ok(out.flush()?)
}

/// Errors of the input on the way to the output stay what they are; the others are the output's.
fn output_fault(error: anyhow::Error, name: &str) -> anyhow::Error {
    if error.downcast_ref::<Fault>().is_some() {
        return error;
    }
    match error.downcast_ref::<io::Error>() {
        Some(source) => cannot_write(name, source).into(),
        None => error,
    }
}

/// What the system's refusal to write an output comes to.
pub(crate) fn cannot_write(name: &str, source: &io::Error) -> Fault {
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
