//! The loop over records, plain or compressed.

use std::io::{self, Read};

use vmtax_events::{Event, Kind, NO_PID, NO_VCPU};
use zstd::stream::raw::{Decoder as Zstd, InBuffer, Operation, OutBuffer};

use super::layout::Bytes;
use super::profile;
use super::session::{SampleLayout, Session};
use crate::import::tracepoint::Endian;
use crate::{Error, Feed, Profiled};

/// Record types (Linux `include/uapi/linux/perf_event.h`, `tools/lib/perf/include/perf/event.h`).
mod kind {
    pub(super) const LOST: u32 = 2;
    pub(super) const COMM: u32 = 3;
    pub(super) const EXIT: u32 = 4;
    pub(super) const READ: u32 = 8;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const LOST_SAMPLES: u32 = 13;
    pub(super) const HEADER_ATTR: u32 = 64;
    pub(super) const TRACING_DATA: u32 = 66;
    pub(super) const FINISHED_ROUND: u32 = 68;
    pub(super) const ID_INDEX: u32 = 69;
    pub(super) const AUXTRACE: u32 = 71;
    pub(super) const HEADER_FEATURE: u32 = 80;
    pub(super) const COMPRESSED: u32 = 81;
    pub(super) const COMPRESSED2: u32 = 83;
}

/// LOST_SAMPLES with this flag were filtered out on purpose, by a BPF filter.
const MISC_LOST_SAMPLES_BPF: u16 = 1 << 15;

const HEADER: usize = 8;
const BLOCK: usize = 256 << 10;
/// Larger than any record (their length is 16 bits).
const MAX_RECORD: usize = 64 << 10;
/// No tracing data is larger than this.
const MAX_TRACING_DATA: u32 = 64 << 20;

/// Reads records until the input ends. `offset` is where the input begins in the file; `size` is how
/// long it should be, if that is known.
pub(super) fn run<F: Feed>(
    input: &mut dyn Read,
    offset: u64,
    size: Option<u64>,
    session: &mut Session,
    feed: &mut F,
) -> Result<(), Error> {
    let mut reader = Reader::new(session, feed);
    reader.all(input, offset, size)?;
    reader.end()
}

impl<F: Feed> Reader<'_, F> {
    /// Reads the records of one input to its end.
    pub(super) fn all(
        &mut self,
        input: &mut dyn Read,
        offset: u64,
        size: Option<u64>,
    ) -> Result<(), Error> {
        let reader = self;
        let mut block = vec![0; BLOCK];
        let mut filled = 0;
        let mut consumed = 0u64;
        // The bytes that follow a record are not all there.
        let mut ends_within = false;
        loop {
            let got = match input.read(&mut block[filled..]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(Error::Io { offset: offset + consumed + filled as u64, source });
                }
            };
            filled += got;
            let mut at = 0;
            while let Some(record) = next_record(&block[at..filled], reader.session.bytes) {
                let here = offset + consumed + at as u64;
                let record = match record {
                    Ok(record) => record,
                    Err(size) => {
                        reader.session.truncated(format!(
                        "at byte {here}: a record of {size} bytes cannot be; nothing after it was read"
                    ));
                        return Ok(());
                    }
                };
                at += record.len();
                let more = match reader.record(record, here)? {
                    Step::Next => continue,
                    Step::Stop => return Ok(()),
                    Step::Payload(more) => more,
                };
                let is_formats = record_type(record, reader.session.bytes) == kind::TRACING_DATA;
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
                    reader.session.tracing_data(&payload, here + record.len() as u64)?;
                    if !F::WANTS_PROFILE {
                        reader.session.check_architecture()?;
                    }
                    reader.feed.described(&reader.session.recording)?;
                }
            }
            consumed += at as u64;
            block.copy_within(at..filled, 0);
            filled -= at;
        }
        let read = consumed + filled as u64;
        if let Some(size) = size.filter(|&size| read < size) {
            let end = offset + read;
            let missing = size - read;
            reader.session.truncated(format!(
                "the file ends at byte {end}, {missing} bytes before the end of its data"
            ));
        } else if filled > 0 || ends_within || reader.zip.filled > 0 {
            let end = offset + read;
            reader.session.truncated(format!("the input ends at byte {end} within a record"));
        } else if size.is_none() && reader.in_round {
            // A stream does not say how long it is, but perf ends each round of records that it writes.
            let end = offset + read;
            reader.session.truncated(format!(
                "the stream ends at byte {end}, before perf had written all of its last round"
            ));
        }
        Ok(())
    }

    /// Handles the whole records at the front of a part's bytes, which stand at byte `offset`. Returns their length,
    /// or `None` when nothing more of the part can be read.
    pub(super) fn front(&mut self, bytes: &[u8], offset: u64) -> Result<Option<usize>, Error> {
        let mut at = 0;
        while let Some(record) = next_record(&bytes[at..], self.session.bytes) {
            let here = offset + at as u64;
            let Ok(record) = record else {
                self.session.truncated(format!(
                    "at byte {here}: a record that cannot be; nothing after it was read"
                ));
                return Ok(None);
            };
            at += record.len();
            match self.record(record, here)? {
                Step::Next => {}
                Step::Stop => return Ok(None),
                Step::Payload(_) => {
                    self.session.truncated(format!(
                        "at byte {here}: a record that no part has; nothing after it was read"
                    ));
                    return Ok(None);
                }
            }
        }
        Ok(Some(at))
    }
}

/// The next record of a buffer: `None` when it is not all there, `Err` with a size that cannot be.
#[inline]
fn next_record(buffer: &[u8], bytes: Bytes) -> Option<Result<&[u8], u16>> {
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

fn record_type(record: &[u8], bytes: Bytes) -> u32 {
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

pub(super) struct Reader<'a, F> {
    pub(super) session: &'a mut Session,
    pub(super) feed: &'a mut F,
    /// Latest time seen, and what it was when the round before ended: records of a round may overlap
    /// those of the next round, never of the one after.
    pub(super) round_max: u64,
    previous_max: u64,
    /// There was an event since the last round ended.
    in_round: bool,
    /// The ends of rounds say what can be passed on. Not so in a folder, whose parts know nothing of each other.
    pub(super) has_rounds: bool,
    pub(super) zip: Zip,
}

/// The state of one compressed input.
#[derive(Default)]
pub(super) struct Zip {
    zstd: Option<Zstd<'static>>,
    /// Decompressed bytes; the first `filled` do not make a whole record yet.
    plain: Vec<u8>,
    pub(super) filled: usize,
}

impl Zip {
    /// Keeps only what the next record needs, for the time that other parts are read.
    pub(super) fn shrink(&mut self) {
        self.plain.truncate(self.filled);
        self.plain.shrink_to_fit();
    }
}

impl<'a, F: Feed> Reader<'a, F> {
    pub(super) fn new(session: &'a mut Session, feed: &'a mut F) -> Reader<'a, F> {
        Reader {
            session,
            feed,
            round_max: 0,
            previous_max: 0,
            in_round: false,
            has_rounds: true,
            zip: Zip::default(),
        }
    }
}

impl<F: Feed> Reader<'_, F> {
    /// Handles one record, which stands at byte `offset`.
    #[inline]
    fn record(&mut self, record: &[u8], offset: u64) -> Result<Step, Error> {
        match record_type(record, self.session.bytes) {
            kind::SAMPLE => self.sample(record)?,
            kind::FINISHED_ROUND if !self.has_rounds => {}
            kind::FINISHED_ROUND => {
                self.feed.release(self.previous_max)?;
                self.previous_max = self.round_max;
                self.in_round = false;
            }
            kind::COMPRESSED | kind::COMPRESSED2 => return self.compressed(record, offset),
            kind::HEADER_FEATURE => {
                let feature = self.session.bytes.u64(record, HEADER).unwrap_or(u64::MAX);
                let payload = record.get(HEADER + 8..).unwrap_or_default();
                self.session.feature(feature, payload, offset + 16)?;
                if !F::WANTS_PROFILE {
                    self.session.check_architecture()?;
                }
            }
            other => return self.rare(other, record, offset),
        }
        Ok(Step::Next)
    }

    /// Both byte orders have a copy of the sample's path of their own: it is the hot one.
    #[inline]
    fn sample(&mut self, record: &[u8]) -> Result<(), Error> {
        match self.session.bytes.0 {
            Endian::Little => self.sample_in(record, Endian::Little),
            Endian::Big => self.sample_in(record, Endian::Big),
        }
    }

    #[inline(always)]
    fn sample_in(&mut self, record: &[u8], endian: Endian) -> Result<(), Error> {
        self.in_round = true;
        let layout = match self.session.layout(record) {
            SampleLayout::Tracepoint(layout) => layout,
            SampleLayout::Other(layout) => {
                return if F::WANTS_PROFILE {
                    profile::sample(layout, record, Bytes(endian), self.feed)
                } else {
                    Ok(())
                };
            }
            SampleLayout::Unlisted => {
                self.session.unlisted();
                return Ok(());
            }
        };
        let Some(sample) = layout.sample(record, Bytes(endian)) else {
            self.session.losses.undecodable += u64::from(layout.is_usable());
            return Ok(());
        };
        self.round_max = self.round_max.max(sample.time);
        self.session.count(sample.raw, Bytes(endian));
        let Some(decoder) = self.session.decoder(sample.raw, Bytes(endian)) else {
            self.session.losses.undecodable += u64::from(!self.session.describes(sample.raw));
            return Ok(());
        };
        let decoded = match sample.tid {
            // The last switch of a thread that has ended has -1 for both: only the tracepoint knows it.
            Some((pid, tid)) if tid != u32::MAX => {
                decoder.kind(sample.raw).map(|(vcpu, kind)| (pid, tid, vcpu, kind))
            }
            _ => decoder.decode(sample.raw).map(|d| (NO_PID, d.tid, d.vcpu, d.kind)),
        };
        let Some((pid, tid, vcpu, kind)) = decoded else {
            self.session.losses.undecodable += 1;
            return Ok(());
        };
        let next = match kind {
            Kind::Switch { next_tid, .. } => {
                decoder.next_name(sample.raw).map(|name| (next_tid, name))
            }
            _ => None,
        };
        if let Some((next_tid, name)) = next
            && self.session.is_unnamed(next_tid)
        {
            self.feed.thread_name(NO_PID, next_tid, &String::from_utf8_lossy(name))?;
        }
        let cpu = sample.cpu.unwrap_or(u32::MAX);
        self.feed.event(Event { time_ns: sample.time, pid, tid, cpu, vcpu, kind })
    }

    /// Records that a recording has few of.
    #[cold]
    fn rare(&mut self, kind: u32, record: &[u8], offset: u64) -> Result<Step, Error> {
        let bytes = self.session.bytes;
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
                let lost = self.session.trailer().and_then(|l| l.lost_of_read(record, bytes));
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
                        let id = self.session.trailer().map(|l| l.sample_id(record, bytes));
                        let time_ns = id.and_then(|id| id.time).unwrap_or(0);
                        self.feed.profiled(Profiled::Name { tid, time_ns, name: &name })?;
                    }
                }
            }
            kind::EXIT => {
                let tid = bytes.u32(record, HEADER + 8).unwrap_or(0);
                self.marker(record, tid, Kind::ThreadEnd)?;
            }
            kind::HEADER_ATTR => {
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
            _ if F::WANTS_PROFILE && profile::is_of(kind) => {
                let time_ns = self
                    .session
                    .trailer()
                    .and_then(|layout| layout.sample_id(record, bytes).time)
                    .unwrap_or(0);
                profile::record(kind, record, bytes, time_ns, self.feed)?;
            }
            kind::ID_INDEX => self.session.id_index(record),
            kind::AUXTRACE => return Ok(Step::Payload(word(HEADER))),
            _ => {}
        }
        Ok(Step::Next)
    }

    /// An event made of a record that is not a sample. Without a time of its own it stands at the
    /// latest time seen.
    fn marker(&mut self, record: &[u8], tid: u32, kind: Kind) -> Result<(), Error> {
        let id = self
            .session
            .trailer()
            .map(|l| l.sample_id(record, self.session.bytes))
            .unwrap_or_default();
        // perf writes 0 where an event has no time (those it makes up itself at the start).
        let time_ns = id.time.filter(|&t| t > 0).unwrap_or(self.round_max);
        self.round_max = self.round_max.max(time_ns);
        self.in_round = true;
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
        // Taken out so that the records in it can be handled while it is borrowed.
        let mut plain = std::mem::take(&mut self.zip.plain);
        plain.resize(BLOCK + MAX_RECORD, 0);
        let outcome = self.decompress(data, &mut plain, offset);
        self.zip.plain = plain;
        match outcome {
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

    /// Decompresses one record's data and handles the records in it. The stream goes on from one
    /// compressed record to the next, and an inner record may be cut between two.
    fn decompress(&mut self, data: &[u8], plain: &mut [u8], offset: u64) -> Result<(), Damage> {
        let mut zstd = match self.zip.zstd.take() {
            Some(zstd) => zstd,
            None => Zstd::new().map_err(|e| Damage::Data(e.to_string()))?,
        };
        let mut input = InBuffer::around(data);
        loop {
            let room = plain.len() - self.zip.filled;
            let mut output = OutBuffer::around(&mut plain[self.zip.filled..]);
            let result = zstd.run(&mut input, &mut output);
            let produced = output.pos();
            self.zip.filled += produced;
            let used = self.plain_records(&plain[..self.zip.filled], offset)?;
            plain.copy_within(used..self.zip.filled, 0);
            self.zip.filled -= used;
            result.map_err(|e| Damage::Data(e.to_string()))?;
            if produced < room && input.pos() == data.len() {
                break;
            }
        }
        self.zip.zstd = Some(zstd);
        Ok(())
    }

    /// Handles the whole records of a decompressed buffer. Returns their length.
    fn plain_records(&mut self, plain: &[u8], offset: u64) -> Result<usize, Damage> {
        let mut at = 0;
        while let Some(record) = next_record(&plain[at..], self.session.bytes) {
            let record = record.map_err(|n| Damage::Data(format!("a record of {n} bytes")))?;
            at += record.len();
            let kind = record_type(record, self.session.bytes);
            if matches!(kind, kind::COMPRESSED | kind::COMPRESSED2) {
                return Err(Damage::Data("a compressed record in a compressed record".to_owned()));
            }
            match self.record(record, offset).map_err(Damage::Consumer)? {
                Step::Next => {}
                Step::Payload(_) | Step::Stop => {
                    return Err(Damage::Data(format!("a record of type {kind}")));
                }
            }
        }
        Ok(at)
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
