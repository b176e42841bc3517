//! Resumes a paused VM if the process that paused it is killed, or is stopped for long.
//!
//! The guard is a process, because SIGKILL and SIGSTOP act on all threads of a process. It shares the connection to QEMU: a monitor serves one
//! client, so a second connection would wait until the first one is closed. It uses the connection only after the other process has ended.
//!
//! ```text
//!  paused, and goes on       a byte, before `stop`       ──┐
//!  paused, and stays so      a byte, before `stop`         ├─> the guard's standard input
//!  over                      a byte, after `cont`          │
//!  the process has ended     end of file                 ──┘
//! ```
//!
//! In both cases the guard ends the migration of the device state that may be under way, and clears its settings.
//!
//! A process that is stopped (SIGSTOP, Ctrl-Z) during a pause gets SIGCONT after [`STOPPED`]. Nothing else is certain to help: while QEMU
//! sends the state of its devices to that process, it answers no command.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, kill_process};
use serde_json::json;

use super::orders::{Guard, GuardOrder};
use super::state::{SET_CAPABILITIES, ignore_shared};
use super::{QemuVm, VmError};
use crate::Stop;
use crate::qmp::{Qmp, QmpError};
use crate::stream::Until;

/// A process may be stopped during a pause for this time.
pub const STOPPED: Duration = Duration::from_secs(10);
/// Time between two checks whether it is stopped.
const LOOK: Duration = Duration::from_millis(500);
/// QEMU has this time to resume the VM: it may have to end a migration first.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two attempts.
const AGAIN: Duration = Duration::from_millis(100);

impl QemuVm {
    /// Starts the process that resumes the VM if this one does not: `command` has to call [`guard()`] with its standard input
    /// and output.
    pub fn start_guard(&mut self, mut command: Command) -> Result<(), VmError> {
        let failed = |error| self.failed(format!("the guard of its pause cannot start: {error}"));
        let monitor = self.qmp.stream().as_fd().try_clone_to_owned().map_err(failed)?;
        // A group of its own: Ctrl-C and Ctrl-Z are not for it.
        command.stdout(monitor).process_group(0);
        self.guard = Some(Guard::start(command).map_err(failed)?);
        Ok(())
    }

    pub(super) fn tell_guard(&mut self, order: GuardOrder) {
        if let Some(guard) = &mut self.guard {
            guard.tell(order);
        }
    }
}

/// What a guard did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// The process was stopped for [`STOPPED`] and got SIGCONT.
    Continued,
    /// The process ended and the VM was resumed.
    Resumed,
}

/// The work of a guard: watches the process that started it until that ends, whose requests come from `orders`, and resumes its VM over
/// `monitor`, a connection to the QEMU `name`.
pub fn guard(
    orders: OwnedFd,
    monitor: OwnedFd,
    name: &str,
    report: &mut dyn FnMut(Guarded),
) -> Result<(), VmError> {
    let mut orders = fs::File::from(orders);
    let mut last = GuardOrder::Over;
    let mut stopped_since = None;
    loop {
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        let wait = (last == GuardOrder::GoesOn).then_some(&wait);
        match poll(&mut [PollFd::new(&orders, PollFlags::IN)], wait) {
            Ok(0) => {
                if continue_parent(&mut stopped_since) {
                    report(Guarded::Continued);
                }
                continue;
            }
            Err(Errno::INTR) => continue,
            _ => {}
        }
        let mut byte = [0];
        if !orders.read(&mut byte).is_ok_and(|read| read == 1) {
            break;
        }
        let order =
            [GuardOrder::GoesOn, GuardOrder::Stays].into_iter().find(|o| *o as u8 == byte[0]);
        last = order.unwrap_or(GuardOrder::Over);
        stopped_since = None;
    }
    if last == GuardOrder::Over {
        return Ok(());
    }
    let qmp = Qmp::taken_over(UnixStream::from(monitor), name.to_owned());
    if tidy_up(qmp, last == GuardOrder::GoesOn)? {
        report(Guarded::Resumed);
    }
    Ok(())
}

/// Sends SIGCONT to the process that started this one, if it has been stopped for long.
fn continue_parent(stopped_since: &mut Option<Instant>) -> bool {
    let Some(parent) = getppid() else { return false };
    let stat = fs::read_to_string(format!("/proc/{}/stat", parent.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    if state != Some('T') {
        *stopped_since = None;
        return false;
    }
    let is_due = stopped_since.get_or_insert_with(Instant::now).elapsed() >= STOPPED;
    if is_due {
        *stopped_since = None;
    }
    is_due && kill_process(parent, Signal::CONT).is_ok()
}

/// Ends what the process before had begun, and resumes the VM if it `goes_on`. False if it stays stopped, runs already, or another client has
/// used it since.
fn tidy_up(mut qmp: Qmp, goes_on: bool) -> Result<bool, VmError> {
    let until = Until::after(PATIENCE);
    loop {
        match tidy_up_once(&mut qmp, goes_on) {
            Ok(resumed) => return Ok(resumed),
            Err(error) if error.is_refused() && until.sleep(AGAIN).is_ok() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn tidy_up_once(qmp: &mut Qmp, goes_on: bool) -> Result<bool, QmpError> {
    // A refusal may be that of a line which the process before could not send whole.
    let is_running = qmp.run("query-status", json!({}))?["running"] == true;
    if !is_running {
        // The migration of the device state, whose reader has ended.
        qmp.run("migrate_cancel", json!({}))?;
    }
    // Migrations of other clients include shared memory.
    qmp.run(SET_CAPABILITIES, ignore_shared(false))?;
    let events = qmp.events();
    if !goes_on || is_running || events.resumes > 0 || events.wakeups > 0 || events.resets > 0 {
        return Ok(false);
    }
    qmp.run("cont", json!({}))?;
    Ok(true)
}

impl Qmp {
    /// A connection that another process has used. Answers to its commands are dropped.
    fn taken_over(stream: UnixStream, name: String) -> Qmp {
        /// Above the number of any command of the other process.
        const FIRST: u64 = 1 << 32;
        Qmp::numbered(stream, name, Stop::default(), FIRST)
    }
}
