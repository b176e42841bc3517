//! Folded stacks: `outermost;...;innermost 12`, a line each.

use std::io::Read;

use super::StackSum;
use crate::Error;
use crate::import::text::lines::TextLines;
use crate::import::text::{UNTERMINATED, head_lines, is_text};

/// Lines that are looked at.
const LOOKED_AT: usize = 50;

/// Whether these first bytes are folded stacks.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let mut lines = head_lines(head).filter(|line| !line.is_empty()).take(LOOKED_AT).peekable();
        lines.peek().is_some() && lines.all(|line| split(line).is_some())
    }
}

pub(super) fn read(input: &mut dyn Read, sum: &mut StackSum) -> Result<(), Error> {
    let mut lines = TextLines::new(input);
    while let Some(line) = lines.next()? {
        if line.is_empty() {
            continue;
        }
        match split(line) {
            Some((stack, weight)) => sum.add(&String::from_utf8_lossy(stack), weight),
            None => sum.losses.undecodable += 1,
        }
    }
    sum.losses.undecodable += lines.cut;
    if lines.is_unterminated() {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    Ok(())
}

/// A stack and its weight. A differential profile has two weights: that is not one profile.
fn split(line: &[u8]) -> Option<(&[u8], u64)> {
    let at = line.iter().rposition(|&b| b == b' ')?;
    let (stack, weight) = (line[..at].trim_ascii(), line[at + 1..].trim_ascii());
    let weight = std::str::from_utf8(weight).ok()?.parse().ok()?;
    // A line such as "@reason[1]: 2" is of another kind of table.
    (!stack.is_empty() && !stack.ends_with(b":")).then_some((stack, weight))
}
