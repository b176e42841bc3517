//! The text of `perf report --stdio`: functions with their shares, most first. Call chains below them are left out: a function
//! is a stack of itself.
//!
//! ```text
//! # Samples: 31  of event 'cpu-clock'
//! # Children      Self  Command  Shared Object         Symbol
//!     87.10%    48.39%  hot      hot                   [.] compute
//! ```
//!
//! A share becomes a weight in hundredths of a percent. `Self` counts where there is `Children`, else `Overhead`.

use std::io::Read;

use super::Sum;
use crate::Error;
use crate::import::text::lines::Lines;
use crate::import::text::{UNTERMINATED, is_text};

/// How a symbol is marked: kernel, user, guest kernel, guest user, hypervisor, none.
const MARKS: [&str; 6] = ["[k] ", "[.] ", "[g] ", "[u] ", "[H] ", "[!] "];

/// Whether these first bytes are such a text.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && String::from_utf8_lossy(head).lines().any(|line| heading(line).is_some())
}

/// A line of titles: which of a row's shares counts, and whether symbols are in it.
fn heading(line: &str) -> Option<(usize, bool)> {
    let mut words = line.strip_prefix('#')?.split_whitespace();
    let shares = match (words.next()?, words.next()?) {
        ("Overhead", next) if next != "sys" => 0,
        ("Children", "Self") => 1,
        _ => return None,
    };
    Some((shares, line.contains("Symbol")))
}

pub(super) fn read(input: &mut dyn Read, sum: &mut Sum) -> Result<(), Error> {
    let mut lines = Lines::new(input);
    let mut titles = None;
    let mut events = 0;
    loop {
        let offset = lines.offset();
        let Some(line) = lines.next()? else { break };
        let line = String::from_utf8_lossy(line);
        if line.starts_with("# Samples: ") {
            events += 1;
        }
        if events > 1 {
            sum.losses.notes.push("only the first event of the report is used".to_owned());
            break;
        }
        if let Some((share, has_symbols)) = heading(&line) {
            if !has_symbols {
                let problem =
                    "has no column Symbol: run `perf report --stdio --sort comm,dso,symbol`";
                return Err(Error::malformed(offset, "perf report", problem));
            }
            titles = Some(share);
            continue;
        }
        let Some(which) = titles.filter(|_| !line.starts_with('#')) else { continue };
        let Some((share, name)) = row(&line, which) else { continue };
        sum.add(&super::one_frame(name), share);
    }
    sum.losses.undecodable += lines.cut;
    if lines.is_unterminated() && events <= 1 {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    Ok(())
}

/// A row's share and symbol. Lines of call chains have no mark behind a share at their start.
fn row(line: &str, which: usize) -> Option<(u64, &str)> {
    let mut shares = line.split_whitespace().map_while(|word| word.strip_suffix('%'));
    let share: f64 = shares.nth(which)?.parse().ok()?;
    let at = MARKS.iter().filter_map(|mark| Some((line.find(mark)?, mark.len()))).min()?;
    // "foo  -      -" where perf prints more columns behind the symbol.
    let name = line.get(at.0 + at.1..)?.split("  ").next().unwrap_or_default().trim();
    let weight = (share * 100.0).round() as u64;
    ((0.0..=100.0).contains(&share) && !name.is_empty()).then_some((weight, name))
}
