//! Rows of a reason and its count without a head, as people copy them from other tables: a count and perhaps a share, before or behind the name.
//!
//! ```text
//! EPT_VIOLATION   760,998   54.85%
//! MSR_WRITE       170,599   12.30%
//! ```
//!
//! Shares alone are no counts: they can be of the time. Names in capitals only, as words of prose are not.

use vmtax_events::Detail;

use super::{CountsTable, at_line};
use crate::Error;
use crate::import::spelling::{Spelled, spelled};

/// Rows that make such a text.
const ENOUGH: usize = 3;
/// Points of a percent that a share may be off the counts.
const OFF: f64 = 1.0;

/// A row's name, count and share.
struct BareRow<'l> {
    name: &'l str,
    reason: Spelled,
    count: u64,
    share: Option<f64>,
}

fn row(line: &str) -> Option<BareRow<'_>> {
    let (mut name, mut count, mut share) = (None, None, None);
    for word in line.split(|c: char| c.is_whitespace() || c == '|').filter(|word| !word.is_empty())
    {
        let word = word.trim_end_matches(':');
        if let Some(percent) = word.strip_suffix('%') {
            let percent: f64 = percent.parse().ok()?;
            if share.replace(percent).is_some() {
                return None;
            }
        } else if word.starts_with(|c: char| c.is_ascii_digit()) {
            if count.replace(number(word)?).is_some() {
                return None;
            }
        } else {
            let is_name =
                word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
            let reason = is_name.then(|| spelled(word)).flatten()?;
            if name.replace((word, reason)).is_some() {
                return None;
            }
        }
    }
    let (name, reason) = name?;
    Some(BareRow { name, reason, count: count?, share })
}

/// A whole number, in groups of three or not.
fn number(word: &str) -> Option<u64> {
    let mut groups = word.split(',');
    let first = groups.next()?;
    let is_grouped =
        groups.clone().all(|group| group.len() == 3) && (first.len() <= 3 || !word.contains(','));
    let digits: String = std::iter::once(first).chain(groups).collect();
    (is_grouped && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

pub(super) fn recognise(text: &str) -> bool {
    text.lines().filter_map(row).take(ENOUGH).count() == ENOUGH
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let rows: Vec<(usize, BareRow<'_>)> =
        text.lines().enumerate().filter_map(|(number, line)| Some((number, row(line)?))).collect();
    for (at, (number, one)) in rows.iter().enumerate() {
        if rows[..at].iter().any(|(_, before)| before.name == one.name) {
            let problem =
                format!("has {} a second time: give each table in a file of its own", one.name);
            return Err(at_line(*number, &problem));
        }
        table.count(one.reason, Detail::NONE, one.count);
    }
    // Rows can be left out, so shares may be of more than is here.
    let all = rows.iter().map(|(_, row)| row.count).fold(0, u64::saturating_add) as f64;
    let of_counts = |row: &BareRow<'_>| Some((row.share?, 100.0 * row.count as f64 / all.max(1.0)));
    if let Some((number, _)) =
        rows.iter().find(|(_, row)| of_counts(row).is_some_and(|(share, part)| share > part + OFF))
    {
        let problem = "has a share that is not of these numbers: are they counts of exits? `perf kvm stat report` has both with their titles";
        return Err(at_line(*number, problem));
    }
    if rows.iter().filter_map(|(_, row)| row.share).sum::<f64>() < 100.0 - OFF
        && rows.iter().any(|(_, row)| row.share.is_some())
    {
        table
            .truncated
            .push("the table's shares are less than everything: rows were left out".to_owned());
    }
    table
        .notes
        .push("the table has no titles: its numbers are taken for counts of exits".to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_name_and_a_count() {
        for text in [
            "EPT_VIOLATION 760,998 54.85%",
            "| EPT_VIOLATION | 760998 |",
            "54.85% 760998 EPT_VIOLATION",
            "EPT_VIOLATION: 760998",
        ] {
            let found = row(text).unwrap();
            assert_eq!((found.name, found.count), ("EPT_VIOLATION", 760_998), "{text}");
        }
        // Shares alone, times, prose, two numbers.
        for text in [
            "EPT_VIOLATION 54.85%",
            "HLT 12.5",
            "HLT 12us",
            "IO 5 MSR 6",
            "interrupt 5",
            "HLT 3 4",
            "HLT 1,23",
            "",
        ] {
            assert!(row(text).is_none(), "{text}");
        }
    }
}
