//! Records of the library inside Bochs.

use vmtax_guest::layout;

use super::{AFTER_GUEST, FIRST, LAST, RUN};

/// Exit reasons.
pub const CPUID: u32 = 10;
pub const PORT: u32 = 30;
/// Exit codes.
pub const SVM_CPUID: u32 = 0x72;
pub const SVM_PORT: u32 = 0x7b;

/// A record that is written, with the clock as Bochs has it.
pub struct BochsRecord {
    pub bytes: Vec<u8>,
    pub address: u64,
    pub tsc: u64,
    pub clock: Option<u8>,
    /// Of a processor with SVM.
    pub svm: bool,
}

impl BochsRecord {
    /// From the mark that starts it on: the host has left its guest.
    pub fn new() -> BochsRecord {
        BochsRecord::with(false)
    }

    /// The same of a processor with SVM or VMX.
    pub fn with(svm: bool) -> BochsRecord {
        let mut bytes = b"VMTAXBCH".to_vec();
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        let mut record = BochsRecord { bytes, address: 0, tsc: 1000, clock: None, svm };
        record.put(0xa3, &1000_u64.to_le_bytes());
        record.writes(layout::PREPARE);
        record
    }

    /// From the mark on that a program of the host writes at this address.
    pub fn of_host(address: u64) -> BochsRecord {
        let mut record = BochsRecord::new();
        record.bytes.truncate(16);
        record.host_writes(layout::PREPARE);
        record.clock = Some(0xa3);
        record.address = address;
        record
    }

    /// The host's last instruction writes to this port.
    pub fn host_writes(&mut self, port: u16) {
        self.put(0xa6, &port.to_le_bytes());
    }

    pub fn put(&mut self, word: u8, more: &[u8]) {
        self.bytes.push(word);
        self.bytes.extend(more);
    }

    /// Instructions begin, a byte apart.
    pub fn run(&mut self, address: u64, count: u64) {
        if let Some(word) = self.clock.take() {
            self.put(word, &self.tsc.to_le_bytes());
        }
        for address in address..address + count {
            let step = address.wrapping_sub(self.address);
            match (u8::try_from(step), i32::try_from(step.cast_signed())) {
                (Ok(step @ 0..0x80), _) => self.bytes.push(step),
                (_, Ok(step)) => self.put(0x80, &step.to_le_bytes()),
                _ => self.put(0x81, &address.to_le_bytes()),
            }
            self.address = address;
            self.tsc += 1;
        }
    }

    pub fn branch(&mut self, kind: u8, slot: u64) {
        self.put(0x90 + kind - 12, &slot.to_le_bytes());
    }

    pub fn leaves(&mut self, reason: u32, qualification: u64) {
        self.put(if self.svm { 0xa5 } else { 0xa0 }, &reason.to_le_bytes());
        self.bytes.extend(qualification.to_le_bytes());
        self.clock = Some(0xa3);
    }

    pub fn writes(&mut self, port: u16) {
        self.leaves(if self.svm { SVM_PORT } else { PORT }, u64::from(port) << 16);
    }

    pub fn enters(&mut self) {
        self.bytes.push(0xa1);
    }

    /// The host after an exit: this many instructions, and the one that enters.
    pub fn host(&mut self, count: u64) {
        self.run(AFTER_GUEST, 1);
        self.run(RUN, count);
        self.run(RUN + 0x100, 1);
        self.enters();
    }

    /// From the mark to the clock.
    pub fn begin(&mut self) {
        self.host(0);
        self.run(layout::CODE + 1, 1);
        self.writes(layout::begin(0));
        self.host(0);
        self.run(FIRST, 1);
    }

    pub fn end(&mut self) -> Vec<u8> {
        self.run(LAST, 1);
        self.run(LAST + 2, 1);
        let mut bytes = self.bytes.clone();
        bytes.push(0xff);
        bytes
    }
}
