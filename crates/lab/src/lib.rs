//! Emulated KVM hosts: exact exit counts and path lengths of a real KVM, with no virtualization hardware.
//!
//! ```text
//!  suite ──payload──> order ──mailbox──> guest in an emulated host ──report──> Outcomes: samples + trace.dat
//! ```
//! A run is one [`Plan`] on one host ([`Setup`]). What comes back is a recording that `vmtax-capture` reads, with
//! [`Windows`] telling whose event is whose, and samples of the path lengths; the binary makes a run folder of both.
//!
//! Left out: emulators (`vmtax-machine`), what the exits mean (`vmtax-analyse`), storing and printing.

pub mod budget;
mod check;
mod conversation;
mod elf;
mod error;
mod host;
mod measured;
pub mod network;
mod observer;
mod outcomes;
mod payload;
mod profile;
pub mod program;
mod run;
pub mod suite;
mod trace_dat;
mod vm;
mod window;

pub use error::Error;
pub use host::{Host, OF_ALL_KERNELS, Setup, Start, VmcsProbes, console_text, guest_program};
pub use measured::{Measured, Memory};
pub use outcomes::{Ended, Outcomes, Verdict};
pub use profile::Profile;
#[cfg(any(test, feature = "fuzz"))]
pub use profile::imagined;
pub use run::{Plan, run};
pub use vm::{Answered, Vm, VmLevel, VmPlan, VmSetup};
pub use window::{Extent, Seen, SeenExits, Window, Windows, is_of_the_host, is_window, vm_of};
