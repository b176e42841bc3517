//! Exits of bare guests on an emulated arm64 host, counted in the emulator: QEMU logs every exception (`-d int`).
//!
//! ```text
//!  Taking exception 1 [Undefined Instruction] on CPU 0
//!  ...from EL1 to EL2
//!  ...with ESR 0x18/0x62300001        class/syndrome
//!  ...with FAR 0x10100000             of an abort
//!  ...with ELR 0x400000a0             where the guest was
//! ```
//! A guest has its MMU off, so its addresses are those of [`vmtax_guest::layout::arm`], where no kernel is; its marks are stores. KVM's tracepoints
//! are the host kernel's: an exit that code at EL2 handles by itself, as pKVM's does, has no event, and is here all the same.
//!
//! Left out: guests' guests, and guests with an MMU.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use vmtax_events::{Isa, Reason, arm as classes};
use vmtax_guest::layout::{self, arm};

use crate::Error;

/// What QEMU is told; the first descriptor that it gets is where the log goes.
pub(crate) const ARGUMENTS: [&str; 4] = ["-d", "int", "-D", "/proc/self/fd/{fd0}"];

/// Exits by reason.
pub(crate) type CountedExits = BTreeMap<Reason, u64>;

/// A log that is read while it is written.
#[derive(Debug)]
pub(crate) struct ExceptionReading(JoinHandle<io::Result<Exceptions>>);

/// The exits of the last batch of each operation.
#[derive(Debug, Default)]
pub(crate) struct Exceptions {
    batches: HashMap<u16, CountedExits>,
    /// The batch that has begun and not ended.
    open: Option<(u16, CountedExits)>,
    taken: Option<TakenException>,
}

/// What is known of the exception whose lines are being read.
#[derive(Debug, Default)]
struct TakenException {
    is_interrupt: bool,
    is_guest_exit: bool,
    class: u32,
    address: Option<u64>,
}

impl ExceptionReading {
    /// Starts to read; the descriptor is for the emulator, and the log ends with it.
    pub(crate) fn start() -> io::Result<(ExceptionReading, OwnedFd)> {
        let (from, into) = io::pipe()?;
        let read = move || Exceptions::read(BufReader::new(File::from(OwnedFd::from(from))));
        let thread = std::thread::Builder::new().name("exceptions".to_owned()).spawn(read)?;
        Ok((ExceptionReading(thread), into.into()))
    }

    /// The counts, when the emulator has ended.
    pub(crate) fn finish(self) -> Result<Exceptions, Error> {
        let read = self.0.join().unwrap_or_else(|_| Err(io::Error::other("its reader ended")));
        let problem =
            |e: io::Error| Error::Report { problem: format!("the log of exceptions: {e}") };
        read.map_err(problem)
    }
}

impl Exceptions {
    fn read(mut log: impl BufRead) -> io::Result<Exceptions> {
        let mut exceptions = Exceptions::default();
        let mut line = Vec::new();
        while log.read_until(b'\n', &mut line)? > 0 {
            exceptions.line(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
        Ok(exceptions)
    }

    /// Of an operation's last batch; `None` if no batch of it ended.
    pub(crate) fn of(&self, operation: u16) -> Option<&CountedExits> {
        self.batches.get(&operation)
    }

    fn line(&mut self, line: &str) {
        if let Some(what) = line.strip_prefix("Taking exception ") {
            let is_interrupt = ["[IRQ]", "[FIQ]"].iter().any(|name| what.contains(name));
            self.taken = Some(TakenException { is_interrupt, ..TakenException::default() });
            return;
        }
        let (Some(taken), Some(more)) = (&mut self.taken, line.strip_prefix("...")) else {
            self.taken = None;
            return;
        };
        if more == "from EL1 to EL2" {
            taken.is_guest_exit = true;
        } else if let Some(syndrome) = more.strip_prefix("with ESR ") {
            taken.class = syndrome.split('/').next().and_then(hex).unwrap_or(0) as u32;
        } else if let Some(address) = more.strip_prefix("with FAR ") {
            taken.address = hex(address);
        } else if let Some(at) = more.strip_prefix("with ELR ").and_then(hex) {
            let taken = self.taken.take().unwrap_or_default();
            let of_guest = arm::MEMORY..arm::MEMORY + arm::BYTES as u64;
            if taken.is_guest_exit && of_guest.contains(&at) {
                self.exit(&taken);
            }
        }
    }

    fn exit(&mut self, taken: &TakenException) {
        let port = taken.address.filter(|_| taken.class == classes::DABT_LOW).and_then(arm::port);
        match port.and_then(layout::mark) {
            Some((operation, true)) => self.open = Some((operation, CountedExits::new())),
            Some((_, false)) => {
                self.batches.extend(self.open.take());
            }
            None => {
                let code = if taken.is_interrupt { classes::IRQ } else { taken.class };
                let reason = Reason { isa: Isa::Arm, code, flags: 0 };
                if let Some((_, exits)) = &mut self.open {
                    *exits.entry(reason).or_default() += 1;
                }
            }
        }
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exception as QEMU 11.1.3 logs it.
    fn taken(name: &str, class: u32, far: Option<u64>, elr: u64) -> String {
        let far = far.map_or_else(String::new, |far| format!("...with FAR {far:#x}\n"));
        format!(
            "Taking exception 4 [{name}] on CPU 0\n...from EL1 to EL2\n...with ESR {class:#x}/0x93c08007\n{far}...with SPSR 0x3c5\n\
             ...with ELR {elr:#x}\n...to EL2 PC 0xbb44ae14c5400 PSTATE 0x4023c9\nException return from AArch64 EL2 to AArch64 EL1 PC {elr:#x}\n"
        )
    }

    #[test]
    fn exits_of_the_last_batch_are_counted_between_its_marks() {
        let at = arm::MEMORY + 0x80;
        let mark = |port| taken("Data Abort", 0x24, Some(arm::address(port)), at);
        let exit = |class| taken("Undefined Instruction", class, None, at);
        let psci = "Taking exception 13 [Secure Monitor Call] on CPU 0\n...from EL1 to EL3\n...with ESR 0x17/0x5e000000\n...handled as PSCI call\n";
        let log = [
            exit(0x16),
            mark(layout::begin(7)),
            exit(0x18),
            mark(layout::end(7)),
            mark(layout::begin(7)),
            exit(0x18),
            exit(0x18),
            // The host's own, and one that no line says the place of.
            taken("Hypervisor Call", 0x16, None, 0xffff_8000_0000_1000),
            psci.to_owned(),
            taken("IRQ", 0x18, None, at),
            taken("Data Abort", 0x24, Some(arm::address(layout::DEVICE_PORT)), at),
            mark(layout::end(7)),
            exit(0x18),
            mark(layout::begin(8)),
        ];
        let found = Exceptions::read(log.concat().as_bytes()).unwrap();
        let counts: Vec<(String, u64)> =
            found.of(7).unwrap().iter().map(|(r, n)| (r.name().into_owned(), *n)).collect();
        let expected = [("SYS64", 2), ("DABT_LOW", 1), ("IRQ", 1)];
        assert_eq!(counts, expected.map(|(name, n)| (name.to_owned(), n)));
        assert_eq!(found.of(8), None);
    }
}
