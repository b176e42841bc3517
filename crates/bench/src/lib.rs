//! VM categories x workloads x repeats: what a matrix asks for, how each cell is run, and what its output says.
//!
//! ```text
//! Matrix ──plan──> Cells ──place──> Outcome ──adapter──> Readings
//!                    │
//!                 category: QEMU's flags, guest command line, host settings
//! ```
//! The agent, one static program, carries out each job on the host, behind ssh and in VMs alike.
//!
//! The way of a cell, `vmtax bench run matrix.toml -o run`:
//!
//! 1. [`matrix`] reads the matrix and [`plan`] orders the cells. [`runner`] runs them; `session` owns the run folder and knows which cells
//!    it already has.
//! 2. [`category`] makes VMs of categories, whose parts `vmtax_lab::category` has: QEMU's flags, the guest's command line, host settings, requirements, permitted differences.
//!    `firmware` finds what boots a confidential VM. [`facts`] compares each VM with its baseline before the first measurement.
//! 3. `launch` starts VMs: on this computer ([`vm`]) or on an emulated host (`vmtax_lab`'s), or has QEMU there carry out a cell (`vmtax_lab::network`). `system` is what a cell runs on: this computer,
//!    ssh ([`place`]), a VM, or a VM whose client or server is on another system ([`link`] makes the network, `linked` starts both ends).
//!    `vmm` counts what QEMU's process takes.
//! 4. [`adapter`] names the parser of the output, which is in `vmtax_capture::program`.
//! 5. To record exits the client runs once more: `recorded` makes rows of the emulated host's trace, or of the running kernel.
//! 6. `session` commits the cell as a segment; `vmtax-analyse` compares categories.
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
pub use request::BenchRequest;
