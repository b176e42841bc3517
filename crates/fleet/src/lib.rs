//! Many hosts' runs as tables: one question to all of them.
//!
//! ```text
//! paths ──fleet──> runs, compacted days ──table──> DataFusion ──engine──> rows
//!                                            ^            └──cluster──> a Ballista scheduler ──> rows
//!                            guard, question ┘
//! ```
//!
//! [`fleet`] finds runs and reads what they say of themselves, in a [`folder`] of this machine or of one of the
//! [`stores`]; [`table`] makes tables of them, and leaves the files
//! of runs alone that a query does not want; [`engine`] is DataFusion with these tables, within limits; [`guard`]
//! lets nothing but reading through; [`question`] has the questions with names. [`compact`] makes few large files of
//! a day's many small ones.
//!
//! Left out on purpose: a query engine and anything distributed of our own (DataFusion and Ballista are that), and
//! deriving what `vmtax-analyse` derives of one run: here there is SQL.

#[cfg(feature = "cluster")]
pub mod cluster;
pub mod compact;
pub mod day;
pub mod engine;
pub mod fleet;
pub mod folder;
pub mod guard;
pub mod question;
pub mod run;
pub mod schema;
pub mod stores;
pub mod table;
mod types;
pub mod vocabulary;

pub use types::WrongType;
