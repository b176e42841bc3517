//! The folder that `perf record --threads` writes.
//!
//! ```text
//!  data      header, attributes, formats, names of threads; no events
//!  data.0    records of one ring, in the order of time    ──┐
//!  data.1    records of another                           ──┴── the part furthest behind is read next
//! ```
//!
//! A part has no header. One block is in memory at a time, whatever the number of parts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::records::{BLOCK, RecordReader, Zip};
use crate::source::ReadAt;
use crate::{Error, Feed};

/// An event that was interrupted is stored behind the one that interrupted it, although it began before.
const SLACK_NS: u64 = 1_000_000;

/// One file of events of a folder.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds a trait object")]
pub struct EventsFile<'a> {
    /// The number in its name, `data.N`.
    pub number: u32,
    /// Its bytes.
    pub source: &'a dyn ReadAt,
}

struct PartStream<'a> {
    part: EventsFile<'a>,
    at: u64,
    /// The latest time that was read of it.
    time: u64,
    zip: Zip,
}

/// Reads all parts, so that their times advance together.
pub(super) fn run<F: Feed>(
    parts: &[EventsFile<'_>],
    reader: &mut RecordReader<'_, '_, '_, F>,
) -> Result<(), Error> {
    let mut streams: Vec<PartStream<'_>> = parts
        .iter()
        .map(|part| PartStream { part: *part, at: 0, time: 0, zip: Zip::default() })
        .collect();
    let mut behind: BinaryHeap<_> = (0..streams.len()).map(|i| Reverse((0, i))).collect();
    let mut block = vec![0; BLOCK];
    let (mut released, mut steps) = (0, 0);
    while let Some(Reverse((_, i))) = behind.pop() {
        let Some(stream) = streams.get_mut(i) else { continue };
        if step(stream, &mut block, reader)? {
            behind.push(Reverse((stream.time, i)));
        }
        // The cost of sorting grows with the number of waiting events, so release once per round of all parts.
        steps += 1;
        if steps < behind.len() {
            continue;
        }
        steps = 0;
        let safe = behind.peek().map_or(0, |Reverse((time, _))| time.saturating_sub(SLACK_NS));
        if safe > released {
            released = safe;
            reader.feed.release(safe)?;
        }
    }
    reader.session.place.clear();
    Ok(())
}

/// Reads the next block of a part. `false`: it was the last.
fn step<F: Feed>(
    stream: &mut PartStream<'_>,
    block: &mut Vec<u8>,
    reader: &mut RecordReader<'_, '_, '_, F>,
) -> Result<bool, Error> {
    let (at, source) = (stream.at, stream.part.source);
    let got = source.read_at(at, block).map_err(|source| Error::Io { offset: at, source })?;
    reader.session.place = format!("data.{}: ", stream.part.number);
    reader.round_max = stream.time;
    std::mem::swap(&mut reader.zip, &mut stream.zip);
    let used = reader.front(block, got, at)?;
    std::mem::swap(&mut reader.zip, &mut stream.zip);
    stream.zip.shrink();
    stream.time = reader.round_max;
    let Some(used) = used else { return Ok(false) };
    stream.at += used as u64;
    let end = at + got as u64;
    if used > 0 && end < source.len() {
        return Ok(true);
    }
    if stream.at < end || stream.zip.filled > 0 {
        reader.session.truncated(format!("the file ends at byte {end} within a record"));
    }
    Ok(false)
}
