//! Version 7: sections anywhere in the file, found through a chain of option sections.
//!
//! ```text
//!  section:  id (16 bit) flags (16) description (32) size in the file (64) | contents
//!  flags 1:  compressed: compressed size (32), size (32), data
//!            (trace data instead: per CPU a count of chunks, each with those two sizes)
//!  options:  number (16) size (32) data ...; the last, DONE, has the offset of the next section
//! ```

use super::chunk::{Codec, MAX_CHUNK};
use super::contents::{CpuData, TraceDatContents};
use super::damage::say;
use super::header::{self, Initial, MAX_PAGE, MIN_PAGE, PageLayout};
use super::options::{BufferOption, MAX_CPUS, TraceDatOptions, id};
use crate::import::cursor::Cursor;
use crate::import::formats::{self, EventFormats};
use crate::import::tracepoint::Endian;
use crate::{Error, source::ReadAt};

const SECTION_OPTIONS: u16 = 0;
const SECTION_BUFFER: u16 = 3;
const SECTION_HEADER_INFO: u16 = 16;
const SECTION_EVENT_FORMATS: u16 = 18;
const SECTION_CMDLINES: u16 = 21;
const FLAG_COMPRESSED: u16 = 1;
const HEAD_LEN: u64 = 16;
/// trace-cmd writes two or three option sections; appending to a file adds one each time.
const MAX_OPTION_SECTIONS: usize = 64;
/// Sections of one kind that are read.
const MAX_SECTIONS: usize = 16;

/// Reads everything but the trace data.
pub(super) fn read(source: &dyn ReadAt, initial: &Initial) -> Result<TraceDatContents, Error> {
    let mut c = Cursor::file(source, initial.end, initial.endian);
    let at = c.at;
    let algorithm = c.string("compression algorithm")?;
    c.string("compression version")?;
    let codec = Codec::new(&algorithm).map_err(|problem| Error::Unsupported {
        offset: at,
        item: "compression algorithm",
        problem,
    })?;
    let first = c.u64("offset of the options")?;
    let mut file = Version7File { source, endian: initial.endian, codec };

    let mut options = TraceDatOptions::default();
    let mut truncated = Vec::new();
    let end = file.options(first, &mut options, &mut truncated)?;

    let Some(&info) = options.header_info.first() else {
        return Err(Error::malformed(first, "options", "no HEADER_INFO: the pages cannot be read"));
    };
    let layout = file.section(info, SECTION_HEADER_INFO, header::header_info)?;
    let mut formats = EventFormats::default();
    for &at in distinct(&options.event_formats).iter().take(MAX_SECTIONS) {
        file.section(at, SECTION_EVENT_FORMATS, |c| formats::event_formats(c, &mut formats))?;
    }
    let mut names = Vec::new();
    for &at in distinct(&options.cmdlines).iter().take(MAX_SECTIONS) {
        match file.section(at, SECTION_CMDLINES, header::cmdlines) {
            Ok(more) => {
                names.extend(more);
                names.truncate(header::MAX_NAMES);
            }
            Err(e) => truncated.push(format!("the names of the threads are not known: {e}")),
        }
    }

    let mut data = Vec::new();
    for (number, buffer) in options.buffers.iter().enumerate() {
        match file.buffer((number, buffer), layout) {
            Ok(more) => data.extend(more),
            Err(e) => say(&mut truncated, || format!("buffer {:?}: {e}", buffer.name)),
        }
    }
    if options.buffers.is_empty() && !truncated.is_empty() {
        data = file.search(end, initial.page_size, layout, options.cpu_limit());
        if !data.is_empty() {
            truncated.push(
                "the list of the CPUs' data is missing; the data was found by its place, CPUs are \
                 numbered as found"
                    .to_owned(),
            );
        }
    }
    Ok(TraceDatContents {
        layout,
        formats,
        options,
        codec: file.codec,
        names,
        data,
        end,
        truncated,
    })
}

fn distinct(offsets: &[u64]) -> Vec<u64> {
    let mut sorted = offsets.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

struct Version7Head {
    id: u16,
    compressed: bool,
    /// Where the contents start, and their size in the file.
    at: u64,
    len: u64,
}

struct Version7File<'a> {
    source: &'a dyn ReadAt,
    endian: Endian,
    codec: Codec,
}

impl Version7File<'_> {
    fn head(&self, at: u64) -> Result<Version7Head, Error> {
        let mut c = Cursor::file(self.source, at, self.endian);
        let id = c.u16("section id")?;
        let flags = c.u16("section flags")?;
        c.u32("section description")?;
        let len = c.u64("section size")?;
        Ok(Version7Head { id, compressed: flags & FLAG_COMPRESSED != 0, at: c.at, len })
    }

    /// Reads a section's contents with `read`, decompressed if need be.
    fn section<T>(
        &mut self,
        at: u64,
        id: u16,
        read: impl FnOnce(&mut Cursor<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let head = self.head(at)?;
        if head.id != id {
            let problem = format!("section {} stands where section {id} should", head.id);
            return Err(Error::malformed(at, "section id", problem));
        }
        let mut c = Cursor::part(self.source, head.at, head.len, self.endian);
        if !head.compressed {
            return read(&mut c);
        }
        let compressed = c.u32("compressed size of a section")?;
        let size = c.u32("size of a section")?;
        let data_at = c.at;
        let input = c.bytes(u64::from(compressed), MAX_CHUNK, "compressed section")?;
        let mut bytes = Vec::new();
        self.codec
            .decompress(&input, u64::from(size), &mut bytes)
            .map_err(|problem| Error::malformed(data_at, "compressed section", problem))?;
        read(&mut Cursor::decompressed(&bytes.as_slice(), at, self.endian))
    }

    /// Follows the chain of option sections. Returns where the last one that could be read ends.
    fn options(
        &mut self,
        first: u64,
        options: &mut TraceDatOptions,
        truncated: &mut Vec<String>,
    ) -> Result<u64, Error> {
        let mut visited = Vec::new();
        let mut end = first;
        let mut next = first;
        while next != 0 {
            if visited.contains(&next) || visited.len() >= MAX_OPTION_SECTIONS {
                truncated.push(format!("the chain of options loops at byte {next}"));
                break;
            }
            visited.push(next);
            let at = next;
            let read = self.section(at, SECTION_OPTIONS, |c| option_section(c, options, truncated));
            match read {
                Ok(offset) => next = offset,
                Err(e) if at == first => return Err(e),
                Err(e) => {
                    truncated.push(format!("the options from byte {at} on cannot be read: {e}"));
                    break;
                }
            }
            let head = self.head(at)?;
            end = head.at.saturating_add(head.len);
        }
        Ok(end)
    }

    /// Where the data of the CPUs of a buffer is.
    fn buffer(
        &self,
        (number, buffer): (usize, &BufferOption),
        layout: PageLayout,
    ) -> Result<Vec<CpuData>, Error> {
        let head = self.head(buffer.offset)?;
        if head.id != SECTION_BUFFER {
            let problem = format!("section {} is no trace data", head.id);
            return Err(Error::malformed(buffer.offset, "section id", problem));
        }
        let own = usize::try_from(buffer.page_size).unwrap_or(0);
        let sizes = MIN_PAGE..=MAX_PAGE;
        let possible = own > layout.data_at && sizes.contains(&u64::from(buffer.page_size));
        let page_size = if possible { own } else { layout.size };
        let data = buffer.data.iter().map(|&(cpu, at, len)| CpuData {
            cpu,
            buffer: number,
            at,
            len,
            chunked: head.compressed,
            page_size,
        });
        Ok(data.collect())
    }

    /// Finds the data of a file that was cut: trace-cmd writes the option that lists it last, behind
    /// the data. The data itself follows the options before it, each CPU's at the start of a page.
    ///
    /// Only chunked data can be found: plain pages do not show where one CPU ends and the next begins.
    fn search(&self, at: u64, page_size: u32, layout: PageLayout, cpus: u32) -> Vec<CpuData> {
        let mut data = Vec::new();
        let Ok(head) = self.head(at) else { return data };
        if head.id != SECTION_BUFFER || !head.compressed || page_size == 0 {
            return data;
        }
        let page = u64::from(page_size);
        let mut at = at.saturating_add(HEAD_LEN);
        for cpu in 0..cpus {
            let Some(start) = at.checked_next_multiple_of(page) else { break };
            let Some(end) = self.chunks_end(start) else { break };
            let len = end - start;
            let page_size = layout.size;
            data.push(CpuData { cpu, buffer: 0, at: start, len, chunked: true, page_size });
            at = end;
        }
        data
    }

    /// The end of the chunks that start at `start`, by the sizes in their heads. A cut is the end.
    fn chunks_end(&self, start: u64) -> Option<u64> {
        let mut c = Cursor::file(self.source, start, self.endian);
        let chunks = c.u32("count of chunks").ok()?;
        for _ in 0..chunks {
            let size = c.u32("compressed size of a chunk").and_then(|size| {
                c.u32("size of a chunk")?;
                Ok(u64::from(size))
            });
            if size.and_then(|size| c.skip(size, "chunk")).is_err() {
                return Some(self.source.len());
            }
        }
        Some(c.at)
    }
}

/// One section of options; returns the offset of the next or 0.
fn option_section(
    c: &mut Cursor<'_>,
    options: &mut TraceDatOptions,
    truncated: &mut Vec<String>,
) -> Result<u64, Error> {
    loop {
        let option = c.u16("number of an option")?;
        let len = c.u32("size of an option")?;
        let mut data = c.sub(u64::from(len), "option")?;
        if option == id::DONE {
            return data.u64("offset of the next options");
        }
        if let Err(e) = options.take(option, &mut data, true) {
            if options.is_full() {
                return Err(e);
            }
            say(truncated, || format!("an option is damaged: {e}"));
        }
    }
}

impl TraceDatOptions {
    /// How many CPUs to look for.
    fn cpu_limit(&self) -> u32 {
        match self.cpus {
            0 => MAX_CPUS,
            n => n.min(MAX_CPUS),
        }
    }
}
