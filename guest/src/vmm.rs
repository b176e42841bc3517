//! A VMM small enough to know every exit it takes: memory, vCPUs, KVM's own interrupt controllers and timer,
//! and the few ports of [`vmtax_guest::layout`].
//!
//! [`payload`] runs bare code, [`linux`] a Linux kernel, for jobs by way of [`relay`], [`program`] a test program. Left out: every device that none of them needs.

pub(crate) mod backing;
mod gate;
mod hugetlb;
pub(crate) mod linux;
mod mptable;
pub(crate) mod paging;
pub(crate) mod payload;
mod pmu;
pub(crate) mod program;
pub(crate) mod relay;
mod serial;
mod snapshot;
mod stats;
mod test_device;
pub(crate) mod touched;
mod user;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, KVM_MEM_GUEST_MEMFD, KVM_MP_STATE_RUNNABLE, kvm_memory_attributes,
    kvm_mp_state, kvm_pit_config, kvm_segment, kvm_sregs, kvm_userspace_memory_region,
    kvm_userspace_memory_region2,
};
use kvm_ioctls::{HypercallExit, Kvm, ReadMsrExit, VcpuExit, VcpuFd, VmFd, WriteMsrExit};
use vmtax_vpmu::PmuModel;
use vmtax_vpmu::kvm::VmOptions;

use crate::Result;

/// KVM's three pages for real mode, where neither memory nor a device is.
pub(crate) const TSS: usize = 0xfffb_d000;

/// CPUID's leaf of what KVM offers guests, in EAX.
const FEATURES: u32 = 0x4000_0001;
/// An interrupt may be ended without an exit.
const PV_EOI: u32 = 1 << 6;

/// `KVM_X86_DEFAULT_VM`.
const ORDINARY: u32 = 0;

/// A virtual machine without memory and vCPUs yet.
pub(crate) struct BareVm {
    kvm: Kvm,
    pub(crate) fd: VmFd,
    slots: std::cell::Cell<u32>,
}

fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> String {
    move |error| format!("{what}: {error}")
}

impl BareVm {
    pub(crate) fn new() -> Result<BareVm> {
        BareVm::of_type(ORDINARY)
    }

    /// A VM of a type: `KVM_X86_DEFAULT_VM`, `KVM_X86_SW_PROTECTED_VM`.
    fn of_type(vm_type: u32) -> Result<BareVm> {
        let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
        let fd = kvm.create_vm_with_type(vm_type.into()).map_err(failed("KVM_CREATE_VM"))?;
        fd.set_tss_address(TSS).map_err(failed("KVM_SET_TSS_ADDR"))?;
        fd.create_irq_chip().map_err(failed("KVM_CREATE_IRQCHIP"))?;
        fd.create_pit2(kvm_pit_config::default()).map_err(failed("KVM_CREATE_PIT2"))?;
        Ok(BareVm { kvm, fd, slots: std::cell::Cell::new(0) })
    }

    /// Gives the guest memory.
    ///
    /// # Safety
    /// The memory must stay mapped for as long as the VM lives, and be used by nothing else in this program but through
    /// volatile or raw access.
    pub(crate) unsafe fn memory(&self, guest: u64, host: *mut u8, bytes: usize) -> Result<()> {
        let region = kvm_userspace_memory_region {
            slot: self.slot(),
            flags: 0,
            guest_phys_addr: guest,
            memory_size: bytes as u64,
            userspace_addr: host as u64,
        };
        // SAFETY: the caller keeps the memory.
        unsafe { self.fd.set_user_memory_region(region) }
            .map_err(failed("KVM_SET_USER_MEMORY_REGION"))
    }

    /// Gives the guest memory of a guest_memfd.
    ///
    /// # Safety
    /// As for [`Vm::memory`].
    unsafe fn memory_of(
        &self,
        file: &OwnedFd,
        guest: u64,
        host: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let region = kvm_userspace_memory_region2 {
            slot: self.slot(),
            flags: KVM_MEM_GUEST_MEMFD,
            guest_phys_addr: guest,
            memory_size: bytes as u64,
            userspace_addr: host as u64,
            guest_memfd: file.as_raw_fd() as u32,
            ..Default::default()
        };
        // SAFETY: the caller keeps the memory.
        unsafe { self.fd.set_user_memory_region2(region) }
            .map_err(failed("KVM_SET_USER_MEMORY_REGION2"))
    }

    /// Makes guest-physical memory private.
    fn make_private(&self, address: u64, size: u64) -> Result<()> {
        let attributes =
            kvm_memory_attributes { address, size, attributes: touched::PRIVATE, flags: 0 };
        self.fd.set_memory_attributes(attributes).map_err(failed("KVM_SET_MEMORY_ATTRIBUTES"))
    }

    /// A slot number that is not in use yet.
    fn slot(&self) -> u32 {
        self.slots.replace(self.slots.get() + 1)
    }

    /// Has accesses of a PMU come to this program. No vCPU may be there yet.
    fn virtual_pmu(&self, model: &PmuModel) -> Result<()> {
        // Payloads read by RDMSR, and Linux guests have the module for it.
        let options = VmOptions { guests_read_by_rdmsr: true, ..VmOptions::default() };
        vmtax_vpmu::kvm::filter(&self.kvm, &self.fd, model, &options).map_err(|e| e.to_string())
    }

    /// A vCPU with all that this processor offers, and with a PMU if there is one. The first runs, others wait for the
    /// guest to start them.
    fn waiting_vcpu(&self, number: u32, pmu: Option<&PmuModel>) -> Result<VcpuFd> {
        let vcpu = self.fd.create_vcpu(u64::from(number)).map_err(failed("KVM_CREATE_VCPU"))?;
        let mut cpuid = self
            .kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
        for entry in cpuid.as_mut_slice() {
            match entry.function {
                // The APIC's number; x2APIC and the TSC-deadline timer, which KVM's own APIC has whatever the processor;
                // a hypervisor is present.
                1 => {
                    entry.ebx = entry.ebx & 0x00ff_ffff | number << 24;
                    entry.ecx |= 1 << 21 | 1 << 24 | 1 << 31;
                }
                0xb | 0x1f => entry.edx = number,
                // Each end of interrupt is an exit. QEMU delivers an interrupt that VMRUN injects once more, whatever
                // the guest's flags say, if its budget of instructions ends before the guest exits (exception_index stays
                // set in helper_vmrun); a handler of Linux that holds a lock by then waits for itself.
                FEATURES => entry.eax &= !PV_EOI,
                _ => {}
            }
        }
        if let Some(model) = pmu {
            vmtax_vpmu::kvm::show(model, &mut cpuid).map_err(|e| e.to_string())?;
        }
        vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;
        Ok(vcpu)
    }

    /// A vCPU that runs, and the registers that put it in 64-bit mode, flat.
    pub(crate) fn vcpu(
        &self,
        number: u32,
        page_tables: u64,
        pmu: Option<&PmuModel>,
    ) -> Result<(VcpuFd, kvm_sregs)> {
        let vcpu = self.waiting_vcpu(number, pmu)?;
        let mut special = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
        flat_segments(&mut special, CodeWidth::Bits64);
        special.cr3 = page_tables;
        special.cr4 = 1 << 5 | 1 << 9 | 1 << 10;
        special.cr0 = 0x8000_0033;
        special.efer = 0x500;
        if number > 0 {
            vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })
                .map_err(failed("KVM_SET_MP_STATE"))?;
        }
        Ok((vcpu, special))
    }
}

/// Width of the code that a vCPU runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeWidth {
    Bits32,
    Bits64,
}

/// All segments cover all addresses.
pub(crate) fn flat_segments(special: &mut kvm_sregs, width: CodeWidth) {
    let is_long = u8::from(width == CodeWidth::Bits64);
    let code = kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: 8,
        type_: 11,
        present: 1,
        s: 1,
        l: is_long,
        db: 1 - is_long,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 16, type_: 3, l: 0, db: 1, ..code };
    special.cs = code;
    for segment in
        [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss]
    {
        *segment = data;
    }
}

/// What a vCPU asks of the VMM.
pub(crate) enum VcpuRequest<'a> {
    Out(u16, &'a [u8]),
    In(u16, &'a mut [u8]),
    /// A write to a guest-physical address without memory.
    Store(u64, &'a [u8]),
    Load(u64, &'a mut [u8]),
    ReadMsr(ReadMsrExit<'a>),
    WriteMsr(WriteMsrExit<'a>),
    /// A hypercall that KVM leaves to the VMM.
    Hypercall(HypercallExit<'a>),
    /// An access to memory that KVM cannot map as it is: its guest-physical address.
    MemoryFault(u64),
    /// A signal ended the run.
    Interrupted,
}

pub(crate) enum VmmAnswer {
    Run,
    /// The vCPU has ended.
    End,
}

/// What stands around a vCPU.
pub(crate) trait Around {
    /// Called before each entry to the guest.
    fn enter(&mut self, _: &VcpuFd) -> Result<()> {
        Ok(())
    }

    /// Does what the vCPU asks.
    fn answer(&mut self, request: VcpuRequest<'_>) -> Result<VmmAnswer>;
}

/// Runs a vCPU until it or the VMM ends it.
pub(crate) fn run(vcpu: &mut VcpuFd, stop: &AtomicBool, around: &mut impl Around) -> Result<()> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        around.enter(vcpu)?;
        let request = match vcpu.run() {
            Ok(VcpuExit::IoOut(port, data)) => VcpuRequest::Out(port, data),
            Ok(VcpuExit::IoIn(port, data)) => VcpuRequest::In(port, data),
            Ok(VcpuExit::MmioWrite(at, data)) => VcpuRequest::Store(at, data),
            Ok(VcpuExit::MmioRead(at, data)) => VcpuRequest::Load(at, data),
            Ok(VcpuExit::X86Rdmsr(exit)) => VcpuRequest::ReadMsr(exit),
            Ok(VcpuExit::X86Wrmsr(exit)) => VcpuRequest::WriteMsr(exit),
            Ok(VcpuExit::Hypercall(exit)) => VcpuRequest::Hypercall(exit),
            Ok(VcpuExit::MemoryFault { gpa, .. }) => VcpuRequest::MemoryFault(gpa),
            Ok(VcpuExit::Shutdown) => {
                return Err(format!(
                    "the guest ended in a triple fault{}",
                    place_of_shutdown(vcpu)
                ));
            }
            Ok(exit) => {
                let said = format!("{exit:?}");
                return Err(format!("KVM cannot go on with the guest: {said} at {}", place(vcpu)));
            }
            // A vCPU that waited for its start, or a signal.
            Err(error) if matches!(error.errno(), libc::EAGAIN | libc::EINTR) => {
                VcpuRequest::Interrupted
            }
            Err(error) => return Err(format!("KVM_RUN: {error} at {}", place(vcpu))),
        };
        if let VmmAnswer::End = around.answer(request)? {
            return Ok(());
        }
    }
}

/// On AMD a triple fault puts the vCPU back to where it starts after a reset.
fn place_of_shutdown(vcpu: &VcpuFd) -> String {
    const RESET: u64 = 0xfff0;
    match vcpu.get_regs() {
        Ok(registers) if registers.rip == RESET => String::new(),
        _ => format!(" at {}", place(vcpu)),
    }
}

fn place(vcpu: &VcpuFd) -> String {
    match vcpu.get_regs() {
        Ok(registers) => format!("rip {:#x}", registers.rip),
        Err(_) => "an unknown place".to_owned(),
    }
}

/// What a hypercall that the VMM does not have answers: `-KVM_ENOSYS`.
const NO_HYPERCALL: u64 = (-1000_i64) as u64;

/// The guest touched memory that the VMM did not make private.
fn no_memory(gpa: u64) -> String {
    format!("the guest accessed {gpa:#x}, which KVM cannot map (KVM_EXIT_MEMORY_FAULT)")
}

/// Makes a thread leave `KVM_RUN`.
fn kick(thread: libc::pthread_t) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; the thread has not been joined, so its handle is good.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::pthread_kill(thread, libc::SIGUSR1);
    }
}
