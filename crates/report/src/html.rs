//! The report as one HTML file that opens without a network: for people, on a screen and on paper.
//!
//! Every section is a file of this folder and a function from a [`Document`] to markup. The style
//! sheet and the script are part of the page; a content security policy that names their hashes
//! lets nothing else run, so even a hole in the escaping could not execute what a trace says.
//! The script only sorts, filters, reads out and saves what is already in the page: without it every
//! figure is still there.
//!
//! Left out on purpose: analysis (the ledger has it), inline JSON (the script reads the table
//! cells), and anything fetched from elsewhere.

mod axis;
pub(crate) mod bench;
mod calls;
mod described;
mod diff;
mod digest;
mod explain;
mod figures;
mod flame;
mod frame;
mod headline;
pub mod heat;
mod histogram;
mod lines;
mod losses;
mod nested;
mod operations;
mod page;
mod published;
mod series;
mod source;
mod tables;
mod timeline;
mod traffic;
mod transfers;

use std::io;

pub use described::{TablePage, TableSection};
pub use flame::Picture;
pub(crate) use flame::difference;
pub use frame::MAX_ROWS;

use crate::explain::Explained;
use crate::{Compares, Comparison, Document, Renderer};

/// Writes a document as one self-contained HTML file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Html;

impl Compares for Html {
    fn compare(&self, comparison: &Comparison<'_>, out: &mut dyn io::Write) -> io::Result<()> {
        out.write_all(diff::page(comparison).into_string().as_bytes())?;
        out.write_all(b"\n")
    }
}

impl Html {
    /// Writes an explanation, with the flame graphs of the profiles that it rests on.
    pub fn explain(&self, explained: &Explained<'_>, out: &mut dyn io::Write) -> io::Result<()> {
        out.write_all(explain::page(explained).into_string().as_bytes())?;
        out.write_all(b"\n")
    }
}

impl Renderer for Html {
    fn render(&self, document: &Document, out: &mut dyn io::Write) -> io::Result<()> {
        out.write_all(page::page(document).into_string().as_bytes())?;
        out.write_all(b"\n")
    }
}
