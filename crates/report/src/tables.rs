//! Tables with their headings and the sentences around them: what a command shows that shows nothing else, in every format.

use std::io::{self, Write};

use serde_json::Value;

use crate::html::{TablePage, TableSection};
use crate::names::printable;
use crate::table::{CSV, Cell, CsvLine, Table, write_lines};
use crate::text::TextLayout;
use crate::text::layout::{Paint, Style, wrap};

/// What has every output format.
pub trait AllFormats {
    fn text(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()>;
    fn json(&self, out: &mut dyn Write) -> io::Result<()>;
    fn csv(&self, out: &mut dyn Write) -> io::Result<()>;
    /// One page that opens offline.
    fn html(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A table with its heading. All texts are hostile.
#[derive(Clone, Debug)]
pub struct TitledTable {
    /// Its name in CSV, and its `id` on a page.
    pub id: &'static str,
    pub title: String,
    /// Sentences that explain it.
    pub notes: Vec<String>,
    pub table: Table,
}

/// Tables, and what holds of all of them.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The command that made them: `lab list`.
    pub command: &'static str,
    pub tool_version: &'static str,
    /// Name and value, above the tables. Values are hostile.
    pub facts: Vec<(&'static str, String)>,
    /// What the tables say, on a page above them: the first sentence is the answer. Hostile text.
    pub answer: Vec<String>,
    /// What emulation means for all figures, said once on a page. Hostile text.
    pub emulation: Option<String>,
    pub sections: Vec<TitledTable>,
    /// The document for programs.
    pub json: Value,
}

impl Tables {
    /// The document for programs that has a list of rows for each table, by its id.
    pub fn with_rows_as_json(mut self, schema: &str) -> serde_json::Result<Tables> {
        self.json["schema"] = schema.into();
        for TitledTable { id, table, .. } in &self.sections {
            self.json[*id] = serde_json::to_value(table)?;
        }
        Ok(self)
    }
}

impl AllFormats for Tables {
    fn text(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
        let paint = Paint { color: look.color };
        for (name, value) in &self.facts {
            paint.line(out, Style::Plain, &format!("{name}: {}", printable(value)))?;
        }
        let sections = self.sections.iter().filter(|section| !section.table.rows.is_empty());
        for (at, TitledTable { title, notes, table, .. }) in sections.enumerate() {
            if at > 0 || !self.facts.is_empty() {
                writeln!(out)?;
            }
            paint.line(out, Style::Heading, &printable(title))?;
            let emulation = self.emulation.iter().filter(|_| at == 0);
            for note in emulation.chain(notes) {
                for line in wrap(&printable(note), look.width, "", "") {
                    paint.line(out, Style::Faint, &line)?;
                }
            }
            table.terminal(look, out)?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:#}", self.json)
    }

    /// One table as it is; several with the id of each in the first column.
    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        if let [section] = &self.sections[..] {
            return section.table.csv(out);
        }
        let mut columns = vec!["table"];
        let mut lines: Vec<CsvLine> = Vec::new();
        for TitledTable { id, table, .. } in &self.sections {
            for column in table.columns.iter().filter(|column| column.is_on(CSV)) {
                if !columns.contains(&column.key) {
                    columns.push(column.key);
                }
            }
            lines.extend(table.csv_lines().map(|mut line| {
                line.push(("table", Cell::Word(id)));
                line
            }));
        }
        write_lines(&columns, lines, out)
    }

    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        // Without an answer the facts are what there is to say.
        let said = |(name, value): &(&str, String)| format!("{name}: {value}");
        let (answer, facts) = match self.answer.is_empty() {
            true => (self.facts.iter().map(said).collect(), Vec::new()),
            false => (self.answer.clone(), self.facts.clone()),
        };
        let page = TablePage {
            command: self.command,
            tool_version: self.tool_version,
            facts,
            answer,
            emulation: self.emulation.clone(),
        };
        let mut parts = Vec::new();
        let sections = self.sections.iter().filter(|section| !section.table.rows.is_empty());
        for TitledTable { id, title, notes, table } in sections {
            parts.push(TableSection { id, title, notes: notes.clone(), table });
        }
        page.write(&parts, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Column;

    fn section(id: &'static str, key: &'static str) -> TitledTable {
        let table = Table::of([1000])
            .column(Column::words("name", "name"), |_| Cell::Name("a\u{1b}".to_owned()))
            .column(Column::number(key, "n"), |n| Cell::Count(*n))
            .table();
        TitledTable { id, title: format!("Of {id}"), notes: vec!["A note.".to_owned()], table }
    }

    fn tables(sections: Vec<TitledTable>) -> Tables {
        let facts = vec![("Of", "<x>".to_owned())];
        let json = Value::default();
        Tables {
            command: "test",
            tool_version: "1",
            facts,
            answer: Vec::new(),
            emulation: None,
            sections,
            json,
        }
        .with_rows_as_json("vmtax-test-1")
        .unwrap()
    }

    fn written(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_description_gives_every_format() {
        let both = tables(vec![section("one", "x"), section("two", "y")]);
        assert_eq!(
            written(|out| both.text(TextLayout::default(), out)),
            "Of: <x>\n\nOf one\nA note.\n  name         n\n  a\\u{1b}  1,000\n\nOf two\nA note.\n  name         n\n  a\\u{1b}  1,000\n"
        );
        assert_eq!(
            written(|out| both.csv(out)),
            "table,name,x,y\r\none,a\\u{1b},1000,\r\ntwo,a\\u{1b},,1000\r\n"
        );
        let one = tables(vec![section("one", "x")]);
        assert_eq!(written(|out| one.csv(out)), "name,x\r\na\\u{1b},1000\r\n");
        let json: Value = serde_json::from_str(&written(|out| both.json(out))).unwrap();
        assert_eq!((&json["schema"], &json["two"][0]["y"]), (&"vmtax-test-1".into(), &1000.into()));
        let page = written(|out| both.html(out));
        for part in ["&lt;x&gt;", "Of one", "Of two", "1,000"] {
            assert!(page.contains(part), "{part}");
        }
    }
}
