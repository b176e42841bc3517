//! The run folder: a folder that holds one recording, import or lab run with everything needed to
//! read it again.
//!
//! [`RunWriter`] makes one, [`Run`] reads one. A run is a manifest (`run.json`, [`Manifest`]) and
//! segments: plain Parquet files of at most some 64k rows, one folder per [`StoredTable`]. The manifest is
//! the commit point: a segment is written to a file without a name, synced, named, and only then
//! listed with its size and checksum. So a crash, a kill or a full disk costs the rows that were
//! not yet in a listed segment and nothing else, and what is there reads. A [`Claim`] is a run folder's lock: it is taken before
//! anything is looked at or written, so a run has one writer. `FORMAT.md` beside this
//! crate describes the files for readers that are not this crate.
//!
//! Left out on purpose: reading captures, deriving anything (names, causes, shares of time), and
//! printing. Rows are stored as the accounting emits them.

mod claim;
mod column;
mod created;
mod error;
mod event_table;
mod manifest;
mod profile_path;
mod rows;
mod run;
mod schema;
mod segment;
mod stacks;
mod table;
mod word;
mod writer;

pub use claim::{Claim, remove_empty_run};
pub use created::rfc3339;
pub use error::Error;
pub use manifest::{Accelerator, FORMAT_VERSION, MANIFEST, Manifest, Segment, Span};
pub use run::{ReadReport, Run, is_run};
pub use table::StoredTable;
pub use writer::{CreateOptions, RunWriter, SEGMENT_EVENTS, SEGMENT_ROWS};
