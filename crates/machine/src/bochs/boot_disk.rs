//! The disk that Bochs boots from: a loader for exactly one kernel, which spares the machine a boot
//! menu, slow reads through the BIOS, and the kernel's own unpacking.
//!
//! ```text
//! BIOS loads sector 0 to 0x7c00; it loads the sectors behind it to 0x7e00
//!   16 bit  0x7e00  asks the BIOS for the memory map, opens the gate of address line 20
//!   32 bit  0x8000  copies the pieces of the disk to their places in memory, by programmed I/O
//!   64 bit  0x8400  jumps to the kernel, as the 64-bit boot protocol of boot.rst wants it
//!           0x8600  descriptor table
//!           0x8800  the list of pieces
//!          0x10000  memory map as the BIOS gives it
//!          0x20000  boot parameters ("zero page"), behind them the command line
//!          0x30000  page tables that map the first 4 GiB to themselves
//! ```

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::Error;
use crate::mailbox::memory;

const SECTOR: u64 = 512;
/// Sectors that the drive hands out at once, the most that Bochs's has.
const BLOCK: u32 = 16;
const LOADER_AT: u64 = 0x7e00;
const PROTECTED_AT: u64 = 0x8000;
const LONG_AT: u64 = 0x8400;
const DESCRIPTORS_AT: u64 = 0x8600;
const PIECES_AT: u64 = 0x8800;
const LOADER_END: u64 = 0x9000;
const MAP_AT: u64 = 0x1_0000;
const PARAMETERS_AT: u64 = 0x2_0000;
const COMMAND_LINE_AT: u64 = 0x2_1000;
const PAGE_TABLES_AT: u64 = 0x3_0000;
/// The kernel's COMMAND_LINE_SIZE, with the zero.
const COMMAND_LINE_MAX: usize = 2048;

/// A disk and its geometry for Bochs.
pub(crate) struct BootDisk {
    pub(crate) file: File,
    pub(crate) cylinders: u64,
}

/// What is on the disk.
pub(crate) struct BootContent<'a> {
    pub(crate) vmlinux: &'a Path,
    pub(crate) initramfs: &'a [u8],
    pub(crate) command_line: &'a str,
    pub(crate) memory_mib: u32,
}

/// Something that is to be in memory when the kernel starts.
struct BootPiece {
    address: u64,
    bytes: Vec<u8>,
    /// Bytes of zeros behind it.
    zeros: u64,
}

impl BootDisk {
    pub(crate) fn build(content: &BootContent<'_>) -> Result<BootDisk, Error> {
        let problem = |problem: String| Error::Kernel { path: content.vmlinux.to_owned(), problem };
        let elf =
            fs::read(content.vmlinux).map_err(Error::io(content.vmlinux, "read the kernel"))?;
        let (entry, mut pieces) =
            segments(&elf).map_err(|e| problem(format!("this is no sound ELF file ({e})")))?;
        let end = pieces.iter().map(|p| p.address + p.bytes.len() as u64 + p.zeros).max();
        // The BIOS keeps its tables at the top of the memory.
        let top = (u64::from(content.memory_mib) << 20) - (1 << 20);
        let initramfs_at = top.saturating_sub(content.initramfs.len() as u64) & !0xfff;
        if end.is_none_or(|end| end > initramfs_at) || top > 3 << 30 {
            return Err(problem(format!(
                "{} MiB of memory do not do for this kernel and its initramfs on Bochs; give from 256 to 3072",
                content.memory_mib
            )));
        }
        if content.command_line.len() >= COMMAND_LINE_MAX {
            return Err(problem("the command line is longer than 2047 bytes".to_owned()));
        }
        pieces.push(BootPiece::at(initramfs_at, content.initramfs));
        pieces.push(BootPiece::at(PARAMETERS_AT, &parameters(content, initramfs_at)));
        pieces
            .push(BootPiece::at(COMMAND_LINE_AT, format!("{}\0", content.command_line).as_bytes()));
        pieces
            .push(BootPiece::at(PAGE_TABLES_AT, &vmtax_page_tables::identity_map(PAGE_TABLES_AT)));
        let loader =
            |list: &[u8]| loader(entry, list).map_err(|e| problem(format!("no loader: {e}")));
        let disk = lay_out(&pieces, loader)?;
        let name = Path::new("the boot disk");
        let file = memory("vmtax-boot").map_err(Error::os(name, "get memory"))?;
        let cylinders = (disk.len() as u64).div_ceil(16 * 63 * SECTOR) + 1;
        file.write_all_at(&disk, 0)
            .and_then(|()| file.set_len(cylinders * 16 * 63 * SECTOR))
            .map_err(Error::io(name, "write"))?;
        Ok(BootDisk { file, cylinders })
    }
}

impl BootPiece {
    fn at(address: u64, bytes: &[u8]) -> BootPiece {
        BootPiece { address, bytes: bytes.to_vec(), zeros: 0 }
    }
}

/// The kernel's entry and its segments, without the zeros that end them.
fn segments(elf: &[u8]) -> object::read::Result<(u64, Vec<BootPiece>)> {
    let header = FileHeader64::<LittleEndian>::parse(elf)?;
    let endian = header.endian()?;
    let mut pieces = Vec::new();
    for segment in header.program_headers(endian, elf)? {
        if segment.p_type(endian) != PT_LOAD {
            continue;
        }
        let bytes = segment.data(endian, elf).unwrap_or_default();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        // The loader moves sectors and clears double words.
        let used = used.next_multiple_of(SECTOR as usize).min(bytes.len());
        let zeros = segment.p_memsz(endian).saturating_sub(used as u64);
        let address = segment.p_paddr(endian);
        pieces.push(BootPiece { address, bytes: bytes[..used].to_vec(), zeros });
    }
    Ok((header.e_entry(endian), pieces))
}

/// Sectors of the disk: the boot sector, the loader with its list of pieces, the pieces.
fn lay_out(
    pieces: &[BootPiece],
    loader: impl Fn(&[u8]) -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, Error> {
    let mut list = Vec::new();
    let mut at = 1 + (LOADER_END - LOADER_AT) / SECTOR;
    for piece in pieces {
        let sectors = (piece.bytes.len() as u64).div_ceil(SECTOR);
        for word in [at, sectors, piece.address, piece.zeros.div_ceil(4)] {
            // All of it is below 4 GiB, as `build` has checked.
            list.extend((word as u32).to_le_bytes());
        }
        at += sectors;
    }
    let mut disk = loader(&list)?;
    for piece in pieces {
        disk.extend(&piece.bytes);
        disk.resize(disk.len().next_multiple_of(SECTOR as usize), 0);
    }
    Ok(disk)
}

/// The boot parameters but for the memory map, which the loader fills in.
fn parameters(content: &BootContent<'_>, initramfs_at: u64) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1fe, &0xaa55u16.to_le_bytes());
    put(0x202, b"HdrS");
    put(0x206, &0x020cu16.to_le_bytes());
    // type_of_loader: one that has no number.
    put(0x210, &[0xff]);
    // loadflags: the kernel is loaded high.
    put(0x211, &[1]);
    put(0x218, &(initramfs_at as u32).to_le_bytes());
    put(0x21c, &(content.initramfs.len() as u32).to_le_bytes());
    put(0x228, &(COMMAND_LINE_AT as u32).to_le_bytes());
    put(0x230, &0x20_0000u32.to_le_bytes());
    put(0x238, &(COMMAND_LINE_MAX as u32 - 1).to_le_bytes());
    page
}

/// The boot sector and all that it loads.
fn loader(entry: u64, list: &[u8]) -> Result<Vec<u8>, IcedError> {
    let mut out = boot_sector()?;
    let mut put = |at: u64, bytes: &[u8]| {
        out.resize((at - LOADER_AT + SECTOR) as usize, 0);
        out.extend(bytes);
    };
    put(LOADER_AT, &real_mode()?);
    put(PROTECTED_AT, &protected_mode()?);
    put(LONG_AT, &long_mode(entry)?);
    put(DESCRIPTORS_AT, &descriptors());
    put(PIECES_AT, list);
    put(LOADER_END, &[]);
    Ok(out)
}

/// Null, null, 64-bit code, data, 32-bit code, as the boot protocol numbers the first two of use; then
/// the pointer to the table.
fn descriptors() -> Vec<u8> {
    let table: [u64; 5] =
        [0, 0, 0x00af_9a00_0000_ffff, 0x00cf_9200_0000_ffff, 0x00cf_9a00_0000_ffff];
    let mut bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    bytes.extend(39u16.to_le_bytes());
    bytes.extend((DESCRIPTORS_AT as u32).to_le_bytes());
    bytes
}

/// Loads the rest of the loader by int 13h, function 42h.
fn boot_sector() -> Result<Vec<u8>, IcedError> {
    const PACKET_AT: u16 = 0x7d00;
    let mut a = CodeAssembler::new(16)?;
    a.cli()?;
    a.xor(ax, ax)?;
    a.mov(ds, ax)?;
    a.mov(es, ax)?;
    a.mov(ss, ax)?;
    a.mov(sp, 0x7c00)?;
    a.mov(si, u32::from(PACKET_AT))?;
    a.mov(ah, 0x42)?;
    a.int(0x13)?;
    a.mov(ax, LOADER_AT as u32)?;
    a.jmp(ax)?;
    let mut sector = a.assemble(0x7c00)?;
    sector.resize(0x100, 0);
    // Size of the packet, sectors, offset and segment of the buffer, first sector.
    for half in [16, ((LOADER_END - LOADER_AT) / SECTOR) as u16, LOADER_AT as u16, 0, 1, 0, 0, 0] {
        sector.extend(half.to_le_bytes());
    }
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    Ok(sector)
}

fn real_mode() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(16)?;
    let (mut next, mut done) = (a.create_label(), a.create_label());
    // The memory map: int 15h, e820h, 20 bytes an entry, at most 128 of them; bp counts.
    a.mov(ax, (MAP_AT >> 4) as u32)?;
    a.mov(es, ax)?;
    a.xor(di, di)?;
    a.xor(bp, bp)?;
    a.xor(ebx, ebx)?;
    a.set_label(&mut next)?;
    a.mov(eax, 0xe820)?;
    a.mov(ecx, 20)?;
    a.mov(edx, 0x534d_4150)?;
    a.int(0x15)?;
    a.jc(done)?;
    a.add(di, 20)?;
    a.inc(bp)?;
    a.cmp(bp, 128)?;
    a.jae(done)?;
    a.test(ebx, ebx)?;
    a.jne(next)?;
    a.set_label(&mut done)?;
    // A20 by system control port A.
    a.in_(al, 0x92)?;
    a.or(al, 2)?;
    a.and(al, 0xfeu32 as i32)?;
    a.out(0x92, al)?;
    a.xor(ax, ax)?;
    a.mov(es, ax)?;
    // lgdt [table's pointer]; the far jump after the switch has no mnemonic here either.
    let pointer = (DESCRIPTORS_AT as u16 + 40).to_le_bytes();
    a.db(&[0x0f, 0x01, 0x16, pointer[0], pointer[1]])?;
    a.mov(eax, cr0)?;
    a.or(eax, 1)?;
    a.mov(cr0, eax)?;
    let target = (PROTECTED_AT as u16).to_le_bytes();
    a.db(&[0xea, target[0], target[1], 0x20, 0])?;
    a.assemble(LOADER_AT)
}

fn protected_mode() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(32)?;
    let (mut piece, mut command, mut short, mut block, mut whole, mut clear, mut loaded) = (
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
    );
    a.mov(eax, 0x18)?;
    a.mov(ds, ax)?;
    a.mov(es, ax)?;
    a.mov(ss, ax)?;
    a.mov(esp, 0x7c00)?;
    a.cld()?;
    // Interrupts of the drive off.
    out_byte(&mut a, 0x3f6, 2)?;
    // SET MULTIPLE MODE: Bochs lets 10 microseconds pass for every block, most of the time a block of one.
    wait_for(&mut a, 0x80, 0)?;
    out_byte(&mut a, 0x1f6, 0xe0)?;
    out_byte(&mut a, 0x1f2, BLOCK)?;
    out_byte(&mut a, 0x1f7, 0xc6)?;
    a.push(ebp)?;
    // esi: the piece; ebx: next sector on the disk; ebp: sectors left; edi: where they go.
    a.mov(esi, PIECES_AT as u32)?;
    a.set_label(&mut piece)?;
    a.mov(ebx, dword_ptr(esi))?;
    a.mov(ebp, dword_ptr(esi + 4))?;
    a.mov(edi, dword_ptr(esi + 8))?;
    a.test(edi, edi)?;
    a.je(loaded)?;
    a.set_label(&mut command)?;
    a.test(ebp, ebp)?;
    a.je(clear)?;
    // One command reads up to 240 sectors; ecx counts them.
    a.mov(ecx, 15 * BLOCK)?;
    a.cmp(ebp, ecx)?;
    a.jae(short)?;
    a.mov(ecx, ebp)?;
    a.set_label(&mut short)?;
    a.sub(ebp, ecx)?;
    wait_for(&mut a, 0x80, 0)?;
    a.mov(edx, 0x1f2)?;
    a.mov(al, cl)?;
    a.out(dx, al)?;
    a.mov(eax, ebx)?;
    for port in [0x1f3, 0x1f4, 0x1f5] {
        a.mov(edx, port)?;
        a.out(dx, al)?;
        a.shr(eax, 8)?;
    }
    a.or(al, 0xe0u32 as i32)?;
    a.mov(edx, 0x1f6)?;
    a.out(dx, al)?;
    // READ MULTIPLE
    out_byte(&mut a, 0x1f7, 0xc4)?;
    a.add(ebx, ecx)?;
    a.set_label(&mut block)?;
    wait_for(&mut a, 0x88, 0x08)?;
    // eax: sectors of this block; ecx: those behind it.
    a.mov(eax, BLOCK)?;
    a.cmp(ecx, eax)?;
    a.jae(whole)?;
    a.mov(eax, ecx)?;
    a.set_label(&mut whole)?;
    a.sub(ecx, eax)?;
    a.push(ecx)?;
    a.mov(ecx, eax)?;
    a.shl(ecx, 8)?;
    a.mov(edx, 0x1f0)?;
    a.rep().insw()?;
    a.pop(ecx)?;
    a.test(ecx, ecx)?;
    a.jne(block)?;
    a.jmp(command)?;
    a.set_label(&mut clear)?;
    a.mov(ecx, dword_ptr(esi + 12))?;
    a.xor(eax, eax)?;
    a.rep().stosd()?;
    a.add(esi, 16)?;
    a.jmp(piece)?;

    a.set_label(&mut loaded)?;
    // The memory map into the boot parameters.
    a.pop(eax)?;
    a.and(eax, 0xff)?;
    a.mov(byte_ptr(PARAMETERS_AT as u32 + 0x1e8), al)?;
    a.imul_3(ecx, eax, 20)?;
    a.mov(esi, MAP_AT as u32)?;
    a.mov(edi, PARAMETERS_AT as u32 + 0x2d0)?;
    a.rep().movsb()?;
    // Long mode: PAE, page tables, EFER.LME, paging.
    a.mov(eax, cr4)?;
    a.or(eax, 0x20)?;
    a.mov(cr4, eax)?;
    a.mov(eax, PAGE_TABLES_AT as u32)?;
    a.mov(cr3, eax)?;
    a.mov(ecx, 0xc000_0080u32)?;
    a.rdmsr()?;
    a.or(eax, 0x100)?;
    a.wrmsr()?;
    a.mov(eax, cr0)?;
    a.or(eax, 0x8000_0000u32 as i32)?;
    a.mov(cr0, eax)?;
    let target = (LONG_AT as u32).to_le_bytes();
    a.db(&[0xea, target[0], target[1], target[2], target[3], 0x10, 0])?;
    a.assemble(PROTECTED_AT)
}

fn out_byte(a: &mut CodeAssembler, port: u32, value: u32) -> Result<(), IcedError> {
    a.mov(edx, port)?;
    a.mov(al, value)?;
    a.out(dx, al)
}

/// Waits until the drive's status, masked, has this value.
fn wait_for(a: &mut CodeAssembler, mask: u32, value: u32) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(edx, 0x1f7)?;
    a.set_label(&mut again)?;
    a.in_(al, dx)?;
    a.and(al, mask)?;
    a.cmp(al, value)?;
    a.jne(again)
}

fn long_mode(entry: u64) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.mov(eax, 0x18)?;
    a.mov(ds, ax)?;
    a.mov(es, ax)?;
    a.mov(ss, ax)?;
    a.mov(rsi, PARAMETERS_AT)?;
    a.mov(rax, entry)?;
    a.jmp(rax)?;
    a.assemble(LONG_AT)
}
