//! The header of a file or a stream, attributes, and feature sections.

use std::io::{self, Read};

use super::layout::OrderedBytes;
use super::session::{PerfDataSession, feature};
use crate::Error;
use crate::import::tracepoint::Endian;
use crate::source::ReadAt;

/// Length of a stream's header.
pub(super) const PIPE_HEADER_SIZE: u64 = 16;
const FILE_HEADER_SIZE: usize = 104;

/// Nothing in a header is larger than this; a larger claim is a damaged file.
const MAX_SECTION: u64 = 64 << 20;

/// What is said of a recording that follows another in one file.
pub(super) const ANOTHER: &str = "which is not read: give each in a file of its own";

/// The first 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Magic {
    pub(super) endian: Endian,
    pub(super) is_pipe: bool,
}

impl Magic {
    pub(super) fn of(head: &[u8]) -> Option<Magic> {
        // The magic is a number, so its bytes show the writer's byte order.
        let endian = match head.get(..8)? {
            b"PERFILE2" => Endian::Little,
            b"2ELIFREP" => Endian::Big,
            _ => return None,
        };
        let size = OrderedBytes(endian).u64(head, 8)?;
        Some(Magic { endian, is_pipe: size == PIPE_HEADER_SIZE })
    }
}

/// Reads a stream's header.
pub(super) fn read_pipe_header(input: &mut dyn Read) -> Result<Endian, Error> {
    let mut head = [0; PIPE_HEADER_SIZE as usize];
    input.read_exact(&mut head).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::malformed(0, "perf.data header", "the stream ends in it")
        }
        _ => Error::Io { offset: 0, source },
    })?;
    match Magic::of(&head) {
        Some(Magic { endian, is_pipe: true }) => Ok(endian),
        _ => Err(Error::malformed(0, "perf.data header", "is not that of a perf stream")),
    }
}

/// A section: where and how long.
#[derive(Clone, Copy, Debug)]
struct FileSection {
    offset: u64,
    size: u64,
}

/// The header of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderFile {
    pub(super) endian: Endian,
    pub(super) data_offset: u64,
    pub(super) data_size: u64,
    attr_size: u64,
    attrs: FileSection,
    features: [u64; 4],
}

impl HeaderFile {
    pub(super) fn read(source: &dyn ReadAt) -> Result<HeaderFile, Error> {
        let mut head = [0; FILE_HEADER_SIZE];
        let got = source.read_at(0, &mut head).map_err(|source| Error::Io { offset: 0, source })?;
        let magic = Magic::of(&head[..got]).ok_or_else(|| {
            Error::malformed(0, "perf.data header", "does not begin with PERFILE2")
        })?;
        if got < FILE_HEADER_SIZE {
            return Err(Error::malformed(got as u64, "perf.data header", "the file ends in it"));
        }
        let bytes = OrderedBytes(magic.endian);
        let word = |at: usize| bytes.u64(&head, at).unwrap_or(0);
        let section = |at: usize| FileSection { offset: word(at), size: word(at + 8) };
        let data = section(40);
        if data.size == 0 {
            return Err(Error::malformed(
                40,
                "data section",
                "is empty: perf was stopped before it finished the file; record again, and end perf with Ctrl-C",
            ));
        }
        let mut features = [0; 4];
        for (i, f) in features.iter_mut().enumerate() {
            *f = word(72 + 8 * i);
        }
        Ok(HeaderFile {
            endian: magic.endian,
            data_offset: data.offset,
            data_size: data.size,
            attr_size: word(16),
            attrs: section(24),
            features,
        })
    }

    /// Reads attributes and features into the session.
    pub(super) fn load(
        &self,
        source: &dyn ReadAt,
        session: &mut PerfDataSession,
    ) -> Result<(), Error> {
        self.load_attrs(source, session)?;
        let bytes = OrderedBytes(self.endian);
        let mut at = self.data_offset.saturating_add(self.data_size);
        let mut end = at;
        for feature in 0..256u64 {
            let set = self.features[(feature / 64) as usize] >> (feature % 64) & 1 == 1;
            if !set {
                continue;
            }
            let mut entry = [0; 16];
            let got = source
                .read_at(at, &mut entry)
                .map_err(|source| Error::Io { offset: at, source })?;
            if got < entry.len() {
                if feature <= feature::TRACING_DATA {
                    return Err(Error::malformed(
                        source.len(),
                        "tracing data",
                        format!(
                            "cut off: the file ends before it, and before byte {at}, which gives its position; without it no sample can be decoded. Copy the file again, or record again"
                        ),
                    ));
                }
                session.truncated(format!(
                    "the file ends at byte {}, in its list of features",
                    source.len()
                ));
                break;
            }
            let section = FileSection {
                offset: bytes.u64(&entry, 0).unwrap_or(0),
                size: bytes.u64(&entry, 8).unwrap_or(0),
            };
            at += 16;
            end = end.max(at).max(section.offset.saturating_add(section.size));
            let is_cut = section.offset.saturating_add(section.size) > source.len();
            if is_cut && !session.wants_feature(feature) {
                let len = source.len();
                session.truncated(format!("the file ends at byte {len}, in its feature {feature}"));
                break;
            }
            if session.wants_feature(feature) {
                self.load_feature(source, feature, section, session)?;
            }
        }
        another(source, end, session)
    }

    fn load_feature(
        &self,
        source: &dyn ReadAt,
        feature: u64,
        section: FileSection,
        session: &mut PerfDataSession,
    ) -> Result<(), Error> {
        match read_section(source, section, "feature section") {
            Ok(payload) => session.feature(feature, &payload, section.offset),
            Err(error) if feature == feature::TRACING_DATA => Err(error),
            Err(error) => {
                session.truncated(format!("feature {feature} cannot be read: {error}"));
                Ok(())
            }
        }
    }

    fn load_attrs(&self, source: &dyn ReadAt, session: &mut PerfDataSession) -> Result<(), Error> {
        let malformed =
            |problem: String| Error::malformed(self.attrs.offset, "attributes", problem);
        // An attribute is followed by the section that holds its event ids.
        let attr_len = usize::try_from(self.attr_size)
            .ok()
            .and_then(|size| size.checked_sub(16))
            .filter(|len| (64..=4096).contains(len))
            .ok_or_else(|| malformed(format!("of {} bytes each", self.attr_size)))?;
        let table = read_section(source, self.attrs, "attributes")?;
        let bytes = OrderedBytes(self.endian);
        // The lists of ids do not overlap, so all of them fit in the file. Else a small file could ask for
        // endless work.
        let mut left = source.len();
        for entry in table.chunks_exact(attr_len + 16) {
            let (attr, ids) = entry.split_at(attr_len);
            let section = FileSection {
                offset: bytes.u64(ids, 0).unwrap_or(0),
                size: bytes.u64(ids, 8).unwrap_or(0),
            };
            left = left.checked_sub(section.size).ok_or_else(|| {
                malformed("their lists of event ids are longer than the file".to_owned())
            })?;
            session.attr(attr, &read_section(source, section, "event ids")?);
        }
        Ok(())
    }
}

/// Says that another recording follows this one, as two files that were joined have it.
fn another(source: &dyn ReadAt, end: u64, session: &mut PerfDataSession) -> Result<(), Error> {
    let mut head = [0; 16];
    if end >= source.len() {
        return Ok(());
    }
    let got = source.read_at(end, &mut head).map_err(|source| Error::Io { offset: end, source })?;
    if Magic::of(&head[..got]).is_some() {
        session.truncated(format!("another recording follows at byte {end}, {ANOTHER}"));
    }
    Ok(())
}

fn read_section(
    source: &dyn ReadAt,
    section: FileSection,
    item: &'static str,
) -> Result<Vec<u8>, Error> {
    let end = section.offset.checked_add(section.size);
    if end.is_none_or(|end| end > source.len()) || section.size > MAX_SECTION {
        return Err(Error::malformed(
            section.offset,
            item,
            format!("of {} bytes does not fit in the file of {} bytes", section.size, source.len()),
        ));
    }
    let mut bytes = vec![0; section.size as usize];
    let got = source
        .read_at(section.offset, &mut bytes)
        .map_err(|source| Error::Io { offset: section.offset, source })?;
    bytes.truncate(got);
    Ok(bytes)
}
