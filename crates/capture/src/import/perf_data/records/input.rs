//! The blocks of an input.

use std::io::{self, Read};

use super::BLOCK;
use crate::import::perf_data::samples::RecordSpan;
use crate::source::ReadAt;

/// Where the records of a recording are read from.
pub(in super::super) struct RecordsInput<'s, 'i> {
    /// Where they begin in the file.
    pub(super) offset: u64,
    /// How many bytes they should be, if that is known.
    pub(super) size: Option<u64>,
    bytes: InputBytes<'s, 'i>,
}

enum InputBytes<'s, 'i> {
    /// A section of a file, from here to there: the threads that decode read it.
    Section(&'s dyn ReadAt, u64, u64),
    /// Bytes that come one after the other, or have ended.
    Stream(Option<&'i mut dyn Read>),
}

impl<'s, 'i> RecordsInput<'s, 'i> {
    /// The section of a file.
    pub(in super::super) fn section(
        source: &'s dyn ReadAt,
        offset: u64,
        size: u64,
    ) -> RecordsInput<'s, 'i> {
        let end = offset.saturating_add(size);
        RecordsInput { offset, size: Some(size), bytes: InputBytes::Section(source, offset, end) }
    }

    /// A stream, of which `offset` bytes were read.
    pub(in super::super) fn stream(input: &'i mut dyn Read, offset: u64) -> RecordsInput<'s, 'i> {
        RecordsInput { offset, size: None, bytes: InputBytes::Stream(Some(input)) }
    }

    /// All blocks were given out.
    pub(super) fn is_over(&self) -> bool {
        match &self.bytes {
            InputBytes::Section(_, at, end) => at >= end,
            InputBytes::Stream(input) => input.is_none(),
        }
    }

    /// Puts the next block into a span, or says where it is.
    pub(super) fn next(&mut self, span: &mut RecordSpan<'s>) {
        match &mut self.bytes {
            InputBytes::Section(source, at, end) => {
                let len = BLOCK.min(usize::try_from(*end - *at).unwrap_or(usize::MAX));
                span.source = Some((*source, *at));
                span.len = len;
                *at += len as u64;
            }
            InputBytes::Stream(input) => {
                let Some(stream) = input else { return };
                match fill(*stream, &mut span.block) {
                    Ok(got) => span.len = got,
                    Err((got, error)) => (span.len, span.failed) = (got, Some(error)),
                }
                if span.len < BLOCK {
                    span.is_last = true;
                    *input = None;
                }
            }
        }
    }
}

/// Reads until the buffer is full or the input ends, so that blocks do not depend on how a pipe was written. An error comes
/// with how much was read before it.
fn fill(input: &mut dyn Read, mut buffer: &mut [u8]) -> Result<usize, (usize, io::Error)> {
    let mut filled = 0;
    while !buffer.is_empty() {
        match input.read(buffer) {
            Ok(0) => break,
            Ok(n) => {
                filled += n;
                buffer = buffer.get_mut(n..).unwrap_or_default();
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((filled, e)),
        }
    }
    Ok(filled)
}
