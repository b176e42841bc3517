//! Rows of any columns, as text, CSV or a page: the result of a query.
//!
//! Cells are text already; the caller knows what a column means. Every cell is untrusted.
//!
//! Left out on purpose: JSON and Parquet, which keep types and are written where the types are known.

use std::io::{self, Write};

use crate::html::{TablePage, TableSection};
use crate::table::{Cell, Column, Described, Table, sort_key, sort_key_of_whole};
use crate::table::{guarded, write_record};
use crate::text::layout::{Paint, Style};
use crate::{names, numbers};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// Its name. Hostile text.
    pub name: String,
    /// Its cells are numbers.
    pub number: bool,
}

/// Rows with what is to be said of them.
#[derive(Clone, Debug, Default)]
pub struct NotedRows {
    /// What was asked. Hostile text.
    pub title: String,
    /// What was asked of. Hostile text.
    pub source: String,
    pub tool_version: String,
    /// Said above the rows. Hostile text.
    pub notes: Vec<String>,
    pub columns: Vec<Heading>,
    /// A cell for each column; `None` has no value.
    pub rows: Vec<Vec<Option<String>>>,
    /// Rows that there are besides these.
    pub more: u64,
}

impl NotedRows {
    /// The rows as a table. A number sorts by its value, a whole one exactly.
    fn table(&self) -> Table {
        let add = |table: Described<_>, (at, heading): (usize, &Heading)| {
            let column = match heading.number {
                true => Column::number("", heading.name.clone()),
                false => Column::words("", heading.name.clone()),
            };
            table.column(column, |row: &&Vec<Option<String>>| match row.get(at) {
                Some(Some(text)) if heading.number => Cell::Written(text.clone(), key(text)),
                Some(Some(text)) => Cell::Name(text.clone()),
                Some(None) | None => Cell::Absent,
            })
        };
        self.columns.iter().enumerate().fold(Table::of(&self.rows), add).table()
    }

    /// A table for a terminal of this many columns.
    pub fn text(&self, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let paint = Paint { color: false };
        for note in &self.notes {
            paint.line(out, Style::Plain, &names::printable(note))?;
        }
        self.table().text((paint, width), out)?;
        let shown = self.rows.len() as u64;
        let rows = match self.more {
            0 => format!("{}.", numbers::counted(shown, "row")),
            more => format!(
                "{} of {}; all of them: --format csv.",
                numbers::counted(shown, "row"),
                numbers::count(shown.saturating_add(more))
            ),
        };
        paint.line(out, Style::Faint, &rows)
    }

    /// The line of names of a CSV table.
    pub fn csv_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let names: Vec<String> = self.columns.iter().map(|c| guarded(&c.name)).collect();
        write_record(out, &names)
    }

    /// The rows of a CSV table: without a value nothing, and texts that neither a terminal nor a spreadsheet acts on.
    pub fn csv_rows(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.rows {
            let cell = |(cell, column): (&Option<String>, &Heading)| match cell {
                None => String::new(),
                Some(number) if column.number => number.clone(),
                Some(text) => guarded(text),
            };
            let cells: Vec<String> = row.iter().zip(&self.columns).map(cell).collect();
            write_record(out, &cells)?;
        }
        Ok(())
    }

    /// One page that opens offline.
    pub fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut notes = self.notes.clone();
        if self.more > 0 {
            notes.push(format!(
                "{} more are not here. All of them: --format csv.",
                numbers::counted(self.more, "row")
            ));
        }
        let page = TablePage {
            command: "query",
            tool_version: &self.tool_version,
            facts: vec![("question", self.title.clone()), ("runs", self.source.clone())],
            answer: Vec::new(),
            emulation: None,
        };
        page.write(&[TableSection { id: "rows", title: "Rows", notes, table: &self.table() }], out)
    }
}

/// What a number as text sorts by.
fn key(text: &str) -> Option<u128> {
    let whole = || text.parse::<i64>().ok().map(i128::from);
    match whole().or_else(|| text.parse::<u64>().ok().map(i128::from)) {
        Some(whole) => sort_key_of_whole(whole),
        None => sort_key(text.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hostile() -> NotedRows {
        NotedRows {
            title: "<script>alert(1)</script>".to_owned(),
            source: "a\u{1b}[31m".to_owned(),
            columns: vec![
                Heading { name: "host".to_owned(), number: false },
                Heading { name: "exits".to_owned(), number: true },
            ],
            rows: vec![
                vec![Some("<b>&\u{202e}".to_owned()), Some("-12".to_owned())],
                vec![Some("=cmd()".to_owned()), None],
            ],
            ..NotedRows::default()
        }
    }

    #[test]
    fn names_are_escaped_everywhere() {
        let rows = hostile();
        let (mut text, mut csv, mut html) = (Vec::new(), Vec::new(), Vec::new());
        rows.text(None, &mut text).unwrap();
        rows.csv_head(&mut csv).unwrap();
        rows.csv_rows(&mut csv).unwrap();
        rows.html(&mut html).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = |host: &str, exits: &str| format!("  {host:12}  {exits:>5}\n");
        let lines = [line("host", "exits"), line(r"<b>&\u{202e}", "-12"), line("=cmd()", "-")];
        assert_eq!(text, lines.concat() + "2 rows.\n");
        assert_eq!(
            String::from_utf8(csv).unwrap(),
            "host,exits\r\n<b>&\\u{202e},-12\r\n'=cmd(),\r\n"
        );
        let html = String::from_utf8(html).unwrap();
        assert!(
            !html.contains("<script>alert") && !html.contains("<b>&") && !html.contains('\u{1b}')
        );
        assert!(html.contains("&lt;b&gt;&amp;\\u{202e}"));
    }
}
