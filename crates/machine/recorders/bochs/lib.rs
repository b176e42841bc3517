//! A library for `LD_PRELOAD` that records which instructions a machine with one processor executes under Bochs.
//!
//! Distributions build Bochs with `--enable-instrumentation`: its hooks are exported functions that do nothing, one RET padded to 16
//! bytes. This library overwrites them with jumps to its functions. It does nothing in a program that is not such a Bochs, or
//! without the environment variable `VMTAX_RECORD`, `out=PATH,on=PORT,off=PORT,end=PORT,svm=0`: the file of the record, the port writes
//! that start and stop recording, the host's port write that ends the record, and whether the processor has SVM (1) or VMX (0).
//!
//! Bochs has no hook for exits with SVM. It has one for the context switch of an entry and of an exit, and one for accesses to physical
//! memory: only an exit has written the exit code into the VMCB since the last instruction began.
//!
//! # The record
//!
//! Bytes; numbers are little-endian. It begins with `VMTAXBCH`, a 32-bit version and 32 bits of zero.
//!
//! | byte | then | meaning |
//! |---|---|---|
//! | 0 to 0x7f | | an instruction begins, this many bytes after the start of the previous one |
//! | 0x80 | 32 bits, signed | an instruction begins, at this offset from the start of the previous one |
//! | 0x81 | 64 bits | an instruction begins at this address |
//! | 0x90 to 0x98 | 64 bits | the instruction is a branch of Bochs's kind 12 to 20 (calls, returns, gates); the last address accessed |
//! | 0xa0 | 32, 64 bits | VM exit: VMX exit reason, qualification |
//! | 0xa1 | | VM entry |
//! | 0xa5 | 32, 64 bits | VM exit: low half of the SVM exit code, EXITINFO1 |
//! | 0xa6 | 16 bits | the instruction, which no guest leaves by, writes to this port |
//! | 0xa2 | 8 bits | an interrupt or exception is delivered: vector |
//! | 0xa3 | 64 bits | the time-stamp counter before the next instruction, recorded after an exit or an exception |
//! | 0xa4 | 64 bits | the same, recorded after the processor was halted |
//! | 0xff | | the mark `end` was written; the record ends |
//!
//! If this Bochs cannot be recorded, the record is `VMTAXERR`, a 32-bit length, and the reason as text.
//!
//! Left out on purpose: symbols, levels, stacks. The names and types of the hooks are those of Bochs's documentation of its
//! instrumentation (`instrument/instrumentation.txt`), the same from 2.6 to 2.7; nothing of its headers is used.
#![expect(unsafe_code, reason = "C++ code calls it, and it calls and overwrites C++ code")]

mod bochs;
mod hooks;
mod record;
mod state;

use record::{Recorder, WantedRecord};
use state::SHARED;

/// Runs when the library is loaded.
extern "C" fn loaded() {
    let Some(wanted) = std::env::var_os("VMTAX_RECORD") else { return };
    if !hooks::are_here() {
        return;
    }
    let Ok(wanted) = WantedRecord::parse(&wanted.to_string_lossy()) else { return };
    if let Err(problem) = install(&wanted) {
        // A machine that cannot be recorded still runs. If the reason cannot be written either, the record is empty.
        let _ = wanted.refuse(&problem);
    }
}

fn install(wanted: &WantedRecord) -> Result<(), String> {
    let recorder = Recorder::new(wanted)?;
    // SAFETY: no hook is redirected yet.
    unsafe { *SHARED.0.get() = Some(recorder) };
    let installed = hooks::install(wanted.svm);
    if installed.is_err() {
        // SAFETY: Bochs's main has not started, so none of the redirected hooks has been called.
        unsafe { *SHARED.0.get() = None };
    }
    installed
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
