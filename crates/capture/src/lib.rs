//! Bytes of a recording -> events in time order.
//!
//! An importer is a function of bytes: it looks nothing up in the running kernel and prints nothing.
//! It hands what it decodes to a [`Feed`]; [`order::Sorter`] is the one place that sorts.
//!
//! ```text
//!  bytes ──> import::{perf_data, trace_dat, text...} ──Feed──> order::Sorter ──Sink──> analysis
//!                 decode thread                                analysis thread
//! ```
//!
//! [`profile`] and [`stats`] read what is no recording of events and belongs to a run beside one.

pub mod error;
pub mod feed;
pub mod import;
pub mod order;
pub mod pipeline;
pub mod profile;
pub mod source;
pub mod stats;

pub use error::Error;
pub use feed::{Feed, Mode, Profiled, Sink};
pub use import::{Format, Imported, Options, Source};
