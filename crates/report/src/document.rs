//! What is shown, and what a renderer is.

use std::io;

use vmtax_analyse::{Diff, Ledger, Nested, Operations, SortedTable};

use crate::{budget, calls};

/// What a report shows.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where the data came from, as the user named it. Hostile text.
    pub source: String,
    pub tool_version: String,
    /// The whole ledger: headline, time split, timeline and losses come from it.
    pub ledger: Ledger,
    /// The tables asked for, in the order asked for.
    pub tables: Vec<SortedTable>,
    /// The operations of a lab run, when asked for. They come first.
    pub operations: Option<Operations>,
    /// The ancillary table, when asked for.
    pub nested: Option<Nested>,
    /// The call trees of a lab run's operations, when asked for.
    pub calls: Option<calls::ShownCalls>,
    /// How a lab run keeps its budget, when it has one. It comes first.
    pub budget: Option<budget::KeptBudget>,
}

/// A run that is compared or explained.
#[derive(Clone, Copy, Debug)]
pub struct RunSubject<'a> {
    /// Where it came from, as the user named it. Hostile text.
    pub source: &'a str,
    /// Facts of the recording; gaps are listed as losses.
    pub ledger: &'a Ledger,
}

impl<'a> RunSubject<'a> {
    /// The emulator that it was recorded on. Hostile text.
    pub fn emulated(&self) -> Option<&'a str> {
        self.ledger.recording.emulated.as_deref()
    }
}

/// What a comparison shows.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// What the other is compared with.
    pub base: RunSubject<'a>,
    /// What is compared.
    pub other: RunSubject<'a>,
    pub tool_version: &'a str,
    pub diff: Diff,
}

/// Writes a document in one format.
pub trait Renderer {
    /// Writes all of it. The caller flushes.
    fn render(&self, document: &Document, out: &mut dyn io::Write) -> io::Result<()>;
}

/// Writes a comparison in one format.
pub trait Compares {
    /// Writes all of it. The caller flushes.
    fn compare(&self, comparison: &Comparison<'_>, out: &mut dyn io::Write) -> io::Result<()>;
}
