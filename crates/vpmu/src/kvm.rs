//! What a VMM does with KVM for its vCPUs' PMUs: accesses of their MSRs come to user space, interrupts go to the local
//! APIC in the kernel.
//!
//! ```text
//! VM:             filter             before vCPUs are created
//! vCPU:           show               before KVM_SET_CPUID2
//! its thread:     VcpuPmu::new
//! again and again:
//!     enter       an interrupt that is due goes to the APIC
//!     KVM_RUN     ── KVM_EXIT_X86_RDMSR ──> read
//!                 ── KVM_EXIT_X86_WRMSR ──> write
//!                 ── EINTR ───────────────> interrupted: an event overflowed, or somebody else's signal
//! ```
//!
//! What KVM does not permit: RDPMC never comes to user space; guests have to read by RDMSR. KVM's own PMU is switched off
//! here, so that the instruction faults (#GP) instead of reading counters that nobody programmed; on AMD Linux 6.1 has
//! it read zero all the same. Linux's perf reads by RDPMC and cannot run on this. In a guest's view the counters also go on while the kernel and the VMM
//! work for it, unless the host's events leave the host out ([`crate::host::perf_event::Options::exclude_host`]), which
//! hardware events do and software events do not.

use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_CAP_X86_USER_SPACE_MSR, KVM_MAX_CPUID_ENTRIES,
    KVM_MSR_EXIT_REASON_FILTER, KVM_PMU_CAP_DISABLE, Msrs, kvm_cpuid_entry2, kvm_enable_cap,
    kvm_msi, kvm_msr_entry,
};
use kvm_ioctls::{
    Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, ReadMsrExit, VcpuFd, VmFd,
    WriteMsrExit,
};

use crate::host::Host;
use crate::host::sys::vcpu;
use crate::model::{Leaf, Model};
use crate::msr::DEBUG_CONTROL;
use crate::pmu::Pmu;

/// The local vector table's entry for performance counters, as an MSR and as an offset in the APIC's page.
const LVTPC_MSR: u32 = 0x834;
const LVTPC: usize = 0x340;
/// It is masked.
const MASKED: u32 = 1 << 16;
/// DEBUGCTL: branch records and steps from branch to branch, which KVM has no use for and ignores.
const IGNORED: u64 = 0b11;

/// Why KVM does not do what is needed.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// An ioctl failed.
    #[error("{what}: {error}")]
    Ioctl {
        /// Which one.
        what: &'static str,
        /// How.
        error: kvm_ioctls::Error,
    },
    /// A kernel before 5.18.
    #[error("this KVM cannot switch its own PMU off (KVM_CAP_PMU_CAPABILITY, Linux 5.18)")]
    OwnPmu,
    /// The vCPU's signals cannot be set up.
    #[error("signals of the vCPU's thread: {0}")]
    Signal(#[from] std::io::Error),
    /// A table of CPUID leaves that is as long as KVM takes it.
    #[error("a table for KVM has no room for another entry")]
    Full,
}

fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> KvmError {
    move |error| KvmError::Ioctl { what, error }
}

/// Has KVM send accesses of a model's MSRs to user space, and keep its own PMU off. To be called before vCPUs are
/// created. The VM's other filters of MSRs, if any, are replaced.
pub fn filter(kvm: &Kvm, vm: &VmFd, model: &Model) -> Result<(), KvmError> {
    let enable = |cap: u32, argument: u32| {
        let mut cap = kvm_enable_cap { cap, ..Default::default() };
        cap.args[0] = argument.into();
        vm.enable_cap(&cap)
    };
    if vm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into()) & KVM_PMU_CAP_DISABLE as i32 != 0 {
        enable(KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE)
            .map_err(failed("KVM_CAP_PMU_CAPABILITY"))?;
    } else if has_own_pmu(kvm)? {
        return Err(KvmError::OwnPmu);
    }
    enable(KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER)
        .map_err(failed("KVM_CAP_X86_USER_SPACE_MSR"))?;
    let mut rows = model.msrs();
    if model.has_global() {
        rows.push((DEBUG_CONTROL, 1));
    }
    // A bit that is clear keeps the access from KVM. The longest row is AMD's of 12.
    const DENY: [u8; 4] = [0; 4];
    let range = |&(base, msr_count): &(u32, u32)| MsrFilterRange {
        flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
        base,
        msr_count,
        bitmap: &DENY,
    };
    let ranges: Vec<MsrFilterRange<'_>> = rows.iter().map(range).collect();
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
        .map_err(failed("KVM_X86_SET_MSR_FILTER"))
}

/// Whether KVM's own PMU is on. Where it is off altogether, KVM does not offer to switch it off either.
fn has_own_pmu(kvm: &Kvm) -> Result<bool, KvmError> {
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    Ok(cpuid.as_slice().iter().any(|entry| match entry.function {
        0xa => entry.eax & 0xff != 0,
        0x8000_0001 => entry.ecx & 1 << 23 != 0,
        _ => false,
    }))
}

/// Shows a model in a vCPU's CPUID, in place of what KVM would show of its own PMU.
pub fn show(model: &Model, cpuid: &mut CpuId) -> Result<(), KvmError> {
    // The other vendor's leaves too: they say that there is nothing.
    let nothing = [
        Leaf { leaf: 1, mask: [0, 0, 1 << 15, 0], value: [0; 4] },
        Leaf { leaf: 0xa, mask: [u32::MAX; 4], value: [0; 4] },
        Leaf { leaf: 0x8000_0001, mask: [0, 0, 1 << 23, 0], value: [0; 4] },
        Leaf { leaf: 0x8000_0022, mask: [u32::MAX; 4], value: [0; 4] },
    ];
    for leaf in nothing.iter().chain(&model.cpuid()) {
        let entries = cpuid.as_mut_slice();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.function == leaf.leaf) {
            let registers = leaf.merge([entry.eax, entry.ebx, entry.ecx, entry.edx]);
            [entry.eax, entry.ebx, entry.ecx, entry.edx] = registers;
            continue;
        }
        if leaf.value == [0; 4] {
            continue;
        }
        // The first leaf of its kind says which is the last.
        let first = leaf.leaf & 0x8000_0000;
        if let Some(entry) = entries.iter_mut().find(|entry| entry.function == first) {
            entry.eax = entry.eax.max(leaf.leaf);
        }
        let [eax, ebx, ecx, edx] = leaf.value;
        let entry =
            kvm_cpuid_entry2 { function: leaf.leaf, eax, ebx, ecx, edx, ..Default::default() };
        cpuid.push(entry).map_err(|_| KvmError::Full)?;
    }
    Ok(())
}

/// A vCPU's PMU on KVM. It belongs to the vCPU's thread.
#[derive(Debug)]
pub struct VcpuPmu<H> {
    /// The PMU itself.
    pub pmu: Pmu<H>,
    /// Number of the vCPU's APIC.
    apic: u8,
    /// What an event that overflows sends to the thread.
    signal: Option<i32>,
    /// How often the thread had left its processor when it last entered the guest.
    switches: u64,
}

impl<H: Host> VcpuPmu<H> {
    /// Of the vCPU that the calling thread is going to run. `signal` is what the host's events send when they overflow
    /// ([`crate::host::perf_event::Options::signal`]): from now on it is blocked in this thread, and ends KVM_RUN.
    pub fn new(
        pmu: Pmu<H>,
        vcpu: &VcpuFd,
        apic: u8,
        signal: Option<i32>,
    ) -> Result<VcpuPmu<H>, KvmError> {
        if let Some(signal) = signal {
            vcpu::signal_ends_run(vcpu, signal)?;
        }
        Ok(VcpuPmu { pmu, apic, signal, switches: vcpu::switches() })
    }

    /// To be called before each KVM_RUN: an interrupt that is due goes to the APIC, which is masked as the processor
    /// does it. The kernel saves the thread's events when it is switched, so that a slice is no more than a time after
    /// which events that were not used are given back.
    pub fn enter(&mut self, vm: &VmFd, vcpu: &VcpuFd) -> Result<(), KvmError> {
        let switches = vcpu::switches();
        if std::mem::replace(&mut self.switches, switches) != switches {
            self.pmu.slice_begin();
        }
        if !self.pmu.interrupt_due() {
            return Ok(());
        }
        // The event's signal has done its work.
        self.interrupted();
        let entry = lvtpc(vcpu)?;
        let target = Target::of(entry);
        if !self.pmu.deliver(target.is_none()) {
            return Ok(());
        }
        set_lvtpc(vcpu, entry | MASKED)?;
        match target {
            Some(Target::Nmi) => vcpu.nmi().map_err(failed("KVM_NMI")),
            Some(Target::Vector(vector)) => {
                let address_lo = 0xfee0_0000 | u32::from(self.apic) << 12;
                let message = kvm_msi { address_lo, data: vector.into(), ..Default::default() };
                vm.signal_msi(message).map(|_| ()).map_err(failed("KVM_SIGNAL_MSI"))
            }
            None => Ok(()),
        }
    }

    /// KVM_RUN ended with EINTR.
    pub fn interrupted(&self) {
        if let Some(signal) = self.signal {
            vcpu::forget(signal);
        }
    }

    /// Answers the guest's RDMSR.
    pub fn read(&mut self, exit: ReadMsrExit<'_>) {
        match self.pmu.read(exit.index) {
            Ok(value) => *exit.data = value,
            Err(_) => *exit.error = 1,
        }
    }

    /// Carries out the guest's WRMSR.
    pub fn write(&mut self, exit: WriteMsrExit<'_>) {
        let value = match exit.index {
            DEBUG_CONTROL => exit.data & !IGNORED,
            _ => exit.data,
        };
        if self.pmu.write(exit.index, value).is_err() {
            *exit.error = 1;
        }
    }
}

/// Where the local vector table sends an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Nmi,
    Vector(u8),
}

impl Target {
    /// None if it is masked, or set to what no counter can sensibly raise: then the interrupt is lost.
    fn of(entry: u32) -> Option<Target> {
        match (entry & MASKED, entry >> 8 & 7, entry as u8) {
            (0, 0, vector @ 16..) => Some(Target::Vector(vector)),
            (0, 4, _) => Some(Target::Nmi),
            _ => None,
        }
    }
}

fn one_msr(index: u32, data: u64) -> Result<Msrs, KvmError> {
    let entry = kvm_msr_entry { index, data, ..Default::default() };
    Msrs::from_entries(&[entry]).map_err(|_| KvmError::Full)
}

fn lvtpc(vcpu: &VcpuFd) -> Result<u32, KvmError> {
    let mut msrs = one_msr(LVTPC_MSR, 0)?;
    // The MSR is there in x2APIC mode only.
    if vcpu.get_msrs(&mut msrs).map_err(failed("KVM_GET_MSRS"))? == 1 {
        return Ok(msrs.as_slice()[0].data as u32);
    }
    let apic = vcpu.get_lapic().map_err(failed("KVM_GET_LAPIC"))?;
    Ok(u32::from_le_bytes(std::array::from_fn(|i| apic.regs[LVTPC + i] as u8)))
}

/// In x2APIC mode it is one register that is written. In xAPIC mode KVM takes the whole APIC or nothing: an interrupt of
/// another vCPU or a device that comes between reading and writing it is lost, as long as KVM has no better way.
fn set_lvtpc(vcpu: &VcpuFd, entry: u32) -> Result<(), KvmError> {
    let msrs = one_msr(LVTPC_MSR, entry.into())?;
    if vcpu.set_msrs(&msrs).map_err(failed("KVM_SET_MSRS"))? == 1 {
        return Ok(());
    }
    let mut apic = vcpu.get_lapic().map_err(failed("KVM_GET_LAPIC"))?;
    for (to, byte) in apic.regs[LVTPC..].iter_mut().zip(entry.to_le_bytes()) {
        *to = byte as _;
    }
    vcpu.set_lapic(&apic).map_err(failed("KVM_SET_LAPIC"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amd, Intel};

    fn leaf(cpuid: &CpuId, number: u32) -> Option<[u32; 4]> {
        let entry = cpuid.as_slice().iter().find(|entry| entry.function == number)?;
        Some([entry.eax, entry.ebx, entry.ecx, entry.edx])
    }

    #[test]
    fn the_local_vector_tables_entry_says_where_to() {
        let table = [
            (0x0000_0040, Some(Target::Vector(0x40))),
            (0x0000_0400, Some(Target::Nmi)),
            (0x0001_0040, None),
            (0x0001_0400, None),
            // Vectors of exceptions; SMI; external.
            (0x0000_000f, None),
            (0x0000_0200, None),
            (0x0000_0740, None),
        ];
        for (entry, target) in table {
            assert_eq!(Target::of(entry), target, "{entry:#x}");
        }
    }

    #[test]
    fn cpuid_shows_the_model_and_no_other() {
        let entry = |function, ecx| kvm_cpuid_entry2 {
            function,
            eax: function & 0x8000_0000 | 1,
            ecx,
            ..Default::default()
        };
        // An AMD processor whose KVM has a PMU, and whose leaves end early.
        let processor =
            [entry(0, 0), entry(1, 7), entry(0x8000_0000, 0), entry(0x8000_0001, 1 << 23 | 1)];
        let of = |model: &Model| {
            let mut cpuid = CpuId::from_entries(&processor).expect("four entries");
            show(model, &mut cpuid).expect("there is room");
            cpuid
        };
        let intel = of(&Model::Intel(Intel::default()));
        assert_eq!(leaf(&intel, 0xa), Some([0x0830_0402, 0x80, 0, 0x603]));
        assert_eq!(leaf(&intel, 0).map(|leaf| leaf[0]), Some(0xa));
        assert_eq!(leaf(&intel, 1).map(|leaf| leaf[2]), Some(7 | 1 << 15));
        assert_eq!(leaf(&intel, 0x8000_0001).map(|leaf| leaf[2]), Some(1));
        assert_eq!(leaf(&intel, 0x8000_0022), None);
        let amd = of(&Model::Amd(Amd { counters: 6, perfmon_v2: true }));
        assert_eq!(leaf(&amd, 0x8000_0022), Some([1, 6, 0, 0]));
        assert_eq!(leaf(&amd, 0x8000_0000).map(|leaf| leaf[0]), Some(0x8000_0022));
        assert_eq!(leaf(&amd, 0x8000_0001).map(|leaf| leaf[2]), Some(1 << 23 | 1));
        assert_eq!(leaf(&amd, 1).map(|leaf| leaf[2]), Some(7));
        assert_eq!(leaf(&amd, 0xa), None);
    }
}
