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
            let unit = unit.or_else(|| self.common(at));
            let has_unit = has_unit || unit.is_some();
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

    /// `rate` of the columns `rate (base)` and `rate (patched)`: what the set-ups in brackets have in common is in place of a unit.
    fn common(&self, at: usize) -> Option<String> {
        let parts = |head: &str| {
            let (name, setup) = head.split_once(" (")?;
            let setup = setup.strip_suffix(')')?;
            is_named(setup).then(|| (name.to_owned(), setup.to_owned()))
        };
        let (name, setup) = parts(&self.head[at])?;
        let is_other = |head: &String| parts(head).is_some_and(|(n, s)| n == name && s != setup);
        self.head.iter().any(is_other).then_some(name)
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

    /// Its columns or most of its rows are of set-ups by their names, or it has rows of each set-up for each workload.
    pub(super) fn is_of_setups(&self) -> bool {
        let first = self.of_values().first().map_or(0, |(at, _)| *at);
        let named = self.rows.iter().filter(|row| is_named(&row[0])).count();
        2 * named > self.rows.len() || self.columns_are_named() || self.grid(first).is_some()
    }

    /// Several columns of values are of set-ups by their names: `Off`, `On`.
    fn columns_are_named(&self) -> bool {
        let columns = self.of_values();
        columns.len() > 1 && columns.iter().all(|(at, _)| is_named(&self.head[*at]))
    }

    fn has_switches(&self) -> bool {
        let first = self.of_values().first().map_or(0, |(at, _)| *at);
        let is_switch = |cell: &String| SWITCHES.contains(&cell.to_lowercase().as_str());
        (0..first).any(|at| self.rows.iter().filter_map(|row| row.get(at)).any(is_switch))
    }
}

impl PostedTable {
    /// Rows of each set-up for each workload: which of the first two columns names the set-up, and which the workload. Both names are seen together
    /// in most rows.
    fn grid(&self, first: usize) -> Option<(usize, usize)> {
        const WORKLOAD: [&str; 7] =
            ["workload", "test", "benchmark", "job", "operation", "read/write", "case"];
        if first != 2 || self.columns_are_named() {
            return None;
        }
        let names = |at: usize| -> BTreeSet<&str> {
            self.rows.iter().filter_map(|row| row.get(at)).map(String::as_str).collect()
        };
        let (left, right) = (names(0), names(1));
        let is_full = left.len() > 1 && right.len() > 1 && {
            let pairs: BTreeSet<(&str, &str)> =
                self.rows.iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
            5 * pairs.len() >= 4 * left.len() * right.len()
        };
        let is_workload = |at: usize, names: &BTreeSet<&str>| {
            WORKLOAD.contains(&self.head[at].to_lowercase().as_str())
                || names.iter().all(|name| names_metric(name))
        };
        match (is_workload(0, &left), is_workload(1, &right)) {
            (false, true) if is_full => Some((0, 1)),
            (true, false) if is_full => Some((1, 0)),
            _ => None,
        }
    }
}

/// A table's row, the head of its column, and a unit.
type Measured<'a> = (String, &'a str, String);

/// Tables of one head and of several titles: the titles are set-ups, if rows of one label are below several.
pub(super) fn of_titled(tables: &[PostedTable], samples: &mut Vec<Sample>) -> bool {
    let mut found: BTreeMap<Measured<'_>, Vec<(&str, f64)>> = BTreeMap::new();
    for table in tables.iter().filter(|table| !table.has_switches() && !table.columns_are_named()) {
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

/// A table: its rows are set-ups, or its columns, or both. `is_one_of` several with the same head: its title tells what was measured.
pub(super) fn of_table(table: &PostedTable, is_one_of: bool, samples: &mut Vec<Sample>) {
    if table.is_spaced && !table.is_of_setups() {
        return;
    }
    let values = table.values();
    if table.rows_are_named() {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            let of_what = format!("{} {head}", table.head[0]);
            sample(label, (of_what.trim(), ""), (unit, *number))
        };
        samples.extend(values.iter().map(of));
        return;
    }
    let columns = table.of_values();
    let first = columns.first().map_or(0, |(at, _)| *at);
    let digit = |c: char| c.is_ascii_digit();
    if let Some((setup, workload)) = table.grid(first) {
        for row in &table.rows {
            for (at, unit) in &columns {
                let found = row.get(*at).and_then(|cell| value(cell));
                let Some(found) = found else { continue };
                let Some(unit) = found.unit.or_else(|| unit.clone()) else { continue };
                // `1 job` of one table is another load than `4 jobs` of the next.
                let load = Some(&table.head[setup]).filter(|head| head.contains(digit));
                let load = load.map(|head| format!("{head}, ")).unwrap_or_default();
                let workload = format!("{load}{}", row[workload]);
                let names = (workload.as_str(), table.head[*at].as_str());
                samples.push(sample(&row[setup], names, (&unit, found.number)));
            }
        }
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
        let of = |(label, head, unit, number): &(String, &str, String, f64)| match is_one_of {
            true => sample(head, (&format!("{label}, {}", table.title), ""), (unit, *number)),
            false => sample(head, (label, ""), (unit, *number)),
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
