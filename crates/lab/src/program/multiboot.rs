//! Loads multiboot images: 32-bit ELF files with a multiboot header, as QEMU's `-kernel` takes them.
//!
//! Source: Multiboot Specification 0.6.96, section 3.1.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{EM_386, ET_EXEC, FileHeader32, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

/// The header is in the first bytes of the file, at a multiple of four.
const SEARCHED: usize = 8192;
const MAGIC: u32 = 0x1bad_b002;
/// Flags that a loader must know or refuse, and of these what is done here: aligned modules, of which there are none, and sizes of
/// memory.
const REQUIRED: u32 = 0xffff;
const DONE: u32 = 3;
/// The header says where the file is loaded, in place of ELF's.
const ADDRESSES: u32 = 1 << 16;

/// Memory from here to 1 MiB belongs to firmware.
const LOW_END: u64 = 0x9_f000;
const HIGH: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoadedImage {
    pub(super) entry: u32,
    pub(super) pieces: Vec<(u32, Vec<u8>)>,
    /// Memory of its segments.
    pub(super) taken: Vec<Range<u64>>,
}

/// Loads an image into memory of this size.
pub(super) fn load(bytes: &[u8], memory: u32) -> Result<LoadedImage, String> {
    if bytes.starts_with(b"\x7fELF\x02") {
        return Err("is a 64-bit ELF file, which no multiboot loader takes; use the 32-bit image: kvm-unit-tests makes it with \
                    objcopy -O elf32-i386"
            .to_owned());
    }
    let flags = header(bytes)
        .ok_or("is not a multiboot image: its first 8 KiB have no multiboot header")?;
    if flags & REQUIRED & !DONE != 0 {
        return Err(format!(
            "requires what this loader does not do: multiboot flags {:#x}",
            flags & REQUIRED & !DONE
        ));
    }
    if flags & ADDRESSES != 0 && !bytes.starts_with(b"\x7fELF") {
        return Err("has its load addresses in the multiboot header; use an ELF image".to_owned());
    }
    segments(bytes, memory)
}

/// The flags of the multiboot header.
fn header(bytes: &[u8]) -> Option<u32> {
    let (words, _) = bytes[..bytes.len().min(SEARCHED)].as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    words.windows(3).find_map(|three| {
        let sum = three.iter().fold(0_u32, |sum, word| sum.wrapping_add(*word));
        (three[0] == MAGIC && sum == 0).then_some(three[1])
    })
}

fn segments(bytes: &[u8], memory: u32) -> Result<LoadedImage, String> {
    let endian = LittleEndian;
    let damaged = |what: &str| format!("is a damaged ELF file: {what}");
    let header = FileHeader32::<LittleEndian>::parse(bytes)
        .map_err(|error| format!("is no 32-bit ELF file: {error}"))?;
    if header.e_machine(endian) != EM_386 || header.e_type(endian) != ET_EXEC {
        return Err("is no x86 executable with fixed addresses".to_owned());
    }
    let mut loaded =
        LoadedImage { entry: header.e_entry(endian), pieces: Vec::new(), taken: Vec::new() };
    let headers =
        header.program_headers(endian, bytes).map_err(|error| damaged(&error.to_string()))?;
    for segment in headers.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let data =
            segment.data(endian, bytes).map_err(|()| damaged("a segment is beyond its end"))?;
        let (start, size) = (segment.p_paddr(endian), segment.p_memsz(endian));
        if size < segment.p_filesz(endian) {
            return Err(damaged("a segment has more bytes than memory"));
        }
        let taken = u64::from(start)..u64::from(start) + u64::from(size);
        let is_low = taken.end <= LOW_END;
        let is_high = taken.start >= HIGH && taken.end <= u64::from(memory);
        if size > 0 && !is_low && !is_high {
            return Err(format!(
                "has a segment from {:#x} to {:#x}, and its memory is below {LOW_END:#x} and from {HIGH:#x} to {memory:#x}",
                taken.start, taken.end
            ));
        }
        loaded.pieces.push((start, data.to_vec()));
        loaded.taken.push(taken);
    }
    let entry = u64::from(loaded.entry);
    if !loaded.taken.iter().any(|taken| taken.contains(&entry)) {
        return Err(format!("starts at {entry:#x}, where no segment of it is"));
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u32 = 32 << 20;

    /// An image of one segment with these multiboot flags: header of ELF, program header, multiboot header, one instruction.
    fn image(flags: u32, paddr: u32, size: u32) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        for half in [2_u16, 3] {
            bytes.extend(half.to_le_bytes());
        }
        for word in [1, paddr + 12, 52, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        for half in [52_u16, 32, 1, 40, 0, 0] {
            bytes.extend(half.to_le_bytes());
        }
        for word in [1, 84, paddr, paddr, 13, size, 7, 4] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [MAGIC, flags, 0_u32.wrapping_sub(MAGIC.wrapping_add(flags))] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.push(0xf4);
        bytes
    }

    #[test]
    fn an_image_is_loaded() {
        let loaded = load(&image(0, 0x40_0000, 0x1000), MEMORY).expect("an image");
        assert_eq!(loaded.entry, 0x40_000c);
        assert_eq!((loaded.taken.len(), &loaded.taken[0]), (1, &(0x40_0000..0x40_1000)));
        assert_eq!((loaded.pieces[0].0, loaded.pieces[0].1.len()), (0x40_0000, 13));
    }

    #[test]
    fn invalid_images_are_refused() {
        let said = |bytes: &[u8]| load(bytes, MEMORY).expect_err("no image");
        assert!(said(b"").contains("is not a multiboot image"));
        assert!(said(&[0x5a; 10_000]).contains("is not a multiboot image"));
        assert!(said(b"\x7fELF\x02\x01\x01").contains("objcopy"));
        assert!(said(&image(4, 0x40_0000, 0x1000)).contains("flags 0x4"));
        assert!(said(&image(0, 0xa_0000, 0x1000)).contains("from 0xa0000 to 0xa1000"));
        assert!(said(&image(0, MEMORY, 0x1000)).contains("has a segment"));
        assert!(said(&image(0, 0xffff_f000, 0xffff_ffff)).contains("has a segment"));
        assert!(said(&image(0, 0x40_0000, 1)).contains("more bytes than memory"));
        let whole = image(0, 0x40_0000, 0x1000);
        assert!(said(&whole[..whole.len() - 1]).contains("beyond its end"));
        // Cut anywhere, and with any byte changed, it is loaded or refused.
        for length in 0..whole.len() {
            assert!(load(&whole[..length], MEMORY).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            let _ = load(&changed, MEMORY);
        }
    }
}
