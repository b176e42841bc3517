//! Bochs's instrumentation hooks, and the functions that replace them.

use std::ffi::{CStr, c_int, c_uint, c_void};

use crate::bochs::symbol;
use crate::state::recorder;

unsafe extern "C" {
    fn mprotect(start: *mut c_void, bytes: usize, access: c_int) -> c_int;
    fn signal(signal: c_int, handler: usize) -> usize;
}

const SIGPIPE: c_int = 13;
/// `SIG_IGN`.
const IGNORE: usize = 1;

const READ: c_int = 1;
const WRITE: c_int = 2;
const EXECUTE: c_int = 4;
const PAGE: usize = 4096;
/// What a hook consists of.
const RET: u8 = 0xc3;
/// `JMP [RIP]`, followed by the address.
const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

const BEFORE: &CStr = c"_Z25bx_instr_before_executionjP15bxInstruction_c";

/// `BX_INSTR_CONTEXT_SWITCH`, for `bx_instr_tlb_cntrl`: VM entry or VM exit.
const CONTEXT_SWITCH: c_uint = 14;

/// `BX_WRITE`, for `bx_instr_phy_access`.
const WRITES: c_uint = 1;
/// Where a VMCB has the code of an exit (AMD's manual, volume 2, appendix B).
const EXIT_CODE: u64 = 0x70;

/// Whether this program has the hooks.
pub(crate) fn are_here() -> bool {
    !symbol(BEFORE).is_null()
}

extern "C" fn before(_cpu: c_uint, _instruction: *mut c_void) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.begin();
    }
}

extern "C" fn near(_cpu: c_uint, what: c_uint, _from: u64, _to: u64) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.branch(what);
    }
}

extern "C" fn far(_cpu: c_uint, what: c_uint, _cs: u16, _from: u64, _new_cs: u16, _to: u64) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.branch(what);
    }
}

extern "C" fn accesses(
    _cpu: c_uint,
    address: u64,
    _physical: u64,
    _bytes: c_uint,
    _kind: c_uint,
    _how: c_uint,
) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.accessed = address;
    }
}

extern "C" fn physical(_cpu: c_uint, address: u64, bytes: c_uint, _memory: c_uint, how: c_uint) {
    if bytes != 8 || how != WRITES || address % PAGE as u64 != EXIT_CODE {
        return;
    }
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.exit_code = Some(address);
    }
}

extern "C" fn leaves(_cpu: c_uint, reason: c_uint, qualification: u64) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.leaves(reason, qualification);
    }
}

extern "C" fn translations(_cpu: c_uint, what: c_uint, _cr3: u64) {
    if what != CONTEXT_SWITCH {
        return;
    }
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.switches();
    }
}

extern "C" fn delivers(_cpu: c_uint, vector: c_uint) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.delivers(vector);
    }
}

extern "C" fn faults(_cpu: c_uint, _vector: c_uint, _error: c_uint) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.faults();
    }
}

extern "C" fn halts(_cpu: c_uint) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.halts();
    }
}

extern "C" fn writes(port: u16, _bytes: c_uint, _value: c_uint) {
    // SAFETY: asked for once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.host_writes(port);
    }
}

/// Redirects the hooks to this library; those for SVM too if the processor has it.
pub(crate) fn install(svm: bool) -> Result<(), String> {
    // If the reader exits, recording stops, but Bochs continues.
    // SAFETY: the signal is ignored, so that no handler runs.
    unsafe { signal(SIGPIPE, IGNORE) };
    let hooks: [(&CStr, *const ()); 10] = [
        (BEFORE, before as *const ()),
        (c"_Z22bx_instr_ucnear_branchjjmm", near as *const ()),
        (c"_Z19bx_instr_far_branchjjtmtm", far as *const ()),
        (c"_Z19bx_instr_lin_accessjmmjjj", accesses as *const ()),
        (c"_Z15bx_instr_vmexitjjm", leaves as *const ()),
        (c"_Z18bx_instr_tlb_cntrljjm", translations as *const ()),
        (c"_Z18bx_instr_interruptjj", delivers as *const ()),
        (c"_Z18bx_instr_exceptionjjj", faults as *const ()),
        (c"_Z12bx_instr_hltj", halts as *const ()),
        (c"_Z13bx_instr_outptjj", writes as *const ()),
    ];
    hooks.iter().try_for_each(|(name, to)| lead(name, *to))?;
    if svm { lead(c"_Z19bx_instr_phy_accessjmjjj", physical as *const ()) } else { Ok(()) }
}

/// Overwrites a hook with a jump.
fn lead(name: &CStr, to: *const ()) -> Result<(), String> {
    let at = symbol(name).cast::<u8>();
    let problem = |what: &str| Err(format!("this Bochs has {what} {}", name.to_string_lossy()));
    // SAFETY: a function has at least one byte.
    if at.is_null() || unsafe { at.read() } != RET {
        return problem("no empty hook");
    }
    let mut code = JUMP.to_vec();
    code.extend((to as usize).to_le_bytes());
    let page = at.wrapping_sub(at as usize % PAGE).cast::<c_void>();
    // SAFETY: the two pages are the program's code, of which nothing runs now; the hook has room for 16 bytes, which are padding
    // but for the RET.
    unsafe {
        if mprotect(page, 2 * PAGE, READ | WRITE | EXECUTE) != 0 {
            return problem("a write-protected");
        }
        std::ptr::copy_nonoverlapping(code.as_ptr(), at, code.len());
        if mprotect(page, 2 * PAGE, READ | EXECUTE) != 0 {
            return problem("an unprotected");
        }
    }
    Ok(())
}
