//! Reads the record of the library inside Bochs; `crates/machine/recorders/bochs` documents the format.
//!
//! The record has the address of each instruction that begins, calls and returns, and the host's entries and exits, of VMX or SVM. The host enters and
//! leaves L2 too. After L1's VMRESUME or VMRUN it enters L2, until it has executed KVM's function that hands an exit to L1.
//!
//! Bochs's clock advances by one for each instruction that begins, completed or not. It also does for an exit or exception that comes
//! between two instructions, or when the next one is fetched; that tick is counted as an instruction of the function that handles it. The
//! record has the clock after each exit and exception, so instructions that it lacks are found at the next one.

use std::io::Read;
use std::ops::Range;

use super::flow::{ExitCompletion, Flow, FunctionRun};
use super::symbols::{CodeGate, LevelSymbols, is_payload};
use super::words::StreamWords;
use super::{RecordBatches, RecordProblem, source};

pub(super) const MAGIC: [u8; 8] = *b"VMTAXBCH";
const VERSION: u32 = 2;

const NEAR: u8 = 0x80;
const FAR: u8 = 0x81;
/// Bochs's kinds of branch, starting with `BX_INSTR_IS_CALL`.
const CALL: u8 = 0x90;
const CALL_INDIRECT: u8 = 0x91;
const RET: u8 = 0x92;
const IRET: u8 = 0x93;
const INT: u8 = 0x94;
const SYSCALL: u8 = 0x95;
const SYSRET: u8 = 0x96;
const SYSENTER: u8 = 0x97;
const SYSEXIT: u8 = 0x98;
const LEAVES: u8 = 0xa0;
const ENTERS: u8 = 0xa1;
const DELIVERS: u8 = 0xa2;
const CLOCK: u8 = 0xa3;
const CLOCK_AFTER_HALT: u8 = 0xa4;
const LEAVES_SVM: u8 = 0xa5;
const HOST_WRITES: u8 = 0xa6;
const END: u8 = 0xff;

/// KVM's functions that hand an exit of L2 to L1, by their names in different versions.
const REFLECTS: [&str; 3] = ["nested_vmx_vmexit", "__nested_vmx_vmexit", "nested_svm_vmexit"];
/// The first vector of interrupts; lower ones are exceptions.
const INTERRUPTS: u8 = 32;
const NMI: u8 = 2;

/// Exit reasons (SDM volume 3, appendix C) whose instruction, or event, has a name.
const CAUSES: [(u16, &str); 35] = [
    (0, "exception"),
    (1, "interrupt"),
    (2, "triple fault"),
    (7, "interrupt window"),
    (8, "nmi window"),
    (10, "cpuid"),
    (12, "hlt"),
    (13, "invd"),
    (14, "invlpg"),
    (15, "rdpmc"),
    (16, "rdtsc"),
    (18, "vmcall"),
    (19, "vmclear"),
    (VMLAUNCH, "vmlaunch"),
    (21, "vmptrld"),
    (22, "vmptrst"),
    (23, "vmread"),
    (VMRESUME, "vmresume"),
    (25, "vmwrite"),
    (26, "vmxoff"),
    (27, "vmxon"),
    (28, "mov cr"),
    (29, "mov dr"),
    (31, "rdmsr"),
    (32, "wrmsr"),
    (36, "mwait"),
    (39, "monitor"),
    (40, "pause"),
    (48, "memory access"),
    (49, "memory access"),
    (50, "invept"),
    (51, "rdtscp"),
    (52, "preemption timer"),
    (54, "wbinvd"),
    (55, "xsetbv"),
];
const VMLAUNCH: u16 = 20;
const VMRESUME: u16 = 24;
const PORT_ACCESS: u16 = 30;
/// Bits of the qualification of a port access.
const IS_READ: u64 = 8;
const IS_STRING: u64 = 16;
/// Of an exit reason: the entry failed.
const ENTRY_FAILED: u32 = 1 << 31;

/// The same for SVM (AMD's manual, volume 2, appendix C): the first and the last exit code, and the name.
const SVM_CAUSES: [(u32, u32, &str); 29] = [
    (0x00, 0x1f, "mov cr"),
    (0x20, 0x3f, "mov dr"),
    (0x40, 0x5f, "exception"),
    (0x60, 0x60, "interrupt"),
    (0x61, 0x61, "nmi"),
    (0x64, 0x64, "interrupt window"),
    (0x65, 0x65, "mov cr"),
    (0x6e, 0x6e, "rdtsc"),
    (0x6f, 0x6f, "rdpmc"),
    (0x72, 0x72, "cpuid"),
    (0x74, 0x74, "iret"),
    (0x76, 0x76, "invd"),
    (0x77, 0x77, "pause"),
    (0x78, 0x78, "hlt"),
    (0x79, 0x79, "invlpg"),
    (0x7f, 0x7f, "triple fault"),
    (VMRUN, VMRUN, "vmrun"),
    (0x81, 0x81, "vmmcall"),
    (0x82, 0x82, "vmload"),
    (0x83, 0x83, "vmsave"),
    (0x84, 0x84, "stgi"),
    (0x85, 0x85, "clgi"),
    (0x87, 0x87, "rdtscp"),
    (0x89, 0x89, "wbinvd"),
    (0x8a, 0x8a, "monitor"),
    (0x8b, 0x8b, "mwait"),
    (0x8d, 0x8d, "xsetbv"),
    (0x7a, 0x7a, "invlpga"),
    (0x400, 0x400, "memory access"),
];
const VMRUN: u32 = 0x80;
const SVM_PORT_ACCESS: u32 = 0x7b;
const SVM_MSR_ACCESS: u32 = 0x7c;
/// Bits of EXITINFO1 of a port access.
const SVM_IS_READ: u64 = 1;
const SVM_IS_STRING: u64 = 4;
/// The exit code of an entry that failed.
const INVALID: u32 = u32::MAX;

/// An exit as the record has it, in words that VMX and SVM have in common.
#[derive(Clone, Copy, Debug)]
struct BochsExit {
    cause: &'static str,
    /// The port, of an OUT.
    writes: Option<u16>,
    /// The host's instruction did not enter the guest.
    entry_failed: bool,
    /// The guest's instruction enters a guest of its own.
    enters_guest: bool,
}

fn port_access(is_read: bool, is_string: bool) -> &'static str {
    match (is_read, is_string) {
        (true, false) => "in",
        (false, false) => "out",
        (true, true) => "ins",
        (false, true) => "outs",
    }
}

impl BochsExit {
    fn vmx(reason: u32, qualification: u64) -> BochsExit {
        let basic = reason as u16;
        let cause = if basic == PORT_ACCESS {
            port_access(qualification & IS_READ != 0, qualification & IS_STRING != 0)
        } else {
            CAUSES.iter().find(|(one, _)| *one == basic).map_or(OTHER, |(_, name)| name)
        };
        BochsExit {
            cause,
            writes: (cause == "out").then_some((qualification >> 16) as u16),
            entry_failed: reason & ENTRY_FAILED != 0,
            enters_guest: basic == VMLAUNCH || basic == VMRESUME,
        }
    }

    fn svm(code: u32, information: u64) -> BochsExit {
        let named = || {
            let found = SVM_CAUSES.iter().find(|(first, last, _)| (*first..=*last).contains(&code));
            found.map_or(OTHER, |(_, _, name)| name)
        };
        let cause = match code {
            SVM_PORT_ACCESS => {
                port_access(information & SVM_IS_READ != 0, information & SVM_IS_STRING != 0)
            }
            SVM_MSR_ACCESS if information == 0 => "rdmsr",
            SVM_MSR_ACCESS => "wrmsr",
            _ => named(),
        };
        BochsExit {
            cause,
            writes: (cause == "out").then_some((information >> 16) as u16),
            entry_failed: code == INVALID,
            enters_guest: code == VMRUN,
        }
    }
}

const OTHER: &str = "other exit";

/// What is known about the current level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BochsLevel {
    /// Nothing is being recorded.
    Off,
    /// The host runs and has not entered a guest yet.
    Started,
    On,
}

/// The last recorded clock, and the events since then.
#[derive(Clone, Copy, Debug, Default)]
struct BochsClock {
    tsc: Option<u64>,
    /// Instructions.
    begun: u64,
    /// Exits and exceptions, each of which may have come without an instruction.
    events: u64,
    /// Those of them that did, and are not counted yet.
    ticks: u32,
    /// Time that the processor was halted, in all.
    idle: u64,
}

/// The state of reading.
struct BochsReader<'a, 'b, R> {
    words: StreamWords<R>,
    flow: Flow<'a>,
    symbols: &'a [LevelSymbols; 3],
    batches: &'b mut RecordBatches,
    /// Where the instruction begins that began last.
    address: u64,
    /// Function and source line of the last instructions, how many they are, and the addresses around them with both.
    run: FunctionRun,
    range: Range<u64>,
    progress: BochsLevel,
    /// The host has entered a guest, whose first instruction is still to come.
    entering: bool,
    /// An event was delivered, whose handler is still to come.
    delivered: Option<u8>,
    clock: BochsClock,
    /// [`REFLECTS`].
    reflects: [Option<u32>; 3],
    /// Where a program of the host reads the clock next.
    clock_at: Option<u64>,
}

/// Reads a record from behind its magic to its end.
pub(super) fn read(
    mut words: StreamWords<impl Read>,
    symbols: &[LevelSymbols; 3],
    batches: &mut RecordBatches,
) -> Result<(), RecordProblem> {
    words.version(VERSION)?;
    words.next()?;
    let mut reader = BochsReader {
        words,
        flow: Flow::new(symbols),
        symbols,
        batches,
        address: 0,
        run: FunctionRun { function: 0, line: source::UNKNOWN, count: 0 },
        range: 0..0,
        progress: BochsLevel::Off,
        entering: false,
        delivered: None,
        clock: BochsClock::default(),
        reflects: REFLECTS.map(|name| symbols[0].id(name)),
        clock_at: None,
    };
    reader.all()?;
    let labels = std::mem::take(&mut reader.flow.labels);
    batches.labels = labels;
    Ok(())
}

impl<R: Read> BochsReader<'_, '_, R> {
    fn all(&mut self) -> Result<(), RecordProblem> {
        loop {
            match self.words.byte()? {
                step @ 0..NEAR => self.begin(self.address.wrapping_add(step.into()))?,
                NEAR => {
                    let step = i64::from(self.words.next()?.cast_signed());
                    self.begin(self.address.wrapping_add_signed(step))?;
                }
                FAR => {
                    let address = self.words.double()?;
                    self.begin(address)?;
                }
                kind @ CALL..=SYSEXIT => {
                    let accessed = self.words.double()?;
                    self.branch(kind, accessed)?;
                }
                kind @ (LEAVES | LEAVES_SVM) => {
                    let (reason, more) = (self.words.next()?, self.words.double()?);
                    let of = if kind == LEAVES { BochsExit::vmx } else { BochsExit::svm };
                    self.leave(of(reason, more))?;
                }
                HOST_WRITES => {
                    let port = u16::from_le_bytes([self.words.byte()?, self.words.byte()?]);
                    if self.batches.marks.has(port) {
                        self.host_mark(port);
                    }
                }
                ENTERS => self.enter()?,
                DELIVERS => {
                    self.delivered = Some(self.words.byte()?);
                    self.clock.events += 1;
                }
                CLOCK => self.clock(false)?,
                CLOCK_AFTER_HALT => self.clock(true)?,
                END => return Ok(()),
                other => {
                    return Err(self.words.problem(&format!("{other:#x} is not a type of entry")));
                }
            }
        }
    }

    /// An instruction begins.
    #[inline]
    fn begin(&mut self, address: u64) -> Result<(), RecordProblem> {
        self.address = address;
        if self.progress == BochsLevel::Off {
            return Err(self.words.problem("an instruction begins before the record does"));
        }
        if self.entering || self.delivered.is_some() {
            self.arrive(address);
        }
        if !self.range.contains(&address) {
            self.counted();
            let level = usize::from(self.flow.level());
            let (function, in_function) = self.symbols[level].find_range(address);
            let lines = &mut self.batches.lines;
            let instruction = lines
                .annotates()
                .then(|| lines.instruction((level, &self.symbols[level]), address, None))
                .flatten();
            let (line, of_line) = match instruction {
                Some(line) => (line, address..address + 1),
                None => lines.find(level, address),
            };
            (self.run.function, self.run.line) = (function, line);
            self.range = in_function.start.max(of_line.start)..in_function.end.min(of_line.end);
            if level == 0 && self.reflects.contains(&Some(self.run.function)) {
                self.flow.reflects();
            }
        }
        let ticks = std::mem::take(&mut self.clock.ticks);
        self.run.count = self.run.count.saturating_add(1).saturating_add(ticks);
        self.clock.begun += 1;
        let by_program = self.clock_at == Some(address) && self.flow.level() == 0;
        if (by_program || is_payload(address)) && self.batches.is_clock(address) {
            self.counted();
            self.batches.clock(&mut self.flow, address, Some(self.clock.idle));
            if by_program {
                self.clock_at = None;
            }
        }
        Ok(())
    }

    /// Hands on the instructions since the function was entered.
    fn counted(&mut self) {
        if self.run.count > 0 {
            self.flow.run(&[self.run]);
            self.run.count = 0;
        }
    }

    /// The level has changed: names are looked up anew.
    fn moved(&mut self) {
        self.range = 0..0;
    }

    /// The first instruction of a guest, or of a handler.
    fn arrive(&mut self, to: u64) {
        self.counted();
        if std::mem::take(&mut self.entering) {
            let starts =
                std::mem::replace(&mut self.progress, BochsLevel::On) == BochsLevel::Started;
            if starts && !is_payload(to) {
                // The payload that wrote the mark runs in L2, and L1 comes first.
                self.flow.enter(false);
                self.flow.began_nested("out");
            } else {
                self.flow.enter(self.flow.enters_nested());
            }
            self.moved();
        }
        match self.delivered.take() {
            // Payloads have handlers of their own, which are parts of them.
            None => {}
            Some(_) if is_payload(to) => {}
            Some(NMI | INTERRUPTS..) => self.flow.gate(CodeGate::Interrupt),
            // The instruction that raised it has been counted by the clock too.
            Some(_) => self.flow.gate(CodeGate::Trap),
        }
    }

    /// The last instruction was a branch.
    fn branch(&mut self, kind: u8, accessed: u64) -> Result<(), RecordProblem> {
        self.counted();
        match kind {
            CALL | CALL_INDIRECT => self.flow.call(accessed),
            RET => self.flow.ret(accessed),
            SYSCALL | SYSENTER => self.flow.syscall(),
            IRET | SYSRET | SYSEXIT => self.flow.gate_return(),
            // It is delivered as any event.
            INT => {}
            other => {
                return Err(self.words.problem(&format!("{other:#x} is not a type of branch")));
            }
        }
        if self.flow.nodes() > super::NODES_MOST {
            return Err(self.words.problem("a batch has more functions than the limit"));
        }
        Ok(())
    }

    /// The host enters a guest.
    fn enter(&mut self) -> Result<(), RecordProblem> {
        self.counted();
        if self.flow.level() != 0 || self.progress == BochsLevel::Off {
            return Err(self.words.problem("a guest that already runs is entered"));
        }
        self.entering = true;
        Ok(())
    }

    /// A guest leaves.
    fn leave(&mut self, exit: BochsExit) -> Result<(), RecordProblem> {
        self.counted();
        self.delivered = None;
        self.clock.events += 1;
        let before = self.progress;
        if let Some(port) = exit.writes.filter(|port| self.batches.marks.has(*port)) {
            self.mark(port);
        }
        match (before, self.progress) {
            (BochsLevel::Off, BochsLevel::Off) => {
                return Err(self.words.problem("a guest leaves before the record begins"));
            }
            // The mark that starts it, or ends it.
            (BochsLevel::Off, _) | (_, BochsLevel::Off) => return Ok(()),
            _ => {}
        }
        if self.flow.level() == 0 {
            match (std::mem::take(&mut self.entering), exit.entry_failed) {
                (true, _) => {
                    // It leaves before its first instruction.
                    self.flow.enter(self.flow.enters_nested());
                }
                (false, true) => return Ok(()),
                (false, false) => {
                    return Err(self.words.problem("a guest that was not entered exits"));
                }
            }
        }
        if exit.enters_guest {
            self.flow.enters_guest();
        }
        self.flow.exit(exit.cause, ExitCompletion::Done);
        self.moved();
        Ok(())
    }

    /// A payload writes a mark.
    fn mark(&mut self, port: u16) {
        let marks = self.batches.marks;
        if port == marks.on && self.progress == BochsLevel::Off {
            self.flow.restart();
            self.progress = BochsLevel::Started;
            self.moved();
        } else if port == marks.off {
            self.stop();
        }
        self.batches.mark(port.into(), 0);
    }

    /// A program of the host writes a mark, with an instruction of one byte.
    fn host_mark(&mut self, port: u16) {
        self.counted();
        let (marks, next) = (self.batches.marks, self.address.wrapping_add(1));
        if port == marks.on && self.progress == BochsLevel::Off {
            self.flow.forget();
            self.progress = BochsLevel::On;
            self.moved();
        } else if port == marks.off {
            self.stop();
        }
        self.batches.mark(port.into(), next);
        self.clock_at = Some(next);
    }

    fn stop(&mut self) {
        self.progress = BochsLevel::Off;
        (self.entering, self.clock) =
            (false, BochsClock { idle: self.clock.idle, ..BochsClock::default() });
    }

    /// The clock, before the next instruction begins.
    fn clock(&mut self, halted: bool) -> Result<(), RecordProblem> {
        let now = self.words.double()?;
        let BochsClock { tsc, begun, events, .. } = self.clock;
        (self.clock.tsc, self.clock.begun, self.clock.events) = (Some(now), 0, 0);
        let Some(then) = tsc else { return Ok(()) };
        let passed = now.wrapping_sub(then);
        match passed.checked_sub(begun) {
            Some(idle) if halted => {
                self.clock.idle = self.clock.idle.saturating_add(idle);
                Ok(())
            }
            Some(ticks) if ticks <= events => {
                self.clock.ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
                Ok(())
            }
            _ => Err(self.words.problem(&format!(
                "it has {begun} instructions and the clock advanced by {passed}"
            ))),
        }
    }
}
