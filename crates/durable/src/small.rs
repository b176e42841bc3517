//! Small files whose length somebody else decides: budgets, plans, programs. They may be a device without an end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// When it cannot be read, or is longer ([`io::ErrorKind::FileTooLarge`]).
pub fn read_small(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let what = format!("it has more than {limit} bytes, the most that is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// As [`read_small`], for a text.
///
/// # Errors
/// Also when it is no UTF-8 ([`io::ErrorKind::InvalidData`]).
pub fn read_small_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_small(path, limit)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text (UTF-8)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("small");
        std::fs::write(&path, b"12\xff").expect("written");
        assert_eq!(read_small(&path, 3).expect("as long as may be"), b"12\xff");
        let kind = |of: io::Result<Vec<u8>>| of.expect_err("refused").kind();
        assert_eq!(kind(read_small(&path, 2)), io::ErrorKind::FileTooLarge);
        assert_eq!(kind(read_small(Path::new("/dev/zero"), 9)), io::ErrorKind::FileTooLarge);
        let text = |limit| kind(read_small_text(&path, limit).map(String::into_bytes));
        assert_eq!(text(3), io::ErrorKind::InvalidData);
        assert_eq!(text(2), io::ErrorKind::FileTooLarge);
    }
}
