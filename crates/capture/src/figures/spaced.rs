//! Tables whose columns are apart by tabs or by two spaces and more.
//!
//! ```text
//! NAME                  WORKLOAD         Bandwidth      IOPS
//! cache-auto            randread-psync   35(MiB/s)      9191
//! cache-auto-1-thread   randread-psync   55(MiB/s)      13k
//! ```
//! Blanks make a table of any listing: only tables of set-ups are kept ([`PostedTable::is_of_setups`]).

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{COLUMNS, PostedTable, is_named, is_rule};
use super::names_metric;
use super::value::{known, unit_in, value};

/// A longer cell is a sentence.
const CELL: usize = 40;

/// Tables of set-ups by their first line, each with the line behind it.
pub(super) fn tables(lines: &[&str]) -> BTreeMap<usize, (PostedTable, usize)> {
    let lines: Vec<&str> = lines.iter().map(|line| unquoted(line)).collect();
    let mut all = BTreeMap::new();
    let mut at = 0;
    while at < lines.len() {
        let found = table(&lines[at..]);
        let found = found.filter(|(table, _)| table.is_of_setups());
        let used = found.as_ref().map_or(1, |(_, used)| *used);
        all.extend(found.map(|(table, _)| (at, (table, at + used))));
        at += used;
    }
    all
}

/// Without the marks of quoted mail; what stands behind them keeps its place.
fn unquoted(line: &str) -> &str {
    let bare = line.trim_start_matches(['>', ' ']);
    match line[..line.len() - bare.len()].rfind('>') {
        Some(at) => &line[at + 1..],
        None => line,
    }
}

/// The table that begins with the first line, and how many lines it has.
fn table(lines: &[&str]) -> Option<(PostedTable, usize)> {
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
    let mut labels: BTreeSet<Vec<String>> = BTreeSet::new();
    let (mut used, mut left, mut is_apart) = (1, 0, false);
    for (at, line) in (2..).zip(rest) {
        let text = line.trim();
        if text.is_empty() || is_rule(text) {
            is_apart |= text.is_empty();
            continue;
        }
        let mut row = cells(line);
        let is_more = !row.is_empty() && row.iter().all(|cell| is_part_of_head(cell));
        if rows.is_empty() && at == 2 && is_more {
            // Of two lines of names the set-ups may be the first ones: not read.
            let from = head.len().checked_sub(row.len())?;
            if head[from..].iter().all(|cell| is_named(cell)) {
                return None;
            }
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
        let columns_are_named = head.iter().skip(1).all(|cell| is_named(cell));
        let has_name = row.first().is_some_and(|cell| {
            let is_own = ["real", "user", "sys"].contains(&cell.as_str()) || cell.ends_with(':');
            let is_item = cell.starts_with(['-', '*', '$', '#']);
            !is_own && !is_item && (columns_are_named || value(cell).is_none())
        });
        let has_value = row.iter().skip(1).any(|cell| value(cell).is_some());
        // Behind an empty line may be the next table of this head, without it.
        let label: Vec<String> =
            row.iter().take_while(|cell| value(cell).is_none()).cloned().collect();
        let is_new = labels.insert(label) || !is_apart;
        if row.len() != head.len() || !has_name || !has_value || !is_new {
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
    let table = PostedTable { is_spaced: true, head, rows, ..PostedTable::default() };
    is_table.then_some((table, used))
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

/// None if they are more than a table has, or sentences.
fn cells(line: &str) -> Vec<String> {
    let line = line.replace('\t', "  ");
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    let cells: Vec<String> = cells.take(COLUMNS + 1).map(str::to_owned).collect();
    let is_row = cells.len() <= COLUMNS && cells.iter().all(|cell| cell.chars().count() <= CELL);
    if is_row { cells } else { Vec::new() }
}
