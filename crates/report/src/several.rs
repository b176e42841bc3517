//! Several recordings side by side: a column for each, a row for each cause or reason.
//!
//! ```text
//! ledgers ──> Several ─┬─> for people: a table of the recordings, then counts and times, a column for each recording
//!                      └─> for programs: the same numbers, a row for each recording and cause
//! ```
//! Left out: differences between two recordings, their statistics and their setups. That is `vmtax diff`.

use std::io::{self, Write};

use vmtax_analyse::{By, Ledger, Table as Counted, TableKind, Value};
use vmtax_events::{Level, Tally};

use crate::headline::duration_ns;
use crate::numbers::{counted, percent, percent_digits, share, significant};
use crate::table::{Cell, Column, PEOPLE, Table, sort_key};
use crate::tables::{Formats, Section, Tables};
use crate::text::Text;
use crate::{keys, losses, names};

/// Schema of the JSON; docs/json.md.
const SCHEMA: &str = "vmtax-report-several-1";
/// Shown in front of the columns of recordings.
const INDENT: usize = 2;

/// A recording with its name. Names are hostile.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its column's title.
    pub name: String,
    /// What it holds.
    pub ledger: Ledger,
}

/// Recordings, and which of their tables are shown.
pub struct Several<'a> {
    recordings: &'a [Named],
    groups: Vec<Group>,
    tool_version: &'static str,
}

/// One table of all recordings.
struct Group {
    kind: TableKind,
    by: Vec<By>,
    /// People see the level.
    has_levels: bool,
    /// The table of each recording.
    counted: Vec<Counted>,
    /// Keys as text, the largest share of any recording first.
    rows: Vec<Joined>,
}

/// A row that recordings have in common: those of another vendor have other numbers and the same words.
struct Joined {
    label: String,
    /// Its position in the table of each recording.
    at: Vec<Option<usize>>,
}

/// What a cell shows.
#[derive(Clone, Copy)]
enum Measure {
    Count,
    Time,
}

impl Measure {
    fn of(self, tally: &Tally) -> u64 {
        match self {
            Measure::Count => tally.count,
            Measure::Time => tally.time_ns,
        }
    }
}

impl<'a> Several<'a> {
    /// The tables of these kinds, grouped as asked; VMs and vCPUs of different recordings are unrelated, so `by` has neither.
    pub fn new(
        recordings: &'a [Named],
        kinds: &[TableKind],
        by: &[By],
        tool_version: &'static str,
    ) -> Several<'a> {
        let group = |kind: &TableKind| Group::new(recordings, *kind, by);
        Several { recordings, groups: kinds.iter().map(group).collect(), tool_version }
    }

    /// Times of emulated hosts and of others, or of different emulators, are never shown side by side.
    fn has_comparable_times(&self) -> bool {
        let emulated = |named: &'a Named| named.ledger.recording.emulated.as_deref();
        let mut all = self.recordings.iter().map(emulated);
        let first = all.next();
        all.all(|one| Some(one) == first)
    }

    /// For people, the recordings of these columns.
    fn people(&self, columns: &[usize]) -> Tables {
        let mut sections = vec![self.overview()];
        for group in &self.groups {
            sections.extend(self.section(group, Measure::Count, columns));
            if self.has_comparable_times() {
                sections.extend(self.section(group, Measure::Time, columns));
            }
        }
        self.tables(sections)
    }

    fn tables(&self, sections: Vec<Section>) -> Tables {
        let facts = vec![("recordings", self.recordings.len().to_string())];
        let tool_version = self.tool_version;
        Tables {
            command: "report",
            tool_version,
            facts,
            answer: vec![self.answer()],
            emulation: self.emulation(),
            sections,
            json: serde_json::json!({}),
        }
    }

    /// The taxes, the largest first; rates of exits where times are not compared or not known.
    fn answer(&self) -> String {
        let listed = |what: &str, mut all: Vec<(&str, f64, String)>| {
            all.sort_by(|(_, a, _), (_, b, _)| b.total_cmp(a));
            let all: Vec<String> =
                all.into_iter().map(|(name, _, figure)| format!("{name} {figure}")).collect();
            format!("{what}: {}.", all.join(", "))
        };
        let tax = |named: &'a Named| {
            let tax = named.ledger.tax().filter(|_| self.has_comparable_times())?;
            Some((named.name.as_str(), tax, percent(tax)))
        };
        let taxes: Vec<(&str, f64, String)> = self.recordings.iter().filter_map(tax).collect();
        if taxes.len() == self.recordings.len() {
            return listed("Exit tax", taxes);
        }
        let rate = |named: &'a Named| {
            let seconds = duration_ns(&named.ledger) as f64 / 1e9;
            let rate = named.ledger.total().count as f64 / seconds;
            (seconds > 0.0).then(|| (named.name.as_str(), rate, significant(rate)))
        };
        let rates: Vec<(&str, f64, String)> = self.recordings.iter().filter_map(rate).collect();
        if rates.is_empty() {
            return "Neither times nor rates of exits are known.".to_owned();
        }
        listed("Exits per second", rates)
    }

    /// Said once, where all are of one emulator.
    fn emulation(&self) -> Option<String> {
        let which = self.recordings.first()?.ledger.recording.emulated.as_ref()?;
        self.has_comparable_times()
            .then(|| format!("Emulated ({which}): times do not reflect hardware."))
    }

    /// A row for each recording.
    fn overview(&self) -> Section {
        let is_emulated = self.recordings.iter().any(|n| n.ledger.recording.emulated.is_some());
        let mut table = Table::new(vec![
            Column::words("recording", "recording"),
            Column::words("host", "host"),
            Column::words("kernel", "kernel"),
            Column::words("emulated", "emulated").shown_if(is_emulated),
            Column::number("duration_ns", "duration"),
            Column::minor("vms", "VMs", 2),
            Column::number("exits", "exits"),
            Column::minor("exits_per_second", "per second", 1),
            Column::number("tax", "exit tax").help("(exit-kernel + exit-user) / (wall - halted)"),
            Column::number("contention", "contention").help("preempted / (wall - halted)"),
        ]);
        let timed = self.has_comparable_times();
        for Named { name, ledger } in self.recordings {
            let recording = &ledger.recording;
            let text = |text: &str| match text {
                "" => Cell::Absent,
                text => Cell::Name(text.to_owned()),
            };
            // A dump of counts says neither how long it took nor of which VMs.
            let known = |n: u64| (n > 0).then_some(n);
            let seconds = duration_ns(ledger) as f64 / 1e9;
            let exits = ledger.total().count;
            let rate = (seconds > 0.0).then(|| exits as f64 / seconds);
            let shown = |part: Option<f64>| Cell::of(part.filter(|_| timed), Cell::Share);
            let contention = ledger.contention().filter(|_| recording.coverage.sched);
            table.row(vec![
                Cell::Name(name.clone()),
                text(&recording.hostname),
                text(&recording.kernel),
                text(recording.emulated.as_deref().unwrap_or_default()),
                Cell::of(known(duration_ns(ledger)), Cell::Time),
                Cell::of(known(recording.vms.len() as u64), Cell::Count),
                Cell::Count(exits),
                Cell::of(rate, Cell::Number),
                shown(ledger.tax()),
                shown(contention),
            ]);
        }
        let (id, title) = ("recordings", "Recordings".to_owned());
        Section { id, title, notes: self.notes(), table }
    }

    /// What holds of single recordings, and is missing from them.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_comparable_times() {
            notes.push(
                "Times and shares of time are left out: not all recordings are of the same kind of host (see emulated)."
                    .to_owned(),
            );
        }
        for Named { name, ledger } in self.recordings {
            let lost = losses::events(ledger);
            if !lost.is_empty() {
                notes.push(format!("{name}: counts are too low. {}", lost.join(" ")));
            }
            notes.extend(ledger.losses.missing.iter().map(|said| format!("{name}: {said}")));
        }
        notes
    }

    /// A row for each cause or reason, a column for each recording; nothing without rows, or times.
    fn section(&self, group: &Group, measure: Measure, columns: &[usize]) -> Option<Section> {
        let is_timed = group.counted.iter().any(|counted| counted.total.timed > 0);
        if group.rows.is_empty() || (matches!(measure, Measure::Time) && !is_timed) {
            return None;
        }
        let shown = group.by.iter().filter(|by| group.has_levels || **by != By::Level);
        let heads: Vec<&str> = shown.map(|by| names::heading(*by)).collect();
        let mut all = vec![Column::words("", heads.join(", ")).only(PEOPLE)];
        for &at in columns {
            all.push(Column::number("", self.recordings[at].name.clone()));
            all.push(Column::number("", "%").named("share").only(PEOPLE));
        }
        let mut table = Table::new(all);
        for row in &group.rows {
            let mut cells = vec![Cell::Name(row.label.clone())];
            for &at in columns {
                cells.extend(group.cells(row, at, measure));
            }
            table.row(cells);
        }
        let mut total = vec![Cell::Word("all")];
        for &at in columns {
            let sum = measure.of(&group.counted[at].total);
            let is_there = group.has(at, measure);
            total.extend([written(measure, is_there.then_some(sum)), Cell::Empty]);
        }
        table.total = Some(total);
        let what = names::table_words(group.kind).label;
        let title = match measure {
            Measure::Count => format!("{what}: count"),
            Measure::Time => format!("{what}: time"),
        };
        let title = match columns.len() == self.recordings.len() {
            true => title,
            false => format!(
                "{title}, recordings {} to {} of {}",
                columns.first().map_or(0, |at| at + 1),
                columns.last().map_or(0, |at| at + 1),
                self.recordings.len()
            ),
        };
        let id = match measure {
            Measure::Count => group.kind.name(),
            Measure::Time => time_id(group.kind),
        };
        Some(Section { id, title, notes: Vec::new(), table })
    }

    /// For programs: a row for each recording and row of its tables.
    fn programs(&self) -> Tables {
        let mut sections = vec![self.overview()];
        for group in &self.groups {
            let mut columns = vec![Column::data("recording"), Column::data("accelerator")];
            columns.extend(keys::columns(&group.by));
            let numbers = ["count", "count_share", "time_ns", "time_share"];
            columns.extend(numbers.map(Column::data));
            let mut table = Table::new(columns);
            for (Named { name, ledger }, counted) in self.recordings.iter().zip(&group.counted) {
                let (total, timed) = (&counted.total, counted.total.timed > 0);
                for row in &counted.rows {
                    let tally = &row.tally;
                    let time = timed.then_some(tally.time_ns);
                    let part = |part, whole| Cell::of(share(part, whole), Cell::Share);
                    let accelerator = names::accelerator(&ledger.recording);
                    let mut cells = vec![Cell::Name(name.clone()), Cell::Name(accelerator)];
                    cells.extend(keys::cells(&group.by, &row.key));
                    cells.extend([
                        Cell::Count(tally.count),
                        part(tally.count, total.count),
                        Cell::of(time, Cell::Time),
                        part(tally.time_ns, total.time_ns),
                    ]);
                    table.row(cells);
                }
            }
            let (id, title) = (group.kind.name(), String::new());
            sections.push(Section { id, title, notes: Vec::new(), table });
        }
        self.tables(sections)
    }

    /// The columns of recordings in groups that fit a terminal; one group where the width is not known.
    fn fitting(&self, width: Option<usize>) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..self.recordings.len()).collect();
        let Some(width) = width else { return vec![all] };
        let columns_of = crate::text::layout::columns_of;
        let labels = self.groups.iter().flat_map(|group| &group.rows);
        let first = labels.map(|row| columns_of(&names::printable(&row.label))).max();
        let room = width.saturating_sub(INDENT + first.unwrap_or(0));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut left = 0;
        for at in all {
            let wide = columns_of(&names::printable(&self.recordings[at].name)).max(WIDEST_NUMBER);
            let wide = wide + WIDEST_SHARE;
            match groups.last_mut() {
                Some(group) if wide <= left => {
                    group.push(at);
                    left -= wide;
                }
                _ => {
                    groups.push(vec![at]);
                    left = room.saturating_sub(wide);
                }
            }
        }
        groups
    }
}

/// `1,234,567`, with the gap before it: larger numbers widen the column past the estimate.
const WIDEST_NUMBER: usize = 11;
/// `100.0`, with the gap before it and that before the number.
const WIDEST_SHARE: usize = 9;

impl Group {
    fn new(recordings: &[Named], kind: TableKind, by: &[By]) -> Group {
        let counted: Vec<Counted> =
            recordings.iter().map(|named| Counted::new(&named.ledger, kind, by)).collect();
        let by = counted.first().map_or_else(Vec::new, |counted| counted.by.clone());
        let keys = || counted.iter().flat_map(|counted| &counted.rows).map(|row| &row.key);
        // As in the report of one: the level goes if nobody asked for it and all exits are of L1.
        let has_levels =
            by != kind.default_by() || !keys().all(|key| key.iter().all(|value| is_not_l2(*value)));
        let mut rows: Vec<Joined> = Vec::new();
        for (column, counted) in counted.iter().enumerate() {
            for (at, row) in counted.rows.iter().enumerate() {
                let label = label(&row.key, has_levels);
                let joined = match rows.iter_mut().find(|joined| joined.label == label) {
                    Some(joined) => joined,
                    None => {
                        rows.push(Joined { label, at: vec![None; recordings.len()] });
                        // Pushed just now.
                        let last = rows.len() - 1;
                        &mut rows[last]
                    }
                };
                joined.at[column] = Some(at);
            }
        }
        let largest = |row: &Joined| {
            let shares = row.at.iter().zip(&counted).filter_map(|(at, counted)| {
                let tally = &counted.rows[(*at)?].tally;
                match counted.total.timed > 0 {
                    true => share(tally.time_ns, counted.total.time_ns),
                    false => share(tally.count, counted.total.count),
                }
            });
            shares.fold(0.0, f64::max)
        };
        let mut ranked: Vec<(f64, Joined)> =
            rows.into_iter().map(|row| (largest(&row), row)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.label.cmp(&b.1.label)));
        let rows = ranked.into_iter().map(|(_, row)| row).collect();
        Group { kind, by, has_levels, counted, rows }
    }

    /// Whether a recording has this number at all. Accesses that were not recorded are unknown, not zero.
    fn has(&self, recording: usize, measure: Measure) -> bool {
        let counted = &self.counted[recording];
        match measure {
            Measure::Count => !counted.rows.is_empty(),
            Measure::Time => counted.total.timed > 0,
        }
    }

    /// The number and the share of a recording in a row.
    fn cells(&self, row: &Joined, recording: usize, measure: Measure) -> [Cell; 2] {
        if !self.has(recording, measure) {
            return [Cell::Absent, Cell::Absent];
        }
        let counted = &self.counted[recording];
        let found = row.at[recording].map(|at| &counted.rows[at].tally);
        let number = found.map_or(0, |tally| measure.of(tally));
        let part = share(number, measure.of(&counted.total));
        let digits = |part: f64| Cell::Written(percent_digits(part), sort_key(part));
        [written(measure, Some(number)), Cell::of(part, digits)]
    }
}

fn written(measure: Measure, number: Option<u64>) -> Cell {
    Cell::of(number, |number| match measure {
        Measure::Count => Cell::Count(number),
        Measure::Time => Cell::Time(number),
    })
}

fn is_not_l2(value: Value) -> bool {
    !matches!(value, Value::Level(level) if level != Level::L1)
}

/// A key in words: `msr L1`.
fn label(key: &[Value], has_levels: bool) -> String {
    let shown = key.iter().filter(|value| has_levels || !matches!(value, Value::Level(_)));
    let words: Vec<String> = shown.map(|value| names::value(*value)).collect();
    words.iter().filter(|word| !word.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// The `id` of the section with the times of a table.
fn time_id(kind: TableKind) -> &'static str {
    match kind {
        TableKind::Vmexit => "vmexit-time",
        TableKind::Msr => "msr-time",
        TableKind::Ioport => "ioport-time",
        TableKind::Mmio => "mmio-time",
        TableKind::Cpuid => "cpuid-time",
        TableKind::Hypercall => "hypercall-time",
        TableKind::Conversion => "conversion-time",
        TableKind::Cause => "cause-time",
    }
}

impl Formats for Several<'_> {
    fn text(&self, look: Text, out: &mut dyn Write) -> io::Result<()> {
        for (at, columns) in self.fitting(look.width).iter().enumerate() {
            let mut tables = self.people(columns);
            if at > 0 {
                writeln!(out)?;
                tables.facts.clear();
                tables.sections.remove(0);
            }
            tables.text(look, out)?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        self.programs().with_rows_as_json(SCHEMA)?.json(out)
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        self.programs().csv(out)
    }

    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        let all: Vec<usize> = (0..self.recordings.len()).collect();
        let mut tables = self.people(&all);
        tables.facts[0].1 = counted(self.recordings.len() as u64, "recording");
        tables.html(out)
    }
}

/// Short names of paths: without the folders that all begin with. Of equal paths each has its number.
pub fn short_names(paths: &[String]) -> Vec<String> {
    let parts: Vec<Vec<&str>> = paths.iter().map(|path| path.split('/').collect()).collect();
    let shortest = parts.iter().map(Vec::len).min().unwrap_or(0);
    let alike = |at: usize| parts.iter().all(|one| one[at] == parts[0][at]);
    let common = (0..shortest.saturating_sub(1)).take_while(|at| alike(*at)).count();
    let short: Vec<String> = parts.iter().map(|one| one[common..].join("/")).collect();
    let numbered = short.iter().enumerate().map(|(at, name)| {
        let is_twice = short.iter().enumerate().any(|(other, n)| other != at && n == name);
        if is_twice { format!("{name} #{}", at + 1) } else { name.clone() }
    });
    numbered.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_short_as_they_can_be() {
        let short = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            short_names(&paths)
        };
        assert_eq!(short(&["a/x.data", "a/y.data"]), ["x.data", "y.data"]);
        assert_eq!(short(&["t/host=a/run", "t/host=b/run"]), ["host=a/run", "host=b/run"]);
        assert_eq!(short(&["run", "run"]), ["run #1", "run #2"]);
        assert_eq!(short(&["/run", "run"]), ["/run", "run"]);
        assert_eq!(short(&[]), [] as [&str; 0]);
    }
}
