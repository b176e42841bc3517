//! Errors of machines. Every message is one sentence that names the place and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Emulator, Tail};

/// Why a machine did not start or did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program to be copied into a machine.
    #[error("{program}: {problem}")]
    Program { program: String, problem: String },
    /// A program that is needed is not installed.
    #[error("{program} is not installed, and {need} needs it; as root: {install}")]
    Missing {
        /// The program or file.
        program: String,
        /// What it is needed for.
        need: &'static str,
        /// The line that installs it.
        install: String,
    },
    /// This computer cannot run that emulator.
    #[error("{emulator} cannot run here: {reason}")]
    Unsupported {
        /// What was asked for.
        emulator: Emulator,
        /// Why not, and what to use instead.
        reason: String,
    },
    /// A network for machines could not be made.
    #[error("a network for VMs cannot be made: {step}: {problem}")]
    Network {
        step: &'static str,
        /// The system's answer, and what to do.
        problem: String,
    },
    /// The distribution's kernel could not be fetched.
    #[error("the distribution's kernel could not be fetched: {problem}")]
    Fetch {
        /// What happened and what to do.
        problem: String,
    },
    /// Xen could not be fetched.
    #[error("Xen, the hypervisor, could not be fetched: {problem}")]
    Xen {
        /// What happened and what to do.
        problem: String,
    },
    /// A kernel image cannot be used.
    #[error("{path}: {problem}")]
    Kernel {
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A kernel has no such module, or a broken one.
    #[error("kernel {release} has no usable module {module}: {problem}")]
    Module {
        release: String,
        module: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The machine's system failed: a panic, an oops, a hung task.
    #[error("the machine on {emulator} failed: {failure}; its console is in {}", console.path.display())]
    Failed {
        emulator: Emulator,
        /// The console line that says so.
        failure: String,
        /// The end of the console.
        console: Tail,
    },
    /// The machine ended early.
    #[error("the machine on {emulator} ended too early: {how}; its console is in {}", console.path.display())]
    Ended {
        emulator: Emulator,
        /// How: a power-off, a reset, a signal, what the emulator said.
        how: String,
        /// The end of the console.
        console: Tail,
    },
    /// The wall-clock limit passed.
    #[error(
        "the machine on {emulator} was not done after {} s and was ended: it hangs, or this computer needs a longer limit{doing}; \
         its console is in {}",
        limit.as_secs_f32(),
        console.path.display()
    )]
    Limit {
        emulator: Emulator,
        limit: Duration,
        /// What it did then, after a semicolon; empty where its emulator does not tell.
        doing: String,
        /// The end of the console.
        console: Tail,
    },
    /// A kernel waits in a loop that nothing ends: see [`crate::Machine::watch_kernel`].
    #[error(
        "the machine on {emulator} is stuck: a kernel stays at {at:#x} with interrupts off, as after a lock that it holds itself; \
         its console is in {}",
        console.path.display()
    )]
    Stuck {
        emulator: Emulator,
        /// The lowest address that was seen.
        at: u64,
        /// The end of the console.
        console: Tail,
    },
    /// A stop was requested, and the machine was ended.
    #[error("the machine on {emulator} was stopped")]
    Stopped { emulator: Emulator },
    /// A saved state cannot be used. A cold boot still can.
    #[error("{path}: the saved machine cannot be used: {problem}; remove it to boot afresh")]
    State {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A command to the emulator failed.
    #[error("{emulator} cannot {what}: {problem}")]
    Control {
        /// What ran the machine.
        emulator: Emulator,
        /// The command, as a verb.
        what: &'static str,
        problem: String,
    },
    /// A system call failed.
    #[error("{path}: cannot {what}: {source}{}", advice(source))]
    Io {
        /// The file, folder or program.
        path: PathBuf,
        /// The operation, as a verb.
        what: &'static str,
        source: io::Error,
    },
}

impl Error {
    /// An [`Error::Io`] about this path, for `map_err`.
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), what, source }
    }

    /// As [`Error::io`], for the errors of system calls.
    pub(crate) fn os(path: &Path, what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::Io { path: path.to_owned(), what, source: errno.into() }
    }

    /// The last lines of the machine's console, where the error is about what the machine did.
    pub fn console(&self) -> Option<&Tail> {
        match self {
            Error::Failed { console, .. }
            | Error::Ended { console, .. }
            | Error::Limit { console, .. }
            | Error::Stuck { console, .. } => Some(console),
            _ => None,
        }
    }
}

/// Advice for the error of a system call. What is not found is often no file to create.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::OutOfMemory => "; free some memory, or give the machine less",
        io::ErrorKind::NotFound => "",
        _ => vmtax_durable::advice(source),
    }
}
