//! Reduces a kernel's ELF file to its loaded segments, so that an emulated host has less to unpack and copy.

use std::path::Path;

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD, PT_NOTE, ProgramHeader64, ProgramType};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::Error;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// The file with only its loadable segments, each without trailing zeros.
pub(crate) fn trimmed(path: &Path) -> Result<Vec<u8>, Error> {
    with_segments(path, &[PT_LOAD])
}

/// The same with its notes, which hold the entry at which QEMU starts it.
pub(crate) fn trimmed_for_qemu(path: &Path) -> Result<Vec<u8>, Error> {
    with_segments(path, &[PT_LOAD, PT_NOTE])
}

fn with_segments(path: &Path, kinds: &[ProgramType]) -> Result<Vec<u8>, Error> {
    let bytes = std::fs::read(path).map_err(Error::io(path, "read the kernel"))?;
    trim(&bytes, kinds).ok_or_else(|| Error::Kernel {
        path: path.to_owned(),
        problem: "is no 64-bit ELF file with loadable segments".to_owned(),
    })
}

fn trim(bytes: &[u8], kinds: &[ProgramType]) -> Option<Vec<u8>> {
    let endian = LittleEndian;
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let segments: Vec<&ProgramHeader64<LittleEndian>> = header
        .program_headers(endian, bytes)
        .ok()?
        .iter()
        .filter(|segment| kinds.contains(&segment.p_type(endian)))
        .collect();
    if !segments.iter().any(|segment| segment.p_type(endian) == PT_LOAD) {
        return None;
    }
    let mut out = bytes.get(..HEADER)?.to_vec();
    // No section table; the program headers follow the header.
    out[0x20..0x28].copy_from_slice(&(HEADER as u64).to_le_bytes());
    out[0x28..0x30].fill(0);
    out[0x38..0x3a].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    out[0x3c..0x40].fill(0);
    let mut contents = Vec::new();
    let mut offset = HEADER + PROGRAM_HEADER * segments.len();
    for segment in &segments {
        let data = segment.data(endian, bytes).ok()?;
        let used = match segment.p_type(endian) {
            PT_LOAD => data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1),
            _ => data.len(),
        };
        for word in [segment.p_type(endian).0, segment.p_flags(endian).0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [
            offset as u64,
            segment.p_vaddr(endian),
            segment.p_paddr(endian),
            used as u64,
            segment.p_memsz(endian),
            segment.p_align(endian),
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        contents.push(&data[..used]);
        offset += used;
    }
    out.reserve_exact(contents.iter().map(|content| content.len()).sum());
    for content in contents {
        out.extend_from_slice(content);
    }
    Some(out)
}
