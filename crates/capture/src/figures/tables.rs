//! Tables -> samples: which of their rows, columns and titles are set-ups.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::Sample;

use super::blocks::{PostedTable, is_named};
use super::value::{Value, change, digits, number, plain, unit_in, value};
use super::{kind_of, names_metric, sample};

/// Cells of a column that says whether something is there.
const SWITCHES: &[&str] = &["on", "off", "yes", "no", "enabled", "disabled", "true", "false"];

/// A table's columns that have values, with the units of their heads.
impl PostedTable {
    fn of_values(&self) -> Vec<(usize, Option<String>)> {
        let mut columns = Vec::new();
        for at in 1..self.head.len() {
            let cells: Vec<&String> = self.rows.iter().filter_map(|row| row.get(at)).collect();
            let values: Vec<Value> = cells.iter().filter_map(|cell| value(cell)).collect();
            let unit = unit_in(&self.head[at]);
            let has_unit = unit.is_some() || values.iter().any(|value| value.unit.is_some());
            if (has_unit || self.rows_are_named())
                && 2 * values.len() >= cells.len()
                && !values.is_empty()
            {
                columns.push((at, unit));
            }
        }
        columns
    }

    /// Each row is of a set-up by its name, and each column of a number: values may have no unit.
    fn rows_are_named(&self) -> bool {
        let is_number = |head: &String| number(head).is_some();
        self.rows.len() > 1
            && self.head.len() > 2
            && self.head[1..].iter().all(is_number)
            && self.rows.iter().all(|row| is_named(&row[0]))
    }

    /// What a row is of: its cells before the first column of values.
    fn label(&self, row: &[String], first: usize) -> String {
        let named = |at: usize| match self.head[at].is_empty() || first == 1 {
            true => row[at].clone(),
            false => format!("{} {}", self.head[at], row[at]),
        };
        (0..first.min(row.len())).map(named).collect::<Vec<_>>().join(", ")
    }

    /// The values: row, its label, the column's head, unit, number.
    fn values(&self) -> Vec<(String, &str, String, f64)> {
        let columns = self.of_values();
        let Some((first, _)) = columns.first() else { return Vec::new() };
        let mut all = Vec::new();
        for row in &self.rows {
            let label = self.label(row, *first);
            for (at, unit) in &columns {
                let Some(found) = row.get(*at).and_then(|cell| value(cell)) else { continue };
                let unit = found.unit.or_else(|| unit.clone());
                let Some(unit) = unit.or_else(|| self.rows_are_named().then(String::new)) else {
                    continue;
                };
                all.push((label.clone(), self.head[*at].as_str(), unit, found.number));
            }
        }
        all
    }

    /// The rows are of one job, whose name stands behind a dash and may be that of a metric: `24.05 - randread`, `Revert - randread`.
    fn is_of_one_job(&self) -> bool {
        let parts = |row: &Vec<String>| {
            row[0].split_once(" - ").map(|(setup, job)| (setup.to_owned(), job.to_owned()))
        };
        let Some(names) = self.rows.iter().map(parts).collect::<Option<Vec<_>>>() else {
            return false;
        };
        names.iter().all(|(setup, job)| *job == names[0].1 && !names_metric(setup))
    }

    fn has_switches(&self) -> bool {
        let first = self.of_values().first().map_or(0, |(at, _)| *at);
        let is_switch = |cell: &String| SWITCHES.contains(&cell.to_lowercase().as_str());
        (0..first).any(|at| self.rows.iter().filter_map(|row| row.get(at)).any(is_switch))
    }
}

/// A table's row, the head of its column, and a unit.
type Measured<'a> = (String, &'a str, String);

/// Tables of one head and of several titles: the titles are set-ups, if rows of one label are below several.
pub(super) fn of_titled(tables: &[PostedTable], samples: &mut Vec<Sample>) -> bool {
    let mut found: BTreeMap<Measured<'_>, Vec<(&str, f64)>> = BTreeMap::new();
    for table in tables.iter().filter(|table| !table.has_switches()) {
        for (label, head, unit, number) in table.values() {
            let same =
                tables.iter().any(|other| other.title != table.title && other.head == table.head);
            if same {
                found.entry((label, head, unit)).or_default().push((&table.title, number));
            }
        }
    }
    found.retain(|_, values| values.iter().any(|(title, _)| *title != values[0].0));
    for ((label, head, unit), values) in &found {
        samples.extend(
            values.iter().map(|(title, number)| sample(title, (label, head), (unit, *number))),
        );
    }
    !found.is_empty()
}

/// A table: its rows are set-ups, or its columns, or both.
pub(super) fn of_table(table: &PostedTable, samples: &mut Vec<Sample>) {
    let values = table.values();
    if table.rows_are_named() {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            let of_what = format!("{} {head}", table.head[0]);
            sample(label, (of_what.trim(), ""), (unit, *number))
        };
        samples.extend(values.iter().map(of));
        return;
    }
    let heads: BTreeSet<&str> = values.iter().map(|(_, head, ..)| *head).collect();
    let is_one_unit = |head: &str| {
        let units: BTreeSet<&str> =
            values.iter().filter(|one| one.1 == head).map(|one| kind_of(&one.2)).collect();
        units.len() == 1
    };
    let rows_differ = !heads.iter().all(|head| is_one_unit(head));
    let rows_are_metrics = rows_differ
        || names_metric(&table.head[0])
        || !table.is_of_one_job() && table.rows.iter().any(|row| names_metric(&row[0]));
    let columns_are_setups = heads.len() > 1 && !heads.iter().any(|head| names_metric(head));
    if columns_are_setups {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            sample(head, (label, ""), (unit, *number))
        };
        samples.extend(values.iter().map(of));
    }
    if !rows_are_metrics && (!columns_are_setups || table.has_switches()) {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            // `1.5 MB` alone says nothing.
            let is_bare = label.starts_with(|c: char| c.is_ascii_digit())
                && label.split_whitespace().count() <= 2
                && !table.head[0].is_empty();
            let named = if is_bare { format!("{} {label}", table.head[0]) } else { label.clone() };
            sample(&named, (&table.title, head), (unit, *number))
        };
        samples.extend(values.iter().map(of));
    }
}

/// Relative changes, of tables and of lines below titles.
pub(super) fn of_changes(tables: &[PostedTable], lines: &[(String, String, f64)]) -> Vec<Sample> {
    /// Words of a head or a title by which a share without a sign is a change.
    const RELATIVE: [&str; 14] = [
        "change",
        "diff",
        "delta",
        "improvement",
        "overhead",
        "slowdown",
        "speedup",
        "regression",
        "gain",
        "vs",
        "relative",
        "reduction",
        "loss",
        "penalty",
    ];
    let is_relative = |text: &str| {
        let text = text.to_lowercase();
        RELATIVE
            .iter()
            .any(|word| text.split(|c: char| !c.is_alphanumeric()).any(|one| one.starts_with(word)))
    };
    let mut samples = Vec::new();
    for table in tables {
        for at in 1..table.head.len() {
            let head = table.head[at].as_str();
            let bare = is_relative(head) || is_relative(&table.title);
            let found: Vec<(&Vec<String>, f64, &str)> = table
                .rows
                .iter()
                .filter_map(|row| {
                    let cell = row.get(at)?;
                    let factor = plain(cell);
                    let factor =
                        factor.trim_start_matches(['~', '\u{2248}']).strip_suffix(['x', '\u{d7}']);
                    change(cell, bare)
                        .map(|change| (row, change, "%"))
                        .or_else(|| Some((row, digits(factor?.trim()).filter(|_| bare)?, "times")))
                })
                .collect();
            if 2 * found.len() < table.rows.len() {
                continue;
            }
            let rows_are_metrics = table.rows.iter().any(|row| names_metric(&row[0]));
            samples.extend(found.into_iter().map(|(row, change, unit)| match rows_are_metrics {
                true => sample(head, (&row[0], ""), (unit, change)),
                false => sample(&row[0], (head, ""), (unit, change)),
            }));
        }
    }
    samples.extend(lines.iter().map(|(title, label, change)| {
        match names_metric(label) || title.is_empty() {
            true => {
                sample(if title.is_empty() { "change" } else { title }, (label, ""), ("%", *change))
            }
            false => sample(label, (title, ""), ("%", *change)),
        }
    }));
    samples
}
