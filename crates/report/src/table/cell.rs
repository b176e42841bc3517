//! A cell keeps its type; each back end has one place that formats it.

use serde::ser::{Serialize, Serializer};
use vmtax_analyse::Ratio;

use super::record::guarded;
use crate::names::printable;
use crate::numbers;

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
    /// A difference in instructions, with its sign and two digits after the point.
    Delta(f64),
    /// An interval of differences.
    Between(f64, f64),
    /// A quotient, with two digits after the point.
    Quotient(f64),
    /// A quotient of counts, which is a whole number where they divide.
    Ratio(Ratio),
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
    Nanoseconds(f64),
    Bytes(u64),
    Flag(bool),
    /// Numbers of which three digits are shown.
    Numbers(Vec<f64>),
    /// A word of this program.
    Word(&'static str),
    /// A word of this program; a page explains it.
    Described(&'static str, &'static str),
    Name(String),
    /// Hostile text that sorts by this key, [`sort_key`] or a whole number.
    Written(String, Option<u128>),
    /// Words with spaces between them, at which a line may be broken. Printable.
    Words(Vec<String>),
    /// A stacked bar, on pages alone.
    Stack(Vec<BarSlice>),
    /// A cell that a page explains further.
    Titled(Box<Cell>, String),
}

/// A part of a stacked bar.
#[derive(Clone, Debug, PartialEq)]
pub struct BarSlice {
    /// The class of its colour.
    pub class: String,
    /// Its meaning. Printable.
    pub title: String,
    /// Its part of one.
    pub share: f64,
}

impl Cell {
    /// The cell of a value that may be absent.
    pub fn of<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
        value.map_or(Cell::Absent, cell)
    }

    /// With more for a page.
    pub fn titled(self, title: String) -> Cell {
        Cell::Titled(Box::new(self), title)
    }

    /// The number of a cell that holds one which may have a fraction.
    fn number(&self) -> Option<f64> {
        match *self {
            Cell::Number(n)
            | Cell::Instructions(n)
            | Cell::Share(n)
            | Cell::Percent(n)
            | Cell::Signed(n)
            | Cell::Delta(n)
            | Cell::Quotient(n)
            | Cell::Mean(n)
            | Cell::Nanoseconds(n) => Some(n),
            Cell::Ratio(ratio) => ratio.value(),
            _ => None,
        }
    }

    /// The number of a cell that holds a whole one.
    fn whole(&self) -> Option<u64> {
        match *self {
            Cell::Count(n) | Cell::Bytes(n) | Cell::Time(n) | Cell::Quantile(_, n) => Some(n),
            _ => None,
        }
    }

    /// For people. Printable.
    pub fn text(&self) -> String {
        if self.number().is_some_and(|n| !n.is_finite()) {
            return "?".to_owned();
        }
        match self {
            Cell::Empty | Cell::Counts(_) | Cell::List(_) | Cell::Object(_) | Cell::Stack(_) => {
                String::new()
            }
            Cell::Absent => "-".to_owned(),
            Cell::Unknown(word) | Cell::Word(word) | Cell::Described(word, _) => (*word).to_owned(),
            Cell::Count(n) => numbers::count(*n),
            Cell::Number(n) => numbers::significant(*n),
            Cell::Instructions(n) => numbers::instructions(*n),
            Cell::Share(share) => numbers::percent(*share),
            Cell::Percent(share) => numbers::percent_digits(*share),
            Cell::Signed(n) => numbers::signed(*n),
            Cell::Delta(n) => numbers::delta(*n),
            Cell::Between(low, high) => {
                format!("{} to {}", numbers::signed(*low), numbers::signed(*high))
            }
            Cell::Quotient(n) if *n >= 999.995 => numbers::whole(*n),
            Cell::Quotient(n) => format!("{n:.2}"),
            Cell::Ratio(ratio) => numbers::ratio(*ratio),
            Cell::Mean(ns) | Cell::Nanoseconds(ns) => numbers::duration(*ns),
            Cell::Time(ns) | Cell::Quantile(_, ns) => numbers::duration(*ns as f64),
            Cell::Hex(n) => format!("{n:#x}"),
            Cell::Bytes(bytes) => numbers::size(*bytes),
            Cell::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Cell::Numbers(all) => joined(all, numbers::significant),
            Cell::Name(name) | Cell::Written(name, _) => printable(name),
            Cell::Words(words) => words.join(" "),
            Cell::Titled(cell, _) => cell.text(),
        }
    }

    /// For a spreadsheet: the exact number, or nothing.
    pub fn csv(&self) -> String {
        if let Cell::Mean(ns) = self {
            return format!("{ns:.3}");
        }
        if let Some(n) = self.number() {
            return exact(n);
        }
        if let Some(n) = self.whole() {
            return n.to_string();
        }
        match self {
            Cell::Hex(n) => format!("{n:#x}"),
            Cell::Flag(flag) => flag.to_string(),
            Cell::Numbers(all) => joined(all, exact),
            Cell::Word(word) | Cell::Described(word, _) => (*word).to_owned(),
            Cell::Name(name) | Cell::Written(name, _) => guarded(name),
            Cell::Words(words) => guarded(&words.join(" ")),
            Cell::Titled(cell, _) => cell.csv(),
            _ => String::new(),
        }
    }

    /// A whole number in the order of the values, for the page's script; `None` where there is none.
    pub fn sort_key(&self) -> Option<u128> {
        match self {
            Cell::Signed(n) | Cell::Delta(n) | Cell::Between(n, _) | Cell::Share(n) => sort_key(*n),
            Cell::Written(_, key) => *key,
            Cell::Titled(cell, _) => cell.sort_key(),
            _ => match (self.whole(), self.number()) {
                (Some(n), _) => Some(u128::from(n) * PARTS_OF_ONE as u128),
                (_, Some(n)) if n.is_finite() => Some((n * PARTS_OF_ONE).round() as u128),
                _ => None,
            },
        }
    }
}

/// The key of a number that may be below 0: keys are not, so all are moved up by the same.
pub fn sort_key(n: f64) -> Option<u128> {
    n.is_finite().then(|| moved_up((n * PARTS_OF_ONE).round() as i128))
}

/// The same of a whole number, to the last digit.
pub(crate) fn sort_key_of_whole(n: i128) -> Option<u128> {
    Some(moved_up(n.saturating_mul(PARTS_OF_ONE as i128)))
}

fn moved_up(key: i128) -> u128 {
    key.saturating_add(1 << 100).max(0) as u128
}

/// All digits of a finite number; otherwise nothing.
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
            Cell::Empty | Cell::Absent | Cell::Unknown(_) | Cell::Between(..) | Cell::Stack(_) => {
                to.serialize_none()
            }
            Cell::Quantile(low, high) => to.collect_map([("low", low), ("high", high)]),
            Cell::Hex(n) => to.collect_str(&format_args!("{n:#x}")),
            Cell::Counts(all) => all.serialize(to),
            Cell::List(all) => all.serialize(to),
            Cell::Object(fields) => to.collect_map(fields.iter().map(|(key, cell)| (key, cell))),
            Cell::Flag(flag) => to.serialize_bool(*flag),
            Cell::Numbers(all) => all.serialize(to),
            Cell::Word(word) | Cell::Described(word, _) => to.serialize_str(word),
            Cell::Name(name) | Cell::Written(name, _) => to.serialize_str(name),
            Cell::Words(words) => words.serialize(to),
            Cell::Titled(cell, _) => cell.serialize(to),
            _ => match (self.whole(), self.number()) {
                (Some(n), _) => to.serialize_u64(n),
                (_, Some(n)) => to.serialize_f64(n),
                _ => to.serialize_none(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_lists_and_numbers_that_are_none() {
        for (cell, text, csv, json) in [
            (Cell::Flag(true), "yes", "true", "true"),
            (Cell::Numbers(vec![1.0, 2.5]), "1.00 2.50", "1 2.5", "[1.0,2.5]"),
            (Cell::Number(f64::INFINITY), "?", "", "null"),
            (Cell::Share(0.5), "50.0 %", "0.5", "0.5"),
            (Cell::Ratio(Ratio { part: 3, whole: 0 }), "-", "", "null"),
            (Cell::Ratio(Ratio { part: 3, whole: 2 }), "1.50", "1.5", "1.5"),
            (Cell::Count(3).titled("more".to_owned()), "3", "3", "3"),
            (Cell::Words(vec!["=a".into(), "b".into()]), "=a b", "'=a b", r#"["=a","b"]"#),
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
            Cell::Percent(0.5),
            Cell::Count(1),
            Cell::Nanoseconds(1.5),
            Cell::Bytes(u64::MAX),
        ];
        assert!(ordered.windows(2).all(|pair| pair[0].sort_key() < pair[1].sort_key()));
        assert_eq!(Cell::Unknown("?").sort_key(), None);
        let signed = [-2.0, -0.5, 0.0, 3.0].map(Cell::Share);
        assert!(signed.windows(2).all(|pair| pair[0].sort_key() < pair[1].sort_key()));
    }
}
