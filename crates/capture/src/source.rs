//! Where the bytes come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at any place: a file, or a slice in tests.
pub trait ReadAt: Send + Sync {
    /// Total length in bytes.
    fn len(&self) -> u64;

    /// Nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(<[u8]>::len(self));
        let n = buf.len().min(<[u8]>::len(self) - start);
        buf[..n].copy_from_slice(&self[start..start + n]);
        Ok(n)
    }
}

/// A regular file with its length at opening.
#[derive(Debug)]
pub struct RandomFile {
    file: File,
    len: u64,
}

impl RandomFile {
    /// Takes an open file.
    pub fn new(file: File) -> io::Result<RandomFile> {
        let len = file.metadata()?.len();
        Ok(RandomFile { file, len })
    }
}

impl RandomFile {
    /// The file once more, for reading from its beginning. Both share one place in the file.
    pub fn try_clone(&self) -> io::Result<File> {
        let mut file = self.file.try_clone()?;
        io::Seek::rewind(&mut file)?;
        Ok(file)
    }
}

impl ReadAt for RandomFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}
