//! Tables whose columns are apart by tabs or by two spaces and more.
//!
//! ```text
//! NAME                  WORKLOAD         Bandwidth      IOPS
//! cache-auto            randread-psync   35(MiB/s)      9191
//! cache-auto-1-thread   randread-psync   55(MiB/s)      13k
//! ```

use std::collections::BTreeMap;

use super::blocks::PostedTable;
use super::names_metric;
use super::value::{known, unit_in, value};

/// A longer cell is a sentence.
const CELL: usize = 40;

/// Tables of set-ups, and those whose head stands more than once, by their first line; each with the line behind it.
pub(super) fn tables(lines: &[&str]) -> BTreeMap<usize, (PostedTable, usize)> {
    let mut all = BTreeMap::new();
    let mut at = 0;
    while at < lines.len() {
        let found = table(&lines[at..]);
        let used = found.as_ref().map_or(1, |(.., used)| *used);
        if let Some((head, rows, used)) = found {
            let table = PostedTable { is_spaced: true, head, rows, ..PostedTable::default() };
            all.insert(at, (table, at + used));
        }
        at += used;
    }
    let heads: Vec<Vec<String>> = all.values().map(|(table, _)| table.head.clone()).collect();
    all.retain(|_, (table, _)| {
        table.is_of_setups() || heads.iter().filter(|head| **head == table.head).count() > 1
    });
    all
}

/// The head and the rows of a table that begins with the first line, and how many lines it has.
fn table(lines: &[&str]) -> Option<(Vec<String>, Vec<Vec<String>>, usize)> {
    let (first, rest) = lines.split_first()?;
    let mut head = cells(first);
    let is_head = |cell: &String| {
        value(cell).is_none()
            && cell.chars().any(char::is_alphabetic)
            && !cell.contains(['=', ':', '$', '<', '[', '{', '"'])
    };
    let is_title = first.trim_end().ends_with('.') || first.contains('|');
    if head.len() < 2 || is_title || !head.iter().all(is_head) {
        return None;
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let (mut used, mut left) = (1, 0);
    for (at, line) in (2..).zip(rest) {
        let text = line.trim();
        let is_rule = !text.is_empty() && text.chars().all(|c| "-=+ ".contains(c));
        if text.is_empty() || is_rule {
            // What stands behind an empty line may be another table of this head, and is a row then.
            continue;
        }
        let mut row = cells(line);
        if rows.is_empty() && at == 2 && row.iter().all(|cell| is_part_of_head(cell)) {
            let from = head.len().checked_sub(row.len())?;
            head[from..].iter_mut().zip(&row).for_each(|(head, more)| {
                head.push(' ');
                head.push_str(more);
            });
            used = at;
            continue;
        }
        if rows.is_empty() {
            left = indent(line);
            let is_cornered = row.len() == head.len() + 1 || left < indent(first);
            if is_cornered {
                head.insert(0, String::new());
            }
        }
        if row.len() + 1 == head.len() {
            match rows.last() {
                // A name that stands once is of the rows below it, too.
                Some(above) if indent(line) > left => row.insert(0, above[0].clone()),
                _ => row.push(String::new()),
            }
        }
        let has_name = row.first().is_some_and(|cell| value(cell).is_none());
        let has_value = row.iter().skip(1).any(|cell| value(cell).is_some());
        if row.len() != head.len() || !has_name || !has_value {
            break;
        }
        rows.push(row);
        used = at;
    }
    let is_measured = |(at, head): (usize, &String)| {
        unit_in(head).is_some()
            || rows.iter().any(|row| value(&row[at]).is_some_and(|found| found.unit.is_some()))
    };
    let is_table = rows.len() > 1 && head.iter().enumerate().skip(1).any(is_measured);
    is_table.then_some((head, rows, used))
}

/// A second line of a head: `(MB/s)`, `utilization`.
fn is_part_of_head(cell: &str) -> bool {
    let inside = cell.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    inside.is_some_and(|unit| known(unit).is_some() || unit.len() == 1)
        || cell == "utilization"
        || names_metric(cell) && value(cell).is_none()
}

/// Columns before a line's text.
fn indent(line: &str) -> usize {
    let blank = line.chars().take_while(|c| c.is_whitespace());
    blank.map(|c| if c == '\t' { 8 } else { 1 }).sum()
}

fn cells(line: &str) -> Vec<String> {
    let line = line.replace('\t', "  ");
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    let cells: Vec<String> = cells.map(str::to_owned).collect();
    if cells.iter().any(|cell| cell.chars().count() > CELL) { Vec::new() } else { cells }
}
