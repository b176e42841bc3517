//! How long planning may take.

use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

use crate::exit::{self, Code};

/// Timeout of planning. Realistic plans take milliseconds.
const PLANNING: Duration = Duration::from_secs(60);

/// Ends the process with an error unless it is dropped in time: planning does not yield, so it cannot be cancelled otherwise.
pub(crate) struct PlanningLimit {
    _planning: Sender<()>,
}

impl PlanningLimit {
    pub(crate) fn start() -> PlanningLimit {
        let (planning, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(PLANNING) == Err(RecvTimeoutError::Timeout) {
                let seconds = PLANNING.as_secs();
                exit::say(&format!(
                    "the SQL cannot be asked: it is not planned after {seconds} s; ask it in parts"
                ));
                std::process::exit(i32::from(Code::Usage as u8));
            }
        });
        PlanningLimit { _planning: planning }
    }
}
