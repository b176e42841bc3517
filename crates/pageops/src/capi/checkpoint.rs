//! Checkpoints: written from memory, verified, read and restored.

use std::ffi::{OsStr, c_char};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::arguments::{CallFailure, array, bytes, bytes_mut, handle, invalid, text, told, utf8};
use super::engine::{PageopsEngine, RunningEngine, running};
use super::handles::Handles;
use super::{PAGEOPS_EDEAD, PAGEOPS_EIO};
use crate::checkpoint::{
    Accelerate, Checkpoint, CheckpointOptions, CheckpointWriter, DamageReason, Error,
    RestoreTarget, Summary,
};
use crate::engine::PageEngine;
use crate::{Cpu, PAGE};

/// Options for writing a checkpoint. All zero is valid: complete, uncompressed, by the CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageopsCheckpointOptions {
    /// Level of zstd, 1 to 19; 0: pages are not compressed.
    pub zstd: i32,
    /// Path of the parent checkpoint; NULL: a complete checkpoint.
    pub parent: *const c_char,
    /// Engine that scans and computes checksums; NULL: the CPU, in the calling thread.
    pub engine: *mut PageopsEngine,
}

/// Summary of a written checkpoint: numbers of pages, except `bytes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageopsSummary {
    /// Size of the file, bytes.
    pub bytes: u64,
    /// Pages stored uncompressed.
    pub raw: u64,
    /// Pages stored compressed.
    pub compressed: u64,
    /// Pages stored as deltas.
    pub deltas: u64,
    /// Pages of one repeated word.
    pub filled: u64,
    /// Zero pages.
    pub zero: u64,
    /// Pages equal to the parent's.
    pub unchanged: u64,
}

/// Destination of a restored region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageopsMemory {
    /// Where it begins.
    pub at: *mut u8,
    /// Its bytes: 4096 for each page of the region.
    pub bytes: usize,
}

/// What a checkpoint holds besides memory. All zero is valid: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageopsContents {
    /// The device state; NULL with 0 bytes for none.
    pub state: *const u8,
    /// Its bytes.
    pub state_len: usize,
    /// A description, at most 16 MiB; NULL with 0 bytes for none.
    pub description: *const u8,
    /// Its bytes.
    pub description_len: usize,
}

/// A checkpoint that is being written. A handle: never dereference it.
pub struct PageopsWriter {
    _private: [u8; 0],
}

/// An open checkpoint. A handle: never dereference it.
pub struct PageopsCheckpoint {
    _private: [u8; 0],
}

/// A writer with what it scans with.
struct Writing {
    /// `None`: a call failed.
    writer: Option<CheckpointWriter<'static>>,
    scanner: *mut dyn Accelerate,
    /// What the scanner's operations run on.
    _engine: Option<Arc<RunningEngine>>,
}

// SAFETY: the scanner is a `Cpu` or a `PageEngine` of a shared engine, which threads may hand to each other; the writer holds a
// file, buffers and a compressor. Both are used by one thread at a time, behind a lock.
unsafe impl Send for Writing {}

impl Drop for Writing {
    fn drop(&mut self) {
        // The writer has the only reference to the scanner.
        self.writer = None;
        // SAFETY: it came from a box, and nothing refers to it any more.
        drop(unsafe { Box::from_raw(self.scanner) });
    }
}

static WRITERS: Handles<Mutex<Writing>> = Handles::new("writer");
static CHECKPOINTS: Handles<Checkpoint> = Handles::new("checkpoint");

fn failed(error: &Error) -> CallFailure {
    let code = match error.reason {
        DamageReason::Misused(_) | DamageReason::Shape(_) | DamageReason::Ancestor { .. } => {
            super::PAGEOPS_EINVAL
        }
        _ => PAGEOPS_EIO,
    };
    CallFailure { code, what: error.to_string() }
}

/// # Safety
///
/// `p` is NULL or a C string.
unsafe fn path<'a>(name: &str, p: *const c_char) -> Result<&'a Path, CallFailure> {
    // SAFETY: by the contract.
    let path = unsafe { text(name, p) }?;
    if path.is_empty() {
        return Err(invalid(format!("{name} is empty")));
    }
    Ok(Path::new(OsStr::from_bytes(path)))
}

/// Begins a checkpoint that will be `path`; NULL if that cannot be. Nothing is seen under that name before
/// pageops_checkpoint_finish. `options` may be NULL.
///
/// Threads: any, at any time.
///
/// # Safety
///
/// `path` and the options' parent are C strings; `options` can be read, or is NULL; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_create(
    path: *const c_char,
    options: *const PageopsCheckpointOptions,
    error: *mut c_char,
    room: usize,
) -> *mut PageopsWriter {
    // SAFETY: by the contract.
    unsafe {
        handle(error, room, || {
            let path = self::path("path", path)?;
            let (mut wanted, mut engine) = (CheckpointOptions::default(), None);
            if !options.is_null() {
                array("options", options, 1)?;
                let options = options.read();
                wanted.zstd = match options.zstd {
                    0 => None,
                    level @ 1..=19 => Some(level),
                    other => return Err(invalid(format!("zstd level {other}: use 0 to 19"))),
                };
                if !options.parent.is_null() {
                    let parent = Checkpoint::open(self::path("parent", options.parent)?);
                    wanted.parent = Some(parent.map_err(|e| failed(&e))?);
                }
                if !options.engine.is_null() {
                    engine = Some(running(options.engine)?);
                }
            }
            let scanner: Box<dyn Accelerate> = match &engine {
                Some(running) => Box::new(PageEngine::new(Arc::clone(&running.engine))),
                None => Box::new(Cpu::best()),
            };
            let scanner = Box::into_raw(scanner);
            let mut writing = Writing { writer: None, scanner, _engine: engine };
            // The box lives until `Writing` is dropped, and the writer before it.
            let writer =
                CheckpointWriter::create(path, wanted, &mut *scanner).map_err(|e| failed(&e))?;
            writing.writer = Some(writer);
            Ok(WRITERS.put(Mutex::new(writing)))
        })
    }
}

fn gone() -> CallFailure {
    CallFailure { code: PAGEOPS_EDEAD, what: "an earlier call failed".to_owned() }
}

/// Does something with a writer. After an error other than of its arguments the writer is of no use: the file may lack bytes.
fn with_writer<T>(
    writing: &Mutex<Writing>,
    act: impl FnOnce(&mut CheckpointWriter<'static>) -> Result<T, Error>,
) -> Result<T, CallFailure> {
    let mut writing = writing.lock().map_err(|_| gone())?;
    let done = act(writing.writer.as_mut().ok_or_else(gone)?).map_err(|e| failed(&e));
    if done.as_ref().is_err_and(|failure| failure.code == PAGEOPS_EIO) {
        writing.writer = None;
    }
    done
}

/// Begins a region of memory of `pages` pages of 4096 bytes; its pages follow. With a parent these are the parent's regions in its
/// order. 0; PAGEOPS_EINVAL, PAGEOPS_EIO, PAGEOPS_EDEAD.
///
/// Threads: any; calls with one writer wait for each other, and their order matters.
///
/// # Safety
///
/// `name` is a C string; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_region(
    writer: *const PageopsWriter,
    name: *const c_char,
    pages: u64,
    error: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract.
    unsafe {
        told(error, room, || {
            let writing = WRITERS.get(writer)?;
            let name = utf8("name", name)?;
            with_writer(&writing, |writer| writer.region(name, pages)).map(|()| 0)
        })
    }
}

/// Takes `count` pages of 4096 bytes, which are those from page `first` of the region on. Pages come in ascending order; those
/// left
/// out are zero. Each byte is read once. 0; PAGEOPS_EINVAL, PAGEOPS_EIO, PAGEOPS_EDEAD.
///
/// Threads: any; calls with one writer wait for each other, and their order matters.
///
/// # Safety
///
/// The pages can be read; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_pages(
    writer: *const PageopsWriter,
    first: u64,
    pages: *const u8,
    count: usize,
    error: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract.
    unsafe {
        told(error, room, || {
            let writing = WRITERS.get(writer)?;
            let len = count.checked_mul(PAGE);
            let len = len.ok_or_else(|| invalid(format!("{count} pages fit in no memory")))?;
            let pages = bytes("pages", pages, len)?;
            // So that its end can be computed.
            if first > u64::MAX - count as u64 {
                return Err(invalid(format!("page {first} is behind every region")));
            }
            with_writer(&writing, |writer| writer.pages(first, pages)).map(|()| 0)
        })
    }
}

/// Ends the checkpoint with the device state and a description, brings it to the disk and gives it its name in one step. The handle is
/// freed, also on an error; then nothing is left behind. `contents` and `summary` may be NULL. 0; PAGEOPS_EINVAL, PAGEOPS_EIO,
/// PAGEOPS_EDEAD.
///
/// Threads: one; no other is in a call with this writer.
///
/// # Safety
///
/// `contents` and its blocks can be read, or it is NULL; `summary` can be written, or is NULL; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_finish(
    writer: *mut PageopsWriter,
    contents: *const PageopsContents,
    summary: *mut PageopsSummary,
    error: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract.
    unsafe {
        told(error, room, || {
            let writing = WRITERS.remove(writer)?;
            let (mut state, mut description) = (&[][..], &[][..]);
            if !contents.is_null() {
                array("contents", contents, 1)?;
                let given = contents.read();
                state = bytes("state", given.state, given.state_len)?;
                description = bytes("description", given.description, given.description_len)?;
            }
            array("summary", summary, usize::from(!summary.is_null()))?;
            let writer = writing.lock().map_err(|_| gone())?.writer.take().ok_or_else(gone)?;
            let finished = writer.finish(&mut state, description).map_err(|e| failed(&e))?;
            let Summary { bytes, raw, compressed, deltas, filled, zero, unchanged } =
                finished.summary();
            finished.publish().map_err(|e| failed(&e))?;
            if !summary.is_null() {
                let written =
                    PageopsSummary { bytes, raw, compressed, deltas, filled, zero, unchanged };
                summary.write(written);
            }
            Ok(0)
        })
    }
}

/// Ends a writer; nothing is left behind. 0, or PAGEOPS_EINVAL. NULL is allowed.
///
/// Threads: any, at any time; a call with the writer that is under way ends first.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_checkpoint_abort(writer: *mut PageopsWriter) -> i32 {
    super::arguments::guarded(|| {
        if !writer.is_null() {
            WRITERS.remove(writer)?;
        }
        Ok(0)
    })
}

/// Opens a checkpoint and its parents, and checks all but the pages' bytes; NULL if that cannot be.
///
/// Threads: any, at any time.
///
/// # Safety
///
/// `path` is a C string; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_open(
    path: *const c_char,
    error: *mut c_char,
    room: usize,
) -> *mut PageopsCheckpoint {
    // SAFETY: by the contract.
    unsafe {
        handle(error, room, || {
            let checkpoint = Checkpoint::open(self::path("path", path)?).map_err(|e| failed(&e))?;
            Ok(CHECKPOINTS.put(checkpoint))
        })
    }
}

/// Number of regions; PAGEOPS_EINVAL.
///
/// Threads: any, at any time, with one checkpoint.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_checkpoint_regions(checkpoint: *const PageopsCheckpoint) -> i64 {
    super::arguments::guarded(|| Ok(CHECKPOINTS.get(checkpoint)?.regions().count() as i64))
}

/// Pages of a region, by its number from 0; PAGEOPS_EINVAL. Its name goes to `name`, cut if there is too little room; NULL is
/// allowed.
///
/// Threads: any, at any time, with one checkpoint.
///
/// # Safety
///
/// `name` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_region_pages(
    checkpoint: *const PageopsCheckpoint,
    region: usize,
    name: *mut c_char,
    room: usize,
) -> i64 {
    super::arguments::guarded(|| {
        let checkpoint = CHECKPOINTS.get(checkpoint)?;
        let info = region_of(&checkpoint, region)?;
        // SAFETY: by the contract.
        unsafe { super::arguments::put_text(info.0, name, room) };
        Ok(info.1 as i64)
    })
}

/// Name and pages of a region.
fn region_of(checkpoint: &Checkpoint, region: usize) -> Result<(&str, u64), CallFailure> {
    let found = checkpoint.regions().nth(region).map(|r| (r.name, r.pages));
    found.ok_or_else(|| {
        invalid(format!("region {region}: the checkpoint has {}", checkpoint.regions().count()))
    })
}

/// Reads `count` pages of 4096 bytes from page `first` of a region on, and checks each. 0; PAGEOPS_EINVAL, PAGEOPS_EIO, with which
/// the bytes at `pages` mean nothing.
///
/// Threads: any, at any time, with one checkpoint, each with `pages` of its own.
///
/// # Safety
///
/// The pages can be written; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_read(
    checkpoint: *const PageopsCheckpoint,
    region: usize,
    first: u64,
    pages: *mut u8,
    count: usize,
    error: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract.
    unsafe {
        told(error, room, || {
            let checkpoint = CHECKPOINTS.get(checkpoint)?;
            let (_, all) = region_of(&checkpoint, region)?;
            if first.checked_add(count as u64).is_none_or(|end| end > all) {
                let what = format!("{count} pages from {first} on: the region has {all}");
                return Err(invalid(what));
            }
            // The region has no more bytes than fit.
            let len = count.checked_mul(PAGE).ok_or_else(|| invalid("more than memory holds"))?;
            let pages = bytes_mut("pages", pages, len)?;
            checkpoint.read(region, first, pages).map(|()| 0).map_err(|e| failed(&e))
        })
    }
}

/// Reads and checks every page of the checkpoint and its parents. 0; PAGEOPS_EINVAL, PAGEOPS_EIO.
///
/// Threads: any, at any time, with one checkpoint.
///
/// # Safety
///
/// `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_verify(
    checkpoint: *const PageopsCheckpoint,
    error: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract.
    unsafe {
        told(error, room, || {
            let checkpoint = CHECKPOINTS.get(checkpoint)?;
            checkpoint.verify(&mut |_| ()).map(|()| 0).map_err(|e| failed(&e))
        })
    }
}

/// Puts all regions back into memory and checks every page: `memory` has an entry for each region, in order. Pages that are zero
/// there already are not written to. 0; PAGEOPS_EINVAL with nothing written; PAGEOPS_EIO with a part written.
///
/// Threads: any, at any time, with one checkpoint, each with memory of its own.
///
/// # Safety
///
/// `count` entries can be read, and their memory read and written; no other code uses it meanwhile. `error` has room for `room`
/// bytes,
/// or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_restore(
    checkpoint: *const PageopsCheckpoint,
    memory: *const PageopsMemory,
    count: usize,
    error: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract.
    unsafe {
        told(error, room, || {
            let checkpoint = CHECKPOINTS.get(checkpoint)?;
            array("memory", memory, count)?;
            let regions: Vec<_> = checkpoint.regions().collect();
            if regions.len() != count {
                return Err(invalid(format!("memory for {count} of {} regions", regions.len())));
            }
            let memory = if count == 0 { &[] } else { std::slice::from_raw_parts(memory, count) };
            let mut blocks: Vec<&mut [u8]> = Vec::new();
            for (i, (one, region)) in memory.iter().zip(&regions).enumerate() {
                if region.pages.checked_mul(PAGE as u64) != Some(one.bytes as u64) {
                    let (name, pages, bytes) = (region.name, region.pages, one.bytes);
                    return Err(invalid(format!("{bytes} bytes for {name:?} of {pages} pages")));
                }
                for other in &memory[..i] {
                    let blocks = (
                        ("memory", one.at.cast_const(), one.bytes),
                        ("memory", other.at.cast_const(), other.bytes),
                    );
                    super::arguments::apart(blocks.0, blocks.1)?;
                }
                blocks.push(bytes_mut("memory", one.at, one.bytes)?);
            }
            let mut target = CallerBlocks { blocks };
            checkpoint.restore(&mut target, &mut |_| ()).map(|()| 0).map_err(|e| failed(&e))
        })
    }
}

/// Memory of the caller.
struct CallerBlocks<'a> {
    blocks: Vec<&'a mut [u8]>,
}

impl RestoreTarget for CallerBlocks<'_> {
    fn clear(&mut self, region: usize, _: u64) -> io::Result<()> {
        let cpu = Cpu::best();
        // Writing to a page that is zero would allocate it.
        self.blocks[region].chunks_mut(PAGE).filter(|p| !cpu.is_zero(p)).for_each(|p| p.fill(0));
        Ok(())
    }

    fn write(&mut self, region: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.blocks[region][at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// The device state: its size, and its bytes if there is room for all of them. PAGEOPS_EINVAL, PAGEOPS_EIO.
///
/// Threads: any, at any time, with one checkpoint, each with `to` of its own.
///
/// # Safety
///
/// `to` has room for `room` bytes; `error` has room for `error_room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_state(
    checkpoint: *const PageopsCheckpoint,
    to: *mut u8,
    room: usize,
    error: *mut c_char,
    error_room: usize,
) -> i64 {
    // SAFETY: by the contract.
    unsafe {
        told(error, error_room, || {
            let checkpoint = CHECKPOINTS.get(checkpoint)?;
            let (to, len) = (bytes_mut("to", to, room)?, checkpoint.state_len());
            if len > 0 && len <= room as u64 {
                let read = checkpoint.state().read_exact(&mut to[..len as usize]);
                let what = |e| {
                    failed(&Error {
                        path: checkpoint.path().to_owned(),
                        reason: DamageReason::Io(e),
                    })
                };
                read.map_err(what)?;
            }
            Ok(len as i64)
        })
    }
}

/// The description that the writer gave: its size, and its bytes if there is room for all of them. PAGEOPS_EINVAL.
///
/// Threads: any, at any time, with one checkpoint, each with `to` of its own.
///
/// # Safety
///
/// `to` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_checkpoint_description(
    checkpoint: *const PageopsCheckpoint,
    to: *mut u8,
    room: usize,
) -> i64 {
    super::arguments::guarded(|| {
        let checkpoint = CHECKPOINTS.get(checkpoint)?;
        // SAFETY: by the contract.
        let to = unsafe { bytes_mut("to", to, room) }?;
        let description = checkpoint.description();
        if description.len() <= room {
            to[..description.len()].copy_from_slice(description);
        }
        Ok(description.len() as i64)
    })
}

/// Closes a checkpoint: 0, or PAGEOPS_EINVAL. NULL is allowed.
///
/// Threads: any, at any time; calls that are under way end as if it were open.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_checkpoint_close(checkpoint: *mut PageopsCheckpoint) -> i32 {
    super::arguments::guarded(|| {
        if !checkpoint.is_null() {
            CHECKPOINTS.remove(checkpoint)?;
        }
        Ok(0)
    })
}
