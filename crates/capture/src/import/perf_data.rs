//! `perf.data`: what `perf record -e 'kvm:*'` and `perf kvm stat record` write.
//!
//! Two layouts hold the same records: a file (header, attributes, data, then features such as the
//! tracepoint formats) and a stream (`perf record -o -`: everything is a record). Either may be of the
//! other byte order, and records may be wrapped in zstd (`-z`).
//!
//! - `header`: the file's header, attributes and feature sections;
//! - `layout`: positions of time, thread, CPU and raw data in a sample;
//! - `plan`: how samples are decoded, from attributes and formats;
//! - `records`: the loop over records, compressed or not;
//! - `sampled`: events that were sampled, and tracepoints that several events record;
//! - `samples`: a span of records -> events, on several threads;
//! - `parts`: the folder of `perf record --threads`, a file for each ring;
//! - `profile`: what only a profile needs: samples of other events, call chains, memory maps.

mod header;
mod layout;
mod parts;
mod plan;
mod profile;
mod record;
mod records;
mod sampled;
mod samples;
mod session;

use std::io::Read;

use crate::import::Imported;
use crate::import::tracepoint::Endian;
use crate::source::ReadAt;
use crate::{Error, Feed};
pub use parts::EventsFile;
use records::RecordsInput;

/// Whether these first bytes are a `perf.data` file (not a stream).
pub fn recognise_file(head: &[u8]) -> bool {
    header::Magic::of(head).is_some_and(|m| !m.is_pipe)
}

/// Whether these first bytes are a `perf.data` stream.
pub fn recognise_pipe(head: &[u8]) -> bool {
    header::Magic::of(head).is_some_and(|m| m.is_pipe)
}

/// Whether these first bytes are records without a header: a part of a folder.
pub(crate) fn is_part(head: &[u8]) -> bool {
    record::are_records(head, layout::OrderedBytes(Endian::Little))
}

/// Imports a `perf.data` file, decoding on this number of additional threads.
pub fn import_file<F: Feed>(
    source: &dyn ReadAt,
    threads: usize,
    feed: &mut F,
) -> Result<Imported, Error> {
    let (header, mut session) = open::<F>(source, "perf.data")?;
    if session.is_folder {
        return Err(Error::Unsupported {
            offset: 0,
            item: "perf.data header",
            problem: "this is the file data of a folder that perf record --threads wrote, and its events are in \
                      the files beside it: give the folder"
                .to_owned(),
        });
    }
    feed.described(&session.recording)?;
    let input = RecordsInput::section(source, header.data_offset, header.data_size);
    records::with_reader(threads, &mut session, feed, |reader| reader.all(input))?;
    Ok(session.finish())
}

/// Imports a folder that perf wrote: its file `data` and its parts, of which `perf record --kcore` writes none.
pub fn import_folder<F: Feed>(
    data: &dyn ReadAt,
    parts: &[EventsFile<'_>],
    feed: &mut F,
) -> Result<Imported, Error> {
    let (header, mut session) = open::<F>(data, "perf.data (folder)")?;
    if !session.is_folder {
        return import_file(data, 0, feed);
    }
    let refuse =
        |problem: String| Err(Error::malformed(0, "folder of perf record --threads", problem));
    if parts.is_empty() {
        return refuse("its files of events (data.0, data.1 ...) are missing".to_owned());
    }
    if parts.len() > session::MAX_PARTS {
        return refuse(format!("holds more than {} files of events", session::MAX_PARTS));
    }
    feed.described(&session.recording)?;
    records::with_reader(0, &mut session, feed, |reader| {
        reader.has_rounds = false;
        reader.all(RecordsInput::section(data, header.data_offset, header.data_size))?;
        parts::run(parts, reader)
    })?;
    note_missing_parts(parts, &mut session);
    Ok(session.finish())
}

/// perf numbers the parts from 0, one of each ring that it read.
fn note_missing_parts(parts: &[EventsFile<'_>], session: &mut session::PerfDataSession) {
    let highest = parts.iter().map(|part| part.number as usize + 1).max().unwrap_or(0);
    let expected = session.rings.len().max(highest.min(session::MAX_PARTS));
    let has = |number: usize| parts.iter().any(|part| part.number as usize == number);
    let missing: Vec<String> =
        (0..expected).filter(|n| !has(*n)).map(|n| format!("data.{n}")).take(8).collect();
    if !missing.is_empty() {
        session.truncated(format!(
            "the folder has {} of {expected} files of events: {} is missing, and the events in it",
            parts.len(),
            missing.join(", ")
        ));
    }
}

/// Reads the header before the records.
fn open<F: Feed>(
    source: &dyn ReadAt,
    format: &str,
) -> Result<(header::HeaderFile, session::PerfDataSession), Error> {
    let header = header::HeaderFile::read(source)?;
    let mut session = session::PerfDataSession::new(header.endian, format);
    header.load(source, &mut session)?;
    if !F::WANTS_PROFILE {
        session.check_architecture()?;
    }
    Ok((header, session))
}

/// Imports a `perf.data` stream, decoding on this number of additional threads.
pub fn import_pipe(
    input: &mut dyn Read,
    threads: usize,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    let endian = header::read_pipe_header(input)?;
    let mut session = session::PerfDataSession::new(endian, "perf.data (stream)");
    let input = RecordsInput::stream(input, header::PIPE_HEADER_SIZE);
    records::with_reader(threads, &mut session, feed, |reader| reader.all(input))?;
    Ok(session.finish())
}
