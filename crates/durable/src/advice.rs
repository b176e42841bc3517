//! What to do about an error of writing.

use std::io;

/// Advice for the error of creating or writing a file or folder, to follow the words of the system; empty where there is none.
pub fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "; free some space, or write to another file system"
        }
        io::ErrorKind::PermissionDenied => "; choose another place, or run vmtax as its owner",
        io::ErrorKind::ReadOnlyFilesystem => "; write to another file system",
        io::ErrorKind::NotFound => "; create the folder above it first",
        _ => "",
    }
}
