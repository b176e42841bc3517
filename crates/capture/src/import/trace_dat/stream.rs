//! The trace data of all CPUs, a piece at a time, so that times advance together.
//!
//! ```text
//!  cpu 0  ████████░░░░        the CPU that is furthest behind is applied next: one chunk or some pages;
//!  cpu 1  ██████░░░░░░  <──   what is older than every CPU's last time can be passed on
//!  cpu 2  ███████░░░░░
//! ```
//!
//! Pieces are read and decoded on several threads, ahead of their turn where it can be foreseen. Their order is that of one
//! thread: it depends on the times in them alone. A few pieces are in memory at a time, whatever the number of CPUs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::mem;

use vmtax_events::{Losses, NO_PID};

use super::chunk::{Codec, MAX_CHUNK};
use super::contents::CpuData;
use super::damage::say;
use super::options::MAX_CPUS;
use super::page::{DecodedPages, PageDecoder};
use crate::import::Rips;
use crate::import::cursor::Cursor;
use crate::import::formats::EventFormats;
use crate::workers::{Workers, with_workers};
use crate::{Error, Feed, source::ReadAt};

/// Plain pages are read in pieces of this size.
const PIECE: usize = 128 << 10;
/// Larger pieces are decoded in their turn, page by page: ahead of it they would take too much memory.
const LARGE: u64 = 256 << 10;
/// Pieces that are read ahead, for each thread.
const AHEAD: usize = 4;

/// Size of the count of chunks, which precedes them.
pub(super) const COUNT_LEN: u64 = 4;

/// Pieces between two releases, at least.
const MIN_ROUND: usize = 4;

/// Threads whose names are remembered.
const MOST_NAMED: usize = 1 << 16;

struct CpuStream {
    data: CpuData,
    /// The next byte of the file to read.
    at: u64,
    end: u64,
    /// Chunks still to come, once their count has been read.
    chunks: Option<u32>,
    /// Raw time of the last record.
    time: u64,
    /// How long the last piece was in time, ns.
    span: u64,
    /// Pieces that were handed out and not applied, and those of them that are decoded.
    under_way: usize,
    ahead: VecDeque<StreamPiece>,
    rest: StreamRest,
    damage: StreamDamage,
}

/// What of a CPU's data is not handed out yet.
enum StreamRest {
    Pieces,
    Nothing,
    /// No piece can be found in it; what is wrong is reported after the pieces that are under way.
    Damaged(String),
}

/// What was wrong with data.
#[derive(Default)]
struct StreamDamage {
    /// The first of it.
    first: Option<String>,
    /// Pages and chunks.
    places: u64,
}

impl StreamDamage {
    fn add(&mut self, problem: String) {
        self.merge(StreamDamage { first: Some(problem), places: 1 });
    }

    fn merge(&mut self, later: StreamDamage) {
        self.first = self.first.take().or(later.first);
        self.places += later.places;
    }
}

/// What is read, and how.
#[derive(Clone, Copy)]
pub(super) struct StreamInput<'a> {
    pub(super) source: &'a dyn ReadAt,
    pub(super) decoder: &'a PageDecoder<'a>,
}

/// What was found in all pieces.
pub(super) struct StreamSum {
    /// Threads that have a name.
    named: HashSet<u32>,
    /// Which of the formats' decoders met a record.
    pub(super) seen: Vec<bool>,
    /// Records by `common_type`.
    pub(super) counts: Vec<u64>,
    pub(super) losses: Losses,
    pub(super) rips: Rips,
}

impl StreamSum {
    pub(super) fn new(formats: &EventFormats, named: HashSet<u32>) -> StreamSum {
        StreamSum {
            named,
            seen: vec![false; formats.decoders.len()],
            counts: vec![0; formats.index.len()],
            losses: Losses::default(),
            rips: Rips::default(),
        }
    }

    fn add(&mut self, decoded: &DecodedPages) {
        let losses = &mut self.losses;
        losses.recorder_gaps += decoded.gaps;
        losses.recorder_lost = losses.recorder_lost.saturating_add(decoded.lost);
        losses.undecodable += decoded.undecodable;
        self.rips.add_all(&decoded.rips);
        for (sum, count) in self.counts.iter_mut().zip(&decoded.counts) {
            *sum += u64::from(*count);
        }
        for (sum, seen) in self.seen.iter_mut().zip(&decoded.seen) {
            *sum |= seen;
        }
    }
}

/// Some pages, or a chunk, of one CPU.
struct StreamPiece {
    /// Which of the streams it is of.
    stream: usize,
    cpu: u32,
    page_size: usize,
    at: u64,
    /// Its bytes in the file.
    len: usize,
    /// What a chunk decompresses to.
    chunk: Option<u64>,
    room: StreamBuffers,
    /// What was read of it; fewer bytes only if the file became shorter.
    got: Result<usize, Error>,
    damage: StreamDamage,
}

/// Buffers that are used again.
struct StreamBuffers {
    codec: Codec,
    /// As in the file.
    raw: Vec<u8>,
    /// Decompressed.
    chunk: Vec<u8>,
    decoded: DecodedPages,
}

impl StreamPiece {
    fn is_large(&self) -> bool {
        self.chunk.unwrap_or(0).max(self.len as u64) > LARGE
    }

    /// The work of the threads: reads the piece, and decodes it if it is not large.
    fn read(mut self, input: StreamInput<'_>) -> StreamPiece {
        self.room.decoded.clear(input.decoder.formats);
        self.got = read(input.source, self.at, self.len, &mut self.room.raw);
        let Ok(got) = self.got else { return self };
        if let Some(size) = self.chunk {
            let StreamBuffers { codec, raw, chunk, .. } = &mut self.room;
            let packed = raw.get(..got).unwrap_or_default();
            if let Err(problem) = codec.decompress(packed, size, chunk) {
                chunk.clear();
                let at = self.at;
                self.damage.add(format!("at byte {at}: a chunk cannot be decompressed: {problem}"));
                input.decoder.gap(self.cpu, &mut self.room.decoded);
            }
        }
        if !self.is_large() {
            let mut at = 0;
            while self.page(input.decoder, &mut at) {}
            if self.room.decoded.untimed.is_empty() {
                self.room.decoded.events.sort_by_key(|event| event.time_ns);
            }
        }
        self
    }

    /// Decodes the page at `at`, which moves behind it; the last may be cut. `false`: there is none.
    fn page(&mut self, decoder: &PageDecoder<'_>, at: &mut usize) -> bool {
        let page_size = self.page_size.max(1);
        let StreamBuffers { raw, chunk, decoded, .. } = &mut self.room;
        let bytes = match (self.chunk, &self.got) {
            (Some(_), _) => chunk.as_slice(),
            (None, got) => raw.get(..*got.as_ref().unwrap_or(&0)).unwrap_or_default(),
        };
        let rest = bytes.get(*at..).unwrap_or_default();
        let page = rest.get(..page_size).unwrap_or(rest);
        if page.is_empty() {
            return false;
        }
        let damage = decoder.page(page, self.cpu, decoded);
        if let Some(damage) = damage {
            // Exits and entries must not be paired across this gap.
            decoder.gap(self.cpu, decoded);
            let (start, offset) = (self.at, *at + damage.at);
            let place = match self.chunk {
                None => format!("at byte {}", start + offset as u64),
                Some(_) => {
                    format!("in the chunk at byte {start}, at {offset} of its decompressed bytes")
                }
            };
            self.damage.add(format!("{place}: {}", damage.problem));
        }
        *at += page_size;
        true
    }
}

/// Decodes the data of all CPUs into `feed`. Returns one sentence for each CPU whose data is damaged.
pub(super) fn run<F: Feed>(
    input: StreamInput<'_>,
    (codec, threads): (&Codec, usize),
    data: Vec<CpuData>,
    sum: &mut StreamSum,
    feed: &mut F,
) -> Result<Vec<String>, Error> {
    let mut sentences = Vec::new();
    let streams = streams(data, input.source.len(), &mut sentences);
    let work = |piece: StreamPiece| piece.read(input);
    let streams = with_workers(threads, work, |workers| {
        let most = threads * AHEAD;
        let (under_way, rooms) = (0, Vec::new());
        let mut reader =
            StreamReader { input, codec, workers, streams, most, under_way, rooms, sum, feed };
        reader.all()?;
        Ok::<_, Error>(reader.streams)
    })?;
    for stream in streams {
        let StreamDamage { first: Some(problem), places } = stream.damage else { continue };
        let cpu = stream.data.cpu;
        say(&mut sentences, || match places {
            0 | 1 => format!("cpu {cpu}: {problem}"),
            n => format!("cpu {cpu}: {problem}; {n} places of its data are damaged in all"),
        });
    }
    Ok(sentences)
}

/// Keeps ranges within the file that do not overlap; otherwise a small file could cause unlimited work.
fn streams(mut data: Vec<CpuData>, file_len: u64, sentences: &mut Vec<String>) -> Vec<CpuStream> {
    for CpuData { cpu, .. } in data.iter().filter(|d| d.at == 0) {
        say(sentences, || format!("cpu {cpu}: the list of the CPUs' data has no place for it"));
    }
    data.retain(|d| d.len != 0 && d.at != 0);
    data.sort_by_key(|d| (d.at, d.cpu));
    let mut streams: Vec<CpuStream> = Vec::new();
    let mut free_from = 0;
    for data in data {
        let CpuData { cpu, at, len, .. } = data;
        if cpu >= MAX_CPUS {
            say(sentences, || format!("the data at byte {at} is of CPU {cpu}, which cannot be"));
        } else if at < free_from {
            say(sentences, || {
                format!("cpu {cpu}: its data at byte {at} lies in another CPU's data")
            });
        } else if at >= file_len {
            say(sentences, || {
                format!(
                    "cpu {cpu}: the file ends at byte {file_len}, before its {len} bytes of data"
                )
            });
        } else {
            let end = at.saturating_add(len).min(file_len);
            free_from = end;
            let missing = len - (end - at);
            // trace-cmd does not count the count of chunks itself.
            let uncounted = if data.chunked { COUNT_LEN } else { 0 };
            let end = end.saturating_add(uncounted).min(file_len);
            let first = (missing != 0).then(|| {
                format!("the file ends at byte {file_len}, {missing} bytes of its data are missing")
            });
            streams.push(CpuStream {
                data,
                at,
                end,
                chunks: None,
                time: 0,
                span: 0,
                under_way: 0,
                ahead: VecDeque::new(),
                rest: StreamRest::Pieces,
                damage: StreamDamage { first, places: 0 },
            });
        }
    }
    streams
}

struct StreamReader<'a, 'w, F> {
    input: StreamInput<'a>,
    codec: &'a Codec,
    workers: &'a mut Workers<'w, StreamPiece, StreamPiece>,
    streams: Vec<CpuStream>,
    /// Pieces that may be under way beside the one whose turn it is, and those that are.
    most: usize,
    under_way: usize,
    rooms: Vec<StreamBuffers>,
    sum: &'a mut StreamSum,
    feed: &'a mut F,
}

impl<F: Feed> StreamReader<'_, '_, F> {
    fn all(&mut self) -> Result<(), Error> {
        let mut behind: BinaryHeap<_> = (0..self.streams.len()).map(|i| Reverse((0, i))).collect();
        let (mut released, mut steps) = (0, 0);
        while let Some(Reverse((_, i))) = behind.pop() {
            if let Turn::Again = self.step(i)? {
                let time = self.streams.get(i).map_or(0, |stream| stream.time);
                behind.push(Reverse((self.input.decoder.ns(time), i)));
            }
            // Sorting costs by what is waiting, so a release comes once per round of all CPUs.
            steps += 1;
            if steps < behind.len().max(MIN_ROUND) {
                continue;
            }
            steps = 0;
            // The next record of the CPU that is furthest behind may have the same time as its last one.
            let safe = behind.peek().map_or(0, |Reverse((time, _))| time.saturating_sub(1));
            if safe > released {
                released = safe;
                self.feed.release(safe)?;
            }
        }
        Ok(())
    }

    /// Applies the next piece of a CPU's data.
    fn step(&mut self, i: usize) -> Result<Turn, Error> {
        if self.streams.get(i).is_some_and(|stream| stream.under_way == 0) {
            self.hand_out(i, false)?;
        }
        self.look_ahead()?;
        loop {
            let Some(stream) = self.streams.get_mut(i) else { return Ok(Turn::Last) };
            if let Some(piece) = stream.ahead.pop_front() {
                return self.apply(piece);
            }
            if stream.under_way == 0 {
                if let StreamRest::Damaged(problem) =
                    mem::replace(&mut stream.rest, StreamRest::Nothing)
                {
                    stream.damage.add(problem);
                }
                return Ok(Turn::Last);
            }
            if !self.take() {
                return Ok(Turn::Last);
            }
        }
    }

    /// Hands out pieces of those CPUs whose turn comes next, as far as it can be foreseen.
    fn look_ahead(&mut self) -> Result<(), Error> {
        while self.under_way < self.most && !self.workers.is_full() {
            let turn = |stream: &CpuStream| {
                let time = self.input.decoder.ns(stream.time);
                let ahead = stream.span.saturating_mul(stream.under_way as u64);
                (time.saturating_add(ahead), stream.under_way)
            };
            let streams = self.streams.iter().enumerate();
            let streams = streams.filter(|(_, stream)| matches!(stream.rest, StreamRest::Pieces));
            let Some((i, _)) = streams.min_by_key(|(_, stream)| turn(stream)) else { break };
            if let HandedPiece::Waits = self.hand_out(i, true)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the oldest result. `false`: nothing is under way.
    fn take(&mut self) -> bool {
        let Some(piece) = self.workers.pop() else { return false };
        if let Some(stream) = self.streams.get_mut(piece.stream) {
            stream.ahead.push_back(piece);
        }
        true
    }

    /// Hands out the next piece of a CPU's data, or notes that it has none.
    fn hand_out(&mut self, i: usize, is_ahead: bool) -> Result<HandedPiece, Error> {
        let has_pieces = |stream: &&mut CpuStream| matches!(stream.rest, StreamRest::Pieces);
        let Some(stream) = self.streams.get_mut(i).filter(has_pieces) else {
            return Ok(HandedPiece::Out);
        };
        let PiecePlace { at, len, chunk, chunks } = match stream.next(self.input) {
            Ok(NextPiece::Piece(place)) => place,
            Ok(NextPiece::Damaged(problem)) => {
                stream.rest = StreamRest::Damaged(problem);
                return Ok(HandedPiece::Out);
            }
            // It is reported in its turn.
            Err(_) if is_ahead => return Ok(HandedPiece::Waits),
            Err(error) => return Err(error),
        };
        if is_ahead && chunk.unwrap_or(0).max(len as u64) > LARGE {
            return Ok(HandedPiece::Waits);
        }
        stream.at = at.saturating_add(len as u64);
        stream.chunks = chunks;
        let is_last = match chunks {
            Some(chunks) => chunks == 0,
            None => stream.at >= stream.end,
        };
        stream.rest = if is_last { StreamRest::Nothing } else { StreamRest::Pieces };
        stream.under_way += 1;
        let CpuData { cpu, page_size, .. } = stream.data;
        let room = match self.rooms.pop() {
            Some(room) => room,
            None => StreamBuffers::new(self.codec).map_err(|e| Error::malformed(at, "chunk", e))?,
        };
        while self.workers.is_full() {
            self.take();
        }
        self.under_way += 1;
        let (got, damage) = (Ok(0), StreamDamage::default());
        self.workers.push(StreamPiece {
            stream: i,
            cpu,
            page_size,
            at,
            len,
            chunk,
            room,
            got,
            damage,
        });
        Ok(HandedPiece::Out)
    }

    /// Feeds what a piece holds.
    fn apply(&mut self, mut piece: StreamPiece) -> Result<Turn, Error> {
        self.under_way -= 1;
        let i = piece.stream;
        let before = self.streams.get(i).map_or(0, |stream| stream.time);
        let got = mem::replace(&mut piece.got, Ok(0))?;
        piece.got = Ok(got);
        let is_sorted = piece.room.decoded.untimed.is_empty();
        self.feed_decoded(i, &mut piece.room.decoded, is_sorted)?;
        if piece.is_large() {
            let mut at = 0;
            piece.room.decoded.clear(self.input.decoder.formats);
            while piece.page(self.input.decoder, &mut at) {
                self.feed_decoded(i, &mut piece.room.decoded, false)?;
                piece.room.decoded.clear(self.input.decoder.formats);
            }
        }
        let Some(stream) = self.streams.get_mut(i) else { return Ok(Turn::Last) };
        stream.under_way -= 1;
        stream.damage.merge(mem::take(&mut piece.damage));
        let ns = |raw| self.input.decoder.ns(raw);
        stream.span = ns(stream.time).saturating_sub(ns(before));
        if got < piece.len {
            // The file became shorter.
            stream.rest = StreamRest::Nothing;
            return Ok(Turn::Last);
        }
        let is_last = matches!(stream.rest, StreamRest::Nothing) && stream.under_way == 0;
        if !piece.is_large() {
            self.rooms.push(piece.room);
        }
        Ok(if is_last { Turn::Last } else { Turn::Again })
    }

    fn feed_decoded(
        &mut self,
        i: usize,
        decoded: &mut DecodedPages,
        is_sorted: bool,
    ) -> Result<(), Error> {
        let Some(stream) = self.streams.get_mut(i) else { return Ok(()) };
        for at in &decoded.untimed {
            if let Some(event) = decoded.events.get_mut(*at) {
                event.time_ns = self.input.decoder.ns(stream.time);
            }
        }
        stream.time = decoded.time.unwrap_or(stream.time);
        self.sum.add(decoded);
        for (tid, name) in decoded.names.drain(..) {
            if self.sum.named.len() < MOST_NAMED && self.sum.named.insert(tid) {
                let pid = self.input.decoder.tgids.get(&tid).copied().unwrap_or(NO_PID);
                self.feed.thread_name(pid, tid, &name)?;
            }
        }
        if !is_sorted {
            decoded.events.sort_by_key(|event| event.time_ns);
        }
        self.feed.block(&mut decoded.events, &[])
    }
}

/// Whether a CPU has another turn.
enum Turn {
    Again,
    Last,
}

/// What became of the next piece of a CPU's data.
enum HandedPiece {
    /// It was handed out, or there is none.
    Out,
    /// It waits for its turn.
    Waits,
}

/// What comes next of a CPU's data.
enum NextPiece {
    Piece(PiecePlace),
    /// No piece can be found there.
    Damaged(String),
}

/// Where a piece is.
struct PiecePlace {
    at: u64,
    len: usize,
    /// What a chunk decompresses to.
    chunk: Option<u64>,
    /// Chunks behind it.
    chunks: Option<u32>,
}

impl CpuStream {
    fn next(&self, input: StreamInput<'_>) -> Result<NextPiece, Error> {
        let left = self.end - self.at;
        if !self.data.chunked {
            let page_size = self.data.page_size.max(1);
            let piece = (PIECE / page_size).max(1).saturating_mul(page_size);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(piece);
            return Ok(NextPiece::Piece(PiecePlace {
                at: self.at,
                len,
                chunk: None,
                chunks: None,
            }));
        }
        let mut c = Cursor::part(input.source, self.at, left, input.decoder.endian);
        let head = (|| {
            let chunks = match self.chunks {
                Some(chunks) => chunks,
                None => c.u32("count of chunks")?,
            };
            match chunks {
                // A CPU without data has no count of chunks either.
                0 => Err(c.malformed("count of chunks", "it is 0")),
                _ => Ok((
                    c.u32("compressed size of a chunk")?,
                    c.u32("size of a chunk")?,
                    chunks - 1,
                )),
            }
        })();
        let (compressed, size, chunks) = match head {
            Ok(head) => head,
            Err(e @ Error::Io { .. }) => return Err(e),
            Err(e) => return Ok(NextPiece::Damaged(e.to_string())),
        };
        let (at, left) = (c.at, c.left());
        if u64::from(compressed) > left.min(MAX_CHUNK) {
            return Ok(NextPiece::Damaged(format!(
                "at byte {at}: a chunk of {compressed} bytes where {left} are left"
            )));
        }
        let len = usize::try_from(compressed).unwrap_or(usize::MAX);
        Ok(NextPiece::Piece(PiecePlace { at, len, chunk: Some(size.into()), chunks: Some(chunks) }))
    }
}

impl StreamBuffers {
    fn new(codec: &Codec) -> Result<StreamBuffers, String> {
        let decoded = DecodedPages::default();
        Ok(StreamBuffers { codec: codec.another()?, raw: Vec::new(), chunk: Vec::new(), decoded })
    }
}

/// Reads `want` bytes into the front of `buf`; fewer only if the file became shorter.
fn read(source: &dyn ReadAt, at: u64, want: usize, buf: &mut Vec<u8>) -> Result<usize, Error> {
    if buf.len() < want {
        buf.resize(want, 0);
    }
    let front = buf.get_mut(..want).unwrap_or_default();
    source.read_at(at, front).map_err(|source| Error::Io { offset: at, source })
}
