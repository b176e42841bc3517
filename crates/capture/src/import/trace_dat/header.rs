//! The parts of the file that describe the rest: the first bytes, the layout of a ring-buffer page,
//! the formats of the events, the names of the threads.
//!
//! Version 6 stores them one after the other, version 7 each in a separate section; their content
//! is the same.

use std::collections::HashMap;

use crate::import::cursor::{Cursor, MAX_TEXT, text};
use crate::import::formats::MAGIC;
use crate::import::tracepoint::Endian;
use crate::{Error, source::ReadAt};

/// Smaller and larger sub-buffers do not exist.
pub(super) const MIN_PAGE: u64 = 1 << 10;
pub(super) const MAX_PAGE: u64 = 16 << 20;

/// Names of threads that are kept: more than a kernel saves.
pub(super) const MAX_NAMES: usize = 1 << 18;

/// The file's preamble.
#[derive(Debug)]
pub(super) struct Initial {
    pub(super) version: u32,
    pub(super) endian: Endian,
    /// Page size of the recording host. Sub-buffers may be larger, see [`PageLayout::size`].
    pub(super) page_size: u32,
    /// Where the version-specific part starts.
    pub(super) end: u64,
}

/// Reads magic, version, byte order, long size and page size.
pub(super) fn initial(source: &dyn ReadAt) -> Result<Initial, Error> {
    let mut c = Cursor::file(source, 0, Endian::Little);
    c.expect(&MAGIC, "magic of trace.dat")?;
    let at = c.at;
    let version = c.string("file version")?;
    let version: u32 = version
        .parse()
        .map_err(|_| c.malformed_at(at, "file version", format!("{version:?} is no number")))?;
    if !(6..=7).contains(&version) {
        return Err(Error::Unsupported {
            offset: at,
            item: "file version",
            problem: format!("version {version}; versions 6 and 7 are read"),
        });
    }
    let at = c.at;
    c.endian = match c.u8("byte order")? {
        0 => Endian::Little,
        1 => Endian::Big,
        other => return Err(c.malformed_at(at, "byte order", format!("{other}, not 0 or 1"))),
    };
    let at = c.at;
    // Of the recorder's user space; the kernel's long is the size of the page header's commit field.
    let long = c.u8("long size")?;
    if long != 4 && long != 8 {
        return Err(c.malformed_at(at, "long size", format!("{long}, not 4 or 8")));
    }
    let page_size = c.u32("page size")?;
    Ok(Initial { version, endian: c.endian, page_size, end: c.at })
}

/// Layout of a ring-buffer page (`events/header_page`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageLayout {
    /// Offset of the 64-bit time stamp.
    pub(super) time_at: usize,
    /// Offset of the commit word.
    pub(super) commit_at: usize,
    /// Size of the commit word: the kernel's long.
    pub(super) commit_size: usize,
    /// Offset of the first event.
    pub(super) data_at: usize,
    /// Size of the page, which is a sub-buffer of the ring and need not be a page of memory.
    pub(super) size: usize,
}

/// The HEADER_INFO: `header_page` and `header_event`.
pub(super) fn header_info(c: &mut Cursor<'_>) -> Result<PageLayout, Error> {
    c.expect(b"header_page\0", "header_page")?;
    let len = c.u64("size of header_page")?;
    let at = c.at;
    let page = c.bytes(len, MAX_TEXT, "header_page")?;
    let layout = page_layout(&text(&page)).map_err(|p| c.malformed_at(at, "header_page", p))?;
    c.expect(b"header_event\0", "header_event")?;
    let len = c.u64("size of header_event")?;
    let at = c.at;
    let event = c.bytes(len, MAX_TEXT, "header_event")?;
    if let Some(problem) = other_event_header(&text(&event)) {
        return Err(Error::Unsupported { offset: at, item: "header_event", problem });
    }
    Ok(layout)
}

/// From lines such as `field: local_t commit; offset:8; size:8; signed:1;`.
fn page_layout(text: &str) -> Result<PageLayout, String> {
    let field = |name: &str| -> Result<(u64, u64), String> {
        let line = text
            .lines()
            .find(|l| {
                let declared = l.split(';').next().unwrap_or_default();
                declared.split_whitespace().next_back() == Some(name)
            })
            .ok_or_else(|| format!("no field {name:?}"))?;
        let number = |key: &str| {
            let part = line.split(';').find_map(|p| p.trim().strip_prefix(key))?;
            part.trim().parse::<u64>().ok()
        };
        match (number("offset:"), number("size:")) {
            (Some(offset), Some(size)) => Ok((offset, size)),
            _ => Err(format!("field {name:?} has no offset or size")),
        }
    };
    let (time_at, time_size) = field("timestamp")?;
    let (commit_at, commit_size) = field("commit")?;
    let (data_at, data_size) = field("data")?;
    if time_size != 8 {
        return Err(format!("a time stamp of {time_size} bytes"));
    }
    if commit_size != 4 && commit_size != 8 {
        return Err(format!("a commit field of {commit_size} bytes"));
    }
    let fits = |at: u64, size: u64| at.checked_add(size).is_some_and(|end| end <= data_at);
    let size = data_at.saturating_add(data_size);
    if !fits(time_at, time_size)
        || !fits(commit_at, commit_size)
        || data_size == 0
        || !(MIN_PAGE..=MAX_PAGE).contains(&size)
    {
        return Err("the fields do not make a page".into());
    }
    let small = |n: u64| usize::try_from(n).map_err(|e| e.to_string());
    Ok(PageLayout {
        time_at: small(time_at)?,
        commit_at: small(commit_at)?,
        commit_size: small(commit_size)?,
        data_at: small(data_at)?,
        size: small(size)?,
    })
}

/// Reports differences from the event header of all kernels since 2.6.31.
fn other_event_header(text: &str) -> Option<String> {
    const KNOWN: [(&str, u32); 6] = [
        ("type_len", 5),
        ("time_delta", 27),
        ("padding", 29),
        ("time_extend", 30),
        ("time_stamp", 31),
        ("data max type_len", 28),
    ];
    for line in text.lines() {
        let Some((name, value)) = line.split_once([':', '=']) else { continue };
        let value = value.trim_start_matches(|c: char| !c.is_ascii_digit());
        let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
        let value = value.get(..digits).and_then(|v| v.parse::<u32>().ok());
        for (known, number) in KNOWN {
            if name.trim() == known && value.is_some_and(|v| v != number) {
                return Some(format!("the ring buffer's {known} is not {number}: {line:?}"));
            }
        }
    }
    None
}

/// The CMDLINES: lines of thread id and name.
pub(super) fn cmdlines(c: &mut Cursor<'_>) -> Result<Vec<(u32, String)>, Error> {
    let len = c.u64("size of the saved command lines")?;
    let bytes = c.bytes(len, MAX_TEXT, "saved command lines")?;
    let lines = text(&bytes);
    let names = lines.lines().filter_map(|line| {
        let (tid, name) = line.trim_start().split_once(' ')?;
        Some((tid.parse().ok()?, name.to_owned()))
    });
    Ok(names.take(MAX_NAMES).collect())
}

/// Lines of thread id and process id, as ftrace's `saved_tgids`.
pub(super) fn tgids(text: &str) -> HashMap<u32, u32> {
    let pairs = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let tid = words.next()?.parse().ok()?;
        let pid = words.next()?.parse().ok()?;
        Some((tid, pid))
    });
    pairs.collect()
}
