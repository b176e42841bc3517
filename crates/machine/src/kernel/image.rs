//! Kernel images: what a bzImage holds, by the boot protocol of the kernel's `arch/x86/boot.rst`, and an Image of arm64
//! (`arch/arm64/booting.rst`), which is not packed.

use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{FileHeader64, NoteType, PT_NOTE};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use vmtax_durable::NewFolder;

use crate::{Error, checksum};

/// Distributions' kernels are 8 to 60 MiB.
const LARGEST_IMAGE: u64 = 1 << 30;
/// Unpacked they are 50 to 120 MiB; with debug information, up to 1 GiB.
const LARGEST_ELF: u64 = 2 << 30;

pub(crate) enum KernelImage {
    Elf {
        path: PathBuf,
    },
    /// A bzImage.
    Packed(Packed),
    /// An Image of arm64.
    Arm {
        path: PathBuf,
    },
}

/// Where an Image of arm64 has its magic number, and the number.
const ARM_MAGIC: (usize, &[u8]) = (56, b"ARM\x64");

/// A bzImage, in memory.
pub(crate) struct Packed {
    path: PathBuf,
    bytes: Vec<u8>,
    /// The compressed kernel inside.
    payload: std::ops::Range<usize>,
}

impl KernelImage {
    /// Reads an image and checks that it is whole.
    pub(crate) fn read(path: &Path) -> Result<KernelImage, Error> {
        let problem = |problem: String| Error::Kernel { path: path.to_owned(), problem };
        let mut file = File::open(path).map_err(Error::io(path, "open the kernel"))?;
        let metadata = file.metadata().map_err(Error::io(path, "read the kernel"))?;
        if !metadata.is_file() {
            return Err(problem("is not a file; give a bzImage".to_owned()));
        }
        let size = metadata.len();
        if size > LARGEST_ELF {
            return Err(problem(format!("{size} bytes: too small or too large for a kernel")));
        }
        let mut magic = [0; 4];
        let short = |_| problem("not a kernel image: it is too short; give a bzImage".into());
        file.read_exact(&mut magic).map_err(short)?;
        if magic == *b"\x7fELF" {
            return Ok(KernelImage::Elf { path: path.to_owned() });
        }
        let mut bytes = magic.to_vec();
        file.take(LARGEST_IMAGE)
            .read_to_end(&mut bytes)
            .map_err(Error::io(path, "read the kernel"))?;
        let (at, magic) = ARM_MAGIC;
        if bytes.get(at..).is_some_and(|rest| rest.starts_with(magic)) {
            return Ok(KernelImage::Arm { path: path.to_owned() });
        }
        let payload = payload(&bytes).map_err(problem)?;
        Ok(KernelImage::Packed(Packed { path: path.to_owned(), bytes, payload }))
    }

    /// The kernel's release: `6.1.0-56-amd64`.
    pub(crate) fn release(&self) -> Result<String, Error> {
        let (path, release) = match self {
            KernelImage::Packed(packed) => (&packed.path, packed.release()),
            KernelImage::Elf { path } | KernelImage::Arm { path } => {
                let bytes = fs::read(path).map_err(Error::io(path, "read the kernel"))?;
                (path, elf_release(&bytes))
            }
        };
        release.ok_or_else(|| Error::Kernel {
            path: path.clone(),
            problem: "it has no Linux version string: it is not a Linux kernel, or it is damaged"
                .to_owned(),
        })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The place of the compressed kernel, from the setup header.
fn payload(bytes: &[u8]) -> Result<std::ops::Range<usize>, String> {
    if bytes.get(0x202..0x206) != Some(b"HdrS") {
        return Err("not a kernel image: neither a bzImage nor an ELF file".to_owned());
    }
    let protocol = u16_at(bytes, 0x206).unwrap_or(0);
    if protocol < 0x208 {
        return Err(format!(
            "boot protocol {}.{:02} is older than 2.08 (Linux 2.6.26), the oldest that can be used",
            protocol >> 8,
            protocol & 0xff
        ));
    }
    // By the boot protocol 0 means 4.
    let sectors = match bytes.get(0x1f1) {
        Some(0) | None => 4,
        Some(sectors) => usize::from(*sectors),
    };
    let field = |at| u32_at(bytes, at).map(|value| value as usize);
    let (Some(offset), Some(length)) = (field(0x248), field(0x24c)) else {
        return Err("the image is truncated".to_owned());
    };
    let start = (sectors + 1) * 512 + offset;
    match start.checked_add(length) {
        Some(end) if end <= bytes.len() && length > 8 => Ok(start..end),
        _ => Err(format!(
            "the image is truncated: its compressed kernel should be at {start} to {}, and the file has {} bytes",
            start.saturating_add(length),
            bytes.len()
        )),
    }
}

/// The word after `Linux version ` in an uncompressed kernel.
fn elf_release(bytes: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"Linux version ";
    let mut from = 0;
    while let Some(at) = bytes[from..].windows(MARK.len()).position(|window| window == MARK) {
        from += at + MARK.len();
        if let Some(word) = first_word(&bytes[from..]) {
            return Some(word);
        }
    }
    None
}

/// A release, which starts with a digit and ends at a space.
fn first_word(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(128).position(|byte| *byte == b' ' || *byte == 0)?;
    let word = std::str::from_utf8(&bytes[..end]).ok()?;
    word.starts_with(|c: char| c.is_ascii_digit()).then(|| word.to_owned())
}

/// How a kernel is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Xz,
    Zstd,
    Lz4,
    Lzma,
}

/// Compressions that vmtax cannot unpack. QEMU can still boot such kernels.
const OTHER_PACKINGS: [(&[u8], &str); 3] =
    [(b"BZh", "bzip2"), (b"\x89LZO", "LZO"), (b"\x7fELF", "no compression")];

impl Packed {
    fn release(&self) -> Option<String> {
        let at = usize::from(u16_at(&self.bytes, 0x20e)?);
        first_word(self.bytes.get(at + 0x200..)?)
    }

    fn packing(&self) -> Result<Packing, String> {
        let payload = &self.bytes[self.payload.clone()];
        let known: [(&[u8], Packing); 5] = [
            (b"\x1f\x8b", Packing::Gzip),
            (b"\xfd7zXZ\0", Packing::Xz),
            (b"\x28\xb5\x2f\xfd", Packing::Zstd),
            (b"\x02\x21\x4c\x18", Packing::Lz4),
            (b"\x5d\0\0", Packing::Lzma),
        ];
        if let Some((_, packing)) = known.iter().find(|(magic, _)| payload.starts_with(magic)) {
            return Ok(*packing);
        }
        Err(match OTHER_PACKINGS.iter().find(|(magic, _)| payload.starts_with(magic)) {
            Some((_, name)) => format!(
                "it was built with {name}; build it with CONFIG_KERNEL_ZSTD, _XZ, _GZIP, _LZ4 or _LZMA, or give the vmlinux"
            ),
            None => {
                "its compressed kernel is damaged, or of an unknown kind; fetch or build it again"
                    .to_owned()
            }
        })
    }

    /// Whether it can be unpacked, unless it is damaged.
    pub(crate) fn can_unpack(&self) -> bool {
        // A damaged kernel is reported, not booted.
        let payload = &self.bytes[self.payload.clone()];
        !OTHER_PACKINGS.iter().any(|(magic, _)| payload.starts_with(magic))
    }

    /// The uncompressed kernel, from the cache if it has an undamaged copy.
    pub(crate) fn unpack(&self, cache: &Path) -> Result<PathBuf, Error> {
        let folder = cache.join("vmlinux").join(checksum::of_bytes(&self.bytes));
        let (elf, sum) = (folder.join("vmlinux"), folder.join("sha256"));
        let known = fs::read_to_string(&sum).ok();
        if known.is_some() && known == checksum::of_file(&elf).ok() {
            return Ok(elf);
        }
        let bytes = self
            .unpacked()
            .map_err(|problem| Error::Kernel { path: self.path.clone(), problem })?;
        let write = || {
            let new = NewFolder::beside(&folder)?;
            fs::write(new.path().join("vmlinux"), &bytes)?;
            fs::write(new.path().join("sha256"), checksum::of_bytes(&bytes))?;
            new.replace()
        };
        write().map_err(Error::io(&folder, "keep the unpacked kernel"))?;
        Ok(elf)
    }

    fn unpacked(&self) -> Result<Vec<u8>, String> {
        let packing = self.packing()?;
        let payload = &self.bytes[self.payload.clone()];
        // The build appends the unpacked size, which gzip has anyway.
        let (body, size) = payload.split_at(payload.len() - 4);
        let size = u32_at(size, 0).unwrap_or(0);
        let packed = if packing == Packing::Gzip { payload } else { body };
        let mut out = Vec::with_capacity(usize::try_from(size).unwrap_or(0).min(256 << 20));
        unpack(packing, packed, &mut out).map_err(|e| {
            format!("its compressed kernel is damaged ({e}); fetch or build it again")
        })?;
        if out.len() as u64 != u64::from(size) || !out.starts_with(b"\x7fELF") {
            return Err("its compressed kernel is damaged; fetch or build it again".to_owned());
        }
        Ok(out)
    }
}

fn unpack(packing: Packing, packed: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let reader: Box<dyn Read + '_> = match packing {
        Packing::Gzip => Box::new(flate2::read::GzDecoder::new(packed)),
        Packing::Xz => Box::new(lzma_rust2::XzReader::new(packed, false)),
        Packing::Zstd => Box::new(zstd::Decoder::new(packed)?.single_frame()),
        Packing::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(packed)),
        Packing::Lzma => {
            Box::new(lzma_rust2::LzmaReader::new_mem_limit(Cursor::new(packed), 1 << 20, None)?)
        }
    };
    reader.take(LARGEST_ELF).read_to_end(out)?;
    Ok(())
}

/// Whether an ELF kernel has the entry that QEMU uses: a note of Xen's, type 18 (PHYS32_ENTRY).
pub(crate) fn has_pvh_entry(path: &Path) -> Result<bool, Error> {
    const PHYS32_ENTRY: NoteType = NoteType(18);
    let file = File::open(path).map_err(Error::io(path, "open the kernel"))?;
    let cache = ReadCache::new(file);
    let find = || -> object::read::Result<bool> {
        let header = FileHeader64::<LittleEndian>::parse(&cache)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, &cache)? {
            if segment.p_type(endian) != PT_NOTE {
                continue;
            }
            let Some(mut notes) = segment.notes(endian, &cache)? else { continue };
            while let Some(note) = notes.next()? {
                if note.name() == b"Xen" && note.n_type(endian) == PHYS32_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    find().map_err(|e| Error::Kernel {
        path: path.to_owned(),
        problem: format!("not a valid ELF file for x86-64 ({e})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage of a kernel that is `\x7fELF` and some text, compressed by `pack`.
    fn image(pack: impl Fn(&[u8]) -> Vec<u8>, size_follows: bool) -> (Vec<u8>, Vec<u8>) {
        let elf = [b"\x7fELF".to_vec(), b"Linux version 9.9.9 ".repeat(100)].concat();
        let mut payload = pack(&elf);
        if size_follows {
            payload.extend((elf.len() as u32).to_le_bytes());
        }
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x30e].copy_from_slice(b"9.9.9-test (x)");
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        (image, elf)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// As `lz4 -l` writes: a magic number, then blocks with their sizes.
    fn lz4(bytes: &[u8]) -> Vec<u8> {
        // One sequence of literals alone: a token, the rest of the length, the literals.
        let mut block = vec![0xf0];
        let mut left = bytes.len() - 15;
        while left >= 255 {
            block.push(255);
            left -= 255;
        }
        block.push(left as u8);
        block.extend(bytes);
        [b"\x02\x21\x4c\x18".to_vec(), (block.len() as u32).to_le_bytes().to_vec(), block].concat()
    }

    fn unpack(image: &[u8]) -> Result<(String, Vec<u8>), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bzImage");
        fs::write(&path, image).unwrap();
        let words = |e: Error| e.to_string().replace(&path.display().to_string(), "IMAGE");
        let image = KernelImage::read(&path).map_err(words)?;
        let release = image.release().map_err(words)?;
        let KernelImage::Packed(packed) = image else { return Err("an ELF file".to_owned()) };
        let elf = packed.unpack(folder.path()).map_err(words)?;
        let bytes = fs::read(&elf).unwrap();
        // Broken entries of the cache heal.
        fs::write(&elf, b"broken").unwrap();
        assert_eq!(packed.unpack(folder.path()).unwrap(), elf);
        assert_eq!(fs::read(&elf).unwrap(), bytes);
        Ok((release, bytes))
    }

    #[test]
    fn kernels_unpack() {
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        for (image, elf) in [image(gzip, false), image(zstd, true), image(lz4, true)] {
            assert_eq!(unpack(&image), Ok(("9.9.9-test".to_owned(), elf)));
        }
    }

    #[test]
    fn broken_kernels_get_a_sentence() {
        let (image, _) = image(gzip, false);
        let start = image.len();
        for (broken, words) in [
            (b"".to_vec(), "too short"),
            (b"text, not a kernel".to_vec(), "neither a bzImage nor an ELF file"),
            (image[..start - 10].to_vec(), "is truncated"),
            ([&image[..1024], &b"BZh"[..], &image[1027..]].concat(), "built with bzip2"),
            ([&image[..1024], &b"???"[..], &image[1027..]].concat(), "damaged, or of an unknown"),
            ([&image[..1060], &[0x55; 20][..], &image[1080..]].concat(), "damaged"),
        ] {
            let error = unpack(&broken).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
