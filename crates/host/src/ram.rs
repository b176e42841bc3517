//! A VM's memory as bytes: an image, the shared file of a VM, or private memory of a process. Addresses are offsets from its start.

mod given;
mod mappings;
pub mod survey;

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::OFlags;
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output::cannot_read;
use vmtax_machine::maps::Mapping;
use vmtax_pageops::PAGE;
use vmtax_pageops::process_memory::{self, Pagemap};

use mappings::TakenMapping;

/// Where memory is read from.
pub struct RamSource {
    name: String,
    parts: Vec<RamPart>,
    process: Option<RamProcess>,
}

/// Memory without gaps.
struct RamPart {
    bytes: u64,
    /// `None`: the private memory of the process.
    file: Option<File>,
    /// Where in the file it begins.
    offset: u64,
    /// Where the process has it mapped.
    mapped: Option<Range<u64>>,
    /// Its place, and why it is assumed to be the VM's memory.
    why: Option<String>,
}

struct RamProcess {
    pid: u32,
    pagemap: Pagemap,
}

impl RamSource {
    /// Opens a process by its id, or an image by its path.
    pub fn open(target: &str) -> anyhow::Result<RamSource> {
        match target.parse::<u32>() {
            Ok(pid) if !Path::new(target).exists() => RamSource::of_process(pid),
            _ => RamSource::of_image(target),
        }
    }

    fn of_image(path: &str) -> anyhow::Result<RamSource> {
        // A pipe without a writer is opened at once, and refused.
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) => return Err(cannot_read(path, &error).into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return fail(
                Code::Input,
                format!("{path}: is not a file; name an image or a process id"),
            );
        }
        if metadata.len() == 0 || !metadata.len().is_multiple_of(PAGE as u64) {
            let what =
                format!("{path}: its size of {} bytes is not a multiple of 4096", metadata.len());
            return fail(Code::Data, what);
        }
        let bytes = metadata.len();
        let part = RamPart { bytes, file: Some(file), offset: 0, mapped: None, why: None };
        Ok(RamSource { name: path.to_owned(), parts: vec![part], process: None })
    }

    fn of_process(pid: u32) -> anyhow::Result<RamSource> {
        let maps = match Mapping::of_process(pid) {
            Ok(maps) => maps,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return fail(Code::Input, format!("{pid}: there is no such process or file"));
            }
            Err(error) => {
                let what = format!("process {pid}: cannot be examined: {error}");
                return fail(Code::Input, format!("{what}; run vmtax as its user, or as root"));
            }
        };
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = format!("process {pid} ({})", command.trim());
        let taken = take(pid, &name, &maps)?;
        let mut parts = Vec::new();
        for TakenMapping { mapping, why } in taken {
            let why = Some(format!("{}: {why}", place(&mapping)));
            let mapped = Some(mapping.range.clone());
            let file = mapping.shared.then(|| open_mapped(pid, &mapping)).transpose()?;
            let (bytes, offset) = (mapping.bytes(), mapping.offset);
            parts.push(RamPart { bytes, file, offset, mapped, why });
        }
        let pagemap = Pagemap::open(pid).with_context(|| format!("/proc/{pid}/pagemap"))?;
        Ok(RamSource { name, parts, process: Some(RamProcess { pid, pagemap }) })
    }

    /// Its name for messages.
    pub fn describe(&self) -> String {
        self.name.clone()
    }

    /// The parts: bytes, place, and why they are assumed to be the VM's. Empty for an image.
    pub fn taken(&self) -> Vec<(u64, &str)> {
        let taken = |part: &'_ RamPart| part.why.is_some();
        let parts = self.parts.iter().filter(|part| taken(part));
        parts.map(|part| (part.bytes, part.why.as_deref().unwrap_or_default())).collect()
    }

    pub fn pages(&self) -> u64 {
        self.parts.iter().map(|p| p.bytes / PAGE as u64).sum()
    }

    /// Ranges with content. No range covers two parts.
    pub fn extents(&self) -> anyhow::Result<Vec<Range<u64>>> {
        let mut all = Vec::new();
        let mut base = 0;
        for part in &self.parts {
            match (&part.file, &part.mapped, &self.process) {
                (Some(file), _, _) => {
                    let extents =
                        process_memory::extents(file, part.offset..part.offset + part.bytes)?;
                    let moved = |at: u64| base + at - part.offset;
                    all.extend(extents.into_iter().map(|e| moved(e.start)..moved(e.end)));
                }
                (None, Some(mapped), Some(process)) => {
                    let populated =
                        process.pagemap.populated(mapped.clone()).context(PAGEMAP_SCAN)?;
                    for range in populated.iter().filter(|r| !r.zero) {
                        let range =
                            base + range.start - mapped.start..base + range.end - mapped.start;
                        match all.last_mut() {
                            Some(Range { end, .. }) if *end == range.start => *end = range.end,
                            _ => all.push(range),
                        }
                    }
                }
                _ => {}
            }
            base += part.bytes;
        }
        Ok(all)
    }

    /// Reads content; memory that was freed meanwhile reads as zeros.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> anyhow::Result<()> {
        let mut base = 0;
        for part in &self.parts {
            if at < base + part.bytes {
                return part.read(at - base, buffer, self.process.as_ref());
            }
            base += part.bytes;
        }
        buffer.fill(0);
        Ok(())
    }

    /// Number of pages that the process maps by huge pages; `None` for an image.
    pub fn huge_pages(&self) -> anyhow::Result<Option<u64>> {
        self.count(|r| r.huge)
    }

    /// Resets the kernel's record of dirty pages. False if it keeps none.
    pub fn forget_dirty(&self) -> anyhow::Result<bool> {
        // Of a shared file each process has its own record; devices and other processes write past it.
        let Some(process) =
            self.process.as_ref().filter(|_| self.parts.iter().all(|p| p.file.is_none()))
        else {
            return Ok(false);
        };
        match process.pagemap.forget_dirty() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error).context("/proc/PID/clear_refs"),
        }
    }

    /// Pages written since [`RamSource::forget_dirty`].
    pub fn dirty_pages(&self) -> anyhow::Result<u64> {
        Ok(self.count(|r| r.dirty)?.unwrap_or(0))
    }

    fn count(
        &self,
        which: impl Fn(&process_memory::PageRange) -> bool,
    ) -> anyhow::Result<Option<u64>> {
        let Some(process) = &self.process else { return Ok(None) };
        let mut bytes = 0;
        for mapped in self.parts.iter().filter_map(|p| p.mapped.as_ref()) {
            let ranges = process.pagemap.populated(mapped.clone()).context(PAGEMAP_SCAN)?;
            bytes += ranges.iter().filter(|r| which(r)).map(|r| r.end - r.start).sum::<u64>();
        }
        Ok(Some(bytes / PAGE as u64))
    }
}

const PAGEMAP_SCAN: &str = "the kernel does not answer PAGEMAP_SCAN, which needs Linux 6.7";

impl RamPart {
    fn read(&self, at: u64, buffer: &mut [u8], process: Option<&RamProcess>) -> anyhow::Result<()> {
        match (&self.file, &self.mapped, process) {
            (Some(file), _, _) => Ok(file.read_exact_at(buffer, self.offset + at)?),
            (None, Some(mapped), Some(process)) => {
                let read = process_memory::read_process(process.pid, mapped.start + at, buffer)
                    .unwrap_or(0);
                buffer[read..].fill(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Opens what a process has mapped.
fn open_mapped(pid: u32, mapping: &Mapping) -> anyhow::Result<File> {
    match mapping.open(pid, false) {
        Ok(file) => Ok(file),
        Err(error) => {
            let what = format!("process {pid}: {} cannot be opened: {error}", mapping.path);
            fail(Code::Input, format!("{what}; run vmtax as root"))
        }
    }
}

/// The mappings that are a VM's memory.
fn take(pid: u32, name: &str, mappings: &[Mapping]) -> anyhow::Result<Vec<TakenMapping>> {
    let given = match is_qemu(pid) {
        true => given::by_qemu(&command_line(pid)),
        false => Vec::new(),
    };
    if given.is_empty() {
        let taken = mappings::by_size(mappings);
        return match taken.is_empty() {
            true => fail(Code::Data, format!("{name}: has no memory that could be a VM's")),
            false => Ok(taken),
        };
    }
    match mappings::as_given(mappings, &given) {
        Ok(taken) => Ok(taken),
        Err(why) => fail(Code::Data, format!("{name}: {why}; its memory cannot be identified")),
    }
}

fn command_line(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// By the program's file, or by what it was started as.
fn is_qemu(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let started = command_line(pid).into_iter().next().map(PathBuf::from);
    [program, started]
        .into_iter()
        .flatten()
        .any(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("qemu")))
}

/// A mapping for messages: its file and address.
fn place(mapping: &Mapping) -> String {
    let kind = match (mapping.shared, mapping.inode) {
        (true, _) => mapping.path.as_str(),
        (false, 0) => "private memory",
        (false, _) => &format!("private memory over {}", mapping.path),
    };
    format!("{kind} at {:#x}", mapping.range.start)
}
