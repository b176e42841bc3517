//! `trace-cmd record` output, versions 6 and 7.
//!
//! ```text
//!  bytes ─> v6 | v7 ─> Contents ─> stream (the CPU furthest behind first) ─> chunk ─> page ─> Feed
//!           headers, options        one piece at a time                zstd, zlib    records
//! ```
//!
//! The top-level buffer and those of instances are imported alike, but for what an instance records once more (`instances`).
//!
//! Left out on purpose: the text of latency tracers, ftrace's own records, and the merging of host and
//! guest recordings (a note says so where a file has one). The facts of the format are those of
//! trace-cmd.dat.v6(5) and trace-cmd.dat.v7(5), of the ring buffer those of the kernel's
//! `events/header_page` and `events/header_event`.

mod chunk;
mod contents;
mod damage;
mod header;
mod instances;
mod options;
mod page;
mod stream;
mod v6;
mod v7;

use vmtax_events::{IDLE_TASK, NO_PID, Recording, Together};

use super::{HEAD, Imported, architecture, formats};
use crate::{Error, Feed, source::ReadAt};
use contents::{CpuData, TraceDatContents};
use page::PageDecoder;

/// Whether these first bytes are those of a `trace.dat`.
pub fn recognise(head: &[u8]) -> bool {
    head.starts_with(&formats::MAGIC)
}

/// Reads a recording of `trace-cmd record`: the names of threads, then the events of all CPUs.
///
/// Decoding runs on this number of additional threads. Each CPU's events are delivered in the order they were recorded, and [`Feed::release`] is called as
/// the CPU that is furthest behind advances. A file that is cut or damaged behind its headers delivers
/// what can be read; [`vmtax_events::Losses::truncated`] says what could not.
///
/// # Errors
///
/// [`Error::Malformed`] and [`Error::Unsupported`] if the headers cannot be read, [`Error::Io`] if
/// reading fails, and whatever `feed` returns.
pub fn import(
    source: &dyn ReadAt,
    threads: usize,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    let (initial, contents) = read(source)?;
    let TraceDatContents { layout, formats, options, codec, names, data, end, mut truncated } =
        contents;
    truncated.extend(another(source, end, &data)?);
    if data.is_empty() && options.text_buffers != 0 {
        return Err(Error::Unsupported {
            offset: 0,
            item: "kind of trace data",
            problem:
                "the recording holds the text of a latency tracer, not events; import the output \
                      of `trace-cmd report` instead"
                    .into(),
        });
    }

    // The kernel keeps no name of it.
    feed.thread_name(NO_PID, IDLE_TASK, "swapper")?;
    for (tid, name) in &names {
        let pid = options.tgids.get(tid).copied().unwrap_or(NO_PID);
        feed.thread_name(pid, *tid, name)?;
    }
    let mut recording = Recording { format: "trace.dat".to_owned(), ..Recording::default() };
    options.describe(&mut recording);
    if let Some(name) = architecture::of_machine(&recording.arch).or(formats.architecture) {
        return Err(architecture::refuse(name, 0));
    }
    // The file does not list which events were enabled. But trace-cmd stores the formats of the systems
    // and events that it was asked to record, so those of kvm and sched that it describes could have
    // been recorded. Not so if the file describes the whole kernel: then only what was seen is certain.
    if formats.were_chosen() {
        recording.coverage = formats.described;
    }
    feed.described(&recording)?;
    let decoder = PageDecoder {
        formats: &formats,
        endian: initial.endian,
        layout,
        tsc2nsec: options.tsc2nsec,
        tgids: &options.tgids,
    };
    let empty = data.is_empty();
    let input = stream::StreamInput { source, decoder: &decoder };
    let named = names.iter().filter(|(_, name)| *name != "<...>").map(|(tid, _)| *tid).collect();
    let mut sum = stream::StreamSum::new(&formats, named);
    let (data, left_out) = instances::once(input, &codec, data)?;
    truncated.extend(stream::run(input, (&codec, threads), data, &mut sum, feed)?);

    let stream::StreamSum { seen, counts, mut losses, rips, .. } = sum;
    losses.truncated = truncated;
    losses.notes.extend(left_out.map(|left_out| left_out.sentence(&options)));
    options.remark(&recording, &mut losses);
    if empty {
        losses.notes.push("the file holds no trace data".to_owned());
    }
    for name in &formats.not_understood {
        losses.notes.push(format!("the format of the event {name:?} is not understood: skipped"));
    }
    for (decoder, _) in formats.decoders.iter().zip(seen).filter(|(_, seen)| *seen) {
        recording.coverage.add(&decoder.name);
    }
    Ok(Imported { recording, losses, seen: formats.seen(&counts), rips })
}

/// The recordings that were made together with this one.
///
/// # Errors
///
/// Those of [`import`] in the headers.
pub fn together(source: &dyn ReadAt) -> Result<Together, Error> {
    Ok(read(source)?.1.options.together)
}

/// Everything but the trace data.
fn read(source: &dyn ReadAt) -> Result<(header::Initial, TraceDatContents), Error> {
    let initial = header::initial(source)?;
    let contents = match initial.version {
        6 => v6::read(source, &initial)?,
        _ => v7::read(source, &initial)?,
    };
    Ok((initial, contents))
}

/// Another recording behind this one, as two files that were joined have it.
fn another(source: &dyn ReadAt, end: u64, data: &[CpuData]) -> Result<Option<String>, Error> {
    let ends = data.iter().map(|data| {
        let uncounted = if data.chunked { stream::COUNT_LEN } else { 0 };
        data.at.saturating_add(data.len).saturating_add(uncounted)
    });
    let end = ends.fold(end, u64::max);
    let mut rest =
        vec![0; usize::try_from(source.len().saturating_sub(end)).unwrap_or(0).min(HEAD)];
    let got = source.read_at(end, &mut rest).map_err(|source| Error::Io { offset: end, source })?;
    let rest = rest.get(..got).unwrap_or_default();
    let found = rest.windows(formats::MAGIC.len()).position(|bytes| bytes == formats::MAGIC);
    if let Some(at) = found {
        let at = end + at as u64;
        return Ok(Some(format!(
            "another recording follows at byte {at}, which is not read: give each in a file of its own"
        )));
    }
    Ok(None)
}
