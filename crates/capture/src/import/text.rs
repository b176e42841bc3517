//! Texts of event lines: what ftrace, trace-cmd and perf print.
//!
//! Binary recordings contain more than the texts made of them: a text has no vendor of its reasons (the
//! names tell), no list of its tracepoints, and times that are usually rounded to a
//! microsecond. It is what people have in bug reports all the same.
//!
//! ```text
//! bytes ──> blocks::Blocks ──┬─> decode: line::Line ──> payload::read ──┬──> session ──Feed──>
//!           whole lines      │           who and when   what            │    names, losses
//!                            └─> decode: ...  (on other threads)      ──┘
//! ```
//!
//! Left out on purpose: call chains below an event, events of no interest to the analysis, texts of
//! counters (`perf kvm stat report`).

pub(crate) mod blocks;
pub(crate) mod checks;
pub(crate) mod decode;
pub(crate) mod format;
pub mod ftrace_text;
pub(crate) mod line;
pub(crate) mod lines;
pub(crate) mod payload;
pub mod perf_script;
pub(crate) mod reason;
pub(crate) mod session;
mod streams;
pub mod trace_cmd_report;
pub(crate) mod words;

use line::{EventLine, ThreadDialect};
use words::{TextWords, decimal, decimal_u32, split_digits};

/// Event lines to look at before a format is recognised.
const ENOUGH: usize = 200;

/// Said of a text whose last line has no line end.
pub(crate) const UNTERMINATED: &str =
    "the text does not end with a line end: its last line may be cut";

/// Whether these bytes can be text: no NUL, hardly a control character.
pub(crate) fn is_text(head: &[u8]) -> bool {
    let control = |&&b: &&u8| b < b' ' && !matches!(b, b'\n' | b'\r' | b'\t' | 0x1b);
    !head.contains(&0) && head.iter().filter(control).count() <= head.len() / 256
}

/// The lines of the first bytes. The first and the last may be parts of lines.
pub(crate) fn head_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|&b| b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l))
}

/// Form of a text's first event lines.
#[derive(Debug, Default)]
pub(crate) struct Votes {
    /// Lines that read as events of `perf script`.
    perf: usize,
    /// Lines that read as events of ftrace or trace-cmd.
    ftrace: usize,
    /// Those of them whose text is aligned in a column, as trace-cmd does.
    aligned: usize,
    /// Those of them that could be and are not.
    ragged: usize,
}

impl Votes {
    /// Reads the first event lines.
    pub(crate) fn count(head: &[u8]) -> Votes {
        let mut votes = Votes::default();
        for text in head_lines(head).filter(|l| l.first() != Some(&b'#')) {
            if votes.perf + votes.ftrace >= ENOUGH {
                break;
            }
            if let Some(line) = EventLine::read(text, ThreadDialect::Ftrace) {
                votes.ftrace += 1;
                // trace-cmd starts the text at column 22 behind the event's name and colon.
                if line.event.len() < 20 {
                    let aligned = line.payload.starts_with(b"  ");
                    votes.aligned += usize::from(aligned);
                    votes.ragged += usize::from(!aligned);
                }
            } else if EventLine::read(text, ThreadDialect::PerfScript).is_some() {
                votes.perf += 1;
            }
        }
        votes
    }

    /// Most lines are `perf script`'s.
    fn are_perf(&self) -> bool {
        self.perf > self.ftrace
    }

    /// Most lines are ftrace's or trace-cmd's.
    fn are_ftrace(&self) -> bool {
        self.ftrace > self.perf
    }

    /// Most lines that can tell are trace-cmd's.
    fn are_aligned(&self) -> bool {
        self.aligned > self.ragged
    }
}

/// `CPU:0 [LOST 123 EVENTS]` of ftrace and `CPU:0 [123 EVENTS DROPPED]` of trace-cmd, the number or the
/// CPU missing or not: the CPU and how many (0 if it is not said).
pub(crate) fn loss_line(line: &[u8]) -> Option<(u32, u64)> {
    let line = words::trim(line);
    let (cpu, line) = match line.strip_prefix(b"CPU:") {
        Some(rest) => {
            let (cpu, rest) = split_digits(rest);
            (decimal_u32(cpu)?, words::trim_start(rest))
        }
        None => (0, line),
    };
    let inside = line.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let (mut count, mut lost, mut events) = (0, false, false);
    for word in TextWords::new(inside) {
        match word {
            b"LOST" | b"DROPPED" => lost = true,
            b"EVENTS" => events = true,
            _ => count = decimal(word)?,
        }
    }
    (lost && events).then_some((cpu, count))
}
