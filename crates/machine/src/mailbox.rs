//! The mailbox: a disk in memory that vmtax and the guest share while a machine runs.
//!
//! The guest sees it as a raw disk, the master of the second IDE channel (ports 0x170 and 0x376), on
//! every emulator; it reads and writes it by programmed I/O and needs no driver. Here it is
//! memory without a name, so nothing is left of it when this process is gone.
//!
//! Writes are not ordered: a message longer than a sector must be written with its first sector last.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::Error;

/// The shared disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Mailbox {
    file: Arc<File>,
}

impl Mailbox {
    /// Bytes of a sector, the unit in which the guest reads and writes.
    pub const SECTOR: u64 = 512;
    /// Cylinders, heads and sectors of a track, which Bochs needs in its configuration.
    pub const GEOMETRY: (u64, u64, u64) = (130, 16, 63);
    /// Size in bytes: 67,092,480. What was never written reads as zeros and takes no memory.
    pub const SIZE: u64 = Self::GEOMETRY.0 * Self::GEOMETRY.1 * Self::GEOMETRY.2 * Self::SECTOR;

    /// A mailbox of zeros.
    pub fn new() -> Result<Mailbox, Error> {
        let name = Path::new("the mailbox");
        let file = memory("vmtax-mailbox").map_err(Error::os(name, "get memory"))?;
        ftruncate(&file, Self::SIZE).map_err(Error::os(name, "set the size"))?;
        Ok(Mailbox { file: Arc::new(file) })
    }

    /// Reads `length` bytes at `offset`; a read beyond the end is an error.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        within(offset, length, "read")?;
        let mut bytes = vec![0; length];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// As [`Mailbox::read`], into a buffer: for polling.
    pub fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(bytes, offset).map_err(Error::io(Path::new("the mailbox"), "read"))
    }

    /// Writes `bytes` at `offset`. The guest sees them from its next read on.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        within(offset, bytes.len(), "write")?;
        self.file.write_all_at(bytes, offset).map_err(Error::io(Path::new("the mailbox"), "write"))
    }

    /// Makes it all zeros again.
    pub fn clear(&self) -> Result<(), Error> {
        let name = Path::new("the mailbox");
        let emptied = ftruncate(&self.file, 0).and_then(|()| ftruncate(&self.file, Self::SIZE));
        emptied.map_err(Error::os(name, "empty"))
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

/// The guest sends lengths: only plausible ones are allocated.
fn within(offset: u64, length: usize, what: &'static str) -> Result<(), Error> {
    if offset.checked_add(length as u64).is_none_or(|end| end > Mailbox::SIZE) {
        let beyond = io::Error::new(io::ErrorKind::InvalidInput, "it lies beyond the end");
        return Err(Error::io(Path::new("the mailbox"), what)(beyond));
    }
    Ok(())
}

/// Memory that can be given to a child as a file.
pub(crate) fn memory(name: &str) -> rustix::io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// As [`memory`], with this content, at its start.
pub(crate) fn with_content(name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = memory(name)?;
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
