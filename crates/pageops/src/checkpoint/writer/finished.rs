//! A checkpoint that is complete and not yet published.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use vmtax_durable::NewFile;

use crate::checkpoint::error::{DamageReason, Error};
use crate::checkpoint::format::{CheckpointId, TRAILER};
use crate::checkpoint::latest::Sort;
use crate::checkpoint::meter::{CheckpointCosts, TimedFile};

/// Counts of a written checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the file.
    pub bytes: u64,
    /// Pages stored uncompressed.
    pub raw: u64,
    /// Pages compressed.
    pub compressed: u64,
    /// Pages as deltas.
    pub deltas: u64,
    /// Pages of one repeated word.
    pub filled: u64,
    /// Pages given that are zero.
    pub zero: u64,
    /// Pages given that equal the parent's.
    pub unchanged: u64,
}

impl Summary {
    pub(super) fn count(&mut self, sort: Sort) -> &mut u64 {
        match sort {
            Sort::Raw => &mut self.raw,
            Sort::Compressed => &mut self.compressed,
            Sort::Delta => &mut self.deltas,
            Sort::Filled => &mut self.filled,
            Sort::Zero => &mut self.zero,
            Sort::Unchanged => &mut self.unchanged,
        }
    }
}

/// A complete and synced checkpoint without a name. If dropped, nothing is left.
#[derive(Debug)]
#[must_use = "the checkpoint is gone unless it is published"]
pub struct FinishedCheckpoint {
    pub(super) target: FinishedTarget,
    pub(super) path: PathBuf,
    pub(super) summary: Summary,
    pub(super) costs: CheckpointCosts,
    pub(super) id: CheckpointId,
}

impl FinishedCheckpoint {
    /// Counts of a written checkpoint.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Costs of the writer.
    pub fn costs(&self) -> CheckpointCosts {
        self.costs
    }

    /// Its id.
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// Publishes it atomically, replacing a file of this name; or ends the stream.
    pub fn publish(self) -> Result<(), Error> {
        let FinishedCheckpoint { target, path, .. } = self;
        let done = match target {
            FinishedTarget::File(new) => new.publish().map(drop),
            FinishedTarget::Stream(stream) => {
                let (mut out, end) = *stream;
                out.write_all(&end).and_then(|()| out.flush())
            }
        };
        done.map_err(|e| Error { path, reason: DamageReason::Io(e) })
    }
}

/// Destination of a finished checkpoint.
#[derive(Debug)]
pub(super) enum FinishedTarget {
    File(NewFile),
    /// With the trailer.
    Stream(Box<(BufWriter<TimedFile>, [u8; TRAILER as usize])>),
}
