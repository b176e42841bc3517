//! What can go wrong with a run folder. Every message names the file, the item and what to do.

use std::io;
use std::path::{Path, PathBuf};

use vmtax_durable::{LockError, LockHolder};

/// Why a run could not be written or read.
///
/// A damaged or missing segment is not an error: it is skipped and reported in
/// [`crate::ReadReport`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder for a new run is taken.
    #[error("{path}: {found}; choose another folder for the run, or remove this one first")]
    Exists { path: PathBuf, found: &'static str },
    /// Another process writes to the folder.
    #[error("{path}: is being written by {holder}; wait for it to end, or name another folder")]
    Busy { path: PathBuf, holder: LockHolder },
    /// The system refused.
    #[error("{path}: cannot {what}: {source}{}", vmtax_durable::advice(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation, as a verb (`write the segment`).
        what: &'static str,
        source: io::Error,
    },
    /// An earlier write failed, so the run has a gap and cannot be finished.
    #[error(
        "{path}: an earlier write failed, so the run stays incomplete; what it lists can be read"
    )]
    Failed { path: PathBuf },
    /// Rows could not be turned into Parquet.
    #[error("{path}: cannot encode the rows: {source}; this is a fault of vmtax, please report it")]
    Encode {
        path: PathBuf,
        /// The encoder's error.
        source: parquet::errors::ParquetError,
    },
    /// The folder is not a run.
    #[error("{path}: {found}, so this is not a run folder; `vmtax import FILE -o RUN` makes one")]
    NotARun { path: PathBuf, found: &'static str },
    /// `run.json` cannot be understood.
    #[error(
        "{path}: {problem}; the segments beside it are plain Parquet and still read in other tools"
    )]
    Manifest {
        /// `run.json`.
        path: PathBuf,
        /// The problem, with the place in the file.
        problem: String,
    },
    /// A newer tool wrote the run.
    #[error(
        "{path}: format version {found} is newer than {supported}, the newest that this vmtax reads; \
         use the vmtax that wrote it ({tool_version:?}) or a later one"
    )]
    Newer {
        /// `run.json`.
        path: PathBuf,
        found: u64,
        /// The newest version this crate reads.
        supported: u64,
        /// The tool that wrote it, empty when not said.
        tool_version: String,
    },
    /// An intact segment holds something that this version does not know.
    #[error(
        "{path}: row {row} (counted from 0), column {column}: {problem}; \
         a newer vmtax may have written it, use that one to read it"
    )]
    Value {
        path: PathBuf,
        /// Row in the segment, from 0.
        row: u64,
        column: &'static str,
        /// The value and its problem.
        problem: String,
    },
    /// An intact segment lacks a column, or the column has another type.
    #[error(
        "{path}: column {column}: {problem}; a newer vmtax may have written it, use that one to read it"
    )]
    Column {
        path: PathBuf,
        column: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// An [`Error::Io`] about this path, for `map_err`.
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), what, source }
    }

    /// The folder cannot be locked, for `map_err`.
    pub(crate) fn lock(folder: &Path) -> impl FnOnce(LockError) -> Error {
        move |error| match error {
            LockError::Held(holder) => Error::Busy { path: folder.to_owned(), holder },
            LockError::Io(source) => Error::io(folder, "lock the folder")(source),
        }
    }
}
