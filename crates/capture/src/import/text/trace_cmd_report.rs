//! The text of `trace-cmd report`: plain, with `-t`, `-l`, `-N`, `-R` or `--ts-diff`, of one file or of several.

use std::io::Read;

use super::format::{OtherLine, TextFormat};
use super::line::ThreadDialect;
use super::session;
use super::words::{decimal, decimal_u32, find, split_once};
use super::{Votes, head_lines, is_text, loss_line};
use crate::import::Imported;
use crate::{Error, Feed};

/// Whether a file that begins with these bytes is such a text. The beginning may be missing.
pub fn recognise(head: &[u8]) -> bool {
    if !is_text(head) || head_lines(head).take(64).any(|l| l.starts_with(b"# tracer:")) {
        return false;
    }
    let of_file = |l: &[u8]| split_once(l, b": ").is_some_and(|(_, l)| cpus(l).is_some());
    if head_lines(head).take(64).any(|l| cpus(l).is_some() || of_file(l)) {
        return true;
    }
    let votes = Votes::count(head);
    votes.are_ftrace() && votes.are_aligned()
}

/// Imports a text. `threads` additional threads decode.
pub fn import(
    input: &mut dyn Read,
    threads: usize,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    session::import(TraceCmdReport, input, threads, feed)
}

/// `cpus=2`, the first line.
fn cpus(line: &[u8]) -> Option<u32> {
    decimal_u32(line.strip_prefix(b"cpus=")?)
}

struct TraceCmdReport;

impl TextFormat for TraceCmdReport {
    const NAME: &'static str = "trace-cmd report";

    fn dialect(_head: &[u8]) -> ThreadDialect {
        ThreadDialect::Ftrace
    }

    fn other(&mut self, line: &[u8], about: &mut Imported) -> Result<OtherLine, Error> {
        if let Some((cpu, count)) = loss_line(line) {
            return Ok(OtherLine::Lost { cpu, count });
        }
        let (file, line) = match split_once(line, b": ") {
            Some((file, line)) if cpus(line).is_some() => (Some(file), line),
            _ => (None, line),
        };
        if let Some(cpus) = cpus(line) {
            about.recording.tool = "trace-cmd".to_owned();
            if file.is_some() {
                return Ok(OtherLine::File);
            }
            about.recording.cpus = cpus;
            return Ok(OtherLine::Header);
        }
        let version = line.strip_prefix(b"version = ").and_then(decimal);
        let empty = line.starts_with(b"CPU ") && find(line, b" is empty").is_some();
        Ok(if version.is_some() || empty { OtherLine::Header } else { OtherLine::Skip })
    }
}
