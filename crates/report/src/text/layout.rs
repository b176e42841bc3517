//! Lays text out for a terminal: aligned columns, wrapped sentences, optional colours.

use std::io::{self, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Spaces before each row of a grid.
const INDENT: usize = 2;
/// Spaces between two columns.
const GAP: usize = 2;
/// A key column is never cut below this.
const NARROWEST: usize = 8;

/// Renders aligned tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextLayout {
    /// Use terminal colours.
    pub color: bool,
    /// Columns of the terminal; `None` when there is none: nothing is left out or wrapped then.
    pub width: Option<usize>,
}

impl TextLayout {
    /// A sentence in lines that fit, behind this indent.
    pub fn wrapped(&self, sentence: &str, indent: &str) -> Vec<String> {
        wrap(sentence, self.width, indent, &format!("{indent}  "))
    }
}

/// How a piece of text is highlighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Heading,
    Faint,
    Warning,
}

/// Writes text with or without the terminal's colour codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) color: bool,
}

impl Paint {
    pub(crate) fn line(self, out: &mut dyn Write, style: Style, text: &str) -> io::Result<()> {
        let code = match style {
            Style::Plain => "",
            Style::Heading => "1",
            Style::Faint => "2",
            Style::Warning => "33",
        };
        if self.color && !code.is_empty() && !text.is_empty() {
            writeln!(out, "\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            writeln!(out, "{text}")
        }
    }
}

/// How a column gives way when the terminal is narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnRoom {
    /// Always shown in full.
    Keep,
    /// Always shown; its text is cut at the end.
    Cut,
    /// Left out; of several, the highest number goes first, equal numbers together.
    Drop(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct GridColumn {
    pub(crate) title: String,
    /// What it is called away from its place, where the title alone says too little.
    name: Option<&'static str>,
    pub(crate) right: bool,
    pub(crate) room: ColumnRoom,
}

impl GridColumn {
    /// A column of words.
    pub(crate) fn key(title: &str) -> GridColumn {
        GridColumn { title: title.to_owned(), name: None, right: false, room: ColumnRoom::Cut }
    }

    /// A last column of words that are short enough.
    pub(crate) fn words(title: &str) -> GridColumn {
        GridColumn { title: title.to_owned(), name: None, right: false, room: ColumnRoom::Keep }
    }

    pub(crate) fn number(title: &str, room: ColumnRoom) -> GridColumn {
        GridColumn { title: title.to_owned(), name: None, right: true, room }
    }

    /// With a name for the line that says which columns were left out.
    pub(crate) fn named(self, name: &'static str) -> GridColumn {
        GridColumn { name: Some(name), ..self }
    }
}

/// A line of a grid.
#[derive(Clone, Debug)]
enum GridLine {
    /// A cell for each column.
    Row(Style, Vec<String>),
    /// Text that no column holds: its style and its indents.
    Across(Style, usize, String),
}

/// A table: columns and rows of as many cells.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) columns: Vec<GridColumn>,
    lines: Vec<GridLine>,
}

impl Grid {
    pub(crate) fn new(columns: Vec<GridColumn>) -> Grid {
        Grid { columns, lines: Vec::new() }
    }

    pub(crate) fn row(&mut self, style: Style, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.lines.push(GridLine::Row(style, cells));
    }

    /// Adds text below the last row.
    pub(crate) fn note(&mut self, text: String) {
        self.lines.push(GridLine::Across(Style::Plain, 2, text));
    }

    /// Adds the name of the rows that follow.
    pub(crate) fn group(&mut self, text: String) {
        self.lines.push(GridLine::Across(Style::Heading, 1, text));
    }

    /// Writes the grid so that it fits `width` where that is possible; a last line names the columns that were left out. Says
    /// which columns are shown.
    pub(crate) fn write(
        &self,
        out: &mut dyn Write,
        paint: Paint,
        width: Option<usize>,
    ) -> io::Result<Vec<bool>> {
        let mut widths = self.natural_widths();
        let mut shown = vec![true; self.columns.len()];
        if let Some(width) = width {
            self.drop_columns(&widths, &mut shown, width);
            self.cut_columns(&mut widths, &shown, width);
        }
        let titles: Vec<&str> = self.columns.iter().map(|c| c.title.as_str()).collect();
        paint.line(out, Style::Faint, &self.line(&titles, &widths, &shown))?;
        for line in &self.lines {
            match line {
                GridLine::Row(style, cells) => {
                    let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
                    paint.line(out, *style, &self.line(&cells, &widths, &shown))?;
                }
                GridLine::Across(style, indents, text) => {
                    let [first, further] = [0, 1].map(|more| " ".repeat((indents + more) * INDENT));
                    let lines = wrap(text, width, &first, &further);
                    lines.iter().try_for_each(|line| paint.line(out, *style, line))?;
                }
            }
        }
        if let Some(width) = width {
            self.write_left_out(out, paint, &shown, width)?;
        }
        Ok(shown)
    }

    fn write_left_out(
        &self,
        out: &mut dyn Write,
        paint: Paint,
        shown: &[bool],
        width: usize,
    ) -> io::Result<()> {
        let hidden = self.columns.iter().zip(shown).filter(|(_, shown)| !**shown);
        let names: Vec<&str> =
            hidden.map(|(column, _)| column.name.unwrap_or(&column.title)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let text = format!("not shown in {width} columns: {}", names.join(", "));
        let indent = " ".repeat(INDENT);
        let lines = wrap(&text, Some(width), &indent, &indent);
        lines.iter().try_for_each(|line| paint.line(out, Style::Faint, line))
    }

    /// How wide the last column can be beside all columns that need not be left out for it to be
    /// `least` wide.
    pub(crate) fn room_for_last(&self, width: usize, least: usize) -> usize {
        let mut widths = self.natural_widths();
        let mut shown = vec![true; self.columns.len()];
        let Some(last) = widths.len().checked_sub(1) else { return 0 };
        widths[last] = widths[last].max(least);
        self.drop_columns(&widths, &mut shown, width);
        widths[last] += width.saturating_sub(total(&widths, &shown));
        widths[last]
    }

    fn natural_widths(&self) -> Vec<usize> {
        let widest = |i: usize| {
            let cells = self.lines.iter().filter_map(|line| match line {
                GridLine::Row(_, cells) => Some(columns_of(&cells[i])),
                GridLine::Across(..) => None,
            });
            cells.max().unwrap_or(0).max(columns_of(&self.columns[i].title))
        };
        (0..self.columns.len()).map(widest).collect()
    }

    fn drop_columns(&self, widths: &[usize], shown: &mut [bool], width: usize) {
        while total(widths, shown) > width {
            let ranks = self.columns.iter().zip(shown.iter()).filter_map(|(column, shown)| {
                match column.room {
                    ColumnRoom::Drop(rank) if *shown => Some(rank),
                    _ => None,
                }
            });
            let Some(highest) = ranks.max() else { break };
            for (column, shown) in self.columns.iter().zip(shown.iter_mut()) {
                *shown &= column.room != ColumnRoom::Drop(highest);
            }
        }
    }

    fn cut_columns(&self, widths: &mut [usize], shown: &[bool], width: usize) {
        loop {
            let over = total(widths, shown).saturating_sub(width);
            let cuttable = (0..widths.len())
                .filter(|&i| self.columns[i].room == ColumnRoom::Cut && widths[i] > NARROWEST);
            let Some(i) = cuttable.max_by_key(|&i| widths[i]) else { break };
            if over == 0 {
                break;
            }
            widths[i] -= 1;
        }
    }

    fn line(&self, cells: &[&str], widths: &[usize], shown: &[bool]) -> String {
        let mut line = String::new();
        let mut pad = INDENT;
        for (i, cell) in cells.iter().enumerate().filter(|(i, _)| shown[*i]) {
            let cell = cut(cell, widths[i]);
            let free = widths[i].saturating_sub(columns_of(&cell));
            if self.columns[i].right {
                pad += free;
            }
            line.extend(std::iter::repeat_n(' ', pad));
            line.push_str(&cell);
            pad = GAP + if self.columns[i].right { 0 } else { free };
        }
        line.truncate(line.trim_end().len());
        line
    }
}

fn total(widths: &[usize], shown: &[bool]) -> usize {
    let visible = widths.iter().zip(shown).filter(|(_, shown)| **shown);
    let (sum, n) = visible.fold((0, 0usize), |(sum, n), (width, _)| (sum + width, n + 1));
    INDENT + sum + GAP * n.saturating_sub(1)
}

/// Terminal columns of a text.
pub(crate) fn columns_of(text: &str) -> usize {
    text.width()
}

fn cut(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        short.push(c);
    }
    short.push('…');
    short
}

/// What belongs to the number before it: `%`, `ms,`.
fn is_unit(word: &str) -> bool {
    let bare = word.trim_end_matches(|c: char| c.is_ascii_punctuation() && c != '%');
    matches!(bare, "%" | "ns" | "µs" | "ms" | "s")
}

/// Breaks a sentence at spaces so that lines fit `width`; later lines are indented. A number is not
/// parted from its unit.
pub(crate) fn wrap(text: &str, width: Option<usize>, first: &str, indent: &str) -> Vec<String> {
    let width = width.unwrap_or(usize::MAX).max(20);
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(number) if is_unit(word) => *number += &format!(" {word}"),
            _ => words.push(word.to_owned()),
        }
    }
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut empty = true;
    for word in words {
        if !empty && columns_of(&line) + 1 + columns_of(&word) > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word);
        empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut grid = Grid::new(vec![
            GridColumn::key("reason"),
            GridColumn::number("count", ColumnRoom::Keep),
            GridColumn::number("min", ColumnRoom::Drop(1)),
            GridColumn::number("p50", ColumnRoom::Drop(2)),
        ]);
        grid.row(
            Style::Plain,
            ["EXTERNAL_INTERRUPT", "10", "1 ns", "2 ns"].map(String::from).into(),
        );
        grid.row(Style::Plain, ["HLT", "1,000", "-", "-"].map(String::from).into());
        grid
    }

    fn written(width: Option<usize>) -> String {
        let mut out = Vec::new();
        grid().write(&mut out, Paint { color: false }, width).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_align() {
        assert_eq!(
            written(None),
            "  reason              count   min   p50\n  EXTERNAL_INTERRUPT     10  1 ns  2 ns\n  HLT                 1,000     -     -\n"
        );
    }

    #[test]
    fn the_least_important_columns_go_first_then_words_are_cut() {
        assert_eq!(
            written(Some(38)),
            "  reason              count   min\n  EXTERNAL_INTERRUPT     10  1 ns\n  HLT                 1,000     -\n  \
             not shown in 38 columns: p50\n"
        );
        assert_eq!(
            written(Some(18)),
            "  reason     count\n  EXTERNAL…     10\n  HLT        1,000\n  not shown in 18\n  columns: min, p50\n"
        );
        // Nothing gives way any more: the row is longer than asked, never wrong.
        let narrowest = "  reason    count\n  EXTERNA…     10\n  HLT       1,000\n";
        assert!(written(Some(3)).starts_with(narrowest));
    }

    #[test]
    fn wide_characters_take_two_columns_and_marks_none() {
        let mut grid =
            Grid::new(vec![GridColumn::key("VM"), GridColumn::number("n", ColumnRoom::Keep)]);
        for name in ["東京の仮想", "e\u{301}t\u{e9}", "plain"] {
            grid.row(Style::Plain, vec![name.to_owned(), "1".to_owned()]);
        }
        let written = |width| {
            let mut out = Vec::new();
            grid.write(&mut out, Paint { color: false }, width).unwrap();
            String::from_utf8(out).unwrap()
        };
        let lines =
            "  VM          n\n  東京の仮想  1\n  e\u{301}t\u{e9}         1\n  plain       1\n";
        assert_eq!(written(None), lines);
        // A wide character that has half the room it needs is left out, and its column stays straight.
        let narrow = "  VM        n\n  東京の…   1\n  e\u{301}t\u{e9}       1\n  plain     1\n";
        assert_eq!(written(Some(13)), narrow);
    }

    #[test]
    fn sentences_break_at_words() {
        assert_eq!(wrap("one two", None, "- ", "  "), ["- one two"]);
        assert_eq!(
            wrap("aaaa bbbb cccc dddd eeee", Some(20), "- ", "  "),
            ["- aaaa bbbb cccc", "  dddd eeee"]
        );
        assert_eq!(
            wrap("it took just 86.0 ms, 9 %.", Some(20), "", ""),
            ["it took just", "86.0 ms, 9 %."]
        );
        assert_eq!(wrap(&"x".repeat(30), Some(20), "", "  "), ["x".repeat(30)]);
    }

    #[test]
    fn colour_is_written_only_when_asked_for() {
        let mut out = Vec::new();
        Paint { color: true }.line(&mut out, Style::Heading, "a").unwrap();
        Paint { color: false }.line(&mut out, Style::Heading, "b").unwrap();
        assert_eq!(out, b"\x1b[1ma\x1b[0m\nb\n");
    }
}
