//! A hypervisor's instructions in L1 on arm64. Each is an exit to L0, unless the processor keeps the register in memory (FEAT_NV2).
//!
//! Left out on purpose: TLBI VMALLS12E1 and ALLE1. KVM (6.18, 7.3) unmaps for them all that L2's addresses could be, in steps of 1 GiB (seen
//! by samples of the emulator): by the figures of a VM's end some 2 billion instructions with 52 bits of addresses.
//!
//! L1 is a bare hypervisor at EL2 with VHE; its guest, L2, executes HVC in a loop, in the same memory through a second stage of one page.

use vmtax_guest::layout::arm;

use super::arm::{one, whole};
use super::definition::{Definition, GuestCode, OnArm};
use crate::payload::arm::{ArmCode, CodeWords, SystemRegister, VECTORS, nothing as nothing_before};

const HCR_EL2: SystemRegister = (3, 4, 1, 1, 0);
const VTTBR_EL2: SystemRegister = (3, 4, 2, 1, 0);
const VTCR_EL2: SystemRegister = (3, 4, 2, 1, 2);
const SPSR_EL2: SystemRegister = (3, 4, 4, 0, 0);
const ELR_EL2: SystemRegister = (3, 4, 4, 0, 1);
const CNTVOFF_EL2: SystemRegister = (3, 4, 14, 0, 3);
const MDCR_EL2: SystemRegister = (3, 4, 1, 1, 1);
const ICH_MISR_EL2: SystemRegister = (3, 4, 12, 11, 2);
const ICH_LR0_EL2: SystemRegister = (3, 4, 12, 12, 0);
const CNTV_CTL_EL02: SystemRegister = (3, 5, 14, 3, 1);
const TLBI_IPAS2E1: SystemRegister = (1, 4, 8, 4, 1);
const AT_S12E1R: SystemRegister = (1, 4, 7, 8, 4);
const IC_IALLU: SystemRegister = (1, 0, 7, 5, 0);

/// HCR_EL2 (this and the next by the Arm ARM) of a host with VHE that has a guest: E2H, RW, VM.
const WITH_GUEST: u64 = 1 << 34 | 1 << 31 | 1;
/// VTCR_EL2: guest-physical addresses of 32 bits, walks from level 1 on, inner shareable, pages of 4 KiB.
const STAGE_2: u64 = 1 << 31 | 3 << 12 | 1 << 6 | 32;
/// A block of 1 GiB, accessed, inner shareable, readable and writable, ordinary memory.
const BLOCK: u32 = 1 << 10 | 3 << 8 | 3 << 6 | 0xf << 2 | 1;
/// EL1 with its own stack pointer and exceptions masked.
const AT_EL1: u64 = 0x3c5;
/// Where the second stage's table and L2's code are.
const TABLE: u64 = arm::MEMORY + 0x3000;
const GUEST: u64 = arm::MEMORY + 0x4000;
/// The vector of a call from the guest, of 64 bits.
const CALLED: u64 = VECTORS + 0x400;
/// Where the hypervisor goes on after it.
const RETURN: u32 = 17;

pub(super) const OPERATIONS: &[Definition] = &[
    whole(hypervisor("eret", "ERET to L2, HVC of L2, and back", Some("ERET"), |out| {
        out.set_return(RETURN);
        out.exception_return();
    })),
    hypervisor("mdcr-read", "read of MDCR_EL2", Some("SYS64"), |out| out.read(0, MDCR_EL2)),
    hypervisor("ich-misr-read", "read of ICH_MISR_EL2", Some("SYS64"), |out| {
        out.read(0, ICH_MISR_EL2);
    }),
    hypervisor("cntv-ctl-el02", "write of CNTV_CTL_EL02, L2's timer", Some("SYS64"), |out| {
        out.set(0, 0);
        out.write(CNTV_CTL_EL02, 0);
    }),
    hypervisor("ich-lr-write", "write of ICH_LR0_EL2", None, |out| {
        out.set(0, 0);
        out.write(ICH_LR0_EL2, 0);
    }),
    hypervisor("cntvoff-write", "write of CNTVOFF_EL2", None, |out| {
        out.set(0, 0);
        out.write(CNTVOFF_EL2, 0);
    }),
    hypervisor("vttbr-read", "read of VTTBR_EL2", None, |out| out.read(0, VTTBR_EL2)),
    hypervisor("at-s12e1r", "AT S12E1R of a page of L2", Some("SYS64"), |out| {
        out.set(0, GUEST);
        out.write(AT_S12E1R, 0);
    }),
    hypervisor("tlbi-ipas2e1", "TLBI IPAS2E1 of a page of L2", Some("SYS64"), |out| {
        out.set(0, GUEST >> 12);
        out.write(TLBI_IPAS2E1, 0);
    }),
];

/// An operation of a hypervisor that has entered its guest once.
const fn hypervisor(
    name: &'static str,
    summary: &'static str,
    exits: Option<&'static str>,
    body: fn(&mut CodeWords),
) -> Definition {
    let one = one(name, summary, exits, body);
    let code = ArmCode { setup: become_hypervisor, batch: nothing_before, body };
    let arm = OnArm { code, exits, straight: true, hypervisor: true, counters: None };
    Definition { code: GuestCode { arm: Some(arm), shares: false, ..one.code }, ..one }
}

/// Makes the second stage, L2's code and the vector, and enters L2 once.
fn become_hypervisor(out: &mut CodeWords) {
    const GIB: u64 = 1 << 30;
    out.put(TABLE + 8 * (arm::MEMORY / GIB), arm::MEMORY as u32 | BLOCK);
    // hvc #0; b back to it.
    out.put(GUEST, 0xd400_0002);
    out.put(GUEST + 4, 0x17ff_ffff);
    // br x17
    out.put(CALLED, 0xd61f_0000 | RETURN << 5);
    out.finish_invalidation();
    out.system(IC_IALLU);
    out.finish_invalidation();
    out.put_system(VTCR_EL2, STAGE_2);
    out.put_system(VTTBR_EL2, TABLE);
    out.put_system(HCR_EL2, WITH_GUEST);
    out.put_system(SPSR_EL2, AT_EL1);
    out.put_system(ELR_EL2, GUEST);
    out.synchronize();
    out.set_return(RETURN);
    out.exception_return();
}
