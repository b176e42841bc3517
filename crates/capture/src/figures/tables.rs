//! Tables -> samples: which of their rows, columns and titles are set-ups.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::Sample;

use super::blocks::{PostedTable, is_named};
use super::lines::SIZES;
use super::setup::remainder;
use super::value::{Value, change, digits, number, plain, unit_in, value};
use super::{is_unmeasured, kind_of, names_metric, sample};

/// Cells of a column that says whether something is there.
const SWITCHES: &[&str] = &["on", "off", "yes", "no", "enabled", "disabled", "true", "false"];

/// A table's columns that have values, with the units of their heads.
impl PostedTable {
    fn of_values(&self) -> Vec<(usize, Option<String>)> {
        let rows_are_named = self.rows_are_named();
        let mut columns = Vec::new();
        for at in 1..self.head.len() {
            if is_spread(&self.head[at]) {
                continue;
            }
            let cells: Vec<&String> = self.rows.iter().filter_map(|row| row.get(at)).collect();
            let values: Vec<Value> = cells.iter().filter_map(|cell| value(cell)).collect();
            let unit = unit_in(&self.head[at]);
            let has_unit = unit.is_some() || values.iter().any(|value| value.unit.is_some());
            if (has_unit || rows_are_named) && 2 * values.len() >= cells.len() && !values.is_empty()
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

    /// The columns `rate (base)` and `rate (patched)`: their places, the common name and the set-up in brackets.
    fn bracketed(&self) -> Vec<(usize, &str, &str)> {
        /// Names of what is not measured.
        const OTHERS: [&str; 12] = [
            "version", "cores", "vcpus", "cpus", "ram", "memory", "bug", "id", "size", "port",
            "note", "notes",
        ];
        let parts = |(at, head): (usize, &'_ String)| {
            let open = head.find(" (")?;
            let inside = head[open + 2..].strip_suffix(')')?;
            let name = &head[..open];
            let is_other = OTHERS.contains(&name.to_lowercase().as_str()) || is_unmeasured(name);
            (!is_other && !is_spread(name) && is_named(inside)).then_some((at, open, inside.len()))
        };
        let all: Vec<(usize, usize, usize)> =
            self.head.iter().enumerate().skip(1).filter_map(parts).collect();
        let of = |(at, open, length): (usize, usize, usize)| {
            let head = self.head[at].as_str();
            (at, &head[..open], &head[open + 2..open + 2 + length])
        };
        let all: Vec<(usize, &str, &str)> = all.into_iter().map(of).collect();
        let mut counts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        all.iter().for_each(|(_, name, setup)| {
            counts.entry(name).or_default().insert(setup);
        });
        all.into_iter().filter(|(_, name, _)| counts[name].len() > 1).collect()
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

    /// Its columns are of set-ups by their names, or its rows are, which leave the same without them; or it has rows of each set-up for each workload.
    pub(super) fn is_of_setups(&self) -> bool {
        /// Of values that are no results.
        const OTHERS: [&str; 5] = ["age", "uptime", "usage", "limit", "period"];
        let first = self.of_values().first().map_or(0, |(at, _)| *at);
        let is_other = |(at, head): (usize, &String)| {
            let head_words = head.to_lowercase();
            let mut words = head_words.split(|c: char| !c.is_alphanumeric());
            is_unmeasured(head)
                || at < first && is_listing(head)
                || words.any(|word| OTHERS.contains(&word))
        };
        let is_unread = |row: &Vec<String>| is_unmeasured(&row[0]);
        if self.head.iter().enumerate().any(is_other) || self.rows.iter().any(is_unread) {
            return false;
        }
        let left = |row: &Vec<String>| {
            let words: Vec<&str> = row[0].split_whitespace().collect();
            // What is before or after something is another part of it.
            let is_part = matches!(words.as_slice(), [first, _, ..]
                if ["before", "after"].contains(&first.to_lowercase().as_str()));
            if is_part { None } else { remainder(&row[0]) }
        };
        let rows: Option<BTreeSet<String>> = self.rows.iter().map(left).collect();
        rows.is_some_and(|left| left.len() == 1 && first == 1)
            || self.columns_are_named()
            || self.grid(first).is_some()
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
        const WORKLOADS: [&str; 7] =
            ["workload", "test", "benchmark", "job", "operation", "read/write", "case"];
        const SETUPS: [&str; 16] = [
            "name",
            "setup",
            "set-up",
            "config",
            "configuration",
            "backend",
            "driver",
            "kernel",
            "cache",
            "mode",
            "variant",
            "hypervisor",
            "filesystem",
            "category",
            "vm type",
            "model",
        ];
        if first != 2 || self.columns_are_named() {
            return None;
        }
        let head = |at: usize| self.head[at].to_lowercase();
        let names = |at: usize| -> BTreeSet<&str> {
            self.rows.iter().filter_map(|row| row.get(at)).map(String::as_str).collect()
        };
        let is_workload = |at: usize| {
            WORKLOADS.contains(&head(at).as_str())
                || SIZES.contains(&head(at).trim_end_matches('s'))
                || names(at).iter().all(|name| names_metric(name))
        };
        let is_setup = |at: usize| {
            let named = names(at).iter().filter(|name| is_named(name)).count();
            let are_named = 2 * named > names(at).len();
            (SETUPS.contains(&head(at).as_str()) || are_named)
                && !is_listing(&head(at))
                && !names(at).iter().any(|name| value(name).is_some())
        };
        let pairs: BTreeSet<(&str, &str)> =
            self.rows.iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
        let is_full = 5 * pairs.len() >= 4 * names(0).len() * names(1).len();
        let is = |setup: usize, workload: usize| {
            is_full && names(setup).len() > 1 && is_setup(setup) && is_workload(workload)
        };
        if is(0, 1) { Some((0, 1)) } else { is(1, 0).then_some((1, 0)) }
    }
}

/// A column of how far values are apart.
fn is_spread(head: &str) -> bool {
    let head = head.to_lowercase();
    let mut words = head.split(|c: char| !c.is_alphanumeric() && c != '\u{b1}');
    words.any(|word| {
        ["stddev", "std", "stdev", "error", "deviation", "dev", "cv", "\u{b1}"].contains(&word)
    })
}

/// A head of things that are listed, or set, and no set-ups to choose from.
fn is_listing(head: &str) -> bool {
    const OF_LISTS: [&str; 46] = [
        "device",
        "disk",
        "interface",
        "nic",
        "bus",
        "process",
        "task",
        "component",
        "setting",
        "parameter",
        "resource",
        "package",
        "stage",
        "phase",
        "step",
        "pod",
        "state",
        "status",
        "ready",
        "age",
        "uptime",
        "type",
        "kind",
        "node",
        "thread",
        "cpu",
        "queue",
        "server",
        "path",
        "pid",
        "syscall",
        "percentile",
        "stat",
        "run",
        "date",
        "limit",
        "timer",
        "plan",
        "option",
        "tunable",
        "id",
        "event",
        "irq",
        "usage",
        "service",
        "unit",
    ];
    let head = head.to_lowercase();
    let words = head.split(|c: char| !c.is_alphanumeric());
    words.map(|word| word.trim_end_matches('s')).any(|word| OF_LISTS.contains(&word))
}

/// A table's row, the head of its column, and a unit.
type Measured<'a> = (String, &'a str, String);

/// Tables of one head and of several titles: the titles are set-ups, if rows of one label are below several.
pub(super) fn of_titled(tables: &[PostedTable], samples: &mut Vec<Sample>) -> bool {
    let mut found: BTreeMap<Measured<'_>, Vec<(&str, f64)>> = BTreeMap::new();
    let of_titles = |table: &&PostedTable| {
        let first = table.of_values().first().map_or(0, |(at, _)| *at);
        !table.is_spaced
            && !table.has_switches()
            && !table.columns_are_named()
            && table.bracketed().is_empty()
            && table.grid(first).is_none()
    };
    for table in tables.iter().filter(of_titles) {
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

/// A table: its rows are set-ups, or its columns, or both. `of_which`, if any, tells it from others with its head.
pub(super) fn of_table(table: &PostedTable, of_which: &str, samples: &mut Vec<Sample>) {
    let digit = |c: char| c.is_ascii_digit();
    let of_this = |label: &str| match (label, of_which) {
        (_, "") => label.to_owned(),
        ("", _) => of_which.to_owned(),
        _ => format!("{label}, {of_which}"),
    };
    let bracketed = table.bracketed();
    if let Some((first, ..)) = bracketed.first() {
        for row in &table.rows {
            let label = of_this(&table.label(row, *first));
            for (at, name, setup) in &bracketed {
                let found = row.get(*at).and_then(|cell| value(cell));
                let Some(found) = found else { continue };
                let unit = found.unit.or_else(|| unit_in(name)).unwrap_or((*name).to_owned());
                samples.push(sample(setup, (&label, name), (&unit, found.number)));
            }
        }
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
    if let Some((setup, workload)) = table.grid(first) {
        for row in &table.rows {
            for (at, unit) in &columns {
                let found = row.get(*at).and_then(|cell| value(cell));
                let Some(found) = found else { continue };
                let Some(unit) = found.unit.or_else(|| unit.clone()) else { continue };
                // `1 job` of one table is another load than `4 jobs` of the next.
                let load = Some(&table.head[setup]).filter(|head| head.contains(digit));
                let load = load.map(|head| format!("{head}, ")).unwrap_or_default();
                let workload = of_this(&format!("{load}{}", row[workload]));
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
    let columns_are_setups = match table.is_spaced {
        true => table.columns_are_named(),
        false => heads.len() > 1 && !heads.iter().any(|head| names_metric(head)),
    };
    if columns_are_setups {
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            sample(head, (&of_this(label), ""), (unit, *number))
        };
        samples.extend(values.iter().map(of));
    }
    if !rows_are_metrics && (!columns_are_setups || table.has_switches()) {
        let title = match (of_which, table.title.as_str()) {
            ("", "") if table.is_spaced => table.head[0].as_str(),
            ("", title) => title,
            (which, _) => which,
        };
        let of = |(label, head, unit, number): &(String, &str, String, f64)| {
            // `1.5 MB` alone says nothing.
            let is_bare = label.starts_with(digit)
                && label.split_whitespace().count() <= 2
                && !table.head[0].is_empty();
            let named = if is_bare { format!("{} {label}", table.head[0]) } else { label.clone() };
            sample(&named, (title, head), (unit, *number))
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
