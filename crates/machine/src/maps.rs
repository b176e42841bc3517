//! `/proc/PID/maps`: what a process has mapped, and from which file.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{major, minor};

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses in the process.
    pub range: Range<u64>,
    /// Shared with other processes that map the file.
    pub shared: bool,
    pub writable: bool,
    pub executable: bool,
    /// Where in the file it begins, bytes.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file; 0 of private memory.
    pub inode: u64,
    /// The file's path, for messages only: it may be another file by now.
    pub path: String,
}

impl Mapping {
    /// The mappings of a process.
    ///
    /// # Errors
    /// When there is no such process, or it is another user's.
    pub fn of_process(pid: u32) -> io::Result<Vec<Mapping>> {
        Ok(Mapping::all(&fs::read_to_string(format!("/proc/{pid}/maps"))?))
    }

    /// The mappings in the text of `/proc/PID/maps`; parts of one mapping that the kernel lists apart, because they were advised upon
    /// differently, are one.
    pub fn all(maps: &str) -> Vec<Mapping> {
        let mut all: Vec<Mapping> = Vec::new();
        for next in maps.lines().filter_map(Mapping::of_line) {
            match all.last_mut() {
                Some(last) if last.goes_on_with(&next) => last.range.end = next.range.end,
                _ => all.push(next),
            }
        }
        all
    }

    fn of_line(line: &str) -> Option<Mapping> {
        let mut words = line.split_ascii_whitespace();
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let range = hex(start)?..hex(end)?;
        let access = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let number = |word| u32::from_str_radix(word, 16).ok();
        let device = (number(major)?, number(minor)?);
        let inode = words.next()?.parse().ok()?;
        let path = words.collect::<Vec<_>>().join(" ");
        let has = |letter| access.contains(letter);
        let (shared, writable, executable) = (has('s'), has('w'), has('x'));
        Some(Mapping { range, shared, writable, executable, offset, device, inode, path })
    }

    /// Whether `next` is the same file's next bytes at the next addresses. Private memory is not joined: two mappings that touch may be two.
    fn goes_on_with(&self, next: &Mapping) -> bool {
        let kind = |m: &Mapping| (m.shared, m.writable, m.executable, m.device, m.inode);
        self.shared
            && kind(self) == kind(next)
            && self.range.end == next.range.start
            && self.offset.checked_add(self.bytes()) == Some(next.offset)
    }

    /// Opens the file of a process's mapping: the very file, whatever its path names now. Never a path of a file system.
    ///
    /// # Errors
    /// When it is no regular file, or may not be opened.
    pub fn open(&self, pid: u32, write: bool) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(write);
        let is_file = |m: &fs::Metadata| m.is_file() && m.ino() == self.inode;
        // The kernel's link to the file of a mapping, which root may follow.
        let Range { start, end } = self.range;
        let link = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        if link.metadata().is_ok_and(|metadata| is_file(&metadata)) {
            return options.open(link);
        }
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let device = |m: &fs::Metadata| (major(m.dev()), minor(m.dev()));
            let is_it = |m: fs::Metadata| is_file(&m) && device(&m) == self.device;
            // Not opened to see what it is: that could block.
            if entry.path().metadata().is_ok_and(is_it) {
                return options.open(entry.path());
            }
        }
        let what = "it is no file that the process holds open";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    pub fn bytes(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_shared_file_are_one_mapping() {
        let maps = "\
7f0000000000-7f0000200000 rw-s 01000000 00:1b 4    /dev/shm/a b (deleted)
7f0000200000-7f0000400000 rw-s 01200000 00:1b 4    /dev/shm/a b (deleted)
7f0000400000-7f0000600000 rw-s 01400000 00:1b 5    /dev/shm/c
7f0000600000-7f0000800000 rw-s 01800000 00:1b 5    /dev/shm/c
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0
7f0000a00000-7f0000c00000 rw-p 00000000 00:00 0
";
        let all = Mapping::all(maps);
        let found: Vec<_> =
            all.iter().map(|m| (m.bytes() >> 20, m.offset >> 20, m.inode)).collect();
        assert_eq!(found, [(4, 16, 4), (2, 20, 5), (2, 24, 5), (2, 0, 0), (2, 0, 0)]);
        assert_eq!((all[0].device, all[0].path.as_str()), ((0, 0x1b), "/dev/shm/a b (deleted)"));
    }
}
