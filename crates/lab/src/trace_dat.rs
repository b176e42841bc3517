//! Writes the guest's recording as a `trace.dat`, version 6, as trace-cmd would.
//!
//! The format is in trace-cmd's `trace-cmd.dat.v6(5)`. The kernel's pages as they are.

use std::collections::BTreeMap;

use vmtax_guest::order::decode;

use crate::Error;

/// Bytes of a page of the ring buffer.
const PAGE: usize = 4096;
const OPTION_TRACE_CLOCK: u16 = 4;
const OPTION_UNAME: u16 = 5;
const OPTION_TSC2NSEC: u16 = 14;

/// The guest's files of tracefs.
#[derive(Debug)]
pub(crate) struct TracefsFiles<'a> {
    pub(crate) header_page: &'a [u8],
    pub(crate) header_event: &'a [u8],
    /// Encoded list of system and format text.
    pub(crate) formats: &'a [u8],
    pub(crate) saved_cmdlines: &'a [u8],
    pub(crate) trace_clock: &'a [u8],
    /// Pages of each CPU's buffer.
    pub(crate) pages: Vec<&'a [u8]>,
    pub(crate) release: &'a str,
}

/// The file, of the guest's files by name.
pub(crate) fn assemble(files: &[(String, Vec<u8>)], release: &str) -> Result<Vec<u8>, Error> {
    let files: BTreeMap<&str, &[u8]> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let part = |name: &str| {
        files
            .get(name)
            .copied()
            .ok_or_else(|| Error::Report { problem: format!("its recording lacks {name}") })
    };
    let others = (1..).map_while(|cpu| files.get(format!("trace/cpu{cpu}").as_str()).copied());
    let parts = TracefsFiles {
        header_page: part("trace/header_page")?,
        header_event: part("trace/header_event")?,
        formats: part("trace/formats")?,
        saved_cmdlines: part("trace/saved_cmdlines")?,
        trace_clock: part("trace/trace_clock")?,
        pages: std::iter::once(part("trace/cpu0")?).chain(others).collect(),
        release,
    };
    write(&parts)
        .ok_or_else(|| Error::Report { problem: "its tracepoint formats are damaged".to_owned() })
}

/// The file, or `None` when the formats cannot be read.
fn write(parts: &TracefsFiles<'_>) -> Option<Vec<u8>> {
    let formats: Vec<(String, String)> = decode(parts.formats)?;
    let pages = parts.pages.iter().map(|pages| pages.len()).sum::<usize>();
    let mut out = Vec::with_capacity(pages + parts.formats.len() + 2 * PAGE);
    out.extend_from_slice(b"\x17\x08\x44tracing6\0");
    // Little-endian, 8-byte long, page size.
    out.extend_from_slice(&[0, 8]);
    number32(&mut out, PAGE);
    for (name, text) in
        [(&b"header_page\0"[..], parts.header_page), (b"header_event\0", parts.header_event)]
    {
        out.extend_from_slice(name);
        sized64(&mut out, text);
    }
    // No events of ftrace itself.
    number32(&mut out, 0);
    let systems: Vec<&[(String, String)]> = formats.chunk_by(|a, b| a.0 == b.0).collect();
    number32(&mut out, systems.len());
    for system in systems {
        out.extend_from_slice(system[0].0.as_bytes());
        out.push(0);
        number32(&mut out, system.len());
        for (_, text) in system {
            sized64(&mut out, text.as_bytes());
        }
    }
    // No symbols, no printk formats.
    number32(&mut out, 0);
    number32(&mut out, 0);
    sized64(&mut out, parts.saved_cmdlines);
    number32(&mut out, parts.pages.len());
    out.extend_from_slice(b"options  \0");
    option(&mut out, OPTION_TRACE_CLOCK, parts.trace_clock);
    option(&mut out, OPTION_UNAME, format!("Linux {}\0", parts.release).as_bytes());
    // One tick is one instruction; readers that only know nanoseconds show it as one.
    option(&mut out, OPTION_TSC2NSEC, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&0_u16.to_le_bytes());
    out.extend_from_slice(b"flyrecord\0");
    let start = (out.len() + 16 * parts.pages.len()).next_multiple_of(PAGE);
    let mut next = start;
    for pages in &parts.pages {
        out.extend_from_slice(&(next as u64).to_le_bytes());
        out.extend_from_slice(&(pages.len() as u64).to_le_bytes());
        next += pages.len();
    }
    out.resize(start, 0);
    parts.pages.iter().for_each(|pages| out.extend_from_slice(pages));
    Some(out)
}

fn number32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

fn sized64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn option(out: &mut Vec<u8>, number: u16, bytes: &[u8]) {
    out.extend_from_slice(&number.to_le_bytes());
    number32(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Events lost in the guest's buffer, by its kernel's counters.
pub(crate) fn lost(files: &[(String, Vec<u8>)]) -> u64 {
    let stats = files.iter().find(|(name, _)| name == "trace/stats");
    let text =
        stats.map_or(String::new(), |(_, bytes)| String::from_utf8_lossy(bytes).into_owned());
    let of = |key: &str| {
        let lines =
            text.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
        lines.filter_map(|number| number.trim().parse::<u64>().ok()).sum::<u64>()
    };
    of("dropped events") + of("overrun")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_is_a_loss() {
        let text = b"entries: 12\noverrun: 0\ncommit overrun: 7\nbytes: 400\ndropped events: 31\nread events: 0\n";
        assert_eq!(lost(&[("trace/stats".to_owned(), text.to_vec())]), 31);
        assert_eq!(lost(&[("trace/stats".to_owned(), text.repeat(2))]), 62);
        assert_eq!(lost(&[]), 0);
    }
}
