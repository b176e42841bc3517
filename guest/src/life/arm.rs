//! VMs of arm64.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use kvm_bindings::{
    KVM_ARM_VCPU_PSCI_0_2, KVM_DEV_ARM_VGIC_CTRL_INIT, KVM_DEV_ARM_VGIC_GRP_ADDR,
    KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_GRP_NR_IRQS, KVM_REG_ARM_CORE, KVM_REG_ARM64,
    KVM_REG_SIZE_U64, KVM_VGIC_V3_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_REDIST, kvm_create_device,
    kvm_device_attr, kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3, kvm_one_reg, kvm_vcpu_init,
};
use vmtax_guest::layout::{self, arm};
use vmtax_guest::order::LifeStep;

use super::{AnonymousPages, CODE_AT, LOW, StepClock, call, owned, request, slot, with};
use crate::Result;
use crate::boot::BootingLinux;

/// Where its memory begins.
pub(super) const MEMORY: u64 = 0;
/// Nothing that a start needs room for.
pub(super) type Room = ();

/// Requests that only arm64 uses here.
mod own {
    pub(super) const SET_ONE_REG: u32 = 0x4010_aeac;
    pub(super) const VCPU_INIT: u32 = 0x4020_aeae;
    pub(super) const PREFERRED_TARGET: u32 = 0x8020_aeaf;
    pub(super) const CREATE_DEVICE: u32 = 0xc00c_aee0;
    pub(super) const SET_DEVICE_ATTR: u32 = 0x4018_aee1;
}

/// At 0 `nop; again: strb wzr, [x0]; add x0, x0, 4096; subs x1, x1, 1; b.ne again`, at 20 `str wzr, [x2]; b` back to it. A vCPU that left with a
/// store to a device begins one instruction behind the one that it is aimed at: KVM ends that store when it enters the next time.
pub(super) const CODE: [u32; 7] =
    [0xd503_201f, 0x3900_001f, 0x9140_0400, 0xf100_0421, 0x54ff_ffa1, 0xb900_005f, 0x17ff_ffff];
pub(super) const STORES: u64 = 0;
pub(super) const EXITS: u64 = 20;
const INTERRUPTS: u32 = 64;
/// `KVM_DEV_ARM_VGIC_GRP_MAINT_IRQ` (Linux `arch/arm64/include/uapi/asm/kvm.h`).
const GROUP_MAINTENANCE: u32 = 9;
/// As wide as QEMU's VMs of little memory: bits of guest-physical addresses, the type of the VM.
pub(crate) const BITS: usize = 40;
/// A wider VM. One that is as wide as the processor allows has 48 or 52 bits.
const WIDE: usize = 44;

pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads the counter, which the kernel lets programs read.
    unsafe { std::arch::asm!("isb", "mrs {0}, cntvct_el0", out(reg) ticks, options(nostack)) };
    ticks
}

pub(super) fn room() -> Result<Room> {
    Ok(())
}

fn set(vcpu: &OwnedFd, place: usize, value: u64) -> Result<i32> {
    // Core registers are named by their place, in words of 32 bits.
    let id = KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | place as u64;
    let mut register = kvm_one_reg { id, addr: &raw const value as u64 };
    with(vcpu, own::SET_ONE_REG, &raw mut register)
}

/// Puts a vCPU at part of the code.
pub(super) fn aim(vcpu: &OwnedFd, at: u64, (from, pages): (u64, u64)) -> Result<i32> {
    // x0 to x30, the stack pointer and the program counter follow each other.
    set(vcpu, 0, from)?;
    set(vcpu, 2, pages)?;
    set(vcpu, 4, arm::address(layout::DEVICE_PORT))?;
    set(vcpu, 64, MEMORY + CODE_AT as u64 + at)
}

fn preferred(vm: &OwnedFd) -> Result<kvm_vcpu_init> {
    let mut init = kvm_vcpu_init::default();
    with(vm, own::PREFERRED_TARGET, &raw mut init)?;
    init.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    Ok(init)
}

fn init(vcpu: &OwnedFd, mut how: kvm_vcpu_init) -> Result<i32> {
    with(vcpu, own::VCPU_INIT, &raw mut how)
}

/// KVM's GICv3, with interrupts of each processor and no others that anybody uses; where VMs have EL2, with that by which it tells their
/// hypervisor that a list register is empty.
pub(crate) fn gic(vm: &impl AsRawFd, maintenance: Option<u32>) -> Result<OwnedFd> {
    let mut device =
        kvm_create_device { type_: kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3, ..Default::default() };
    with(vm, own::CREATE_DEVICE, &raw mut device)?;
    // SAFETY: KVM has just made it, and nobody else has it.
    let gic = unsafe { OwnedFd::from_raw_fd(device.fd as i32) };
    let set = |group: u32, attr: u32, value: u64| {
        let addr = &raw const value as u64;
        let mut attribute =
            kvm_device_attr { group, attr: attr.into(), addr, ..Default::default() };
        with(&gic, own::SET_DEVICE_ATTR, &raw mut attribute)
    };
    set(KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_DIST, arm::DISTRIBUTOR)?;
    set(KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_REDIST, arm::REDISTRIBUTOR)?;
    set(KVM_DEV_ARM_VGIC_GRP_NR_IRQS, 0, INTERRUPTS.into())?;
    if let Some(number) = maintenance {
        set(GROUP_MAINTENANCE, 0, number.into())?;
    }
    set(KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_CTRL_INIT, 0)?;
    Ok(gic)
}

/// The steps of a life from its VM on, until two vCPUs can run. The GIC stays with the VM when its descriptor is closed.
pub(super) fn create(
    clock: &mut StepClock,
    kvm: &OwnedFd,
    low: &AnonymousPages,
) -> Result<(OwnedFd, OwnedFd, OwnedFd)> {
    use LifeStep as S;
    let vm = clock.step(S::CreateVm, || call(kvm, request::CREATE_VM, BITS).map(owned))?;
    clock.step(S::SlotFirst, || slot(&vm, 0, MEMORY, (low.address(), LOW)))?;
    let first = clock.step(S::VcpuFirst, || call(&vm, request::CREATE_VCPU, 0).map(owned))?;
    let second = clock.step(S::VcpuSecond, || call(&vm, request::CREATE_VCPU, 1).map(owned))?;
    let how = preferred(&vm)?;
    clock.step(S::VcpuInit, || init(&first, how))?;
    init(&second, how)?;
    clock.step(S::CreateGic, || gic(&vm, None))?;
    Ok((vm, first, second))
}

/// Ends of empty VMs, by their width.
pub(super) fn ends(clock: &mut StepClock, kvm: &OwnedFd) -> Result<()> {
    for (step, bits) in [(LifeStep::DestroyEmpty, BITS), (LifeStep::DestroyWide, WIDE)] {
        let vm = call(kvm, request::CREATE_VM, bits).map(owned)?;
        clock.step(step, || {
            drop(vm);
            Ok(())
        })?;
    }
    Ok(())
}

/// A start as a VMM makes it, until its vCPUs can be aimed.
pub(super) fn start(
    kvm: &OwnedFd,
    memory_first: bool,
    (): &mut Room,
    memory: &dyn Fn(&OwnedFd) -> Result<()>,
    devices: &dyn Fn(&OwnedFd) -> Result<()>,
) -> Result<(OwnedFd, Vec<OwnedFd>)> {
    let vm = call(kvm, request::CREATE_VM, BITS).map(owned)?;
    if memory_first {
        memory(&vm)?;
    }
    let vcpu = |number| call(&vm, request::CREATE_VCPU, number).map(owned);
    let vcpus = vec![vcpu(0)?, vcpu(1)?];
    let how = preferred(&vm)?;
    vcpus.iter().try_for_each(|vcpu| init(vcpu, how).map(drop))?;
    gic(&vm, None)?;
    if !memory_first {
        memory(&vm)?;
    }
    devices(&vm)?;
    Ok((vm, vcpus))
}

/// Boots Linux in a VM that is protected or is not.
pub(super) fn boot(clock: &mut StepClock, is_protected: bool) -> Result<()> {
    let mut linux = BootingLinux::new(is_protected)?;
    clock.step(LifeStep::BootLinux, || linux.run())
}
