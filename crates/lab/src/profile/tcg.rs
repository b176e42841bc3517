//! Reads the record of the QEMU plugin; `crates/machine/recorders/qemu` documents the format. What differs on arm64 is in [`arm`].
//!
//! The record has blocks, and where control went from each to the next. From that alone follow levels: the host's code after
//! its VMRUN runs when a guest leaves, and the code after L1's VMRUN when L2's exit has reached L1. Addresses of the emulator's memory tell
//! the host's code from L1's at the same address.

mod arm;

use std::io::Read;
use std::ops::Range;

use super::code::{Leaves, StackEffect, divides, effect, leaves};
use super::flow::{ExitCompletion, Flow, FunctionRun};
use super::symbols::{CodeGate, LevelSymbols, UNKNOWN, is_user};
use super::words::StreamWords;
use super::{RecordBatches, RecordProblem};
use arm::ArmMachine;

pub(super) const MAGIC: [u8; 8] = *b"VMTAXTCG";
const VERSION: u32 = 4;
const HAS_IDLE: u32 = 1;
const ARM64: u32 = 2;
const BLOCK: u32 = 0xffff_fffe;
const MARK: u32 = 0xffff_fffc;
const IDLE: u32 = 0xffff_fffa;
const END: u32 = 0xffff_fff8;
const CPU: u32 = 0xffff_fff6;
const FRAME: u32 = 0xffff_fff4;
const LAST: u32 = 0xffff_fff2;
const VALUE: u32 = (1 << 29) - 1;

/// QEMU's blocks have at most 512 instructions.
const INSTRUCTIONS_MOST: u32 = 4096;
/// Limit on blocks, more than any run translates.
const BLOCKS_MOST: u32 = 1 << 23;
/// Limit on vCPUs.
const VCPUS_MOST: u32 = 256;
const RDTSC: [u8; 2] = [0x0f, 0x31];

/// A guest address, and the address of the same byte in the emulator's memory.
type BlockAddress = (u64, u64);

/// A translated block.
struct TcgBlock {
    start: BlockAddress,
    /// Ends of its instructions, as offsets in the code.
    ends: Box<[u16]>,
    code: Box<[u8]>,
    effect: StackEffect,
    /// By level, once looked up.
    names: [Option<BlockNames>; 3],
}

/// What the symbols tell about a block.
struct BlockNames {
    /// Its functions.
    runs: Box<[FunctionRun]>,
    /// Whether an interrupt or exception enters at its start.
    gate: Option<CodeGate>,
}

impl TcgBlock {
    fn count(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Where an instruction begins, as an offset.
    fn offset(&self, index: u32) -> usize {
        index.checked_sub(1).map_or(0, |before| usize::from(self.ends[before as usize]))
    }

    fn place(&self, index: u32) -> BlockAddress {
        let offset = self.offset(index) as u64;
        (self.start.0.wrapping_add(offset), self.start.1.wrapping_add(offset))
    }

    /// Whether the block was over after so many instructions. One that continues in another page is counted to it and is executed in a block of its own.
    fn is_over(&self, done: u32) -> bool {
        let continues = |last: u32| last > 0 && self.place(last).0 & 0xfff > 0xff0;
        done == self.count() || done + 1 == self.count() && continues(done)
    }

    fn instruction(&self, index: u32) -> &[u8] {
        &self.code[self.offset(index)..usize::from(self.ends[index as usize])]
    }
}

/// The state of reading.
struct TcgReader<'a, 'b, R> {
    words: StreamWords<R>,
    flow: Flow<'a>,
    symbols: &'a [LevelSymbols; 3],
    batches: &'b mut RecordBatches,
    blocks: Vec<Option<Box<TcgBlock>>>,
    /// The vCPU that is on, and what it executes.
    vcpu: usize,
    on: Executing,
    /// What the others have executed.
    others: Vec<Executing>,
    /// The vCPU that wrote the mark that starts the record.
    starter: usize,
    upper: u64,
    idle: u64,
    has_idle: bool,
    /// Where the host goes on after a guest.
    after_guest: Vec<BlockAddress>,
    /// Of arm64.
    arm: Option<ArmMachine>,
    /// Where L1 goes on after its guest.
    after_inner: BlockAddress,
    progress: TcgLevel,
}

/// Where a vCPU is.
#[derive(Clone, Copy, Debug, Default)]
struct Executing {
    /// The block that was executed last, and how many of its instructions, if not all.
    present: Option<u32>,
    done: Option<u32>,
    /// Its instructions are counted: another vCPU was on since.
    is_counted: bool,
    /// What its last instruction accessed: how often, and where last.
    accesses: u32,
    accessed: u64,
}

/// What is known about the current level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcgLevel {
    /// Nothing is being recorded.
    Off,
    /// A payload writes the mark that starts the record.
    Starting,
    /// The host runs and has not entered a guest yet.
    Started,
    On,
}

/// Reads a record, from after its magic to its end.
pub(super) fn read(
    mut words: StreamWords<impl Read>,
    symbols: &[LevelSymbols; 3],
    batches: &mut RecordBatches,
) -> Result<(), RecordProblem> {
    words.version(VERSION)?;
    let flags = words.next()?;
    let is_arm = flags & ARM64 != 0;
    if is_arm != symbols[0].is_arm() {
        return Err(words.problem("it is of another architecture than the host's kernel"));
    }
    let mut reader = TcgReader {
        words,
        flow: Flow::new(symbols),
        symbols,
        batches,
        blocks: Vec::new(),
        vcpu: 0,
        on: Executing::default(),
        others: Vec::new(),
        starter: 0,
        upper: 0,
        idle: 0,
        has_idle: flags & HAS_IDLE != 0,
        arm: is_arm.then(|| ArmMachine::of(symbols)),
        after_guest: Vec::new(),
        after_inner: (0, 0),
        progress: TcgLevel::Off,
    };
    reader.all()?;
    let labels = std::mem::take(&mut reader.flow.labels);
    batches.labels = labels;
    Ok(())
}

impl<R: Read> TcgReader<'_, '_, R> {
    fn all(&mut self) -> Result<(), RecordProblem> {
        loop {
            let word = self.words.next()?;
            match word >> 29 {
                0..=3 => self.executed(word)?,
                4 => self.on.done = Some(word & VALUE),
                5 => {
                    self.on.accesses += 1;
                    self.on.accessed = self.upper << 32 | u64::from(word & VALUE) << 3;
                }
                6 => {
                    // Sign-extended from bit 60.
                    self.upper =
                        u64::from(word & VALUE) | if word & 1 << 28 != 0 { 0xe000_0000 } else { 0 };
                }
                _ => match word {
                    BLOCK => self.block()?,
                    MARK => {
                        let port = self.words.next()?;
                        self.mark(port);
                    }
                    IDLE => self.idle = self.words.double()?,
                    CPU => self.turn()?,
                    FRAME => {
                        let low = self.words.next()?;
                        let slot = self.upper << 32 | u64::from(low & !7);
                        self.frame_record(slot, low & 1 == 1);
                    }
                    LAST => self.on.accesses = 0,
                    END => return Ok(()),
                    _ => {
                        return Err(self
                            .words
                            .problem(&format!("{word:#x} is not a type of entry")));
                    }
                },
            }
        }
    }

    fn block(&mut self) -> Result<(), RecordProblem> {
        let (id, count, bytes) = (self.words.next()?, self.words.next()?, self.words.next()?);
        let start = (self.words.double()?, self.words.double()?);
        if id > BLOCKS_MOST || count == 0 || count > INSTRUCTIONS_MOST || bytes > 15 * count {
            return Err(self.words.problem(&format!("block {id} is invalid")));
        }
        let all = self.words.bytes((count + bytes) as usize)?;
        let (sizes, code) = all.split_at(count as usize);
        let mut end = 0_u16;
        let ends: Box<[u16]> = sizes
            .iter()
            .map(|size| {
                end = end.saturating_add(u16::from(*size));
                end
            })
            .collect();
        if u32::from(end) != bytes || sizes.contains(&0) {
            return Err(self
                .words
                .problem(&format!("block {id}: its instructions do not match its code")));
        }
        let code: Box<[u8]> = code.into();
        let effect = match self.arm {
            Some(_) => StackEffect::None,
            None => effect(&code[code.len() - usize::from(sizes[sizes.len() - 1])..]),
        };
        let block = TcgBlock { start, ends, code, effect, names: [None, None, None] };
        let index = id as usize;
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        if self.blocks[index].is_some() {
            return Err(self.words.problem(&format!("block {id} is defined twice")));
        }
        self.blocks[index] = Some(Box::new(block));
        Ok(())
    }

    fn mark(&mut self, port: u32) {
        let marks = &self.batches.marks;
        if port == u32::from(marks.on) {
            if self.progress == TcgLevel::Off {
                self.progress = TcgLevel::Starting;
                self.starter = self.vcpu;
            }
        } else if port == u32::from(marks.off) {
            self.progress = TcgLevel::Off;
            self.on = Executing::default();
            self.others.clear();
        }
        let block = self.on.present.and_then(|id| self.blocks.get(id as usize)?.as_ref());
        let next = block.map_or(0, |block| match self.arm {
            Some(_) => block.after_arm_mark(),
            None => block.place(block.count()).0,
        });
        self.batches.mark(port, next);
    }

    /// Another vCPU is on. The block of the one before it is over, and what comes next there is not known yet.
    fn turn(&mut self) -> Result<(), RecordProblem> {
        let vcpu = self.words.next()?;
        if vcpu >= VCPUS_MOST {
            return Err(self.words.problem(&format!("{vcpu} is not the number of a vCPU")));
        }
        let vcpu = vcpu as usize;
        if vcpu == self.vcpu {
            return Ok(());
        }
        if let Some(id) = self.on.present
            && matches!(self.progress, TcgLevel::Started | TcgLevel::On)
        {
            self.look_up(id);
            if let Some(block) = self.blocks[id as usize].take() {
                let counted = self.count(id, &block);
                self.blocks[id as usize] = Some(block);
                counted?;
            }
        }
        if self.others.len() <= self.vcpu.max(vcpu) {
            self.others.resize(self.vcpu.max(vcpu) + 1, Executing::default());
        }
        self.batches.others = self.batches.others.max(self.others.len() as u64 - 1);
        self.others[self.vcpu] = self.on;
        self.on = self.others[vcpu];
        self.vcpu = vcpu;
        self.flow.turn(vcpu);
        Ok(())
    }

    /// The next block begins; the one before it is over.
    fn executed(&mut self, id: u32) -> Result<(), RecordProblem> {
        if self.blocks.get(id as usize).is_none_or(Option::is_none) {
            return Err(self
                .words
                .problem(&format!("block {id} is executed before its definition")));
        }
        match (self.progress, self.on.present) {
            (TcgLevel::Off, _) => {}
            // Others may come before the rest of what started it.
            (TcgLevel::Starting, _) if self.vcpu != self.starter => return Ok(()),
            // The block with the mark that started the record is not part of it.
            (TcgLevel::Starting, _) => {
                let start = self.start(id);
                self.others.clear();
                if self.starts_in_program(start) {
                    // A program of the host's wrote it.
                    self.flow.forget();
                    self.after_guest.clear();
                    self.progress = TcgLevel::On;
                } else {
                    self.flow.restart();
                    self.after_guest = vec![start];
                    self.progress = TcgLevel::Started;
                }
            }
            (_, Some(before)) => self.step(before, id)?,
            (_, None) => {}
        }
        self.on = Executing { present: Some(id), ..Executing::default() };
        Ok(())
    }

    fn start(&self, id: u32) -> BlockAddress {
        self.blocks[id as usize].as_ref().map_or((0, 0), |block| block.start)
    }

    /// From a block to the next.
    fn step(&mut self, before: u32, next: u32) -> Result<(), RecordProblem> {
        let to = self.start(next);
        self.look_up(before);
        let gate = match self.arm {
            Some(_) => None,
            None => {
                self.look_up(next);
                self.gate(next)
            }
        };
        let Some(block) = self.blocks[before as usize].take() else { return Ok(()) };
        let done = match self.on.is_counted {
            true => self.on.done.unwrap_or(block.count()),
            false => self.count(before, &block)?,
        };
        match self.arm {
            _ if done == 0 => {}
            Some(_) => self.go_arm(&block, done, to),
            None => self.go(&block, done, (to, gate)),
        }
        // A block that follows itself needs it.
        self.blocks[before as usize] = Some(block);
        if self.flow.nodes() > super::NODES_MOST {
            return Err(self.words.problem("a batch has more functions than the limit"));
        }
        Ok(())
    }

    /// Counts what was executed of the block that is over, and tells how many instructions that is.
    fn count(&mut self, id: u32, block: &TcgBlock) -> Result<u32, RecordProblem> {
        self.on.is_counted = true;
        let done = self.on.done.unwrap_or(block.count());
        if done > block.count() {
            let text = format!("block {id} has {} instructions, not {done}", block.count());
            return Err(self.words.problem(&text));
        }
        self.run(block, 0..done);
        if done > 0 {
            self.clock(block, done);
        }
        Ok(done)
    }

    /// Looks up the block's functions at the current level.
    fn look_up(&mut self, id: u32) {
        let level = usize::from(self.flow.level());
        let Some(Some(block)) = self.blocks.get(id as usize) else { return };
        if block.names[level].is_some() {
            return;
        }
        let start = block.start;
        let named = self.named(start);
        let (symbols, lines) = (&self.symbols[level], &mut self.batches.lines);
        let Some(Some(block)) = self.blocks.get_mut(id as usize) else { return };
        let mut runs: Vec<FunctionRun> = Vec::new();
        for index in 0..block.count() {
            let at = block.place(index).0.wrapping_sub(start.0);
            // What is at no place of the level's code has no name.
            let address = named.map_or(u64::MAX, |named| named.wrapping_add(at));
            let function = if named.is_some() { symbols.find(address) } else { UNKNOWN };
            let instruction = (named.is_some() && lines.annotates())
                .then(|| {
                    lines.instruction((level, symbols), address, Some(block.instruction(index)))
                })
                .flatten();
            let line = instruction.unwrap_or_else(|| lines.find(level, address).0);
            match runs.last_mut() {
                Some(run) if (run.function, run.line) == (function, line) => run.count += 1,
                _ => runs.push(FunctionRun { function, line, count: 1 }),
            }
        }
        let gate = symbols.gate(block.start.0);
        block.names[level] = Some(BlockNames { runs: runs.into(), gate });
    }

    /// Whether an interrupt or exception of the current level enters at the block.
    fn gate(&self, id: u32) -> Option<CodeGate> {
        let block = self.blocks.get(id as usize)?.as_ref()?;
        block.names[usize::from(self.flow.level())].as_ref()?.gate
    }

    /// Counts some of the block's instructions.
    fn run(&mut self, block: &TcgBlock, which: Range<u32>) {
        let Some(BlockNames { runs, .. }) = &block.names[usize::from(self.flow.level())] else {
            return;
        };
        if which == (0..block.count()) {
            self.flow.run(runs);
            return;
        }
        let mut at = 0;
        for run in runs {
            let (from, until) = (which.start.max(at), which.end.min(at + run.count));
            at += run.count;
            if from < until {
                self.flow.run(&[FunctionRun { count: until - from, ..*run }]);
            }
        }
    }

    /// Whether the last instruction reads the clock that measures batches.
    fn clock(&mut self, block: &TcgBlock, done: u32) {
        let (address, _) = block.place(done - 1);
        let reads_it = match self.arm {
            Some(_) => Self::is_arm_clock(block, done),
            None => block.instruction(done - 1) == RDTSC,
        };
        if !reads_it || !self.batches.is_clock(address) {
            return;
        }
        let idle = self.has_idle.then_some(self.idle);
        self.batches.clock(&mut self.flow, address, idle);
    }

    /// Follows control out of the block.
    fn go(&mut self, block: &TcgBlock, done: u32, (to, gate): (BlockAddress, Option<CodeGate>)) {
        let whole = done == block.count();
        let last = if whole { block.effect } else { effect(block.instruction(done - 1)) };
        let level = self.flow.level();
        if level > 0 && self.after_guest.contains(&to) {
            return self.exit(block, done, last);
        }
        if level == 0 && last == StackEffect::Enter && whole {
            return self.enter(block.place(block.count()), to);
        }
        // QEMU leaves a block in a store that changes the block's own code, and begins the store again.
        let accesses = || matches!(leaves(block.instruction(done - 1)), Leaves::Accesses(_));
        if to == block.place(done - 1) && last == StackEffect::None && accesses() {
            return self.flow.undone();
        }
        match gate {
            // The common part of the stubs, or what an interrupt's stub jumps to.
            Some(_) if whole && last == StackEffect::Jump => {}
            // An exception of the instruction fetch comes after an instruction that is done.
            Some(CodeGate::Fault) if self.is_done(block, done) => {
                self.effect(last);
                self.flow.gate(CodeGate::Trap);
            }
            Some(CodeGate::Fault) => self.flow.gate(CodeGate::Fault),
            Some(gate) => {
                self.effect(last);
                self.flow.gate(gate);
            }
            None => self.effect(last),
        }
    }

    /// Whether the last instruction has made all its accesses, which are known of the last one of a block. One that faults without accessing memory is
    /// not the last.
    fn is_done(&self, block: &TcgBlock, done: u32) -> bool {
        let (code, is_over) = (block.instruction(done - 1), block.is_over(done));
        match leaves(code) {
            Leaves::Accesses(count) | Leaves::Repeats(count) => {
                is_over && self.on.accesses >= count
            }
            Leaves::Never => is_over && !(done < block.count() && divides(code)),
            Leaves::Intercepted(_) | Leaves::Perhaps(_) | Leaves::Undefined(_) => false,
        }
    }

    /// What the last instruction has done to the stack.
    fn effect(&mut self, last: StackEffect) {
        match last {
            StackEffect::Call if self.on.accesses > 0 => self.flow.call(self.on.accessed),
            StackEffect::Return if self.on.accesses > 0 => self.flow.ret(self.on.accessed),
            StackEffect::GateReturn => self.flow.gate_return(),
            StackEffect::Syscall => self.flow.syscall(),
            _ => {}
        }
    }

    /// The host has executed its VMRUN, and this comes next.
    fn enter(&mut self, after: BlockAddress, to: BlockAddress) {
        if !self.after_guest.contains(&after) {
            self.after_guest.push(after);
        }
        let starts = std::mem::replace(&mut self.progress, TcgLevel::On) == TcgLevel::Started;
        if self.after_guest.contains(&to) {
            // The guest has left before its first instruction.
            let nested = self.flow.is_nested();
            self.flow.enter(nested);
            return self.flow.exit("interrupt", ExitCompletion::Done);
        }
        if starts && !is_user(to.0) {
            // The payload that wrote the mark runs in L2, and L1 comes first.
            self.flow.enter(false);
            self.flow.began_nested("out");
            return;
        }
        let nested = self.flow.is_nested() && to != self.after_inner;
        self.flow.enter(nested);
        if let Some(gate) = self.flow.gate_at(to.0) {
            // An event that was injected.
            self.flow.gate(match gate {
                CodeGate::Interrupt => CodeGate::Interrupt,
                CodeGate::Fault | CodeGate::Trap => CodeGate::Trap,
            });
        }
    }

    /// A guest has left after this instruction, or in it.
    fn exit(&mut self, block: &TcgBlock, done: u32, last: StackEffect) {
        let whole = block.is_over(done);
        let (cause, completion) = match leaves(block.instruction(done - 1)) {
            Leaves::Intercepted(name) => (name, ExitCompletion::Undone),
            Leaves::Perhaps(name) if whole => (name, ExitCompletion::IfHandled),
            Leaves::Perhaps(name) => (name, ExitCompletion::Undone),
            Leaves::Undefined(name) => (name, ExitCompletion::Done),
            // Nothing is left to repeat, and an interrupt came; or the first access was intercepted.
            Leaves::Repeats(count) if whole && self.on.accesses < count => {
                ("memory access", ExitCompletion::IfHandled)
            }
            Leaves::Repeats(_) if !whole => ("memory access", ExitCompletion::Undone),
            Leaves::Accesses(count) if !whole || self.on.accesses < count => {
                ("memory access", ExitCompletion::Undone)
            }
            // The next instruction's fetch.
            _ if whole && done < block.count() => ("memory access", ExitCompletion::Done),
            _ if whole => ("interrupt", ExitCompletion::Done),
            _ => ("fault", ExitCompletion::Undone),
        };
        if completion == ExitCompletion::Done {
            self.effect(last);
        }
        if last == StackEffect::Enter {
            self.after_inner = block.place(done);
            self.flow.enters_guest();
        }
        self.flow.exit(cause, completion);
    }
}
