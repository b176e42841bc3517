//! A record as a buffered stream of 32-bit words or bytes.

use std::io::{ErrorKind, Read};

use super::RecordProblem;

/// Size of a read.
const PIECE: usize = 1 << 20;

/// The stream, and the position in it.
pub(super) struct StreamWords<R> {
    input: R,
    buffer: Vec<u8>,
    from: usize,
    /// Bytes before the buffer.
    before: u64,
}

impl<R: Read> StreamWords<R> {
    pub(super) fn new(input: R) -> StreamWords<R> {
        StreamWords { input, buffer: Vec::with_capacity(PIECE), from: 0, before: 0 }
    }

    /// The next word; a record that ends without an end mark is an error.
    #[inline]
    pub(super) fn next(&mut self) -> Result<u32, RecordProblem> {
        if self.buffer.len() - self.from < 4 {
            self.fill(4)?;
        }
        let bytes = &self.buffer[self.from..self.from + 4];
        self.from += 4;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The next byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, RecordProblem> {
        if self.buffer.len() == self.from {
            self.fill(1)?;
        }
        self.from += 1;
        Ok(self.buffer[self.from - 1])
    }

    /// The next two words, as one number.
    pub(super) fn double(&mut self) -> Result<u64, RecordProblem> {
        Ok(u64::from(self.next()?) | u64::from(self.next()?) << 32)
    }

    /// The next bytes; words go on after what fills up the last of them.
    pub(super) fn bytes(&mut self, count: usize) -> Result<Vec<u8>, RecordProblem> {
        let whole = count.next_multiple_of(4);
        if self.buffer.len() - self.from < whole {
            self.fill(whole)?;
        }
        let bytes = self.buffer[self.from..self.from + count].to_vec();
        self.from += whole;
        Ok(bytes)
    }

    /// The version, which must be this one.
    pub(super) fn version(&mut self, known: u32) -> Result<(), RecordProblem> {
        let version = self.next()?;
        if version == known {
            return Ok(());
        }
        Err(self.problem(&format!("it has version {version}; this program reads version {known}")))
    }

    fn fill(&mut self, need: usize) -> Result<(), RecordProblem> {
        self.before += self.from as u64;
        self.buffer.drain(..self.from);
        self.from = 0;
        while self.buffer.len() < need {
            let had = self.buffer.len();
            self.buffer.resize(had + PIECE, 0);
            let read = loop {
                match self.input.read(&mut self.buffer[had..]) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            let count = match read {
                Ok(count) => count,
                Err(error) => {
                    self.buffer.truncate(had);
                    return Err(self.problem(&format!("it cannot be read: {error}")));
                }
            };
            self.buffer.truncate(had + count);
            if count == 0 {
                return Err(self.problem("it is truncated here"));
            }
        }
        Ok(())
    }

    /// A defect at the current position.
    pub(super) fn problem(&self, what: &str) -> RecordProblem {
        RecordProblem { at: self.before + self.from as u64, what: what.to_owned() }
    }
}
