//! Orders to the guest and its reports.

use serde::{Deserialize, Serialize};

/// What to do: operations in this order, then a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What to measure.
    pub operations: Vec<Operation>,
    /// Afterwards run each once more, and record KVM's tracepoints in one batch.
    pub trace: bool,
    /// Probes that are recorded with them, as written to `kprobe_events`. They belong to the system `vmtax`.
    pub probes: Vec<String>,
    /// A program that runs beside, and its arguments. It is interrupted at the end, and
    /// what it leaves in `/out` is among the report's files.
    pub observer: Vec<String>,
}

/// A bare payload that does one thing many times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Tells its marks apart from others': see [`crate::layout::begin`].
    pub number: u16,
    /// Its word in tables.
    pub name: String,
    /// In a guest of the emulated host (1) or in a guest of that guest (2).
    pub level: u8,
    /// Machine code: see [`crate::layout`].
    pub code: Vec<u8>,
    /// Where each further vCPU starts, as an offset into the code.
    pub entries: Vec<u32>,
    /// Batches, the warming-up one included.
    pub batches: u32,
    /// Operations in a batch.
    pub count: u32,
    /// Memory at [`crate::layout::TOUCH`] that is given back before each batch.
    pub touch: Option<Touch>,
    /// It leaves nothing behind but memory and registers, so it may run in the VM of others like it.
    pub shares: bool,
}

/// Memory to be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Bytes.
    pub bytes: u32,
    /// Backed by huge pages.
    pub huge: bool,
}

/// What came of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// One for each operation, in the order's order.
    pub outcomes: Vec<Outcome>,
    /// `uname -r`.
    pub release: String,
    /// The processor, as the host sees it.
    pub processor: String,
    /// Probes that the kernel did not take, with its answer.
    pub refused: Vec<String>,
    /// What follows the report in the mailbox, in this order.
    pub files: Vec<File>,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`Operation::number`].
    pub number: u16,
    /// Cycles of each batch.
    pub cycles: Vec<u64>,
    /// Why it could not be done.
    pub failure: Option<String>,
}

/// A file that follows the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path relative to the run.
    pub name: String,
    /// Bytes.
    pub length: u32,
}

/// To bytes.
///
/// # Panics
/// Never: these types have no part that cannot be written.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}

/// From bytes; `None` when they are something else.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
