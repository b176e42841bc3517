//! Source lines of code by address, from the line tables (DWARF) of a kernel and its modules.
//!
//! A file belongs to the kernel or module with its build id; any other is refused. Where the code is loaded is known from the functions of
//! both: a kernel is moved as a whole, and a module's file (relocatable) has sections that are loaded one by one.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gimli::{
    AttributeValue, DebugLine, DebugLineOffset, DebugLineStr, DebugStr, EndianSlice,
    LineProgramHeader, LittleEndian,
};
use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use object::read::{ReadCache, ReadRef};
use object::{
    CompressionFormat, Object, ObjectKind, ObjectSection, ObjectSymbol, RelocationTarget,
    SymbolKind,
};
use vmtax_events::CallKind;
use vmtax_guest::functions::{HostKernels, LoadedAddresses};

use super::symbols::LevelSymbols;
use crate::Error;

/// The number of no line.
pub(crate) const UNKNOWN: u32 = 0;

/// What is needed of a file with debug information.
pub(crate) struct DebugSource {
    path: PathBuf,
    build: Vec<u8>,
    /// A module's, whose sections have addresses of their own from 0.
    relocatable: bool,
    /// Name, section and address of its functions.
    functions: Vec<(String, usize, u64)>,
    line: Vec<u8>,
    /// Of `line`, if it is relocatable: where, how many bytes, relative to which section, and what.
    relocations: Vec<Relocation>,
    texts: [Vec<u8>; 2],
}

struct Relocation {
    at: usize,
    bytes: usize,
    section: Option<usize>,
    value: u64,
}

type SourceTexts<'a> = EndianSlice<'a, LittleEndian>;

impl DebugSource {
    /// Reads files.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Vec<DebugSource>, Error> {
        let open = |path: &PathBuf| {
            let file = File::open(path).map_err(Error::io(path, "open"))?;
            DebugSource::of_elf(path, &ReadCache::new(file))
                .map_err(|problem| Error::DebugInfo { path: path.clone(), problem })
        };
        paths.iter().map(open).collect()
    }

    fn of_elf<'a>(path: &Path, data: impl ReadRef<'a>) -> Result<DebugSource, String> {
        let file = object::File::parse(data)
            .map_err(|error| format!("no file with debug information: {error}"))?;
        let bad = |error: object::Error| format!("its debug information cannot be read: {error}");
        let build = file.build_id().map_err(bad)?.ok_or(
            "it has no build id, so nothing shows whether it belongs to the kernel that runs",
        )?;
        let relocatable = file.kind() == ObjectKind::Relocatable;
        let line = section(&file, ".debug_line")?.ok_or_else(|| {
            "it has no source lines (.debug_line); Debian has them in packages linux-image-RELEASE-dbg"
                .to_owned()
        })?;
        let symbols = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
        let functions = symbols.filter_map(|symbol| {
            let section = symbol.section_index()?.0;
            Some((symbol.name().ok()?.to_owned(), section, symbol.address()))
        });
        let mut source = DebugSource {
            path: path.to_owned(),
            build: build.to_vec(),
            relocatable,
            functions: functions.collect(),
            line,
            relocations: Vec::new(),
            texts: [
                section(&file, ".debug_str")?.unwrap_or_default(),
                section(&file, ".debug_line_str")?.unwrap_or_default(),
            ],
        };
        if relocatable {
            source.relocations = relocations(&file)?;
        }
        Ok(source)
    }

    /// The line table, with addresses of the host.
    fn line(&self, moved: &HashMap<usize, u64>) -> Vec<u8> {
        let mut line = self.line.clone();
        for one in &self.relocations {
            let base = one.section.map_or(Some(0), |section| moved.get(&section).copied());
            // Code that is not loaded any more has no addresses.
            let value = base.map_or(0, |base| base.wrapping_add(one.value));
            if let Some(bytes) = line.get_mut(one.at..one.at.saturating_add(one.bytes)) {
                bytes.copy_from_slice(&value.to_le_bytes()[..one.bytes]);
            }
        }
        line
    }

    /// By how much each section has moved; of a kernel all have by the same.
    fn moved(&self, runs: &HashMap<&str, Option<u64>>) -> HashMap<usize, u64> {
        let mut votes: HashMap<usize, HashMap<u64, u32>> = HashMap::new();
        for (name, section, address) in &self.functions {
            if let Some(Some(at)) = runs.get(name.as_str()) {
                let section = if self.relocatable { *section } else { 0 };
                let votes = votes.entry(section).or_default();
                *votes.entry(at.wrapping_sub(*address)).or_default() += 1;
            }
        }
        let most = |votes: HashMap<u64, u32>| {
            votes.into_iter().max_by_key(|(by, votes)| (*votes, *by)).map(|(by, _)| by)
        };
        votes.into_iter().filter_map(|(section, votes)| Some((section, most(votes)?))).collect()
    }
}

/// A section's bytes.
fn section<'a>(
    file: &object::File<'a, impl ReadRef<'a>>,
    name: &str,
) -> Result<Option<Vec<u8>>, String> {
    let Some(section) = file.section_by_name(name) else { return Ok(None) };
    let data = section
        .compressed_data()
        .map_err(|error| format!("its section {name} cannot be read: {error}"))?;
    if data.format != CompressionFormat::None {
        return Err(format!(
            "its section {name} is compressed; decompress it: objcopy --decompress-debug-sections FILE"
        ));
    }
    Ok(Some(data.data.to_vec()))
}

/// Relocations of a module's line table.
fn relocations<'a>(file: &object::File<'a, impl ReadRef<'a>>) -> Result<Vec<Relocation>, String> {
    let mut found = Vec::new();
    let section = file.section_by_name(".debug_line");
    for (at, relocation) in section.iter().flat_map(|section| section.relocations()) {
        let bytes = match relocation.size() {
            32 => 4,
            64 => 8,
            size => return Err(format!("its line table has relocations of {size} bits")),
        };
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let Ok(symbol) = file.symbol_by_index(symbol) else {
            return Err("its line table is relocated by a symbol that it lacks".to_owned());
        };
        // Offsets in other debug sections are 32 bits, and those sections are not loaded.
        let section = symbol.section_index().map(|index| index.0).filter(|_| bytes == 8);
        let value = symbol.address().wrapping_add_signed(relocation.addend());
        found.push(Relocation { at: at as usize, bytes, section, value });
    }
    Ok(found)
}

/// A source line from here on; line 0 is none.
struct LineRow {
    address: u64,
    file: u32,
    line: u32,
}

/// The lines of the kernel or of a module, by its addresses in the host.
struct SourcePart {
    rows: Vec<LineRow>,
    /// What L1 has at a higher address than the host.
    inner: u64,
}

/// What a number stands for.
enum LineText {
    /// A file and a line.
    Source(u32, u32),
    Instruction(String),
}

/// Source lines by address, and the instructions of functions that are annotated.
#[derive(Default)]
pub(crate) struct SourceLines {
    parts: Vec<SourcePart>,
    files: Vec<String>,
    numbers: HashMap<(u32, u32), u32>,
    /// Of each number but [`UNKNOWN`].
    texts: Vec<LineText>,
    annotated: Vec<String>,
    /// Numbers of instructions, by level and address.
    instructions: HashMap<(usize, u64), u32>,
}

impl SourceLines {
    /// The lines of these files, which must be of these kernels.
    pub(crate) fn new(
        sources: &[DebugSource],
        kernels: &HostKernels,
    ) -> Result<SourceLines, Error> {
        let mut lines = SourceLines::default();
        for source in sources {
            lines
                .add(source, kernels)
                .map_err(|problem| Error::DebugInfo { path: source.path.clone(), problem })?;
        }
        Ok(lines)
    }

    fn add(&mut self, source: &DebugSource, kernels: &HostKernels) -> Result<(), String> {
        let name = owner(&source.build, &kernels.host)?;
        let mut runs: HashMap<&str, Option<u64>> = HashMap::new();
        for part in kernels.functions.parts.iter().filter(|part| part.name == name) {
            let mut address = 0_u64;
            for (step, function) in &part.functions {
                address = address.wrapping_add(*step);
                // A name that several functions have says nothing.
                runs.entry(function).and_modify(|at| *at = None).or_insert(Some(address));
            }
        }
        let mut moved = source.moved(&runs);
        if moved.is_empty() {
            return Err("the kernel that runs has none of its functions".to_owned());
        }
        let line = source.line(&moved);
        let kernel = moved.remove(&0).filter(|_| !source.relocatable).unwrap_or_default();
        let mut rows = self
            .rows(&line, &source.texts, kernel)
            .map_err(|error| format!("its line table cannot be read: {error}"))?;
        rows.sort_by_key(|row| (row.address, row.line > 0));
        let at = |loaded: &LoadedAddresses| {
            loaded.modules.iter().find(|module| module.0 == name).map(|module| module.1)
        };
        let inner = match (kernels.guest.as_ref().and_then(at), at(&kernels.host)) {
            (Some(there), Some(here)) => there.wrapping_sub(here),
            _ => 0,
        };
        self.parts.push(SourcePart { rows, inner });
        Ok(())
    }

    fn rows(&mut self, line: &[u8], texts: &[Vec<u8>; 2], by: u64) -> gimli::Result<Vec<LineRow>> {
        let texts =
            (DebugStr::new(&texts[0], LittleEndian), DebugLineStr::new(&texts[1], LittleEndian));
        let table = DebugLine::new(line, LittleEndian);
        let mut found: Vec<LineRow> = Vec::new();
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut offset = 0_usize;
        while offset < line.len() {
            let program = table.program(DebugLineOffset(offset), 8, None, None)?;
            let header = program.header();
            let start = usize::from(header.format().initial_length_size());
            offset = offset.saturating_add(start).saturating_add(header.unit_length());
            let mut files: HashMap<u64, u32> = HashMap::new();
            let mut rows = program.rows();
            let mut last = (0, 0);
            while let Some((header, row)) = rows.next_row()? {
                let address = row.address().wrapping_add(by);
                let line = row.line().map_or(0, std::num::NonZero::get);
                let line = if row.end_sequence() { 0 } else { u32::try_from(line).unwrap_or(0) };
                let file = *files.entry(row.file_index()).or_insert_with(|| {
                    let name = file_name(header, row.file_index(), texts);
                    *known.entry(name).or_insert_with_key(|name| {
                        self.files.push(name.clone());
                        self.files.len() as u32 - 1
                    })
                });
                // The kernel's half: what is not loaded begins at 0.
                if address >> 63 == 1 && (last != (file, line) || line == 0) {
                    found.push(LineRow { address, file, line });
                    last = (file, line);
                }
            }
        }
        Ok(found)
    }

    /// The number, for [`Lines::text`], of the line at an address of a level, and the addresses around it that have the same.
    pub(crate) fn find(&mut self, level: usize, address: u64) -> (u32, Range<u64>) {
        let mut range = 0..u64::MAX;
        if level > 1 {
            return (UNKNOWN, range);
        }
        for part in &self.parts {
            let by = if level == 1 { part.inner } else { 0 };
            let at = address.wrapping_sub(by);
            let after = part.rows.partition_point(|row| row.address <= at);
            let row = after.checked_sub(1).map(|row| &part.rows[row]);
            let start = row.map_or(0, |row| row.address.wrapping_add(by));
            let end = part.rows.get(after).map_or(u64::MAX, |row| row.address.wrapping_add(by));
            range = range.start.max(start)..range.end.min(end);
            if let Some(row) = row.filter(|row| row.line > 0) {
                let texts = &mut self.texts;
                let number = *self.numbers.entry((row.file, row.line)).or_insert_with(|| {
                    texts.push(LineText::Source(row.file, row.line));
                    texts.len() as u32
                });
                return (number, range);
            }
        }
        (UNKNOWN, range)
    }

    /// Lines of one file of the kernel, for tests.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn of(file: &str, rows: &[(u64, u32)]) -> SourceLines {
        let rows = rows.iter().map(|&(address, line)| LineRow { address, file: 0, line }).collect();
        let parts = vec![SourcePart { rows, inner: 0 }];
        SourceLines { parts, files: vec![file.to_owned()], ..SourceLines::default() }
    }

    /// `arch/x86/kvm/x86.c:123`, or an instruction.
    pub(crate) fn text(&self, number: u32) -> (CallKind, String) {
        let found = number.checked_sub(1).and_then(|at| self.texts.get(at as usize));
        let file = |file: u32| self.files.get(file as usize).map_or("", String::as_str);
        match found {
            Some(LineText::Source(name, line)) => {
                (CallKind::Line, format!("{}:{line}", file(*name)))
            }
            Some(LineText::Instruction(text)) => (CallKind::Instruction, text.clone()),
            None => (CallKind::Line, String::new()),
        }
    }

    /// Has instructions of these functions a number each.
    #[must_use]
    pub(crate) fn annotating(self, functions: &[String]) -> SourceLines {
        SourceLines { annotated: functions.to_vec(), ..self }
    }

    pub(crate) fn annotates(&self) -> bool {
        !self.annotated.is_empty()
    }

    /// The number, for [`Lines::text`], of an instruction of a level, if its function is annotated. Without its code only its place is said.
    pub(crate) fn instruction(
        &mut self,
        (level, symbols): (usize, &LevelSymbols),
        address: u64,
        code: Option<&[u8]>,
    ) -> Option<u32> {
        let (function, range) = symbols.find_range(address);
        let name = &symbols.name(function).function;
        if !self.annotated.contains(name) {
            return None;
        }
        let texts = &mut self.texts;
        Some(*self.instructions.entry((level, address)).or_insert_with(|| {
            let offset = address.wrapping_sub(range.start);
            let shown = code.map(|code| disassembled(symbols, address, code)).unwrap_or_default();
            let text = format!("{name}+{offset:#05x} {shown}");
            texts.push(LineText::Instruction(text.trim_end().to_owned()));
            texts.len() as u32
        }))
    }
}

/// `call 0xffffffff81234560 <svm_vcpu_run+0x1c>`; of arm64 its word.
fn disassembled(symbols: &LevelSymbols, address: u64, code: &[u8]) -> String {
    if symbols.is_arm() {
        let word = code.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
        return format!(".inst 0x{word}");
    }
    let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
    let (mut text, mut formatter) = (String::new(), FastFormatter::new());
    formatter.options_mut().set_use_hex_prefix(true);
    formatter.format(&instruction, &mut text);
    let to = instruction.near_branch_target();
    if to != 0 {
        let (function, range) = symbols.find_range(to);
        let name = &symbols.name(function).function;
        text += &format!(" <{name}+{:#x}>", to.wrapping_sub(range.start));
    }
    text
}

/// Which part of the host's code has this build id: a module, or the kernel without a name.
fn owner<'a>(build: &[u8], host: &'a LoadedAddresses) -> Result<&'a str, String> {
    if let Some((name, _)) = host.builds.iter().find(|(_, id)| id == build) {
        return Ok(name);
    }
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let kernel = host.builds.iter().find(|(name, _)| name.is_empty());
    let kernel = kernel.map_or_else(|| "which has none".to_owned(), |(_, id)| hex(id));
    Err(format!(
        "its build id {} is neither that of the kernel that runs ({kernel}) nor of one of its modules; give the debug \
         information of this very build",
        hex(build)
    ))
}

/// A file of a line table, relative to the folder in which the kernel was built.
fn file_name(
    header: &LineProgramHeader<SourceTexts<'_>>,
    index: u64,
    (strings, line_strings): (DebugStr<SourceTexts<'_>>, DebugLineStr<SourceTexts<'_>>),
) -> String {
    let text = |value: AttributeValue<SourceTexts<'_>>| {
        let text = match value {
            AttributeValue::String(text) => Some(text),
            AttributeValue::DebugStrRef(at) => strings.get_str(at).ok(),
            AttributeValue::DebugLineStrRef(at) => line_strings.get_str(at).ok(),
            _ => None,
        };
        text.map(|text| String::from_utf8_lossy(text.slice()).into_owned()).unwrap_or_default()
    };
    let Some(file) = header.file(index) else { return "?".to_owned() };
    let name = text(file.path_name());
    let folder = header.directory(file.directory_index()).map(text).unwrap_or_default();
    let built = header.directory(0).map(text).filter(|folder| !folder.is_empty());
    let inside = built.and_then(|built| {
        let rest = folder.strip_prefix(&built)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/').to_owned())
    });
    let folder = inside.unwrap_or(folder);
    plain(&if name.starts_with('/') { name } else { format!("{folder}/{name}") })
}

/// The path without `.` and `..`, as far as it is within itself: `a/b/../c` is `a/c`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match parts.last() {
            Some(last) if part == ".." && *last != ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    format!("{}{}", if path.starts_with('/') { "/" } else { "" }, parts.join("/"))
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
