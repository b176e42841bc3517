//! Initramfs archives: the `newc` cpio format of the kernel's `initramfs-buffer-format.rst`, not
//! compressed, since an emulated machine would spend longer on unpacking than on reading.

/// One thing in an archive. Folders come before what they hold; the kernel makes none by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Path without a leading slash.
    pub path: String,
    /// What it is.
    pub kind: Kind<'a>,
}

/// What an [`Entry`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A folder, mode 0755.
    Folder,
    /// A file.
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

impl<'a> Entry<'a> {
    /// A folder.
    pub fn folder(path: impl Into<String>) -> Entry<'a> {
        Entry { path: path.into(), kind: Kind::Folder }
    }

    /// A file with these permissions.
    pub fn file(path: impl Into<String>, mode: u32, bytes: &'a [u8]) -> Entry<'a> {
        Entry { path: path.into(), kind: Kind::File { mode, bytes } }
    }

    /// A symbolic link to `target`.
    pub fn link(path: impl Into<String>, target: &'a str) -> Entry<'a> {
        Entry { path: path.into(), kind: Kind::Link(target) }
    }

    /// A character device.
    pub fn device(path: impl Into<String>, major: u32, minor: u32) -> Entry<'a> {
        Entry { path: path.into(), kind: Kind::Device { major, minor } }
    }
}

/// Most bytes of an entry beside its path and its content.
const AROUND: usize = 256;

/// The archive of these entries, all owned by root, all with time 0: equal entries give equal bytes.
pub fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    // Kernels are among them: a vector that grew would copy them again and again.
    let content = |entry: &Entry<'_>| match &entry.kind {
        Kind::File { bytes, .. } => bytes.len(),
        _ => 0,
    };
    let size: usize = entries.iter().map(|entry| AROUND + entry.path.len() + content(entry)).sum();
    let mut out = Vec::with_capacity(size + AROUND);
    for (index, entry) in entries.iter().enumerate() {
        let (mode, bytes, device): (u32, &[u8], _) = match &entry.kind {
            Kind::Folder => (0o040_755, &[], (0, 0)),
            Kind::File { mode, bytes } => (0o100_000 | (mode & 0o7777), bytes, (0, 0)),
            Kind::Link(target) => (0o120_777, target.as_bytes(), (0, 0)),
            Kind::Device { major, minor } => (0o020_600, &[], (*major, *minor)),
        };
        append(&mut out, index + 1, &entry.path, (mode, bytes, device));
    }
    append(&mut out, 0, "TRAILER!!!", (0, &[], (0, 0)));
    out
}

fn append(
    out: &mut Vec<u8>,
    inode: usize,
    path: &str,
    (mode, bytes, (major, minor)): (u32, &[u8], (u32, u32)),
) {
    let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
    // magic; ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
    let fields = [
        inode,
        mode as usize,
        0,
        0,
        links,
        0,
        bytes.len(),
        0,
        0,
        major as usize,
        minor as usize,
        path.len() + 1,
        0,
    ];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    out.extend_from_slice(path.as_bytes());
    out.push(0);
    align(out);
    out.extend_from_slice(bytes);
    align(out);
}

/// Names and contents end on a multiple of 4.
fn align(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_newc() {
        let bytes = archive(&[Entry::folder("bin"), Entry::file("bin/a", 0o755, b"hello")]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.starts_with("07070100000001000041ED"));
        assert!(text.contains("bin/a\0hello\x00\x00\x00070701"));
        assert!(text.contains("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
