//! The loop over records, plain or compressed.
//!
//! ```text
//!  Input ──blocks──> samples::read (on several threads) ──> records ──apply──> Feed
//!                      ^                                     │   in the order of the file
//!                      └──── what was decompressed ──────────┤
//!                                                            └──> records that change how others are read
//! ```
//!
//! Blocks are read ahead, and decoded as the records before them say. Where a record of another block changes that, or begins in
//! one block and ends in the next, `records` decodes once more what that concerns.

mod apply;
mod compressed;
mod input;

use std::collections::VecDeque;
use std::sync::Arc;

use super::header;
use super::layout::OrderedBytes;
use super::record::{After, HEADER, kind, next_record, record_type};
use super::samples::{self, DecodedSpan, RecordSpan};
use super::session::PerfDataSession;
use crate::feed::Cut;
use crate::workers::{Workers, with_workers};
use crate::{Error, Feed};
pub(super) use compressed::Zip;
pub(super) use input::RecordsInput;

/// Bytes that are read at a time; a multiple of the words that records are made of.
pub(super) const BLOCK: usize = 512 << 10;
/// No tracing data is larger than this.
const MAX_TRACING_DATA: u32 = 64 << 20;
/// Blocks that are kept to be filled again.
const MAX_SPARE: usize = 16;

/// Calls `read` with a reader that decodes on this number of additional threads, and ends the reader.
pub(super) fn with_reader<'s, F: Feed>(
    threads: usize,
    session: &mut PerfDataSession,
    feed: &mut F,
    read: impl FnOnce(&mut RecordReader<'_, '_, 's, F>) -> Result<(), Error>,
) -> Result<(), Error> {
    with_workers(
        threads,
        samples::read,
        |workers: &mut Workers<'_, RecordSpan<'s>, RecordSpan<'s>>| {
            let mut reader = RecordReader::new(session, feed, workers);
            read(&mut reader)?;
            reader.end()
        },
    )
}

/// Where the records of a block end.
enum BlockEnd {
    /// Here; what follows is a part of a record at most.
    Whole(usize),
    /// At a record of a size that cannot be.
    Bad(usize, u16),
    /// Behind a record that these bytes follow, which are not records.
    Payload(usize, RecordPayload),
    /// Nothing that can be read follows; why is noted.
    Stop,
}

/// Bytes that are not records (TRACING_DATA of a stream, AUXTRACE).
struct RecordPayload {
    /// Where they begin in the file.
    offset: u64,
    left: u64,
    /// The bytes so far, of tracing data.
    formats: Option<Vec<u8>>,
}

/// A place between two blocks.
#[derive(Default)]
struct BlockGap {
    /// The beginning of a record whose end is in the next block.
    part: Vec<u8>,
    /// What the next block begins with, instead of records.
    payload: Option<RecordPayload>,
}

impl<'s, F: Feed> RecordReader<'_, '_, 's, F> {
    /// Reads the records of one input to its end.
    pub(super) fn all(&mut self, mut input: RecordsInput<'s, '_>) -> Result<(), Error> {
        let mut place = BlockGap::default();
        let mut next = input.offset;
        // The first block says how others are read.
        let mut most_ahead = 1;
        loop {
            while self.ahead < most_ahead && !self.workers.is_full() && !input.is_over() {
                let (block, decoded) = (self.block(), self.spare.pop().unwrap_or_default());
                let mut span = self.span(block, decoded);
                input.next(&mut span);
                self.ahead += 1;
                self.workers.push(span);
            }
            let Some(mut span) = self.next_block()? else { break };
            self.ahead -= 1;
            let offset = next;
            next += span.len as u64;
            if let Some(source) = span.failed.take() {
                return Err(Error::Io { offset: next, source });
            }
            if !self.block_of(&mut span, offset, &mut place)? {
                return Ok(());
            }
            let is_last = span.is_last;
            self.keep(span);
            if is_last {
                // A block behind the end is empty, or the file has grown since.
                break;
            }
            most_ahead = self.workers.most();
        }
        let ends_within = place.payload.is_some();
        if let Some(payload) = place.payload {
            self.payload_ends(payload)?;
        }
        self.drain()?;
        let read = next - input.offset;
        if let Some(size) = input.size.filter(|&size| read < size) {
            let missing = size - read;
            self.session.truncated(format!(
                "the file ends at byte {next}, {missing} bytes before the end of its data"
            ));
        } else if !place.part.is_empty() || ends_within || self.zip.filled > 0 {
            self.session.truncated(format!("the input ends at byte {next} within a record"));
        } else if input.size.is_none() && self.in_round {
            // A stream does not say how long it is, but perf ends each round of records that it writes.
            self.session.truncated(format!(
                "the stream ends at byte {next}, before perf had written all of its last round"
            ));
        }
        Ok(())
    }

    /// Handles a block of an input, which stands at byte `offset`. `false`: nothing after it can be read.
    fn block_of(
        &mut self,
        span: &mut RecordSpan<'s>,
        offset: u64,
        place: &mut BlockGap,
    ) -> Result<bool, Error> {
        let mut at = 0;
        // A record that began in the block before has a span of its own.
        if !place.part.is_empty() {
            let begun = place.part.len();
            at = complete(&mut place.part, &span.block[..span.len], self.session.bytes);
            let part = std::mem::take(&mut place.part);
            let decoded = self.spare.pop().unwrap_or_default();
            let mut one = self.span(part, decoded);
            let end = self.records(&mut one, 0, offset - begun as u64)?;
            self.spare.push(one.decoded);
            if let BlockEnd::Whole(0) = end {
                place.part = one.block;
                return Ok(true);
            }
            if self.goes_on(end, offset - begun as u64, place)?.is_none() {
                return Ok(false);
            }
        }
        loop {
            if let Some(payload) = &mut place.payload {
                at += payload.take(&span.block[at..span.len]);
                if payload.left > 0 {
                    return Ok(true);
                }
                if let Some(payload) = place.payload.take() {
                    self.payload_ends(payload)?;
                }
            }
            let end = self.records(span, at, offset)?;
            match self.goes_on(end, offset, place)? {
                None => return Ok(false),
                Some(end) if place.payload.is_some() => at = end,
                Some(end) => {
                    place.part.extend_from_slice(&span.block[end..span.len]);
                    return Ok(true);
                }
            }
        }
    }

    /// Where to go on in a block at byte `offset` whose records end so.
    fn goes_on(
        &mut self,
        end: BlockEnd,
        offset: u64,
        place: &mut BlockGap,
    ) -> Result<Option<usize>, Error> {
        match end {
            BlockEnd::Whole(at) => return Ok(Some(at)),
            BlockEnd::Payload(at, payload) => {
                place.payload = Some(payload);
                return Ok(Some(at));
            }
            BlockEnd::Bad(at, size) => {
                let here = offset + at as u64;
                self.session.truncated(format!(
                    "at byte {here}: a record of {size} bytes cannot be; nothing after it was read"
                ));
            }
            BlockEnd::Stop => {}
        }
        self.drain()?;
        Ok(None)
    }

    /// Handles the whole records at the front of a part's bytes, which stand at byte `offset`. Returns their length,
    /// or `None` when nothing more of the part can be read.
    pub(super) fn front(
        &mut self,
        block: &mut Vec<u8>,
        len: usize,
        offset: u64,
    ) -> Result<Option<usize>, Error> {
        let decoded = self.spare.pop().unwrap_or_default();
        let mut span = self.span(std::mem::take(block), decoded);
        span.len = len;
        let end = self.records(&mut span, 0, offset);
        *block = std::mem::take(&mut span.block);
        self.spare.push(span.decoded);
        let (at, problem) = match end? {
            BlockEnd::Whole(at) => {
                self.drain()?;
                return Ok(Some(at));
            }
            BlockEnd::Stop => return self.drain().map(|()| None),
            BlockEnd::Bad(at, _) => (at, "a record that cannot be"),
            BlockEnd::Payload(_, payload) => {
                // The sentence gives the place behind its record.
                let at = usize::try_from(payload.offset - offset).unwrap_or(0);
                (at, "a record that no part has")
            }
        };
        let here = offset + at as u64;
        self.session.truncated(format!("at byte {here}: {problem}; nothing after it was read"));
        self.drain().map(|()| None)
    }

    /// Handles the records of a block from `at` on. The block stands at byte `offset`.
    fn records(
        &mut self,
        span: &mut RecordSpan<'s>,
        at: usize,
        offset: u64,
    ) -> Result<BlockEnd, Error> {
        let bytes = self.session.bytes;
        let mut at = at;
        loop {
            let rest = span.block.get(at..span.len).unwrap_or_default();
            match next_record(rest, bytes) {
                None => return Ok(BlockEnd::Whole(at)),
                Some(Err(size)) => return Ok(BlockEnd::Bad(at, size)),
                Some(Ok(record)) if kind::is_structural(record_type(record, bytes)) => {
                    let here = offset + at as u64;
                    at += record.len();
                    match self.structural(record, here)? {
                        NextRecord::Next => {}
                        NextRecord::Payload(payload) => return Ok(BlockEnd::Payload(at, payload)),
                        NextRecord::Stop => return Ok(BlockEnd::Stop),
                    }
                }
                Some(Ok(_)) => {
                    // What was decompressed before precedes it.
                    self.drain()?;
                    let is_decoded = span.range.start == at && !span.range.is_empty();
                    if !is_decoded || !Arc::ptr_eq(&span.plan, &self.session.plan) {
                        span.plan = Arc::clone(&self.session.plan);
                        span.start = Some(at);
                        span.decode();
                    }
                    self.apply(span)?;
                    at = span.range.end;
                }
            }
        }
    }

    /// The payload of a record is over, or the input is.
    fn payload_ends(&mut self, payload: RecordPayload) -> Result<(), Error> {
        let Some(formats) = payload.formats else { return Ok(()) };
        self.drain()?;
        self.session.tracing_data(&formats, payload.offset)?;
        if !F::WANTS_PROFILE {
            self.session.check_architecture()?;
        }
        self.feed.described(&self.session.recording)
    }

    /// A span of a block from its beginning on.
    fn span(&self, block: Vec<u8>, decoded: DecodedSpan) -> RecordSpan<'s> {
        RecordSpan {
            plan: Arc::clone(&self.session.plan),
            source: None,
            len: block.len(),
            block,
            is_last: false,
            failed: None,
            start: None,
            range: 0..0,
            after: After::Nothing,
            is_plain: false,
            is_profile: F::WANTS_PROFILE,
            decoded,
        }
    }

    /// Has decompressed records decoded.
    fn push_plain(&mut self, plain: Vec<u8>, len: usize) -> Result<(), Error> {
        while self.workers.is_full() {
            match self.workers.pop() {
                Some(span) if span.is_plain => self.apply_plain(span)?,
                span => self.waiting.extend(span),
            }
        }
        let decoded = self.spare.pop().unwrap_or_default();
        let span = RecordSpan { len, start: Some(0), is_plain: true, ..self.span(plain, decoded) };
        self.plain += 1;
        self.workers.push(span);
        Ok(())
    }

    /// Applies what was decompressed.
    fn drain(&mut self) -> Result<(), Error> {
        self.hand_out_plain()?;
        while self.plain > 0 {
            match self.workers.pop() {
                Some(span) if span.is_plain => self.apply_plain(span)?,
                Some(span) => self.waiting.push_back(span),
                // A thread panicked, which is resumed when the threads are joined.
                None => break,
            }
        }
        Ok(())
    }

    /// The next block of the input, when all that was decompressed before is applied or follows it.
    fn next_block(&mut self) -> Result<Option<RecordSpan<'s>>, Error> {
        if let Some(span) = self.waiting.pop_front() {
            return Ok(Some(span));
        }
        while let Some(span) = self.workers.pop() {
            if !span.is_plain {
                return Ok(Some(span));
            }
            self.apply_plain(span)?;
        }
        Ok(None)
    }

    fn apply_plain(&mut self, mut span: RecordSpan<'s>) -> Result<(), Error> {
        self.plain -= 1;
        self.apply(&mut span)?;
        self.keep(span);
        Ok(())
    }

    /// A block to fill.
    fn block(&mut self) -> Vec<u8> {
        self.blocks.pop().unwrap_or_else(|| vec![0; BLOCK])
    }

    /// Keeps the room of a span to be used again.
    fn keep(&mut self, span: RecordSpan<'s>) {
        if self.blocks.len() < MAX_SPARE && span.block.len() == BLOCK {
            self.blocks.push(span.block);
        }
        self.spare.push(span.decoded);
    }
}

impl RecordPayload {
    /// Takes what it has of these bytes. Returns how many.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if let Some(formats) = &mut self.formats {
            formats.extend_from_slice(&bytes[..len]);
        }
        self.left -= len as u64;
        len
    }
}

/// Completes the beginning of a record with the bytes that follow it. Returns how many of them are its.
fn complete(part: &mut Vec<u8>, next: &[u8], bytes: OrderedBytes) -> usize {
    let mut at = 0;
    // The size is in the header.
    while let Some(wanted) = match part.len().checked_sub(HEADER) {
        None => Some(HEADER),
        Some(_) => bytes.u16(part, 6).map(usize::from),
    }
    .filter(|&wanted| wanted > part.len())
    {
        let rest = next.get(at..).unwrap_or_default();
        let len = rest.len().min(wanted - part.len());
        if len == 0 {
            break;
        }
        part.extend_from_slice(&rest[..len]);
        at += len;
    }
    at
}

/// What follows a record.
enum NextRecord {
    /// The next record.
    Next,
    /// Bytes that are not records.
    Payload(RecordPayload),
    /// Nothing that can be read; why is noted.
    Stop,
}

pub(super) struct RecordReader<'a, 'w, 's, F> {
    pub(super) session: &'a mut PerfDataSession,
    pub(super) feed: &'a mut F,
    workers: &'a mut Workers<'w, RecordSpan<'s>, RecordSpan<'s>>,
    /// Latest time seen, and what it was when the round before ended: records of a round may overlap
    /// those of the next round, never of the one after.
    pub(super) round_max: u64,
    previous_max: u64,
    /// There was an event since the last round ended.
    in_round: bool,
    /// The ends of rounds say what can be passed on. Not so in a folder, whose parts know nothing of each other.
    pub(super) has_rounds: bool,
    pub(super) zip: Zip,
    /// Blocks of the input that are read ahead, and those of them that were taken from the threads too early.
    ahead: usize,
    waiting: VecDeque<RecordSpan<'s>>,
    /// Spans of decompressed records that are not applied yet.
    plain: usize,
    /// Room that is used again.
    spare: Vec<DecodedSpan>,
    blocks: Vec<Vec<u8>>,
    cuts: Vec<Cut>,
}

impl<'a, 'w, 's, F: Feed> RecordReader<'a, 'w, 's, F> {
    fn new(
        session: &'a mut PerfDataSession,
        feed: &'a mut F,
        workers: &'a mut Workers<'w, RecordSpan<'s>, RecordSpan<'s>>,
    ) -> RecordReader<'a, 'w, 's, F> {
        RecordReader {
            session,
            feed,
            workers,
            round_max: 0,
            previous_max: 0,
            in_round: false,
            has_rounds: true,
            zip: Zip::default(),
            ahead: 0,
            waiting: VecDeque::new(),
            plain: 0,
            spare: Vec::new(),
            blocks: Vec::new(),
            cuts: Vec::new(),
        }
    }
}

impl<F: Feed> RecordReader<'_, '_, '_, F> {
    /// Handles a record at byte `offset` that changes how others are read.
    fn structural(&mut self, record: &[u8], offset: u64) -> Result<NextRecord, Error> {
        let bytes = self.session.bytes;
        match record_type(record, bytes) {
            kind::COMPRESSED | kind::COMPRESSED2 => return self.compressed(record, offset),
            kind::HEADER => {
                self.drain()?;
                self.session.truncated(format!(
                    "another recording follows at byte {offset}, {}",
                    header::ANOTHER
                ));
                return Ok(NextRecord::Stop);
            }
            kind::HEADER_FEATURE => {
                self.drain()?;
                let feature = bytes.u64(record, HEADER).unwrap_or(u64::MAX);
                let payload = record.get(HEADER + 8..).unwrap_or_default();
                self.session.feature(feature, payload, offset + 16)?;
                if !F::WANTS_PROFILE {
                    self.session.check_architecture()?;
                }
            }
            kind::HEADER_ATTR => {
                self.drain()?;
                let size = bytes.u32(record, HEADER + 4).unwrap_or(0) as usize;
                let rest = record.get(HEADER..).unwrap_or_default();
                if size >= 64 && size <= rest.len() {
                    let (attr, ids) = rest.split_at(size);
                    self.session.attr(attr, ids);
                } else {
                    self.session.losses.undecodable += 1;
                }
            }
            kind::TRACING_DATA => {
                let size = bytes.u32(record, HEADER).unwrap_or(0);
                if size > MAX_TRACING_DATA {
                    return Err(Error::malformed(
                        offset,
                        "tracing data",
                        format!("claims {size} bytes"),
                    ));
                }
                return Ok(NextRecord::Payload(RecordPayload {
                    offset: offset + record.len() as u64,
                    left: size.into(),
                    formats: Some(Vec::new()),
                }));
            }
            _ => {
                let left = bytes.u64(record, HEADER).unwrap_or(0);
                let offset = offset + record.len() as u64;
                return Ok(NextRecord::Payload(RecordPayload { offset, left, formats: None }));
            }
        }
        Ok(NextRecord::Next)
    }

    pub(super) fn end(self) -> Result<(), Error> {
        if !F::WANTS_PROFILE && !self.session.has_formats() {
            return Err(Error::malformed(
                0,
                "tracing data",
                "the recording has none: no tracepoint was recorded; record with -e 'kvm:*' or perf kvm stat record",
            ));
        }
        Ok(())
    }
}
