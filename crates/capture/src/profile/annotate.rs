//! The text of `perf annotate`: the instructions of one function, each with its share of the samples.
//!
//! ```text
//!  Percent |      Source code & Disassembly of benchdnn for cycles (5198 samples, percent: local period)
//!          :      00000000000011c9 <compute_ref_matmul>:
//!    20.12 :   11d5:       movss  (%rax),%xmm0                               --stdio; with -n "Samples |" and counts
//!
//! Samples: 15  of event 'cpu-clock', 4000 Hz, Event count (approx.): 3750000, [percent: local period]
//! compute_ref_matmul() /usr/bin/benchdnn
//! Percent
//!  20.12  1a:   movss  (%rax),%xmm0                                          --stdio2: no addresses, jumps have labels
//! ```
//!
//! A copy of the screen has neither: a bar is between the shares and the instructions, and names of source lines between these.
//!
//! A share becomes a weight in hundredths of a percent, a count is the weight. Without addresses the instructions are
//! numbered.

use std::io::Read;

use super::StackSum;
use crate::Error;
use crate::import::text::lines::TextLines;
use crate::import::text::{UNTERMINATED, is_text};

/// Beginning of a function's header: shares, samples (-n), or counts of the event.
const HEADS: [&str; 3] = ["Percent", "Samples", "Event count"];
/// Instructions with a share that make the copy of a screen.
const ENOUGH: usize = 2;
/// Most instructions of a function.
const MOST: usize = 1 << 20;

/// Whether these first bytes are such a text.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let text = String::from_utf8_lossy(head);
        text.lines().any(is_head) || is_numbered(&text) || is_screen(&text)
    }
}

/// Whether it is a copy of the screen of `perf annotate`.
fn is_screen(text: &str) -> bool {
    if !text.contains('│') && !text.contains('|') {
        return false;
    }
    let has_share = |line: &&str| screen_line(line).is_some_and(|line| line.share.is_some());
    text.lines().filter(has_share).take(ENOUGH).count() == ENOUGH
}

/// `20.00 │      movss  (%rsi,%rax,4),%xmm1`, where the share may be missing.
fn screen_line(line: &str) -> Option<AnnotatedLine> {
    let (share, text) = line.split_once(['│', '|'])?;
    let is_share = share.trim().is_empty() || weight(share.trim()).is_some();
    is_share.then(|| instruction(&format!("{share} {text}")))?
}

/// Whether it is the text of `--stdio2`.
fn is_numbered(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("Samples: "));
    let event = lines.next().is_some_and(|line| line.contains(" of event"));
    let function = lines
        .next()
        .is_some_and(|line| line.split(' ').next().is_some_and(|name| name.contains('(')));
    event && function && lines.next().is_some_and(|line| HEADS.contains(&line.trim()))
}

fn is_head(line: &str) -> bool {
    let line = line.trim_start();
    HEADS
        .iter()
        .filter_map(|head| line.strip_prefix(head))
        .any(|rest| rest.trim_start().starts_with(['|', '│']) && rest.contains("Disassembly of"))
}

pub(super) fn read(input: &mut dyn Read, sum: &mut StackSum) -> Result<(), Error> {
    let mut lines = TextLines::new(input);
    let mut function = String::from("[unknown]");
    let mut heads = 0;
    let mut first: Option<Numbered> = None;
    let mut screen = Numbered::default();
    while let Some(line) = lines.next()? {
        let line = String::from_utf8_lossy(line);
        if is_head(&line) || line.starts_with("Samples: ") && line.contains(" of event") {
            heads += 1;
            if heads == 1 && line.starts_with("Samples: ") {
                first = Some(Numbered::default());
            }
        }
        // The hottest function comes first.
        if heads > 1 {
            break;
        }
        if let Some(numbered) = &mut first {
            numbered.line(&line);
            continue;
        }
        if line.contains("[Percent:") {
            screen.function = line.split_whitespace().next().map(super::one_frame);
        } else if screen.lines.len() < MOST {
            screen.lines.extend(screen_line(&line));
        }
        let Some((share, text)) = line.split_once([':', '|', '│']) else { continue };
        let text = text.trim();
        if let Some(name) = text.split_once(" <").and_then(|(_, name)| name.strip_suffix(">:")) {
            name.clone_into(&mut function);
            continue;
        }
        let Some(share) = share.split_whitespace().next().and_then(weight) else { continue };
        let Some((address, instruction)) = text.split_once(':') else { continue };
        let is_address = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_address || instruction.trim().is_empty() {
            continue;
        }
        let words: Vec<&str> = instruction.split_whitespace().collect();
        let frame = super::one_frame(&format!("{address} {}", words.join(" ")));
        sum.add(&format!("{};{frame}", super::one_frame(&function)), share);
    }
    if let Some(numbered) = first {
        numbered.finish(sum);
    } else if heads == 0 && sum.profile.stacks.is_empty() {
        screen.finish(sum);
    }
    sum.losses.undecodable += lines.cut;
    if lines.is_unterminated() && heads <= 1 {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    if heads > 1 {
        sum.losses.notes.push("only the first annotated function is used".to_owned());
    }
    Ok(())
}

/// The text of `--stdio2` while it is read.
#[derive(Default)]
struct Numbered {
    function: Option<String>,
    /// The head of the columns was seen.
    inside: bool,
    /// Instructions, and lines that may be one: share, column and text.
    lines: Vec<AnnotatedLine>,
}

struct AnnotatedLine {
    share: Option<u64>,
    /// A label, or the arrow of a jump, precedes it.
    marked: bool,
    column: usize,
    text: String,
}

impl Numbered {
    fn line(&mut self, line: &str) {
        if line.starts_with("Samples: ") {
            return;
        }
        if self.function.is_none() {
            // "compute() /tmp/hot"
            let name = line.split(' ').next().unwrap_or_default().trim_end_matches("()");
            self.function = Some(super::one_frame(name));
        } else if !self.inside {
            self.inside = HEADS.contains(&line.trim());
        } else if self.lines.len() < MOST {
            self.lines.extend(instruction(line));
        }
    }

    /// The column of instructions, which distinguishes them from source lines: that of lines with a share or a mark.
    fn finish(self, sum: &mut StackSum) {
        let function = self.function.unwrap_or_else(|| "[unknown]".to_owned());
        let known = |line: &&AnnotatedLine| line.share.is_some() || line.marked;
        let Some(column) = self.lines.iter().filter(known).map(|line| line.column).min() else {
            return;
        };
        let is_source = |line: &AnnotatedLine| {
            !known(&line)
                && (line.text.ends_with([';', '{', '}', ',']) || line.text.contains(" = "))
        };
        let instructions =
            self.lines.iter().filter(|line| line.column == column && !is_source(line));
        for (number, line) in instructions.enumerate() {
            let frame = super::one_frame(&format!("{number:x} {}", line.text));
            sum.add(&format!("{function};{frame}"), line.share.unwrap_or(0));
        }
    }
}

/// A line's share and instruction: `66.67  1a:   mulsd  (%rdi),%xmm0`, where share and label may be missing.
fn instruction(line: &str) -> Option<AnnotatedLine> {
    let (mut share, mut marked) = (None, false);
    let column = |rest: &str| line.chars().count() - rest.chars().count();
    let mut rest = line.trim_start();
    if let Some((word, behind)) = rest.split_once(' ')
        && let Some(weight) = word.parse::<f64>().ok().and_then(|_| weight(word))
    {
        share = Some(weight);
        rest = behind.trim_start();
    }
    if let Some((label, behind)) = rest.split_once(':')
        && !label.is_empty()
        && label.bytes().all(|b| b.is_ascii_hexdigit())
    {
        marked = true;
        rest = behind.trim_start();
    }
    let arrows = ['↓', '↑', '→', '←', '│', '┌', '└', '╴', '─'];
    if let Some(behind) = rest.strip_prefix(arrows) {
        marked = true;
        rest = behind.trim_start_matches(arrows).trim_start();
    }
    let column = column(rest);
    let words: Vec<&str> = rest.split_whitespace().collect();
    let name = words.first()?;
    let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.');
    let text = words.join(" ");
    (is_name && name.starts_with(|c: char| c.is_ascii_lowercase())).then_some(AnnotatedLine {
        share,
        marked,
        column,
        text,
    })
}

/// `20.12` (a share) as 2012; a count as it is.
fn weight(word: &str) -> Option<u64> {
    if let Ok(count) = word.parse::<u64>() {
        return (count < 1 << 48).then_some(count);
    }
    let share: f64 = word.trim_end_matches('%').parse().ok()?;
    (0.0..=100.0).contains(&share).then(|| (share * 100.0).round() as u64)
}
