//! A table described once: columns with a key, a title and a place to give way, and cells that keep their type.
//!
//! ```text
//!                         ┌──> text   Cell::text, then a grid of text/layout
//!   Table (columns, rows) ├──> CSV    Cell::csv, the key as heading
//!                         ├──> JSON   an object for each row, by key
//!                         └──> HTML   html/described.rs: Cell::text and Cell::sort_key
//! ```
//! Each back end formats a kind of number in one place. A command that describes its table gets all back ends.
//!
//! Left out: sentences around a table.

mod cell;
mod record;

use std::borrow::Cow;
use std::io::{self, Write};

use serde::ser::{Serialize, Serializer};

pub(crate) use self::cell::sort_key_of_whole;
pub use self::cell::{BarSlice, Cell, sort_key};
pub(crate) use self::record::guarded;
pub use self::record::write_record;
use crate::names::printable;
use crate::text::layout::{self, ColumnRoom, Grid, Paint, Style, TextLayout};

#[derive(Clone, Debug)]
pub struct Column {
    /// The name in CSV and JSON; it never changes.
    pub key: &'static str,
    /// The heading for people. Hostile text.
    pub title: Cow<'static, str>,
    /// What it means, where the title alone says too little.
    pub help: &'static str,
    /// What it is called away from its place and on a page, where the title alone says too little.
    pub name: &'static str,
    kind: ColumnKind,
    /// The back ends that have it, of [`TEXT`], [`PAGE`], [`CSV`] and [`JSON`].
    on: u8,
    pub(crate) page: OnPage,
    pub(crate) screen: OnScreen,
}

/// Text for a terminal.
pub const TEXT: u8 = 1;
pub const CSV: u8 = 2;
pub const JSON: u8 = 4;
pub const PAGE: u8 = 8;
pub const PEOPLE: u8 = TEXT | PAGE;

/// What a column holds, and how it gives way in a narrow terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    /// Words; they are cut at the end.
    Words,
    /// Short words, never cut.
    Short,
    /// The last column: words that go on in further lines.
    List,
    Numbers(ColumnRoom),
}

/// How a page shows a column.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnPage {
    /// A share has a bar beside it.
    pub(crate) is_barred: bool,
    /// Its cells stand out.
    pub(crate) is_strong: bool,
    /// The rows come in its order: `ascending` or `descending`.
    pub(crate) order: Option<&'static str>,
    /// A class of the style sheet.
    pub(crate) class: &'static str,
}

/// How the screen of `vmtax top` shows a column.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnScreen {
    /// Cells that it takes; 0: what is left of the line.
    pub(crate) width: usize,
    /// The least width of a terminal that shows it.
    pub(crate) from: u16,
}

impl Column {
    fn new(key: &'static str, title: impl Into<Cow<'static, str>>, kind: ColumnKind) -> Column {
        let on = PEOPLE | CSV | JSON;
        let (page, screen) = (OnPage::default(), OnScreen::default());
        Column { key, title: title.into(), help: "", name: "", kind, on, page, screen }
    }

    pub fn words(key: &'static str, title: impl Into<Cow<'static, str>>) -> Column {
        Column::new(key, title, ColumnKind::Words)
    }

    /// A column of short words, which are shown in full.
    pub fn short(key: &'static str, title: impl Into<Cow<'static, str>>) -> Column {
        Column::new(key, title, ColumnKind::Short)
    }

    /// The last column: its words go on in further lines of a narrow terminal.
    pub fn list(key: &'static str, title: &'static str) -> Column {
        Column::new(key, title, ColumnKind::List)
    }

    /// A column of numbers that is always shown.
    pub fn number(key: &'static str, title: impl Into<Cow<'static, str>>) -> Column {
        Column::new(key, title, ColumnKind::Numbers(ColumnRoom::Keep))
    }

    /// A column of numbers that a narrow terminal leaves out; the highest rank goes first.
    pub fn minor(key: &'static str, title: &'static str, rank: u8) -> Column {
        Column::new(key, title, ColumnKind::Numbers(ColumnRoom::Drop(rank)))
    }

    /// A column of numbers that gives way as `room` says.
    pub(crate) fn part(title: &'static str, room: ColumnRoom) -> Column {
        Column::new("", title, ColumnKind::Numbers(room))
    }

    /// A column of CSV and JSON alone.
    pub fn data(key: &'static str) -> Column {
        Column::new(key, "", ColumnKind::Words).only(CSV | JSON)
    }

    /// With an explanation.
    pub fn help(self, help: &'static str) -> Column {
        Column { help, ..self }
    }

    /// With a name for a page, and for the line that says which columns were left out.
    pub fn named(self, name: &'static str) -> Column {
        Column { name, ..self }
    }

    /// For these back ends alone.
    pub fn only(self, on: u8) -> Column {
        Column { on, ..self }
    }

    /// But not for these back ends.
    pub(crate) fn without(self, back_ends: u8) -> Column {
        Column { on: self.on & !back_ends, ..self }
    }

    /// For people only where `is_shown`.
    pub fn shown_if(self, is_shown: bool) -> Column {
        if is_shown { self } else { self.without(PEOPLE) }
    }

    /// On a page its shares have bars.
    pub(crate) fn barred(mut self) -> Column {
        self.page.is_barred = true;
        self
    }

    /// On a page its cells stand out.
    pub(crate) fn strong(mut self) -> Column {
        self.page.is_strong = true;
        self
    }

    /// The rows come in its order, largest first; a page says so.
    pub(crate) fn sorted(mut self) -> Column {
        self.page.order = Some("descending");
        self
    }

    /// On a page its cells have this class.
    pub(crate) fn class(mut self, class: &'static str) -> Column {
        self.page.class = class;
        self
    }

    /// On a screen it takes this many cells, in terminals of at least `from` columns.
    pub(crate) fn screen(mut self, width: usize, from: u16) -> Column {
        self.screen = OnScreen { width, from };
        self
    }

    /// With its cell of a part of a row, where several tables have the column.
    pub(crate) fn of<'c, P>(self, cell: impl Fn(&P) -> Cell + 'c) -> Carrying<'c, P> {
        (self, Box::new(cell))
    }

    pub fn is_number(&self) -> bool {
        matches!(self.kind, ColumnKind::Numbers(_))
    }

    pub(crate) fn is_on(&self, back_end: u8) -> bool {
        self.on & back_end != 0
    }
}

/// A column and its cell of a part of a row.
pub(crate) type Carrying<'c, P> = (Column, Box<dyn Fn(&P) -> Cell + 'c>);

/// Columns with the same cells, changed otherwise.
pub(crate) fn changed<'c, P>(
    columns: impl IntoIterator<Item = Carrying<'c, P>>,
    change: impl Fn(Column) -> Column,
) -> impl Iterator<Item = Carrying<'c, P>> {
    columns.into_iter().map(move |(column, cell)| (change(column), cell))
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// A line above it in text and on a page: what its group is. Programs find that in a column. Hostile text.
    pub group: Option<String>,
    pub is_strong: bool,
    /// Lines below it in text. Hostile text.
    pub below: Vec<String>,
    /// A cell for each column.
    pub cells: Vec<Cell>,
}

/// A line of a CSV file that holds several tables: cells by key.
pub(crate) type CsvLine = Vec<(&'static str, Cell)>;

/// A table under construction: each column is added with the cell that it makes of a row.
#[derive(Debug)]
pub struct Described<R> {
    sources: Vec<R>,
    total: Option<R>,
    table: Table,
}

impl<R> Described<R> {
    /// Adds a column, and its cell of each row.
    pub fn column(mut self, column: Column, cell: impl Fn(&R) -> Cell) -> Described<R> {
        self.table.columns.push(column);
        for (row, source) in self.table.rows.iter_mut().zip(&self.sources) {
            row.cells.push(cell(source));
        }
        if let (Some(cells), Some(source)) = (&mut self.table.total, &self.total) {
            cells.push(cell(source));
        }
        self
    }

    /// Adds columns whose cells are made of a part of each row.
    pub(crate) fn columns<'c, P>(
        self,
        columns: impl IntoIterator<Item = Carrying<'c, P>>,
        part: impl Fn(&R) -> P,
    ) -> Described<R> {
        let add = |table: Self, (column, cell): Carrying<'c, P>| {
            table.column(column, |row| cell(&part(row)))
        };
        columns.into_iter().fold(self, add)
    }

    /// Has a sum of the rows, for people; called before columns are added.
    pub(crate) fn total(mut self, total: Option<R>) -> Described<R> {
        self.table.total = total.as_ref().map(|_| Vec::new());
        Described { total, ..self }
    }

    /// Rows that follow one another and have the same group are below one line with its name. Hostile text.
    pub fn grouped(mut self, group: impl Fn(&R) -> String) -> Described<R> {
        let mut last = None;
        for (row, source) in self.table.rows.iter_mut().zip(&self.sources) {
            let group = Some(group(source));
            row.group.clone_from(if group == last { &None } else { &group });
            last = group;
        }
        self
    }

    pub(crate) fn strong(mut self, is_strong: impl Fn(&R) -> bool) -> Described<R> {
        for (row, source) in self.table.rows.iter_mut().zip(&self.sources) {
            row.is_strong = is_strong(source);
        }
        self
    }

    /// Adds lines below rows, in text alone.
    pub(crate) fn below(mut self, lines: impl Fn(&R) -> Vec<String>) -> Described<R> {
        for (row, source) in self.table.rows.iter_mut().zip(&self.sources) {
            row.below = lines(source);
        }
        self
    }

    pub fn table(self) -> Table {
        self.table
    }
}

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
    /// A table of these rows, which has the columns that are added to it.
    pub fn of<R>(rows: impl IntoIterator<Item = R>) -> Described<R> {
        let sources: Vec<R> = rows.into_iter().collect();
        let row =
            |_: &R| Row { group: None, is_strong: false, below: Vec::new(), cells: Vec::new() };
        let rows = sources.iter().map(row).collect();
        Described { sources, total: None, table: Table { columns: Vec::new(), rows, total: None } }
    }

    pub fn terminal(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
        self.text((Paint { color: look.color }, look.width), out).map(drop)
    }

    /// For a terminal. Returns the keys of the columns shown.
    pub(crate) fn text(
        &self,
        (paint, width): (Paint, Option<usize>),
        out: &mut dyn Write,
    ) -> io::Result<Vec<&'static str>> {
        let shown = || self.columns.iter().filter(|column| column.is_on(TEXT));
        let columns = shown().map(|column| {
            let title = printable(&column.title);
            let grid = match column.kind {
                ColumnKind::Numbers(room) => layout::GridColumn::number(&title, room),
                ColumnKind::Words => layout::GridColumn::key(&title),
                ColumnKind::Short | ColumnKind::List => layout::GridColumn::words(&title),
            };
            if column.name.is_empty() { grid } else { grid.named(column.name) }
        });
        let mut grid = Grid::new(columns.collect());
        let room = self.room_for_list(&grid, width);
        let indent = if self.rows.iter().any(|row| row.group.is_some()) { "  " } else { "" };
        for row in &self.rows {
            if let Some(group) = &row.group {
                grid.group(printable(group));
            }
            let mut cells = self.texts(&row.cells);
            cells[0].insert_str(0, indent);
            let style = if row.is_strong { Style::Heading } else { Style::Plain };
            let mut lines = self.list_of(row).map_or_else(Vec::new, |words| broken(words, room));
            let further = lines.split_off(lines.len().min(1));
            if let (Some(last), Some(line)) = (cells.last_mut(), lines.pop()) {
                *last = line;
            }
            grid.row(style, cells);
            for line in further {
                let mut cells = first_cell(String::new(), &grid);
                cells.pop();
                cells.push(line);
                grid.row(style, cells);
            }
            row.below.iter().for_each(|text| grid.note(printable(text)));
        }
        if let Some(total) = &self.total {
            grid.row(Style::Heading, self.texts(total));
        }
        let fits = grid.write(out, paint, width)?;
        Ok(shown().zip(fits).filter(|(_, fits)| *fits).map(|(column, _)| column.key).collect())
    }

    /// The words of a row's list.
    fn list_of<'t>(&self, row: &'t Row) -> Option<&'t [String]> {
        let at = self.columns.iter().position(|column| column.kind == ColumnKind::List)?;
        match row.cells.get(at)? {
            Cell::Words(words) => Some(words),
            _ => None,
        }
    }

    /// How wide the list is beside the other columns.
    fn room_for_list(&self, grid: &Grid, width: Option<usize>) -> Option<usize> {
        let width = width.filter(|_| self.columns.iter().any(|c| c.kind == ColumnKind::List))?;
        let mut others = grid.clone();
        for row in &self.rows {
            let mut cells = self.texts(&row.cells);
            cells.pop();
            cells.push(String::new());
            others.row(Style::Plain, cells);
        }
        let words = self.rows.iter().filter_map(|row| self.list_of(row)).flatten();
        let widest = words.map(|word| layout::columns_of(word)).max().unwrap_or(0);
        Some(others.room_for_last(width, widest.max(NARROWEST_LIST)))
    }

    fn texts(&self, cells: &[Cell]) -> Vec<String> {
        self.on(TEXT, cells).map(|(_, cell)| cell.text()).collect()
    }

    /// The cells that a back end has.
    pub(crate) fn on<'t>(
        &'t self,
        back_end: u8,
        cells: &'t [Cell],
    ) -> impl Iterator<Item = (&'t Column, &'t Cell)> {
        self.columns.iter().zip(cells).filter(move |(column, _)| column.is_on(back_end))
    }

    /// A row as an object for JSON.
    pub(crate) fn object(&self, row: &Row) -> Cell {
        let cells = self.on(JSON, &row.cells);
        Cell::Object(cells.map(|(column, cell)| (column.key, cell.clone())).collect())
    }

    pub fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.columns.iter().filter(|column| column.is_on(CSV));
        write_record(out, &columns.map(|column| column.key).collect::<Vec<_>>())?;
        self.rows.iter().try_for_each(|row| {
            let cells = self.on(CSV, &row.cells);
            write_record(out, &cells.map(|(_, cell)| cell.csv()).collect::<Vec<_>>())
        })
    }

    /// The rows for a spreadsheet that holds other tables too.
    pub(crate) fn csv_lines(&self) -> impl Iterator<Item = CsvLine> {
        let line = |(column, cell): (&Column, &Cell)| (column.key, cell.clone());
        self.rows.iter().map(move |row| self.on(CSV, &row.cells).map(line).collect())
    }
}

/// Writes lines for a spreadsheet with these columns; one that a line does not have is empty.
pub(crate) fn write_lines(
    columns: &[&str],
    lines: impl IntoIterator<Item = CsvLine>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_record(out, columns)?;
    lines.into_iter().try_for_each(|line| {
        debug_assert!(line.iter().all(|(key, _)| columns.contains(key)), "{line:?}");
        let cell = |key: &&str| {
            let found = line.iter().find(|(other, _)| other == key);
            found.map_or(String::new(), |(_, cell)| cell.csv())
        };
        write_record(out, &columns.iter().map(cell).collect::<Vec<_>>())
    })
}

/// The list of a row is not broken narrower than this.
const NARROWEST_LIST: usize = 26;

/// A row with nothing but its first cell.
fn first_cell(cell: String, grid: &Grid) -> Vec<String> {
    let mut cells = vec![String::new(); grid.columns.len()];
    cells[0] = cell;
    cells
}

/// Words as lines of at most `room` columns, as long as each word fits.
fn broken(words: &[String], room: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let width = layout::columns_of;
    for word in words {
        match lines.last_mut() {
            Some(line) if room.is_none_or(|room| width(line) + 1 + width(word) <= room) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}

/// An object for each row.
impl Serialize for Table {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.rows.iter().map(|row| self.object(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let rows = [
            ("=a\u{1b}<b>", Cell::Bytes(4096), Cell::Nanoseconds(1500.0)),
            ("b", Cell::Unknown("?"), Cell::Absent),
        ];
        Table::of(rows)
            .grouped(|_| "VM 1".to_owned())
            .column(Column::data("vm"), |_| Cell::Count(1))
            .column(Column::words("name", "who"), |(name, ..)| Cell::Name((*name).to_owned()))
            .column(Column::number("size", "size").help("bytes"), |(_, size, _)| size.clone())
            .column(Column::minor("mean_ns", "mean", 1), |(.., mean)| mean.clone())
            .table()
    }

    fn text(width: Option<usize>) -> String {
        let mut out = Vec::new();
        table().text((Paint { color: false }, width), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_below_a_row_take_no_column_and_are_wrapped() {
        let line = |n: u64| (n == 1).then(|| "a line much longer \u{7}than the columns".to_owned());
        let table = Table::of([("a", 1), ("b", 2)])
            .below(|(_, n)| Vec::from_iter(line(*n)))
            .column(Column::words("", "who"), |(name, _)| Cell::Word(name))
            .column(Column::number("", "n\u{1b}"), |(_, n)| Cell::Count(*n))
            .table();
        let written = |width| {
            let mut out = Vec::new();
            table.terminal(TextLayout { color: false, width }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let head = "  who  n\\u{1b}\n  a          1\n";
        let line = "    a line much longer \\u{7}than the columns\n";
        assert_eq!(written(None), format!("{head}{line}  b          2\n"));
        let lines = "    a line much longer\n      \\u{7}than the\n      columns\n";
        assert_eq!(written(Some(22)), format!("{head}{lines}  b          2\n"));
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
}
