//! Lines of `NAME: COUNT`, as the bpftrace scripts of CVM_eval print them: exits in lines of their own, requests of guests with
//! encrypted registers (GHCB) indented below them; second by second between lines of dashes.
//!
//! ```text
//! Attaching 5 probes...
//! --------------------
//! INTR: 13
//! VMGEXIT: 40
//!   MSR: 15
//!   MMIO_WRITE: 25
//! ```

use vmtax_events::Detail;

use super::{CountsTable, at_line};
use crate::Error;
use crate::import::spelling::{Spelled, request, spelled};

/// Lines that make such a text.
const ENOUGH: usize = 2;

/// A line's name and count, and whether it is indented.
fn line(text: &str) -> Option<(bool, &str, u64)> {
    // A terminal shows how the script was ended.
    let text = text.strip_prefix("^C").unwrap_or(text);
    let (name, count) = text.trim_end().rsplit_once(':')?;
    let count = count.strip_prefix(' ')?;
    let is_count = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    let known = name.trim();
    let is_name =
        !known.is_empty() && known.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (is_count && is_name).then_some((name.starts_with(' '), known, count.parse().ok()?))
}

fn is_rule(line: &str) -> bool {
    line.len() >= 4 && line.bytes().all(|b| b == b'-')
}

pub(super) fn recognise(text: &str) -> bool {
    let exits = text.lines().filter_map(line).filter(|(_, name, _)| spelled(name).is_some());
    let enough = exits.take(ENOUGH).count();
    // Maps that bpftrace prints itself are another format.
    let has_maps = text.lines().any(|line| line.starts_with('@'));
    !has_maps && (enough >= ENOUGH || enough == 1 && text.starts_with("Attaching"))
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let (mut intervals, mut unknown) = (0u64, 0u64);
    for (number, text) in text.lines().enumerate() {
        if is_rule(text) {
            intervals += 1;
            continue;
        }
        if text.starts_with("Unknown ") && text.contains(" reason!") {
            unknown += 1;
        }
        let Some((is_indented, name, count)) = line(text) else { continue };
        if is_indented {
            let code = request(name).ok_or_else(|| {
                at_line(number, &format!("has {name:?}, which is no request of an SEV-ES guest"))
            })?;
            table.request(code, count);
        } else {
            let name: Spelled = spelled(name).ok_or_else(|| {
                at_line(number, &format!("has {name:?}, which is no exit reason of x86"))
            })?;
            table.count(name, Detail::NONE, count);
        }
    }
    if unknown > 0 {
        table.truncated.push(format!(
            "the script met {unknown} exits that it has no name for: they are in no count"
        ));
    }
    if intervals > 1 {
        table.notes.push(format!(
            "the text has {intervals} intervals, which were added up: if each is a second, give --length {intervals}s"
        ));
    }
    Ok(())
}
