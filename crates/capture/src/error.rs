//! What can go wrong while reading a recording. The caller knows the file's path and adds it.

use std::io;

/// Why a recording could not be read. A recording that merely ends early is not an error: what
/// precedes the cut is delivered, and the loss is noted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is of no kind that an importer knows.
    #[error("not a recording that vmtax knows: {found}")]
    Unrecognised {
        /// The format that the first bytes suggest.
        found: String,
    },
    /// The bytes contradict the format so early that nothing can be read.
    #[error("at byte {offset}: {item}: {problem}")]
    Malformed {
        /// Byte offset in the input (in the decompressed stream where there is one).
        offset: u64,
        /// Which item of the format.
        item: &'static str,
        /// The problem.
        problem: String,
    },
    /// A part of the format that is understood but not supported.
    #[error("at byte {offset}: {item}: {problem}")]
    Unsupported {
        /// Byte offset in the input.
        offset: u64,
        /// Which item of the format.
        item: &'static str,
        /// The unsupported feature.
        problem: String,
    },
    /// Exit numbers that either vendor has.
    #[error(
        "has numeric exit reasons, which differ between Intel, AMD and arm64; name it with --isa intel, --isa amd or --isa arm64"
    )]
    Vendor,
    /// Reading failed.
    #[error("at byte {offset}: {source}")]
    Io {
        /// Byte offset in the input.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The consumer does not want any more (its own error says why).
    #[error("stopped by the consumer")]
    Stopped,
}

impl Error {
    /// A [`Error::Malformed`].
    pub fn malformed(offset: u64, item: &'static str, problem: impl Into<String>) -> Error {
        Error::Malformed { offset, item, problem: problem.into() }
    }
}
