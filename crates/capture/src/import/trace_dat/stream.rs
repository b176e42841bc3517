//! The trace data of all CPUs, a piece at a time, so that times advance together.
//!
//! ```text
//!  cpu 0  ████████░░░░        the CPU that is furthest behind is read next: one chunk or some pages;
//!  cpu 1  ██████░░░░░░  <──   what is older than every CPU's last time can be passed on
//!  cpu 2  ███████░░░░░
//! ```
//! One chunk is in memory at a time, whatever the number of CPUs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::chunk::{Codec, MAX_CHUNK};
use super::contents::{CpuData, say};
use super::options::MAX_CPUS;
use super::page::PageDecoder;
use crate::import::cursor::Cursor;
use crate::{Error, Feed, source::ReadAt};

/// Plain pages are read in pieces of this size.
const PIECE: usize = 128 << 10;

/// Size of the count of chunks, which precedes them.
const COUNT_LEN: u64 = 4;

/// Pieces between two releases, at least.
const MIN_ROUND: usize = 4;

struct Stream {
    data: CpuData,
    /// The next byte of the file to read.
    at: u64,
    end: u64,
    /// Chunks still to come, once their count has been read.
    chunks: Option<u32>,
    /// Raw time of the last record.
    time: u64,
    /// The first thing that was wrong, and how many pages or chunks were.
    problem: Option<String>,
    damaged: u64,
}

impl Stream {
    fn problem(&mut self, problem: impl FnOnce() -> String) {
        self.damaged += 1;
        if self.problem.is_none() {
            self.problem = Some(problem());
        }
    }
}

/// Decodes the data of all CPUs into `feed`. Returns one sentence for each CPU whose data is damaged.
pub(super) fn run<F: Feed>(
    source: &dyn ReadAt,
    codec: &mut Codec,
    data: Vec<CpuData>,
    decoder: &mut PageDecoder<'_>,
    feed: &mut F,
) -> Result<Vec<String>, Error> {
    let mut sentences = Vec::new();
    let mut streams = streams(data, source.len(), &mut sentences);
    let mut reader = Reader { source, codec, raw: Vec::new(), chunk: Vec::new() };
    let mut behind: BinaryHeap<_> = (0..streams.len()).map(|i| Reverse((0, i))).collect();
    let (mut released, mut steps) = (0, 0);
    while let Some(Reverse((_, i))) = behind.pop() {
        let Some(stream) = streams.get_mut(i) else { continue };
        if reader.step(stream, decoder, feed)? {
            behind.push(Reverse((decoder.ns(stream.time), i)));
        }
        // The cost of sorting grows with the number of waiting events, so release once per round of all CPUs.
        steps += 1;
        if steps < behind.len().max(MIN_ROUND) {
            continue;
        }
        steps = 0;
        // The next record of the CPU that is furthest behind may have the same time as its last one.
        let safe = behind.peek().map_or(0, |Reverse((time, _))| time.saturating_sub(1));
        if safe > released {
            released = safe;
            feed.release(safe)?;
        }
    }
    for stream in streams {
        let Some(problem) = stream.problem else { continue };
        let cpu = stream.data.cpu;
        say(&mut sentences, || match stream.damaged {
            0 | 1 => format!("cpu {cpu}: {problem}"),
            n => format!("cpu {cpu}: {problem}; {n} places of its data are damaged in all"),
        });
    }
    Ok(sentences)
}

/// Keeps ranges within the file that do not overlap; otherwise a small file could cause unlimited work.
fn streams(mut data: Vec<CpuData>, file_len: u64, sentences: &mut Vec<String>) -> Vec<Stream> {
    for CpuData { cpu, .. } in data.iter().filter(|d| d.at == 0) {
        say(sentences, || format!("cpu {cpu}: the list of the CPUs' data has no place for it"));
    }
    data.retain(|d| d.len != 0 && d.at != 0);
    data.sort_by_key(|d| (d.at, d.cpu));
    let mut streams: Vec<Stream> = Vec::new();
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
            let problem = (missing != 0).then(|| {
                format!("the file ends at byte {file_len}, {missing} bytes of its data are missing")
            });
            let (chunks, time, damaged) = (None, 0, 0);
            streams.push(Stream { data, at, end, chunks, time, problem, damaged });
        }
    }
    streams
}

struct Reader<'a> {
    source: &'a dyn ReadAt,
    codec: &'a mut Codec,
    /// As in the file.
    raw: Vec<u8>,
    /// Decompressed.
    chunk: Vec<u8>,
}

impl Reader<'_> {
    /// Decodes the next piece of a CPU's data. `false`: it was the last.
    fn step<F: Feed>(
        &mut self,
        stream: &mut Stream,
        decoder: &mut PageDecoder<'_>,
        feed: &mut F,
    ) -> Result<bool, Error> {
        if stream.data.chunked {
            self.step_chunk(stream, decoder, feed)
        } else {
            self.step_pages(stream, decoder, feed)
        }
    }

    fn step_pages<F: Feed>(
        &mut self,
        stream: &mut Stream,
        decoder: &mut PageDecoder<'_>,
        feed: &mut F,
    ) -> Result<bool, Error> {
        let page_size = stream.data.page_size.max(1);
        let piece = (PIECE / page_size).max(1).saturating_mul(page_size);
        let left = usize::try_from(stream.end - stream.at).unwrap_or(usize::MAX);
        let want = left.min(piece);
        let at = stream.at;
        let got = read(self.source, at, want, &mut self.raw)?;
        let bytes = self.raw.get(..got).unwrap_or_default();
        deliver(bytes, stream, decoder, feed, |offset| format!("at byte {}", at + offset as u64))?;
        stream.at = at + got as u64;
        Ok(got == want && stream.at < stream.end)
    }

    fn step_chunk<F: Feed>(
        &mut self,
        stream: &mut Stream,
        decoder: &mut PageDecoder<'_>,
        feed: &mut F,
    ) -> Result<bool, Error> {
        let left = stream.end - stream.at;
        let mut c = Cursor::part(self.source, stream.at, left, decoder.endian);
        let head = (|| {
            let chunks = match stream.chunks {
                Some(chunks) => chunks,
                None => c.u32("count of chunks")?,
            };
            stream.chunks = Some(chunks);
            match chunks {
                // A CPU without data has no count of chunks either.
                0 => Err(c.malformed("count of chunks", "it is 0")),
                _ => Ok((c.u32("compressed size of a chunk")?, c.u32("size of a chunk")?)),
            }
        })();
        let (compressed, size) = match head {
            Ok(sizes) => sizes,
            Err(e @ Error::Io { .. }) => return Err(e),
            Err(e) => {
                stream.problem(|| e.to_string());
                return Ok(false);
            }
        };
        let at = c.at;
        if u64::from(compressed) > c.left().min(MAX_CHUNK) {
            let left = c.left();
            stream.problem(|| {
                format!("at byte {at}: a chunk of {compressed} bytes where {left} are left")
            });
            return Ok(false);
        }
        let want = usize::try_from(compressed).unwrap_or(usize::MAX);
        let got = read(self.source, at, want, &mut self.raw)?;
        let input = self.raw.get(..got).unwrap_or_default();
        match self.codec.decompress(input, u64::from(size), &mut self.chunk) {
            Ok(()) => deliver(&self.chunk, stream, decoder, feed, |offset| {
                format!("in the chunk at byte {at}, at {offset} of its decompressed bytes")
            })?,
            Err(problem) => {
                stream
                    .problem(|| format!("at byte {at}: a chunk cannot be decompressed: {problem}"));
                decoder.gap(0, stream.data.cpu, stream.time, feed)?;
            }
        }
        stream.at = at + got as u64;
        stream.chunks = stream.chunks.map(|n| n.saturating_sub(1));
        Ok(got == want && stream.chunks != Some(0))
    }
}

/// Decodes whole pages (the last may be cut). `place` says where an offset in `bytes` is.
fn deliver<F: Feed>(
    bytes: &[u8],
    stream: &mut Stream,
    decoder: &mut PageDecoder<'_>,
    feed: &mut F,
    place: impl Fn(usize) -> String,
) -> Result<(), Error> {
    let page_size = stream.data.page_size.max(1);
    for (n, page) in bytes.chunks(page_size).enumerate() {
        let damage = decoder.page(page, stream.data.cpu, &mut stream.time, feed)?;
        if let Some(damage) = damage {
            stream.problem(|| format!("{}: {}", place(n * page_size + damage.at), damage.problem));
            // Exits and entries must not be paired across this gap.
            decoder.gap(0, stream.data.cpu, stream.time, feed)?;
        }
    }
    Ok(())
}

/// Reads `want` bytes into the front of `buf`; fewer only if the file became shorter.
fn read(source: &dyn ReadAt, at: u64, want: usize, buf: &mut Vec<u8>) -> Result<usize, Error> {
    if buf.len() < want {
        buf.resize(want, 0);
    }
    let front = buf.get_mut(..want).unwrap_or_default();
    source.read_at(at, front).map_err(|source| Error::Io { offset: at, source })
}
