//! Instructions of arm64: what they do to the flow of control, and how they leave a guest. Encodings are those of the Arm ARM (DDI 0487), C4.1.

use vmtax_events::arm::registers;

use super::super::tree::CauseName;
use super::StackEffect;

/// An instruction that reads the virtual counter: MRS of CNTVCT_EL0.
pub(crate) fn is_clock(word: u32) -> bool {
    word & !0x1f == 0xd53b_e040
}

/// An instruction of floating point or SIMD, loads and stores of its registers among them. Where these trap, QEMU's block ends with it and its clock counts it.
pub(crate) fn is_floating_point(word: u32) -> bool {
    word >> 26 & 0b11 == 0b11
}

/// The effect of an instruction.
pub(crate) fn effect(word: u32) -> StackEffect {
    match word {
        // BL; BLR, with authentication too.
        _ if word & 0xfc00_0000 == 0x9400_0000 || word & 0xfeff_f000 == 0xd63f_0000 => {
            StackEffect::Call
        }
        // RET, RETAA, RETAB.
        _ if word & 0xffff_f000 == 0xd65f_0000 => StackEffect::Return,
        // ERET, ERETAA, ERETAB.
        _ if word & 0xffff_f000 == 0xd69f_0000 => StackEffect::GateReturn,
        _ => StackEffect::None,
    }
}

/// How a synchronous exception comes of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmTrap {
    /// The instruction is there for it, or traps: the emulator's clock counts it.
    Counted(CauseName),
    /// It accesses a system register or is a system instruction, whose trap the emulator finds while it executes the block: its clock counts the
    /// whole block.
    Block(CauseName),
    /// It accesses memory: the clock does not count it if that fails.
    Access,
    /// It raises none.
    None,
}

/// How a synchronous exception comes of an instruction.
pub(crate) fn trap(word: u32) -> ArmTrap {
    let named = |name: &'static str| ArmTrap::Counted(name.into());
    match word & 0xffe0_001f {
        0xd400_0001 => return named("svc"),
        0xd400_0002 => return named("hvc"),
        0xd400_0003 => return named("smc"),
        0xd420_0000 => return named("brk"),
        _ => {}
    }
    match word {
        0xd503_207f => named("wfi"),
        0xd503_205f => named("wfe"),
        _ if effect(word) == StackEffect::GateReturn => named("eret"),
        // DC ZVA.
        _ if word & !0x1f == 0xd50b_7420 => ArmTrap::Access,
        // SYS, SYSL, MSR and MRS of registers: their first operand is not 0.
        _ if word & 0xffc0_0000 == 0xd500_0000 && word >> 19 & 3 != 0 => {
            let bits = |at: u32, mask: u32| u64::from(word >> at & mask);
            let number =
                registers::id(bits(19, 3), bits(16, 7), bits(12, 15), bits(8, 15), bits(5, 7));
            let write = word >> 21 & 1 == 0;
            ArmTrap::Block(CauseName::Register { number: number as u16, write })
        }
        // Loads and stores.
        _ if word >> 25 & 0b101 == 0b100 => ArmTrap::Access,
        _ => ArmTrap::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are LLVM's, of the instructions beside them.
    #[test]
    fn effects_of_instructions() {
        for (word, expected) in [
            (0x9400_0004, StackEffect::Call),       // bl .+16
            (0xd63f_0020, StackEffect::Call),       // blr x1
            (0xd63f_083f, StackEffect::Call),       // blraaz x1
            (0xd73f_0822, StackEffect::Call),       // blraa x1, x2
            (0xd65f_03c0, StackEffect::Return),     // ret
            (0xd65f_0bff, StackEffect::Return),     // retaa
            (0xd69f_03e0, StackEffect::GateReturn), // eret
            (0xd69f_0bff, StackEffect::GateReturn), // eretaa
            (0x1400_0004, StackEffect::None),       // b .+16
            (0xd61f_0020, StackEffect::None),       // br x1
            (0xd71f_0822, StackEffect::None),       // braa x1, x2
            (0x5400_0040, StackEffect::None),       // b.eq .+8
        ] {
            assert_eq!(effect(word), expected, "{word:#x}");
        }
    }

    #[test]
    fn exceptions_of_instructions() {
        let text = |word| match trap(word) {
            ArmTrap::Counted(name) => name.to_string(),
            ArmTrap::Block(name) => format!("block: {name}"),
            ArmTrap::Access => "access".to_owned(),
            ArmTrap::None => String::new(),
        };
        for (word, expected) in [
            (0xd400_0001, "svc"),                         // svc #0
            (0xd400_0022, "hvc"),                         // hvc #1
            (0xd400_0003, "smc"),                         // smc #0
            (0xd421_0000, "brk"),                         // brk #0x800
            (0xd503_207f, "wfi"),                         // wfi
            (0xd69f_03e0, "eret"),                        // eret
            (0xd538_0700, "block: mrs ID_AA64MMFR0_EL1"), // mrs x0, id_aa64mmfr0_el1
            (0xd510_1080, "block: msr OSLAR_EL1"),        // msr oslar_el1, x0
            (0xd508_831f, "block: TLBI_VMALLE1IS"),       // tlbi vmalle1is
            (0xd50b_7420, "access"),                      // dc zva, x0
            (0xd503_3fdf, ""),                            // isb
            (0xd503_2abf, ""),                            // hint #85
            (0xb940_06d4, "access"),                      // ldr w20, [x22, #4]
            (0xf833_7af5, "access"),                      // str x21, [x23, x19, lsl #3]
            (0xa9bf_7bfd, "access"),                      // stp x29, x30, [sp, #-16]!
            (0x3d80_0000, "access"),                      // str q0, [x0]
            (0xad00_0400, "access"),                      // stp q0, q1, [x0]
            (0x885f_7c00, "access"),                      // ldxr w0, [x0]
            (0x9100_0673, ""),                            // add x19, x19, #1
            (0x9b01_7c00, ""),                            // mul x0, x0, x1
            (0x1e60_4000, ""),                            // fmov d0, d0
        ] {
            assert_eq!(text(word), expected, "{word:#x}");
        }
        assert!(is_clock(0xd53b_e055) && !is_clock(0xd53b_e035));
        // str q0, [x0]; stp q0, q1, [x0]; fmov d0, d0; movi v0.2d, #0; str x21, [x23, x19, lsl #3]; stp x29, x30, [sp, #-16]!; b; isb.
        let words = [0x3d80_0000, 0xad00_0400, 0x1e60_4000, 0x6f00_e400];
        assert!(words.into_iter().all(is_floating_point));
        let others = [0xf833_7af5, 0xa9bf_7bfd, 0x1400_0004, 0xd503_3fdf];
        assert!(!others.into_iter().any(is_floating_point));
    }
}
