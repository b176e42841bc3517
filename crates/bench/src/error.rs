//! What can go wrong. Every message is one sentence.

use vmtax_cli::exit::{Code, CodedError};

/// An error of a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A VM did not start, or did not do its work.
    #[error(transparent)]
    Machine(#[from] vmtax_machine::Error),
    /// The agent could not be started or reached.
    #[error("{place}: {problem}")]
    Agent { place: String, problem: String },
    /// The agent's answer cannot be read.
    #[error("{place}: the agent's answer cannot be read: {problem}")]
    Answer {
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// An error of the agent at a place.
pub(crate) fn at(place: &str, problem: String) -> Error {
    Error::Agent { place: place.to_owned(), problem }
}

/// An answer to another request than the one that was sent.
pub(crate) fn strange(place: &str) -> Error {
    at(place, "it does not answer the request".to_owned())
}

/// What an error of a benchmark means for the exit code.
pub(crate) fn fault(error: &Error) -> CodedError {
    use vmtax_machine::Error as Machine;
    let code = match error {
        Error::Machine(Machine::Kernel { .. } | Machine::Module { .. }) => Code::Data,
        Error::Machine(Machine::Program { .. }) => Code::Input,
        Error::Agent { place, .. } if place != "host" => Code::Input,
        _ => Code::Machine,
    };
    let mut message = error.to_string();
    if let Error::Machine(machine) = error
        && let Some(tail) = machine.console()
    {
        let last: Vec<&str> = tail.lines.iter().rev().take(3).rev().map(String::as_str).collect();
        if !last.is_empty() {
            message.push_str(&format!("; its console ends: {}", last.join(" | ")));
        }
    }
    CodedError::new(code, message.split_whitespace().collect::<Vec<_>>().join(" "))
}
