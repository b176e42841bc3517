//! The loop over records, plain or compressed.
//!
//! ```text
//!  bytes ──> all: whole records ──spans──> samples::decode (on several threads) ──> apply ──> Feed
//!                 │                                                                ^ in the order of the file
//!                 └──> records that change how others are read: when all before are applied
//! ```

mod apply;
mod compressed;

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use super::record::{HEADER, kind, next_record, record_type};
use super::samples::{self, Decoded, Span};
use super::session::Session;
use crate::feed::Cut;
use crate::workers::{Workers, with_workers};
use crate::{Error, Feed};
pub(super) use compressed::Zip;

/// Bytes that are read at a time.
pub(super) const BLOCK: usize = 512 << 10;
/// No tracing data is larger than this.
const MAX_TRACING_DATA: u32 = 64 << 20;
/// Blocks that are kept to be filled again.
const MAX_SPARE: usize = 16;

/// Calls `read` with a reader that decodes on this number of additional threads, and ends the reader.
pub(super) fn with_reader<F: Feed>(
    threads: usize,
    session: &mut Session,
    feed: &mut F,
    read: impl FnOnce(&mut Reader<'_, '_, F>) -> Result<(), Error>,
) -> Result<(), Error> {
    with_workers(threads, samples::decode, |workers| {
        let mut reader = Reader::new(session, feed, workers);
        read(&mut reader)?;
        reader.end()
    })
}

/// Reads records until the input ends. `offset` is where the input begins in the file; `size` is how
/// long it should be, if that is known.
pub(super) fn run<F: Feed>(
    input: &mut dyn Read,
    (offset, size): (u64, Option<u64>),
    threads: usize,
    session: &mut Session,
    feed: &mut F,
) -> Result<(), Error> {
    with_reader(threads, session, feed, |reader| reader.all(input, offset, size))
}

/// What follows a stretch of records.
enum After {
    /// A part of a record at most.
    Nothing,
    /// A record of a size that cannot be.
    Bad(u16),
    /// A record of this many bytes that changes how others are read.
    Structural(usize),
}

impl<F: Feed> Reader<'_, '_, F> {
    /// Reads the records of one input to its end.
    pub(super) fn all(
        &mut self,
        input: &mut dyn Read,
        offset: u64,
        size: Option<u64>,
    ) -> Result<(), Error> {
        let mut next = self.block();
        let mut filled = 0;
        let mut consumed = 0u64;
        // The bytes that follow a record are not all there.
        let mut ends_within = false;
        loop {
            let got = fill(input, &mut next[filled..]).map_err(|(got, source)| Error::Io {
                offset: offset + consumed + (filled + got) as u64,
                source,
            })?;
            if got == 0 {
                break;
            }
            filled += got;
            let block = Arc::new(next);
            let mut at = 0;
            loop {
                let (len, after) = self.stretch(&block[at..filled]);
                self.hand_out(&block, at..at + len)?;
                at += len;
                let here = offset + consumed + at as u64;
                let len = match after {
                    After::Nothing => break,
                    After::Bad(size) => {
                        self.session.truncated(format!(
                        "at byte {here}: a record of {size} bytes cannot be; nothing after it was read"
                    ));
                        return self.drain();
                    }
                    After::Structural(len) => len,
                };
                let record = &block[at..at + len];
                at += len;
                let more = match self.structural(record, here)? {
                    Step::Next => continue,
                    Step::Stop => return self.drain(),
                    Step::Payload(more) => more,
                };
                let is_formats = record_type(record, self.session.bytes) == kind::TRACING_DATA;
                let have = (filled - at).min(usize::try_from(more).unwrap_or(usize::MAX));
                let mut payload =
                    if is_formats { block[at..at + have].to_vec() } else { Vec::new() };
                at += have;
                let mut tail = input.take(more - have as u64);
                let copied = if is_formats {
                    tail.read_to_end(&mut payload).map(|n| n as u64)
                } else {
                    io::copy(&mut tail, &mut io::sink())
                };
                let copied = copied.map_err(|source| Error::Io { offset: here, source })?;
                consumed += copied;
                ends_within |= have as u64 + copied < more;
                if is_formats {
                    self.drain()?;
                    self.session.tracing_data(&payload, here + record.len() as u64)?;
                    if !F::WANTS_PROFILE {
                        self.session.check_architecture()?;
                    }
                    self.feed.described(&self.session.recording)?;
                }
            }
            consumed += at as u64;
            next = self.block();
            next[..filled - at].copy_from_slice(&block[at..filled]);
            self.reclaim(block);
            filled -= at;
        }
        self.drain()?;
        let read = consumed + filled as u64;
        if let Some(size) = size.filter(|&size| read < size) {
            let end = offset + read;
            let missing = size - read;
            self.session.truncated(format!(
                "the file ends at byte {end}, {missing} bytes before the end of its data"
            ));
        } else if filled > 0 || ends_within || self.zip.filled > 0 {
            let end = offset + read;
            self.session.truncated(format!("the input ends at byte {end} within a record"));
        } else if size.is_none() && self.in_round {
            // A stream does not say how long it is, but perf ends each round of records that it writes.
            let end = offset + read;
            self.session.truncated(format!(
                "the stream ends at byte {end}, before perf had written all of its last round"
            ));
        }
        Ok(())
    }

    /// Handles the whole records at the front of a part's bytes, which stand at byte `offset`. Returns their length,
    /// or `None` when nothing more of the part can be read.
    pub(super) fn front(
        &mut self,
        block: &Arc<Vec<u8>>,
        len: usize,
        offset: u64,
    ) -> Result<Option<usize>, Error> {
        let mut at = 0;
        loop {
            let (len, after) = self.stretch(&block[at..len]);
            self.hand_out(block, at..at + len)?;
            at += len;
            let here = offset + at as u64;
            let problem = match after {
                After::Nothing => break,
                After::Bad(_) => "a record that cannot be",
                After::Structural(len) => {
                    let record = &block[at..at + len];
                    at += len;
                    match self.structural(record, here)? {
                        Step::Next => continue,
                        Step::Payload(_) => "a record that no part has",
                        Step::Stop => return self.drain().map(|()| None),
                    }
                }
            };
            self.session.truncated(format!("at byte {here}: {problem}; nothing after it was read"));
            return self.drain().map(|()| None);
        }
        self.drain()?;
        Ok(Some(at))
    }

    /// The length of the whole records at the front of these bytes, and what follows them.
    fn stretch(&mut self, records: &[u8]) -> (usize, After) {
        let bytes = self.session.bytes;
        let mut at = 0;
        while let Some(record) = next_record(records.get(at..).unwrap_or_default(), bytes) {
            let record = match record {
                Ok(record) => record,
                Err(size) => return (at, After::Bad(size)),
            };
            match record_type(record, bytes) {
                kind::SAMPLE | kind::LOST | kind::EXIT => self.in_round = true,
                kind::FINISHED_ROUND => self.in_round &= !self.has_rounds,
                other if kind::is_structural(other) => {
                    return (at, After::Structural(record.len()));
                }
                _ => {}
            }
            at += record.len();
        }
        (at, After::Nothing)
    }

    /// Has a stretch of records decoded, behind what was decompressed before it.
    fn hand_out(&mut self, block: &Arc<Vec<u8>>, range: Range<usize>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        self.hand_out_plain()?;
        self.push(Arc::clone(block), range)
    }

    fn push(&mut self, block: Arc<Vec<u8>>, range: Range<usize>) -> Result<(), Error> {
        while self.workers.is_full() {
            self.apply_oldest()?;
        }
        self.workers.push(Span {
            plan: Arc::clone(&self.session.plan),
            block,
            range,
            is_profile: F::WANTS_PROFILE,
            decoded: self.spare.pop().unwrap_or_default(),
        });
        Ok(())
    }

    /// Applies all that was handed out.
    fn drain(&mut self) -> Result<(), Error> {
        self.hand_out_plain()?;
        while self.apply_oldest()? {}
        Ok(())
    }

    /// Applies the oldest span. `false`: there is none.
    fn apply_oldest(&mut self) -> Result<bool, Error> {
        let Some(mut span) = self.workers.pop() else { return Ok(false) };
        self.apply(&mut span)?;
        let Span { block, decoded, .. } = span;
        self.reclaim(block);
        self.spare.push(decoded);
        Ok(true)
    }

    /// A block to fill.
    fn block(&mut self) -> Vec<u8> {
        self.blocks.pop().unwrap_or_else(|| vec![0; BLOCK])
    }

    /// Keeps a block to be filled again when it is not read any more.
    fn reclaim(&mut self, block: Arc<Vec<u8>>) {
        if let Ok(block) = Arc::try_unwrap(block)
            && self.blocks.len() < MAX_SPARE
            && block.len() == BLOCK
        {
            self.blocks.push(block);
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

/// What follows a record.
enum Step {
    /// The next record.
    Next,
    /// So many bytes that are not records (TRACING_DATA of a stream, AUXTRACE).
    Payload(u64),
    /// Nothing that can be read; why is noted.
    Stop,
}

pub(super) struct Reader<'a, 'w, F> {
    pub(super) session: &'a mut Session,
    pub(super) feed: &'a mut F,
    workers: &'a mut Workers<'w, Span, Span>,
    /// Latest time seen, and what it was when the round before ended: records of a round may overlap
    /// those of the next round, never of the one after.
    pub(super) round_max: u64,
    previous_max: u64,
    /// There was an event since the last round ended.
    in_round: bool,
    /// The ends of rounds say what can be passed on. Not so in a folder, whose parts know nothing of each other.
    pub(super) has_rounds: bool,
    pub(super) zip: Zip,
    /// Room that is used again.
    spare: Vec<Decoded>,
    blocks: Vec<Vec<u8>>,
    cuts: Vec<Cut>,
}

impl<'a, 'w, F: Feed> Reader<'a, 'w, F> {
    fn new(
        session: &'a mut Session,
        feed: &'a mut F,
        workers: &'a mut Workers<'w, Span, Span>,
    ) -> Reader<'a, 'w, F> {
        Reader {
            session,
            feed,
            workers,
            round_max: 0,
            previous_max: 0,
            in_round: false,
            has_rounds: true,
            zip: Zip::default(),
            spare: Vec::new(),
            blocks: Vec::new(),
            cuts: Vec::new(),
        }
    }
}

impl<F: Feed> Reader<'_, '_, F> {
    /// Handles a record at byte `offset` that changes how others are read.
    fn structural(&mut self, record: &[u8], offset: u64) -> Result<Step, Error> {
        let bytes = self.session.bytes;
        match record_type(record, bytes) {
            kind::COMPRESSED | kind::COMPRESSED2 => return self.compressed(record, offset),
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
                return Ok(Step::Payload(size.into()));
            }
            _ => return Ok(Step::Payload(bytes.u64(record, HEADER).unwrap_or(0))),
        }
        Ok(Step::Next)
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
