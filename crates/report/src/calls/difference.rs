//! What makes a path longer or shorter than another run's: the functions, as a line of text, a table and a picture.

use vmtax_analyse::ProfiledOperation;
use vmtax_analyse::calls::difference::{DifferenceLine, TreeDifference, difference};
use vmtax_events::printable;

use super::{folded, frame, title};
use crate::html;
use crate::numbers::delta;
use crate::table::{Cell, Column, Table};

/// Functions that a line of text names.
const NAMED: usize = 8;
/// Functions that a cell of a page's table names.
const NAMED_IN_CELL: usize = 3;
/// Functions named beside a row that combines several.
const PARTS_NAMED: usize = 2;

/// An operation in two runs.
pub struct ComparedOperation<'a> {
    /// The second run. Hostile text.
    pub run: String,
    /// In the first run.
    pub before: &'a ProfiledOperation<'a>,
    pub after: &'a ProfiledOperation<'a>,
    /// What its path differs by.
    pub difference: TreeDifference,
}

impl<'a> ComparedOperation<'a> {
    /// Compares the call trees.
    pub fn new(
        run: &str,
        before: &'a ProfiledOperation<'a>,
        after: &'a ProfiledOperation<'a>,
    ) -> ComparedOperation<'a> {
        ComparedOperation {
            run: run.to_owned(),
            before,
            after,
            difference: difference(before, after),
        }
    }

    /// `+1,668: L0 pfn_valid +360, L0 __pte_offset_map +330, 12 others +20`; nothing where no function differs. Printable.
    pub fn sentence(&self) -> Option<String> {
        sentence(&self.difference)
    }
}

/// As [`ComparedOperation::sentence`].
pub fn sentence(difference: &TreeDifference) -> Option<String> {
    listed(difference, NAMED, part)
}

/// The functions that make most of the difference, for a cell of a table: `+1,668: pfn_valid +360, 12 others +1,308`.
pub(crate) fn brief(difference: &TreeDifference) -> Option<String> {
    listed(difference, NAMED_IN_CELL, |line| format!("{} {}", short_name(line), delta(line.delta)))
}

fn listed(
    difference: &TreeDifference,
    most: usize,
    part: impl Fn(&DifferenceLine) -> String,
) -> Option<String> {
    let lines = &difference.lines;
    if lines.is_empty() {
        return None;
    }
    // One more takes no more room than its number.
    let named = if lines.len() == most + 1 { lines.len() } else { most.min(lines.len()) };
    let mut parts: Vec<String> = lines[..named].iter().map(part).collect();
    let others = &lines[named..];
    if !others.is_empty() {
        let sum = others.iter().map(|line| line.delta).sum();
        parts.push(format!("{} others {}", others.len(), delta(sum)));
    }
    let all = lines.iter().map(|line| line.delta).sum();
    Some(format!("{}: {}", delta(all), parts.join(", ")))
}

fn part(line: &DifferenceLine) -> String {
    let list = |names: &[String]| {
        let mut shown: Vec<String> =
            names.iter().take(PARTS_NAMED).map(|name| printable(name)).collect();
        if names.len() > PARTS_NAMED {
            shown.push(format!("{} more", names.len() - PARTS_NAMED));
        }
        shown.join(", ")
    };
    let mut notes = Vec::new();
    if let Some(was) = &line.was {
        notes.push(format!("was {}", printable(was)));
    }
    if !line.gone.is_empty() {
        notes.push(format!("without {}", list(&line.gone)));
    }
    if !line.new.is_empty() {
        notes.push(format!("with {}", list(&line.new)));
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    format!("{} {}{notes}", name(line), delta(line.delta))
}

/// `L0 pfn_valid`, `L1 [vmload]`. Printable.
pub(crate) fn name(line: &DifferenceLine) -> String {
    let name = frame(&line.label);
    if name.is_empty() { "outside of all functions".to_owned() } else { name }
}

/// As [`name`], on a page: functions of the host, which most are, without their level.
pub(crate) fn short_name(line: &DifferenceLine) -> String {
    let name = name(line);
    name.strip_prefix("L0 ").map(str::to_owned).unwrap_or(name)
}

/// A row for each function that makes a difference.
pub fn table(all: &[&ComparedOperation<'_>]) -> Table {
    let names = |names: &[String]| match names {
        [] => Cell::Empty,
        names => Cell::Name(names.join(", ")),
    };
    let is_one_run = all.windows(2).all(|two| two[0].run == two[1].run);
    Table::of(all.iter().flat_map(|one| one.difference.lines.iter().map(move |line| (one, line))))
        .column(Column::words("operation", "operation"), |(one, _)| {
            Cell::Name(one.after.name.clone())
        })
        .column(Column::words("level", "level"), |(one, _)| Cell::Word(one.after.level.name()))
        .column(Column::words("run", "run").shown_if(!is_one_run), |(one, _)| {
            Cell::Name(one.run.clone())
        })
        .column(
            Column::words("function", "function").help("of the host, or of the guest that its level names; an instruction of a guest in brackets"),
            |(_, line)| Cell::Name(short_name(line)),
        )
        .column(
            Column::number("delta", "difference").help("instructions of one operation"),
            |(_, line)| Cell::Delta(line.delta),
        )
        .column(Column::words("was", "was").help("its name in the first run"), |(_, line)| {
            line.was.clone().map_or(Cell::Empty, Cell::Name)
        })
        .column(
            Column::words("gone", "without").help("its callees that only the first run has"),
            |(_, line)| names(&line.gone),
        )
        .column(
            Column::words("new", "with").help("its callees that only this run has"),
            |(_, line)| names(&line.new),
        )
        .table()
}

/// A differential flame graph of each operation, with its heading.
pub fn pictures(all: &[&ComparedOperation<'_>]) -> Vec<html::Picture> {
    let picture = |(number, one): (usize, &&ComparedOperation<'_>)| html::Picture {
        heading: format!(
            "{}, {}: {}",
            printable(&title(one.after)),
            printable(&one.run),
            match one.difference.lines.as_slice() {
                [] => "no difference".to_owned(),
                lines => {
                    format!("{} instructions", delta(lines.iter().map(|line| line.delta).sum()))
                }
            }
        ),
        sentence: one.sentence().unwrap_or_default(),
        svg: html::difference(
            (&folded::lines(one.before.tree), one.before.operations),
            (&folded::lines(one.after.tree), one.after.operations),
            number,
        ),
    };
    all.iter().enumerate().map(picture).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmtax_analyse::calls::NodeLabel;
    use vmtax_events::CallKind;

    fn line(name: &str, delta: f64) -> DifferenceLine {
        let label = NodeLabel {
            kind: CallKind::Function,
            level: 0,
            name: name.to_owned(),
            module: String::new(),
        };
        DifferenceLine { label, delta, gone: Vec::new(), new: Vec::new(), was: None }
    }

    fn said(lines: Vec<DifferenceLine>) -> Option<String> {
        sentence(&TreeDifference { before: 0.0, after: 0.0, lines })
    }

    #[test]
    fn sentences_of_differences_add_up() {
        assert_eq!(said(Vec::new()), None);
        let few = vec![line("pfn_valid", 1360.0), line("b", -20.25)];
        assert_eq!(said(few).unwrap(), "+1,339.75: L0 pfn_valid +1,360, L0 b -20.25");
        let many: Vec<DifferenceLine> = (0..11).map(|n| line("f", f64::from(20 - n))).collect();
        let text = said(many).unwrap();
        assert!(text.starts_with("+165: ") && text.ends_with(", 3 others +33"), "{text}");
        let lines = (0..11).map(|n| line("f", f64::from(20 - n))).collect();
        let short = brief(&TreeDifference { before: 0.0, after: 0.0, lines }).unwrap();
        assert_eq!(short, "+165: f +20, f +19, f +18, 8 others +108");
    }

    #[test]
    fn lines_name_old_names_and_callees() {
        let mut one = line("a", -1.0);
        one.was = Some("old\u{1b}".to_owned());
        one.gone = ["x", "y", "z"].map(str::to_owned).to_vec();
        one.new = vec!["w".to_owned()];
        let text = said(vec![one]).unwrap();
        assert!(text.starts_with("-1: L0 a -1 (was old"), "{text}");
        assert!(text.ends_with("; without x, y, 1 more; with w)"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
