//! The vocabulary of vmtax: events of a KVM host, and their names.
//!
//! Every producer (an importer, the live recorder, the lab) speaks in [`Event`]s or, where it has
//! counted already, in [`ExitRow`]s; every consumer reads them. The decode tables turn the numbers
//! of the architecture into the names the kernel prints.
//!
//! [`setting`] is the same for how hosts, VMs and guests are set up.
//!
//! Left out on purpose: files, threads, formatting for people. This crate does no I/O.

pub mod apic;
pub mod apicv;
pub mod arm;
pub mod call;
pub mod cause;
pub mod detail;
pub mod device;
pub mod durations;
pub mod event;
pub mod exit;
pub mod ghcb;
pub mod interrupt;
pub mod isa;
pub mod losses;
pub mod msr;
pub mod observed;
pub mod port;
pub mod profile;
pub mod reason;
pub mod recording;
pub mod row;
pub mod sample;
pub mod setting;
pub mod sink;
mod size;
pub mod start;
pub mod stat;
pub mod svm;
pub mod tdx;
mod terminal;
mod thread;
pub mod time;
pub mod userspace;
pub mod vmcs;
pub mod vmx;
mod words;

pub use call::{CallKind, CallRow};
pub use cause::Cause;
pub use detail::{Detail, DetailKind};
pub use device::Device;
pub use durations::{Durations, OCTAVES, octave, octave_bounds};
pub use event::{Coverage, Event, EventKind, IDLE_TASK, NO_PID, NO_VCPU};
pub use exit::Exit;
pub use isa::{Isa, IsaFacts, LevelMarks};
pub use losses::{Loss, Losses, MAX_THREADS, MAX_VMS};
pub use profile::{Profile, ProfileOrigin};
pub use reason::Reason;
pub use recording::{RecordedGuest, Recording, Together};
pub use row::{
    AccessKey, AccessRow, ExitKey, ExitRow, Level, Outcome, PreemptedRow, RipCounts, ScheduledRow,
    Tally, Vm,
};
pub use sample::{Better, Sample, Simulated};
pub use sink::{KeptRows, RowSink};
pub use size::size;
pub use stat::Stat;
pub use terminal::{is_hidden, printable};
pub use thread::{is_idle_function, is_vcpu_thread};
pub use time::{TimePart, TimeRow};
