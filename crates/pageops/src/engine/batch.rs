//! Operations that go to a queue together, with their descriptors and records at places that do not move.

use std::time::Instant;

use super::Op;
use crate::device::{Completion, CompletionRecord, Descriptor, opcode};

/// An operation that waits for its turn; `tag` is given back with its outcome.
pub(super) struct WaitingOperation {
    pub(super) op: Op,
    pub(super) tag: u64,
}

/// A batch, or a single operation.
pub(super) struct Batch {
    pub(super) ops: Vec<WaitingOperation>,
    pub(super) bytes: u64,
    pub(super) deadline: Instant,
    /// What the queue gets: the batch, or the only operation.
    descriptor: Descriptor,
    /// What the batch lists.
    _list: Box<[Descriptor]>,
    /// One for each operation.
    records: Box<[CompletionRecord]>,
    /// The batch's own.
    record: Box<CompletionRecord>,
}

impl Batch {
    pub(super) fn new(ops: Vec<WaitingOperation>, deadline: Instant) -> Batch {
        let records: Box<[CompletionRecord]> =
            ops.iter().map(|_| CompletionRecord::default()).collect();
        let list: Box<[Descriptor]> =
            ops.iter().zip(&records).map(|(w, record)| w.op.descriptor(record)).collect();
        let record = Box::new(CompletionRecord::default());
        let bytes = ops.iter().map(|w| w.op.bytes() as u64).sum();
        let descriptor = match &*list {
            [only] => *only,
            list => Descriptor {
                src: list.as_ptr().expose_provenance() as u64,
                size: list.len() as u32,
                ..Descriptor::new(opcode::BATCH, &*record)
            },
        };
        Batch { ops, bytes, deadline, descriptor, _list: list, records, record }
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The record that ends it.
    pub(super) fn record(&self) -> &CompletionRecord {
        match &*self.records {
            [only] => only,
            _ => &self.record,
        }
    }

    /// What became of each operation.
    pub(super) fn completions(&self) -> impl Iterator<Item = Option<Completion>> {
        self.records.iter().map(CompletionRecord::read)
    }
}
