//! The C interface: include/vmtax_pageops.h is made of this file (tests/c.rs holds the two together).
//!
//! Functions never unwind into C: a panic would end the process. Blocks of no bytes may have any address.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use crate::delta::{self, Delta};
use crate::device::Portal;
use crate::device::idxd::{self, Idxd, Roots};
use crate::device::model::{self, Model};
use crate::engine::{Choice, Config, Engine, Job, Op, Outcome, Policy, Value};
use crate::{Cpu, PAGE, PageFacts, xbzrle};

/// What a pass over a page of 4096 bytes found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageopsFacts {
    /// All bytes are zero.
    pub zero: bool,
    /// CRC-32C, of zero pages too.
    pub crc: u32,
}

/// Whether `src` is zero; value 1 if it is.
pub const PAGEOPS_ZERO: u32 = 0;
/// Whether `src` and `dst` are equal (neither is written); value 1 if they are.
pub const PAGEOPS_COMPARE: u32 = 1;
/// Copy `src` to `dst`.
pub const PAGEOPS_COPY: u32 = 2;
/// Fill `dst` with `word`.
pub const PAGEOPS_FILL: u32 = 3;
/// CRC-32C of `src`; `word` is 0 or the CRC of what stands before.
pub const PAGEOPS_CRC32C: u32 = 4;
/// Copy `src` to `dst`, and its CRC-32C.
pub const PAGEOPS_COPY_CRC32C: u32 = 5;

/// An operation for an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageopsOp {
    /// PAGEOPS_ZERO, ...
    pub kind: u32,
    /// What is read.
    pub src: *const u8,
    /// What is written, or compared with.
    pub dst: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Word to fill with, or seed of a CRC.
    pub word: u64,
}

/// How an operation ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageopsOutcome {
    /// 1 or 0, or a CRC.
    pub value: u64,
    /// It was finished by a device.
    pub on_device: bool,
    /// Something went wrong on the way; the value is right all the same.
    pub had_fault: bool,
}

/// Queues of devices, and the thread that serves them.
pub struct PageopsEngine {
    engine: Engine,
    /// Devices in software; they end after the engine.
    _models: Vec<Model>,
}

/// Operations on their way.
pub struct PageopsJob {
    job: Job,
}

/// # Safety
///
/// `len` bytes can be read at `p`, if there are any, and nobody writes to them for as long as the slice lives.
unsafe fn bytes<'a>(p: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: by the contract.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(p, len) } }
}

/// # Safety
///
/// `len` bytes can be written at `p`, if there are any, and nobody else uses them for as long as the slice lives.
unsafe fn bytes_mut<'a>(p: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: by the contract.
    if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(p, len) } }
}

/// Name of the variant for this processor: "avx512+clmul", "avx512", "avx2+clmul", "avx2", "sse2", "neon", "scalar".
#[unsafe(no_mangle)]
pub extern "C" fn pageops_variant() -> *const c_char {
    let name = match Cpu::best().name() {
        "avx512+clmul" => c"avx512+clmul",
        "avx512" => c"avx512",
        "avx2+clmul" => c"avx2+clmul",
        "avx2" => c"avx2",
        "sse2" => c"sse2",
        "neon" => c"neon",
        _ => c"scalar",
    };
    name.as_ptr()
}

/// Whether all bytes are zero.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_is_zero(p: *const u8, len: usize) -> bool {
    // SAFETY: by the contract.
    Cpu::best().is_zero(unsafe { bytes(p, len) })
}

/// Whether one 8-byte word (little-endian) fills it; the word goes to `word`, which may be NULL.
///
/// # Safety
///
/// `len` bytes can be read at `p`; `word` can be written or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_same_fill(p: *const u8, len: usize, word: *mut u64) -> bool {
    // SAFETY: by the contract.
    let found = Cpu::best().same_fill(unsafe { bytes(p, len) });
    if let Some(found) = found
        && !word.is_null()
    {
        // SAFETY: by the contract.
        unsafe { word.write(found) };
    }
    found.is_some()
}

/// Place of the first byte that differs, or -1.
///
/// # Safety
///
/// `len` bytes can be read at both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_compare(a: *const u8, b: *const u8, len: usize) -> i64 {
    // SAFETY: by the contract.
    let at = unsafe { Cpu::best().compare(bytes(a, len), bytes(b, len)) };
    at.map_or(-1, |at| at as i64)
}

/// Copies; long blocks past the caches.
///
/// # Safety
///
/// `len` bytes can be read at `src` and written at `dst`; they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: by the contract.
    unsafe { Cpu::best().copy(bytes_mut(dst, len), bytes(src, len)) }
}

/// Fills with an 8-byte word (little-endian).
///
/// # Safety
///
/// `len` bytes can be written at `dst`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_fill(dst: *mut u8, len: usize, word: u64) {
    // SAFETY: by the contract.
    unsafe { Cpu::best().fill(bytes_mut(dst, len), word) }
}

/// CRC-32C; `seed` is 0, or the CRC of what stands before.
///
/// # Safety
///
/// `len` bytes can be read at `p`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_crc32c(seed: u32, p: *const u8, len: usize) -> u32 {
    // SAFETY: by the contract.
    Cpu::best().crc32c(seed, unsafe { bytes(p, len) })
}

/// Copies, and gives the CRC-32C, in one read.
///
/// # Safety
///
/// `len` bytes can be read at `src` and written at `dst`; they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_copy_crc32c(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    seed: u32,
) -> u32 {
    // SAFETY: by the contract.
    unsafe { Cpu::best().copy_crc(bytes_mut(dst, len), bytes(src, len), seed) }
}

/// Zero check and CRC-32C of `count` pages of 4096 bytes, in one read.
///
/// # Safety
///
/// The pages can be read and as many facts written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_scan(pages: *const u8, count: usize, out: *mut PageopsFacts) {
    let cpu = Cpu::best();
    for i in 0..count {
        let mut facts = [PageFacts::default()];
        // SAFETY: by the contract.
        unsafe {
            cpu.scan(bytes(pages.add(i * PAGE), PAGE), &mut facts);
            out.add(i).write(PageopsFacts { zero: facts[0].zero, crc: facts[0].crc });
        }
    }
}

/// Zero check, CRC-32C and copy of `count` pages of 4096 bytes, in one read.
///
/// # Safety
///
/// The pages can be read at `src` and written at `dst`, without overlap, and as many facts written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_copy_scan(
    dst: *mut u8,
    src: *const u8,
    count: usize,
    out: *mut PageopsFacts,
) {
    let cpu = Cpu::best();
    for i in 0..count {
        let mut facts = [PageFacts::default()];
        // SAFETY: by the contract.
        unsafe {
            let (to, from) = (bytes_mut(dst.add(i * PAGE), PAGE), bytes(src.add(i * PAGE), PAGE));
            cpu.copy_scan(to, from, &mut facts);
            out.add(i).write(PageopsFacts { zero: facts[0].zero, crc: facts[0].crc });
        }
    }
}

/// Encodes what changed, as QEMU's xbzrle_encode_buffer does: bytes written, 0 if nothing changed, -1 if `cap`
/// is too small, -2 if the page is longer than 16383 bytes.
///
/// # Safety
///
/// `len` bytes can be read at both pages and `cap` written at `delta`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_xbzrle_encode(
    old_page: *const u8,
    new_page: *const u8,
    len: usize,
    delta: *mut u8,
    cap: usize,
) -> i64 {
    if len > xbzrle::MAX_PAGE {
        return -2;
    }
    // SAFETY: by the contract.
    let (old, new, delta) =
        unsafe { (bytes(old_page, len), bytes(new_page, len), bytes_mut(delta, cap)) };
    Cpu::best().xbzrle_encode(old, new, delta).map_or(-1, |len| len as i64)
}

/// Applies such a delta in place: the place behind the last changed byte, or -1 if it is no delta of this page.
///
/// # Safety
///
/// `size` bytes can be read at `delta` and `len` written at `page`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_xbzrle_decode(
    delta: *const u8,
    size: usize,
    page: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: by the contract.
    let decoded = unsafe { xbzrle::decode(bytes(delta, size), bytes_mut(page, len)) };
    decoded.map_or(-1, |end| end as i64)
}

/// Writes DSA's delta record: its bytes, 0 if nothing changed, -1 if `cap` is too small, -2 if `len` is no
/// multiple of 8 or above 0x7FFF8.
///
/// # Safety
///
/// `len` bytes can be read at both blocks and `cap` written at `record`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_delta_create(
    old_block: *const u8,
    new_block: *const u8,
    len: usize,
    record: *mut u8,
    cap: usize,
) -> i64 {
    // SAFETY: by the contract.
    let made = unsafe {
        Cpu::best().delta_create(
            bytes(old_block, len),
            bytes(new_block, len),
            bytes_mut(record, cap),
        )
    };
    match made {
        Ok(Delta::Equal) => 0,
        Ok(Delta::Differs(size)) => size as i64,
        Ok(Delta::Overflow(_)) => -1,
        Err(_) => -2,
    }
}

/// Applies DSA's delta record in place. False, and nothing changed, if it is none of this block.
///
/// # Safety
///
/// `size` bytes can be read at `record` and `len` written at `block`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_delta_apply(
    record: *const u8,
    size: usize,
    block: *mut u8,
    len: usize,
) -> bool {
    // SAFETY: by the contract.
    unsafe { delta::apply(bytes(record, size), bytes_mut(block, len)).is_ok() }
}

/// Starts an engine: "cpu", "model" (four devices in software), or DSA queues such as
/// "dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0". NULL if that cannot be; `error` then says why.
///
/// # Safety
///
/// `accel` is a C string; `error` has room for `room` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_engine_new(
    accel: *const c_char,
    error: *mut c_char,
    room: usize,
) -> *mut PageopsEngine {
    // SAFETY: by the contract.
    let accel = unsafe { CStr::from_ptr(accel) }.to_string_lossy();
    match start(&accel) {
        Ok(engine) => Box::into_raw(Box::new(engine)),
        Err(what) => {
            // SAFETY: by the contract.
            unsafe { put_text(&what, error, room) };
            std::ptr::null_mut()
        }
    }
}

fn start(accel: &str) -> Result<PageopsEngine, String> {
    let mut models = Vec::new();
    let mut portals: Vec<Box<dyn Portal>> = Vec::new();
    let policy = match accel {
        "cpu" => Policy::Cpu,
        _ => Policy::Device,
    };
    if accel == "model" {
        for i in 0..4 {
            let config = model::Config { name: format!("model{i}"), ..model::Config::default() };
            let model = Model::new(config);
            portals.push(Box::new(model.portal().map_err(|e| e.to_string())?));
            models.push(model);
        }
    } else if accel != "cpu" {
        for word in accel.split(',') {
            let path = word.strip_prefix("dsa:").ok_or("use cpu, model, or dsa:QUEUE,...")?;
            let roots = Roots::default();
            let queue =
                idxd::find(&roots, path.as_ref()).and_then(|queue| Idxd::open(&roots, queue));
            portals.push(Box::new(queue.map_err(|problem| problem.to_string())?));
        }
    }
    let engine = Engine::start(Config { policy, ..Config::default() }, portals);
    Ok(PageopsEngine { engine, _models: models })
}

/// Writes a C string, cut if it must be.
///
/// # Safety
///
/// `to` has room for `room` bytes, or is NULL.
unsafe fn put_text(text: &str, to: *mut c_char, room: usize) {
    if to.is_null() || room == 0 {
        return;
    }
    let len = text.len().min(room - 1);
    // SAFETY: by the contract.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
        to.add(len).write(0);
    }
}

/// Hands operations in. NULL if one of them is of no known kind; then nothing was handed in.
///
/// # Safety
///
/// `count` operations can be read. What they read stays readable and unwritten, and what they write stays writable
/// and unread, until the job was waited for with success or the engine freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_submit(
    engine: &PageopsEngine,
    ops: *const PageopsOp,
    count: usize,
) -> *mut PageopsJob {
    // SAFETY: by the contract.
    let ops = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ops, count) } };
    let Some(ops) = ops.iter().map(op).collect::<Option<Vec<Op>>>() else {
        return std::ptr::null_mut();
    };
    // SAFETY: by the contract.
    let job = unsafe { engine.engine.submit(ops) };
    Box::into_raw(Box::new(PageopsJob { job }))
}

fn op(op: &PageopsOp) -> Option<Op> {
    let PageopsOp { kind, mut src, mut dst, len, word } = *op;
    if len == 0 {
        // Nothing is read there; it only must not be NULL.
        src = std::ptr::NonNull::dangling().as_ptr();
        dst = std::ptr::NonNull::dangling().as_ptr();
    }
    Some(match kind {
        PAGEOPS_ZERO => Op::Compval { src, len, word: 0 },
        PAGEOPS_COMPARE => Op::Compare { a: src, b: dst, len },
        PAGEOPS_COPY => Op::Copy { src, dst, len },
        PAGEOPS_FILL => Op::Fill { dst, len, word },
        PAGEOPS_CRC32C => Op::Crc { src, len, seed: word as u32 },
        PAGEOPS_COPY_CRC32C => Op::CopyCrc { src, dst, len, seed: word as u32 },
        _ => return None,
    })
}

/// Waits for a job, at most so long. True if it ended: `out` has the outcomes in the order of the operations, once.
///
/// # Safety
///
/// `out` has room for as many outcomes as the job has operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_job_wait(
    job: &PageopsJob,
    milliseconds: u64,
    out: *mut PageopsOutcome,
) -> bool {
    let Some(outcomes) = job.job.wait(Duration::from_millis(milliseconds)) else { return false };
    for (i, Outcome { value, choice, fault }) in outcomes.into_iter().enumerate() {
        let value = match value {
            Value::Equal(equal) => u64::from(equal),
            Value::Crc(crc) => u64::from(crc),
            _ => 0,
        };
        let outcome = PageopsOutcome {
            value,
            on_device: choice == Choice::Device,
            had_fault: fault.is_some(),
        };
        // SAFETY: by the contract.
        unsafe { out.add(i).write(outcome) };
    }
    true
}

/// Frees a job. That does not end its operations: their memory is used until they have ended.
///
/// # Safety
///
/// The job came from pageops_submit and is not used any more; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_job_free(job: *mut PageopsJob) {
    if !job.is_null() {
        // SAFETY: by the contract.
        drop(unsafe { Box::from_raw(job) });
    }
}

/// Who did what, why there, and what went wrong, in words; cut if there is too little room.
///
/// # Safety
///
/// `to` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_engine_describe(
    engine: &PageopsEngine,
    to: *mut c_char,
    room: usize,
) {
    // SAFETY: by the contract.
    unsafe { put_text(&engine.engine.stats().describe(), to, room) };
}

/// Finishes what was handed in and frees the engine.
///
/// # Safety
///
/// The engine came from pageops_engine_new and is not used any more; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_engine_free(engine: *mut PageopsEngine) {
    if !engine.is_null() {
        // SAFETY: by the contract.
        drop(unsafe { Box::from_raw(engine) });
    }
}
