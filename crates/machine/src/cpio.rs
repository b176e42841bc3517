//! Initramfs archives: the `newc` cpio format of the kernel's `initramfs-buffer-format.rst`, not
//! compressed, since an emulated machine would spend longer on unpacking than on reading.

use std::io::{self, Write};
use std::path::Path;

use cpio::newc;

use crate::Error;

/// Upper bound of a header with its padding.
const HEADER: usize = 256;

/// One thing in an archive. Folders come before what they hold; the kernel makes none by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Path without a leading slash.
    pub path: String,
    pub kind: EntryKind<'a>,
}

/// What an [`ArchiveEntry`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind<'a> {
    /// A folder, mode 0755.
    Folder,
    File {
        /// Permissions, `0o755`.
        mode: u32,
        /// Content, at most 4 GiB - 1.
        bytes: &'a [u8],
    },
    /// A symbolic link to this path.
    Link(&'a str),
    /// A character device, mode 0600: `/dev/console` is 5, 1.
    Device {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

impl<'a> ArchiveEntry<'a> {
    pub fn folder(path: impl Into<String>) -> ArchiveEntry<'a> {
        ArchiveEntry { path: path.into(), kind: EntryKind::Folder }
    }

    /// A file with these permissions.
    pub fn file(path: impl Into<String>, mode: u32, bytes: &'a [u8]) -> ArchiveEntry<'a> {
        ArchiveEntry { path: path.into(), kind: EntryKind::File { mode, bytes } }
    }

    /// A symbolic link to `target`.
    pub fn link(path: impl Into<String>, target: &'a str) -> ArchiveEntry<'a> {
        ArchiveEntry { path: path.into(), kind: EntryKind::Link(target) }
    }

    fn bytes(&self) -> &[u8] {
        match &self.kind {
            EntryKind::File { bytes, .. } => bytes,
            EntryKind::Link(target) => target.as_bytes(),
            EntryKind::Folder | EntryKind::Device { .. } => &[],
        }
    }

    /// A character device.
    pub fn device(path: impl Into<String>, major: u32, minor: u32) -> ArchiveEntry<'a> {
        ArchiveEntry { path: path.into(), kind: EntryKind::Device { major, minor } }
    }
}

/// The archive of these entries, all owned by root, all with time 0: equal entries give equal bytes.
///
/// # Errors
/// A file of 4 GiB or more, which the format cannot hold.
pub fn archive(entries: &[ArchiveEntry<'_>]) -> Result<Vec<u8>, Error> {
    // Kernels are among them: a vector that grew would copy them again and again.
    let sizes = entries.iter().map(|entry| HEADER + entry.path.len() + entry.bytes().len());
    let mut out = Vec::with_capacity(sizes.sum::<usize>() + HEADER);
    for (inode, entry) in (1..).zip(entries) {
        let (mode, links) = match &entry.kind {
            EntryKind::Folder => (0o040_755, 2),
            EntryKind::File { mode, .. } => (0o100_000 | (mode & 0o7777), 1),
            EntryKind::Link(_) => (0o120_777, 1),
            EntryKind::Device { .. } => (0o020_600, 1),
        };
        let mut builder = newc::Builder::new(&entry.path).ino(inode).mode(mode).nlink(links);
        if let EntryKind::Device { major, minor } = entry.kind {
            builder = builder.rdev_major(major).rdev_minor(minor);
        }
        let bytes = entry.bytes();
        let failed = |source| Error::io(Path::new(&entry.path), "add it to an initramfs")(source);
        let size = u32::try_from(bytes.len())
            .map_err(|_| failed(io::Error::other("it has 4 GiB or more")))?;
        let mut writer = builder.write(&mut out, size);
        writer.write_all(bytes).map_err(failed)?;
        writer.finish().map_err(failed)?;
    }
    newc::trailer(&mut out).map_err(Error::io(Path::new("initramfs"), "finish it"))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_newc() {
        let bytes =
            archive(&[ArchiveEntry::folder("bin"), ArchiveEntry::file("bin/a", 0o755, b"hello")])
                .unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.starts_with("07070100000001000041ed"));
        assert!(text.contains("bin/a\0hello\x00\x00\x00070701"));
        assert!(text.contains("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
