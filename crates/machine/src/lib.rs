//! From the spec of a virtual machine to a running one: the only launcher of emulators. And [`vm`]: a QEMU that somebody
//! else started, its memory, devices and disks.
//!
//! A machine boots a Linux kernel and an initramfs, talks to this side through a [`Mailbox`], and ends
//! in one of four ways: it does what was waited for and powers off, it fails and says so on its
//! console, it is saved, or its time is over. Whatever happens to this process, nothing of a machine
//! is left: no process and no temporary file.
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # use vmtax_machine::*;
//! # fn main() -> Result<(), Error> {
//! # let archive = Vec::new();
//! let kernel = kernel::distribution(&kernel::cache_folder())?;
//! let mailbox = Mailbox::new()?;
//! let spec = Spec {
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
//!     options: Options::default(),
//! };
//! let mut machine = Machine::boot(&spec)?;
//! machine.wait(|| mailbox.read(0, 1).ok().filter(|byte| byte == b"R"))?;
//! machine.save(Path::new("state"))?;
//! # Ok(())
//! # }
//! ```
//!
//! What it leaves out on purpose: what runs inside, what the mailbox's bytes mean, what is cached when.

mod bochs;
mod checksum;
mod console;
pub mod cpio;
mod error;
pub mod kernel;
mod lock;
mod machine;
mod mailbox;
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
mod tool;
pub mod vm;

pub use console::Tail;
pub use error::Error;
pub use machine::Machine;
pub use mailbox::Mailbox;
pub use qemu::arguments as qemu_arguments;
pub use recorder::{Marks, Recorder};
pub use spec::{Emulator, Initramfs, Options, QUICK_BOOT, Spec, can_save, check};
pub use state::prune as prune_states;
pub use state::{keep, kept};
pub use stop::Stop;
pub use tool::{Finished, Limits, Tool, ToolError};
