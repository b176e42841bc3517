//! Writes the record: see the top of the crate.

use std::fs::File;
use std::io::{self, Write};

use crate::bochs::BochsFunctions;

const HEADER: &[u8; 16] = b"VMTAXBCH\x02\0\0\0\0\0\0\0";

const NEAR: u8 = 0x80;
const FAR: u8 = 0x81;
const BRANCH: u8 = 0x90;
const LEAVES: u8 = 0xa0;
const ENTERS: u8 = 0xa1;
const DELIVERS: u8 = 0xa2;
const CLOCK: u8 = 0xa3;
const CLOCK_AFTER_HALT: u8 = 0xa4;
const LEAVES_SVM: u8 = 0xa5;
const HOST_WRITES: u8 = 0xa6;
const END: u8 = 0xff;

/// Bochs's kinds of branch that are recorded: `BX_INSTR_IS_CALL` to `BX_INSTR_IS_SYSEXIT`.
const FIRST_KIND: u32 = 12;
const KINDS: u32 = 9;
/// The exit of an instruction that accesses a port, whose qualification has the port in bits 16 to 31 and bit 3 set for a read.
const PORT_ACCESS: u32 = 30;
const IS_READ: u64 = 8;
/// The same with SVM, whose EXITINFO1 has the port in bits 16 to 31 and bit 0 set for a read.
const SVM_PORT_ACCESS: u32 = 0x7b;
const SVM_IS_READ: u64 = 1;
/// From the exit code to EXITINFO1.
const INFORMATION: u64 = 8;

/// Size of a write, in bytes.
const PIECE: usize = 256 << 10;

/// What `VMTAX_RECORD` asks for.
pub(crate) struct WantedRecord {
    out: String,
    marks: BochsMarks,
    pub(crate) svm: bool,
}

impl WantedRecord {
    pub(crate) fn parse(text: &str) -> Result<WantedRecord, ()> {
        let value = |key: &str| {
            text.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).ok_or(())
        };
        let port = |key: &str| value(key)?.parse().map_err(|_| ());
        let marks = BochsMarks { on: port("on")?, off: port("off")?, end: port("end")? };
        Ok(WantedRecord { out: value("out")?.to_owned(), marks, svm: value("svm")? == "1" })
    }

    fn open(&self) -> io::Result<File> {
        File::options().append(true).open(&self.out)
    }

    /// Writes the reason why nothing is recorded.
    pub(crate) fn refuse(&self, problem: &str) -> io::Result<()> {
        let mut record = b"VMTAXERR".to_vec();
        record.extend_from_slice(&(problem.len() as u32).to_le_bytes());
        record.extend_from_slice(problem.as_bytes());
        record.resize(record.len().next_multiple_of(4), 0);
        self.open()?.write_all(&record)
    }
}

/// Ports whose writes are marks.
#[derive(Clone, Copy)]
struct BochsMarks {
    on: u16,
    off: u16,
    end: u16,
}

/// Why the clock is recorded before the next instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingClock {
    Nothing,
    /// An exit or an exception.
    Event,
    Halt,
}

/// The state of a recording.
pub(crate) struct Recorder {
    bochs: BochsFunctions,
    marks: BochsMarks,
    /// The last address accessed.
    pub(crate) accessed: u64,
    out: Option<File>,
    unwritten: Vec<u8>,
    on: bool,
    rip: u64,
    pending: PendingClock,
    /// A VM exit was reported; the hook of the context switch follows.
    leaving: bool,
    /// Where the VMCB's exit code was written since the last instruction began.
    pub(crate) exit_code: Option<u64>,
}

impl Recorder {
    pub(crate) fn new(wanted: &WantedRecord) -> Result<Recorder, String> {
        Ok(Recorder {
            bochs: BochsFunctions::find()?,
            marks: wanted.marks,
            accessed: 0,
            out: Some(wanted.open().map_err(|e| format!("{}: {e}", wanted.out))?),
            unwritten: HEADER.to_vec(),
            on: false,
            rip: 0,
            pending: PendingClock::Nothing,
            leaving: false,
            exit_code: None,
        })
    }

    #[inline]
    pub(crate) fn begin(&mut self) {
        self.exit_code = None;
        if !self.on {
            return;
        }
        if self.pending != PendingClock::Nothing {
            self.clock();
        }
        let rip = self.bochs.rip();
        let step = rip.wrapping_sub(self.rip);
        self.rip = rip;
        if step < u64::from(NEAR) {
            self.unwritten.push(step as u8);
        } else if let Ok(step) = i32::try_from(step.cast_signed()) {
            self.put(NEAR, &step.to_le_bytes());
        } else {
            self.put(FAR, &rip.to_le_bytes());
        }
        if self.unwritten.len() > PIECE {
            self.flush();
        }
    }

    /// The current instruction is a branch of this kind (Bochs's numbering).
    #[inline]
    pub(crate) fn branch(&mut self, kind: u32) {
        let kind = kind.wrapping_sub(FIRST_KIND);
        if self.on && kind < KINDS {
            let accessed = self.accessed;
            self.put(BRANCH + kind as u8, &accessed.to_le_bytes());
        }
    }

    pub(crate) fn leaves(&mut self, reason: u32, qualification: u64) {
        self.leaving = true;
        let is_write = reason & 0xffff == PORT_ACCESS && qualification & IS_READ == 0;
        self.left((LEAVES, is_write), reason, qualification);
    }

    /// VM exit with SVM.
    fn leaves_svm(&mut self, exit_code: u64) {
        let word = |at| self.bochs.memory(at).unwrap_or(u64::MAX);
        let (reason, information) = (word(exit_code) as u32, word(exit_code + INFORMATION));
        let is_write = reason == SVM_PORT_ACCESS && information & SVM_IS_READ == 0;
        self.left((LEAVES_SVM, is_write), reason, information);
    }

    fn left(&mut self, (word, is_write): (u8, bool), reason: u32, qualification: u64) {
        let port = is_write.then_some((qualification >> 16) as u16);
        if port == Some(self.marks.on) && !self.on && self.out.is_some() {
            self.on = true;
            self.rip = 0;
            self.clock();
        }
        if self.on {
            self.put(word, &reason.to_le_bytes());
            self.unwritten.extend_from_slice(&qualification.to_le_bytes());
            self.happened(PendingClock::Event);
        }
        if port == Some(self.marks.off) && self.on {
            self.on = false;
            self.flush();
        }
    }

    /// The processor switches between a guest and its host.
    pub(crate) fn switches(&mut self) {
        if let Some(exit_code) = self.exit_code.take() {
            self.leaves_svm(exit_code);
        } else if !std::mem::take(&mut self.leaving) && self.on {
            self.unwritten.push(ENTERS);
        }
    }

    /// An exception is raised.
    pub(crate) fn faults(&mut self) {
        self.happened(PendingClock::Event);
    }

    /// An exception or interrupt is delivered.
    pub(crate) fn delivers(&mut self, vector: u32) {
        if self.on {
            self.put(DELIVERS, &[vector as u8]);
        }
    }

    pub(crate) fn halts(&mut self) {
        self.happened(PendingClock::Halt);
    }

    fn happened(&mut self, what: PendingClock) {
        if self.pending != PendingClock::Halt {
            self.pending = what;
        }
    }

    /// The host writes to a port.
    pub(crate) fn host_writes(&mut self, port: u16) {
        if port == self.marks.on && !self.on && self.out.is_some() {
            self.on = true;
            self.rip = 0;
            // The clock has not advanced by this instruction yet.
            self.happened(PendingClock::Event);
        }
        if self.on {
            self.put(HOST_WRITES, &port.to_le_bytes());
        }
        if port == self.marks.off && self.on {
            self.on = false;
            self.flush();
        }
        if port == self.marks.end && self.out.is_some() {
            self.on = false;
            self.unwritten.push(END);
            self.flush();
            self.out = None;
        }
    }

    fn clock(&mut self) {
        let word = match std::mem::replace(&mut self.pending, PendingClock::Nothing) {
            PendingClock::Halt => CLOCK_AFTER_HALT,
            PendingClock::Nothing | PendingClock::Event => CLOCK,
        };
        let tsc = self.bochs.tsc();
        self.put(word, &tsc.to_le_bytes());
    }

    fn put(&mut self, byte: u8, more: &[u8]) {
        self.unwritten.push(byte);
        self.unwritten.extend_from_slice(more);
    }

    /// A write error ends the recording: the reader has exited, or it notices that the end mark is missing.
    fn flush(&mut self) {
        if let Some(out) = &mut self.out
            && out.write_all(&self.unwritten).is_err()
        {
            self.out = None;
            self.on = false;
        }
        self.unwritten.clear();
    }
}
