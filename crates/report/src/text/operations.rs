//! The operations of a lab run as a table: a line each, its exits in the last column.

use std::collections::BTreeMap;
use std::io::{self, Write};

use vmtax_analyse::{OperationRow, Operations};
use vmtax_events::Level;

use super::layout::{Column, Grid, Paint, Room, Style, columns_of};
use crate::operations::{exit_list, factor, instructions, name, no_exits, ratio, shares, spread};

/// The list of exits is not broken narrower than this.
const NARROWEST_LIST: usize = 26;
const EMULATED: &str = "not on hw";
const SPREAD: &str = "spread %";
const SHARES: &str = "% L0/L1/L2";

/// Instructions of an operation at a level that hardware does not execute.
type Emulated = BTreeMap<(String, Level), f64>;

/// Writes the table so that it fits `width`: lists of exits go on in further rows.
pub(super) fn write(
    (operations, emulated): (&Operations, &Emulated),
    out: &mut dyn Write,
    paint: Paint,
    width: Option<usize>,
) -> io::Result<Vec<&'static str>> {
    let grid = grid(operations, emulated, width);
    let shown = grid.write(out, paint, width)?;
    let is_shown = |title: &str| {
        let titles = grid.columns.iter().map(|column| column.title.as_str());
        titles.zip(&shown).any(|(other, shown)| other == title && *shown)
    };
    let mut notes = vec![
        "exits, path: of one operation. path: instructions from the guest's instruction back to the guest, median of the batches.",
    ];
    if is_shown(EMULATED) {
        notes.push("not on hw: of the path, what hardware does not execute, by the call tree.");
    }
    if is_shown(SPREAD) {
        notes.push("spread: (max - min) / median.");
    }
    if is_shown(SHARES) {
        notes.push("% L0/L1/L2: where the traced window went: host, guest, the guest's guest; the rest is halted.");
    }
    if operations.rows.iter().any(|row| row.ancillary() > 0) {
        notes.push("→: exits of L1 to handle that exit of L2.");
    }
    Ok(notes)
}

fn grid(operations: &Operations, emulated: &Emulated, width: Option<usize>) -> Grid {
    let nests = operations.rows.iter().any(|row| row.level != Level::L1);
    let mut columns = vec![
        Column::key("operation"),
        Column::key("level"),
        Column::number("exits", Room::Keep),
        Column::number("path", Room::Keep),
    ];
    if !emulated.is_empty() {
        columns.push(Column::number(EMULATED, Room::Keep));
    }
    columns.push(Column::number(SPREAD, Room::Drop(2)));
    if nests {
        columns.push(Column::number("L2/L1", Room::Keep));
    }
    columns.push(Column::number(SHARES, Room::Drop(1)));
    columns.push(Column::words("of which"));
    let mut grid = Grid::new(columns);
    let first: Vec<Vec<String>> =
        operations.rows.iter().map(|row| cells(row, emulated, nests)).collect();
    let room = width.map(|width| {
        let mut empty = grid.clone();
        first.iter().for_each(|cells| empty.row(Style::Plain, with_list(cells, String::new())));
        let words = operations.rows.iter().flat_map(exit_list).map(|word| columns_of(&word));
        empty.room_for_last(width, words.max().unwrap_or(0).max(NARROWEST_LIST))
    });
    for (row, cells) in operations.rows.iter().zip(&first) {
        let mut words = exit_list(row);
        if words.is_empty() {
            words.push(no_exits(row).to_owned());
        }
        let mut lines = broken(&words, room).into_iter();
        grid.row(Style::Plain, with_list(cells, lines.next().unwrap_or_default()));
        for line in lines {
            grid.row(Style::Plain, with_list(&vec![String::new(); cells.len()], line));
        }
    }
    grid
}

/// All cells but the list.
fn cells(row: &OperationRow, emulated: &Emulated, nests: bool) -> Vec<String> {
    let none = || "-".to_owned();
    let mut cells = vec![
        name(row),
        row.level.name().to_owned(),
        ratio(row.exits_per_operation()),
        row.path.map_or_else(none, |path| instructions(path.median)),
    ];
    if !emulated.is_empty() {
        let found = emulated.get(&(row.name.clone(), row.level)).copied();
        cells.push(found.map_or_else(String::new, instructions));
    }
    cells.push(row.path.map_or_else(none, |path| spread(&path)));
    if nests {
        cells.push(row.l2_over_l1.map_or_else(String::new, factor));
    }
    cells.push(shares(row));
    cells
}

fn with_list(cells: &[String], list: String) -> Vec<String> {
    cells.iter().cloned().chain([list]).collect()
}

/// Words as lines of at most `room` characters, as long as each word fits.
fn broken(words: &[String], room: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line)
                if room.is_none_or(|room| columns_of(line) + 1 + columns_of(word) <= room) =>
            {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}
