//! Boots Linux as a guest that nests, or that has counters: the same kernel with this same program as its first process.
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
use super::perf::HostInstructions;
use super::vmm::{ArmVmMemory, COUNTERS, EL2, EL2_WITHOUT_VHE, failed, start_at, vcpu};
use crate::l1::{self, ConsoleTail, L1Line, L1Port, lock};
use crate::life::machine::BITS;
use crate::trace::Tracer;
use crate::{Result, system};

/// Its memory, MiB, in pages of 2 MiB.
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

/// Instructions of the vCPU's thread outside the guest, by operation, in the order of its batches.
pub(crate) type SpentByHost = Arc<Mutex<Vec<(u16, u64)>>>;

/// Boots it, and waits until it is up.
pub(crate) fn boot(spent: &SpentByHost) -> Result<L1Line> {
    let command_line = command_line()?;
    let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
    let vm = kvm.create_vm_with_ipa_size(BITS as u32).map_err(failed("KVM_CREATE_VM"))?;
    let memory = ArmVmMemory::new(MEMORY_MIB << 20, Backing::Thp)?;
    memory.attach(&vm, (0, arm::MEMORY))?;
    let exchange = ArmVmMemory::new(arm::EXCHANGE_BYTES, Backing::Small)?;
    exchange.attach(&vm, (1, arm::EXCHANGE))?;
    // HVC is its hypervisor's own.
    let tree = load(&memory, "smc")?;
    let (vcpu, _, gic) = vcpu(&vm, features(&command_line))?;
    start_at(&vcpu, (arm::MEMORY, tree))?;
    let console = ConsoleTail::default();
    let (line, port) = l1::conversation(console.clone());
    let (answer, tracer) = (port.answers(), port.tracer());
    let counting = is_counting(&command_line).then(|| Arc::clone(spent));
    let mut devices = L1Devices { console, port, exchange, tracer, host: None };
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
    let end = arm::MEMORY + (MEMORY_MIB << 20) as u64;
    let tree_at = end - TREE;
    let files_at = (tree_at - initramfs.len() as u64) & !(PAGE - 1);
    // With what it has beyond the image: its size in memory, from its header.
    let size = kernel.get(16..24).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let size = size.ok_or("the kernel is too short")?;
    if arm::MEMORY + size > files_at {
        return Err("L1's memory: its files do not fit in".to_owned());
    }
    let tree = device_tree(&Booted {
        command_line,
        psci,
        memory: end - arm::MEMORY,
        initramfs: files_at..files_at + initramfs.len() as u64,
        counters: is_counting(command_line),
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
    let mut words = command_line.split_whitespace();
    if words.any(|word| MODES_WITHOUT_VHE.contains(&word)) { EL2_WITHOUT_VHE } else { EL2 }
}

fn is_counting(command_line: &str) -> bool {
    command_line.split_whitespace().any(|word| word == COUNTING)
}

/// How L1's kernel is told that its KVM runs at EL2 and its kernel below.
const MODES_WITHOUT_VHE: [&str; 2] = ["kvm-arm.mode=nvhe", "kvm-arm.mode=protected"];

/// What L1 finds around it.
struct L1Devices {
    console: ConsoleTail,
    port: L1Port,
    exchange: ArmVmMemory,
    tracer: Arc<Mutex<Option<Tracer>>>,
    host: Option<CountedHost>,
}

/// What counts the host's instructions.
struct CountedHost {
    counter: HostInstructions,
    /// At the begin of the batch.
    begun: u64,
    spent: SpentByHost,
}

impl CountedHost {
    /// A mark of a batch: its begin, or its end.
    fn marked(&mut self, (operation, begins): (u16, bool)) -> Result<()> {
        let now = self.counter.read()?;
        if begins {
            self.begun = now;
        } else {
            lock(&self.spent).push((operation, now - self.begun));
        }
        Ok(())
    }
}

impl L1Devices {
    /// Counts the instructions of this thread, the vCPU's, if they go anywhere.
    fn count(&mut self, spent: Option<SpentByHost>) -> Result<()> {
        let counted = |spent| {
            HostInstructions::open().map(|counter| CountedHost { counter, begun: 0, spent })
        };
        self.host = spent.map(counted).transpose()?;
        Ok(())
    }

    /// Runs the vCPU until L1 ends; why it did.
    fn run(&mut self, vcpu: &mut VcpuFd) -> String {
        loop {
            match vcpu.run() {
                Ok(VcpuExit::MmioWrite(at, data)) => {
                    let word = data.try_into().map_or(0, u32::from_le_bytes);
                    match at {
                        // The console cannot fail: it is memory.
                        arm::SERIAL => drop(self.console.write(&data[..1])),
                        _ => {
                            if let Err(problem) = self.written(arm::port(at), word) {
                                return problem;
                            }
                        }
                    }
                }
                Ok(VcpuExit::MmioRead(at, data)) => {
                    data.fill(0);
                    if arm::port(at) == Some(CHANNEL) && !self.wanted() {
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

    /// A store to a port.
    fn written(&mut self, port: Option<u16>, word: u32) -> Result<()> {
        if let (Some(host), Some(mark)) = (&mut self.host, port.and_then(layout::mark)) {
            return host.marked(mark);
        }
        match port {
            Some(CHANNEL) => {
                let mut bytes = vec![0; (word as usize).min(arm::EXCHANGE_BYTES)];
                self.exchange.read_into(0, &mut bytes);
                self.port.receive(&bytes);
            }
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

    /// A load from the channel: as many bytes as the exchange's first word has. False if there will be none.
    fn wanted(&mut self) -> bool {
        let mut word = [0; 4];
        self.exchange.read_into(0, &mut word);
        let mut bytes = vec![0; (u32::from_le_bytes(word) as usize).min(arm::EXCHANGE_BYTES)];
        let more = self.port.send(&mut bytes, &|_| ());
        self.exchange.write(0, &bytes);
        more
    }
}
