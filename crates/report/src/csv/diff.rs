//! A comparison as CSV: what differs between the set-ups, what each side lacks, then a line for each row of each table.

use std::io::{self, Write};

use vmtax_analyse::diff::Confidence;

use super::{Csv, write_record};
use crate::{Compares, Comparison, losses, names};

/// The columns, in order. `base` and `other` are exits of one unit `per`, or what a set-up has.
const COLUMNS: [&str; 14] = [
    "table",
    "key",
    "per",
    "base",
    "other",
    "ratio",
    "difference",
    "low",
    "high",
    "base_count",
    "other_count",
    "base_time_ns",
    "other_time_ns",
    "verdict",
];

impl Compares for Csv {
    fn compare(&self, comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
        let diff = &comparison.diff;
        write_record(out, &COLUMNS)?;
        for one in &diff.setup {
            let mut line = vec![String::new(); COLUMNS.len()];
            line[0] = "setup".to_owned();
            for (at, text) in [(1, &one.what), (3, &one.base), (4, &one.other)] {
                line[at] = super::guarded(text);
            }
            write_record(out, &line)?;
        }
        // What a side lacks: a line that has the sentence, and "yes" where it is of that side.
        for (at, side) in [(3, comparison.base), (4, comparison.other)] {
            for sentence in losses::all(side.ledger) {
                let mut line = vec![String::new(); COLUMNS.len()];
                line[0] = "losses".to_owned();
                line[1] = super::guarded(&sentence);
                line[at] = "yes".to_owned();
                write_record(out, &line)?;
            }
        }
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        for table in &diff.tables {
            let by: Vec<&str> = table.by.iter().map(|by| by.name()).collect();
            for row in &table.rows {
                let key: Vec<String> = row.key.iter().map(|value| names::value(*value)).collect();
                let (low, high) = match row.confidence {
                    Confidence::Interval(interval) => (Some(interval.low), Some(interval.high)),
                    Confidence::None(_) => (None, None),
                };
                let time = |time: Option<f64>| number(time.filter(|_| diff.times));
                write_record(
                    out,
                    &[
                        by.join("+"),
                        super::guarded(&key.join(" ")),
                        diff.per.name().to_owned(),
                        number(Some(row.base.rate)),
                        number(Some(row.other.rate)),
                        number(row.ratio()),
                        number(Some(row.difference())),
                        number(low),
                        number(high),
                        row.base.count.to_string(),
                        row.other.count.to_string(),
                        time(row.base.time_ns),
                        time(row.other.time_ns),
                        row.verdict().name().to_owned(),
                    ],
                )?;
            }
        }
        Ok(())
    }
}
