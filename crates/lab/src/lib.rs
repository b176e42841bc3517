//! Emulated KVM hosts: exact exit counts and path lengths of a real KVM, with no virtualization hardware.
//!
//! ```text
//!  suite ──payload──> order ──mailbox──> guest in an emulated host ──report──> Outcomes: samples + trace.dat
//! ```
//! A run is one [`LabPlan`] on one host ([`HostSetup`]). What comes back is a recording that `vmtax-capture` reads, with
//! [`Windows`] telling whose event is whose, and samples of the path lengths; the binary makes a run folder of both.
//!
//! The way of an operation, `vmtax lab run --nested -o run`:
//!
//! 1. [`suite`] defines each operation: name, code, required exits. `payload` adds the loop, marks and descriptor tables and assembles it.
//! 2. `host` builds the initramfs (the guest program, modules, for nesting L1's kernel); `vmtax-machine` boots it, or restores the state
//!    that was saved when it waited for an order.
//! 3. `conversation` sends the order through the *mailbox*: a raw disk on the secondary IDE channel, which the guest accesses by programmed
//!    I/O and which is a memfd here. L1 receives orders through an I/O port of L0's VMM.
//! 4. The guest program executes each payload: batches for the path length, then one batch recorded by KVM's tracepoints.
//! 5. `run` checks the report; `trace_dat` makes a `trace.dat` of the pages of the trace buffer.
//! 6. `vmtax-runs` reads that recording as any other; [`window`](Windows) assigns events to operations by the port writes of the marks.
//!
//! Variants: with call trees, `profile` parses the record that a library in the emulator writes (`tcg`, `bochs`) and tracks levels, threads and
//! calls (`flow`); each batch must equal the guest's clock exactly, or the operation has no tree. Suite `memory` compares KVM's counters with
//! the recording (`check`). Suite `paging` has the accesses of guests recorded in the emulator, and simulates processors that make them ([`paging`]). [`program`] loads a multiboot image. [`network`] packs this computer's QEMU into the host, with taps and
//! servers; each traffic with each VM is a VM of the run.
//!
//! Left out: emulators (`vmtax-machine`), what the exits mean (`vmtax-analyse`), storing and printing.

pub mod budget;
pub mod category;
mod check;
mod conversation;
mod elf;
mod error;
mod exceptions;
mod host;
mod known;
mod measured;
pub mod network;
mod observer;
mod outcomes;
pub mod paging;
mod payload;
mod profile;
pub mod program;
mod run;
pub mod suite;
mod trace_dat;
mod vm;
mod window;

pub use conversation::Conversation;
pub use error::Error;
pub use host::{
    Ability, HostKind, HostSetup, HostStart, OF_ALL_KERNELS, PROTECTED_MODE, TSC_KHZ, VmcsProbes,
    check_recorded, console_text, guest_program,
};
pub use known::{Known, KnownBy, known};
pub use measured::{MeasuredMemory, MeasuredOperation};
pub use outcomes::{EndedProgram, Outcomes, ProgramVerdict};
pub use profile::OperationProfile;
#[cfg(any(test, feature = "fuzz"))]
pub use profile::imagined;
pub use run::{LabPlan, run};
pub use vm::{Answered, LabVm, VmLevel, VmPlan, VmSetup};
pub use window::{
    Ahead, Extent, SeenExits, SeenWindow, Window, Windows, is_of_the_host, is_window, vm_of,
};
