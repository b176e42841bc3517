//! A VMM for multiboot kernels, such as those of kvm-unit-tests, with a virtual PMU that counts exactly: while a counter is
//! on, the guest is single-stepped, and each instruction is counted for what it is. It needs no PMU, and is slow.
//!
//! ```sh
//! cargo run -p vmtax-vpmu --example multiboot x86/pmu.flat [intel|amd]
//! ```
//! Instructions and branches are exact. Every cycle is an instruction; nothing is known of caches and of predictions.
//!
//! Left out: devices but for a serial port that is written to, the number of processors in QEMU's configuration, and its
//! debug exit.
#![expect(unsafe_code, reason = "KVM maps this program's memory into the guest")]
#![expect(clippy::print_stdout, reason = "this is a program")]

use std::error::Error;
use std::io::Write;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_MAX_CPUID_ENTRIES, kvm_guest_debug,
    kvm_pit_config, kvm_regs, kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmtax_vpmu::host::virtual_time::{Costs, VirtualHost, Work};
use vmtax_vpmu::kvm::{self, VcpuPmu, VmOptions};
use vmtax_vpmu::{Amd, Event, Intel, Model, Pmu, Policy};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MEMORY: usize = 256 << 20;
/// Where the information for the kernel is, and its command line.
const INFORMATION: u64 = 0x9000;
const COMMAND_LINE: u64 = 0xa000;
/// The first serial port, QEMU's configuration and its debug exit.
const SERIAL: u16 = 0x3f8;
const LINE_STATUS: u16 = 0x3fd;
const SELECT: u16 = 0x510;
const DATA: u16 = 0x511;
const DEBUG_EXIT: u16 = 0xf4;
/// The number of processors, in QEMU's configuration: now, and at most.
const PROCESSORS: [u16; 2] = [5, 15];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.first().ok_or("usage: multiboot IMAGE [intel|amd]")?;
    let system = Kvm::new()?;
    let mut cpuid = system.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let is_amd = match arguments.get(1) {
        Some(vendor) => vendor == "amd",
        // "Auth" or "Genu".
        None => cpuid.as_slice().iter().any(|e| e.function == 0 && e.ebx == 0x6874_7541),
    };
    let model = match is_amd {
        true => Model::Amd(Amd { counters: 6, perfmon_v2: true }),
        // No events of caches.
        false => Model::Intel(Intel { unavailable: 0b1001_1000, ..Intel::default() }),
    };
    for entry in cpuid.as_mut_slice().iter_mut().filter(|e| e.function == 0) {
        (entry.ebx, entry.edx, entry.ecx) = match is_amd {
            true => (0x6874_7541, 0x6974_6e65, 0x444d_4163),
            false => (0x756e_6547, 0x4965_6e69, 0x6c65_746e),
        };
    }
    for entry in cpuid.as_mut_slice().iter_mut().filter(|e| e.function == 1) {
        // x2APIC, which KVM's APIC has; a hypervisor is present.
        entry.ecx |= 1 << 21 | 1 << 31;
    }
    kvm::show(&model, &mut cpuid)?;

    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)])?;
    let entry = load(&memory, &std::fs::read(file)?)?;
    let vm = system.create_vm()?;
    vm.set_tss_address(0xfffb_d000)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config::default())?;
    let region = kvm_userspace_memory_region {
        memory_size: MEMORY as u64,
        userspace_addr: memory.get_host_address(GuestAddress(0))? as u64,
        ..Default::default()
    };
    // SAFETY: the memory is mapped for as long as the VM lives, and only accessed through vm-memory.
    unsafe { vm.set_user_memory_region(region)? };
    let options = VmOptions { guests_read_by_rdmsr: true, ..VmOptions::default() };
    kvm::filter(&system, &vm, &model, &options)?;
    let mut vcpu = vm.create_vcpu(0)?;
    vcpu.set_cpuid2(&cpuid)?;
    protected_mode(&vcpu, entry)?;

    let host = VirtualHost::new(Costs::default());
    let mut pmu = VcpuPmu::new(Pmu::new(model, host, Policy::Reuse)?, &vcpu, 0, None)?;
    let mut stepping = Stepping::default();
    let mut configuration = Vec::new();
    loop {
        pmu.enter(&vm, &vcpu)?;
        stepping.switch(&vcpu, pmu.pmu.host().is_counting())?;
        stepping.stopped = false;
        match vcpu.run() {
            Ok(VcpuExit::X86Rdmsr(exit)) => drop(pmu.read(exit)),
            Ok(VcpuExit::X86Wrmsr(exit)) => drop(pmu.write(exit)),
            Ok(VcpuExit::Debug(exit)) => {
                if let Some(work) = stepping.stepped(&memory, exit.pc)? {
                    pmu.pmu.host_mut().run(&work, 1);
                }
            }
            Ok(VcpuExit::IoOut(SERIAL, bytes)) => std::io::stdout().write_all(bytes)?,
            Ok(VcpuExit::IoIn(LINE_STATUS, bytes)) => bytes.fill(0x20),
            Ok(VcpuExit::IoOut(SELECT, [low, high])) => {
                let item = u16::from_le_bytes([*low, *high]);
                configuration = vec![0, u8::from(PROCESSORS.contains(&item))];
            }
            Ok(VcpuExit::IoIn(DATA, bytes)) => bytes.fill(configuration.pop().unwrap_or(0)),
            Ok(VcpuExit::IoOut(DEBUG_EXIT, bytes)) => {
                println!("multiboot: the guest ended with {}", bytes[0]);
                return Ok(());
            }
            Ok(VcpuExit::IoIn(_, bytes) | VcpuExit::MmioRead(_, bytes)) => bytes.fill(0xff),
            Ok(VcpuExit::IoOut(..) | VcpuExit::MmioWrite(..)) => {}
            Ok(exit) => {
                let exit = format!("{exit:?}");
                return Err(format!("{exit} at {:#x}", vcpu.get_regs()?.rip).into());
            }
            Err(error) if error.errno() == libc::EINTR => pmu.interrupted(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Single steps while a counter is on.
#[derive(Default)]
struct Stepping {
    on: bool,
    /// The instruction that is executed next.
    next: u64,
    /// The last exit was the end of a step.
    stopped: bool,
    /// One more step is due before stepping ends. Bochs 2.7 saves a pending single-step trap at an exit of a stepped
    /// instruction, as no processor does: the next entry takes it, before an instruction, and it has to be a step's.
    drain: bool,
}

impl Stepping {
    /// Before each entry to the guest: KVM forgets of a step when it emulates an instruction.
    fn switch(&mut self, vcpu: &VcpuFd, on: bool) -> Result<()> {
        // A step that is under way ends before stepping does, or the guest gets its exception.
        let under_way = self.on && (!self.stopped || self.drain);
        self.drain = on || self.drain && !self.stopped;
        let on = on || under_way;
        let was_on = std::mem::replace(&mut self.on, on);
        if on && !was_on {
            self.next = vcpu.get_regs()?.rip;
        }
        if on || was_on {
            let control = if on { KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP } else { 0 };
            vcpu.set_guest_debug(&kvm_guest_debug { control, ..Default::default() })?;
        }
        Ok(())
    }

    /// What the instruction did that was executed, if one was. The guest maps its memory to the same addresses.
    fn stepped(&mut self, memory: &GuestMemoryMmap, next: u64) -> Result<Option<Work>> {
        let mut code = [0; 15];
        memory.read_slice(&mut code, GuestAddress(self.next))?;
        let here = std::mem::replace(&mut self.next, next);
        self.stopped = true;
        let instruction = Decoder::new(64, &code, DecoderOptions::NONE).decode();
        let is_branch = instruction.flow_control() != FlowControl::Next
            && instruction.mnemonic() != Mnemonic::Hlt;
        // A trap that was pending at entry: only a branch and a repetition can stay where they are.
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if next == here && !is_branch && !repeats {
            return Ok(None);
        }
        let mut events =
            vec![(Event::Instructions, 1), (Event::Cycles, 1), (Event::ReferenceCycles, 1)];
        if is_branch {
            events.push((Event::Branches, 1));
        }
        Ok(Some(Work::kernel(1, &events)))
    }
}

/// Loads the kernel's segments and its boot information. Returns its entry.
fn load(memory: &GuestMemoryMmap, image: &[u8]) -> Result<u64> {
    let cut = || "the image is cut off";
    let word = |at: usize| -> Result<u32> {
        let bytes = image.get(at..at + 4).ok_or_else(cut)?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    let half = |at: usize| -> Result<usize> { Ok(word(at)? as usize & 0xffff) };
    if image.get(..5) != Some(b"\x7fELF\x01") {
        return Err("the image is no 32-bit ELF file".into());
    }
    let (table, size, count) = (word(28)? as usize, half(42)?, half(44)?);
    for at in (0..count).map(|i| table + i * size) {
        let [kind, offset, _, address, length] =
            [word(at)?, word(at + 4)?, word(at + 8)?, word(at + 12)?, word(at + 16)?];
        if kind == 1 {
            let (offset, length) = (offset as usize, length as usize);
            let bytes = image.get(offset..offset + length).ok_or_else(cut)?;
            memory.write_slice(bytes, GuestAddress(address.into()))?;
        }
    }
    // Memory and a command line: flags, KiB below and above 1 MiB, boot device, command line.
    let information = [0b101, 640, (MEMORY as u32 >> 10) - 1024, 0, COMMAND_LINE as u32];
    for (i, value) in (0..).zip(information) {
        memory.write_obj(value, GuestAddress(INFORMATION + 4 * i))?;
    }
    memory.write_slice(b"image\0", GuestAddress(COMMAND_LINE))?;
    Ok(word(24)?.into())
}

/// As a boot loader leaves the processor to a multiboot kernel.
fn protected_mode(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let mut special = vcpu.get_sregs()?;
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: 8,
        type_: 11,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 16, type_: 3, ..code };
    special.cs = code;
    for segment in
        [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss]
    {
        *segment = data;
    }
    special.cr0 = 1 << 4 | 1;
    vcpu.set_sregs(&special)?;
    let registers = kvm_regs {
        rip: entry,
        rflags: 2,
        rax: 0x2bad_b002,
        rbx: INFORMATION,
        ..Default::default()
    };
    Ok(vcpu.set_regs(&registers)?)
}
