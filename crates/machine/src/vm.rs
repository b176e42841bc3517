//! A QEMU that was started by others, and that others may control at the same time: its memory, device state, hardware and disks.
//!
//! Left out on purpose: storing memory (the crate `pageops`), and launching (the rest of this crate).

mod disks;
mod guard;
mod hardware;
mod orders;
mod pause;
mod ram;
mod sample;
mod state;
#[cfg(test)]
mod tests;
mod tree;

pub use disks::{DiskCheck, DiskImage, MediumDisk};
pub use guard::{Guarded, STOPPED, guard};
pub use hardware::{Backend, CpuModel, Hardware, VmDevice, mib};
pub use pause::Pause;
pub use ram::Ram;
#[cfg(feature = "fuzz")]
pub use tree::check_answer;

use std::path::Path;

use serde_json::json;

use crate::Stop;
use crate::qmp::{Qmp, QmpError};

/// A running QEMU.
#[derive(Debug)]
pub struct QemuVm {
    qmp: Qmp,
    pid: u32,
    /// The process that resumes it if this one does not.
    guard: Option<orders::Guard>,
}

/// Why something cannot be done with a VM. Every message is one sentence that begins with its socket.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// It does not meet a requirement: private memory, a state in which it cannot be saved or restored, a disk.
    #[error("{vm}: {what}")]
    Unfit {
        vm: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// Another client resumed or reset it meanwhile.
    #[error("{vm}: {what}")]
    Disturbed {
        vm: String,
        /// What happened, and what to do.
        what: String,
    },
    /// QEMU did not save or load the state of its devices.
    #[error("{vm}: {what}")]
    Failed {
        vm: String,
        /// What happened, and what to do.
        what: String,
    },
    /// Another error, after which a VM that ran before may still be stopped.
    #[error("{0}; {LEFT_STOPPED}")]
    LeftStopped(Box<VmError>),
}

/// Advice for a VM that was stopped and could not be resumed.
pub const LEFT_STOPPED: &str = "the VM may still be stopped, give it `cont`";

impl QemuVm {
    /// Connects to the socket of a QEMU's `-qmp unix:...,server=on,wait=off`. Waits end when a stop is requested.
    pub fn connect(socket: &Path, stop: Stop) -> Result<QemuVm, VmError> {
        let qmp = Qmp::connect(socket, stop)?;
        let pid = qmp.pid()?;
        Ok(QemuVm { qmp, pid, guard: None })
    }

    pub fn name(&self) -> &str {
        self.qmp.name()
    }

    /// Run state: running, paused, inmigrate, ...
    pub fn status(&mut self) -> Result<String, VmError> {
        Ok(self.qmp.status()?)
    }

    /// Checks that it still waits for incoming state.
    pub fn still_waits(&mut self) -> Result<(), VmError> {
        match self.status()?.as_str() {
            "inmigrate" => Ok(()),
            status => Err(self.disturbed(format!(
                "the VM is {status} now: another client used it while its memory was restored; start a new QEMU"
            ))),
        }
    }

    /// Checks that it is stopped.
    pub fn stands(&mut self) -> Result<(), VmError> {
        match self.status()?.as_str() {
            "running" => {
                Err(self
                    .disturbed("the VM was restored and is not stopped: another client resumed it"))
            }
            _ => Ok(()),
        }
    }

    pub fn resume(&mut self) -> Result<(), VmError> {
        self.qmp.run("cont", json!({}))?;
        Ok(())
    }

    fn unfit(&self, what: impl Into<String>) -> VmError {
        VmError::Unfit { vm: self.name().to_owned(), what: what.into() }
    }

    fn disturbed(&self, what: impl Into<String>) -> VmError {
        VmError::Disturbed { vm: self.name().to_owned(), what: what.into() }
    }

    fn failed(&self, what: impl Into<String>) -> VmError {
        VmError::Failed { vm: self.name().to_owned(), what: what.into() }
    }
}
