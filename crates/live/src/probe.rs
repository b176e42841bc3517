//! Probes that name the VMCS fields which a guest hypervisor reads and writes.
//!
//! No tracepoint has the field of a VMREAD or VMWRITE. KVM takes the number of the guest register that holds the field's encoding from bits
//! 28 to 31 of the exit's instruction information, and loads that register from the vCPU. So its machine code shows where a register holds
//! the encoding:
//!
//! ```text
//!  handle_vmwrite: ...
//!                  shr  ebp, 28                      number of the guest's register
//!                  ...
//!                  mov  rbp, [rbx + rbp*8 + 0x128]   vcpu->arch.regs[number]
//!          probe ─>                                  rbp is the encoding
//! ```
//! [`places`] finds that place in a module, independent of the compiler; [`definitions`] writes lines for the kernel's `kprobe_events`. They need the
//! module's symbols and relocations, but neither debug information nor BTF.
//!
//! A probe adds about 1,000 instructions to each of these exits in the lab's recorded batch. Path lengths are measured before, without it.
//!
//! Left out: kernels with KVM built in, whose images have no symbols, and an RSP that holds the encoding, which KVM
//! keeps elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};
use object::{Object, ObjectSection, ObjectSymbol};

use crate::vmcs::VmcsPlace;

/// The module with the handlers.
const MODULE: &str = "kvm_intel";
/// KVM's functions, for reads and for writes, and the events that their probes make; `capture/import/tracepoint.rs` knows these and `field`.
const HANDLERS: [(&str, &str); 2] =
    [("handle_vmread", "vmcs_read"), ("handle_vmwrite", "vmcs_write")];
/// Where the register's number begins in the instruction information: Intel SDM volume 3, 28.2.5, "Reg2".
const REGISTER_NUMBER: u64 = 28;
/// Linux's are about 2 KB.
const LARGEST_FUNCTION: usize = 64 << 10;

/// Definitions for `kprobe_events`, a line each, of probes in the system `vmtax`; or why there are none.
pub fn definitions(module: &[u8]) -> Result<Vec<String>, String> {
    let define = |place: &VmcsPlace| {
        let VmcsPlace { write, function, offset, register } = place;
        let event = HANDLERS[usize::from(*write)].1;
        // Several probes of one name make one event.
        format!("p:vmtax/{event} {function}+{offset:#x} field=%{register}:u64")
    };
    Ok(places(module)?.iter().map(define).collect())
}

/// All such places in a file of the module `kvm_intel`, or why they are unknown.
pub fn places(module: &[u8]) -> Result<Vec<VmcsPlace>, String> {
    let file = object::File::parse(module).map_err(|error| format!("{MODULE}: {error}"))?;
    let mut found = Vec::new();
    for (index, (symbol, _)) in HANDLERS.into_iter().enumerate() {
        let function = UnlinkedFunction::of(&file, symbol)
            .ok_or_else(|| format!("{MODULE} has no function {symbol}"))?;
        let places = function.places();
        if places.is_empty() {
            return Err(format!(
                "where {symbol} of {MODULE} has read the field's register was not found"
            ));
        }
        found.extend(places.into_iter().map(|EncodingPlace { offset, register }| VmcsPlace {
            write: index == 1,
            function: format!("{MODULE}:{symbol}"),
            offset,
            register,
        }));
    }
    Ok(found)
}

/// A place where a register holds the encoding.
#[derive(Debug, PartialEq, Eq)]
struct EncodingPlace {
    /// Offset of the instruction in the function.
    offset: u64,
    /// Its name in the kernel's `kprobe_events`.
    register: &'static str,
}

/// A function of an unlinked file.
struct UnlinkedFunction<'a> {
    code: &'a [u8],
    /// Offsets of relocations.
    relocations: BTreeSet<u64>,
}

impl<'a> UnlinkedFunction<'a> {
    fn of(file: &object::File<'a>, name: &str) -> Option<UnlinkedFunction<'a>> {
        let symbol =
            file.symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(name))?;
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let start = symbol.address().checked_sub(section.address())?;
        let end = start.checked_add(symbol.size())?;
        let code =
            section.data().ok()?.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?;
        let inside = |at: u64| (start..end).contains(&at).then(|| at - start);
        let relocations = section.relocations().filter_map(|(at, _)| inside(at)).collect();
        (code.len() <= LARGEST_FUNCTION).then_some(UnlinkedFunction { code, relocations })
    }

    /// Follows every path through the function and tracks, for each instruction, the registers and stack slots that hold the guest register's
    /// number on all paths to it. The places are after the loads indexed by such a register.
    fn places(&self) -> Vec<EncodingPlace> {
        let mut factory = InstructionInfoFactory::new();
        let mut known = BTreeMap::from([(0, NumberPlaces::default())]);
        let mut waiting = vec![0];
        while let Some(offset) = waiting.pop() {
            let Some(instruction) = self.instruction(offset) else { continue };
            let after = known[&offset].after(&instruction, &mut factory);
            for next in self.successors(&instruction) {
                let before = known.get(&next).copied();
                let joined = before.map_or(after, |before| before.on_both(after));
                if before != Some(joined) {
                    known.insert(next, joined);
                    waiting.push(next);
                }
            }
        }
        let place =
            |(&offset, numbers): (&u64, &NumberPlaces)| numbers.place(&self.instruction(offset)?);
        known.iter().filter_map(place).collect()
    }

    fn instruction(&self, offset: u64) -> Option<Instruction> {
        let code = self.code.get(usize::try_from(offset).ok()?..)?;
        let mut decoder = Decoder::with_ip(64, code, offset, DecoderOptions::NONE);
        let instruction = decoder.can_decode().then(|| decoder.decode())?;
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Successors of the instruction; jumps out of the function have none.
    fn successors(&self, instruction: &Instruction) -> impl Iterator<Item = u64> + use<> {
        let next = instruction.next_ip();
        // A relocated target is another function, or this one's cold part.
        let is_local = self.relocations.range(instruction.ip()..next).next().is_none();
        let target = is_local.then(|| instruction.near_branch_target());
        let (next, target) = match instruction.flow_control() {
            FlowControl::Return | FlowControl::IndirectBranch => (None, None),
            FlowControl::UnconditionalBranch => (None, target),
            FlowControl::ConditionalBranch => (Some(next), target),
            _ => (Some(next), None),
        };
        next.into_iter().chain(target)
    }
}

/// The registers and stack slots that hold the number, as sets of bits.
///
/// gcc keeps the number on the stack across a call (7.2, 7.3). A slot is four bytes at a displacement from RSP; no other code can write to it, because
/// a compiler does not give away the address of a register that it spilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NumberPlaces {
    registers: u16,
    slots: u64,
}

/// Bytes of a stack slot.
const SLOT: u64 = 4;

impl NumberPlaces {
    fn has(self, register: Register) -> bool {
        register.is_gpr() && self.registers & bit(register) != 0
    }

    /// Those that hold it on both of two paths.
    fn on_both(self, other: NumberPlaces) -> NumberPlaces {
        NumberPlaces {
            registers: self.registers & other.registers,
            slots: self.slots & other.slots,
        }
    }

    /// Whether the instruction makes the number of its operands: in a register, or from one in a slot.
    fn is_made_by(self, instruction: &Instruction) -> bool {
        match instruction.mnemonic() {
            Mnemonic::Shr => {
                instruction.op1_kind() == OpKind::Immediate8
                    && instruction.immediate(1) == REGISTER_NUMBER
            }
            Mnemonic::Mov | Mnemonic::Movsxd | Mnemonic::Movzx => {
                let is_wide = instruction.memory_size().size() as u64 >= SLOT;
                let slot = slots(instruction).filter(|_| is_wide).map_or(0, first_slot);
                self.has(instruction.op1_register())
                    || (instruction.op1_kind() == OpKind::Memory && self.slots & slot != 0)
            }
            Mnemonic::And => {
                self.has(instruction.op0_register()) && instruction.op1_kind() != OpKind::Memory
            }
            _ => false,
        }
    }

    /// The sets after an instruction.
    fn after(
        self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> NumberPlaces {
        // EAX to RAX.
        if instruction.mnemonic() == Mnemonic::Cdqe {
            return self;
        }
        let gives = self.is_made_by(instruction);
        let mut left = self;
        let written = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        let info = factory.info_options(instruction, InstructionInfoOptions::NONE);
        for used in info.used_registers() {
            if written(used.access()) && used.register().is_gpr() {
                left.registers &= !bit(used.register());
            }
        }
        let is_call =
            matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        if is_call {
            for register in CALLER_SAVED {
                left.registers &= !bit(register);
            }
        } else if instruction.is_stack_instruction() || instruction.op0_register() == Register::RSP
        {
            // RSP moved: slots are elsewhere.
            left.slots = 0;
        }
        if !is_call && info.used_memory().iter().any(|used| written(used.access())) {
            left.slots &= !slots(instruction).unwrap_or(0);
        }
        let target = instruction.op0_register();
        if gives && (target.is_gpr32() || target.is_gpr64()) {
            left.registers |= bit(target);
        }
        if gives
            && instruction.op0_kind() == OpKind::Memory
            && instruction.memory_size().size() as u64 >= SLOT
        {
            left.slots |= slots(instruction).map_or(0, first_slot);
        }
        left
    }

    /// The register loaded, if the instruction loads the guest's register.
    fn place(self, instruction: &Instruction) -> Option<EncodingPlace> {
        let loads = instruction.code() == Code::Mov_r64_rm64
            && instruction.op1_kind() == OpKind::Memory
            && instruction.memory_index_scale() == 8
            && instruction.memory_base().is_gpr64()
            && self.has(instruction.memory_index());
        loads.then(|| EncodingPlace {
            offset: instruction.next_ip(),
            register: NAMES[instruction.op0_register().number()],
        })
    }
}

/// Caller-saved registers of the System V ABI.
const CALLER_SAVED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// The stack slots that the instruction's memory operand covers, if it is at a fixed place within reach of RSP.
fn slots(instruction: &Instruction) -> Option<u64> {
    let at = instruction.memory_displacement64();
    let is_fixed = instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && (0..2).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    let end = at.checked_add((instruction.memory_size().size() as u64).max(1))?;
    let (first, last) = (at / SLOT, (end - 1) / SLOT);
    (is_fixed && last < u64::from(u64::BITS))
        .then(|| (first..=last).fold(0, |set, slot| set | 1 << slot))
}

/// The slot with the low half.
fn first_slot(slots: u64) -> u64 {
    slots & slots.wrapping_neg()
}

fn bit(register: Register) -> u16 {
    1 << register.full_register().number()
}

/// Names of the registers in `kprobe_events`, in the processor's order.
const NAMES: [&str; 16] = [
    "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::{
        CodeAssembler, dword_ptr, eax, ebp, ebx, ecx, ptr, qword_ptr, r8, r12, r12d, r15, r15d,
        rax, rbp, rbx, rcx, rdi, rdx, rsp,
    };

    use super::*;

    /// The places in a function; `relocated` are indices of instructions with relocated targets.
    fn places(
        relocated: &[usize],
        write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
    ) -> Vec<EncodingPlace> {
        let mut asm = CodeAssembler::new(64).unwrap();
        write(&mut asm).unwrap();
        let code = asm.assemble(0).unwrap();
        let instructions: Vec<_> =
            Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).into_iter().collect();
        let relocations =
            relocated.iter().map(|&index| instructions[index].next_ip() - 4).collect();
        UnlinkedFunction { code: &code, relocations }.places()
    }

    #[test]
    fn the_register_behind_the_load_is_the_field() {
        let found = places(&[], |a| {
            let (mut slow, mut back) = (a.create_label(), a.create_label());
            a.mov(rbx, rdi)?;
            a.mov(eax, 0x440e)?;
            a.vmread(rax, rax)?;
            a.mov(ebp, eax)?;
            // The register with the value: not this one.
            a.mov(r15d, ebp)?;
            a.shr(r15d, 3)?;
            a.and(r15d, 15)?;
            a.mov(r15, ptr(rbx + r15 * 8 + 0x128))?;
            a.mov(r12d, ebp)?;
            a.shr(r12d, 28)?;
            a.mov(eax, r12d)?;
            a.bt(ptr(rbx + 0x1b0), rax)?;
            a.jae(slow)?;
            a.movsxd(r12, r12d)?;
            a.call(rax)?;
            a.mov(rbp, ptr(rbx + r12 * 8 + 0x128))?;
            a.set_label(&mut back)?;
            a.mov(rcx, ptr(rax + rbp * 8))?;
            a.ret()?;
            a.set_label(&mut slow)?;
            a.mov(rbp, ptr(rsp + 8))?;
            a.jmp(back)
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].register, "bp");
    }

    #[test]
    fn overwritten_registers_are_not_followed() {
        let after = |between: fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>| {
            places(&[], |a| {
                a.shr(eax, 28)?;
                between(a)?;
                a.mov(rdx, ptr(rbx + rax * 8 + 0x128))?;
                a.ret()
            })
        };
        assert_eq!(after(|_| Ok(())), [EncodingPlace { offset: 11, register: "dx" }]);
        assert_eq!(after(|a| a.and(eax, 15)).len(), 1);
        assert_eq!(after(|a| a.cdqe()).len(), 1);
        assert_eq!(after(|a| a.mov(ecx, eax)).len(), 1);
        assert_eq!(after(|a| a.call(r8)), []);
        assert_eq!(after(|a| a.pop(rax)), []);
        assert_eq!(after(|a| a.mov(eax, ebx)), []);
        assert_eq!(after(|a| a.add(eax, 1)), []);
        assert_eq!(after(|a| a.cpuid()), []);
        // Another path reaches the load without the number.
        let joined = places(&[], |a| {
            let mut load = a.create_label();
            a.jz(load)?;
            a.shr(eax, 28)?;
            a.set_label(&mut load)?;
            a.mov(rdx, ptr(rbx + rax * 8 + 0x128))?;
            a.ret()
        });
        assert_eq!(joined, []);
        // Not the vCPU's registers: another scale, a part of a register, no base.
        let other = |write: fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>| {
            places(&[], |a| {
                a.shr(eax, 28)?;
                write(a)?;
                a.ret()
            })
        };
        assert_eq!(other(|a| a.mov(rdx, ptr(rbx + rax * 4))), []);
        assert_eq!(other(|a| a.mov(ecx, ptr(rbx + rax * 8))), []);
        assert_eq!(other(|a| a.mov(rdx, ptr(rax * 8))), []);
        assert_eq!(other(|a| a.mov(ptr(rbx + rax * 8), rdx)), []);
    }

    /// As gcc does in 7.2 and 7.3.
    #[test]
    fn the_number_is_followed_through_the_stack() {
        let kept = |between: fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>| {
            places(&[], |a| {
                a.shr(eax, 28)?;
                a.mov(dword_ptr(rsp + 12), eax)?;
                between(a)?;
                a.movsxd(rcx, dword_ptr(rsp + 12))?;
                a.mov(rdx, ptr(rbx + rcx * 8 + 0x128))?;
                a.ret()
            })
            .len()
        };
        assert_eq!(kept(|_| Ok(())), 1);
        assert_eq!(kept(|a| a.call(r8)), 1);
        assert_eq!(kept(|a| a.mov(dword_ptr(rsp + 16), ebx)), 1);
        assert_eq!(kept(|a| a.mov(dword_ptr(rsp + 12), ebx)), 0);
        // Eight bytes from 8 on cover it.
        assert_eq!(kept(|a| a.mov(qword_ptr(rsp + 8), rbx)), 0);
        assert_eq!(kept(|a| a.inc(dword_ptr(rsp + 12))), 0);
        assert_eq!(kept(|a| a.push(rbx)), 0);
        assert_eq!(kept(|a| a.sub(rsp, 8)), 0);
        // Another path that did not store it.
        let joined = places(&[], |a| {
            let mut load = a.create_label();
            a.jz(load)?;
            a.shr(eax, 28)?;
            a.mov(ptr(rsp + 8), rax)?;
            a.set_label(&mut load)?;
            a.mov(rcx, ptr(rsp + 8))?;
            a.mov(rdx, ptr(rbx + rcx * 8 + 0x128))?;
            a.ret()
        });
        assert_eq!(joined, []);
    }

    #[test]
    fn a_jump_out_of_the_function_is_not_followed() {
        let write = |a: &mut CodeAssembler| {
            let mut next = a.create_label();
            a.shr(eax, 28)?;
            // As the compiler returns: `jmp __x86_return_thunk`, with four bytes of nothing until it is linked.
            a.db(&[0xe9, 0, 0, 0, 0])?;
            a.set_label(&mut next)?;
            a.mov(rdx, ptr(rbx + rax * 8 + 0x128))?;
            a.ret()
        };
        assert_eq!(places(&[], write).len(), 1);
        assert_eq!(places(&[1], write), []);
    }

    #[test]
    fn bytes_that_are_no_code_are_survived() {
        for byte in 0..=255 {
            let code = [byte; 64];
            let _ = UnlinkedFunction { code: &code, relocations: BTreeSet::new() }.places();
        }
    }

    #[test]
    fn modules_without_the_handlers_are_reported() {
        assert!(definitions(b"no ELF").unwrap_err().starts_with("kvm_intel: "));
    }
}
