//! Starts virtual machines from a spec; the only launcher of emulators. [`vm`] is for a QEMU that was started by others: its memory,
//! devices and disks.
//!
//! A machine boots a Linux kernel and an initramfs and communicates with vmtax through a [`Mailbox`]. It ends when it has done its
//! work and powers off, fails (its console says why), is saved, or reaches its timeout. When this process ends, however it ends, no
//! process and no temporary file of a machine is left.
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # use vmtax_machine::*;
//! # fn main() -> Result<(), Error> {
//! # let archive = Vec::new();
//! let kernel = kernel::distribution(&kernel::cache_folder())?;
//! let mailbox = Mailbox::new()?;
//! let spec = VmSpec {
//!     emulator: Emulator::Tcg { icount: true },
//!     kernel,
//!     initramfs: Initramfs::Bytes(archive.into()),
//!     command_line: format!("console=ttyS0 {QUICK_BOOT}"),
//!     memory_mib: 512,
//!     cpus: 1,
//!     mailbox: mailbox.clone(),
//!     console: "console.txt".into(),
//!     limit: Duration::from_secs(60),
//!     stop: Stop::default(),
//!     options: QemuOptions::default(),
//! };
//! let mut machine = Machine::boot(&spec)?;
//! machine.wait(|| mailbox.read(0, 1).ok().filter(|byte| byte == b"R"))?;
//! machine.save(Path::new("state"))?;
//! # Ok(())
//! # }
//! ```
//!
//! Left out on purpose: what runs inside, the meaning of the mailbox's bytes, and when states are cached.

mod bochs;
mod check;
mod checksum;
mod console;
pub mod cpio;
mod emulator;
mod error;
mod identity;
pub mod kernel;
mod lock;
mod look;
mod machine;
mod mailbox;
pub mod maps;
pub mod network;
mod process;
pub mod programs;
mod qemu;
pub mod qmp;
mod recorder;
mod spec;
pub mod ssh;
mod state;
mod stop;
pub mod stream;
mod tail;
mod tool;
mod version;
pub mod vm;

pub use check::{can_save, check};
pub use emulator::Emulator;
pub use error::Error;
pub use machine::Machine;
pub use mailbox::Mailbox;
pub use qemu::{arguments as qemu_arguments, counts_one_vcpu};
pub use recorder::{MachineRecorder, Marks};
pub use spec::{
    EXPEDITED, Initramfs, MailboxDisk, QUICK_BOOT, QUICK_BOOT_ARM, QemuDescriptor, QemuOptions,
    VmSpec,
};
pub use state::prune as prune_states;
pub use state::{keep, kept};
pub use stop::Stop;
pub use tail::Tail;
pub use tool::{FinishedTool, Tool, ToolError, ToolLimits};
pub use version::version;
