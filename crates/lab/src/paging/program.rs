//! A static program of the user's, loaded as Linux does it, for a bare guest whose accesses are recorded.
//!
//! ```text
//! PROGRAM                                                             PROGRAM + BYTES
//!   | the file's segments | brk(2) up ->      <- mmap(2) down | stack, arguments |
//! ```
//! `vmtax-guest` carries out its system calls. A part of the program can be marked by SSC marks, as for Intel's SDE.

use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use object::elf::{EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PF_X, PT_INTERP, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSymbol, SymbolKind};
use vmtax_durable::read_small;
use vmtax_guest::layout::{self, PROGRAM};
use vmtax_guest::order::UserProgram;

use crate::Error;
use crate::program::{MOST_FILE, MOST_LOADED};

/// Bytes of its memory.
pub(crate) const BYTES: u32 = 64 << 20;
const END: u64 = PROGRAM + BYTES as u64;
/// Bytes of its stack, with its arguments.
const STACK: u64 = 8 << 20;
const ARGUMENTS_MOST: usize = 64 << 10;
const PAGE: u64 = 4096;
/// An SSC mark: `MOV EBX, number; FS ADDR32 NOP`.
const MARK: usize = 8;

/// A program that can run.
#[derive(Debug)]
pub struct SimulatedProgram {
    pub(crate) program: UserProgram,
    /// What its addresses are larger than in its file.
    moved: u64,
    functions: Vec<Function>,
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
    Program(&'a SimulatedProgram),
}

impl RecordedCode<'_> {
    /// Whether an instruction is of it.
    pub(crate) fn has(self, address: u64) -> bool {
        self.bytes(address).is_some()
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
            RecordedCode::Program(program) => program.moved,
        })
    }

    /// The function, and where in it: `multiply+0x12 `.
    pub(crate) fn function(self, address: u64) -> Option<String> {
        let RecordedCode::Program(program) = self else { return None };
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
            RecordedCode::Program(program) => {
                let of = |(at, bytes): &'_ (u32, Vec<u8>)| {
                    let offset = address.checked_sub(u64::from(*at))?;
                    (offset < bytes.len() as u64).then_some(offset as usize)
                };
                let pieces = program.program.pieces.iter();
                pieces.filter_map(|piece| piece.1.get(of(piece)?..)).next()
            }
        }
    }
}

impl SimulatedProgram {
    /// Reads a program. The first word is its path, the others are its arguments.
    ///
    /// # Errors
    /// When it cannot be read, is no static program of x86-64, or does not fit.
    pub fn read(words: &[String]) -> Result<SimulatedProgram, Error> {
        let path = Path::new(words.first().map_or("", String::as_str));
        let problem = |problem: String| Error::Program { path: path.to_owned(), problem };
        let bytes = read_small(path, MOST_FILE).map_err(Error::io(path, "read the program"))?;
        loaded(&bytes, words).map_err(problem)
    }
}

fn loaded(bytes: &[u8], words: &[String]) -> Result<SimulatedProgram, String> {
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
    let moved = if kind == ET_DYN { PROGRAM } else { 0 };
    let heap_end = END - STACK;
    let (mut pieces, mut end, mut headers) = (Vec::new(), PROGRAM, 0);
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let from = segment.p_vaddr(endian).wrapping_add(moved);
        let to = from.checked_add(segment.p_memsz(endian));
        let Some(to) = to.filter(|to| from >= PROGRAM && *to <= heap_end) else {
            return Err(format!(
                "has a segment at {from:#x}, and programs are loaded from {PROGRAM:#x} to {heap_end:#x}; link it with -static-pie"
            ));
        };
        let data = segment.data(endian, bytes).map_err(|()| "is cut off".to_owned())?;
        let used = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if segment.p_flags(endian).0 & PF_X.0 != 0 {
            check_marks(data, from)?;
        }
        if segment.p_offset(endian) == 0 {
            headers = from + header.e_phoff(endian);
        }
        pieces.push((from as u32, data[..used].to_vec()));
        end = end.max(to);
    }
    if pieces.is_empty() {
        return Err("has nothing to load".to_owned());
    }
    let size: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
    if size > MOST_LOADED {
        return Err(format!("has {size} bytes to load, and at most {MOST_LOADED} can be loaded"));
    }
    let entry = header.e_entry(endian).wrapping_add(moved);
    let auxiliary = [
        (3, headers),
        (4, u64::from(header.e_phentsize(endian))),
        (5, u64::from(header.e_phnum(endian))),
        (6, PAGE),
        (9, entry),
    ];
    let (stack, top) = stack(words, &auxiliary)?;
    pieces.push((stack, top));
    let heap = (end.next_multiple_of(PAGE) as u32, heap_end as u32);
    let program = UserProgram { pieces, entry: entry as u32, stack, heap };
    Ok(SimulatedProgram { program, moved, functions: functions(bytes, moved) })
}

/// The recorder looks at the bytes before a mark's second instruction, as far as they are in its page.
fn check_marks(code: &[u8], from: u64) -> Result<(), String> {
    let is_mark = |bytes: &[u8]| {
        matches!(
            bytes,
            [0xbb, 0x11, 0x01, 0, 0, 0x64, 0x67, 0x90] | [0xbb, 0x22, 0x02, 0, 0, 0x64, 0x67, 0x90]
        )
    };
    let marks = code.windows(MARK).enumerate().filter(|(_, bytes)| is_mark(bytes));
    let crosses = |at: u64| at % PAGE + MARK as u64 > PAGE;
    match { marks }.map(|(at, _)| from + at as u64).find(|at| crosses(*at)) {
        Some(at) => {
            Err(format!("has a mark at {at:#x}, which lies in two pages; move it by 8 bytes"))
        }
        None => Ok(()),
    }
}

/// The stack pointer at the start, and what is there: arguments, no environment, the auxiliary vector (System V ABI, AMD64, 3.4.1), and their strings.
fn stack(words: &[String], auxiliary: &[(u64, u64)]) -> Result<(u32, Vec<u8>), String> {
    let length: usize = words.iter().map(|word| word.len() + 1).sum();
    if length > ARGUMENTS_MOST {
        return Err(format!("gets {length} bytes of arguments, and at most {ARGUMENTS_MOST} fit"));
    }
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
    Ok((pointer as u32, bytes))
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
