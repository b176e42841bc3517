//! Why something could not be read.

use std::fmt;
use std::io;

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It does not exist.
    Missing,
    Closed,
    /// It is not a regular file.
    Strange,
    /// Its store does not respond.
    Lost(String),
    Other(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Missing => f.write_str("it is not there"),
            Unread::Closed => f.write_str("access is denied"),
            Unread::Strange => f.write_str("it is not a regular file"),
            Unread::Lost(why) => write!(f, "its store cannot be reached ({why})"),
            Unread::Other(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        match error.kind() {
            io::ErrorKind::NotFound => Unread::Missing,
            io::ErrorKind::PermissionDenied => Unread::Closed,
            kind => Unread::Other(kind.to_string()),
        }
    }
}
