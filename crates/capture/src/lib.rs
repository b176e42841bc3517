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
//! [`posted`] restores texts from mail and web pages before a format is recognised.
//! [`observed`] reads texts of ordinary tools.
//! [`profile`] and [`stats`] read profiles and counters, which a run can contain in addition to a recording; [`program`] reads what
//! benchmark programs print.

pub mod error;
pub mod feed;
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
pub use feed::{Feed, Mode, Profiled, Sink};
pub use import::{Format, Imported, Options, Source};
