//! Call trees of operations: turns the record of a recorder inside the emulator into instructions by function.
//!
//! ```text
//!  record ──tcg, bochs──> what happens ──flow──> who executes, on whose behalf ──tree──> batches ──check──> rows
//!             symbols, source: functions and lines by address
//! ```
//! A batch is everything that the machine executes between two readings of the clock, by a payload or, of a step of a VM's life, by the VMM;
//! or, of a workload of a VM, by the program that has it carried out: then all levels have trees of their own. The clock counts instructions,
//! so it checks the tree: each batch of each operation must have exactly as many instructions as the clock says, or there is no tree.
//!
//! Left out: the recorders (`crates/recorder-*`), how they get into the emulator (`vmtax-machine`), pictures.

mod bochs;
mod code;
mod flow;
#[cfg(any(test, feature = "fuzz"))]
pub mod imagined;
mod rows;
mod source;
mod stacks;
mod symbols;
mod tcg;
mod tree;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use vmtax_guest::functions::HostKernels;
use vmtax_guest::layout;
use vmtax_guest::order::decode;
use vmtax_machine::Marks;

use crate::{Error, host};
use flow::{BatchTree, Flow};
use symbols::{is_user, levels};
use tree::LabelList;
use words::StreamWords;

pub(crate) use rows::OperationMeasure;
pub use rows::OperationProfile;
pub(crate) use source::DebugSource;
use source::SourceLines;
pub(crate) use symbols::LevelSymbols;

/// Limit on nodes of a tree, more than any batch has.
const NODES_MOST: usize = 1 << 20;
/// Limit on nodes of all batches, more than any run has.
const ALL_NODES_MOST: usize = 1 << 24;

/// Starts a record that contains only the reason why nothing was recorded.
const REFUSAL: [u8; 8] = *b"VMTAXERR";
const REFUSAL_MOST: u32 = 1024;

/// A defect of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordProblem {
    /// Byte offset in the record.
    pub(crate) at: u64,
    /// What.
    pub(crate) what: String,
}

impl std::fmt::Display for RecordProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {} of the record: {}", self.at, self.what)
    }
}

/// An operation, as far as reading a record needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocked {
    /// Of its payload, or of the program whose step it is.
    pub(crate) level: u8,
    pub(crate) clock: BatchClock,
}

/// Who reads the clock before a batch, and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchClock {
    /// A payload, at these two addresses.
    Payload(u64, u64),
    /// A program, between its marks, and nowhere else there.
    Program,
    /// A program, right after each of its marks: the batch is all that the machine executes for a workload.
    Workload,
    /// The same, by the VMM's thread that runs the guest with the workload.
    Vmm,
}

impl BatchClock {
    /// Whether the batch is all that the machine executes for a workload.
    pub(crate) fn is_of_workload(self) -> bool {
        matches!(self, BatchClock::Workload | BatchClock::Vmm)
    }
}

/// The batches of a record.
pub(crate) struct RecordBatches {
    marks: Marks,
    operations: BTreeMap<u16, Clocked>,
    labels: LabelList,
    lines: SourceLines,
    /// Processors of the host that executed something beside one of them.
    others: u64,
    /// The operation between whose marks the reader is.
    current: Option<u16>,
    /// Idle time when the current batch began, if it is recorded.
    idle: Option<u64>,
    open: bool,
    /// What follows the last mark.
    after_mark: u64,
    nodes: usize,
    done: BTreeMap<u16, Vec<DoneBatch>>,
}

/// A finished batch.
#[derive(Debug)]
pub(crate) struct DoneBatch {
    batch: BatchTree,
    /// The node of the payload that reads the clock.
    payload: Option<u32>,
    /// Nanoseconds without instructions, where they are recorded.
    idle: Option<u64>,
}

impl RecordBatches {
    pub(crate) fn new(
        marks: Marks,
        operations: BTreeMap<u16, Clocked>,
        lines: SourceLines,
    ) -> RecordBatches {
        RecordBatches {
            marks,
            operations,
            lines,
            labels: LabelList::default(),
            others: 0,
            current: None,
            idle: None,
            open: false,
            after_mark: 0,
            nodes: 0,
            done: BTreeMap::new(),
        }
    }

    /// A payload is about to write a mark; what follows it is at this address.
    fn mark(&mut self, port: u32, next: u64) {
        let mark = u16::try_from(port).ok().and_then(layout::mark);
        self.after_mark = next;
        match mark {
            Some((operation, true)) => (self.current, self.open) = (Some(operation), false),
            Some((_, false)) if self.clock_of_current().is_some_and(BatchClock::is_of_workload) => {
            }
            Some((_, false)) | None => self.current = None,
        }
    }

    fn clock_of_current(&self) -> Option<BatchClock> {
        let operation = self.current.and_then(|number| self.operations.get(&number));
        operation.map(|one| one.clock)
    }

    /// Whether the current operation's payload or program reads the clock there.
    fn is_clock(&self, address: u64) -> bool {
        self.clock_of_current().is_some_and(|clock| match clock {
            BatchClock::Payload(before, after) => [before, after].contains(&address),
            BatchClock::Program => is_user(address),
            BatchClock::Workload | BatchClock::Vmm => address == self.after_mark,
        })
    }

    /// A payload or program has read the clock.
    fn clock(&mut self, flow: &mut Flow<'_>, address: u64, idle: Option<u64>) {
        let Some(number) = self.current else { return };
        let Some(operation) = self.operations.get(&number) else { return };
        if flow.level() != operation.level {
            return;
        }
        let (begins, ends) = match operation.clock {
            BatchClock::Payload(before, after) => (address == before, address == after),
            BatchClock::Program | BatchClock::Workload | BatchClock::Vmm => (!self.open, true),
        };
        if begins {
            flow.begin(operation.level, operation.clock);
            self.idle = idle;
            self.open = true;
        } else if ends && std::mem::take(&mut self.open) {
            let payload = flow.last();
            let Some(batch) = flow.end() else { return };
            self.nodes += batch.tree.nodes.len();
            let idle = idle.zip(self.idle).map(|(now, then)| now.saturating_sub(then));
            let batches = self.done.entry(number).or_default();
            // A run has no more batches than that, and no record more nodes.
            if batches.len() < layout::BATCHES_MOST as usize && self.nodes < ALL_NODES_MOST {
                batches.push(DoneBatch { batch, payload, idle });
            }
        }
    }
}

/// Reads a record; its first bytes tell which recorder wrote it.
pub(crate) fn read_record(
    input: impl Read,
    symbols: &[LevelSymbols; 3],
    batches: &mut RecordBatches,
) -> Result<(), RecordProblem> {
    let mut words = StreamWords::new(input);
    match words.double()?.to_le_bytes() {
        tcg::MAGIC => tcg::read(words, symbols, batches),
        bochs::MAGIC => bochs::read(words, symbols, batches),
        REFUSAL => {
            let length = words.next()?.min(REFUSAL_MOST) as usize;
            let why = String::from_utf8_lossy(&words.bytes(length)?).into_owned();
            Err(words.problem(&why))
        }
        _ => Err(words.problem("it is no record of vmtax's recorders")),
    }
}

/// What the host reported about its kernels.
fn kernels(told: &[u8]) -> Result<HostKernels, String> {
    decode(told).ok_or_else(|| "what the host said of its kernel's functions cannot be read".into())
}

/// A record that a separate thread reads while it is written.
pub(crate) struct RecordReading {
    thread: JoinHandle<(RecordBatches, Result<(), RecordProblem>)>,
    /// Shared with the thread.
    symbols: Arc<[LevelSymbols; 3]>,
}

impl RecordReading {
    pub(crate) fn start(
        made: host::HostRecord,
        operations: BTreeMap<u16, Clocked>,
        (sources, annotated): (&[DebugSource], &[String]),
    ) -> Result<RecordReading, Error> {
        let report = |problem| Error::Report { problem };
        let kernels = kernels(&made.kernels).map_err(report)?;
        let symbols = Arc::new(levels(&kernels, made.architecture).map_err(report)?);
        let is_missing =
            |name: &&String| symbols.iter().all(|level| level.id(name.as_str()).is_none());
        if let Some(function) = annotated.iter().find(is_missing) {
            return Err(Error::NoFunction { function: function.clone() });
        }
        let lines = SourceLines::new(sources, &kernels)?.annotating(annotated);
        let shared = Arc::clone(&symbols);
        let mut batches = RecordBatches::new(host::MARKS, operations, lines);
        let body = move || {
            let read = read_record(made.record, &shared, &mut batches);
            (batches, read)
        };
        let thread = std::thread::Builder::new()
            .name("record".to_owned())
            .spawn(body)
            .map_err(Error::io(Path::new("the record"), "start to read"))?;
        Ok(RecordReading { thread, symbols })
    }

    /// Waits for the record's end, which comes at the latest when the emulator is gone.
    pub(crate) fn finish(self) -> WholeRecord {
        let joined = self.thread.join();
        let (batches, problem) = match joined {
            Ok((batches, read)) => (Some(batches), read.err().map(|problem| problem.to_string())),
            Err(_) => (None, Some("its reader failed".to_owned())),
        };
        WholeRecord { batches, problem, symbols: self.symbols }
    }
}

/// A completely read record.
pub(crate) struct WholeRecord {
    batches: Option<RecordBatches>,
    problem: Option<String>,
    symbols: Arc<[LevelSymbols; 3]>,
}

impl WholeRecord {
    /// The call tree of an operation, or why there is none.
    pub(crate) fn profile(
        &self,
        measure: &OperationMeasure<'_>,
    ) -> Result<OperationProfile, String> {
        match (&self.batches, &self.problem) {
            (_, Some(problem)) => Err(problem.clone()),
            (Some(batches), None) => batches.profile(measure, &self.symbols),
            (None, None) => Err("nothing was recorded".to_owned()),
        }
    }
}
