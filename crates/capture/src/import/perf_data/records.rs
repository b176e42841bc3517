//! The loop over records, plain or compressed.
//!
//! ```text
//!  bytes ──> all: whole records ──spans──> samples::decode (on several threads) ──> apply ──> Feed
//!                 │                                                                ^ in the order of the file
//!                 └──> records that change how others are read: when all before are applied
//! ```

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use vmtax_events::{Event, Kind, NO_PID, NO_VCPU};
use zstd::stream::raw::{Decoder as Zstd, InBuffer, Operation, OutBuffer};

use super::layout::Bytes;
use super::plan::SampleLayout;
use super::profile;
use super::samples::{self, Decoded, Span, What};
use super::session::Session;
use crate::feed::{Cut, one_by_one};
use crate::import::tracepoint::Endian;
use crate::workers::{Workers, with_workers};
use crate::{Error, Feed, Profiled};

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

    /// A record of this type changes how others are read, or holds others.
    pub(super) fn is_structural(kind: u32) -> bool {
        matches!(
            kind,
            COMPRESSED | COMPRESSED2 | HEADER_FEATURE | HEADER_ATTR | TRACING_DATA | AUXTRACE
        )
    }

    /// A record of this type says something, and is no sample.
    pub(in super::super) fn matters(kind: u32, is_profile: bool) -> bool {
        matches!(kind, LOST | COMM | EXIT | READ | LOST_SAMPLES | ID_INDEX)
            || is_profile && super::profile::is_of(kind)
    }
}

/// LOST_SAMPLES with this flag were filtered out on purpose, by a BPF filter.
const MISC_LOST_SAMPLES_BPF: u16 = 1 << 15;

const HEADER: usize = 8;
/// Bytes that are read at a time.
pub(super) const BLOCK: usize = 512 << 10;
/// Larger than any record (their length is 16 bits).
const MAX_RECORD: usize = 64 << 10;
/// No tracing data is larger than this.
const MAX_TRACING_DATA: u32 = 64 << 20;
/// Blocks that are kept to be filled again.
const MAX_SPARE: usize = 16;

/// Calls `read` with a reader that decodes on so many threads beside this one, and ends the reader.
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

    /// Feeds the events of a span, and does what its marks ask for.
    fn apply(&mut self, span: &mut Span) -> Result<(), Error> {
        let Span { plan, block, decoded, .. } = span;
        self.session.add(decoded);
        let mut cuts = std::mem::take(&mut self.cuts);
        cuts.clear();
        // The events before it are fed.
        let mut from = 0;
        for mark in &decoded.marks {
            self.round_max = self.round_max.max(mark.latest);
            match &mark.what {
                What::Round if !self.has_rounds => {}
                What::Round => {
                    cuts.push(Cut { at: mark.at - from, release: self.previous_max });
                    self.previous_max = self.round_max;
                }
                What::Name(tid, name) => {
                    if !self.session.is_unnamed(*tid) {
                        continue;
                    }
                    // The name precedes the events that are not passed on yet, and follows the others.
                    if !cuts.is_empty() {
                        one_by_one(self.feed, &decoded.events[from..mark.at], &cuts)?;
                        cuts.clear();
                        from = mark.at;
                    }
                    let name = String::from_utf8_lossy(&block[name.clone()]);
                    self.feed.thread_name(NO_PID, *tid, &name)?;
                }
                What::Record(record) => {
                    one_by_one(self.feed, &decoded.events[from..mark.at], &cuts)?;
                    cuts.clear();
                    from = mark.at;
                    let record = &block[record.clone()];
                    match plan.layout(record) {
                        SampleLayout::Other(layout)
                            if record_type(record, plan.bytes) == kind::SAMPLE =>
                        {
                            profile::sample(layout, record, plan.bytes, self.feed)?;
                        }
                        _ => self.rare(record)?,
                    }
                }
            }
        }
        self.round_max = self.round_max.max(decoded.latest);
        if from == 0 {
            self.feed.block(&mut decoded.events, &cuts)?;
        } else {
            one_by_one(self.feed, &decoded.events[from..], &cuts)?;
        }
        self.cuts = cuts;
        Ok(())
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

/// The next record of a buffer: `None` when it is not all there, `Err` with a size that cannot be.
#[inline(always)]
pub(super) fn next_record(buffer: &[u8], bytes: Bytes) -> Option<Result<&[u8], u16>> {
    let size = bytes.u16(buffer, 6)?;
    if usize::from(size) < HEADER {
        return Some(Err(size));
    }
    buffer.get(..usize::from(size)).map(Ok)
}

/// Whether bytes are records from their beginning on: a few of types that perf has, of whole words.
pub(super) fn are_records(head: &[u8]) -> bool {
    let bytes = Bytes(Endian::Little);
    let (mut at, mut count) = (0, 0);
    while let Some(size) = bytes.u16(head, at + 6).map(usize::from).filter(|_| count < 4) {
        let kind = record_type(&head[at..], bytes);
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
pub(super) fn record_type(record: &[u8], bytes: Bytes) -> u32 {
    bytes.u32(record, 0).unwrap_or(0)
}

/// Why decompression ended early.
enum Damage {
    /// The data contradicts itself.
    Data(String),
    /// The consumer of the records stopped.
    Consumer(Error),
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

/// The state of one compressed input.
#[derive(Default)]
pub(super) struct Zip {
    zstd: Option<Zstd<'static>>,
    /// Decompressed bytes: whole records that were not handed out, then a part of a record.
    plain: Vec<u8>,
    whole: usize,
    /// Bytes of the part of a record.
    pub(super) filled: usize,
}

impl Zip {
    /// Keeps only what the next record needs, for the time that other parts are read.
    pub(super) fn shrink(&mut self) {
        self.plain.truncate(self.filled);
        self.plain.shrink_to_fit();
    }
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

    /// Records that a recording has few of.
    #[cold]
    fn rare(&mut self, record: &[u8]) -> Result<(), Error> {
        let bytes = self.session.bytes;
        let kind = record_type(record, bytes);
        let word = |at: usize| bytes.u64(record, at).unwrap_or(0);
        match kind {
            kind::LOST => {
                let count = word(HEADER + 8);
                self.session.lost(count);
                self.marker(record, 0, Kind::Lost { count })?;
            }
            kind::LOST_SAMPLES => {
                let is_filter = bytes.u16(record, 4).unwrap_or(0) & MISC_LOST_SAMPLES_BPF != 0;
                self.session.lost_samples(if is_filter { 0 } else { word(HEADER) });
            }
            kind::READ => {
                let lost = self.session.plan.trailer().and_then(|l| l.lost_of_read(record, bytes));
                if let Some((id, count)) = lost {
                    self.session.lost_read(id, count);
                }
            }
            kind::COMM => {
                let (pid, tid) = (bytes.u32(record, HEADER), bytes.u32(record, HEADER + 4));
                let name = record.get(HEADER + 8..).unwrap_or_default();
                let name = name.split(|&b| b == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(&name[..name.len().min(256)]);
                if let (Some(pid), Some(tid)) = (pid, tid) {
                    self.session.is_unnamed(tid);
                    self.feed.thread_name(pid, tid, &name)?;
                    if F::WANTS_PROFILE {
                        let id = self.session.plan.trailer().map(|l| l.sample_id(record, bytes));
                        let time_ns = id.and_then(|id| id.time).unwrap_or(0);
                        self.feed.profiled(Profiled::Name { tid, time_ns, name: &name })?;
                    }
                }
            }
            kind::EXIT => {
                let tid = bytes.u32(record, HEADER + 8).unwrap_or(0);
                self.marker(record, tid, Kind::ThreadEnd)?;
            }
            _ if F::WANTS_PROFILE && profile::is_of(kind) => {
                let time_ns = self
                    .session
                    .plan
                    .trailer()
                    .and_then(|layout| layout.sample_id(record, bytes).time)
                    .unwrap_or(0);
                profile::record(kind, record, bytes, time_ns, self.feed)?;
            }
            kind::ID_INDEX => self.session.id_index(record),
            _ => {}
        }
        Ok(())
    }

    /// An event made of a record that is not a sample. Without a time of its own it gets the
    /// latest time seen.
    fn marker(&mut self, record: &[u8], tid: u32, kind: Kind) -> Result<(), Error> {
        let id = self
            .session
            .plan
            .trailer()
            .map(|l| l.sample_id(record, self.session.bytes))
            .unwrap_or_default();
        // perf writes 0 where an event has no time (those it makes up itself at the start).
        let time_ns = id.time.filter(|&t| t > 0).unwrap_or(self.round_max);
        self.round_max = self.round_max.max(time_ns);
        let cpu = id.cpu.unwrap_or(u32::MAX);
        self.feed.event(Event { time_ns, pid: NO_PID, tid, cpu, vcpu: NO_VCPU, kind })
    }

    fn compressed(&mut self, record: &[u8], offset: u64) -> Result<Step, Error> {
        let data = if record_type(record, self.session.bytes) == kind::COMPRESSED {
            record.get(HEADER..)
        } else {
            let len = self.session.bytes.u64(record, HEADER).and_then(|n| usize::try_from(n).ok());
            len.and_then(|len| record.get(HEADER + 8..)?.get(..len))
        };
        let Some(data) = data else {
            self.session.losses.undecodable += 1;
            return Ok(Step::Next);
        };
        match self.decompress(data, offset) {
            Ok(()) => Ok(Step::Next),
            Err(Damage::Consumer(error)) => Err(error),
            Err(Damage::Data(problem)) => {
                self.session.truncated(format!(
                    "at byte {offset}: compressed data is damaged ({problem}); nothing after it was read"
                ));
                Ok(Step::Stop)
            }
        }
    }

    /// Decompresses one record's data. The stream goes on from one compressed record to the next, and an inner record may
    /// be cut between two.
    fn decompress(&mut self, data: &[u8], offset: u64) -> Result<(), Damage> {
        let mut zstd = match self.zip.zstd.take() {
            Some(zstd) => zstd,
            None => Zstd::new().map_err(|e| Damage::Data(e.to_string()))?,
        };
        let mut input = InBuffer::around(data);
        loop {
            if self.zip.plain.len() < BLOCK || self.zip.whole > BLOCK - MAX_RECORD {
                self.hand_out_plain().map_err(Damage::Consumer)?;
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
            result.map_err(|e| Damage::Data(e.to_string()))?;
            if produced < len && input.pos() == data.len() {
                break;
            }
        }
        self.zip.zstd = Some(zstd);
        Ok(())
    }

    /// Finds the whole records that were decompressed.
    fn plain_records(&mut self, offset: u64) -> Result<(), Damage> {
        loop {
            let plain = std::mem::take(&mut self.zip.plain);
            let end = self.zip.whole + self.zip.filled;
            let (len, after) = self.stretch(&plain[self.zip.whole..end]);
            self.zip.plain = plain;
            self.zip.whole += len;
            self.zip.filled -= len;
            let size = match after {
                After::Nothing => return Ok(()),
                After::Bad(size) => return Err(Damage::Data(format!("a record of {size} bytes"))),
                After::Structural(size) => size,
            };
            let record = self.zip.plain[self.zip.whole..self.zip.whole + size].to_vec();
            let kind = record_type(&record, self.session.bytes);
            if matches!(kind, kind::COMPRESSED | kind::COMPRESSED2) {
                return Err(Damage::Data("a compressed record in a compressed record".to_owned()));
            }
            // It stays where it is, and the decoder skips it.
            self.zip.whole += size;
            self.zip.filled -= size;
            match self.structural(&record, offset).map_err(Damage::Consumer)? {
                Step::Next => {}
                Step::Payload(_) | Step::Stop => {
                    return Err(Damage::Data(format!("a record of type {kind}")));
                }
            }
        }
    }

    /// Has the whole records decoded that were decompressed so far.
    fn hand_out_plain(&mut self) -> Result<(), Error> {
        if self.zip.whole == 0 {
            return Ok(());
        }
        let mut next = self.block();
        let (whole, filled) = (self.zip.whole, self.zip.filled);
        next[..filled].copy_from_slice(&self.zip.plain[whole..whole + filled]);
        let plain = std::mem::replace(&mut self.zip.plain, next);
        self.zip.whole = 0;
        self.push(Arc::new(plain), 0..whole)
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
