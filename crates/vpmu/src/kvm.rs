//! The PMU on KVM: accesses of its MSRs exit to user space, and its interrupts are injected through the local APIC in the kernel.
//!
//! ```text
//! VM:             filter             before vCPUs are created
//! vCPU:           show               before KVM_SET_CPUID2
//! its thread:     VcpuPmu::new
//! again and again:
//!     enter       starts a new slice after a switch of the thread; injects a due interrupt
//!     KVM_RUN     ── KVM_EXIT_X86_RDMSR ──> read
//!                 ── KVM_EXIT_X86_WRMSR ──> write
//!                 ── EINTR ───────────────> interrupted: an event overflowed, or another signal came
//! ```
//!
//! # RDPMC
//!
//! KVM never forwards RDPMC to a VMM, so guests must read counters by RDMSR. KVM's own PMU is switched off, so the instruction
//! faults (#GP) instead of reading unprogrammed counters; on AMD hosts before Linux 6.9
//! (commit f933b88e2015) it reads zero. Linux's perf reads by RDPMC, on every vendor, in the kernel: a Linux guest needs
//! the module in `guest-module`, which reads by RDMSR instead. [`filter`] fails until the VMM says that its guests do so.
//!
//! # What is counted
//!
//! Counters also advance while the kernel and the VMM work for the guest, unless the host's events exclude the host ([`crate::host::perf_event::EventOptions::exclude_host`]), which hardware events do and software events do not.
//!
//! # Switches of the thread
//!
//! The kernel's perf saves and restores a thread's events when the thread is switched (kernel/events/core.c:
//! __perf_event_task_sched_out, __perf_event_task_sched_in), so nothing is lost between two slices. The VMM only ends a slice and
//! begins the next, which closes events that the guest did not use for a whole slice. The kernel writes a record at each switch;
//! checking for it costs one load of shared memory before KVM_RUN, and no system call.

mod cpuid;
mod filter;

use kvm_bindings::{Msrs, kvm_msi, kvm_msr_entry};
use kvm_ioctls::{ReadMsrExit, VcpuFd, VmFd, WriteMsrExit};

pub use cpuid::show;
pub use filter::{VmOptions, filter};

use crate::host::EventHost;
use crate::host::sys::{ThreadSwitches, vcpu};
use crate::msr::DEBUG_CONTROL;
use crate::pmu::Pmu;

/// The local vector table's entry for performance counters, as an MSR and as an offset in the APIC's page.
const LVTPC_MSR: u32 = 0x834;
const LVTPC: usize = 0x340;
/// Its mask bit.
const MASKED: u32 = 1 << 16;
/// DEBUGCTL bits for branch records and branch single-stepping, which KVM ignores.
const IGNORED: u64 = 0b11;

/// Errors of KVM.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// [`VmOptions::guests_read_by_rdmsr`] is not set.
    #[error(
        "KVM sends no RDPMC to a VMM: in a guest it faults (#GP), or reads zero on AMD hosts before Linux 6.9, and Linux's \
         perf uses it; have guests read counters by RDMSR (Linux: load the module in guest-module) and set \
         guests_read_by_rdmsr"
    )]
    Rdpmc,
    /// More ranges than one filter holds.
    #[error(
        "KVM takes 16 ranges of MSRs in a filter, and {pmu} of the PMU and {own} of the VMM are too many; join some of the VMM's"
    )]
    Ranges {
        /// Ranges of the PMU.
        pmu: usize,
        /// Ranges of the VMM.
        own: usize,
    },
    /// An ioctl failed.
    #[error("{what}: {error}")]
    Ioctl {
        /// Its name.
        what: &'static str,
        /// The system's error.
        error: kvm_ioctls::Error,
    },
    /// A kernel before 5.18.
    #[error("this KVM cannot switch its own PMU off (KVM_CAP_PMU_CAPABILITY, Linux 5.18)")]
    OwnPmu,
    /// The vCPU's signals cannot be set up.
    #[error("signals of the vCPU's thread: {0}")]
    Signal(#[from] std::io::Error),
    /// The kernel does not record the thread's switches.
    #[error("records of the vCPU's thread being switched (a software event of perf): {0}")]
    Switches(std::io::Error),
    /// The table of CPUID leaves has no free entry.
    #[error("a table for KVM has no room for another entry")]
    Full,
}

fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> KvmError {
    move |error| KvmError::Ioctl { what, error }
}

/// A vCPU's PMU on KVM. It belongs to the vCPU's thread.
#[derive(Debug)]
pub struct VcpuPmu<H> {
    /// The PMU itself.
    pub pmu: Pmu<H>,
    /// Number of the vCPU's APIC.
    apic: u8,
    /// The signal of an overflow.
    signal: Option<i32>,
    /// Records of the thread's switches.
    switches: ThreadSwitches,
}

impl<H: EventHost> VcpuPmu<H> {
    /// Of the vCPU that the calling thread is going to run. `signal` is what the host's events send when they overflow
    /// ([`crate::host::perf_event::EventOptions::signal`]): from now on it is blocked in this thread, and ends KVM_RUN.
    pub fn new(
        pmu: Pmu<H>,
        vcpu: &VcpuFd,
        apic: u8,
        signal: Option<i32>,
    ) -> Result<VcpuPmu<H>, KvmError> {
        if let Some(signal) = signal {
            vcpu::signal_ends_run(vcpu, signal)?;
        }
        let switches = ThreadSwitches::of_this_thread().map_err(KvmError::Switches)?;
        Ok(VcpuPmu { pmu, apic, signal, switches })
    }

    /// To be called before each KVM_RUN. If the thread was switched since the last call, a slice ends and another begins.
    /// An interrupt that is due goes to the APIC, whose entry is masked as the processor does it.
    pub fn enter(&mut self, vm: &VmFd, vcpu: &VcpuFd) -> Result<(), KvmError> {
        if self.switches.happened() {
            self.pmu.slice_end();
            self.pmu.slice_begin();
        }
        if !self.pmu.interrupt_due() {
            return Ok(());
        }
        // The signal is no longer needed.
        self.interrupted();
        let entry = lvtpc(vcpu)?;
        let target = InterruptTarget::of(entry);
        if !self.pmu.deliver(target.is_none()) {
            return Ok(());
        }
        if self.pmu.model().masks_lvtpc() {
            set_lvtpc(vcpu, entry | MASKED)?;
        }
        match target {
            Some(InterruptTarget::Nmi) => vcpu.nmi().map_err(failed("KVM_NMI")),
            Some(InterruptTarget::Vector(vector)) => {
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

    /// Answers the guest's RDMSR. The exit comes back if its MSR is none of the PMU's: it is the VMM's to answer.
    pub fn read<'a>(&mut self, exit: ReadMsrExit<'a>) -> Option<ReadMsrExit<'a>> {
        if !self.pmu.owns(exit.index) {
            return Some(exit);
        }
        match self.pmu.read(exit.index) {
            Ok(value) => *exit.data = value,
            Err(_) => *exit.error = 1,
        }
        None
    }

    /// Carries out the guest's WRMSR. The exit comes back if its MSR is none of the PMU's.
    pub fn write<'a>(&mut self, exit: WriteMsrExit<'a>) -> Option<WriteMsrExit<'a>> {
        if !self.pmu.owns(exit.index) {
            return Some(exit);
        }
        let value = match exit.index {
            DEBUG_CONTROL => exit.data & !IGNORED,
            _ => exit.data,
        };
        if self.pmu.write(exit.index, value).is_err() {
            *exit.error = 1;
        }
        None
    }
}

/// Destination of an interrupt by the local vector table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InterruptTarget {
    Nmi,
    Vector(u8),
}

impl InterruptTarget {
    /// `None` if it is masked or has a delivery mode other than fixed and NMI: then the interrupt is lost.
    fn of(entry: u32) -> Option<InterruptTarget> {
        match (entry & MASKED, entry >> 8 & 7, entry as u8) {
            (0, 0, vector @ 16..) => Some(InterruptTarget::Vector(vector)),
            (0, 4, _) => Some(InterruptTarget::Nmi),
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

    #[test]
    fn the_local_vector_tables_entry_says_where_to() {
        let table = [
            (0x0000_0040, Some(InterruptTarget::Vector(0x40))),
            (0x0000_0400, Some(InterruptTarget::Nmi)),
            (0x0001_0040, None),
            (0x0001_0400, None),
            // Vectors of exceptions; SMI; external.
            (0x0000_000f, None),
            (0x0000_0200, None),
            (0x0000_0740, None),
        ];
        for (entry, target) in table {
            assert_eq!(InterruptTarget::of(entry), target, "{entry:#x}");
        }
    }
}
