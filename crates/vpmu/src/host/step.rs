//! Exact counts of instructions and branches: a program that runs one instruction at a time.
//!
//! For tests: a step takes microseconds. A program is 64-bit code in a separate process, with a stack and some memory, and ends at the
//! end of the code. Programs must not load SS, which suppresses the trap after the next instruction. Far transfers are errors, because
//! processors differ in whether they count them as branches.

use std::io;

use super::sys::{TracedStop, Tracee};
use super::virtual_time::{EventCosts, GuestWork, VirtualHost};
use super::{EventHost, EventId, EventReading, EventRequest};
use crate::error::Trouble;
use crate::event::PmuEvent;

/// Why a program could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Its process could not be created.
    #[error("the program cannot be started or stepped: {0}")]
    Process(#[from] io::Error),
    /// It jumped outside of its code.
    #[error("the program jumped out of its code, to offset {0:#x}")]
    Outside(u64),
    /// It was stopped by a signal.
    #[error("the program got signal {signal} at offset {offset:#x}")]
    Signal {
        /// The signal.
        signal: i32,
        /// Offset in the code.
        offset: u64,
    },
    /// It exited.
    #[error("the program's process ended before its code did")]
    Exited,
    /// A far transfer.
    #[error("the program has a far transfer at offset {0:#x}")]
    Far(u64),
}

/// Kind of an instruction for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionKind {
    /// A near branch, taken or not.
    Branch,
    /// A string instruction with a repeat prefix: one instruction, with a trap after every repetition.
    Repeated,
    /// A far transfer or a call of the system.
    Far,
    /// Anything else.
    Other,
}

impl InstructionKind {
    /// Of the 64-bit instruction at the beginning of this code (Intel SDM volume 2, appendix A).
    pub fn of(code: &[u8]) -> InstructionKind {
        let prefix =
            |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
        let prefixes = code.iter().take_while(|b| prefix(b)).count();
        let repeated = code[..prefixes].iter().any(|b| matches!(b, 0xf2 | 0xf3));
        let rest = &code[prefixes..];
        // REX comes last.
        let rest = match rest {
            [0x40..=0x4f, rest @ ..] => rest,
            rest => rest,
        };
        match rest {
            [0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf, ..] if repeated => InstructionKind::Repeated,
            // Conditional jumps; LOOPs and JRCXZ; near returns, call, jumps.
            [0x70..=0x7f | 0xe0..=0xe3 | 0xc2 | 0xc3 | 0xe8 | 0xe9 | 0xeb, ..] => {
                InstructionKind::Branch
            }
            [0x0f, 0x80..=0x8f, ..] => InstructionKind::Branch,
            // SYSCALL, SYSRET, SYSENTER, SYSEXIT; far returns, interrupts and IRET.
            [0x0f, 0x05 | 0x07 | 0x34 | 0x35, ..] | [0xca..=0xcd | 0xcf | 0xf1, ..] => {
                InstructionKind::Far
            }
            // Indirect: near call and jump, far call and jump.
            [0xff, modrm, ..] => match modrm >> 3 & 7 {
                2 | 4 => InstructionKind::Branch,
                3 | 5 => InstructionKind::Far,
                _ => InstructionKind::Other,
            },
            _ => InstructionKind::Other,
        }
    }
}

/// Counts of a program that is stepped. Its clock counts instructions.
#[derive(Debug)]
pub struct StepHost {
    counting: VirtualHost,
    program: Tracee,
    code: Vec<u8>,
    plain: GuestWork,
    branch: GuestWork,
}

impl StepHost {
    /// A program, before its first instruction. RDI points to 64 KiB of zeros; other registers but RSP are zero.
    pub fn new(code: &[u8]) -> Result<StepHost, StepError> {
        Ok(StepHost {
            counting: VirtualHost::new(EventCosts::default()),
            program: Tracee::start(code)?,
            code: code.to_vec(),
            plain: GuestWork::user(1, &[(PmuEvent::Instructions, 1)]),
            branch: GuestWork::user(1, &[(PmuEvent::Instructions, 1), (PmuEvent::Branches, 1)]),
        })
    }

    /// Runs this number of instructions, or fewer if the program ends. Returns the number executed.
    pub fn run(&mut self, instructions: u64) -> Result<u64, StepError> {
        for done in 0..instructions {
            if !self.step()? {
                return Ok(done);
            }
        }
        Ok(instructions)
    }

    /// Runs an instruction, with all its repetitions. False if the program is at its end.
    fn step(&mut self) -> Result<bool, StepError> {
        let at = self.program.offset()?;
        if at == self.code.len() as u64 {
            return Ok(false);
        }
        let code = usize::try_from(at).ok().and_then(|at| self.code.get(at..));
        let kind = InstructionKind::of(code.ok_or(StepError::Outside(at))?);
        if kind == InstructionKind::Far {
            return Err(StepError::Far(at));
        }
        loop {
            match self.program.step()? {
                TracedStop::Trap => {}
                TracedStop::Signal(signal) => return Err(StepError::Signal { signal, offset: at }),
                TracedStop::Exited => return Err(StepError::Exited),
            }
            // A repeated instruction stays where it is until it is done. A branch may go to itself.
            if kind != InstructionKind::Repeated || self.program.offset()? != at {
                break;
            }
        }
        let work = if kind == InstructionKind::Branch { &self.branch } else { &self.plain };
        self.counting.run(work, 1);
        Ok(true)
    }
}

impl EventHost for StepHost {
    fn create(&mut self, request: &EventRequest) -> Result<EventId, Trouble> {
        self.probe(request.programme.event)?;
        self.counting.create(request)
    }

    fn enable(&mut self, id: EventId) -> Result<(), Trouble> {
        self.counting.enable(id)
    }

    fn disable(&mut self, id: EventId) -> Result<(), Trouble> {
        self.counting.disable(id)
    }

    fn read(&mut self, id: EventId) -> Result<EventReading, Trouble> {
        self.counting.read(id)
    }

    fn set_left(&mut self, id: EventId, left: u64) -> Result<(), Trouble> {
        self.counting.set_left(id, left)
    }

    fn close(&mut self, id: EventId) {
        self.counting.close(id);
    }

    fn take_overflow(&mut self) -> Option<EventId> {
        self.counting.take_overflow()
    }

    fn take_throttled(&mut self) -> Option<EventId> {
        self.counting.take_throttled()
    }

    fn probe(&self, event: PmuEvent) -> Result<(), Trouble> {
        match event {
            PmuEvent::Instructions | PmuEvent::Branches => Ok(()),
            _ => Err(Trouble::NoSuchEvent),
        }
    }

    fn capacity(&self) -> Option<usize> {
        None
    }

    fn gives_counters(&self) -> bool {
        true
    }

    fn claim(&mut self, request: &EventRequest) -> Result<EventId, Trouble> {
        self.create(request)
    }
}
