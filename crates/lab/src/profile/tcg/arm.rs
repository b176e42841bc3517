//! Records of an arm64 machine.
//!
//! ```text
//!  L0  __guest_enter ── ERET ──> guest ── exception ──> vector of __kvm_hyp_vector ──> __guest_exit
//! ```
//! With VHE, L0 and L1 execute the same kernel at the same addresses, and without it KVM's code at EL2 has addresses of its own, by an offset that
//! differs between boots. So L0's code is known by where it is in the emulator's memory: as far from its address as all of the kernel is. A guest
//! has left when that of L0's vectors is executed.
//!
//! What the emulator's clock counts beyond the instructions that are executed: the rest of a block whose instruction traps as an access to a system
//! register. It counts the whole block when that begins, and takes back only what a failed access to memory leaves undone. The tree has these
//! instructions at their functions.

use std::io::Read;

use super::super::code::StackEffect;
use super::super::code::arm::{ArmTrap, effect, is_clock, is_floating_point, trap};
use super::super::flow::ExitCompletion;
use super::super::symbols::{CodeGate, LevelSymbols, is_arm_payload, is_user};
use super::super::tree::CauseName;
use super::{BlockAddress, TcgBlock, TcgLevel, TcgReader};

/// Vectors of the kernel, and of KVM at EL2 without VHE for the kernel.
const VECTORS: [&str; 2] = ["vectors", "__kvm_nvhe___kvm_hyp_host_vector"];
/// Vectors of KVM while a guest runs, with and without VHE.
const GUEST_VECTORS: [&str; 2] = ["__kvm_hyp_vector", "__kvm_nvhe___kvm_hyp_vector"];
/// The functions with the ERET into a guest.
const GUEST_ENTRIES: [&str; 2] = ["__guest_enter", "__kvm_nvhe___guest_enter"];
/// Bytes of all vectors, and of one.
const TABLE: u64 = 0x800;
const VECTOR: u64 = 0x80;
/// The first vector of an exception from a lower exception level.
const LOWER: u64 = 0x400;
const PAGE: u64 = 0x1000;
/// A program of the host's is below this address.
const PROGRAMS: u64 = 1 << 32;

/// How control reaches a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vector {
    Synchronous,
    /// An interrupt, or an error of the machine's.
    Interrupt,
}

/// What is known of the machine.
pub(super) struct ArmMachine {
    /// By how much the host's kernel is farther in the emulator's memory than its addresses, once known.
    offset: Option<u64>,
    /// By level.
    vectors: [Vec<u64>; 3],
    guest_vectors: Vec<u64>,
    entries: [Vec<u32>; 3],
    /// L1 has executed an ERET that the host does for it.
    returns: bool,
}

impl ArmMachine {
    pub(super) fn of(symbols: &[LevelSymbols; 3]) -> ArmMachine {
        let starts = |level: usize, names: [&str; 2]| -> Vec<u64> {
            names.iter().filter_map(|name| symbols[level].start(name)).collect()
        };
        let ids = |level: usize| -> Vec<u32> {
            GUEST_ENTRIES.iter().filter_map(|name| symbols[level].id(name)).collect()
        };
        ArmMachine {
            offset: None,
            vectors: std::array::from_fn(|level| starts(level, VECTORS)),
            guest_vectors: starts(0, GUEST_VECTORS),
            entries: std::array::from_fn(ids),
            returns: false,
        }
    }

    /// The kernel's address of L0's code.
    fn kernel(&self, symbols: &LevelSymbols, (_, memory): BlockAddress) -> Option<u64> {
        let address = memory.wrapping_sub(self.offset?);
        symbols.is_image(address).then_some(address)
    }

    /// Whether a guest leaves to there.
    fn leaves(&self, symbols: &LevelSymbols, to: BlockAddress) -> Option<Vector> {
        let address = self.kernel(symbols, to)?;
        let at = self.guest_vectors.iter().filter_map(|start| address.checked_sub(*start));
        { at }.filter(|at| *at >= LOWER).find_map(vector)
    }
}

/// What enters at this offset in vectors.
fn vector(at: u64) -> Option<Vector> {
    if at >= TABLE || !at.is_multiple_of(VECTOR) {
        return None;
    }
    let is_synchronous = (at / VECTOR).is_multiple_of(4);
    Some(if is_synchronous { Vector::Synchronous } else { Vector::Interrupt })
}

impl TcgBlock {
    /// An instruction of arm64.
    fn word(&self, index: u32) -> u32 {
        self.instruction(index).try_into().map_or(0, u32::from_le_bytes)
    }

    /// Where it goes on after a program's mark, which ends no block of QEMU's; 0 if it has none.
    pub(super) fn after_arm_mark(&self) -> u64 {
        const HINT: u32 = 0xd503_2abf;
        let mark = (0..self.count()).find(|index| self.word(*index) == HINT);
        mark.map_or(0, |index| self.place(index + 1).0)
    }
}

impl<R: Read> TcgReader<'_, '_, R> {
    /// The address by which a block is looked up among the functions of the current level; `None` if it is of none of them.
    pub(super) fn named(&mut self, start: BlockAddress) -> Option<u64> {
        let level = self.flow.level();
        let Some(machine) = &mut self.arm else { return Some(start.0) };
        let host = &self.symbols[0];
        if level == 0 && machine.offset.is_none() && host.is_image(start.0) {
            machine.offset = Some(start.1.wrapping_sub(start.0));
        }
        let of_host = machine.kernel(host, start);
        match level {
            // Its kernel is nowhere else.
            0 if host.is_image(start.0) => of_host.filter(|address| *address == start.0),
            0 => Some(of_host.unwrap_or(start.0)),
            _ if of_host.is_some() => None,
            _ => Some(start.0),
        }
    }

    /// The record starts at a mark in the present block, and control goes on there. Whether a program of the host's has written it, and no guest.
    pub(super) fn starts_in_program(&mut self, to: BlockAddress) -> bool {
        let Some(machine) = &mut self.arm else { return is_user(to.0) };
        let host = &self.symbols[0];
        let [with_vhe, without] = GUEST_VECTORS.map(|name| Some(host.start(name)? + LOWER));
        // Without VHE the vector is at EL2's own address, far above any program, at the same place in its page.
        let is_at_el2 = |vector: u64| (vector ^ to.0).is_multiple_of(PAGE) && to.0 >= PROGRAMS;
        let vector = with_vhe
            .filter(|vector| *vector == to.0)
            .or_else(|| without.filter(|vector| is_at_el2(*vector)));
        machine.offset = vector.map_or(machine.offset, |vector| Some(to.1.wrapping_sub(vector)));
        vector.is_none()
    }

    /// A frame record is stored or loaded on the stack of a kernel.
    pub(super) fn frame_record(&mut self, slot: u64, is_load: bool) {
        let is_on = matches!(self.progress, TcgLevel::Started | TcgLevel::On);
        let start = self.on.present.map(|id| self.start(id));
        if let Some(start) = start.filter(|_| is_on)
            && self.is_kernel(start)
        {
            self.flow.frame_record(slot, is_load);
        }
    }

    /// Whether this is code of the current level's kernel, or of KVM at EL2.
    fn is_kernel(&self, start: BlockAddress) -> bool {
        let of_host = || self.arm.as_ref()?.kernel(&self.symbols[0], start);
        !is_user(start.0) || (self.flow.level() == 0 && of_host().is_some())
    }

    /// The exception of the current level that enters there.
    fn vector(&self, to: BlockAddress) -> Option<Vector> {
        let machine = self.arm.as_ref()?;
        let level = self.flow.level();
        let address = match level {
            0 => machine.kernel(&self.symbols[0], to).unwrap_or(to.0),
            _ => to.0,
        };
        let vectors = &machine.vectors[usize::from(level)];
        vectors.iter().find_map(|start| vector(address.checked_sub(*start)?))
    }

    /// Whether the block's last instruction, an ERET, enters a guest of the current level.
    fn is_entry(&self, block: &TcgBlock) -> bool {
        let level = usize::from(self.flow.level());
        let names = block.names[level].as_ref();
        let last = names.and_then(|names| names.runs.last());
        let entries = self.arm.as_ref().map(|machine| &machine.entries[level]);
        last.is_some_and(|last| entries.is_some_and(|ids| ids.contains(&last.function)))
    }

    /// Whether the last instruction reads the clock that measures batches.
    pub(super) fn is_arm_clock(block: &TcgBlock, done: u32) -> bool {
        is_clock(block.word(done - 1))
    }

    /// Follows control out of the block.
    pub(super) fn go_arm(&mut self, block: &TcgBlock, done: u32, to: BlockAddress) {
        let level = self.flow.level();
        let leaves = self.arm.as_ref().and_then(|arm| arm.leaves(&self.symbols[0], to));
        if let Some(vector) = leaves.filter(|_| level > 0) {
            return self.exit_arm(block, done, vector);
        }
        let last = last_effect(block, done);
        if level == 0 && last == StackEffect::GateReturn && self.is_entry(block) {
            return self.enter_arm(to);
        }
        let Some(vector) = self.vector(to) else {
            return self.effect_arm(block, last, Some(to.0));
        };
        let (_, completion) = self.raised(block, done, vector);
        if completion == ExitCompletion::Undone {
            return self.flow.gate(CodeGate::Fault);
        }
        self.effect_arm(block, last, None);
        self.flow.gate(match vector {
            Vector::Synchronous => CodeGate::Trap,
            Vector::Interrupt => CodeGate::Interrupt,
        });
    }

    /// Why the exception came after or in the block's last instruction, and whether the clock has counted that.
    fn raised(
        &mut self,
        block: &TcgBlock,
        done: u32,
        vector: Vector,
    ) -> (CauseName, ExitCompletion) {
        let whole = done == block.count();
        if vector == Vector::Interrupt {
            return ("interrupt".into(), ExitCompletion::Done);
        }
        let word = block.word(done - 1);
        // Another block ends with such an instruction only where its page does.
        if whole && is_floating_point(word) && !block.place(done).0.is_multiple_of(PAGE) {
            return ("floating point".into(), ExitCompletion::Done);
        }
        match trap(word) {
            ArmTrap::Counted(name) if whole => (name, ExitCompletion::Done),
            ArmTrap::Block(name) => {
                self.run(block, done..block.count());
                (name, ExitCompletion::Done)
            }
            ArmTrap::Access if !whole || self.on.accesses == 0 => {
                ("memory access".into(), ExitCompletion::Undone)
            }
            _ if whole => ("instruction fetch".into(), ExitCompletion::Done),
            _ => ("fault".into(), ExitCompletion::Undone),
        }
    }

    /// What the last instruction has done to the stack, where control goes to this address if that is known.
    fn effect_arm(&mut self, block: &TcgBlock, last: StackEffect, to: Option<u64>) {
        if !self.is_kernel(block.start) {
            return;
        }
        match last {
            StackEffect::Call => self.flow.call_back(block.place(block.count()).0),
            StackEffect::Return => self.flow.return_to(to),
            StackEffect::GateReturn => self.flow.gate_return(),
            _ => {}
        }
    }

    /// The host has executed its ERET into a guest, and this comes next.
    fn enter_arm(&mut self, to: BlockAddress) {
        let starts = std::mem::replace(&mut self.progress, TcgLevel::On) == TcgLevel::Started;
        let Some(machine) = &mut self.arm else { return };
        if machine.leaves(&self.symbols[0], to).is_some() {
            // The guest has left before its first instruction.
            let nested = self.flow.is_nested();
            self.flow.enter(nested);
            return self.flow.exit("interrupt", ExitCompletion::Done);
        }
        let returns = std::mem::take(&mut machine.returns);
        if starts && !is_arm_payload(to.0) {
            // The payload that wrote the mark runs in L2, and L1 comes first.
            self.flow.enter(false);
            return self.flow.began_nested("memory access");
        }
        let nested = self.flow.is_nested() && is_arm_payload(to.0);
        self.flow.enter(nested);
        if returns && !nested {
            self.flow.gate_return();
        }
        match self.vector(to) {
            // An event that was injected.
            Some(Vector::Interrupt) => self.flow.gate(CodeGate::Interrupt),
            Some(Vector::Synchronous) => self.flow.gate(CodeGate::Trap),
            None => {}
        }
    }

    /// A guest has left after the block's last instruction, or in it.
    fn exit_arm(&mut self, block: &TcgBlock, done: u32, vector: Vector) {
        let last = last_effect(block, done);
        let (cause, completion) = self.raised(block, done, vector);
        let is_eret = last == StackEffect::GateReturn && vector == Vector::Synchronous;
        if is_eret && self.flow.level() == 1 && self.is_entry(block) {
            self.flow.enters_guest();
        } else if is_eret {
            // The host returns for it, if it was a kernel's.
            let is_kernel = self.is_kernel(block.start);
            self.arm.iter_mut().for_each(|machine| machine.returns = is_kernel);
        } else if completion == ExitCompletion::Done {
            self.effect_arm(block, last, None);
        }
        self.flow.exit(cause, completion);
    }
}

/// What the last instruction does to the stack, if it was done.
fn last_effect(block: &TcgBlock, done: u32) -> StackEffect {
    if done == block.count() { effect(block.word(done - 1)) } else { StackEffect::None }
}
