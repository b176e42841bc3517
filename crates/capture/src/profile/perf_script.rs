//! The text of `perf script`: for each sample a line of who and when, and a line for each function of its call chain,
//! innermost first; or, without call chains, all in one line.
//!
//! ```text
//! qemu-system-x86  4711 [002] 6544038.708352:     250000 cpu-clock:ppp:
//!         ffffffff8103ce3b vmx_vcpu_run+0x3b ([kvm_intel])
//!             7f533952bc77 ioctl+0x17 (/usr/lib/libc.so.6)
//! ```
//!
//! A sample weighs its period, where that is printed. Samples of one event are added up, the first: sums of cycles and
//! of cache misses would be of nothing.

use std::io::Read;

use super::StackSum;
use crate::Error;
use crate::import::text::lines::TextLines;
use crate::import::text::{UNTERMINATED, is_text};

/// Longer chains than perf prints.
const LONGEST_CHAIN: usize = 2048;

/// Whether these first bytes are such a text: a sample's line and a frame's.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let text = String::from_utf8_lossy(head);
        let mut lines =
            text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        match (lines.next().and_then(SampleHead::read), lines.next()) {
            (Some(head), next) => {
                head.frame.is_some() || next.is_some_and(|line| frame(line).is_some())
            }
            _ => false,
        }
    }
}

pub(super) fn read(input: &mut dyn Read, sum: &mut StackSum) -> Result<(), Error> {
    let mut lines = TextLines::new(input);
    let mut sample: Option<ScriptSample> = None;
    let mut event: Option<String> = None;
    let mut others = 0u64;
    while let Some(line) = lines.next()? {
        let line = String::from_utf8_lossy(line);
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sample.take().into_iter().for_each(|sample| sample.add(sum));
            continue;
        }
        if let (Some(sample), Some(function)) = (&mut sample, frame(&line)) {
            if sample.chain.len() < LONGEST_CHAIN {
                sample.chain.push(function);
            }
            continue;
        }
        sample.take().into_iter().for_each(|sample| sample.add(sum));
        let Some(head) = SampleHead::read(&line) else {
            sum.losses.undecodable += 1;
            continue;
        };
        if event.get_or_insert_with(|| head.event.to_owned()) != head.event {
            others += 1;
            // Its frames are of no sample.
            sample = Some(ScriptSample { period: 0, thread: String::new(), chain: Vec::new() });
            continue;
        }
        let mut next = ScriptSample {
            period: head.period,
            thread: super::one_frame(head.thread),
            chain: Vec::new(),
        };
        match head.frame {
            Some(function) => {
                next.chain.push(function);
                next.add(sum);
            }
            None => sample = Some(next),
        }
    }
    sample.into_iter().for_each(|sample| sample.add(sum));
    sum.losses.undecodable += lines.cut;
    if lines.is_unterminated() {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    if let (Some(event), 1..) = (event, others) {
        let place = sum.profile.place.name();
        sum.losses.notes.push(format!(
            "{place} profile: {others} samples of other events than {event:?} are left out"
        ));
    }
    Ok(())
}

/// A sample that is being read.
struct ScriptSample {
    /// Events that it represents.
    period: u64,
    /// Empty: of another event.
    thread: String,
    /// Innermost first.
    chain: Vec<String>,
}

impl ScriptSample {
    fn add(self, sum: &mut StackSum) {
        if self.thread.is_empty() || self.chain.is_empty() {
            return;
        }
        let mut stack = self.thread;
        for function in self.chain.iter().rev() {
            stack.push(';');
            stack.push_str(function);
        }
        sum.add(&stack, self.period);
    }
}

/// A sample's first line.
struct SampleHead<'a> {
    thread: &'a str,
    /// 1 where it is not said.
    period: u64,
    event: &'a str,
    /// The only function, if it is on the same line.
    frame: Option<String>,
}

impl SampleHead<'_> {
    fn read(line: &str) -> Option<SampleHead<'_>> {
        // The thread's name may have spaces and digits in it; the first word of digits alone is its number.
        let mut at = 0;
        let (thread, mut rest) = loop {
            let from = at + line[at..].find(|c: char| !c.is_whitespace())?;
            let to = line[from..].find(char::is_whitespace).map(|len| from + len)?;
            let word = &line[from..to];
            let is_number = word.split('/').all(is_digits) && word.split('/').count() <= 2;
            if is_number && from > 0 && !line[..from].trim().is_empty() {
                break (line[..from].trim(), &line[to..]);
            }
            at = to;
        };
        // A CPU, a time and a period may follow, then the event.
        let mut period = 1;
        loop {
            rest = rest.trim_start();
            let to = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let word = &rest[..to];
            rest = &rest[to..];
            let is_place = word.starts_with('[') && word.ends_with(']');
            if is_digits(word) {
                period = word.parse().ok()?;
                continue;
            }
            let is_time = word.strip_suffix(':').is_some_and(|time| time.split('.').all(is_digits));
            if is_place || is_time {
                continue;
            }
            let event = word.strip_suffix(':').filter(|event| !event.is_empty())?;
            return Some(SampleHead { thread, period, event, frame: frame(rest) });
        }
    }
}

fn is_digits(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

/// The function of a frame's line: address, name and offset, file in parentheses.
fn frame(line: &str) -> Option<String> {
    let (address, rest) = line.trim().split_once(' ')?;
    if address.is_empty() || !address.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    // A deleted file: "(/usr/lib/libc.so.6 (deleted))".
    let rest = rest.trim();
    let rest = rest.strip_suffix(" (deleted))").unwrap_or(rest).trim_end_matches(')');
    let (name, file) = match rest.rfind(" (") {
        Some(at) => (rest[..at].trim(), &rest[at + 2..]),
        // No symbol at all.
        None => ("", rest.strip_prefix('(')?),
    };
    let name = match name.rsplit_once("+0x") {
        Some((name, offset)) if offset.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => name,
    };
    if name.is_empty() || name == "[unknown]" {
        return Some(super::of_file(file));
    }
    Some(super::one_frame(name))
}
