//! A table described once: columns with a key, a title and a place to give way, and cells that keep their type.
//!
//! ```text
//!                         ┌──> text   Cell::text, then a grid of text/layout
//!   Table (columns, rows) ├──> CSV    Cell::csv, the key as heading
//!                         ├──> JSON   an object for each row, by key
//!                         └──> HTML   html/described.rs: Cell::text and Cell::sort_key
//! ```
//! How a kind of number is written stands in one place for each of these. A command that describes its table has all of them.
//!
//! Left out: sentences around a table, and tables whose cells come from elsewhere as text ([`crate::rows`]).

use std::io::{self, Write};

use serde::ser::{Serialize, Serializer};

use crate::csv::{guarded, write_record};
use crate::names::printable;
use crate::numbers;
use crate::text::layout::{self, Grid, Paint, Room, Style};

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    /// The name in CSV and JSON; it never changes.
    pub key: &'static str,
    /// The heading for people.
    pub title: &'static str,
    /// What it means, where the title alone says too little.
    pub help: &'static str,
    /// What a terminal calls it when it is left out, where the title alone says too little.
    pub name: &'static str,
    kind: Kind,
    /// The back ends that have it, of [`PEOPLE`], [`CSV`] and [`JSON`].
    on: u8,
}

/// Text and page.
pub const PEOPLE: u8 = 1;
/// CSV.
pub const CSV: u8 = 2;
/// JSON.
pub const JSON: u8 = 4;

/// What a column holds, and how it gives way in a narrow terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Words; they are cut at the end.
    Words,
    /// Short words, never cut.
    Short,
    /// Numbers.
    Numbers(Room),
}

impl Column {
    const fn new(key: &'static str, title: &'static str, kind: Kind) -> Column {
        Column { key, title, help: "", name: "", kind, on: PEOPLE | CSV | JSON }
    }

    /// A column of words.
    pub fn words(key: &'static str, title: &'static str) -> Column {
        Column::new(key, title, Kind::Words)
    }

    /// A column of short words, which are shown in full.
    pub fn short(key: &'static str, title: &'static str) -> Column {
        Column::new(key, title, Kind::Short)
    }

    /// A column of numbers that is always shown.
    pub fn number(key: &'static str, title: &'static str) -> Column {
        Column::new(key, title, Kind::Numbers(Room::Keep))
    }

    /// A column of numbers that a narrow terminal leaves out; the highest rank goes first.
    pub fn minor(key: &'static str, title: &'static str, rank: u8) -> Column {
        Column::new(key, title, Kind::Numbers(Room::Drop(rank)))
    }

    /// A column of CSV and JSON alone.
    pub fn data(key: &'static str) -> Column {
        Column::new(key, "", Kind::Words).only(CSV | JSON)
    }

    /// With an explanation.
    pub fn help(self, help: &'static str) -> Column {
        Column { help, ..self }
    }

    /// With a name for the line that says which columns were left out.
    pub fn named(self, name: &'static str) -> Column {
        Column { name, ..self }
    }

    /// For these back ends alone.
    pub fn only(self, on: u8) -> Column {
        Column { on, ..self }
    }

    /// For people only where `is_shown`.
    pub fn shown_if(self, is_shown: bool) -> Column {
        let on = if is_shown { self.on } else { self.on & !PEOPLE };
        Column { on, ..self }
    }

    /// It holds numbers.
    pub fn is_number(&self) -> bool {
        matches!(self.kind, Kind::Numbers(_))
    }

    /// People see it.
    pub fn is_shown(&self) -> bool {
        self.is_on(PEOPLE)
    }

    pub(crate) fn is_on(&self, back_end: u8) -> bool {
        self.on & back_end != 0
    }
}

/// A typed cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Does not apply: blank.
    Empty,
    /// There is no value: `-`.
    Absent,
    /// There is one, and this word says why it is not here.
    Unknown(&'static str),
    /// How many.
    Count(u64),
    /// A number of which three digits are shown.
    Number(f64),
    /// Instructions, of which one digit after the point is shown.
    Instructions(f64),
    /// A part of one, in percent.
    Share(f64),
    /// The same under a heading that says percent: digits alone in a terminal.
    Percent(f64),
    /// A difference, with its sign.
    Signed(f64),
    /// An interval of differences.
    Between(f64, f64),
    /// A quotient, with two digits after the point.
    Quotient(f64),
    /// A mean of durations: CSV has three digits after the point.
    Mean(f64),
    /// The bounds of a quantile, ns; the upper one is shown.
    Quantile(u64, u64),
    /// A number in hexadecimal.
    Hex(u64),
    /// Numbers for JSON alone.
    Counts(Vec<u64>),
    /// A duration in whole nanoseconds.
    Time(u64),
    /// A list for JSON alone.
    List(Vec<Cell>),
    /// An object for JSON alone.
    Object(Vec<(&'static str, Cell)>),
    /// A duration.
    Nanoseconds(f64),
    /// A size.
    Bytes(u64),
    /// Yes or no.
    Flag(bool),
    /// Numbers of which three digits are shown.
    Numbers(Vec<f64>),
    /// A word of this program.
    Word(&'static str),
    /// Hostile text.
    Name(String),
}

impl Cell {
    /// The cell of a value that may be absent.
    pub fn of<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
        value.map_or(Cell::Absent, cell)
    }

    /// For people. Printable.
    pub fn text(&self) -> String {
        match self {
            Cell::Empty => String::new(),
            Cell::Absent => "-".to_owned(),
            Cell::Unknown(why) => (*why).to_owned(),
            Cell::Count(n) => numbers::count(*n),
            Cell::Number(n)
            | Cell::Instructions(n)
            | Cell::Share(n)
            | Cell::Percent(n)
            | Cell::Signed(n)
            | Cell::Quotient(n)
            | Cell::Mean(n)
            | Cell::Nanoseconds(n)
                if !n.is_finite() =>
            {
                "?".to_owned()
            }
            Cell::Percent(share) => numbers::percent_digits(*share),
            Cell::Signed(n) => numbers::signed(*n),
            Cell::Between(low, high) => {
                format!("{} to {}", numbers::signed(*low), numbers::signed(*high))
            }
            Cell::Quotient(n) => format!("{n:.2}"),
            Cell::Mean(ns) => numbers::duration(*ns),
            Cell::Quantile(_, high) => numbers::duration(*high as f64),
            Cell::Hex(n) => format!("{n:#x}"),
            Cell::Time(ns) => numbers::duration(*ns as f64),
            Cell::Counts(_) | Cell::List(_) | Cell::Object(_) => String::new(),
            Cell::Instructions(n) => crate::operations::instructions(*n),
            Cell::Number(n) => numbers::significant(*n),
            Cell::Share(share) => numbers::percent(*share),
            Cell::Nanoseconds(ns) => numbers::duration(*ns),
            Cell::Bytes(bytes) => numbers::size(*bytes),
            Cell::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Cell::Numbers(all) => joined(all, numbers::significant),
            Cell::Word(word) => (*word).to_owned(),
            Cell::Name(name) => printable(name),
        }
    }

    /// For a spreadsheet: the exact number, or nothing.
    pub fn csv(&self) -> String {
        match self {
            Cell::Empty
            | Cell::Absent
            | Cell::Unknown(_)
            | Cell::Between(..)
            | Cell::Counts(_)
            | Cell::List(_)
            | Cell::Object(_) => String::new(),
            Cell::Count(n) | Cell::Bytes(n) | Cell::Time(n) | Cell::Quantile(_, n) => n.to_string(),
            Cell::Number(n)
            | Cell::Instructions(n)
            | Cell::Share(n)
            | Cell::Percent(n)
            | Cell::Signed(n)
            | Cell::Quotient(n)
            | Cell::Nanoseconds(n) => exact(*n),
            Cell::Mean(ns) => format!("{ns:.3}"),
            Cell::Hex(n) => format!("{n:#x}"),
            Cell::Flag(flag) => flag.to_string(),
            Cell::Numbers(all) => joined(all, exact),
            Cell::Word(word) => (*word).to_owned(),
            Cell::Name(name) => guarded(name),
        }
    }

    /// A whole number in the order of the values, for the page's script; `None` where there is none.
    pub fn sort_key(&self) -> Option<u128> {
        match self {
            Cell::Count(n) | Cell::Bytes(n) | Cell::Time(n) | Cell::Quantile(_, n) => {
                Some(u128::from(*n) * PARTS_OF_ONE as u128)
            }
            Cell::Number(n)
            | Cell::Instructions(n)
            | Cell::Share(n)
            | Cell::Percent(n)
            | Cell::Quotient(n)
            | Cell::Mean(n)
            | Cell::Nanoseconds(n)
                if n.is_finite() =>
            {
                Some((n * PARTS_OF_ONE).round() as u128)
            }
            // Keys are not negative: all are moved up by the same.
            Cell::Signed(n) | Cell::Between(n, _) if n.is_finite() => {
                Some(((n * PARTS_OF_ONE).round() as i128).saturating_add(1 << 100).max(0) as u128)
            }
            _ => None,
        }
    }
}

/// All digits of a number; nothing for what is none.
fn exact(n: f64) -> String {
    if n.is_finite() { n.to_string() } else { String::new() }
}

fn joined(all: &[f64], each: impl Fn(f64) -> String) -> String {
    all.iter().map(|n| each(*n)).collect::<Vec<_>>().join(" ")
}

/// Sort keys are whole: this many parts of one.
const PARTS_OF_ONE: f64 = 1e6;

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Empty | Cell::Absent | Cell::Unknown(_) | Cell::Between(..) => {
                to.serialize_none()
            }
            Cell::Count(n) | Cell::Bytes(n) | Cell::Time(n) => to.serialize_u64(*n),
            Cell::Number(n)
            | Cell::Instructions(n)
            | Cell::Share(n)
            | Cell::Percent(n)
            | Cell::Signed(n)
            | Cell::Quotient(n)
            | Cell::Mean(n)
            | Cell::Nanoseconds(n) => to.serialize_f64(*n),
            Cell::Quantile(low, high) => to.collect_map([("low", low), ("high", high)]),
            Cell::Hex(n) => to.collect_str(&format_args!("{n:#x}")),
            Cell::Counts(all) => all.serialize(to),
            Cell::List(all) => all.serialize(to),
            Cell::Object(fields) => to.collect_map(fields.iter().map(|(key, cell)| (key, cell))),
            Cell::Flag(flag) => to.serialize_bool(*flag),
            Cell::Numbers(all) => all.serialize(to),
            Cell::Word(word) => to.serialize_str(word),
            Cell::Name(name) => to.serialize_str(name),
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// A line above it in text and on a page: what its group is. Programs find that in a column. Hostile text.
    pub group: Option<String>,
    /// It stands out.
    pub is_strong: bool,
    /// A cell for each column.
    pub cells: Vec<Cell>,
}

/// Columns and rows.
#[derive(Clone, Debug)]
pub struct Table {
    /// The columns, in order.
    pub columns: Vec<Column>,
    /// The rows, in order.
    pub rows: Vec<Row>,
    /// Their sum, for people: a cell for each column.
    pub total: Option<Vec<Cell>>,
}

impl Table {
    /// Without rows.
    pub fn new(columns: Vec<Column>) -> Table {
        Table { columns, rows: Vec::new(), total: None }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row { group: None, is_strong: false, cells });
    }

    /// Adds a column that has the same cell in all rows.
    pub(crate) fn constant(&mut self, column: Column, cell: &Cell) {
        self.columns.push(column);
        self.rows.iter_mut().for_each(|row| row.cells.push(cell.clone()));
    }

    /// Adds a row that stands out.
    pub fn strong(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row { group: None, is_strong: true, cells });
    }

    /// Adds the first row of a group.
    pub fn first_of(&mut self, group: String, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row { group: Some(group), is_strong: false, cells });
    }

    /// For a terminal: at most so many rows, each as wide as there is room for. Returns the keys of the columns shown.
    pub(crate) fn text(
        &self,
        most: usize,
        (paint, width): (Paint, Option<usize>),
        out: &mut dyn Write,
    ) -> io::Result<Vec<&'static str>> {
        let shown = || self.columns.iter().filter(|column| column.is_shown());
        let columns = shown().map(|column| {
            let grid = match column.kind {
                Kind::Numbers(room) => layout::Column::number(column.title, room),
                Kind::Words => layout::Column::key(column.title),
                Kind::Short => layout::Column::words(column.title),
            };
            if column.name.is_empty() { grid } else { grid.named(column.name) }
        });
        let mut grid = Grid::new(columns.collect());
        let indent = if self.rows.iter().any(|row| row.group.is_some()) { "  " } else { "" };
        for row in self.rows.iter().take(most) {
            if let Some(group) = &row.group {
                let mut cells = vec![String::new(); grid.columns.len()];
                cells[0] = printable(group);
                grid.row(Style::Heading, cells);
            }
            let mut cells = self.texts(&row.cells);
            cells[0].insert_str(0, indent);
            grid.row(if row.is_strong { Style::Heading } else { Style::Plain }, cells);
        }
        if let Some(total) = &self.total {
            grid.row(Style::Heading, self.texts(total));
        }
        let fits = grid.write(out, paint, width)?;
        Ok(shown().zip(fits).filter(|(_, fits)| *fits).map(|(column, _)| column.key).collect())
    }

    fn texts(&self, cells: &[Cell]) -> Vec<String> {
        let shown = self.columns.iter().zip(cells).filter(|(column, _)| column.is_shown());
        shown.map(|(_, cell)| cell.text()).collect()
    }

    /// For a spreadsheet.
    pub fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let keys: Vec<&str> = self
            .columns
            .iter()
            .filter(|column| column.is_on(CSV))
            .map(|column| column.key)
            .collect();
        write_record(out, &keys)?;
        self.csv_rows(&keys, out)
    }

    /// The rows for a spreadsheet with these columns; one that the table does not have is empty.
    pub(crate) fn csv_rows(&self, keys: &[&str], out: &mut dyn Write) -> io::Result<()> {
        let at = |key: &&str| self.columns.iter().position(|c| c.is_on(CSV) && c.key == *key);
        let places: Vec<Option<usize>> = keys.iter().map(at).collect();
        for row in &self.rows {
            let cell = |at: &Option<usize>| at.map_or(String::new(), |at| row.cells[at].csv());
            write_record(out, &places.iter().map(cell).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// The cells that people see.
    pub(crate) fn shown<'t>(
        &'t self,
        row: &'t Row,
    ) -> impl Iterator<Item = (&'t Column, &'t Cell)> {
        self.columns.iter().zip(&row.cells).filter(|(column, _)| column.is_shown())
    }
}

/// The cells of a row as an object, by key.
pub(crate) struct Object<'t>(pub(crate) &'t [Column], pub(crate) &'t [Cell]);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let cells = self.0.iter().zip(self.1).filter(|(column, _)| column.is_on(JSON));
        to.collect_map(cells.map(|(column, cell)| (column.key, cell)))
    }
}

/// An object for each row.
impl Serialize for Table {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.rows.iter().map(|row| Object(&self.columns, &row.cells)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(vec![
            Column::data("vm"),
            Column::words("name", "who"),
            Column::number("size", "size").help("bytes"),
            Column::minor("mean_ns", "mean", 1),
        ]);
        let cells = |vm, name: &str, size, mean| {
            vec![Cell::Count(vm), Cell::Name(name.to_owned()), size, mean]
        };
        let first = cells(1, "=a\u{1b}<b>", Cell::Bytes(4096), Cell::Nanoseconds(1500.0));
        table.first_of("VM 1".to_owned(), first);
        table.row(cells(1, "b", Cell::Unknown("?"), Cell::Absent));
        table
    }

    fn text(width: Option<usize>) -> String {
        let mut out = Vec::new();
        table().text(usize::MAX, (Paint { color: false }, width), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_description_gives_every_format() {
        assert_eq!(
            text(None),
            "  who               size     mean\n  VM 1\n    =a\\u{1b}<b>  4.0 KiB  1.50 µs\n    b                  ?        -\n"
        );
        assert_eq!(text(Some(24)).lines().last(), Some("  columns: mean"), "{}", text(Some(24)));
        let mut csv = Vec::new();
        table().csv(&mut csv).unwrap();
        assert_eq!(
            String::from_utf8(csv).unwrap(),
            "vm,name,size,mean_ns\r\n1,'=a\\u{1b}<b>,4096,1500\r\n1,b,,\r\n"
        );
        assert_eq!(
            serde_json::to_string(&table()).unwrap(),
            r#"[{"vm":1,"name":"=a\u001b<b>","size":4096,"mean_ns":1500.0},{"vm":1,"name":"b","size":null,"mean_ns":null}]"#
        );
    }

    #[test]
    fn flags_lists_and_numbers_that_are_none() {
        for (cell, text, csv, json) in [
            (Cell::Flag(true), "yes", "true", "true"),
            (Cell::Numbers(vec![1.0, 2.5]), "1.00 2.50", "1 2.5", "[1.0,2.5]"),
            (Cell::Number(f64::INFINITY), "?", "", "null"),
            (Cell::Share(0.5), "50.0 %", "0.5", "0.5"),
            (Cell::Empty, "", "", "null"),
        ] {
            assert_eq!((cell.text().as_str(), cell.csv().as_str()), (text, csv));
            assert_eq!(serde_json::to_string(&cell).unwrap(), json);
        }
    }

    #[test]
    fn sort_keys_have_the_order_of_the_values() {
        let ordered = [
            Cell::Number(0.000_4),
            Cell::Share(0.5),
            Cell::Count(1),
            Cell::Nanoseconds(1.5),
            Cell::Bytes(u64::MAX),
        ];
        assert!(ordered.windows(2).all(|pair| pair[0].sort_key() < pair[1].sort_key()));
        assert_eq!(Cell::Unknown("?").sort_key(), None);
    }
}
