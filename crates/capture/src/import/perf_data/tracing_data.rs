//! The TRACING_DATA payload: the formats of the recorded tracepoints.
//!
//! It is what `trace.dat` version 6 begins with: magic, version, byte order, then header_page,
//! header_event, the ftrace formats, the formats of each system, kallsyms, printk formats and the saved
//! command lines. Only the formats of the systems are wanted here.

use crate::Error;
use crate::import::tracepoint::{Decoder, Endian};

const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// The formats found in a payload.
#[derive(Debug, Default)]
pub struct Formats {
    /// A decoder for every format that could be parsed.
    pub decoders: Vec<Decoder>,
    /// Formats that could not be parsed (a needed field is missing).
    pub unusable: Vec<String>,
}

/// Parses a payload that starts at byte `offset` of the input.
pub fn parse(payload: &[u8], offset: u64) -> Result<Formats, Error> {
    let mut cursor = Cursor { bytes: payload, at: 0, base: offset, endian: Endian::Little };
    if cursor.take(MAGIC.len(), "magic")? != MAGIC {
        return Err(Error::malformed(
            offset,
            "tracing data",
            "does not begin with its magic bytes",
        ));
    }
    cursor.c_string("version")?;
    cursor.endian = if cursor.u8("byte order")? == 0 { Endian::Little } else { Endian::Big };
    cursor.u8("size of long")?;
    cursor.u32("page size")?;
    for item in ["header_page", "header_event"] {
        cursor.c_string(item)?;
        cursor.sized(item)?;
    }
    for _ in 0..cursor.u32("number of ftrace formats")? {
        cursor.sized("ftrace format")?;
    }
    let mut formats = Formats::default();
    for _ in 0..cursor.u32("number of systems")? {
        cursor.c_string("system name")?;
        for _ in 0..cursor.u32("number of formats")? {
            let text = String::from_utf8_lossy(cursor.sized("event format")?);
            match Decoder::parse(&text, cursor.endian) {
                Some(decoder) => formats.decoders.push(decoder),
                None => {
                    let name = text.lines().find_map(|l| l.strip_prefix("name:"));
                    formats.unusable.push(name.unwrap_or("(no name)").trim().to_owned());
                }
            }
        }
    }
    Ok(formats)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
    endian: Endian,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, item: &'static str) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(len).filter(|&e| e <= self.bytes.len());
        let Some(end) = end else {
            let left = self.bytes.len() - self.at;
            return Err(Error::malformed(
                self.base + self.at as u64,
                item,
                format!("needs {len} bytes of the tracing data, {left} are left"),
            ));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn u8(&mut self, item: &'static str) -> Result<u8, Error> {
        Ok(self.take(1, item)?[0])
    }

    fn array<const N: usize>(&mut self, item: &'static str) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, item)?);
        Ok(array)
    }

    fn u32(&mut self, item: &'static str) -> Result<u32, Error> {
        let bytes = self.array(item)?;
        Ok(match self.endian {
            Endian::Little => u32::from_le_bytes(bytes),
            Endian::Big => u32::from_be_bytes(bytes),
        })
    }

    fn sized(&mut self, item: &'static str) -> Result<&'a [u8], Error> {
        let bytes = self.array(item)?;
        let len = match self.endian {
            Endian::Little => u64::from_le_bytes(bytes),
            Endian::Big => u64::from_be_bytes(bytes),
        };
        self.take(usize::try_from(len).unwrap_or(usize::MAX), item)
    }

    fn c_string(&mut self, item: &'static str) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.at..];
        let Some(len) = rest.iter().position(|&b| b == 0) else {
            return Err(Error::malformed(
                self.base + self.at as u64,
                item,
                "has no end within the tracing data",
            ));
        };
        self.at += len + 1;
        Ok(&rest[..len])
    }
}
