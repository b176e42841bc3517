//! Protected VMs of pKVM: their memory is theirs, and neither the host's kernel nor its VMM can access it.

use kvm_bindings::{KVM_ARM_VCPU_PTRAUTH_ADDRESS, KVM_ARM_VCPU_PTRAUTH_GENERIC};
use kvm_ioctls::Kvm;

use crate::life::machine::BITS;
use crate::vmm::failed;
use crate::{Result, system};

/// The word by which this program is told that it will have them.
pub(crate) const WORD: &str = "vmtax.protected";
/// The host's kernel is to run KVM so.
pub(crate) const MODE: &str = "kvm-arm.mode=protected";
/// `KVM_VM_TYPE_ARM_PROTECTED` (Linux 7.3, `include/uapi/linux/kvm.h`).
pub(crate) const TYPE: u64 = 1 << 31;
/// A Linux that signs its pointers finds these instructions in its VM.
pub(crate) const FEATURES: u32 =
    1 << KVM_ARM_VCPU_PTRAUTH_ADDRESS | 1 << KVM_ARM_VCPU_PTRAUTH_GENERIC;

/// Why there are none, if KVM makes none here. `mode` is that in which it runs.
pub(crate) fn missing(mode: Option<&str>) -> Result<Option<String>> {
    let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
    let Err(error) = kvm.create_vm_with_type(BITS as u64 | TYPE) else { return Ok(None) };
    let release = system::release();
    let mode = mode.unwrap_or("an unknown");
    Ok(Some(format!(
        "KVM of this host makes no protected VMs (KVM_VM_TYPE_ARM_PROTECTED: {error}); Linux {release} runs KVM in {mode} mode, and they take Linux 7.3 or newer in \
         protected mode"
    )))
}
