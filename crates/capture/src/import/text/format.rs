//! How the formats of texts differ.

use vmtax_events::EventKind;

use super::line::{EventLine, ThreadDialect};
use crate::Error;
use crate::import::Imported;
use crate::import::sampling::SampleWeight;

/// A line that is not an event.
pub(crate) enum OtherLine {
    /// Nothing that matters: a comment, a call chain, an empty line.
    Skip,
    /// The recorder lost events of this CPU, 0 if it does not say how many.
    Lost { cpu: u32, count: u64 },
    /// The text identifies its writer, so it is of this format even if no event follows.
    Header,
    /// The text is of several files, of which this is one.
    File,
}

/// Differences between the formats.
pub(crate) trait TextFormat {
    /// `ftrace text`, ...
    const NAME: &'static str;
    /// How threads are written, by the text's first lines.
    fn dialect(head: &[u8]) -> ThreadDialect;

    /// A line that starts with `#`, or is not an event.
    fn other(&mut self, line: &[u8], about: &mut Imported) -> Result<OtherLine, Error>;

    /// How the events were sampled, by the text's first lines.
    fn sampling(_head: &[u8]) -> Result<Option<SampleWeight>, Error> {
        Ok(None)
    }

    /// An event that is not a tracepoint (perf's own records).
    fn record(_line: &EventLine<'_>) -> Option<EventKind> {
        None
    }

    /// After the last line; `counted` is how many events the loss lines gave.
    fn finish(&mut self, _counted: u64, _about: &mut Imported) {}
}
