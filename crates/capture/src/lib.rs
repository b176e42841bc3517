//! Bytes of a recording -> events in time order.
//!
//! An importer is a function of bytes: it looks nothing up in the running kernel and prints nothing.
//! It passes decoded events to a [`Feed`]; [`order::Sorter`] is the only place that sorts.
//!
//! ```text
//!  bytes ──> import::{perf_data, trace_dat, text...} ──Feed──> order::Sorter ──Sink──> analysis
//!                 decode thread                                analysis thread
//! ```
//!
//! A binary importer finds tracepoint fields by name in the formats that the recording carries, once per tracepoint; each record then
//! follows a plan of offsets. Recordings are decoded on several threads (`workers`): blocks of perf.data, pieces of a CPU's data of
//! trace.dat, blocks of whole lines of texts; the importer applies the results in their order. A block of perf.data may begin within a
//! record: each block guesses where its first record starts; the guess is verified when the previous block is applied, and the block
//! is decoded again if it was wrong. Without threads the same code runs in turn, and a test compares both.
//! Memory is bounded by the window between two calls of [`Feed::release`].
//!
//! [`posted`] restores texts from mail and web pages before a format is recognised.
//! [`observed`] reads texts of ordinary tools, [`figures`] results by set-up as people post them.
//! [`profile`] and [`stats`] read profiles and counters, which a run can contain in addition to a recording; [`program`] reads what
//! benchmark programs print.

pub mod error;
pub mod feed;
pub mod figures;
pub mod import;
pub mod observed;
pub mod order;
pub mod pipeline;
pub mod posted;
pub mod profile;
pub mod program;
pub mod source;
pub mod stats;
mod workers;

pub use error::Error;
pub use feed::{Feed, Mode, ProfileRecord, Sink};
pub use import::{ImportFormat, ImportOptions, ImportSource, Imported};
