//! What can go wrong in the lab. Every message is one sentence.

use std::path::PathBuf;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A payload does not assemble.
    #[error("operation {operation}: its payload does not assemble: {error}")]
    Payload {
        /// Which.
        operation: &'static str,
        /// Why.
        #[source]
        error: iced_x86::IcedError,
    },
    /// The machine did not start, or did not do its work.
    #[error(transparent)]
    Machine(#[from] vmtax_machine::Error),
    /// The program inside could not do what it was told.
    #[error("the emulated host could not do its work: {message}")]
    Guest {
        /// What it says.
        message: String,
    },
    /// What came back is not what was sent.
    #[error("the report of the emulated host cannot be read: {problem}")]
    Report {
        /// What is wrong with it.
        problem: String,
    },
    /// A program that is to run beside the suite.
    #[error("{program}: {problem}")]
    Observer {
        /// The program.
        program: String,
        /// What is wrong.
        problem: String,
    },
    /// A budget file.
    #[error("{path}: {problem}")]
    Budget {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A kernel image that L1 cannot boot.
    #[error("{path}: {problem}")]
    Kernel {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The system refused.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done, as a verb.
        what: &'static str,
        /// The system's answer.
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
