//! Where a report goes: standard output, or a file that appears only when it is whole.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;

use crate::exit::{Code, Fault};

/// Standard output, buffered.
pub(crate) fn standard() -> BufWriter<io::Stdout> {
    BufWriter::with_capacity(64 << 10, io::stdout())
}

/// Runs `write` with the output. A file is written beside its final name, private to the user, and
/// renamed at the end; when anything fails it is removed.
pub(crate) fn write(
    path: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some(path) = path else {
        let mut out = standard();
        write(&mut out)?;
        return out
            .flush()
            .with_context(|| Fault::new(Code::Output, "cannot write to standard output"));
    };
    let failed =
        || Fault::new(Code::Output, format!("{}: cannot write the report", path.display()));
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    let mut out = BufWriter::with_capacity(64 << 10, file);
    write(&mut out).with_context(failed)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error).with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}
