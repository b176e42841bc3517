//! Events -> ledger: where a VM's time went, by cause.
//!
//! ```text
//!  events in time order ──> account::Accountant ──rows──> ledger::LedgerBuilder ──> ledger::Ledger
//!                                        │                        ▲                    │
//!                                        └──rows──> store ──rows──┘                    └──> table, nested, operations, statistics, diff, explain
//! ```
//!
//! [`audit`] puts settings (`vmtax_events::setting`) beside a ledger.
//!
//! A file and a run folder meet at the rows: both build the ledger from the same rows, so they give
//! the same ledger. This crate does no I/O and prints nothing.

pub mod account;
pub mod audit;
pub mod bench;
pub mod calls;
mod cause;
pub mod conclusions;
pub mod confidence;
pub mod diff;
mod emulation;
pub mod explain;
pub mod faults;
pub mod frames;
pub mod grouped;
pub mod host_pages;
pub mod ledger;
pub mod nested;
pub mod operations;
pub mod published;
pub mod reasons;
pub mod recorded;
pub mod remedy;
pub mod samples;
pub mod selftest;
pub mod starts;
pub mod statistics;
pub mod table;
pub mod timeline;
pub mod traffic;
pub mod vm_facts;
mod vms;

pub use account::{AccountOptions, Accountant};
pub use calls::{Arranged, CallTree, ProfiledOperation};
pub use diff::{Diff, DiffSide, Per};
pub use frames::{Frames, IntervalFrame, KeepFrames};
pub use ledger::{Filter, Ledger, LedgerBuilder, VcpuTime};
pub use nested::{Ancillary, Nested, NestedRow};
pub use operations::{OperationExit, OperationRow, Operations, Path, Ratio};
pub use table::{By, KeyValue, SortedRow, SortedTable, TableKind};
pub use timeline::{Slot, Timeline};
