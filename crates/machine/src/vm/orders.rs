//! Orders to the process that guards a pause.

use std::io::{self, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// An order to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum GuardOrder {
    /// The VM is stopped from now on, and is to be resumed.
    GoesOn = b'g',
    /// It is stopped, and stays so: it was asked for, or another client decides.
    Stays = b's',
    /// There is nothing to do.
    Over = b'o',
}

/// The guard of this process.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    pub(super) fn start(mut command: Command) -> io::Result<Guard> {
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let pipe =
            child.stdin.take().ok_or_else(|| io::Error::other("it has no standard input"))?;
        Ok(Guard { child, pipe })
    }

    pub(super) fn tell(&mut self, order: GuardOrder) {
        // A guard that was killed is missed only if this process is killed too.
        let _ = self.pipe.write_all(&[order as u8]);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
