//! The text of `perf script`, with any fields as long as thread, time, event and trace are among them, and with `-L`.
//!
//! `perf script` shows lost events and ended threads only when asked to (`--show-lost-events`,
//! `--show-task-events`). Texts whose columns contradict their events are refused (`checks`).

use std::collections::HashSet;
use std::io::Read;

use vmtax_events::{EventKind, Recording};

use super::checks::twice;
use super::format::{OtherLine, TextFormat};
use super::line::{EventLine, ThreadDialect};
use super::session;
use super::words::{TextWords, decimal, decimal_u32, split_once, trim};
use super::{Votes, head_lines, is_text};
use crate::import::Imported;
use crate::import::sampling::SampleWeight;
use crate::{Error, Feed};

/// Whether a file that begins with these bytes is such a text. The beginning may be missing.
pub fn recognise(head: &[u8]) -> bool {
    if !is_text(head) {
        return false;
    }
    // With --header the comments alone can fill the head.
    let perf_header = head_lines(head).any(|l| l.starts_with(b"# perf version :"))
        && head_lines(head).all(|l| l.is_empty() || l.starts_with(b"#"));
    perf_header || Votes::count(head).are_perf()
}

/// Imports a text. `threads` additional threads decode.
pub fn import(
    input: &mut dyn Read,
    threads: usize,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    session::import(PerfScript::default(), input, threads, feed)
}

#[derive(Default)]
struct PerfScript {
    /// Chunks that perf's warning says were lost.
    lost_chunks: u64,
}

impl PerfScript {
    /// `# hostname : vmhost`
    fn header(line: &[u8], recording: &mut Recording) -> Option<()> {
        let (key, value) = split_once(line.strip_prefix(b"# ")?, b" : ")?;
        let value = String::from_utf8_lossy(trim(value)).into_owned();
        match trim(key) {
            b"hostname" => recording.hostname = value,
            b"os release" => recording.kernel = value,
            b"perf version" => recording.tool = format!("perf {value}"),
            b"arch" => recording.arch = value,
            b"nrcpus online" => recording.cpus = decimal_u32(value.as_bytes())?,
            b"cpudesc" => {
                recording.emulated = Recording::emulator_of_cpu(&value);
                recording.cpu = value;
            }
            b"cmdline" => recording.command = value,
            b"captured on" => {}
            _ => return None,
        }
        Some(())
    }

    /// `Processed 84286 events and lost 2 chunks!`, which perf writes to standard error.
    fn warning(line: &[u8]) -> Option<u64> {
        let (_, rest) = split_once(line.strip_prefix(b"Processed ")?, b" events and lost ")?;
        let (chunks, _) = split_once(rest, b" chunks!")?;
        decimal(chunks)
    }
}

impl TextFormat for PerfScript {
    const NAME: &'static str = "perf script";

    fn dialect(head: &[u8]) -> ThreadDialect {
        let reads = |dialect| move |line: &&[u8]| EventLine::read(line, dialect).is_some();
        let lines = || head_lines(head).filter(|line| line.first() != Some(&b'#'));
        let events = lines().filter(reads(ThreadDialect::PerfScript)).count();
        let latency = lines().filter(reads(ThreadDialect::PerfLatency));
        // With the CPU in brackets a line reads the same in both.
        let unlike = |line: &&[u8]| {
            let read = |dialect| EventLine::read(line, dialect).map(|read| (read.tid, read.cpu));
            read(ThreadDialect::PerfLatency) != read(ThreadDialect::PerfScript)
        };
        let latency = latency.filter(unlike).count();
        if latency * 10 > events * 9 {
            ThreadDialect::PerfLatency
        } else {
            ThreadDialect::PerfScript
        }
    }

    fn sampling(head: &[u8]) -> Result<Option<SampleWeight>, Error> {
        let mut names = HashSet::new();
        let mut weight = None;
        for line in head_lines(head) {
            if let Some(event) = line.strip_prefix(b"# event : name = ") {
                let Some((name, rest)) = split_once(event, b",") else { continue };
                if !names.insert(name) && name.starts_with(b"kvm:") {
                    return Err(twice(&String::from_utf8_lossy(name)));
                }
                if name == b"kvm:kvm_exit" {
                    weight = of_header(rest);
                }
            } else if let Some(line) = EventLine::read(line, ThreadDialect::PerfScript)
                && line.period.is_some_and(|period| period > 1)
            {
                return Ok(Some(SampleWeight::InSample));
            }
        }
        // The text may lack the periods that the recording has.
        Ok(weight.map(|weight| match weight {
            SampleWeight::InSample if !has_periods(head) => SampleWeight::Unknown,
            other => other,
        }))
    }

    fn other(&mut self, line: &[u8], about: &mut Imported) -> Result<OtherLine, Error> {
        if Self::header(line, &mut about.recording).is_some() {
            return Ok(OtherLine::Header);
        }
        if let Some(chunks) = Self::warning(line) {
            self.lost_chunks = self.lost_chunks.saturating_add(chunks);
            return Ok(OtherLine::Header);
        }
        Ok(OtherLine::Skip)
    }

    fn record(line: &EventLine<'_>) -> Option<EventKind> {
        match line.event {
            b"PERF_RECORD_LOST" | b"PERF_RECORD_LOST_SAMPLES" => {
                let mut words = TextWords::new(line.payload);
                words.next().filter(|w| *w == b"lost")?;
                Some(EventKind::Lost { count: words.next().and_then(decimal).unwrap_or(0) })
            }
            event if event.starts_with(b"PERF_RECORD_EXIT(") => Some(EventKind::ThreadEnd),
            _ => None,
        }
    }

    fn finish(&mut self, counted: u64, about: &mut Imported) {
        if counted > 0 {
            return;
        }
        let losses = &mut about.losses;
        losses.recorder_gaps = losses.recorder_gaps.saturating_add(self.lost_chunks);
        losses.notes.push(
            "perf script shows lost events only with --show-lost-events, and this text shows none"
                .to_owned(),
        );
    }
}

/// `..., { sample_period, sample_freq } = 10, sample_type = IP|TID|..., ..., freq = 1, ...`.
fn of_header(event: &[u8]) -> Option<SampleWeight> {
    let after = |label: &[u8]| {
        let (_, rest) = split_once(event, label)?;
        split_once(rest, b",").map(|(value, _)| value)
    };
    let period = decimal(after(b"{ sample_period, sample_freq } = ")?)?;
    let notes_period = split_once(after(b"sample_type = ")?, b"PERIOD").is_some();
    let is_frequency = split_once(event, b" freq = 1").is_some();
    SampleWeight::of_attribute(period, is_frequency, notes_period)
}

/// Whether lines have the period of their sample.
fn has_periods(head: &[u8]) -> bool {
    let mut lines =
        head_lines(head).filter_map(|line| EventLine::read(line, ThreadDialect::PerfScript));
    lines.any(|line| line.period.is_some())
}
