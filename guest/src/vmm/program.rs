//! Runs a multiboot program, such as those of kvm-unit-tests, with the few devices that these use.
//!
//! | I/O port | device |
//! |---|---|
//! | `0x3f8` | serial port: output |
//! | `0xe9` | debug console: output |
//! | `0xf4` | a write ends the program; the value is its exit code |
//! | `0x510`, `0x511` | QEMU's firmware configuration: number of processors and bytes of memory |
//! | `0x608` | timer of ACPI |
//!
//! Further [`TestDevice`]. Interrupt controllers and the PIT are KVM's. Left out: PCI, disks, the keyboard controller, and all else: reads give ones, and
//! each such device is named in the result.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use kvm_bindings::kvm_regs;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vm_superio::Serial;
use vm_superio::serial::NoEvents;
use vmtax_guest::order::{Program, Ran};

use super::serial::{COM1, NoTrigger};
use super::test_device::TestDevice;
use super::{
    Around, BareVm, CodeWidth, NO_HYPERCALL, VcpuRequest, VmmAnswer, failed, flat_segments,
    no_memory, run,
};
use crate::trace::Tracer;
use crate::{Result, system};

/// The exit port of QEMU's isa-debug-exit, and its debug console.
const EXIT: u16 = 0xf4;
const DEBUG_CONSOLE: u16 = 0xe9;
const SELECTOR: u16 = 0x510;
const CONFIGURATION: u16 = 0x511;
const PM_TIMER: u16 = 0x608;
/// Its ticks in a second.
const PM_TICKS: u128 = 3_579_545;
/// Where firmware reports progress.
const POST: u16 = 0x80;

/// EAX of a program that a multiboot loader has started.
const LOADED: u64 = 0x2bad_b002;

/// Bytes of output that are kept, and that the console gets.
const OUTPUT_MOST: usize = 1 << 20;
const SAID_MOST: usize = 64 << 10;
/// Absent devices that are named.
const ABSENT_MOST: usize = 16;

/// Runs a program to its end. The tracer records all of it.
pub(crate) fn execute(program: &Program, tracer: &Tracer) -> Result<Ran> {
    let of_memory = |error: &dyn std::fmt::Display| format!("guest memory: {error}");
    let bytes = program.memory as usize;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), bytes)])
        .map_err(|e| of_memory(&e))?;
    for (at, piece) in &program.pieces {
        memory.write_slice(piece, GuestAddress(u64::from(*at))).map_err(|e| of_memory(&e))?;
    }
    let host = memory.get_host_address(GuestAddress(0)).map_err(|e| of_memory(&e))?;
    let vm = BareVm::new()?;
    // SAFETY: `memory` lives longer than the vCPU runs, and this program does not touch it meanwhile.
    unsafe { vm.memory(0, host, bytes)? };
    let mut vcpu = vm.waiting_vcpu(0, None)?;
    let mut special = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    flat_segments(&mut special, CodeWidth::Bits32);
    special.cr0 = 0x11;
    vcpu.set_sregs(&special).map_err(failed("KVM_SET_SREGS"))?;
    let registers = kvm_regs {
        rip: program.entry.into(),
        rax: LOADED,
        rbx: program.information.into(),
        rflags: 2,
        ..Default::default()
    };
    vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))?;
    let is_recorded = !matches!(tracer, Tracer::Off);
    let mut devices =
        ProgramDevices::new(program, TestDevice::new(&vm.fd, (host, bytes)), !is_recorded);
    tracer.record(true);
    let result = run(&mut vcpu, &AtomicBool::new(false), &mut devices);
    tracer.record(false);
    let (output, failure) = (devices.serial.into_writer(), result.err());
    let absent = devices.absent.into_iter().collect();
    let ProgramOutput { kept, dropped, .. } = output;
    Ok(Ran { output: kept, dropped, code: devices.code, failure, absent, ..Ran::default() })
}

/// What the program wrote.
struct ProgramOutput {
    kept: Vec<u8>,
    dropped: u64,
    /// The console gets each line at once, so that it is known whatever becomes of the program.
    says: bool,
    /// Where the line starts that the console does not have yet.
    line: usize,
}

impl Write for ProgramOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            if self.kept.len() >= OUTPUT_MOST {
                self.dropped += 1;
                continue;
            }
            self.kept.push(*byte);
            if *byte == b'\n' {
                let line = String::from_utf8_lossy(&self.kept[self.line..]);
                if self.says && self.line < SAID_MOST {
                    system::say(&format!("program: {}", line.trim_end()));
                }
                self.line = self.kept.len();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct ProgramDevices<'a> {
    serial: Serial<NoTrigger, NoEvents, ProgramOutput>,
    test: TestDevice<'a>,
    configuration: Configuration,
    started: Instant,
    code: Option<u32>,
    absent: BTreeMap<String, u64>,
}

impl<'a> ProgramDevices<'a> {
    fn new(program: &Program, test: TestDevice<'a>, says: bool) -> ProgramDevices<'a> {
        let output = ProgramOutput { kept: Vec::new(), dropped: 0, says, line: 0 };
        ProgramDevices {
            serial: Serial::new(NoTrigger, output),
            test,
            configuration: Configuration { memory: program.memory, item: Vec::new(), next: 0 },
            started: Instant::now(),
            code: None,
            absent: BTreeMap::new(),
        }
    }

    fn lacks(&mut self, device: String) {
        let full = self.absent.len() >= ABSENT_MOST;
        match self.absent.get_mut(&device) {
            Some(count) => *count += 1,
            None if full => {}
            None => {
                self.absent.insert(device, 1);
            }
        }
    }

    fn output(&mut self, port: u16, bytes: &[u8]) -> Result<VmmAnswer> {
        match port {
            EXIT => {
                let mut code = [0; 4];
                code.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                self.code = Some(u32::from_le_bytes(code));
                return Ok(VmmAnswer::End);
            }
            // Neither can fail: both write to memory.
            COM1..=0x3ff => bytes.iter().for_each(|byte| {
                let _ = self.serial.write((port - COM1) as u8, *byte);
            }),
            DEBUG_CONSOLE => drop(self.serial.writer_mut().write(bytes)),
            SELECTOR => self.configuration.select(bytes),
            POST => {}
            _ => match self.test.output(port, bytes) {
                Some(done) => done?,
                None => self.lacks(port_name(port)),
            },
        }
        Ok(VmmAnswer::Run)
    }

    fn input(&mut self, port: u16, data: &mut [u8]) {
        match port {
            COM1..=0x3ff => {
                for byte in data {
                    *byte = self.serial.read((port - COM1) as u8);
                }
            }
            DEBUG_CONSOLE => data.fill(DEBUG_CONSOLE as u8),
            CONFIGURATION => {
                for byte in data {
                    *byte = self.configuration.read();
                }
            }
            PM_TIMER => {
                let ticks = self.started.elapsed().as_nanos() * PM_TICKS / 1_000_000_000;
                let ticks = (ticks as u32 & 0x00ff_ffff).to_le_bytes();
                data.fill(0);
                data.iter_mut().zip(ticks).for_each(|(to, from)| *to = from);
            }
            _ if self.test.input(port, data) => {}
            _ => {
                data.fill(0xff);
                self.lacks(port_name(port));
            }
        }
    }
}

/// The device behind a port.
fn port_name(port: u16) -> String {
    match port {
        0xcf8..=0xcff => "PCI".to_owned(),
        0x70 | 0x71 => "the clock and CMOS memory (I/O ports 0x70, 0x71)".to_owned(),
        0x60 | 0x64 => "the keyboard controller (I/O ports 0x60, 0x64)".to_owned(),
        _ => format!("I/O port {port:#x}"),
    }
}

impl Around for ProgramDevices<'_> {
    fn answer(&mut self, request: VcpuRequest<'_>) -> Result<VmmAnswer> {
        match request {
            VcpuRequest::Out(port, bytes) => return self.output(port, bytes),
            VcpuRequest::In(port, data) => self.input(port, data),
            VcpuRequest::Store(at, bytes) => {
                if !self.test.store(at, bytes) {
                    self.lacks(page_name(at));
                }
            }
            VcpuRequest::Load(at, data) => {
                if !self.test.load(at, data) {
                    data.fill(0xff);
                    self.lacks(page_name(at));
                }
            }
            // KVM answers for all MSRs.
            VcpuRequest::ReadMsr(exit) => *exit.error = 1,
            VcpuRequest::WriteMsr(exit) => *exit.error = 1,
            VcpuRequest::Hypercall(exit) => *exit.ret = NO_HYPERCALL,
            VcpuRequest::MemoryFault(at) => return Err(no_memory(at)),
            VcpuRequest::Interrupted => {}
        }
        Ok(VmmAnswer::Run)
    }
}

fn page_name(at: u64) -> String {
    format!("memory at {:#x}", at & !0xfff)
}

/// QEMU's firmware configuration: a selector, and an item that is read byte by byte.
struct Configuration {
    memory: u32,
    item: Vec<u8>,
    next: usize,
}

impl Configuration {
    fn select(&mut self, selector: &[u8]) {
        let number = selector.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        self.next = 0;
        self.item = match number {
            0 => b"QEMU".to_vec(),
            // It has the interface of this register, and no other.
            1 => 1_u32.to_le_bytes().to_vec(),
            3 => u64::from(self.memory).to_le_bytes().to_vec(),
            // Processors, and the most that there can be.
            5 | 15 => 1_u16.to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
    }

    /// Beyond the end are zeros.
    fn read(&mut self) -> u8 {
        let byte = self.item.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        byte
    }
}
