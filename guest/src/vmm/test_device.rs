//! QEMU's test device for kvm-unit-tests (`hw/misc/pc-testdev.c`): a register, a page that is taken away from KVM for a moment, the lines of the
//! interrupt controllers, and memory that is not the guest's.
//!
//! | where | what |
//! |---|---|
//! | I/O ports `0xe0` to `0xe3` | holds what was written |
//! | I/O ports `0xe4` to `0xe7` | a write of an address: KVM has to map that page again |
//! | I/O port `0xe8` | holds a byte |
//! | I/O ports `0x2000` to `0x2017` | a write sets an interrupt line: 0 low, all else high |
//! | `0xff000000` to `0xff00ffff` | holds what was written; each access is an exit |

use kvm_ioctls::VmFd;

use super::failed;
use crate::Result;

const REGISTER: u16 = 0xe0;
const FLUSH: u16 = 0xe4;
const BYTE: u16 = 0xe8;
const LINES: u16 = 0x2000;
/// Interrupt lines: those of the I/O APIC.
const LINES_END: u16 = LINES + 23;

const MEMORY: u64 = 0xff00_0000;
const MEMORY_BYTES: usize = 0x1_0000;
const PAGE: usize = 4096;

/// The device of a VM.
pub(super) struct TestDevice<'a> {
    vm: &'a VmFd,
    /// Memory of the guest from address 0 on: where it is here, and its size.
    guest: (*mut u8, usize),
    register: [u8; 4],
    byte: u8,
    memory: Vec<u8>,
}

impl<'a> TestDevice<'a> {
    /// `guest` must stay mapped for as long as the device is used.
    pub(super) fn new(vm: &'a VmFd, guest: (*mut u8, usize)) -> TestDevice<'a> {
        TestDevice { vm, guest, register: [0; 4], byte: 0, memory: vec![0; MEMORY_BYTES] }
    }

    /// A write to a port; `None` if the port is not of this device.
    pub(super) fn output(&mut self, port: u16, bytes: &[u8]) -> Option<Result<()>> {
        match port {
            REGISTER..FLUSH => {
                let from = usize::from(port - REGISTER);
                self.register[from..].iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
            }
            FLUSH..BYTE => self.flush(value(bytes) as usize),
            BYTE => self.byte = bytes.first().copied().unwrap_or_default(),
            LINES..=LINES_END => {
                let line = u32::from(port - LINES);
                let set = self.vm.set_irq_line(line, value(bytes) != 0);
                return Some(set.map_err(failed("KVM_IRQ_LINE")));
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// A read of a port; false if the port is not of this device.
    pub(super) fn input(&self, port: u16, data: &mut [u8]) -> bool {
        match port {
            REGISTER..FLUSH => {
                data.fill(0xff);
                let from = &self.register[usize::from(port - REGISTER)..];
                data.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            FLUSH..BYTE | LINES..=LINES_END => data.fill(0),
            BYTE => data.fill(self.byte),
            _ => return false,
        }
        true
    }

    /// A write to an address; false if it is not of this device.
    pub(super) fn store(&mut self, at: u64, bytes: &[u8]) -> bool {
        let Some(place) = place(at) else { return false };
        self.memory[place..].iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        true
    }

    /// A read of an address; false if it is not of this device.
    pub(super) fn load(&self, at: u64, data: &mut [u8]) -> bool {
        let Some(place) = place(at) else { return false };
        data.fill(0);
        data.iter_mut().zip(&self.memory[place..]).for_each(|(to, from)| *to = *from);
        true
    }

    /// Takes a page away and gives it back, so that KVM's mapping of it is gone.
    fn flush(&self, at: usize) {
        let (start, size) = self.guest;
        let page = at & !(PAGE - 1);
        if page + PAGE > size {
            return;
        }
        // SAFETY: the page is within the guest's memory, which stays mapped; no reference to it is alive, and nobody accesses it meanwhile.
        unsafe {
            let page = start.add(page).cast();
            libc::mprotect(page, PAGE, libc::PROT_NONE);
            libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
        }
    }
}

fn place(at: u64) -> Option<usize> {
    let place = usize::try_from(at.checked_sub(MEMORY)?).ok()?;
    (place < MEMORY_BYTES).then_some(place)
}

fn value(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}
