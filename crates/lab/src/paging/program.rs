//! A static program of the user's whose accesses are recorded: loaded as Linux does it, for a bare guest, or as a file for a Linux guest.
//!
//! ```text
//! PROGRAM                                                             PROGRAM + BYTES
//!   | the file's segments | brk(2) up ->      <- mmap(2) down | stack, arguments |
//! ```
//! `vmtax-guest` carries out its system calls in a bare guest, whose memory this is. A part of the program can be marked by SSC marks, as for Intel's SDE.

use std::ops::Range;
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use object::elf::{
    DF_1_PIE, DT_FLAGS_1, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PF_X, PT_INTERP, PT_LOAD,
    ProgramHeader64,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSymbol, SymbolKind};
use vmtax_durable::read_small;
use vmtax_guest::layout::{self, PROGRAM};
use vmtax_guest::order::{RecordedProgram, UserProcess, UserProgram};

use crate::Error;
use crate::program::{MOST_FILE, MOST_LOADED};

/// Bytes of its memory.
pub(crate) const BYTES: u32 = 64 << 20;
const END: u64 = PROGRAM + BYTES as u64;
/// Bytes of its stack, with its arguments.
const STACK: u64 = 8 << 20;
const ARGUMENTS_MOST: usize = 64 << 10;
const PAGE: u64 = 4096;
/// Where Linux ends the addresses of programs.
const LINUX_END: u64 = 1 << 47;
/// An SSC mark: `MOV EBX, number; FS ADDR32 NOP`.
const MARK: usize = 8;

/// A program that can run.
#[derive(Debug)]
pub struct SimulatedProgram {
    /// For the guest.
    pub(crate) ordered: RecordedProgram,
    /// What its memory holds at the start: addresses and bytes. All else is 0.
    pieces: Vec<(u64, Vec<u8>)>,
    /// The address of its first instruction.
    entry: u64,
    /// What these addresses are larger than in its file.
    moved: u64,
    functions: Vec<Function>,
    /// Its command, and a checksum of its file.
    pub(crate) name: String,
}

/// What runs a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramGuest {
    /// A bare guest, in which nothing else runs.
    #[default]
    Bare,
    /// A Linux guest.
    Linux,
}

#[derive(Debug)]
struct Function {
    start: u64,
    bytes: u64,
    name: String,
}

/// Code whose instructions were recorded.
#[derive(Clone, Copy)]
pub(crate) enum RecordedCode<'a> {
    /// Machine code at [`layout::CODE`].
    Payload(&'a [u8]),
    /// A program that was loaded so far behind the addresses that it has here.
    Program(&'a SimulatedProgram, u64),
}

impl<'a> RecordedCode<'a> {
    /// A program whose first instruction had this address, if that is known.
    pub(crate) fn of_program(
        program: &'a SimulatedProgram,
        start: Option<u64>,
    ) -> RecordedCode<'a> {
        let behind = start.map_or(0, |start| start.wrapping_sub(program.entry));
        RecordedCode::Program(program, behind)
    }

    /// Whether an instruction is of it; those that a program has made itself are.
    pub(crate) fn has(self, address: u64) -> bool {
        match self {
            RecordedCode::Payload(_) => self.bytes(address).is_some(),
            RecordedCode::Program(program, _) => match program.ordered {
                RecordedProgram::Bare(_) => (PROGRAM..layout::PROGRAM_END).contains(&address),
                RecordedProgram::Process(_) => true,
            },
        }
    }

    /// The instruction at an address.
    pub(crate) fn instruction(self, address: u64) -> Option<Instruction> {
        let instruction = Decoder::new(64, self.bytes(address)?, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Where an instruction is: in the code of a payload, in the file of a program.
    pub(crate) fn place(self, address: u64) -> u64 {
        address.wrapping_sub(match self {
            RecordedCode::Payload(_) => layout::CODE,
            RecordedCode::Program(program, behind) => program.moved.wrapping_add(behind),
        })
    }

    /// The function, and where in it: `multiply+0x12 `.
    pub(crate) fn function(self, address: u64) -> Option<String> {
        let RecordedCode::Program(program, behind) = self else { return None };
        let address = address.wrapping_sub(behind);
        let after = program.functions.partition_point(|one| one.start <= address);
        let function = program.functions.get(after.checked_sub(1)?)?;
        let offset = address - function.start;
        (offset < function.bytes).then(|| format!("{}+{offset:#x} ", function.name))
    }

    fn bytes(&self, address: u64) -> Option<&[u8]> {
        match self {
            RecordedCode::Payload(code) => {
                code.get(usize::try_from(address.checked_sub(layout::CODE)?).ok()?..)
            }
            RecordedCode::Program(program, behind) => {
                let address = address.wrapping_sub(*behind);
                let of = |(at, bytes): &'_ (u64, Vec<u8>)| {
                    let offset = address.checked_sub(*at)?;
                    (offset < bytes.len() as u64).then_some(offset as usize)
                };
                let pieces = program.pieces.iter();
                // Later ones are written over earlier ones.
                pieces.rev().filter_map(|piece| piece.1.get(of(piece)?..)).next()
            }
        }
    }
}

impl SimulatedProgram {
    /// Reads a program. The first word is its path, the others are its arguments.
    ///
    /// # Errors
    /// When it cannot be read, is no static program of x86-64, or does not fit.
    pub fn read(words: &[String], guest: ProgramGuest) -> Result<SimulatedProgram, Error> {
        let path = Path::new(words.first().map_or("", String::as_str));
        let problem = |problem: String| Error::Program { path: path.to_owned(), problem };
        let bytes = read_small(path, MOST_FILE).map_err(Error::io(path, "read the program"))?;
        let program = loaded(&bytes, words, guest).map_err(problem)?;
        let checksum = crc32fast::hash(&bytes);
        Ok(SimulatedProgram {
            name: format!("{} (CRC-32 {checksum:08x})", words.join(" ")),
            ..program
        })
    }
}

fn loaded(bytes: &[u8], words: &[String], guest: ProgramGuest) -> Result<SimulatedProgram, String> {
    let length: usize = words.iter().map(|word| word.len() + 1).sum();
    if length > ARGUMENTS_MOST {
        return Err(format!("gets {length} bytes of arguments, and at most {ARGUMENTS_MOST} fit"));
    }
    match guest {
        ProgramGuest::Bare => for_bare_guest(bytes, words),
        ProgramGuest::Linux => for_linux(bytes, words),
    }
}

fn for_bare_guest(bytes: &[u8], words: &[String]) -> Result<SimulatedProgram, String> {
    let heap_end = END - STACK;
    let Segments { mut pieces, entry, end, moved, headers: (at, size, number), .. } =
        Segments::of(bytes, PROGRAM..heap_end, PROGRAM)?;
    let auxiliary = [(3, at), (4, size), (5, number), (6, PAGE), (9, entry)];
    let (stack, top) = stack(words, &auxiliary);
    pieces.push((stack.into(), top));
    let heap = (end.next_multiple_of(PAGE) as u32, heap_end as u32);
    let of_guest = pieces.iter().map(|(at, bytes)| (*at as u32, bytes.clone())).collect();
    let program = UserProgram { pieces: of_guest, entry: entry as u32, stack, heap };
    Ok(SimulatedProgram {
        ordered: RecordedProgram::Bare(program),
        pieces,
        entry,
        moved,
        functions: functions(bytes, moved),
        name: String::new(),
    })
}

/// Its kernel loads what it needs of the file: names of functions are not among that.
fn for_linux(bytes: &[u8], words: &[String]) -> Result<SimulatedProgram, String> {
    let Segments { pieces, entry, in_file, .. } = Segments::of(bytes, 0..LINUX_END, 0)?;
    if in_file > MOST_LOADED {
        return Err(format!("has more than {MOST_LOADED} bytes to load"));
    }
    let mut file = bytes.get(..in_file).ok_or("is cut off")?.to_vec();
    // Headers of sections: where they are, and how many.
    for field in [40..48, 60..62, 62..64] {
        file.get_mut(field).ok_or("is cut off")?.fill(0);
    }
    Ok(SimulatedProgram {
        ordered: RecordedProgram::Process(UserProcess { file, words: words.to_vec() }),
        pieces,
        entry,
        moved: 0,
        functions: functions(bytes, 0),
        name: String::new(),
    })
}

/// The segments of a static program.
struct Segments {
    /// Addresses and bytes.
    pieces: Vec<(u64, Vec<u8>)>,
    entry: u64,
    /// The end of its memory.
    end: u64,
    /// What addresses are larger than in the file.
    moved: u64,
    /// Program headers: their address, the size of one, their number.
    headers: (u64, u64, u64),
    /// Bytes of the file up to the end of the last segment.
    in_file: usize,
}

impl Segments {
    /// Those that are within some room. What can be loaded anywhere is loaded from `base` on.
    fn of(bytes: &[u8], room: Range<u64>, base: u64) -> Result<Segments, String> {
        let endian = LittleEndian;
        let no_program = |_| "is no program of x86-64 (a 64-bit ELF file)".to_owned();
        let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(no_program)?;
        let segments = header.program_headers(endian, bytes).map_err(no_program)?;
        let kind = header.e_type(endian);
        if header.e_machine(endian) != EM_X86_64 || !matches!(kind, ET_EXEC | ET_DYN) {
            return Err("is no program of x86-64 (a 64-bit ELF file)".to_owned());
        }
        if segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP) {
            return Err("is linked dynamically; link it with -static".to_owned());
        }
        if kind == ET_DYN && is_library(segments, bytes) {
            return Err("is a shared library, and no program".to_owned());
        }
        let moved = if kind == ET_DYN { base } else { 0 };
        let entry = header.e_entry(endian).wrapping_add(moved);
        let (mut pieces, mut end, mut headers) = (Vec::new(), room.start, 0);
        let all_headers =
            usize::from(header.e_phentsize(endian)) * usize::from(header.e_phnum(endian));
        let headers_end = (header.e_phoff(endian) as usize).saturating_add(all_headers);
        let (mut size, mut in_file, mut has_entry) = (0, headers_end, false);
        for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
            let from = segment.p_vaddr(endian).wrapping_add(moved);
            let to = from.checked_add(segment.p_memsz(endian));
            let Some(to) = to.filter(|to| from >= room.start && *to <= room.end) else {
                return Err(format!(
                    "has a segment at {from:#x}, and programs are loaded from {:#x} to {:#x}; link it with -static-pie",
                    room.start, room.end
                ));
            };
            if segment.p_filesz(endian) > segment.p_memsz(endian) {
                return Err(format!("has a segment at {from:#x} with more bytes than memory"));
            }
            let data = segment.data(endian, bytes).map_err(|()| "is cut off".to_owned())?;
            let used = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            size += used;
            if size > MOST_LOADED {
                return Err(format!("has more than {MOST_LOADED} bytes to load"));
            }
            if segment.p_flags(endian).0 & PF_X.0 != 0 {
                check_marks(&data[..used], from)?;
                has_entry |= (from..to).contains(&entry);
            }
            if segment.p_offset(endian) == 0 {
                headers = from + header.e_phoff(endian);
            }
            if !data.is_empty() {
                in_file = in_file.max(segment.p_offset(endian) as usize + data.len());
            }
            pieces.push((from, data[..used].to_vec()));
            end = end.max(to);
        }
        if pieces.is_empty() {
            return Err("has nothing to load".to_owned());
        }
        if !has_entry {
            return Err(format!("starts at {entry:#x}, where it has no code"));
        }
        let headers = (headers, header.e_phentsize(endian).into(), header.e_phnum(endian).into());
        Ok(Segments { pieces, entry, end, moved, headers, in_file })
    }
}

/// Linkers set DF_1_PIE in programs that can be loaded anywhere, and not in libraries.
fn is_library(segments: &[ProgramHeader64<LittleEndian>], bytes: &[u8]) -> bool {
    let endian = LittleEndian;
    let tables = segments.iter().filter_map(|one| one.dynamic(endian, bytes).ok().flatten());
    let is_pie = |one: &object::elf::Dyn64<LittleEndian>| {
        one.tag(endian) == DT_FLAGS_1 && one.val(endian) & DF_1_PIE.0 != 0
    };
    { tables }.any(|table| !table.iter().any(is_pie))
}

/// The recorder looks at the 8 bytes before a mark's second instruction, if they are in its page.
fn check_marks(code: &[u8], from: u64) -> Result<(), String> {
    let is_mark = |bytes: &[u8]| {
        matches!(
            bytes,
            [0xbb, 0x11, 0x01, 0, 0, 0x64, 0x67, 0x90] | [0xbb, 0x22, 0x02, 0, 0, 0x64, 0x67, 0x90]
        )
    };
    let marks = code.windows(MARK).enumerate().filter(|(_, bytes)| is_mark(bytes));
    // Its second instruction is its last 3 bytes.
    let is_missed = |at: u64| at % PAGE < 3 || at % PAGE + MARK as u64 > PAGE;
    match { marks }.map(|(at, _)| from + at as u64).find(|at| is_missed(*at)) {
        Some(at) => Err(format!(
            "has a mark at {at:#x}, too near to where a page begins; move it by 16 bytes"
        )),
        None => Ok(()),
    }
}

/// The stack pointer at the start, and what is there: arguments, no environment, the auxiliary vector (System V ABI, AMD64, 3.4.1), and their strings.
fn stack(words: &[String], auxiliary: &[(u64, u64)]) -> (u32, Vec<u8>) {
    // AT_RANDOM's 16 bytes, which are the same in each run.
    let (mut strings, mut offsets) = (vec![0x5a_u8; 16], Vec::new());
    for word in words {
        offsets.push(strings.len() as u64);
        strings.extend_from_slice(word.as_bytes());
        strings.push(0);
    }
    let at = (END - strings.len() as u64) / 16 * 16;
    let mut values = vec![words.len() as u64];
    values.extend(offsets.iter().map(|offset| at + offset));
    // Ends of arguments and of the environment.
    values.extend([0, 0]);
    // AT_RANDOM, AT_SECURE, AT_NULL.
    let rest = [(25, at), (23, 0), (0, 0)];
    values.extend(auxiliary.iter().chain(&rest).flat_map(|(kind, value)| [*kind, *value]));
    let pointer = (at - 8 * values.len() as u64) / 16 * 16;
    let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes.resize((at - pointer) as usize, 0);
    bytes.extend(strings);
    (pointer as u32, bytes)
}

#[cfg(feature = "fuzz")]
pub(super) fn check(bytes: &[u8]) {
    for guest in [ProgramGuest::Bare, ProgramGuest::Linux] {
        let loaded = loaded(bytes, &["program".to_owned()], guest);
        match loaded.map(|loaded| loaded.ordered) {
            Ok(RecordedProgram::Bare(program)) => {
                for (at, bytes) in &program.pieces {
                    let (from, to) = (u64::from(*at), u64::from(*at) + bytes.len() as u64);
                    assert!(from >= PROGRAM && to <= END, "{from:#x} to {to:#x}");
                }
            }
            Ok(RecordedProgram::Process(process)) => assert!(process.file.len() <= MOST_LOADED),
            Err(problem) => assert!(!problem.is_empty()),
        }
    }
}

/// Functions with a size, by address.
fn functions(bytes: &[u8], moved: u64) -> Vec<Function> {
    let Ok(file) = object::File::parse(bytes) else { return Vec::new() };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '@');
    let mut functions: Vec<Function> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| name.chars().all(plain))?.to_owned();
            let start = symbol.address().wrapping_add(moved);
            Some(Function { start, bytes: symbol.size(), name })
        })
        .collect();
    functions.sort_by_key(|function| function.start);
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment: its flags, and what the file says of it.
    #[derive(Clone, Copy)]
    struct Segment {
        flags: u32,
        offset: u64,
        address: u64,
        in_file: u64,
        in_memory: u64,
    }

    const CODE: Segment =
        Segment { flags: 5, offset: 0, address: 0x40_0000, in_file: 0x100, in_memory: 0x100 };
    const ENTRY: u64 = 0x40_0040;

    /// An ELF file with these PT_LOADs.
    fn elf(kind: u16, entry: u64, segments: &[Segment]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend([kind, 62].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([entry, 64, 0].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(0_u32.to_le_bytes());
        let sizes = [64, 56, segments.len() as u16, 64, 0, 0];
        bytes.extend(sizes.into_iter().flat_map(u16::to_le_bytes));
        for one in segments {
            bytes.extend([1, one.flags].into_iter().flat_map(u32::to_le_bytes));
            let words = [one.offset, one.address, one.address, one.in_file, one.in_memory, 0x1000];
            bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
        }
        bytes.resize(bytes.len().max(0x1000), 0x90);
        bytes
    }

    fn of_bare(bytes: &[u8]) -> Result<(SimulatedProgram, UserProgram), String> {
        let program = loaded(bytes, &["a".to_owned()], ProgramGuest::Bare)?;
        let RecordedProgram::Bare(ordered) = program.ordered.clone() else { unreachable!() };
        Ok((program, ordered))
    }

    fn refused(bytes: &[u8]) -> String {
        of_bare(bytes).map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_linux_guest_gets_what_its_kernel_loads() {
        let high = Segment { address: 0x5000_0000, ..CODE };
        let mut bytes = elf(2, 0x5000_0040, &[high]);
        bytes[40..48].fill(1);
        let of = |bytes: &[u8]| loaded(bytes, &["a".to_owned()], ProgramGuest::Linux);
        let found = of(&bytes).unwrap();
        let RecordedProgram::Process(process) = &found.ordered else { unreachable!() };
        assert_eq!(process.words, ["a"]);
        assert_eq!((process.file.len(), &process.file[..40]), (0x100, &bytes[..40]));
        assert_eq!(process.file[40..48], [0; 8]);
        assert_eq!(of(&bytes[..0x80]).map(|_| ()), Err("is cut off".to_owned()));
        // Where its kernel has loaded it is known by its first instruction.
        let moved = of(&elf(3, 0x1040, &[Segment { address: 0x1000, ..CODE }])).unwrap();
        let code = RecordedCode::of_program(&moved, Some(0x7fff_f7f0_1040));
        assert_eq!(code.place(0x7fff_f7f0_1044), 0x1044);
        assert_eq!(code.bytes(0x7fff_f7f0_1080).map(|bytes| bytes[0]), Some(0x90));
        assert_eq!(code.bytes(0x1080), None);
    }

    #[test]
    fn a_program_is_loaded_where_it_says() {
        let found = of_bare(&elf(2, ENTRY, &[CODE])).unwrap().1;
        assert_eq!((found.entry, found.pieces[0].0), (0x40_0040, 0x40_0000));
        assert_eq!(found.pieces.len(), 2);
        let moved = Segment { address: 0x1000, ..CODE };
        let found = of_bare(&elf(3, 0x1040, &[moved])).unwrap().1;
        assert_eq!((found.entry, found.pieces[0].0), (0x20_1040, 0x20_1000));
    }

    #[test]
    fn broken_files_are_refused() {
        let whole = elf(2, ENTRY, &[CODE]);
        for length in [0, 4, 63, 64, 64 + 55] {
            assert_eq!(refused(&whole[..length]), "is no program of x86-64 (a 64-bit ELF file)");
        }
        assert_eq!(refused(&whole[..0x80]), "is cut off");
        assert_eq!(refused(&elf(2, ENTRY, &[])), "has nothing to load");
        let of = |segment| refused(&elf(2, ENTRY, &[CODE, segment]));
        let larger = Segment { in_file: 0x101, ..CODE };
        assert_eq!(of(larger), "has a segment at 0x400000 with more bytes than memory");
        for (address, in_memory) in [(u64::MAX, 0), (u64::MAX, 0x100), (0x40_0000, u64::MAX)] {
            let said = of(Segment { address, in_memory, ..CODE });
            assert!(said.starts_with(&format!("has a segment at {address:#x}, and")), "{said}");
        }
    }

    #[test]
    fn a_program_starts_in_its_code() {
        let data = Segment { flags: 6, address: 0x50_0000, ..CODE };
        for entry in [0, 0x3f_ffff, 0x40_0100, 0x50_0000, ENTRY | 1 << 32, u64::MAX] {
            assert_eq!(
                refused(&elf(2, entry, &[CODE, data])),
                format!("starts at {entry:#x}, where it has no code")
            );
        }
    }

    #[test]
    fn bytes_that_many_segments_share_count_each_time() {
        let all = vec![Segment { in_file: 0x1000, in_memory: 0x1000, ..CODE }; 60_000];
        assert_eq!(refused(&elf(2, ENTRY, &all)), "has more than 4000000 bytes to load");
    }

    #[test]
    fn a_library_is_no_program() {
        let mut library = elf(3, 0x1040, &[Segment { address: 0x1000, ..CODE }; 2]);
        // The second is a dynamic table with one entry, behind the headers.
        let (table, at) = (64 + 56, 0x200_usize);
        library[table] = 2;
        library[table + 8..table + 16].copy_from_slice(&(at as u64).to_le_bytes());
        library[table + 32..table + 40].copy_from_slice(&16_u64.to_le_bytes());
        for (flags, is_library) in [(1, true), (0x0800_0001, false)] {
            let entry = [0x6fff_fffb_u64, flags].map(u64::to_le_bytes).concat();
            library[at..at + 16].copy_from_slice(&entry);
            let found = of_bare(&library).map(|_| ());
            let expected = Err("is a shared library, and no program".to_owned());
            assert_eq!(found, if is_library { expected } else { Ok(()) });
        }
    }

    #[test]
    fn marks_that_the_recorder_would_miss_are_refused() {
        for mark in
            [[0xbb, 0x11, 1, 0, 0, 0x64, 0x67, 0x90], [0xbb, 0x22, 2, 0, 0, 0x64, 0x67, 0x90]]
        {
            for (offset, is_seen) in
                [(0, false), (2, false), (3, true), (4088, true), (4089, false), (4096, false)]
            {
                let mut code = vec![0; 2 * PAGE as usize];
                code[offset..offset + MARK].copy_from_slice(&mark);
                assert_eq!(check_marks(&code, PROGRAM).is_ok(), is_seen, "{offset}");
            }
        }
        let code = [0xbb, 0x11, 1, 0, 0, 0x64, 0x67, 0x90];
        assert_eq!(
            check_marks(&code, 0x40_0001).unwrap_err(),
            "has a mark at 0x400001, too near to where a page begins; move it by 16 bytes"
        );
    }

    #[test]
    fn of_overlapping_pieces_the_last_counts() {
        let pieces = vec![(0x40_0000, vec![0x90, 0x90, 0xc3]), (0x40_0001, vec![0xf4])];
        let ordered = RecordedProgram::Bare(UserProgram::default());
        let (functions, name) = (Vec::new(), String::new());
        let program = SimulatedProgram { ordered, pieces, entry: 0, moved: 0, functions, name };
        let code = RecordedCode::of_program(&program, None);
        let first = |address: u64| code.bytes(address).map(|bytes| bytes[0]);
        assert_eq!([0, 1, 2].map(|at| first(0x40_0000 + at)), [0x90, 0xf4, 0xc3].map(Some));
        // Code that the program made.
        assert_eq!(first(0x50_0000), None);
        assert!(code.has(0x50_0000) && !code.has(layout::CODE) && !code.has(layout::PROGRAM_END));
    }
}
