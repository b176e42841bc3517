//! Engines and jobs.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{
    CallFailure, apart, array, block, guarded, handle, invalid, put_text, told, utf8,
};
use super::handles::Handles;
use super::{PAGEOPS_EBADMSG, PAGEOPS_EDEAD, PAGEOPS_EINVAL, PAGEOPS_EOVERFLOW};
use crate::accel::AccelChoice;
use crate::delta::{Delta, MAX_REGION};
use crate::device::idxd::Roots;
use crate::device::model::DeviceModel;
use crate::engine::{
    Choice, EngineConfig, Op, OperationOutcome, OperationValue, OperationsJob, ThreadedEngine,
};

/// Whether `src` is zero; value 1 if it is.
pub const PAGEOPS_ZERO: u32 = 0;
/// Whether `src` and `dst` are equal (neither is written); value 1 if they are.
pub const PAGEOPS_COMPARE: u32 = 1;
/// Copy `src` to `dst`.
pub const PAGEOPS_COPY: u32 = 2;
/// Fill `dst` with `word`.
pub const PAGEOPS_FILL: u32 = 3;
/// CRC-32C of `src`; `word` is 0 or the CRC of the preceding bytes.
pub const PAGEOPS_CRC32C: u32 = 4;
/// Copy `src` to `dst`, and compute its CRC-32C.
pub const PAGEOPS_COPY_CRC32C: u32 = 5;
/// Write the delta from `src` to `dst` to `record` (neither block is written); value is the record's size, 0 if they are equal;
/// result
/// PAGEOPS_EOVERFLOW if `record_len` is too small. A device executes it if addresses are multiples of 8 and `record_len` is at
/// least 80.
pub const PAGEOPS_DELTA_CREATE: u32 = 6;
/// Apply `record` to `dst`; result PAGEOPS_EBADMSG, and `dst` partly changed, if the record does not belong to this block.
pub const PAGEOPS_DELTA_APPLY: u32 = 7;

/// An operation for an engine. Members that the kind does not use are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageopsOp {
    /// PAGEOPS_ZERO, ...
    pub kind: u32,
    /// Source.
    pub src: *const u8,
    /// Destination, or the block to compare with.
    pub dst: *mut u8,
    /// Length of `src` and `dst`, bytes.
    pub len: usize,
    /// Word to fill with, or seed of a CRC.
    pub word: u64,
    /// A delta record.
    pub record: *mut u8,
    /// Length or capacity of the record, bytes.
    pub record_len: usize,
}

/// Outcome of an operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageopsOutcome {
    /// 1 or 0, a CRC, or the size of a delta record.
    pub value: u64,
    /// 0, or PAGEOPS_EOVERFLOW or PAGEOPS_EBADMSG of a delta.
    pub result: i32,
    /// Completed by a device.
    pub on_device: bool,
    /// A fault occurred; the value is correct nevertheless.
    pub had_fault: bool,
}

/// Statistics of an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageopsCounts {
    /// Operations completed by devices.
    pub on_device: u64,
    /// Operations completed by the CPU, for any reason.
    pub on_cpu: u64,
    /// Operations with a fault.
    pub faults: u64,
    /// Batches submitted to devices.
    pub batches: u64,
    /// Queues of the engine.
    pub queues: u64,
    /// Of these, queues that were removed after a failure.
    pub dead_queues: u64,
}

/// Device queues and the thread that serves them. A handle: never dereference it.
pub struct PageopsEngine {
    _private: [u8; 0],
}

/// Submitted operations. A handle: never dereference it.
pub struct PageopsJob {
    _private: [u8; 0],
}

/// An engine of this process.
pub(super) struct RunningEngine {
    pub(super) engine: Arc<ThreadedEngine>,
    /// Devices in software; they end after the engine.
    _models: Vec<DeviceModel>,
    pid: u32,
}

struct HandedJob {
    job: OperationsJob,
    count: usize,
}

static ENGINES: Handles<RunningEngine> = Handles::new("engine");
static JOBS: Handles<HandedJob> = Handles::new("job");

/// The engine of a handle, in the process that started it.
pub(super) fn running(engine: *const PageopsEngine) -> Result<Arc<RunningEngine>, CallFailure> {
    let found = ENGINES.get(engine)?;
    match found.pid == std::process::id() {
        true => Ok(found),
        false => Err(invalid("the engine was started before a fork; start one in this process")),
    }
}

/// Starts an engine: "auto" (DSA queues that can be used, and the processor), "cpu", "model" (four devices in software), or DSA
/// queues such as "dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0". NULL on an error; `error` then has the reason. One engine serves all
/// threads of a process; it does not survive a fork.
///
/// Threads: any, at any time.
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
    unsafe {
        handle(error, room, || {
            let accel = AccelChoice::parse(utf8("accel", accel)?).map_err(invalid)?;
            let devices =
                accel.open(&Roots::default()).map_err(|problem| invalid(problem.to_string()))?;
            let config = EngineConfig { policy: devices.policy, ..EngineConfig::default() };
            Ok(ENGINES.put(RunningEngine {
                engine: Arc::new(ThreadedEngine::start(config, devices.portals)),
                _models: devices.models,
                pid: std::process::id(),
            }))
        })
    }
}

/// Submits operations. NULL if one of them is invalid; then none was submitted, and `error` names the operation and the reason.
/// A job without operations has ended. The array itself may be freed when this returns.
///
/// Threads: any, at any time, with one engine.
///
/// # Safety
///
/// `count` operations can be read; `error` has room for `room` bytes, or is NULL. Sources must stay readable, and destinations
/// writable and unread, until a wait for the job succeeded or pageops_engine_free returned. Sources may be written to meanwhile
/// (as a VM's memory is): the value is then of the old or the new bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_submit(
    engine: *const PageopsEngine,
    ops: *const PageopsOp,
    count: usize,
    error: *mut c_char,
    room: usize,
) -> *mut PageopsJob {
    // SAFETY: by the contract.
    unsafe {
        handle(error, room, || {
            /// Far beyond any practical number; an engine counts in 32 bits.
            const MOST: usize = 1 << 24;
            let running = running(engine)?;
            array("ops", ops, count)?;
            if count > MOST {
                return Err(invalid(format!("{count} operations: at most {MOST} in a job")));
            }
            let ops = if count == 0 { &[] } else { std::slice::from_raw_parts(ops, count) };
            let at = |(i, one): (usize, &PageopsOp)| {
                op(one).map_err(|f| invalid(format!("operation {i}: {}", f.what)))
            };
            let ops = ops.iter().enumerate().map(at).collect::<Result<Vec<Op>, _>>()?;
            Ok(JOBS.put(HandedJob { job: running.engine.submit(ops), count }))
        })
    }
}

/// An operation of C as one of the engine, if it is possible.
fn op(op: &PageopsOp) -> Result<Op, CallFailure> {
    let PageopsOp { kind, mut src, mut dst, len, word, mut record, record_len } = *op;
    let (reads, writes) = (("src", src, len), ("dst", dst.cast_const(), len));
    let delta = ("record", record.cast_const(), record_len);
    match kind {
        PAGEOPS_ZERO | PAGEOPS_CRC32C => block("src", src, len)?,
        PAGEOPS_FILL => block("dst", dst, len)?,
        PAGEOPS_COPY | PAGEOPS_COPY_CRC32C => apart(reads, writes)?,
        PAGEOPS_COMPARE => block("src", src, len).and_then(|()| block("dst", dst, len))?,
        PAGEOPS_DELTA_CREATE | PAGEOPS_DELTA_APPLY => {
            if kind == PAGEOPS_DELTA_CREATE {
                apart(delta, reads)?;
            }
            apart(delta, writes)?;
            if !len.is_multiple_of(8) || len > MAX_REGION {
                return Err(invalid(format!("{len} bytes: a multiple of 8, at most {MAX_REGION}")));
            }
        }
        _ => return Err(invalid(format!("kind {kind} is none that this library knows"))),
    }
    let some = std::ptr::NonNull::<u8>::dangling().as_ptr();
    if len == 0 {
        // Nothing is read there; it only must not be NULL.
        (src, dst) = (some, some);
    }
    if record_len == 0 {
        record = some;
    }
    // A region of 0x7FFF8 bytes has no longer record.
    let record_len = u32::try_from(record_len).unwrap_or(u32::MAX);
    Ok(match kind {
        PAGEOPS_ZERO => Op::Compval { src, len, word: 0 },
        PAGEOPS_COMPARE => Op::Compare { a: src, b: dst, len },
        PAGEOPS_COPY => Op::Copy { src, dst, len },
        PAGEOPS_FILL => Op::Fill { dst, len, word },
        PAGEOPS_CRC32C => Op::Crc { src, len, seed: word as u32 },
        PAGEOPS_COPY_CRC32C => Op::CopyCrc { src, dst, len, seed: word as u32 },
        PAGEOPS_DELTA_CREATE => {
            Op::DeltaCreate { old: src, new: dst, record, len, cap: record_len }
        }
        _ => Op::DeltaApply { record, size: record_len, region: dst, len },
    })
}

/// Waits for a job with a timeout: 1 if it has ended, 0 on a timeout (wait again), PAGEOPS_EINVAL, PAGEOPS_EDEAD. If it has
/// ended, `out` receives the outcomes in the order of the operations, in every call and for every waiting thread. With `out`
/// NULL it only waits.
///
/// Threads: any, at any time, with one job, each with an `out` of its own.
///
/// # Safety
///
/// `out` has room for `count` outcomes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_job_wait(
    job: *const PageopsJob,
    milliseconds: u64,
    out: *mut PageopsOutcome,
    count: usize,
) -> i32 {
    guarded(|| {
        let handed = JOBS.get(job)?;
        if !out.is_null() {
            array("out", out, count)?;
            if count < handed.count {
                return Err(invalid(format!("room for {count} of {} outcomes", handed.count)));
            }
        }
        let Some(outcomes) = handed.job.wait(Duration::from_millis(milliseconds)) else {
            return Ok(if handed.job.is_abandoned() { PAGEOPS_EDEAD } else { 0 });
        };
        if !out.is_null() {
            for (i, outcome) in outcomes.into_iter().enumerate() {
                // SAFETY: by the contract, and there is room for all.
                unsafe { out.add(i).write(outcome_of(outcome)) };
            }
        }
        Ok(1)
    })
}

fn outcome_of(OperationOutcome { value, choice, fault }: OperationOutcome) -> PageopsOutcome {
    let (value, result) = match value {
        OperationValue::Equal(equal) => (u64::from(equal), 0),
        OperationValue::Crc(crc) => (u64::from(crc), 0),
        OperationValue::Delta(Delta::Equal) | OperationValue::Done => (0, 0),
        OperationValue::Delta(Delta::Differs(size)) => (size as u64, 0),
        OperationValue::Delta(Delta::Overflow(_)) => (0, PAGEOPS_EOVERFLOW),
        OperationValue::Invalid => (0, PAGEOPS_EBADMSG),
    };
    let on_device = choice == Choice::Device;
    PageopsOutcome { value, result, on_device, had_fault: fault.is_some() }
}

/// Frees a job: 0, or PAGEOPS_EINVAL. NULL is allowed. This does not end its operations: their memory is used until they have
/// ended.
///
/// Threads: any, at any time; a thread that waits for the job continues to wait.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_job_free(job: *mut PageopsJob) -> i32 {
    guarded(|| {
        if !job.is_null() {
            JOBS.remove(job)?;
        }
        Ok(0)
    })
}

/// Statistics of the engine. 0, or PAGEOPS_EINVAL.
///
/// Threads: any, at any time, with one engine.
///
/// # Safety
///
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_engine_counts(
    engine: *const PageopsEngine,
    out: *mut PageopsCounts,
) -> i32 {
    guarded(|| {
        let running = running(engine)?;
        array("out", out, 1)?;
        let stats = running.engine.stats();
        let on_device = stats.choices.get(&Choice::Device).copied().unwrap_or(0);
        let all: u64 = stats.choices.values().sum();
        let counts = PageopsCounts {
            on_device,
            on_cpu: all - on_device,
            faults: stats.faults.values().sum(),
            batches: stats.batches,
            queues: stats.queues.len() as u64,
            dead_queues: stats.queues.iter().filter(|q| q.dead.is_some()).count() as u64,
        };
        // SAFETY: by the contract.
        unsafe { out.write(counts) };
        Ok(0)
    })
}

/// A description of the operations by backend, with reasons and faults, as text; truncated to `room`. 0, or PAGEOPS_EINVAL.
///
/// Threads: any, at any time, with one engine.
///
/// # Safety
///
/// `to` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pageops_engine_describe(
    engine: *const PageopsEngine,
    to: *mut c_char,
    room: usize,
) -> i32 {
    // SAFETY: by the contract; an error's sentence goes where the description would.
    unsafe {
        told(to, room, || {
            let running = running(engine)?;
            if to.is_null() {
                return Err(invalid("to is NULL"));
            }
            put_text(&running.engine.stats().describe(), to, room);
            Ok(0)
        })
    }
}

/// Finishes all submitted operations and frees the engine: 0, or PAGEOPS_EINVAL. NULL is allowed. Its jobs can still be waited
/// for; a checkpoint that is being written with it keeps it until it is finished.
///
/// Threads: one, while no other is in a call with this engine.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_engine_free(engine: *mut PageopsEngine) -> i32 {
    guarded(|| {
        if engine.is_null() {
            return Ok(0);
        }
        let found = ENGINES.remove(engine)?;
        if found.pid != std::process::id() {
            // Its thread is the parent's: there is nothing here to end or to wait for.
            std::mem::forget(found);
            return Ok(PAGEOPS_EINVAL);
        }
        Ok(0)
    })
}
