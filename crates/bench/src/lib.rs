//! VM categories x workloads x repeats: what a matrix asks for, how each cell is run, and what its output says.
//!
//! ```text
//! Matrix ──plan──> Cells ──place──> Outcome ──adapter──> Readings
//!                    │
//!                 category: QEMU's flags, guest command line, host settings
//! ```
//! The agent, one static program, carries out each job on the host, behind ssh and in VMs alike.
//!
//! [`runner`] runs the cells and keeps their results in a run folder.
//!
//! Left out on purpose: statistics of the results (`vmtax-analyse`), and how they are shown.

pub mod adapter;
pub mod category;
mod describe;
mod error;
pub mod facts;
pub mod firmware;
mod launch;
pub mod link;
mod linked;
pub mod matrix;
pub mod merge;
pub mod place;
pub mod plan;
mod recorded;
mod request;
pub mod runner;
mod session;
mod system;
pub mod target;
mod toolchain;
pub mod vm;
mod vmm;
pub mod workload;

pub use error::Error;
pub use request::Request;
