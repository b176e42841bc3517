//! `perf.data`: what `perf record -e 'kvm:*'` and `perf kvm stat record` write.
//!
//! Two layouts hold the same records: a file (header, attributes, data, then features such as the
//! tracepoint formats) and a stream (`perf record -o -`: everything is a record). Either may be of the
//! other byte order, and records may be wrapped in zstd (`-z`).
//!
//! - `header`: the file's header, attributes and feature sections;
//! - `layout`: where time, thread, CPU and raw data stand in a sample;
//! - `records`: the loop over records, compressed or not;
//! - `profile`: what only a profile needs: samples of other events, call chains, memory maps.

mod header;
mod layout;
mod profile;
mod records;
mod session;

use std::io::Read;

use crate::import::Imported;
use crate::source::ReadAt;
use crate::{Error, Feed};

/// Whether these first bytes are a `perf.data` file (not a stream).
pub fn recognise_file(head: &[u8]) -> bool {
    header::Magic::of(head).is_some_and(|m| !m.is_pipe)
}

/// Whether these first bytes are a `perf.data` stream.
pub fn recognise_pipe(head: &[u8]) -> bool {
    header::Magic::of(head).is_some_and(|m| m.is_pipe)
}

/// Imports a `perf.data` file.
pub fn import_file<F: Feed>(source: &dyn ReadAt, feed: &mut F) -> Result<Imported, Error> {
    let header = header::File::read(source)?;
    let mut session = session::Session::new(header.endian, "perf.data");
    header.load(source, &mut session)?;
    if !F::WANTS_PROFILE {
        session.check_architecture()?;
    }
    feed.described(&session.recording)?;
    let mut data = header.data(source);
    records::run(&mut data, header.data_offset, Some(header.data_size), &mut session, feed)?;
    Ok(session.finish())
}

/// Imports a `perf.data` stream.
pub fn import_pipe(input: &mut dyn Read, feed: &mut impl Feed) -> Result<Imported, Error> {
    let endian = header::read_pipe_header(input)?;
    let mut session = session::Session::new(endian, "perf.data (stream)");
    records::run(input, header::PIPE_HEADER_SIZE, None, &mut session, feed)?;
    Ok(session.finish())
}
