//! Version 6: the parts follow one another in a fixed order, trace data is never compressed.

use super::chunk::Codec;
use super::contents::{CpuData, TraceDatContents};
use super::damage::say;
use super::header::{self, Initial};
use super::options::{MAX_CPUS, MAX_DATA, TraceDatOptions, id, selected_clock};
use crate::import::cursor::{Cursor, text};
use crate::import::formats::{self, EventFormats};
use crate::{Error, source::ReadAt};

/// Data before the table of CPUs.
const TAG_LEN: u64 = 10;
const FLYRECORD: &[u8] = b"flyrecord\0";

/// Reads everything but the trace data.
pub(super) fn read(source: &dyn ReadAt, initial: &Initial) -> Result<TraceDatContents, Error> {
    let mut c = Cursor::file(source, initial.end, initial.endian);
    let layout = header::header_info(&mut c)?;
    formats::skip_ftrace_formats(&mut c)?;
    let mut formats = EventFormats::default();
    formats::event_formats(&mut c, &mut formats)?;
    let len = c.u32("size of kallsyms")?;
    c.skip(u64::from(len), "kallsyms")?;
    let len = c.u32("size of the printk formats")?;
    c.skip(u64::from(len), "printk formats")?;
    let names = header::cmdlines(&mut c)?;
    let cpus = cpu_count(&mut c)?;
    let mut options = TraceDatOptions::default();
    let mut truncated = Vec::new();
    tag(&mut c, &mut options, &mut truncated)?;
    options.cpus = cpus;
    let mut data = table(&mut c, (0, cpus), layout.size)?;
    if options.clock.is_empty() {
        // Older recorders put the clocks behind the table and leave the option empty.
        options.clock = trailing_clock(&mut c).unwrap_or_default();
    }
    let instances = options.buffers.iter().filter(|b| b.offset != 0);
    for (number, buffer) in (1..).zip(instances) {
        if data.len() > MAX_DATA {
            say(&mut truncated, || format!("instance {:?}: too many CPUs before it", buffer.name));
            break;
        }
        let mut c = Cursor::file(source, buffer.offset, initial.endian);
        let cpus = buffer.cpus.unwrap_or(cpus).min(MAX_CPUS);
        let read = c.expect(FLYRECORD, "kind of trace data");
        match read.and_then(|()| table(&mut c, (number, cpus), layout.size)) {
            Ok(more) => data.extend(more),
            Err(e) => say(&mut truncated, || format!("instance {:?}: {e}", buffer.name)),
        }
    }
    Ok(TraceDatContents {
        layout,
        formats,
        options,
        codec: Codec::None,
        names,
        data,
        end: c.at,
        truncated,
    })
}

fn cpu_count(c: &mut Cursor<'_>) -> Result<u32, Error> {
    let at = c.at;
    let cpus = c.u32("CPU count")?;
    if cpus > MAX_CPUS {
        return Err(c.malformed_at(at, "CPU count", format!("{cpus} CPUs")));
    }
    Ok(cpus)
}

/// Reads up to the table of CPUs: options (if any), then the word `flyrecord`.
fn tag(
    c: &mut Cursor<'_>,
    options: &mut TraceDatOptions,
    truncated: &mut Vec<String>,
) -> Result<(), Error> {
    let mut at = c.at;
    let mut tag = c.bytes(TAG_LEN, TAG_LEN, "kind of trace data")?;
    if tag == b"options  \0" {
        read_options(c, options, truncated)?;
        at = c.at;
        tag = c.bytes(TAG_LEN, TAG_LEN, "kind of trace data")?;
    }
    match tag.as_slice() {
        FLYRECORD => Ok(()),
        b"latency  \0" => Err(Error::Unsupported {
            offset: at,
            item: "kind of trace data",
            problem: "the recording holds the text of a latency tracer, not events; import the \
                      output of `trace-cmd report` instead"
                .into(),
        }),
        other => {
            let problem = format!("\"{}\"", other.escape_ascii());
            Err(c.malformed_at(at, "kind of trace data", problem))
        }
    }
}

fn read_options(
    c: &mut Cursor<'_>,
    options: &mut TraceDatOptions,
    truncated: &mut Vec<String>,
) -> Result<(), Error> {
    // Each option takes at least six bytes of the file, so this ends.
    loop {
        let option = c.u16("number of an option")?;
        if option == id::DONE {
            return Ok(());
        }
        let len = c.u32("size of an option")?;
        let mut data = c.sub(u64::from(len), "option")?;
        if let Err(e) = options.take(option, &mut data, false) {
            if options.is_full() {
                return Err(e);
            }
            say(truncated, || format!("an option is damaged: {e}"));
        }
    }
}

fn table(
    c: &mut Cursor<'_>,
    (buffer, cpus): (usize, u32),
    page_size: usize,
) -> Result<Vec<CpuData>, Error> {
    let mut data = Vec::new();
    for cpu in 0..cpus {
        let at = c.u64("offset of a CPU's data")?;
        let len = c.u64("size of a CPU's data")?;
        data.push(CpuData { cpu, buffer, at, len, chunked: false, page_size });
    }
    Ok(data)
}

fn trailing_clock(c: &mut Cursor<'_>) -> Option<String> {
    let len = c.u64("size of the trace clock").ok()?;
    let clocks = c.bytes(len, 4096, "trace clock").ok()?;
    Some(selected_clock(&text(&clocks)))
}
