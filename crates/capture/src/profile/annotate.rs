//! The text of `perf annotate --stdio`: the instructions of one function, each with its share of the samples.
//!
//! ```text
//!  Percent |      Source code & Disassembly of benchdnn for cycles (5198 samples, percent: local period)
//!          :      00000000000011c9 <compute_ref_matmul>:
//!    20.12 :   11d5:       movss  (%rax),%xmm0
//! ```
//!
//! A share becomes a weight in hundredths of a percent.

use std::io::Read;

use super::Sum;
use crate::Error;
use crate::import::text::lines::Lines;
use crate::import::text::{UNTERMINATED, is_text};

/// How the head of a function begins.
const HEAD: &str = "Percent";

/// Whether these first bytes are such a text.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let text = String::from_utf8_lossy(head);
        text.lines().any(is_head)
    }
}

fn is_head(line: &str) -> bool {
    line.trim_start().strip_prefix(HEAD).is_some_and(|rest| {
        rest.trim_start().starts_with(['|', '│']) && rest.contains("Disassembly of")
    })
}

pub(super) fn read(input: &mut dyn Read, sum: &mut Sum) -> Result<(), Error> {
    let mut lines = Lines::new(input);
    let mut function = String::from("[unknown]");
    let mut heads = 0;
    while let Some(line) = lines.next()? {
        let line = String::from_utf8_lossy(line);
        if is_head(&line) {
            heads += 1;
        }
        // The hottest function comes first.
        if heads > 1 {
            break;
        }
        let Some((share, text)) = line.split_once([':', '|', '│']) else { continue };
        let text = text.trim();
        if let Some(name) = text.split_once(" <").and_then(|(_, name)| name.strip_suffix(">:")) {
            name.clone_into(&mut function);
            continue;
        }
        let Some(share) = share.split_whitespace().next().and_then(hundredths) else { continue };
        let Some((address, instruction)) = text.split_once(':') else { continue };
        let is_address = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_address || instruction.trim().is_empty() {
            continue;
        }
        let words: Vec<&str> = instruction.split_whitespace().collect();
        let frame = super::one_frame(&format!("{address} {}", words.join(" ")));
        sum.add(&format!("{};{frame}", super::one_frame(&function)), share);
    }
    sum.losses.undecodable += lines.cut;
    if lines.unterminated && heads <= 1 {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    if heads > 1 {
        sum.losses.notes.push("only the first annotated function is used".to_owned());
    }
    Ok(())
}

/// `20.12` as 2012.
fn hundredths(share: &str) -> Option<u64> {
    let share: f64 = share.trim_end_matches('%').parse().ok()?;
    (0.0..=100.0).contains(&share).then(|| (share * 100.0).round() as u64)
}
