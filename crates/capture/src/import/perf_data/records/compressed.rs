//! Compressed records: one zstd stream, continued from record to record.

use zstd::stream::raw::{Decoder as Zstd, InBuffer, Operation, OutBuffer};

use super::{BLOCK, NextRecord, RecordReader};
use crate::import::perf_data::record::{After, HEADER, MAX_RECORD, kind, record_type, stretch};
use crate::{Error, Feed};

/// Why decompression ended early.
enum CompressedDamage {
    /// The data contradicts itself.
    Data(String),
    /// The consumer of the records stopped.
    Consumer(Error),
}

/// The state of one compressed input.
#[derive(Default)]
pub(in super::super) struct Zip {
    zstd: Option<Zstd<'static>>,
    /// Decompressed bytes: whole records that were not handed out, then a part of a record.
    plain: Vec<u8>,
    whole: usize,
    /// Bytes of the part of a record.
    pub(in super::super) filled: usize,
}

impl Zip {
    /// Keeps only what the next record needs, for the time that other parts are read.
    pub(in super::super) fn shrink(&mut self) {
        self.plain.truncate(self.filled);
        self.plain.shrink_to_fit();
    }
}

impl<F: Feed> RecordReader<'_, '_, '_, F> {
    pub(super) fn compressed(&mut self, record: &[u8], offset: u64) -> Result<NextRecord, Error> {
        let data = if record_type(record, self.session.bytes) == kind::COMPRESSED {
            record.get(HEADER..)
        } else {
            let len = self.session.bytes.u64(record, HEADER).and_then(|n| usize::try_from(n).ok());
            len.and_then(|len| record.get(HEADER + 8..)?.get(..len))
        };
        let Some(data) = data else {
            self.session.losses.undecodable += 1;
            return Ok(NextRecord::Next);
        };
        match self.decompress(data, offset) {
            Ok(()) => Ok(NextRecord::Next),
            Err(CompressedDamage::Consumer(error)) => Err(error),
            Err(CompressedDamage::Data(problem)) => {
                self.session.truncated(format!(
                    "at byte {offset}: compressed data is damaged ({problem}); nothing after it was read"
                ));
                Ok(NextRecord::Stop)
            }
        }
    }

    /// Decompresses one record's data. The stream continues from one compressed record to the next, and an inner record may
    /// be cut between two.
    fn decompress(&mut self, data: &[u8], offset: u64) -> Result<(), CompressedDamage> {
        let mut zstd = match self.zip.zstd.take() {
            Some(zstd) => zstd,
            None => Zstd::new().map_err(|e| CompressedDamage::Data(e.to_string()))?,
        };
        let mut input = InBuffer::around(data);
        loop {
            if self.zip.plain.len() < BLOCK || self.zip.whole > BLOCK - MAX_RECORD {
                self.hand_out_plain().map_err(CompressedDamage::Consumer)?;
                self.zip.plain.resize(BLOCK, 0);
            }
            let end = self.zip.whole + self.zip.filled;
            let room = &mut self.zip.plain[end..];
            let len = room.len();
            let mut output = OutBuffer::around(room);
            let result = zstd.run(&mut input, &mut output);
            let produced = output.pos();
            self.zip.filled += produced;
            self.plain_records(offset)?;
            result.map_err(|e| CompressedDamage::Data(e.to_string()))?;
            if produced < len && input.pos() == data.len() {
                break;
            }
        }
        self.zip.zstd = Some(zstd);
        Ok(())
    }

    /// Finds the whole records that were decompressed.
    fn plain_records(&mut self, offset: u64) -> Result<(), CompressedDamage> {
        loop {
            let end = self.zip.whole + self.zip.filled;
            let (len, after) = stretch(&self.zip.plain[self.zip.whole..end], self.session.bytes);
            self.zip.whole += len;
            self.zip.filled -= len;
            let size = match after {
                After::Nothing => return Ok(()),
                After::Bad(size) => {
                    return Err(CompressedDamage::Data(format!("a record of {size} bytes")));
                }
                After::Structural(size) => size,
            };
            let record = self.zip.plain[self.zip.whole..self.zip.whole + size].to_vec();
            let kind = record_type(&record, self.session.bytes);
            if matches!(kind, kind::COMPRESSED | kind::COMPRESSED2) {
                return Err(CompressedDamage::Data(
                    "a compressed record in a compressed record".to_owned(),
                ));
            }
            // It stays where it is, and the decoder skips it.
            self.zip.whole += size;
            self.zip.filled -= size;
            match self.structural(&record, offset).map_err(CompressedDamage::Consumer)? {
                NextRecord::Next => {}
                NextRecord::Payload(_) | NextRecord::Stop => {
                    return Err(CompressedDamage::Data(format!("a record of type {kind}")));
                }
            }
        }
    }

    /// Has the whole records decoded that were decompressed so far.
    pub(super) fn hand_out_plain(&mut self) -> Result<(), Error> {
        if self.zip.whole == 0 {
            return Ok(());
        }
        let mut next = self.block();
        let (whole, filled) = (self.zip.whole, self.zip.filled);
        next[..filled].copy_from_slice(&self.zip.plain[whole..whole + filled]);
        let plain = std::mem::replace(&mut self.zip.plain, next);
        self.zip.whole = 0;
        self.push_plain(plain, whole)
    }
}
