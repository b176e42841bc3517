//! Saves a QEMU virtual machine, or an image of memory, as a checkpoint, and restores it.
//!
//! [`Save`] joins [`vmtax_machine::vm`], which pauses the VM and saves its devices, with [`vmtax_pageops::checkpoint`], which writes
//! pages. A running VM is saved in passes ([`MemoryPass`]); it is paused for the last one only.
//!
//! [`Restore`] gives both back to a QEMU that waits for a state and is made of the same.
//!
//! Left out on purpose: flags, and reports.

mod faults;
mod passes;
mod restore;
mod save;
mod saved;
pub mod stream;

pub use faults::{fault, vm_fault};
pub use passes::MemoryPass;
pub use restore::Restore;
pub use save::Save;
pub use saved::{PauseTimes, Saved, SavedVm};
