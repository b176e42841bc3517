//! What accesses to memory cost in TLB misses, page walks and cache misses, on simulated processors.
//!
//! ```text
//!  record ──record──> accesses, tables ──tables──> the walk of each page ──model──> counts of each processor
//!                                          └──> its address == the emulator's, or the operation fails
//!  processors/*.toml ──processor──> sizes, latencies, each with its source
//! ```
//! The recorder (`crates/machine/recorders/qemu/memory.rs`) writes each access of one batch, the entries of the real tables of the guest and of KVM that translate
//! it, and what drops translations. Every access is translated by these tables, and must have the address that the emulator accessed.
//!
//! Left out: instruction fetches, accesses of the host between those of the guest, prefetchers, speculation, and whatever overlaps: cycles are sums of
//! latencies, which are the time of loads that depend on each other and of nothing else.

mod accessed;
mod layout;
mod model;
mod processor;
mod program;
mod record;
mod tables;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::thread::JoinHandle;

use crate::Error;
pub(crate) use accessed::Outcome;
pub use accessed::{InstructionPaging, Paging};
pub use layout::{FrameLayout, Frames};
pub use processor::Processor;
pub(crate) use program::{BYTES, RecordedCode};
pub use program::{ProgramGuest, SimulatedProgram};

/// What a run makes of files and records with these contents: a program within the memory of programs, each frame of a layout once, or a sentence.
///
/// # Panics
/// When one of these does not hold.
#[cfg(feature = "fuzz")]
pub fn check_files(bytes: &[u8]) {
    program::check(bytes);
    let read = record::read(bytes, Processor::all(), &mut BTreeMap::new());
    assert!(!read.is_err_and(|problem| problem.is_empty()));
    if let Ok(text) = std::str::from_utf8(bytes) {
        layout::check(text);
    }
}

/// A record that a separate thread reads while it is written.
pub(crate) struct Reading(JoinHandle<(BTreeMap<u16, Outcome>, Option<String>)>);

impl Reading {
    pub(crate) fn start(record: File) -> Result<Reading, Error> {
        let body = move || {
            let mut found = BTreeMap::new();
            let read = record::read(record, Processor::all(), &mut found);
            (found, read.err())
        };
        let thread = std::thread::Builder::new().name("accesses".to_owned()).spawn(body);
        thread.map(Reading).map_err(Error::io(Path::new("the record"), "start to read"))
    }

    /// Waits for the record's end, which comes at the latest when the emulator is gone.
    pub(crate) fn finish(self) -> Recorded {
        let failed = |_| (BTreeMap::new(), Some("its reader failed".to_owned()));
        let (found, problem) = self.0.join().unwrap_or_else(failed);
        Recorded { found, problem }
    }
}

/// A completely read record.
pub(crate) struct Recorded {
    found: BTreeMap<u16, Outcome>,
    problem: Option<String>,
}

impl Recorded {
    /// What an operation accessed.
    pub(crate) fn of(&self, number: u16) -> Outcome {
        let problem =
            || self.problem.clone().unwrap_or_else(|| "its batch is not in it".to_owned());
        let outcome = self.found.get(&number).cloned();
        outcome.unwrap_or_else(|| Err(format!("the record of its accesses: {}", problem())))
    }
}
