//! Checked reading of the file's numbers and strings, in the file's byte order.
//!
//! One cursor serves the file itself, a decompressed section and the tracing data of a `perf.data`: all
//! are a [`ReadAt`].

use std::fmt;

use crate::Error;
use crate::import::tracepoint::Endian;
use crate::source::ReadAt;

/// The largest description file (an event's format, `saved_cmdlines`, ...) that is read.
pub(in crate::import) const MAX_TEXT: u64 = 16 << 20;
/// The longest name, version or system string that is believed.
const MAX_STRING: u64 = 4096;

/// A place in a stretch of bytes. Every read names the item it reads, for the error.
pub(in crate::import) struct Cursor<'a> {
    source: &'a dyn ReadAt,
    /// Where the next read starts.
    pub(in crate::import) at: u64,
    /// End of the stretch.
    end: u64,
    pub(in crate::import) endian: Endian,
    /// Where in the file the section starts whose decompressed bytes these are.
    section: Option<u64>,
    /// Where in the file the bytes start, when they are a part of it.
    base: u64,
}

impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({}..{})", self.at, self.end)
    }
}

impl<'a> Cursor<'a> {
    /// Over the file, from `at` to its end.
    pub(in crate::import) fn file(source: &'a dyn ReadAt, at: u64, endian: Endian) -> Cursor<'a> {
        Cursor { source, at, end: source.len(), endian, section: None, base: 0 }
    }

    /// Over `len` bytes of the file; fewer if the file ends before.
    pub(in crate::import) fn part(
        source: &'a dyn ReadAt,
        at: u64,
        len: u64,
        endian: Endian,
    ) -> Cursor<'a> {
        let end = at.saturating_add(len).min(source.len());
        Cursor { source, at, end, endian, section: None, base: 0 }
    }

    /// Over the decompressed bytes of the section that starts at byte `section` of the file.
    pub(in crate::import) fn decompressed(
        bytes: &'a &'a [u8],
        section: u64,
        endian: Endian,
    ) -> Cursor<'a> {
        Cursor {
            source: bytes,
            at: 0,
            end: ReadAt::len(bytes),
            endian,
            section: Some(section),
            base: 0,
        }
    }

    /// Over bytes that were read from byte `base` of the file on.
    pub(in crate::import) fn embedded(
        bytes: &'a &'a [u8],
        base: u64,
        endian: Endian,
    ) -> Cursor<'a> {
        Cursor { source: bytes, at: 0, end: ReadAt::len(bytes), endian, section: None, base }
    }

    /// Bytes left.
    pub(in crate::import) fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// An error about the data at `offset`.
    pub(in crate::import) fn malformed_at(
        &self,
        offset: u64,
        item: &'static str,
        problem: impl Into<String>,
    ) -> Error {
        let mut problem = problem.into();
        if let Some(section) = self.section {
            problem.push_str(&format!(" (in the decompressed section from byte {section})"));
        }
        Error::malformed(self.base.saturating_add(offset), item, problem)
    }

    /// An error about the data at the cursor.
    pub(in crate::import) fn malformed(
        &self,
        item: &'static str,
        problem: impl Into<String>,
    ) -> Error {
        self.malformed_at(self.at, item, problem)
    }

    fn too_short(&self, item: &'static str, wanted: u64) -> Error {
        self.malformed(item, format!("needs {wanted} bytes, {} are left", self.left()))
    }

    /// Fills `buf` or fails.
    pub(in crate::import) fn fill(
        &mut self,
        buf: &mut [u8],
        item: &'static str,
    ) -> Result<(), Error> {
        let wanted = buf.len() as u64;
        if self.left() < wanted {
            return Err(self.too_short(item, wanted));
        }
        let got = self
            .source
            .read_at(self.at, buf)
            .map_err(|source| Error::Io { offset: self.at, source })?;
        if (got as u64) < wanted {
            return Err(self.malformed(item, "the file became shorter while it was read"));
        }
        self.at += wanted;
        Ok(())
    }

    fn array<const N: usize>(&mut self, item: &'static str) -> Result<[u8; N], Error> {
        let mut buf = [0; N];
        self.fill(&mut buf, item)?;
        Ok(buf)
    }

    /// One byte.
    pub(in crate::import) fn u8(&mut self, item: &'static str) -> Result<u8, Error> {
        self.array::<1>(item).map(|[b]| b)
    }

    /// A 16-bit number.
    pub(in crate::import) fn u16(&mut self, item: &'static str) -> Result<u16, Error> {
        let raw = self.array(item)?;
        Ok(match self.endian {
            Endian::Little => u16::from_le_bytes(raw),
            Endian::Big => u16::from_be_bytes(raw),
        })
    }

    /// A 32-bit number.
    pub(in crate::import) fn u32(&mut self, item: &'static str) -> Result<u32, Error> {
        let raw = self.array(item)?;
        Ok(match self.endian {
            Endian::Little => u32::from_le_bytes(raw),
            Endian::Big => u32::from_be_bytes(raw),
        })
    }

    /// A 64-bit number.
    pub(in crate::import) fn u64(&mut self, item: &'static str) -> Result<u64, Error> {
        let raw = self.array(item)?;
        Ok(match self.endian {
            Endian::Little => u64::from_le_bytes(raw),
            Endian::Big => u64::from_be_bytes(raw),
        })
    }

    /// `len` bytes, at most `cap`. Nothing is allocated before it is known that they are there.
    pub(in crate::import) fn bytes(
        &mut self,
        len: u64,
        cap: u64,
        item: &'static str,
    ) -> Result<Vec<u8>, Error> {
        if self.left() < len {
            return Err(self.too_short(item, len));
        }
        if len > cap {
            return Err(self.malformed(item, format!("{len} bytes, more than the {cap} allowed")));
        }
        let mut buf = vec![0; usize::try_from(len).unwrap_or(0)];
        self.fill(&mut buf, item)?;
        Ok(buf)
    }

    /// The next `len` bytes as a stretch of their own; this cursor steps over them.
    pub(in crate::import) fn sub(
        &mut self,
        len: u64,
        item: &'static str,
    ) -> Result<Cursor<'a>, Error> {
        let at = self.at;
        self.skip(len, item)?;
        let Cursor { source, endian, section, .. } = *self;
        Ok(Cursor { source, at, end: self.at, endian, section, base: self.base })
    }

    /// Steps over `len` bytes.
    pub(in crate::import) fn skip(&mut self, len: u64, item: &'static str) -> Result<(), Error> {
        if self.left() < len {
            return Err(self.too_short(item, len));
        }
        self.at += len;
        Ok(())
    }

    /// A string up to its NUL. Bytes that are not UTF-8 are replaced.
    pub(in crate::import) fn string(&mut self, item: &'static str) -> Result<String, Error> {
        let window = self.left().min(MAX_STRING);
        let mut buf = vec![0; usize::try_from(window).unwrap_or(0)];
        let start = self.at;
        self.fill(&mut buf, item)?;
        let Some(end) = buf.iter().position(|&b| b == 0) else {
            return Err(self.malformed_at(start, item, "the string does not end"));
        };
        self.at = start + end as u64 + 1;
        buf.truncate(end);
        Ok(String::from_utf8_lossy(&buf).into_owned())
    }

    /// Fixed bytes such as `header_page\0`.
    pub(in crate::import) fn expect(
        &mut self,
        want: &[u8],
        item: &'static str,
    ) -> Result<(), Error> {
        let start = self.at;
        let got = self.bytes(want.len() as u64, want.len() as u64, item)?;
        if got != want {
            let problem =
                format!("expected \"{}\", found \"{}\"", want.escape_ascii(), got.escape_ascii());
            return Err(self.malformed_at(start, item, problem));
        }
        Ok(())
    }
}

/// Text of a file whose end may be padded with NULs.
pub(in crate::import) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}
