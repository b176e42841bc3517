//! Exits of guests on an emulated arm64 host, counted in the emulator: QEMU logs every exception (`-d int`).
//!
//! ```text
//!  Taking exception 1 [Undefined Instruction] on CPU 0
//!  ...from EL1 to EL2
//!  ...with ESR 0x18/0x62300001        class/syndrome
//!  ...with FAR 0x10100000             of an abort
//!  ...with ELR 0x400000a0             where the guest was
//! Exception return from AArch64 EL2 to AArch64 EL1 PC 0x400000a4
//! ```
//! Host and guest are both below EL2. What EL2 returns to is the host where that is the place of its last exception or the instruction behind it, and otherwise a
//! guest, whose exceptions are exits until EL2 returns to the host. A guest's marks are stores to the addresses of their ports, which a program of a Linux guest
//! has at the same virtual ones. KVM's tracepoints are the host kernel's: an exit that code at EL2 handles by itself, as pKVM's does, has no event, and is here
//! all the same.
//!
//! Left out: guests' guests.

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
    /// Where the host was at its last exception to EL2.
    host: Option<u64>,
    /// EL2 has returned to a guest.
    in_guest: bool,
}

/// What is known of the exception whose lines are being read.
#[derive(Debug, Default)]
struct TakenException {
    is_interrupt: bool,
    is_to_el2: bool,
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
        if let Some(to) = line.strip_prefix("Exception return from AArch64 EL2 to AArch64 EL") {
            let to = to.split_once(" PC ").filter(|(level, _)| ["0", "1"].contains(level));
            let to = to.and_then(|(_, at)| hex(at));
            self.in_guest = self.host.zip(to).is_some_and(|(host, to)| !is_at(host, to));
            return;
        }
        if let Some(what) = line.strip_prefix("Taking exception ") {
            let is_interrupt = ["[IRQ]", "[FIQ]"].iter().any(|name| what.contains(name));
            self.taken = Some(TakenException { is_interrupt, ..TakenException::default() });
            return;
        }
        let (Some(taken), Some(more)) = (&mut self.taken, line.strip_prefix("...")) else {
            self.taken = None;
            return;
        };
        if ["from EL0 to EL2", "from EL1 to EL2"].contains(&more) {
            taken.is_to_el2 = true;
        } else if let Some(syndrome) = more.strip_prefix("with ESR ") {
            taken.class = syndrome.split('/').next().and_then(hex).unwrap_or(0) as u32;
        } else if let Some(address) = more.strip_prefix("with FAR ") {
            taken.address = hex(address);
        } else if let Some(at) = more.strip_prefix("with ELR ").and_then(hex) {
            let taken = self.taken.take().unwrap_or_default();
            if taken.is_to_el2 && self.in_guest && self.host != Some(at) {
                self.exit(&taken);
            } else if taken.is_to_el2 {
                self.host = Some(at);
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

/// Whether EL2 returns to where the host was: to its instruction, or to the next one of an access that is done.
fn is_at(host: u64, to: u64) -> bool {
    to == host || to == host + 4
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the host calls EL2 to run its guest, and where the guest is.
    const HOST: u64 = 0xffff_8000_0000_1000;
    const GUEST: u64 = 0xffff_8000_0000_2000;

    /// An exception as QEMU 11.1.3 logs it, from one place, and the return to another.
    fn taken(name: &str, class: u32, far: Option<u64>, (from, to): (u64, u64)) -> String {
        let far = far.map_or_else(String::new, |far| format!("...with FAR {far:#x}\n"));
        format!(
            "Taking exception 4 [{name}] on CPU 0\n...from EL1 to EL2\n...with ESR {class:#x}/0x93c08007\n{far}...with SPSR 0x3c5\n\
             ...with ELR {from:#x}\n...to EL2 PC 0xbb44ae14c5400 PSTATE 0x4023c9\nException return from AArch64 EL2 to AArch64 EL1 PC {to:#x}\n"
        )
    }

    #[test]
    fn exits_of_the_last_batch_are_counted_between_its_marks() {
        let enter = || taken("Hypervisor Call", 0x16, None, (HOST, GUEST));
        // The host sees it, and lets the guest go on.
        let seen = |name, class, far| taken(name, class, far, (GUEST, HOST)) + &enter();
        let mark = |port| seen("Data Abort", 0x24, Some(arm::address(port)));
        let hidden = |class| taken("Undefined Instruction", class, None, (GUEST, GUEST + 4));
        let psci = "Taking exception 13 [Secure Monitor Call] on CPU 0\n...from EL1 to EL3\n...with ESR 0x17/0x5e000000\n...handled as PSCI call\n";
        let log = [
            // The host's own: a call, and an access to memory that EL2 maps.
            taken("Hypervisor Call", 0x16, None, (HOST - 0x100, HOST - 0x100)),
            enter(),
            hidden(0x16),
            mark(layout::begin(7)),
            hidden(0x18),
            mark(layout::end(7)),
            mark(layout::begin(7)),
            hidden(0x18),
            taken("Data Abort", 0x24, Some(0x4000_1000), (GUEST, HOST)),
            taken("Data Abort", 0x24, Some(0x4000_1000), (HOST + 0x40, HOST + 0x40)),
            taken("Secure Monitor Call", 0x17, None, (HOST + 0x80, HOST + 0x84)),
            enter(),
            psci.to_owned(),
            hidden(0x18),
            seen("IRQ", 0x18, None),
            mark(layout::end(7)),
            hidden(0x18),
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
