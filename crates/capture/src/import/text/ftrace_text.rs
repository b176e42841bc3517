//! The text of ftrace's `trace` and `trace_pipe` files.
//!
//! Columns before the time differ by kernel and options (flags, thread group); all of them are read.
//! The latency format is not: its times are relative.

use std::io::Read;

use super::format::{OtherLine, TextFormat};
use super::line::ThreadDialect;
use super::session;
use super::words::{TextWords, decimal, decimal_u32, find, split_once, trim};
use super::{Votes, head_lines, is_text, loss_line};
use crate::import::Imported;
use crate::{Error, Feed};

/// Whether a file that begins with these bytes is such a text. The beginning may be missing.
pub fn recognise(head: &[u8]) -> bool {
    if !is_text(head) {
        return false;
    }
    if head_lines(head).take(64).any(|l| l.starts_with(b"# tracer:")) {
        return true;
    }
    let votes = Votes::count(head);
    votes.are_ftrace() && !super::trace_cmd_report::recognise(head)
}

/// Imports a text. `threads` additional threads decode.
pub fn import(
    input: &mut dyn Read,
    threads: usize,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    session::import(FtraceText::default(), input, threads, feed)
}

#[derive(Default)]
struct FtraceText {
    /// Entries that the header says were written and overwritten before the text was read.
    overwritten: u64,
}

impl TextFormat for FtraceText {
    const NAME: &'static str = "ftrace text";

    fn dialect(_head: &[u8]) -> ThreadDialect {
        ThreadDialect::Ftrace
    }

    fn other(&mut self, line: &[u8], about: &mut Imported) -> Result<OtherLine, Error> {
        if let Some((cpu, count)) = loss_line(line) {
            return Ok(OtherLine::Lost { cpu, count });
        }
        let Some(comment) = line.strip_prefix(b"#") else { return Ok(OtherLine::Skip) };
        let comment = trim(comment);
        if find(comment, b" latency trace v").is_some() {
            return Err(Error::Unsupported {
                offset: 0,
                item: "latency format",
                problem:
                    "its times are relative; write 0 to options/latency-format in tracefs and \
                          read the trace file again"
                        .to_owned(),
            });
        }
        if comment.starts_with(b"tracer:") {
            about.recording.tool = "ftrace".to_owned();
            return Ok(OtherLine::Header);
        }
        if let Some(rest) = comment.strip_prefix(b"entries-in-buffer/entries-written:") {
            let mut words = TextWords::new(rest);
            if let Some((held, written)) = words.next().and_then(|w| split_once(w, b"/")) {
                let (held, written) = (decimal(held).unwrap_or(0), decimal(written).unwrap_or(0));
                self.overwritten = written.saturating_sub(held);
            }
            let cpus = words.next().and_then(|w| decimal_u32(w.strip_prefix(b"#P:")?));
            about.recording.cpus = cpus.unwrap_or(0);
            return Ok(OtherLine::Header);
        }
        Ok(OtherLine::Skip)
    }

    fn finish(&mut self, counted: u64, about: &mut Imported) {
        // The header counts all that were written, those of the loss lines among them.
        let more = self.overwritten.saturating_sub(counted);
        if more > 0 {
            let losses = &mut about.losses;
            losses.recorder_lost = losses.recorder_lost.saturating_add(more);
            losses.notes.push(format!(
                "{} events were overwritten in the trace buffer before the text was read",
                self.overwritten
            ));
        }
    }
}
