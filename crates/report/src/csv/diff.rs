//! A comparison as CSV: what differs between the set-ups, what each side lacks, then a line for each row of each table.

use std::io::{self, Write};

use super::{Csv, write_record};
use crate::{Compares, Comparison, diff};

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
        let exits = comparison.diff.tables.iter().map(|table| diff::exits(&comparison.diff, table));
        write_record(out, &COLUMNS)?;
        [diff::setup(&comparison.diff), diff::lacks(comparison)]
            .into_iter()
            .chain(exits)
            .try_for_each(|table| table.csv_rows(&COLUMNS, out))
    }
}
