//! Boots Linux as a guest that nests: the same kernel with this same program as its first process.
//!
//! It gets memory, a serial console, KVM's interrupt controllers and timer, and the port that orders and reports go through.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvm_bindings::kvm_regs;
use kvm_ioctls::{VcpuFd, VmFd};
use linux_loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};
use vm_superio::Serial;
use vm_superio::serial::NoEvents;
use vmtax_guest::layout::{CHANNEL, COUNT, SETTLE, TRACE};
use vmtax_guest::mailbox::{REPORT, SECTOR, SECTORS};
use vmtax_guest::order::{self, Order, Report, decode, encode};

use super::backing::HostBacking;
use super::gate::VmGate;
use super::pmu::{self, CountedGuest, PmuMeter};
use super::serial::{COM1, NoTrigger};
use super::stats::VmTally;
use vmtax_page_tables::identity_map;

use super::{
    Around, BareVm, NO_HYPERCALL, VcpuRequest, VmmAnswer, failed, mptable, no_memory, run,
};
use crate::trace::Tracer;
use crate::{Result, system};

const KERNEL: &str = "/l1/vmlinux";
const INITRAMFS: &str = "/l1/initramfs";
const COMMAND_LINE_FILE: &str = "/l1/command_line";
/// The guest's memory where nobody says how much.
pub(crate) const MEMORY_MIB: usize = 192;
const ZERO_PAGE: u64 = 0x7000;
const PAGE_TABLES: u64 = 0x9000;
const COMMAND_LINE: u64 = 0x2_0000;
const LOW_END: u64 = 0x9_fc00;
const HIGH: u64 = 0x10_0000;
/// Emulated time that booting may take.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Bytes of reports that wait to be handed on: what the mailbox has room for.
const REPORTS_MOST: usize = (SECTORS - REPORT) as usize * SECTOR;
/// Reports that wait. A guest sends one, and that it is up.
const REPORTS_HELD: usize = 16;
/// Emulated time that an order may take.
const ORDER_LIMIT: Duration = Duration::from_secs(600);

/// A running Linux guest.
pub(crate) struct Linux {
    orders: Sender<Vec<u8>>,
    reports: Receiver<Result<Vec<u8>>>,
    console: ConsoleTail,
    tracer: Arc<Mutex<Option<Tracer>>>,
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
        let command_line = std::fs::read_to_string(COMMAND_LINE_FILE)
            .map_err(|e| format!("{COMMAND_LINE_FILE}: {e}"))?;
        let bytes = memory_mib << 20;
        let vm = backing.vm()?;
        let memory = backing.attach(&vm, bytes)?;
        let entry = load(&memory, backing.files_end(bytes), bytes, &command_line)?;
        memory
            .write_slice(&mptable::bytes(cpus), GuestAddress(mptable::AT))
            .map_err(|e| format!("L1's memory: {e}"))?;
        let (orders, waiting) = channel();
        let (answer, reports) = channel();
        let console = ConsoleTail::default();
        let tracer = Arc::new(Mutex::new(None));
        let counting = Arc::new(Mutex::new(None));
        let mapped = Arc::new(Mutex::new(None));
        let (vm, vcpus) = vcpus(vm, entry, cpus, pmu)?;
        let devices = Arc::new(LinuxDevices {
            serial: Mutex::new(Serial::new(NoTrigger, console.clone())),
            channel: Mutex::new(Port {
                waiting,
                outgoing: VecDeque::new(),
                incoming: Vec::new(),
                held: Vec::new(),
                answer: answer.clone(),
            }),
            tracer: Arc::clone(&tracer),
            counting: Arc::clone(&counting),
            tally: Mutex::new(VmTally::open(&vm, &vcpus)),
            mapped: Arc::clone(&mapped),
            gate: (cpus > 1).then(|| VmGate::new(cpus)),
        });
        let vm = Arc::new(vm);
        for (number, mut vcpu) in (0..).zip(vcpus) {
            let devices = Arc::clone(&devices);
            let vm = Arc::clone(&vm);
            let answer = answer.clone();
            let body = move || {
                let mut run = || {
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
            std::thread::Builder::new()
                .name(name)
                .spawn(body)
                .map_err(|e| format!("thread: {e}"))?;
        }
        let linux = Linux { orders, reports, console, tracer, counting, mapped };
        linux.up("booting L1")?;
        Ok(linux)
    }

    /// Has an order carried out.
    pub(crate) fn execute(&self, order: &Order, tracer: Tracer) -> Result<(Report, Tracer)> {
        let (report, tracer) = self.ask(&encode(order), tracer, ORDER_LIMIT)?;
        Ok((decode(&report).ok_or("L1's report cannot be read")?, tracer))
    }

    /// Hands something on to what runs there, and its answer back.
    pub(crate) fn ask(
        &self,
        request: &[u8],
        tracer: Tracer,
        limit: Duration,
    ) -> Result<(Vec<u8>, Tracer)> {
        *lock(&self.tracer) = Some(tracer);
        *lock(&self.mapped) = None;
        let mut message = (request.len() as u32).to_le_bytes().to_vec();
        message.extend(request);
        self.orders.send(message).map_err(|_| "L1 ended".to_owned())?;
        let answer = self.report(limit, "an order to L1")?;
        // L1 asks for its next order.
        self.up("L1 after an order")?;
        Ok((answer, lock(&self.tracer).take().unwrap_or(Tracer::Off)))
    }

    /// What the virtual PMU did for the last request; none without one.
    pub(crate) fn counting(&self) -> Option<order::PmuCounting> {
        *lock(&self.counting)
    }

    /// KVM's page faults during the last request, if the guest had them counted.
    pub(crate) fn mapped(&self) -> Option<order::KvmCounters> {
        *lock(&self.mapped)
    }

    /// Waits until L1 waits for an order.
    fn up(&self, what: &str) -> Result<()> {
        let bytes = self.report(BOOT_LIMIT, what)?;
        Report::of_waiting(&bytes).map_err(|problem| format!("L1: {problem}"))
    }

    fn report(&self, limit: Duration, what: &str) -> Result<Vec<u8>> {
        let result = match self.reports.recv_timeout(limit) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err("L1 ended".into()),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{what} took more than {} s of emulated time", limit.as_secs()))
            }
        };
        result.map_err(|problem| format!("{problem}; L1's console ends: {}", self.console.end()))
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

/// The console's last bytes.
#[derive(Clone, Default)]
struct ConsoleTail(Arc<Mutex<VecDeque<u8>>>);

impl ConsoleTail {
    fn end(&self) -> String {
        let bytes: Vec<u8> = lock(&self.0).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(4)..].join(" | ")
    }
}

impl Write for ConsoleTail {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut kept = lock(&self.0);
        for byte in bytes {
            if *byte == b'\n' {
                // The host's console has it too, whatever becomes of this program.
                let last: Vec<u8> =
                    kept.iter().rev().take_while(|byte| **byte != b'\n').copied().collect();
                let line: Vec<u8> = last.into_iter().rev().collect();
                system::say(&format!("L1: {}", String::from_utf8_lossy(&line).trim_end()));
            }
            kept.push_back(*byte);
        }
        while kept.len() > 4096 {
            kept.pop_front();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What all vCPUs have in common.
struct LinuxDevices {
    serial: Mutex<Serial<NoTrigger, NoEvents, ConsoleTail>>,
    channel: Mutex<Port>,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        lock(&self.channel).outgoing.is_empty()
    }

    /// The guest reads: it waits here until there is an order, and no vCPU runs meanwhile.
    fn send(&self, vcpu: u32, bytes: &mut [u8]) -> VmmAnswer {
        let mut channel = lock(&self.channel);
        for byte in bytes {
            if channel.outgoing.is_empty() {
                if let Some(gate) = &self.gate {
                    gate.close(vcpu);
                }
                channel.hand_over();
                match channel.waiting.recv() {
                    Ok(order) => channel.outgoing.extend(order),
                    Err(_) => return VmmAnswer::End,
                }
                if let Some(gate) = &self.gate {
                    gate.open();
                }
            }
            *byte = channel.outgoing.pop_front().unwrap_or_default();
        }
        VmmAnswer::Run
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

/// The port that orders and reports go through: each with its length before it.
///
/// What the guest writes is handed over when it reads: then it stands still until there is an order, and the machine can be
/// saved. QEMU restores none that was saved while a guest ran.
struct Port {
    waiting: Receiver<Vec<u8>>,
    outgoing: VecDeque<u8>,
    incoming: Vec<u8>,
    held: Vec<Vec<u8>>,
    answer: Sender<Result<Vec<u8>>>,
}

impl Port {
    fn receive(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
        let Some((length, rest)) = self.incoming.split_first_chunk::<4>() else { return };
        let length = u32::from_le_bytes(*length) as usize;
        let held: usize = self.held.iter().map(Vec::len).sum();
        if length + held > REPORTS_MOST || self.held.len() >= REPORTS_HELD {
            // The guest is trusted with no more memory than its reports can be handed on with.
            let problem = format!("L1 sends reports of {} bytes", length + held);
            let _ = self.answer.send(Err(problem));
            self.incoming.clear();
            return;
        }
        if rest.len() < length {
            return;
        }
        let report = rest[..length].to_vec();
        self.incoming.drain(..4 + length);
        self.held.push(report);
    }

    fn hand_over(&mut self) {
        for report in self.held.drain(..) {
            let _ = self.answer.send(Ok(report));
        }
    }
}
