//! A stopped VM, unless another client resumes it.
//!
//! A QEMU has as many controllers as it has monitors, and none can lock the others out. What QEMU does tell is every
//! change: an event is sent before the answer to any later command. So a VM whose `query-status` says that it is
//! stopped, on a connection that brought no RESUME, WAKEUP or RESET since it was stopped, did not run in between: a client that
//! resumes and stops it again is seen too.

use serde_json::json;

use super::orders::GuardOrder;
use super::{QemuVm, VmError};
use crate::qmp::QmpEvents;

/// Run states that are another operation's, or in which memory changes without a vCPU.
const UNFIT: [(&str, &str); 7] = [
    ("inmigrate", "it waits for an incoming migration; there is nothing to save"),
    ("finish-migrate", "another migration is under way; wait until it ends"),
    ("save-vm", "a snapshot is being saved; wait until that ends"),
    ("restore-vm", "a snapshot is being loaded; wait until that ends"),
    ("colo", "COLO replication is under way; end that first"),
    (
        "suspended",
        "the guest is suspended to RAM and may wake at any time; wake it first (system_wakeup)",
    ),
    (
        "postmigrate",
        "it was stopped by an earlier save or migration, and QEMU saves such a VM only after it has run again; \
         give it `cont`",
    ),
];

/// A stopped VM, which is resumed when this is dropped.
#[derive(Debug)]
pub struct Pause<'a> {
    vm: &'a mut QemuVm,
    goes_on: bool,
    /// Its state right after it was stopped.
    status: String,
    /// What had happened by then.
    seen: QmpEvents,
}

impl<'a> Pause<'a> {
    /// Stops a VM. One that ran goes on afterwards, unless it is to be left stopped; one that another client had stopped
    /// stays stopped.
    pub fn begin(vm: &'a mut QemuVm, leave_stopped: bool) -> Result<Pause<'a>, VmError> {
        let before = vm.status()?;
        if let Some((_, why)) = UNFIT.iter().find(|(status, _)| *status == before) {
            return Err(vm.unfit(format!("the VM cannot be saved: {why}")));
        }
        let goes_on = before == "running" && !leave_stopped;
        vm.tell_guard(if goes_on { GuardOrder::GoesOn } else { GuardOrder::Stays });
        // From here on it is resumed also if `stop` fails: it may have had its effect.
        let mut pause = Pause { vm, goes_on, status: before, seen: QmpEvents::default() };
        match pause.stop() {
            Ok(()) => Ok(pause),
            Err(error) => Err(match pause.end() {
                Ok(()) => error,
                Err(_) => VmError::LeftStopped(Box::new(error)),
            }),
        }
    }

    fn stop(&mut self) -> Result<(), VmError> {
        self.vm.qmp.run("stop", json!({}))?;
        let (status, running) = self.state()?;
        if running {
            self.give_up();
            let what = "the VM runs though it was stopped: another client resumed it, or QEMU did not stop it; \
                        save again while nobody else controls it";
            return Err(self.vm.disturbed(what));
        }
        self.status = status;
        self.seen = self.vm.qmp.events().clone();
        Ok(())
    }

    pub fn vm(&mut self) -> &mut QemuVm {
        self.vm
    }

    /// Whether the VM is resumed afterwards.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// An error unless the VM has stood still from the beginning of the pause until now.
    pub fn check(&mut self) -> Result<(), VmError> {
        let (status, running) = self.state()?;
        let now = self.vm.qmp.events();
        let what = if now.resets != self.seen.resets {
            "was reset"
        } else if running || now.resumes != self.seen.resumes || now.wakeups != self.seen.wakeups {
            "was resumed"
        } else if status != self.status && status != "postmigrate" {
            // Such as restore-vm, or guest-panicked.
            let what = format!("the VM is {status} now and was {}", self.status);
            return Err(self.interrupted(&what));
        } else {
            return Ok(());
        };
        Err(self.interrupted(&format!("the VM {what} by another client")))
    }

    fn interrupted(&mut self, what: &str) -> VmError {
        self.give_up();
        self.vm.disturbed(format!(
            "{what} while it was saved, so there is no one moment to save; save again while nobody else controls it"
        ))
    }

    /// Another client used the VM, and decides whether it runs.
    fn give_up(&mut self) {
        self.goes_on = false;
        self.vm.tell_guard(GuardOrder::Stays);
    }

    /// Lets the VM go on. An error if it may still be stopped.
    pub fn end(mut self) -> Result<(), VmError> {
        self.resume()
    }

    fn resume(&mut self) -> Result<(), VmError> {
        if std::mem::take(&mut self.goes_on) {
            self.vm.qmp.run_anyway("cont", json!({}))?;
        }
        self.vm.tell_guard(GuardOrder::Over);
        Ok(())
    }

    /// Run state, and whether vCPUs run.
    fn state(&mut self) -> Result<(String, bool), VmError> {
        let answer = self.vm.qmp.run("query-status", json!({}))?;
        let status = answer["status"].as_str().unwrap_or("unknown").to_owned();
        let running = answer["running"].as_bool().unwrap_or(status == "running");
        Ok((status, running))
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        // After a panic, or for a caller that has no use for the answer; `end` gives it.
        let _ = self.resume();
    }
}
