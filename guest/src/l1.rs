//! The conversation with the program in L1, the Linux guest that nests: requests in and answers out through its VMM's port, each with its length
//! before it; and the end of its console.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vmtax_guest::mailbox::{REPORT, SECTOR, SECTORS};
use vmtax_guest::order::{
    LifeStep, LinuxWork, Operation, Order, OrderOutcome, Report, decode, encode,
};

use crate::trace::Tracer;
use crate::{Result, system};

/// Its kernel, as the VMM loads it.
pub(crate) const KERNEL: &str = "/l1/vmlinux";
/// Its initramfs.
pub(crate) const INITRAMFS: &str = "/l1/initramfs";
/// Its command line.
pub(crate) const COMMAND_LINE: &str = "/l1/command_line";
/// Emulated time that booting may take.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Bytes of reports that wait to be handed on: what the mailbox has room for.
const REPORTS_MOST: usize = (SECTORS - REPORT) as usize * SECTOR;
/// Reports that wait. A guest sends one, and that it is up.
const REPORTS_HELD: usize = 16;
/// Emulated time that an order may take.
const ORDER_LIMIT: Duration = Duration::from_secs(600);

/// The caller's end.
pub(crate) struct L1Line {
    orders: Sender<Vec<u8>>,
    reports: Receiver<Result<Vec<u8>>>,
    console: ConsoleTail,
    tracer: Arc<Mutex<Option<Tracer>>>,
}

/// The VMM's end.
pub(crate) struct L1Port {
    waiting: Receiver<Vec<u8>>,
    outgoing: VecDeque<u8>,
    incoming: Vec<u8>,
    held: Vec<Vec<u8>>,
    answer: Sender<Result<Vec<u8>>>,
    tracer: Arc<Mutex<Option<Tracer>>>,
}

/// Both ends.
pub(crate) fn conversation(console: ConsoleTail) -> (L1Line, L1Port) {
    let (orders, waiting) = channel();
    let (answer, reports) = channel();
    let tracer = Arc::new(Mutex::new(None));
    let line = L1Line { orders, reports, console, tracer: Arc::clone(&tracer) };
    let port = L1Port {
        waiting,
        outgoing: VecDeque::new(),
        incoming: Vec::new(),
        held: Vec::new(),
        answer,
        tracer,
    };
    (line, port)
}

impl L1Line {
    /// Waits until L1 has booted.
    pub(crate) fn booted(&self) -> Result<()> {
        self.up("booting L1")
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
        let mut message = (request.len() as u32).to_le_bytes().to_vec();
        message.extend(request);
        self.orders.send(message).map_err(|_| "L1 ended".to_owned())?;
        let answer = self.report(limit, "an order to L1")?;
        // L1 asks for its next order.
        self.up("L1 after an order")?;
        Ok((answer, lock(&self.tracer).take().unwrap_or(Tracer::Off)))
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

/// What the guest writes is handed over when it reads: then it stands still until there is an order, and the machine can be
/// saved. QEMU restores none that was saved while a guest ran.
impl L1Port {
    /// The guest writes.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
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

    /// Whether a guest that reads will wait for an order.
    pub(crate) fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// The guest reads: it waits here until there is an order; `waits` hears of that before and after. False if none will come.
    pub(crate) fn send(&mut self, bytes: &mut [u8], waits: &dyn Fn(bool)) -> bool {
        for byte in bytes {
            if self.outgoing.is_empty() {
                waits(true);
                self.hand_over();
                match self.waiting.recv() {
                    Ok(order) => self.outgoing.extend(order),
                    Err(_) => return false,
                }
                waits(false);
            }
            *byte = self.outgoing.pop_front().unwrap_or_default();
        }
        true
    }

    /// What the guest has written so far.
    pub(crate) fn hand_over(&mut self) {
        for report in self.held.drain(..) {
            let _ = self.answer.send(Ok(report));
        }
    }

    /// Tells the other end what happens when the guest ends.
    pub(crate) fn answers(&self) -> Sender<Result<Vec<u8>>> {
        self.answer.clone()
    }

    /// The tracer of the order that is carried out.
    pub(crate) fn tracer(&self) -> Arc<Mutex<Option<Tracer>>> {
        Arc::clone(&self.tracer)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The console's last bytes.
#[derive(Clone, Default)]
pub(crate) struct ConsoleTail(Arc<Mutex<VecDeque<u8>>>);

impl ConsoleTail {
    pub(crate) fn end(&self) -> String {
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

/// Whether an operation is a step of a life, and whether that is a boot, which is no life's.
fn kind_of(operation: &Operation) -> (bool, bool) {
    (operation.step.is_some(), operation.step == Some(LifeStep::BootLinux))
}

/// What is wrong with an order for a guest that was not booted.
pub(crate) const NO_L1: &str =
    "an operation in L2 was ordered, and this host was booted without L1";

/// All operations once, each at its level, in order: those of L1 here, those of L2 by the guest that has them. Gives the tracer back.
pub(crate) fn by_level(
    order: &Order,
    mut tracer: Tracer,
    mut here: impl FnMut(&[Operation], &Tracer, bool) -> Vec<OrderOutcome>,
    guest: Option<impl Fn(&Order, Tracer) -> Result<(Report, Tracer)>>,
) -> Result<(Vec<OrderOutcome>, Tracer)> {
    let record = !matches!(tracer, Tracer::Off);
    let mut outcomes = Vec::new();
    let kind = |one: &Operation| {
        (one.level, kind_of(one), one.linux.map(|work| matches!(work, LinuxWork::Perf(_))))
    };
    let alike = |a: &Operation, b: &Operation| kind(a) == kind(b);
    for run in order.operations.chunk_by(alike) {
        if run[0].level < 2 && run[0].linux.is_none() {
            outcomes.extend(here(run, &tracer, record));
            continue;
        }
        let guest = guest.as_ref().ok_or(NO_L1)?;
        let inner = Order { operations: run.to_vec(), trace: record, ..Order::default() };
        let (report, back) = guest(&inner, tracer)?;
        tracer = back;
        let numbers = run.iter().map(|operation| operation.number);
        report.check(numbers).map_err(|problem| format!("L1: {problem}"))?;
        outcomes.extend(report.outcomes);
    }
    Ok((outcomes, tracer))
}
