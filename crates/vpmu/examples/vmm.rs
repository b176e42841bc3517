//! A VMM with the virtual PMU, on rust-vmm's crates: one vCPU, one page of memory, a port.
//!
//! Its guest counts instructions while it executes CPUID so often, reads the counter and a register that the VMM answers
//! itself, and writes both to the port:
//!
//! ```sh
//! cargo run -p vmtax-vpmu --example vmm
//! cargo run -p vmtax-vpmu --example vmm /sys/kernel/tracing/events/kvm/kvm_cpuid/id     # as root, without a PMU
//! ```
//! With a tracepoint's file its events are counted as instructions: then each CPUID instruction is one.
#![expect(unsafe_code, reason = "KVM maps this program's memory into the guest")]
#![expect(clippy::print_stdout, reason = "this is a program")]

use std::error::Error;

use iced_x86::code_asm::{CodeAssembler, bp, dx, eax, ecx, edx};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, MsrFilterRange, MsrFilterRangeFlags, VcpuExit};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmtax_vpmu::host::perf_event::{EventOptions, EventSource, PerfEventHost};
use vmtax_vpmu::kvm::{self, VcpuPmu, VmOptions};
use vmtax_vpmu::{Intel, Pmu, PmuEvent, PmuModel, Policy};

/// What ends KVM_RUN when an event overflows.
const SIGNAL: i32 = libc::SIGUSR1;
/// Where the guest is, and the port it writes to.
const CODE: u64 = 0x1000;
const PORT: u16 = 0x10;
/// How often it executes CPUID, in hundreds.
const HUNDREDS: u32 = 1000;
/// A register that this VMM answers itself: the microcode's revision.
const REVISION: u32 = 0x8b;

fn main() -> Result<(), Box<dyn Error>> {
    // The PMU: one event, of this thread, in place of which a tracepoint can stand.
    let model = PmuModel::Intel(Intel { fixed: 0, unavailable: !(1 << 1), ..Intel::default() });
    let options =
        EventOptions { signal: Some(SIGNAL), exclude_host: true, ..EventOptions::default() };
    let host = match std::env::args().nth(1) {
        None => PerfEventHost::this_thread(options),
        Some(file) => {
            let source = EventSource::Tracepoint(std::fs::read_to_string(file)?.trim().parse()?);
            let options = EventOptions { exclude_host: false, any_mode: true, ..options };
            PerfEventHost::this_thread(options).with_source(PmuEvent::Instructions, source)
        }
    };
    let pmu = Pmu::new(model.clone(), host, Policy::Reuse)?;

    // The VM, with a filter of its own.
    let (system, memory) =
        (Kvm::new()?, GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x2000)])?);
    memory.write_slice(&guest()?, GuestAddress(CODE))?;
    let vm = system.create_vm()?;
    let region = kvm_userspace_memory_region {
        memory_size: 0x2000,
        userspace_addr: memory.get_host_address(GuestAddress(0))? as u64,
        ..Default::default()
    };
    // SAFETY: the memory is mapped for as long as the VM lives, and only accessed through vm-memory.
    unsafe { vm.set_user_memory_region(region)? };
    let flags = MsrFilterRangeFlags::READ;
    let own = [MsrFilterRange { flags, base: REVISION, msr_count: 1, bitmap: &[0] }];
    let options = VmOptions { guests_read_by_rdmsr: true, ranges: &own, ..VmOptions::default() };
    kvm::filter(&system, &vm, &model, &options)?;

    // Its vCPU, in real mode.
    let mut vcpu = vm.create_vcpu(0)?;
    let mut cpuid = system.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    kvm::show(&model, &mut cpuid)?;
    vcpu.set_cpuid2(&cpuid)?;
    let mut special = vcpu.get_sregs()?;
    (special.cs.base, special.cs.selector) = (0, 0);
    vcpu.set_sregs(&special)?;
    let mut registers = vcpu.get_regs()?;
    (registers.rip, registers.rflags) = (CODE, 2);
    vcpu.set_regs(&registers)?;

    let mut pmu = VcpuPmu::new(pmu, &vcpu, 0, Some(SIGNAL))?;
    loop {
        pmu.enter(&vm, &vcpu)?;
        match vcpu.run() {
            // What comes back is not the PMU's.
            Ok(VcpuExit::X86Rdmsr(exit)) => {
                if let Some(exit) = pmu.read(exit) {
                    *exit.data = 0x1234 << 32;
                }
            }
            Ok(VcpuExit::X86Wrmsr(exit)) => {
                if let Some(exit) = pmu.write(exit) {
                    *exit.error = 1;
                }
            }
            Ok(VcpuExit::IoOut(PORT, bytes)) => {
                println!("guest: {}", u32::from_le_bytes(bytes.try_into()?))
            }
            Ok(VcpuExit::Hlt) => break,
            Ok(exit) => return Err(format!("{exit:?}").into()),
            Err(error) if error.errno() == libc::EINTR => pmu.interrupted(),
            Err(error) => return Err(error.into()),
        }
    }
    println!("slices: {}, notices: {:?}", pmu.pmu.activity().slices, pmu.pmu.notices());
    Ok(())
}

/// The guest's program.
fn guest() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut a = CodeAssembler::new(16)?;
    let write = |a: &mut CodeAssembler, msr: u32, value: u32| {
        a.mov(ecx, msr)?;
        a.mov(eax, value)?;
        a.mov(edx, 0)?;
        a.wrmsr()
    };
    // Instructions in both modes on the first general counter.
    write(&mut a, 0x186, 0x43_00c0)?;
    write(&mut a, 0x38f, 1)?;
    let (mut hundred, mut one) = (a.create_label(), a.create_label());
    a.mov(bp, HUNDREDS)?;
    a.set_label(&mut hundred)?;
    a.mov(iced_x86::code_asm::di, 100)?;
    a.set_label(&mut one)?;
    a.mov(eax, 0)?;
    a.cpuid()?;
    a.dec(iced_x86::code_asm::di)?;
    a.jnz(one)?;
    a.dec(bp)?;
    a.jnz(hundred)?;
    write(&mut a, 0x38f, 0)?;
    a.mov(ecx, 0xc1)?;
    a.rdmsr()?;
    a.mov(dx, u32::from(PORT))?;
    a.out(dx, eax)?;
    a.mov(ecx, REVISION)?;
    a.rdmsr()?;
    a.mov(eax, edx)?;
    a.mov(dx, u32::from(PORT))?;
    a.out(dx, eax)?;
    a.hlt()?;
    Ok(a.assemble(CODE)?)
}
