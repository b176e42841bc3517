//! How the formats of texts differ.

use vmtax_events::Kind;

use super::line::{Dialect, Line};
use crate::Error;
use crate::import::Imported;

/// A line that is not an event.
pub(crate) enum Other {
    /// Nothing that matters: a comment, a call chain, an empty line.
    Skip,
    /// The recorder lost events of this CPU, 0 if it does not say how many.
    Lost { cpu: u32, count: u64 },
    /// The text identifies its writer, so it is of this format even if no event follows.
    Header,
}

/// Differences between the formats.
pub(crate) trait Format {
    /// `ftrace text`, ...
    const NAME: &'static str;
    /// How threads are written.
    const DIALECT: Dialect;

    /// A line that starts with `#`, or is not an event.
    fn other(&mut self, line: &[u8], about: &mut Imported) -> Result<Other, Error>;

    /// An event that is not a tracepoint (perf's own records).
    fn record(_line: &Line<'_>) -> Option<Kind> {
        None
    }

    /// After the last line; `counted` is how many events the loss lines gave.
    fn finish(&mut self, _counted: u64, _about: &mut Imported) {}
}
