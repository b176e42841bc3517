//! Saves a QEMU virtual machine, or an image of memory, as a checkpoint.
//!
//! [`Save`] joins [`vmtax_machine::vm`], which pauses the VM and saves its devices, with [`vmtax_pageops::checkpoint`], which writes
//! pages. A running VM is saved in passes ([`Pass`]); it is paused for the last one only.
//!
//! Left out on purpose: flags, and the report of a save.

mod faults;
mod passes;
mod save;
mod saved;
pub mod stream;

pub use faults::{fault, vm_fault};
pub use passes::Pass;
pub use save::Save;
pub use saved::{PauseTimes, Saved, SavedVm};
