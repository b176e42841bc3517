//! The runs of many hosts as SQL tables.
//!
//! ```text
//! paths ──fleet──> runs, compacted days ──table──> DataFusion ──engine──> rows
//!                                            ^            └──cluster──> a Ballista scheduler ──> rows
//!                                      guard ┘
//! ```
//!
//! [`fleet`] finds runs and reads their manifests, in a local [`folder`] or in one of the [`stores`]. [`table`] makes tables of them and
//! skips the files of runs that a query excludes. [`engine`] is DataFusion with these tables, within limits. [`guard`] admits only reading
//! statements. The predefined questions are `vmtax-questions`'s. [`compact`] merges a day's small files into few large ones.
//!
//! Left out on purpose: an own query engine (DataFusion and Ballista are used), and the analysis of single runs (`vmtax-analyse`).

#[cfg(feature = "cluster")]
pub mod cluster;
pub mod compact;
pub mod day;
pub mod engine;
pub mod fleet;
pub mod folder;
pub mod guard;
pub mod run;
pub mod schema;
pub mod stores;
pub mod table;
mod types;
pub mod unread;
pub mod vocabulary;

pub use types::WrongType;
