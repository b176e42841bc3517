//! VM categories x workloads x repeats: what a matrix asks for, how each cell is run, and what its output says.
//!
//! ```text
//! Matrix ──plan──> Cells ──place──> Outcome ──adapter──> Readings
//!                    │
//!                 category: QEMU's flags, guest command line, host settings
//! ```
//! The agent, one static program, carries out each job on the host, behind ssh and in VMs alike.
//!
//! Left out on purpose: where results are kept, what they come to (`vmtax-analyse`), and printing.

pub mod adapter;
pub mod category;
mod error;
pub mod facts;
pub mod matrix;
pub mod place;
pub mod plan;
pub mod vm;
pub mod workload;

pub use error::Error;
