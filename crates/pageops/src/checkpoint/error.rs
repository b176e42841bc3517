//! Why a checkpoint cannot be written or is refused.

use std::io;
use std::path::{Path, PathBuf};

use crate::xbzrle::DecodeError;

/// An error, with the file it is about.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Error {
    /// The checkpoint.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub reason: DamageReason,
}

impl Error {
    pub(crate) fn at(path: &Path) -> impl Fn(DamageReason) -> Error {
        move |reason| Error { path: path.to_owned(), reason }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum DamageReason {
    /// The file cannot be read or written.
    #[error("cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The destination of a restore cannot be written.
    #[error("cannot be restored: {0}")]
    Target(io::Error),
    /// It has no checkpoint header.
    #[error("is not a checkpoint")]
    NotOne,
    /// A version that this program does not know.
    #[error("has format version {found}; this program reads up to {newest}")]
    Version {
        /// The file's.
        found: u32,
        /// The newest known version.
        newest: u32,
    },
    /// It is truncated, or longer than its trailer says.
    #[error("byte {at}: {what}")]
    Damaged {
        /// Place in the file.
        at: u64,
        /// The problem.
        what: &'static str,
    },
    /// The checksum of the whole file does not match.
    #[error("its checksum does not fit its content: it was changed or damaged")]
    Checksum,
    /// A page's content is not what was saved.
    #[error(
        "page {page} of {region:?} has checksum {found:08x} and not {expected:08x}: its bytes were damaged"
    )]
    Page {
        /// Name of the region.
        region: String,
        /// Page in it.
        page: u64,
        /// Of the bytes.
        found: u32,
        /// As saved.
        expected: u32,
    },
    /// A page's delta is invalid.
    #[error("page {page} of {region:?}: its delta cannot be applied, {error}")]
    Delta {
        /// Name of the region.
        region: String,
        /// Page in it.
        page: u64,
        /// What is wrong.
        error: DecodeError,
    },
    /// Compressed pages cannot be read.
    #[error("pages {page} to {last} of {region:?}: they cannot be decompressed")]
    Compressed {
        /// Name of the region.
        region: String,
        /// First page.
        page: u64,
        /// Last page.
        last: u64,
    },
    /// The parent is not the one that this was made from.
    #[error(
        "is based on {parent}, which is another checkpoint than it was made from (or was made anew since)"
    )]
    Parent {
        /// The file found.
        parent: String,
    },
    /// The parent's memory has another shape.
    #[error("has other memory than its parent: {0}")]
    Shape(String),
    /// A parent's parent, or one further up, is the file itself.
    #[error("its parents lead back to it, so one of them was written over: {}", arrows(.0))]
    Cycle(Vec<PathBuf>),
    /// The new checkpoint would take the place of one that it is based on.
    #[error("is {}, which the new checkpoint would be based on; name another output", file.display())]
    Ancestor {
        /// That one, by the name that its child has for it.
        file: PathBuf,
    },
    /// Too many parents.
    #[error("has more than {0} parents; save a whole checkpoint from time to time")]
    Depth(usize),
    /// The caller passed data that contradicts an earlier call.
    #[error("{0}")]
    Misused(&'static str),
}

/// A chain, from child to parent.
fn arrows(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(" -> ")
}
