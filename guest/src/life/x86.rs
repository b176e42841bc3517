//! VMs of x86.

use std::os::fd::OwnedFd;

use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_RUNNABLE, Msrs, kvm_cpuid2, kvm_mp_state,
    kvm_msr_entry, kvm_msrs, kvm_pit_config, kvm_regs, kvm_sregs,
};
use vmtax_guest::order::LifeStep;

use super::{AnonymousPages, CODE_AT, LOW, StepClock, call, owned, request, slot, with};
use crate::Result;
use crate::vmm::{CodeWidth, TSS, flat_segments};

/// Where its memory begins.
pub(super) const MEMORY: u64 = 0;
/// What a start needs room for.
pub(super) type Room = CpuId;

/// Requests that only x86 has.
mod own {
    pub(super) const SUPPORTED_CPUID: u32 = 0xc008_ae05;
    pub(super) const SET_TSS: u32 = 0xae47;
    pub(super) const CREATE_IRQCHIP: u32 = 0xae60;
    pub(super) const CREATE_PIT: u32 = 0x4040_ae77;
    pub(super) const SET_REGS: u32 = 0x4090_ae82;
    pub(super) const GET_SREGS: u32 = 0x8138_ae83;
    pub(super) const SET_SREGS: u32 = 0x4138_ae84;
    pub(super) const SET_MSRS: u32 = 0x4008_ae89;
    pub(super) const SET_CPUID: u32 = 0x4008_ae90;
    pub(super) const SET_MP_STATE: u32 = 0x4004_ae99;
}

/// The VM's first MiB holds this code, in 32-bit mode:
/// at 0 `again: mov byte [esi], 1; add esi, 4096; dec ecx; jnz again`, at 13 `out 0x10, al; jmp` back to it.
pub(super) const CODE: [u8; 17] = [
    0xc6, 0x06, 0x01, 0x81, 0xc6, 0x00, 0x10, 0x00, 0x00, 0x49, 0x75, 0xf4, 0x90, 0xe6, 0x10, 0xeb,
    0xfc,
];
pub(super) const STORES: u64 = 0;
pub(super) const EXITS: u64 = 13;

pub(super) fn ticks() -> u64 {
    // SAFETY: every processor of 64 bits has it, and nothing forbids it here.
    unsafe { std::arch::x86_64::_rdtsc() }
}

fn pit(vm: &OwnedFd) -> Result<i32> {
    let mut config = kvm_pit_config::default();
    with(vm, own::CREATE_PIT, &raw mut config)
}

fn supported_cpuid(kvm: &OwnedFd, cpuid: &mut CpuId) -> Result<i32> {
    with::<kvm_cpuid2>(kvm, own::SUPPORTED_CPUID, cpuid.as_mut_fam_struct_ptr())
}

fn set_cpuid(vcpu: &OwnedFd, cpuid: &CpuId) -> Result<i32> {
    with::<kvm_cpuid2>(vcpu, own::SET_CPUID, cpuid.as_fam_struct_ptr().cast_mut())
}

pub(super) fn room() -> Result<CpuId> {
    CpuId::new(KVM_MAX_CPUID_ENTRIES).map_err(|e| format!("room for CPUID: {e:?}"))
}

/// MSRs that a VMM restores: the TSC, those of system calls, and of memory types.
const MSRS: [u32; 16] = [
    0x10,
    0x174,
    0x175,
    0x176,
    0x277,
    0x2ff,
    0x200,
    0x201,
    0x250,
    0x258,
    0x1a0,
    0xc000_0081,
    0xc000_0082,
    0xc000_0083,
    0xc000_0084,
    0xc000_0102,
];

fn msrs() -> Result<Msrs> {
    let entry = |index| kvm_msr_entry { index, ..Default::default() };
    Msrs::from_entries(&MSRS.map(entry)).map_err(|e| format!("room for MSRs: {e:?}"))
}

/// The request stops at the first MSR that it refuses.
fn all_msrs(set: i32) -> Result<()> {
    let all = MSRS.len() as i32;
    if set == all { Ok(()) } else { Err(format!("KVM_SET_MSRS: {set} of {all} were set")) }
}

fn flat(vcpu: &OwnedFd) -> Result<i32> {
    let mut special = kvm_sregs::default();
    with(vcpu, own::GET_SREGS, &raw mut special)?;
    flat_segments(&mut special, CodeWidth::Bits32);
    special.cr0 |= 1;
    with(vcpu, own::SET_SREGS, &raw mut special)
}

/// Puts a vCPU at part of the code.
pub(super) fn aim(vcpu: &OwnedFd, at: u64, (from, pages): (u64, u64)) -> Result<i32> {
    let mut registers = kvm_regs {
        rip: CODE_AT as u64 + at,
        rsi: from,
        rcx: pages,
        rflags: 2,
        ..Default::default()
    };
    with(vcpu, own::SET_REGS, &raw mut registers)
}

/// The steps of a life from its VM on, until two vCPUs can run.
pub(super) fn create(
    clock: &mut StepClock,
    kvm: &OwnedFd,
    low: &AnonymousPages,
) -> Result<(OwnedFd, OwnedFd, OwnedFd)> {
    use LifeStep as S;
    let (mut cpuid, mut registers) = (room()?, msrs()?);
    clock.step(S::SupportedCpuid, || supported_cpuid(kvm, &mut cpuid))?;
    let vm = clock.step(S::CreateVm, || call(kvm, request::CREATE_VM, 0).map(owned))?;
    call(&vm, own::SET_TSS, TSS)?;
    clock.step(S::CreateIrqchip, || call(&vm, own::CREATE_IRQCHIP, 0))?;
    clock.step(S::CreatePit, || pit(&vm))?;
    clock.step(S::SlotFirst, || slot(&vm, 0, MEMORY, (low.address(), LOW)))?;
    let first = clock.step(S::VcpuFirst, || call(&vm, request::CREATE_VCPU, 0).map(owned))?;
    let second = clock.step(S::VcpuSecond, || call(&vm, request::CREATE_VCPU, 1).map(owned))?;
    clock.step(S::SetCpuid, || set_cpuid(&first, &cpuid))?;
    set_cpuid(&second, &cpuid)?;
    clock
        .step(S::SetMsrs, || {
            with::<kvm_msrs>(&first, own::SET_MSRS, registers.as_mut_fam_struct_ptr())
        })
        .and_then(all_msrs)?;
    clock.step(S::SetSregs, || flat(&first))?;
    flat(&second)?;
    let mut state = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
    with(&second, own::SET_MP_STATE, &raw mut state)?;
    Ok((vm, first, second))
}

/// Ends of further VMs: none.
pub(super) fn ends(_: &mut StepClock, _: &OwnedFd) -> Result<()> {
    Ok(())
}

/// A start as a VMM makes it, until its vCPUs can be aimed.
pub(super) fn start(
    kvm: &OwnedFd,
    memory_first: bool,
    cpuid: &mut Room,
    memory: &dyn Fn(&OwnedFd) -> Result<()>,
    devices: &dyn Fn(&OwnedFd) -> Result<()>,
) -> Result<(OwnedFd, Vec<OwnedFd>)> {
    supported_cpuid(kvm, cpuid)?;
    let vm = call(kvm, request::CREATE_VM, 0).map(owned)?;
    call(&vm, own::SET_TSS, TSS)?;
    if memory_first {
        memory(&vm)?;
    }
    call(&vm, own::CREATE_IRQCHIP, 0)?;
    pit(&vm)?;
    if !memory_first {
        memory(&vm)?;
    }
    let vcpu = |number| call(&vm, request::CREATE_VCPU, number).map(owned);
    let vcpus = vec![vcpu(0)?, vcpu(1)?];
    devices(&vm)?;
    vcpus.iter().try_for_each(|vcpu| set_cpuid(vcpu, cpuid).map(drop))?;
    flat(&vcpus[0])?;
    Ok((vm, vcpus))
}

/// Linux boots as a guest on arm64 alone.
pub(super) fn boot(_: &mut StepClock, _: bool) -> Result<()> {
    Err("the boot of Linux is a step of arm64's".to_owned())
}
