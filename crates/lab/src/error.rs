//! Errors of the lab. Every message is one sentence.

use std::path::PathBuf;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A payload does not assemble.
    #[error("operation {operation}: its payload does not assemble: {error}")]
    Payload {
        /// Name of the payload.
        operation: &'static str,
        #[source]
        error: iced_x86::IcedError,
    },
    /// The machine did not start, or did not do its work.
    #[error(transparent)]
    Machine(#[from] vmtax_machine::Error),
    /// This build lacks the program of the arm64 host.
    #[error(
        "this vmtax was built without the program of the arm64 host; run `rustup target add aarch64-unknown-linux-musl` and build it again"
    )]
    NotBuilt,
    /// The program in the host failed.
    #[error("the emulated host could not do its work: {message}")]
    Guest { message: String },
    /// The host's kernel lacks what a VM needs.
    #[error("{what}")]
    Lacking { what: String },
    /// The host's kernel does not know an option, or refuses its value.
    #[error("--option: {problem}")]
    Option {
        /// The option, and the kernel's answer.
        problem: String,
    },
    /// One recorder at a time.
    #[error(
        "--profile: the suite paging records accesses to memory, and call trees need a recording of instructions; run it without --profile"
    )]
    Profiled,
    /// Its plugins count the instructions of one vCPU.
    #[error(
        "--profile: a host of several processors is recorded with QEMU before 9, and this is {version}; run it on one processor, or with such a QEMU first on PATH"
    )]
    Several { version: String },
    #[error(
        "--scattered or --layout: no operation of this run scatters frames over 24 GiB; those of the suite paging whose names end in -24g do"
    )]
    Scattered,
    /// The host's report is invalid.
    #[error("the report of the emulated host cannot be read: {problem}")]
    Report { problem: String },
    /// The observer cannot be used.
    #[error("{program}: {problem}")]
    Observer { program: String, problem: String },
    #[error("{path}: {problem}")]
    Budget {
        path: PathBuf,
        /// The problem, and what to do.
        problem: String,
    },
    /// Debug information that cannot be used.
    #[error("{path}: {problem}")]
    DebugInfo {
        path: PathBuf,
        /// The problem, and what to do.
        problem: String,
    },
    /// A function that no kernel of the host has.
    #[error(
        "--annotate {function}: no kernel of the host has a function of this name (one that the compiler has put into another has none); the call trees of a run without it name those that are executed"
    )]
    NoFunction { function: String },
    /// A file of operations.
    #[error("{path}: {problem}")]
    Operation {
        path: PathBuf,
        /// The operation, and what is wrong with it.
        problem: String,
    },
    /// A program that cannot run as a guest.
    #[error("{path}: {problem}")]
    Program {
        path: PathBuf,
        /// The problem, and what to do.
        problem: String,
    },
    /// A kernel image that L1 cannot boot.
    #[error("{path}: {problem}")]
    Kernel { path: PathBuf, problem: String },
    /// A system call failed.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation, as a verb.
        what: &'static str,
        source: std::io::Error,
    },
}

impl Error {
    /// An [`Error::Io`] for `map_err`.
    pub(crate) fn io(
        path: &std::path::Path,
        what: &'static str,
    ) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), what, source }
    }
}
