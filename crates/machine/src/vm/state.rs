//! Saving and loading the state of a VM's devices: QEMU's own migration stream without the memory in shared files.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{QemuVm, VmError};
use crate::qmp::{QmpError, QmpProblem};
use crate::stream::{LineReader, StreamError, Until, write_all};

/// How long saving or loading may take as a whole. It is a matter of milliseconds, or of seconds where memory is not
/// shared.
const PATIENCE: Duration = Duration::from_secs(600);
/// Device state above this is memory that is not a shared file.
const STATE: usize = 4 << 30;
/// The name under which QEMU gets our socket.
const FD: &str = "vmtax-state";
/// Between two looks at how far a migration is.
const POLL: Duration = Duration::from_millis(2);

pub(super) const SET_CAPABILITIES: &str = "migrate-set-capabilities";

/// Whether migration leaves out memory that is a shared file.
pub(super) fn ignore_shared(state: bool) -> Value {
    json!({ "capabilities": [{ "capability": "x-ignore-shared", "state": state }] })
}

impl QemuVm {
    /// The state of the devices of a stopped VM.
    pub fn save_state(&mut self) -> Result<Vec<u8>, VmError> {
        self.qmp.run(SET_CAPABILITIES, ignore_shared(true))?;
        let state = self.receive_state();
        let reset = self.qmp.run_anyway(SET_CAPABILITIES, ignore_shared(false));
        let state = state?;
        reset?;
        Ok(state)
    }

    /// QEMU writes the state with its main lock held, and answers no command meanwhile: reading only after an answer
    /// would be a deadlock. So a thread of its own reads.
    fn receive_state(&mut self) -> Result<Vec<u8>, VmError> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| self.no_socket(&e))?;
        let stop = self.qmp.stop();
        self.qmp.give_fd(FD, theirs.as_fd(), Until::after(PATIENCE).or_stopped(stop.flag()))?;
        drop(theirs);
        let given_up = AtomicBool::new(false);
        let (state, done) = std::thread::scope(|scope| {
            let until = Until::after(PATIENCE).or_stopped(&given_up);
            let reader = scope.spawn(move || LineReader::new(ours, STATE).rest(until));
            let done = self.migrate(&reader);
            if done.is_err() {
                given_up.store(true, Ordering::Relaxed);
            }
            (reader.join(), done)
        });
        if let Err(error) = done {
            // What counts is that error. This ends a migration that may still be under way, and takes back a
            // descriptor that was not used.
            let _ = self.qmp.run_anyway("migrate_cancel", json!({}));
            let _ = self.qmp.run_anyway("closefd", json!({ "fdname": FD }));
            return Err(error);
        }
        match state {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(StreamError::TooLong(_))) => {
                Err(self.unfit("its device state has more than 4 GiB; is all memory shared?"))
            }
            Ok(Err(problem)) => {
                Err(self.failed(format!("its device state could not be read: {problem}")))
            }
            Err(_) => Err(self.failed("the thread that reads its device state ended")),
        }
    }

    fn migrate<T>(&mut self, reader: &std::thread::ScopedJoinHandle<'_, T>) -> Result<(), VmError> {
        self.qmp.run("migrate", json!({ "uri": format!("fd:{FD}") }))?;
        let stop = self.qmp.stop();
        let until = Until::after(PATIENCE).or_stopped(stop.flag());
        let under_way = ["none", "setup", "active", "device", "pre-switchover"];
        loop {
            let answer = self.qmp.run("query-migrate", json!({}))?;
            let status = answer["status"].as_str().unwrap_or("none").to_owned();
            if status == "completed" {
                return Ok(());
            }
            if !under_way.contains(&status.as_str()) {
                let why = answer["error-desc"].as_str().unwrap_or("no reason given");
                let what = format!("saving the device state ended with {status:?}: {why}");
                return Err(self.failed(what));
            }
            if reader.is_finished() && status == "none" {
                return Err(self.failed("QEMU began to save its device state and forgot it"));
            }
            until.sleep(POLL).map_err(|e| self.no_progress(&e))?;
        }
    }

    /// Gives the state of the devices to a QEMU that waits for it. It is then stopped, as the saved one was.
    pub fn load_state(&mut self, state: &mut dyn Read) -> Result<(), VmError> {
        self.qmp.run(SET_CAPABILITIES, ignore_shared(true))?;
        let (ours, theirs) = UnixStream::pair().map_err(|e| self.no_socket(&e))?;
        let stop = self.qmp.stop();
        let until = Until::after(PATIENCE).or_stopped(stop.flag());
        self.qmp.give_fd(FD, theirs.as_fd(), until)?;
        drop(theirs);
        self.qmp.run("migrate-incoming", json!({ "uri": format!("fd:{FD}") }))?;
        let mut block = vec![0; 64 << 10];
        loop {
            let read = match state.read(&mut block) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => {
                    return Err(self.failed(format!("the state cannot be read: {error}")));
                }
            };
            match write_all(&ours, &block[..read], until) {
                Ok(()) => {}
                Err(StreamError::Io(_)) => return Err(self.not_loaded("it took no more of it")),
                Err(problem) => return Err(self.no_progress(&problem)),
            }
        }
        drop(ours);
        self.loaded(until)
    }

    /// Waits until the state that was written is loaded.
    fn loaded(&mut self, until: Until<'_>) -> Result<(), VmError> {
        loop {
            let asked = self.qmp.run("query-migrate", json!({}));
            let answers = asked.and_then(|answer| Ok((answer, self.qmp.status()?)));
            let (answer, status) = match answers {
                Ok(answers) => answers,
                Err(QmpError { problem: QmpProblem::Closed, .. }) => {
                    return Err(self.not_loaded("it ended"));
                }
                Err(error) => return Err(error.into()),
            };
            if answer["status"] == "failed" {
                let why = answer["error-desc"].as_str().unwrap_or("no reason given").to_owned();
                return Err(self.not_loaded(&why));
            }
            if status != "inmigrate" {
                return Ok(());
            }
            until.sleep(POLL).map_err(|e| self.no_progress(&e))?;
        }
    }

    fn not_loaded(&self, why: &str) -> VmError {
        self.failed(format!(
            "QEMU did not load the device state: {why}; its own words are on its standard error, and the usual reason is \
             a machine that is not the saved one's"
        ))
    }

    fn no_socket(&self, error: &std::io::Error) -> VmError {
        self.failed(format!("no socket for its device state: {error}"))
    }

    fn no_progress(&self, problem: &StreamError) -> VmError {
        let name = self.name().to_owned();
        match problem {
            StreamError::Stopped => QmpError { name, problem: QmpProblem::Stopped }.into(),
            _ => self.failed("the migration of its device state makes no progress"),
        }
    }
}
