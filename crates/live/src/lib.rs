//! The running kernel -> counted exits, accesses and time: `kvm_exit.bpf.c` counts in the kernel by the rules of
//! `vmtax-analyse`'s accounting, [`ExitRecorder`] loads it and reads what it has counted, interval by interval.
//!
//! ```text
//!   kernel   raw tracepoints ──> state of the vCPU thread ──> cells, two halves ──┐ mapped memory
//!   here     kernel::Kernel (BTF) ──> Config ──> Recorder::interval <─────────────┘──> Rows
//! ```
//! Programs sit on raw tracepoints: they get the arguments that the kernel's code gives, at the cost of a call, and need
//! no more than CAP_BPF and CAP_PERFMON. Offsets of fields in the kernel's structs come from the types that the
//! kernel and its modules describe themselves by (BTF); to have the kernel check the types of a module's tracepoint
//! would need CAP_SYS_ADMIN and would not be faster, because the exit reason is behind a cast.
//!
//! Left out on purpose: naming VMs, writing rows anywhere, and printing.

mod btf;
mod error;
mod kernel;
mod kvm_exit;
mod layout;
mod load;
mod mapped_array;
mod options;
mod pmu;
mod privileges;
pub mod probe;
mod raw;
mod rows;
mod starts;
mod vmcs;

pub use error::Error;
pub use kvm_exit::ExitRecorder;
pub use options::{LiveOptions, Raw};
pub use pmu::{HostCounters, LoopCount, count_known_loop};
pub use rows::{IntervalRows, LiveVcpu};
pub use starts::Starts;
pub use vmcs::VmcsPlace;
