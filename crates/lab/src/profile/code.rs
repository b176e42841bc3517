//! What an instruction does to the flow of control, and how it may leave a guest.

pub(crate) mod arm;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, Register,
};

/// What an instruction does to the stack of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackEffect {
    /// It calls.
    Call,
    /// It returns from a call.
    Return,
    /// It returns from an interrupt, an exception or a system call.
    GateReturn,
    /// A system call.
    Syscall,
    /// It jumps, always, to an address in its code.
    Jump,
    /// It enters a guest, or asks the hypervisor to.
    Enter,
    /// Nothing of these.
    None,
}

/// How an instruction of a guest may leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// KVM intercepts it, always.
    Intercepted(&'static str),
    /// KVM may intercept it.
    Perhaps(&'static str),
    /// It raises an exception that says so of itself.
    Undefined(&'static str),
    /// It accesses memory so many times, which may fault.
    Accesses(u32),
    /// The same, as often as a register says, which may be never.
    Repeats(u32),
    /// It does not.
    Never,
}

/// The instruction with exactly these bytes. Firmware and the first steps of a kernel run in modes of 16 and 32 bits, in which the same bytes are another one: the
/// emulator's length tells.
fn decode(code: &[u8]) -> Instruction {
    let of_mode = |bits| Decoder::with_ip(bits, code, 0, DecoderOptions::NONE).decode();
    let fits = |one: &Instruction| !one.is_invalid() && one.len() == code.len();
    [64, 32, 16].into_iter().map(of_mode).find(fits).unwrap_or_else(|| of_mode(64))
}

/// The effect of the instruction with these bytes.
pub(crate) fn effect(code: &[u8]) -> StackEffect {
    let instruction = decode(code);
    match instruction.mnemonic() {
        Mnemonic::Vmrun | Mnemonic::Vmlaunch | Mnemonic::Vmresume => return StackEffect::Enter,
        Mnemonic::Syscall | Mnemonic::Sysenter => return StackEffect::Syscall,
        Mnemonic::Iret
        | Mnemonic::Iretd
        | Mnemonic::Iretq
        | Mnemonic::Sysret
        | Mnemonic::Sysretq
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq => {
            return StackEffect::GateReturn;
        }
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall => StackEffect::Call,
        FlowControl::Return => StackEffect::Return,
        FlowControl::UnconditionalBranch => StackEffect::Jump,
        _ => StackEffect::None,
    }
}

/// How the instruction with these bytes may leave a guest.
pub(crate) fn leaves(code: &[u8]) -> Leaves {
    let instruction = decode(code);
    if let Some(found) = named(&instruction) {
        return found;
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(&instruction);
    let accesses = info.used_memory().iter().map(|memory| match memory.access() {
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => 2,
        OpAccess::Read | OpAccess::CondRead | OpAccess::Write | OpAccess::CondWrite => 1,
        _ => 0,
    });
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    match accesses.sum() {
        0 => Leaves::Never,
        count if repeats => Leaves::Repeats(count),
        count => Leaves::Accesses(count),
    }
}

/// Whether the instruction with these bytes divides, which may raise an exception without an access to memory.
pub(crate) fn divides(code: &[u8]) -> bool {
    matches!(decode(code).mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
}

fn named(instruction: &Instruction) -> Option<Leaves> {
    use Leaves::{Intercepted, Perhaps, Undefined};
    let of_register = |register: Register| {
        if register.is_cr() {
            Some(Perhaps("mov cr"))
        } else if register.is_dr() {
            Some(Perhaps("mov dr"))
        } else {
            None
        }
    };
    Some(match instruction.mnemonic() {
        Mnemonic::Cpuid => Intercepted("cpuid"),
        Mnemonic::Hlt => Intercepted("hlt"),
        Mnemonic::In => Intercepted("in"),
        Mnemonic::Out => Intercepted("out"),
        Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => Intercepted("ins"),
        Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => Intercepted("outs"),
        Mnemonic::Vmmcall => Intercepted("vmmcall"),
        Mnemonic::Vmcall => Intercepted("vmcall"),
        Mnemonic::Vmrun => Intercepted("vmrun"),
        Mnemonic::Vmload => Intercepted("vmload"),
        Mnemonic::Vmsave => Intercepted("vmsave"),
        Mnemonic::Stgi => Perhaps("stgi"),
        Mnemonic::Clgi => Perhaps("clgi"),
        Mnemonic::Skinit => Intercepted("skinit"),
        Mnemonic::Wbinvd | Mnemonic::Wbnoinvd => Intercepted("wbinvd"),
        Mnemonic::Invd => Intercepted("invd"),
        Mnemonic::Xsetbv => Perhaps("xsetbv"),
        Mnemonic::Rdpmc => Intercepted("rdpmc"),
        Mnemonic::Monitor => Perhaps("monitor"),
        Mnemonic::Mwait => Perhaps("mwait"),
        Mnemonic::Rdmsr => Perhaps("rdmsr"),
        Mnemonic::Wrmsr => Perhaps("wrmsr"),
        Mnemonic::Pause => Perhaps("pause"),
        Mnemonic::Invlpg => Perhaps("invlpg"),
        Mnemonic::Invlpga => Perhaps("invlpga"),
        Mnemonic::Invpcid => Perhaps("invpcid"),
        Mnemonic::Rdtsc => Perhaps("rdtsc"),
        Mnemonic::Rdtscp => Perhaps("rdtscp"),
        Mnemonic::Clts => Perhaps("clts"),
        Mnemonic::Lmsw => Perhaps("lmsw"),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => Undefined("ud2"),
        Mnemonic::Int3 => Undefined("int3"),
        Mnemonic::Mov if !matches!(instruction.code(), Code::INVALID) => {
            return of_register(instruction.op0_register())
                .or_else(|| of_register(instruction.op1_register()));
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_of_instructions() {
        let cases: [(&[u8], StackEffect); 12] = [
            (&[0xe8, 0, 0, 0, 0], StackEffect::Call),
            (&[0xff, 0xd0], StackEffect::Call),
            (&[0x41, 0xff, 0x14, 0x24], StackEffect::Call),
            (&[0xc3], StackEffect::Return),
            (&[0xf3, 0xc3], StackEffect::Return),
            (&[0x48, 0xcf], StackEffect::GateReturn),
            (&[0x48, 0x0f, 0x07], StackEffect::GateReturn),
            (&[0x0f, 0x05], StackEffect::Syscall),
            (&[0xe9, 0, 0, 0, 0], StackEffect::Jump),
            (&[0xff, 0xe0], StackEffect::None),
            (&[0x74, 0], StackEffect::None),
            (&[0x0f, 0x01, 0xd8], StackEffect::Enter),
        ];
        for (code, expected) in cases {
            assert_eq!(effect(code), expected, "{code:x?}");
        }
    }

    #[test]
    fn ways_out_of_a_guest() {
        let cases: [(&[u8], Leaves); 15] = [
            (&[0x0f, 0xa2], Leaves::Intercepted("cpuid")),
            (&[0xef], Leaves::Intercepted("out")),
            (&[0x0f, 0x01, 0xda], Leaves::Intercepted("vmload")),
            (&[0x0f, 0x30], Leaves::Perhaps("wrmsr")),
            (&[0x0f, 0x22, 0xe0], Leaves::Perhaps("mov cr")),
            (&[0x0f, 0x23, 0xc0], Leaves::Perhaps("mov dr")),
            (&[0x0f, 0x0b], Leaves::Undefined("ud2")),
            (&[0x89, 0x07], Leaves::Accesses(1)),
            (&[0xff, 0x07], Leaves::Accesses(2)),
            (&[0x48, 0xff, 0xc8], Leaves::Never),
            (&[0xaa], Leaves::Accesses(1)),
            (&[0xf3, 0x48, 0xa5], Leaves::Repeats(2)),
            // Of 16 and 32 bits: MOV AX, [0x1234]; PUSH ES; DEC EAX.
            (&[0xa1, 0x34, 0x12], Leaves::Accesses(1)),
            (&[0x06], Leaves::Accesses(1)),
            (&[0x48], Leaves::Never),
        ];
        for (code, expected) in cases {
            assert_eq!(leaves(code), expected, "{code:x?}");
        }
    }
}
