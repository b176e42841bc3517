//! I/O of each size in a lab run of the suite `bounce`: through a bounce buffer, and on pages that are converted. Described once.

use vmtax_analyse::{OperationRow, Operations};
use vmtax_events::Level;

use crate::operations::path_cell;
use crate::table::{Cell, Column, PEOPLE, Table};

pub(crate) const TITLE: &str = "Bounce buffer or conversion: one I/O of each size";

/// Said below the table.
pub(crate) const NOTE: &str = "bounced: the data is copied into shared memory. converted: its pages are made shared, written, and made private again. exits, \
                               path: of one I/O. pays from: a driver that leaves pages shared for so many I/Os executes fewer instructions than one that \
                               copies each time: (converted - direct) / (bounced - direct), with the path of ring-direct. A copy moves 8 bytes with each \
                               instruction here; hardware moves more, so it pays later there.";

/// Sizes, as operations name them, and their bytes.
const SIZES: [(&str, &str, u64); 5] = [
    ("4k", "4 KiB", 4 << 10),
    ("16k", "16 KiB", 16 << 10),
    ("64k", "64 KiB", 64 << 10),
    ("256k", "256 KiB", 256 << 10),
    ("2m", "2 MiB", 2 << 20),
];

/// An I/O of one size.
pub(crate) struct Transfer<'a> {
    pub(crate) size: &'static str,
    pub(crate) bytes: u64,
    pub(crate) level: Level,
    pub(crate) bounced: &'a OperationRow,
    pub(crate) converted: &'a OperationRow,
    /// Path of an I/O without either, instructions.
    pub(crate) direct: Option<f64>,
}

impl Transfer<'_> {
    /// Instructions of one I/O through the buffer, and on pages that are converted for so many.
    pub(crate) fn paths(&self, for_each: f64) -> Option<(f64, f64)> {
        let (bounced, converted) = (self.bounced.path?.median, self.converted.path?.median);
        let direct = self.direct.unwrap_or(0.0);
        Some((bounced, direct + (converted - direct) / for_each))
    }

    /// From how many I/Os on a conversion takes fewer instructions.
    pub(crate) fn pays_from(&self) -> Option<f64> {
        let direct = self.direct?;
        let (bounced, converted) = self.paths(1.0)?;
        (bounced > direct).then(|| (converted - direct) / (bounced - direct))
    }
}

/// What the run has of both ways, by level and size.
pub(crate) fn transfers(operations: &Operations) -> Vec<Transfer<'_>> {
    let find = |name: &str, level: Level| {
        operations.rows.iter().find(|row| row.name == name && row.level == level)
    };
    let mut found = Vec::new();
    for level in [Level::L1, Level::L2] {
        let direct = find("ring-direct", level).and_then(|row| row.path).map(|path| path.median);
        for (word, size, bytes) in SIZES {
            let bounced = find(&format!("io-bounced-{word}"), level);
            let converted = find(&format!("io-converted-{word}"), level);
            if let (Some(bounced), Some(converted)) = (bounced, converted) {
                found.push(Transfer { size, bytes, level, bounced, converted, direct });
            }
        }
    }
    found
}

/// For people; `None` for a run without both ways.
pub(crate) fn table(operations: &Operations) -> Option<Table> {
    let number = |key, title: &'static str| Column::number(key, title).only(PEOPLE);
    let exits = |row: &OperationRow| {
        let each = row.recorded.then(|| row.exits_per_operation().value()).flatten();
        Cell::of(each, Cell::Number)
    };
    let path = |row: &OperationRow| Cell::of(row.path, |path| path_cell(&path));
    let table = Table::of(transfers(operations))
        .column(Column::words("size", "I/O").only(PEOPLE), |it| Cell::Word(it.size))
        .column(Column::short("level", "level").only(PEOPLE), |it| Cell::Word(it.level.name()))
        .column(number("copied", "bytes copied"), |it| Cell::Count(it.bytes))
        .column(number("bounced_exits", "exits, bounced"), |it| exits(it.bounced))
        .column(number("bounced", "path, bounced"), |it| path(it.bounced))
        .column(number("converted_exits", "exits, converted"), |it| exits(it.converted))
        .column(number("converted", "path, converted"), |it| path(it.converted))
        .column(number("pays_from", "pays from"), |it| Cell::of(it.pays_from(), Cell::Number))
        .table();
    (!table.rows.is_empty()).then_some(table)
}
