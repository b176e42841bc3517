//! The header of a record: type and size.

use super::layout::OrderedBytes;

/// Record types (Linux `include/uapi/linux/perf_event.h`, `tools/lib/perf/include/perf/event.h`).
pub(super) mod kind {
    pub(in super::super) const LOST: u32 = 2;
    pub(in super::super) const COMM: u32 = 3;
    pub(in super::super) const EXIT: u32 = 4;
    pub(in super::super) const READ: u32 = 8;
    pub(in super::super) const SAMPLE: u32 = 9;
    pub(in super::super) const LOST_SAMPLES: u32 = 13;
    pub(in super::super) const HEADER_ATTR: u32 = 64;
    pub(in super::super) const TRACING_DATA: u32 = 66;
    pub(in super::super) const FINISHED_ROUND: u32 = 68;
    pub(in super::super) const ID_INDEX: u32 = 69;
    pub(in super::super) const AUXTRACE: u32 = 71;
    pub(in super::super) const HEADER_FEATURE: u32 = 80;
    pub(in super::super) const COMPRESSED: u32 = 81;
    pub(in super::super) const COMPRESSED2: u32 = 83;
    /// "PERF": the header of another stream.
    pub(in super::super) const HEADER: u32 = u32::from_le_bytes(*b"PERF");

    /// A record of this type changes how others are read, or holds others.
    pub(in super::super) fn is_structural(kind: u32) -> bool {
        matches!(
            kind,
            COMPRESSED
                | COMPRESSED2
                | HEADER_FEATURE
                | HEADER_ATTR
                | TRACING_DATA
                | AUXTRACE
                | HEADER
        )
    }

    /// A record of this type says something, and is no sample.
    pub(in super::super) fn matters(kind: u32, is_profile: bool) -> bool {
        matches!(kind, LOST | COMM | EXIT | READ | LOST_SAMPLES | ID_INDEX)
            || is_profile && super::super::profile::is_of(kind)
    }
}

/// Bytes of a header.
pub(super) const HEADER: usize = 8;

/// No record is larger: its length is 16 bits.
pub(super) const MAX_RECORD: usize = 64 << 10;

/// The next record of a buffer: `None` when it is not all there, `Err` with a size that cannot be.
#[inline(always)]
pub(super) fn next_record(buffer: &[u8], bytes: OrderedBytes) -> Option<Result<&[u8], u16>> {
    let size = bytes.u16(buffer, 6)?;
    if usize::from(size) < HEADER {
        return Some(Err(size));
    }
    buffer.get(..usize::from(size)).map(Ok)
}

/// What follows a stretch of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// A part of a record at most.
    Nothing,
    /// A record of a size that cannot be.
    Bad(u16),
    /// A record of this many bytes that changes how others are read.
    Structural(usize),
}

/// The length of the whole records at the front of these bytes, and what follows them.
pub(super) fn stretch(records: &[u8], bytes: OrderedBytes) -> (usize, After) {
    let mut at = 0;
    while let Some(record) = next_record(records.get(at..).unwrap_or_default(), bytes) {
        match record {
            Err(size) => return (at, After::Bad(size)),
            Ok(record) if kind::is_structural(record_type(record, bytes)) => {
                return (at, After::Structural(record.len()));
            }
            Ok(record) => at += record.len(),
        }
    }
    (at, After::Nothing)
}

/// Whether bytes are records from their beginning on: a few of types that perf has, of whole words.
pub(super) fn are_records(head: &[u8], bytes: OrderedBytes) -> bool {
    let (mut at, mut count) = (0, 0);
    while let Some(size) = bytes.u16(head, at + 6).map(usize::from).filter(|_| count < 8) {
        let kind = record_type(&head[at..], bytes);
        // The modes of the processor and four flags: the size of raw data with its tracepoint looks like a header otherwise.
        let misc = bytes.u16(head, at + 4).unwrap_or(0);
        if misc & 0x0ff8 != 0 {
            return false;
        }
        if !(1..=100).contains(&kind) || size < HEADER || size % 8 != 0 {
            // Compressed records are not padded.
            if kind != kind::COMPRESSED || size < HEADER {
                return false;
            }
        }
        at += size;
        count += 1;
    }
    count >= 2 || (count == 1 && at == head.len())
}

#[inline(always)]
pub(super) fn record_type(record: &[u8], bytes: OrderedBytes) -> u32 {
    bytes.u32(record, 0).unwrap_or(0)
}
