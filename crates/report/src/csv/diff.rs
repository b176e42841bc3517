//! A comparison as CSV: what differs between the set-ups, what each side lacks, then a line for each row of each table.

use std::io::{self, Write};

use super::Csv;
use crate::table::{Table, write_lines};
use crate::{Compares, Comparison, diff as described};

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
        let mut tables = vec![described::setup(diff), described::lacks(comparison)];
        tables.extend(diff.tables.iter().map(|table| described::exits(diff, table)));
        write_lines(&COLUMNS, tables.iter().flat_map(Table::csv_lines), out)
    }
}
