//! The end of a machine's console, for error messages.

use std::path::PathBuf;

/// The end of a console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The file with all of it.
    pub path: PathBuf,
    /// Its last lines, oldest first, without control characters.
    pub lines: Vec<String>,
}
