//! Boots Linux as a guest that nests: the same kernel with this same program as its first process.
//!
//! It gets memory, a serial console, KVM's interrupt controllers and timer, and the port that orders and reports go through.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kvm_bindings::kvm_regs;
use kvm_ioctls::{VcpuFd, VmFd};
use linux_loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};
use vm_superio::Serial;
use vm_superio::serial::NoEvents;
use vmtax_guest::layout::{CHANNEL, COUNT, SETTLE, TRACE};
use vmtax_guest::order::{self, Order, Report};

use super::backing::{AttachedMemory, HostBacking};
use super::gate::VmGate;
use super::pmu::{self, CountedGuest, PmuMeter};
use super::serial::{COM1, NoTrigger};
use super::stats::VmTally;
use vmtax_page_tables::identity_map;

use super::{
    Around, BareVm, NO_HYPERCALL, VcpuRequest, VmmAnswer, failed, mptable, no_memory, run,
};
use crate::l1::{self, ConsoleTail, INITRAMFS, KERNEL, L1Line, L1Port, lock};
use crate::relay::JobGuest;
use crate::trace::Tracer;
use crate::{Result, system};

/// The guest's memory where nobody says how much.
pub(crate) const MEMORY_MIB: usize = 192;
const ZERO_PAGE: u64 = 0x7000;
const PAGE_TABLES: u64 = 0x9000;
const COMMAND_LINE: u64 = 0x2_0000;
const LOW_END: u64 = 0x9_fc00;
const HIGH: u64 = 0x10_0000;

/// A running Linux guest.
pub(crate) struct Linux {
    line: L1Line,
    /// Its vCPUs.
    threads: Vec<JoinHandle<()>>,
    memory: AttachedMemory,
    counting: Arc<Mutex<Option<order::PmuCounting>>>,
    mapped: Arc<Mutex<Option<order::KvmCounters>>>,
}

impl Linux {
    /// Boots it with so much memory and so many vCPUs, each with a virtual PMU if there is to be one, and waits until it is
    /// up.
    pub(crate) fn boot(
        (memory_mib, backing): (usize, HostBacking),
        cpus: u32,
        pmu: Option<order::PmuOrder>,
    ) -> Result<Linux> {
        if cpus == 0 || cpus > mptable::MOST {
            return Err(format!(
                "a guest has 1 to {} vCPUs, and {cpus} were asked for",
                mptable::MOST
            ));
        }
        let command_line = std::fs::read_to_string(l1::COMMAND_LINE)
            .map_err(|e| format!("{}: {e}", l1::COMMAND_LINE))?;
        let bytes = memory_mib << 20;
        let vm = backing.vm()?;
        let memory = backing.attach(&vm, bytes)?;
        let entry = load(&memory.region, backing.files_end(bytes), bytes, &command_line)?;
        memory
            .region
            .write_slice(&mptable::bytes(cpus), GuestAddress(mptable::AT))
            .map_err(|e| format!("L1's memory: {e}"))?;
        let console = ConsoleTail::default();
        let (line, port) = l1::conversation(console.clone());
        let answer = port.answers();
        let counting = Arc::new(Mutex::new(None));
        let mapped = Arc::new(Mutex::new(None));
        let (vm, vcpus) = vcpus(vm, entry, cpus, pmu)?;
        let devices = Arc::new(LinuxDevices {
            serial: Mutex::new(Serial::new(NoTrigger, console)),
            tracer: port.tracer(),
            channel: Mutex::new(port),
            counting: Arc::clone(&counting),
            tally: Mutex::new(VmTally::open(&vm, &vcpus)),
            mapped: Arc::clone(&mapped),
            gate: (cpus > 1).then(|| VmGate::new(cpus)),
        });
        let vm = Arc::new(vm);
        let mut threads = Vec::new();
        for (number, mut vcpu) in (0..).zip(vcpus) {
            let devices = Arc::clone(&devices);
            let vm = Arc::clone(&vm);
            let answer = answer.clone();
            let body = move || {
                let mut run = || {
                    stay_apart(number, cpus)?;
                    // The PMU's events are this thread's.
                    let of = (&vcpu, number as u8);
                    let meter = pmu.map(|pmu| PmuMeter::new(pmu, CountedGuest::Linux, &vm, of));
                    let devices = Arc::clone(&devices);
                    let mut around = Attached { vcpu: number, devices, meter: meter.transpose()? };
                    run(&mut vcpu, &AtomicBool::new(false), &mut around)
                };
                let result = run();
                devices.end(number);
                let _ = answer.send(Err(result.err().unwrap_or_else(|| "L1 ended".to_owned())));
                drop((vcpu, vm));
            };
            let name = if number == 0 { "L1".to_owned() } else { format!("L1:{number}") };
            let thread = std::thread::Builder::new().name(name).spawn(body);
            threads.push(thread.map_err(|e| format!("thread: {e}"))?);
        }
        line.booted()?;
        Ok(Linux { line, threads, memory, counting, mapped })
    }

    /// Ends it while it waits for an order, and gives its memory back.
    pub(crate) fn end(self) {
        drop(self.line);
        let ended = self.threads.into_iter().all(|thread| thread.join().is_ok());
        if ended {
            // SAFETY: threads of the vCPUs, which own the VM, have ended, and this was the last that knows the memory.
            unsafe { self.memory.release() };
        }
    }

    /// Has an order carried out.
    pub(crate) fn execute(&self, order: &Order, tracer: Tracer) -> Result<(Report, Tracer)> {
        self.line.execute(order, tracer)
    }
}

/// Pins a vCPU's thread, if there are several of both, to the processor with its number, so that an interrupt of one for another always crosses processors.
fn stay_apart(number: u32, cpus: u32) -> Result<()> {
    match system::processors() {
        processors if processors > 1 && cpus > 1 => system::stay_on(number as usize % processors),
        _ => Ok(()),
    }
}

impl JobGuest for Linux {
    fn ask(&self, request: &[u8], tracer: Tracer, limit: Duration) -> Result<(Vec<u8>, Tracer)> {
        *lock(&self.mapped) = None;
        self.line.ask(request, tracer, limit)
    }

    fn counting(&self) -> Option<order::PmuCounting> {
        *lock(&self.counting)
    }

    fn mapped(&self) -> Option<order::KvmCounters> {
        *lock(&self.mapped)
    }
}

fn vcpus(
    vm: BareVm,
    entry: u64,
    cpus: u32,
    pmu: Option<order::PmuOrder>,
) -> Result<(VmFd, Vec<VcpuFd>)> {
    let registers =
        kvm_regs { rip: entry, rsi: ZERO_PAGE, rsp: 0x8ff0, rflags: 2, ..Default::default() };
    let model = pmu.map(|pmu| pmu::model(pmu, CountedGuest::Linux));
    if let Some(model) = &model {
        vm.virtual_pmu(model)?;
    }
    let (first, special) = vm.vcpu(0, PAGE_TABLES, model.as_ref())?;
    first.set_sregs(&special).map_err(failed("KVM_SET_SREGS"))?;
    first.set_regs(&registers).map_err(failed("KVM_SET_REGS"))?;
    let mut vcpus = vec![first];
    for number in 1..cpus {
        vcpus.push(vm.waiting_vcpu(number, model.as_ref())?);
    }
    Ok((vm.fd, vcpus))
}

/// Puts kernel, initramfs (up to `files_end`) and what the 64-bit boot protocol asks for into memory. Returns the entry.
fn load(
    memory: &GuestMemoryMmap,
    files_end: usize,
    bytes: usize,
    command_line: &str,
) -> Result<u64> {
    let mut kernel = File::open(KERNEL).map_err(|e| format!("{KERNEL}: {e}"))?;
    let loaded = Elf::load(memory, None, &mut kernel, Some(GuestAddress(HIGH)))
        .map_err(|e| format!("{KERNEL}: {e}"))?;
    let mut initramfs = Vec::new();
    File::open(INITRAMFS)
        .and_then(|mut file| file.read_to_end(&mut initramfs))
        .map_err(|e| format!("{INITRAMFS}: {e}"))?;
    let room = files_end.checked_sub(initramfs.len()).map(|room| room as u64 & !0xfff);
    let at = room
        .filter(|at| *at >= loaded.kernel_end)
        .ok_or("L1's memory: its files do not fit in; give it more memory")?;
    let put = |bytes: &[u8], to: u64| {
        memory.write_slice(bytes, GuestAddress(to)).map_err(|e| format!("L1's memory: {e}"))
    };
    put(&initramfs, at)?;
    put(&identity_map(PAGE_TABLES), PAGE_TABLES)?;
    put(command_line.as_bytes(), COMMAND_LINE)?;
    put(&[0], COMMAND_LINE + command_line.len() as u64)?;
    let mut parameters = boot_params::default();
    parameters.hdr.type_of_loader = 0xff;
    parameters.hdr.boot_flag = 0xaa55;
    parameters.hdr.header = 0x5372_6448;
    parameters.hdr.kernel_alignment = 0x0100_0000;
    parameters.hdr.cmd_line_ptr = COMMAND_LINE as u32;
    parameters.hdr.cmdline_size = command_line.len() as u32;
    parameters.hdr.ramdisk_image = at as u32;
    parameters.hdr.ramdisk_size = initramfs.len() as u32;
    parameters.e820_table[0] = boot_e820_entry { addr: 0, size: LOW_END, r#type: 1 };
    parameters.e820_table[1] = boot_e820_entry { addr: HIGH, size: bytes as u64 - HIGH, r#type: 1 };
    parameters.e820_entries = 2;
    put(Parameters(parameters).as_slice(), ZERO_PAGE)?;
    Ok(loaded.kernel_load.0)
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Parameters(boot_params);

// SAFETY: boot_params is a plain C struct without padding of its own (it is packed).
unsafe impl ByteValued for Parameters {}

/// What all vCPUs have in common.
struct LinuxDevices {
    serial: Mutex<Serial<NoTrigger, NoEvents, ConsoleTail>>,
    channel: Mutex<L1Port>,
    tracer: Arc<Mutex<Option<Tracer>>>,
    /// What the virtual PMU of the vCPU that carried out the last order did for it.
    counting: Arc<Mutex<Option<order::PmuCounting>>>,
    /// KVM's counters; none where the kernel has none.
    tally: Mutex<Option<VmTally>>,
    /// What they counted from the agent's mark to its next.
    mapped: Arc<Mutex<Option<order::KvmCounters>>>,
    /// Of a VM with several.
    gate: Option<VmGate>,
}

impl LinuxDevices {
    /// A vCPU has ended: what the guest has said so far is handed over, unless another one is at it.
    fn end(&self, vcpu: u32) {
        if let Some(gate) = &self.gate {
            gate.leave(vcpu);
        }
        if let Ok(mut channel) = self.channel.try_lock() {
            channel.hand_over();
        }
    }

    /// Whether a vCPU that reads from the port will wait for an order.
    fn is_idle(&self) -> bool {
        lock(&self.channel).is_idle()
    }

    /// The guest reads: it waits here until there is an order, and no vCPU runs meanwhile.
    fn send(&self, vcpu: u32, bytes: &mut [u8]) -> VmmAnswer {
        let waits = |waits: bool| match &self.gate {
            Some(gate) if waits => gate.close(vcpu),
            Some(gate) => gate.open(),
            None => {}
        };
        if lock(&self.channel).send(bytes, &waits) { VmmAnswer::Run } else { VmmAnswer::End }
    }
}

/// The devices, as a vCPU has them around it.
struct Attached<'a> {
    vcpu: u32,
    devices: Arc<LinuxDevices>,
    meter: Option<PmuMeter<'a>>,
}

impl Around for Attached<'_> {
    fn enter(&mut self, vcpu: &VcpuFd) -> Result<()> {
        if let Some(gate) = &self.devices.gate {
            gate.pass(self.vcpu);
        }
        self.meter.as_mut().map_or(Ok(()), |meter| meter.enter(vcpu))
    }

    fn answer(&mut self, request: VcpuRequest<'_>) -> Result<VmmAnswer> {
        let devices = &*self.devices;
        match request {
            VcpuRequest::Out(CHANNEL, bytes) => lock(&devices.channel).receive(bytes),
            VcpuRequest::In(CHANNEL, bytes) => {
                let meter = self.meter.as_mut().filter(|_| devices.is_idle());
                let Some(meter) = meter else { return Ok(devices.send(self.vcpu, bytes)) };
                // What it did for the last order; then it waits for the next one.
                *lock(&devices.counting) = Some(meter.counting());
                let next = devices.send(self.vcpu, bytes);
                meter.warm();
                return Ok(next);
            }
            VcpuRequest::Out(SETTLE, bytes) => {
                let need = bytes.try_into().map_or(u32::MAX, u32::from_le_bytes);
                system::away_from_tick(Duration::from_nanos(need.into()));
            }
            VcpuRequest::Out(TRACE, on) => {
                if let Some(tracer) = &*lock(&devices.tracer) {
                    tracer.record(on == [1]);
                }
            }
            VcpuRequest::Out(COUNT, on) => {
                if let Some(tally) = &mut *lock(&devices.tally) {
                    match on == [1] {
                        true => tally.start(),
                        false => *lock(&devices.mapped) = tally.end(),
                    }
                }
            }
            VcpuRequest::Out(port @ COM1..=0x3ff, bytes) => {
                for byte in bytes {
                    // The console cannot fail: it is memory.
                    let _ = lock(&devices.serial).write((port - COM1) as u8, *byte);
                }
            }
            VcpuRequest::In(port @ COM1..=0x3ff, bytes) => {
                for byte in bytes {
                    *byte = lock(&devices.serial).read((port - COM1) as u8);
                }
            }
            VcpuRequest::Out(..) | VcpuRequest::Store(..) => {}
            VcpuRequest::Interrupted => {
                if let Some(meter) = &self.meter {
                    meter.interrupted();
                }
            }
            // Without a virtual PMU KVM answers for all MSRs.
            VcpuRequest::ReadMsr(exit) => match &mut self.meter {
                Some(meter) => meter.read(exit),
                None => *exit.error = 1,
            },
            VcpuRequest::WriteMsr(exit) => match &mut self.meter {
                Some(meter) => meter.write(exit),
                None => *exit.error = 1,
            },
            VcpuRequest::Hypercall(exit) => *exit.ret = NO_HYPERCALL,
            VcpuRequest::MemoryFault(gpa) => return Err(no_memory(gpa)),
            // The clock chip and the keyboard controller must not look busy.
            VcpuRequest::In(0x60..=0x71, data) => data.fill(0),
            VcpuRequest::In(_, data) | VcpuRequest::Load(_, data) => data.fill(0xff),
        }
        Ok(VmmAnswer::Run)
    }
}
