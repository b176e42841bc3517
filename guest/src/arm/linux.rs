//! Boots Linux as a guest that nests, that has counters, or that runs workloads or the agent of a benchmark: the same kernel with this same program as its first process.
//!
//! It has an EL2 of its own or a PMU, memory, KVM's GICv3 and timers, a serial port that only says what it is told, and a port that orders and reports go
//! through.

use std::fs;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use vmtax_guest::layout::{self, CHANNEL, SETTLE, TRACE, arm};
use vmtax_guest::order::Backing;

use super::device_tree::{Booted, device_tree};
use super::perf::ThreadCounter;
use super::virtio::{self, VirtioBus};
use super::vmm::{ArmVmMemory, COUNTERS, EL2, EL2_WITHOUT_VHE, failed, start_at, vcpu};
use crate::l1::{self, ConsoleTail, L1Line, L1Port, lock};
use crate::life::machine::BITS;
use crate::trace::Tracer;
use crate::{Result, protected, system};

/// Its memory, MiB, in pages of 2 MiB, where nobody says how much.
pub(crate) const MEMORY_MIB: usize = 256;
const PAGE: u64 = 0x1000;
/// Room for the device tree, at the end of memory.
const TREE: u64 = 2 << 20;
/// KVM_CAP_ARM_EL2 and KVM_CAP_ARM_EL2_E2H0 (Linux `include/uapi/linux/kvm.h`): a VM can have EL2, and one whose hypervisor is no VHE.
const CAPABILITIES: [u64; 2] = [240, 241];

/// Why VMs have no EL2, if this machine cannot give them one.
pub(crate) fn missing() -> Result<Option<String>> {
    let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
    let lacks = CAPABILITIES.iter().any(|number| kvm.check_extension_raw(*number) <= 0);
    Ok(lacks.then(|| {
        "KVM of this host gives VMs no EL2, which a hypervisor in a VM needs: that takes kvm-arm.mode=nested, FEAT_NV2 of the processor (QEMU 10 has it and 7.2 does not; crates/lab/second-qemu.sh \
         trixie arm unpacks it) and Linux 6.18 or newer"
            .to_owned()
    }))
}

/// A word of the command line of a guest with a PMU, and of its host.
pub(crate) const COUNTING: &str = "vmtax.counting";

/// A word of the command line of a guest that runs workloads, and of its host.
pub(crate) const WORKING: &str = "vmtax.working";

/// What was counted of the vCPU's thread, in the order of batches.
pub(crate) type SpentByHost = Arc<Mutex<Vec<VcpuBatch>>>;

/// A batch of an operation.
pub(crate) struct VcpuBatch {
    pub(crate) operation: u16,
    /// Instructions of the vCPU's thread: outside the guest where that has counters, and otherwise all.
    pub(crate) counted: u64,
    /// Those at EL2, where they are apart.
    pub(crate) at_el2: Option<u64>,
}

/// The role of the program in a guest with an agent.
pub(crate) const AGENT: &str = "vmtax.role=agent";

/// Boots it with so much memory, MiB, and waits until it is up. With `has_el2`, code at EL2 is not the host's kernel.
pub(crate) fn boot(memory_mib: usize, spent: &SpentByHost, has_el2: bool) -> Result<L1Line> {
    let command_line = command_line()?;
    let is_protected = has_word(&command_line, protected::WORD);
    let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
    let kind = BITS as u64 | if is_protected { protected::TYPE } else { 0 };
    let vm = kvm.create_vm_with_type(kind).map_err(failed("KVM_CREATE_VM"))?;
    let memory = ArmVmMemory::new(memory_mib << 20, Backing::Thp)?;
    memory.attach(&vm, (0, arm::MEMORY))?;
    let exchange = match is_protected {
        true => None,
        false => Some(ArmVmMemory::new(arm::EXCHANGE_BYTES, Backing::Small)?),
    };
    if let Some(exchange) = &exchange {
        exchange.attach(&vm, (1, arm::EXCHANGE))?;
    }
    // HVC is a hypervisor's own.
    let psci = if is_working(&command_line) { "hvc" } else { "smc" };
    let tree = load(&memory, psci)?;
    let (vcpu, _, gic) = vcpu(&vm, features(&command_line))?;
    let vm = Arc::new(vm);
    let bus = has_word(&command_line, virtio::WORD)
        .then(|| VirtioBus::start(&memory, &vm, is_protected))
        .transpose()?;
    start_at(&vcpu, (arm::MEMORY, tree))?;
    let console = ConsoleTail::default();
    let (line, port) = l1::conversation(console.clone());
    let (answer, tracer) = (port.answers(), port.tracer());
    let counts = is_counting(&command_line) || has_word(&command_line, WORKING);
    let counting = counts.then(|| (Arc::clone(spent), is_counting(&command_line), has_el2));
    let mut devices = L1Devices { console, port, exchange, tracer, bus, host: None };
    let body = move || {
        let mut vcpu = vcpu;
        let problem = match devices.count(counting) {
            Ok(()) => devices.run(&mut vcpu),
            Err(problem) => problem,
        };
        devices.port.hand_over();
        let _ = answer.send(Err(problem));
        drop((vcpu, gic, vm, memory));
    };
    std::thread::Builder::new()
        .name("L1".to_owned())
        .spawn(body)
        .map_err(|e| format!("thread: {e}"))?;
    line.booted()?;
    Ok(line)
}

fn read(path: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| format!("{path}: {e}"))
}

fn command_line() -> Result<String> {
    Ok(String::from_utf8_lossy(&read(l1::COMMAND_LINE)?).into_owned())
}

/// Puts kernel, initramfs and device tree into memory (Linux, `Documentation/arch/arm64/booting.rst`), the last with the instruction that calls PSCI.
/// Returns where the tree is.
pub(crate) fn load(memory: &ArmVmMemory, psci: &str) -> Result<u64> {
    let command_line = &command_line()?;
    let (kernel, initramfs) = (read(l1::KERNEL)?, read(l1::INITRAMFS)?);
    let end = arm::MEMORY + memory.bytes as u64;
    let tree_at = end - TREE;
    let files_at = (tree_at - initramfs.len() as u64) & !(PAGE - 1);
    // With what it has beyond the image: its size in memory, from its header.
    let size = kernel.get(16..24).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let size = size.ok_or("the kernel is too short")?;
    if arm::MEMORY + size > files_at {
        return Err("L1's memory: its files do not fit in".to_owned());
    }
    let devices = match has_word(command_line, virtio::WORD) {
        true => virtio::kinds(has_word(command_line, protected::WORD)).collect(),
        false => Vec::new(),
    };
    let tree = device_tree(&Booted {
        command_line,
        psci,
        memory: end - arm::MEMORY,
        initramfs: files_at..files_at + initramfs.len() as u64,
        counters: is_counting(command_line),
        devices,
    });
    for (at, bytes) in [(arm::MEMORY, &kernel), (files_at, &initramfs), (tree_at, &tree)] {
        memory.write((at - arm::MEMORY) as usize, bytes);
    }
    Ok(tree_at)
}

/// What its processor has. With E2H it can only be a hypervisor with VHE, without it only another one.
fn features(command_line: &str) -> u32 {
    if is_counting(command_line) {
        return COUNTERS;
    }
    if is_working(command_line) {
        return protected::FEATURES;
    }
    let mut words = command_line.split_whitespace();
    if words.any(|word| MODES_WITHOUT_VHE.contains(&word)) { EL2_WITHOUT_VHE } else { EL2 }
}

fn is_counting(command_line: &str) -> bool {
    has_word(command_line, COUNTING)
}

/// It has no hypervisor.
fn is_working(command_line: &str) -> bool {
    has_word(command_line, WORKING) || has_word(command_line, AGENT)
}

fn has_word(command_line: &str, word: &str) -> bool {
    command_line.split_whitespace().any(|one| one == word)
}

/// How L1's kernel is told that its KVM runs at EL2 and its kernel below.
const MODES_WITHOUT_VHE: [&str; 2] = ["kvm-arm.mode=nvhe", "kvm-arm.mode=protected"];

/// What L1 finds around it.
struct L1Devices {
    console: ConsoleTail,
    port: L1Port,
    /// Absent where the guest is protected: bytes go through the port itself.
    exchange: Option<ArmVmMemory>,
    tracer: Arc<Mutex<Option<Tracer>>>,
    bus: Option<Arc<VirtioBus>>,
    host: Option<CountedHost>,
}

/// What counts instructions of the vCPU's thread.
struct CountedHost {
    /// Of the host alone; otherwise the thread's time, which is instructions, tells all.
    host: Option<ThreadCounter>,
    el2: Option<ThreadCounter>,
    /// At the begin of the batch.
    begun: (u64, Option<u64>),
    spent: SpentByHost,
}

impl CountedHost {
    /// A mark of a batch: its begin, or its end.
    fn marked(&mut self, (operation, begins): (u16, bool)) -> Result<()> {
        let (before, el2_before) = self.begun;
        let el2 = self.el2.as_ref().map(ThreadCounter::read).transpose()?;
        let now = match &self.host {
            Some(host) => host.read()?,
            None => system::clock(libc::CLOCK_THREAD_CPUTIME_ID) as u64,
        };
        if begins {
            self.begun = (now, el2);
        } else {
            let at_el2 = el2.zip(el2_before).map(|(now, before)| now - before);
            let counted = now - before;
            lock(&self.spent).push(VcpuBatch { operation, counted, at_el2 });
        }
        Ok(())
    }
}

impl L1Devices {
    /// Counts the instructions of this thread, the vCPU's, if they go anywhere: those outside the guest, or all, and those at EL2 if they are apart.
    fn count(&mut self, counting: Option<(SpentByHost, bool, bool)>) -> Result<()> {
        let Some((spent, of_host, has_el2)) = counting else { return Ok(()) };
        let host = of_host.then(ThreadCounter::of_host).transpose()?;
        let el2 = (has_el2 && !of_host).then(ThreadCounter::of_el2).transpose()?;
        self.host = Some(CountedHost { host, el2, begun: (0, None), spent });
        Ok(())
    }

    /// Runs the vCPU until L1 ends; why it did.
    fn run(&mut self, vcpu: &mut VcpuFd) -> String {
        loop {
            match vcpu.run() {
                Ok(VcpuExit::MmioWrite(at, data)) => {
                    match at {
                        // The console cannot fail: it is memory.
                        arm::SERIAL => drop(self.console.write(&data[..1])),
                        _ => {
                            if let Err(problem) = self.written(at, data) {
                                return problem;
                            }
                        }
                    }
                }
                Ok(VcpuExit::MmioRead(at, data)) => {
                    data.fill(0);
                    if self.bus.as_ref().is_some_and(|bus| bus.load(at, data)) {
                        continue;
                    }
                    if arm::port(at) == Some(CHANNEL) && !self.wanted(data) {
                        return "L1 is not needed any more".to_owned();
                    }
                }
                Ok(VcpuExit::SystemEvent(kind, _)) => return format!("L1 ended (event {kind})"),
                Ok(exit) => return format!("KVM cannot go on with L1: {exit:?}"),
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return format!("KVM_RUN: {error}"),
            }
        }
    }

    /// A store to a device or a port.
    fn written(&mut self, at: u64, data: &[u8]) -> Result<()> {
        if let Some(bus) = &self.bus
            && bus.store(at, data)?
        {
            return Ok(());
        }
        let port = arm::port(at);
        let word = data.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        if let (Some(host), Some(mark)) = (&mut self.host, port.and_then(layout::mark)) {
            return host.marked(mark);
        }
        match port {
            Some(CHANNEL) => match &self.exchange {
                Some(exchange) => {
                    let mut bytes = vec![0; (word as usize).min(arm::EXCHANGE_BYTES)];
                    exchange.read_into(0, &mut bytes);
                    self.port.receive(&bytes);
                }
                None => self.port.receive(data),
            },
            Some(SETTLE) => system::away_from_tick(Duration::from_nanos(word.into())),
            Some(TRACE) => {
                if let Some(tracer) = &*lock(&self.tracer) {
                    tracer.record(word == 1);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A load from the channel: as many bytes as the exchange's first word has, or without one those of the load. False if there will be none.
    fn wanted(&mut self, loaded: &mut [u8]) -> bool {
        let Some(exchange) = &self.exchange else { return self.port.send(loaded, &|_| ()) };
        let mut word = [0; 4];
        exchange.read_into(0, &mut word);
        let mut bytes = vec![0; (u32::from_le_bytes(word) as usize).min(arm::EXCHANGE_BYTES)];
        let more = self.port.send(&mut bytes, &|_| ());
        exchange.write(0, &bytes);
        more
    }
}
