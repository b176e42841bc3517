//! Boots Linux as a guest and waits until it powers off: the host's kernel, with this same program as its first process, which does nothing
//! ([`ROLE`]). An ordinary VM or a protected one; both have the same processor and memory.

use std::io::Write;
use std::os::fd::OwnedFd;

use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vmtax_guest::layout::arm;
use vmtax_guest::order::Backing;

use super::linux::{MEMORY_MIB, load};
use super::vmm::{ArmVmMemory, failed, start_at, vcpu};
use crate::l1::ConsoleTail;
use crate::life::machine::BITS;
use crate::{Result, protected};

/// The word by which this program is told that it has only to power off.
pub(crate) const ROLE: &str = "vmtax.role=boot";
/// `KVM_SYSTEM_EVENT_SHUTDOWN` (Linux, `include/uapi/linux/kvm.h`).
const SHUTDOWN: u32 = 1;

/// A guest that has not begun to boot. What it has mapped is given back last.
pub(crate) struct BootingLinux {
    vcpu: VcpuFd,
    _gic: OwnedFd,
    _vm: VmFd,
    _memory: ArmVmMemory,
    console: ConsoleTail,
}

impl BootingLinux {
    pub(crate) fn new(is_protected: bool) -> Result<BootingLinux> {
        let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
        let kind = BITS as u64 | if is_protected { protected::TYPE } else { 0 };
        let vm = kvm.create_vm_with_type(kind).map_err(failed("KVM_CREATE_VM"))?;
        let memory = ArmVmMemory::new(MEMORY_MIB << 20, Backing::Thp)?;
        memory.attach(&vm, (0, arm::MEMORY))?;
        let tree = load(&memory, "hvc")?;
        let (vcpu, _, gic) = vcpu(&vm, protected::FEATURES)?;
        start_at(&vcpu, (arm::MEMORY, tree))?;
        let console = ConsoleTail::default();
        Ok(BootingLinux { vcpu, _gic: gic, _vm: vm, _memory: memory, console })
    }

    /// From its first instruction until it has powered off.
    pub(crate) fn run(&mut self) -> Result<()> {
        let ended = loop {
            match self.vcpu.run() {
                // The console cannot fail: it is memory.
                Ok(VcpuExit::MmioWrite(arm::SERIAL, data)) => drop(self.console.write(&data[..1])),
                Ok(VcpuExit::MmioWrite(..)) => {}
                Ok(VcpuExit::MmioRead(_, data)) => data.fill(0),
                Ok(VcpuExit::SystemEvent(SHUTDOWN, _)) => return Ok(()),
                Ok(exit) => break format!("KVM cannot go on with it: {exit:?}"),
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => break format!("KVM_RUN: {error}"),
            }
        };
        Err(format!(
            "the Linux guest did not power off: {ended}; its console ends: {}",
            self.console.end()
        ))
    }
}
