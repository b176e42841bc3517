//! What can go wrong. Every message is one sentence.

/// An error of a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A VM did not start, or did not do its work.
    #[error(transparent)]
    Machine(#[from] vmtax_machine::Error),
    /// The agent could not be started or reached.
    #[error("{place}: {problem}")]
    Agent {
        /// Where.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The agent's answer cannot be read.
    #[error("{place}: the agent's answer cannot be read: {problem}")]
    Answer {
        /// Where.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}
