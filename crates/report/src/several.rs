//! Several recordings side by side: a column for each, a row for each cause or reason.
//!
//! ```text
//! ledgers ──> Several ─┬─> for people: a table of the recordings, then counts and times, a column for each recording
//!                      └─> for programs: the same numbers, a row for each recording and cause
//! ```
//! Left out: differences between two recordings, their statistics and their setups. That is `vmtax diff`.

use std::io::{self, Write};

use vmtax_analyse::{By, KeyValue, Ledger, SortedTable as Counted, TableKind};
use vmtax_events::{Level, Tally};

use crate::numbers::{counted, percent, percent_digits, share, significant};
use crate::table::{Cell, Column, PEOPLE, Table, sort_key};
use crate::tables::{AllFormats, Tables, TitledTable};
use crate::text::TextLayout;
use crate::{keys, losses, names};

/// Schema of the JSON; docs/json.md.
const SCHEMA: &str = "vmtax-report-several-1";
/// Shown in front of the columns of recordings.
const INDENT: usize = 2;

/// A recording with its name. Names are hostile.
#[derive(Clone, Debug)]
pub struct NamedRecording {
    pub name: String,
    pub ledger: Ledger,
}

/// Recordings, and which of their tables are shown.
pub struct Several<'a> {
    recordings: &'a [NamedRecording],
    groups: Vec<RecordingsTable>,
    tool_version: &'static str,
}

/// One table of all recordings.
struct RecordingsTable {
    kind: TableKind,
    by: Vec<By>,
    /// People see the level.
    has_levels: bool,
    /// The table of each recording.
    counted: Vec<Counted>,
    /// Keys as text, the largest share of any recording first.
    rows: Vec<JoinedRow>,
}

/// A row that recordings have in common: those of another vendor have other numbers and the same words.
struct JoinedRow {
    label: String,
    /// Its position in the table of each recording.
    at: Vec<Option<usize>>,
}

/// What a cell shows.
#[derive(Clone, Copy)]
enum CellMeasure {
    Count,
    Time,
}

impl CellMeasure {
    fn of(self, tally: &Tally) -> u64 {
        match self {
            CellMeasure::Count => tally.count,
            CellMeasure::Time => tally.time_ns,
        }
    }
}

impl<'a> Several<'a> {
    /// The tables of these kinds, grouped as asked; VMs and vCPUs of different recordings are unrelated, so `by` has neither.
    pub fn new(
        recordings: &'a [NamedRecording],
        kinds: &[TableKind],
        by: &[By],
        tool_version: &'static str,
    ) -> Several<'a> {
        let group = |kind: &TableKind| RecordingsTable::new(recordings, *kind, by);
        Several { recordings, groups: kinds.iter().map(group).collect(), tool_version }
    }

    /// Times of emulated hosts and of others, or of different emulators, are never shown side by side.
    fn has_comparable_times(&self) -> bool {
        let emulated = |named: &'a NamedRecording| named.ledger.recording.emulated.as_deref();
        let mut all = self.recordings.iter().map(emulated);
        let first = all.next();
        all.all(|one| Some(one) == first)
    }

    /// For people, the recordings of these columns.
    fn people(&self, columns: &[usize]) -> Tables {
        let mut sections = vec![self.overview()];
        for group in &self.groups {
            sections.extend(self.section(group, CellMeasure::Count, columns));
            if self.has_comparable_times() {
                sections.extend(self.section(group, CellMeasure::Time, columns));
            }
        }
        self.tables(sections)
    }

    fn tables(&self, sections: Vec<TitledTable>) -> Tables {
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
        let tax = |named: &'a NamedRecording| {
            let tax = named.ledger.tax().filter(|_| self.has_comparable_times())?;
            Some((named.name.as_str(), tax, percent(tax)))
        };
        let taxes: Vec<(&str, f64, String)> = self.recordings.iter().filter_map(tax).collect();
        if taxes.len() == self.recordings.len() {
            return listed("Exit tax", taxes);
        }
        let rate = |named: &'a NamedRecording| {
            let rate = named.ledger.exits_per_second()?;
            Some((named.name.as_str(), rate, significant(rate)))
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
    fn overview(&self) -> TitledTable {
        let is_emulated = self.recordings.iter().any(|n| n.ledger.recording.emulated.is_some());
        let timed = self.has_comparable_times();
        let text = |text: &str| match text {
            "" => Cell::Absent,
            text => Cell::Name(text.to_owned()),
        };
        // A dump of counts says neither how long it took nor of which VMs.
        let known = |n: u64| (n > 0).then_some(n);
        let shown = |part: Option<f64>| Cell::of(part.filter(|_| timed), Cell::Share);
        let table = Table::of(self.recordings)
            .column(Column::words("recording", "recording"), |of| Cell::Name(of.name.clone()))
            .column(Column::words("host", "host"), |of| text(&of.ledger.recording.hostname))
            .column(Column::words("kernel", "kernel"), |of| text(&of.ledger.recording.kernel))
            .column(Column::words("emulated", "emulated").shown_if(is_emulated), |of| {
                text(of.ledger.recording.emulated.as_deref().unwrap_or_default())
            })
            .column(Column::number("duration_ns", "duration"), |of| {
                Cell::of(known(of.ledger.duration_ns()), Cell::Time)
            })
            .column(Column::minor("vms", "VMs", 2), |of| {
                Cell::of(known(of.ledger.recording.vms.len() as u64), Cell::Count)
            })
            .column(Column::number("exits", "exits"), |of| Cell::Count(of.ledger.total().count))
            .column(Column::minor("exits_per_second", "per second", 1), |of| {
                Cell::of(of.ledger.exits_per_second(), Cell::Number)
            })
            .column(
                Column::number("tax", "exit tax")
                    .help("(exit-kernel + exit-user) / (wall - halted - unknown)"),
                |of| shown(of.ledger.tax()),
            )
            .column(
                Column::number("contention", "contention")
                    .help("preempted / (wall - halted - unknown)"),
                |of| shown(of.ledger.contention()),
            )
            .table();
        let (id, title) = ("recordings", "Recordings".to_owned());
        TitledTable { id, title, notes: self.notes(), table }
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
        for NamedRecording { name, ledger } in self.recordings {
            notes.extend(losses::too_low(&format!("{name}: counts"), ledger));
            notes.extend(ledger.losses.missing.iter().map(|said| format!("{name}: {said}")));
        }
        notes
    }

    /// A row for each cause or reason, a column for each recording; nothing without rows, or times.
    fn section(
        &self,
        group: &RecordingsTable,
        measure: CellMeasure,
        columns: &[usize],
    ) -> Option<TitledTable> {
        let is_timed = group.counted.iter().any(|counted| counted.total.timed > 0);
        if group.rows.is_empty() || (matches!(measure, CellMeasure::Time) && !is_timed) {
            return None;
        }
        let shown = group.by.iter().filter(|by| group.has_levels || **by != By::Level);
        let heads: Vec<&str> = shown.map(|by| names::heading(*by)).collect();
        let mut table = Table::of(group.rows.iter().map(Some)).total(Some(None)).column(
            Column::words("", heads.join(", ")).only(PEOPLE),
            |row| match row {
                Some(row) => Cell::Name(row.label.clone()),
                None => Cell::Word("all"),
            },
        );
        for &at in columns {
            table = table
                .column(Column::number("", self.recordings[at].name.clone()), |row| {
                    written(measure, group.number(*row, at, measure))
                })
                .column(Column::number("", "%").named("share").only(PEOPLE), |row| match row {
                    Some(row) => group.share(row, at, measure),
                    None => Cell::Empty,
                });
        }
        let table = table.table();
        let what = names::table_words(group.kind).label;
        let title = match measure {
            CellMeasure::Count => format!("{what}: count"),
            CellMeasure::Time => format!("{what}: time"),
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
            CellMeasure::Count => group.kind.name(),
            CellMeasure::Time => time_id(group.kind),
        };
        Some(TitledTable { id, title, notes: Vec::new(), table })
    }

    /// For programs: a row for each recording and row of its tables.
    fn programs(&self) -> Tables {
        let mut sections = vec![self.overview()];
        for group in &self.groups {
            let rows = self.recordings.iter().zip(&group.counted).flat_map(|(named, counted)| {
                counted.rows.iter().map(move |row| (named, &counted.total, row))
            });
            let part = |part, whole| Cell::of(share(part, whole), Cell::Share);
            let table = Table::of(rows)
                .column(Column::data("recording"), |(of, ..)| Cell::Name(of.name.clone()))
                .column(Column::data("accelerator"), |(of, ..)| {
                    Cell::Name(names::accelerator(&of.ledger.recording))
                })
                .columns(keys::columns(&group.by), |(.., row)| row.key.as_slice())
                .column(Column::data("count"), |(.., row)| Cell::Count(row.tally.count))
                .column(Column::data("count_share"), |(_, total, row)| {
                    part(row.tally.count, total.count)
                })
                .column(Column::data("time_ns"), |(_, total, row)| {
                    Cell::of((total.timed > 0).then_some(row.tally.time_ns), Cell::Time)
                })
                .column(Column::data("time_share"), |(_, total, row)| {
                    part(row.tally.time_ns, total.time_ns)
                })
                .table();
            let (id, title) = (group.kind.name(), String::new());
            sections.push(TitledTable { id, title, notes: Vec::new(), table });
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

impl RecordingsTable {
    fn new(recordings: &[NamedRecording], kind: TableKind, by: &[By]) -> RecordingsTable {
        let counted: Vec<Counted> =
            recordings.iter().map(|named| Counted::new(&named.ledger, kind, by)).collect();
        let by = counted.first().map_or_else(Vec::new, |counted| counted.by.clone());
        let keys = || counted.iter().flat_map(|counted| &counted.rows).map(|row| &row.key);
        // As in the report of one: the level goes if nobody asked for it and all exits are of L1.
        let has_levels =
            by != kind.default_by() || !keys().all(|key| key.iter().all(|value| is_not_l2(*value)));
        let mut rows: Vec<JoinedRow> = Vec::new();
        for (column, counted) in counted.iter().enumerate() {
            for (at, row) in counted.rows.iter().enumerate() {
                let label = label(&row.key, has_levels);
                let joined = match rows.iter_mut().find(|joined| joined.label == label) {
                    Some(joined) => joined,
                    None => {
                        rows.push(JoinedRow { label, at: vec![None; recordings.len()] });
                        // Pushed just now.
                        let last = rows.len() - 1;
                        &mut rows[last]
                    }
                };
                joined.at[column] = Some(at);
            }
        }
        let largest = |row: &JoinedRow| {
            let shares = row.at.iter().zip(&counted).filter_map(|(at, counted)| {
                let tally = &counted.rows[(*at)?].tally;
                match counted.total.timed > 0 {
                    true => share(tally.time_ns, counted.total.time_ns),
                    false => share(tally.count, counted.total.count),
                }
            });
            shares.fold(0.0, f64::max)
        };
        let mut ranked: Vec<(f64, JoinedRow)> =
            rows.into_iter().map(|row| (largest(&row), row)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.label.cmp(&b.1.label)));
        let rows = ranked.into_iter().map(|(_, row)| row).collect();
        RecordingsTable { kind, by, has_levels, counted, rows }
    }

    /// Whether a recording has this number at all. Accesses that were not recorded are unknown, not zero.
    fn has(&self, recording: usize, measure: CellMeasure) -> bool {
        let counted = &self.counted[recording];
        match measure {
            CellMeasure::Count => !counted.rows.is_empty(),
            CellMeasure::Time => counted.total.timed > 0,
        }
    }

    /// The number of a recording in a row, or in all of them.
    fn number(
        &self,
        row: Option<&JoinedRow>,
        recording: usize,
        measure: CellMeasure,
    ) -> Option<u64> {
        let counted = &self.counted[recording];
        let tally = match row {
            Some(row) => row.at[recording].map(|at| &counted.rows[at].tally),
            None => Some(&counted.total),
        };
        let number = tally.map_or(0, |tally| measure.of(tally));
        self.has(recording, measure).then_some(number)
    }

    /// The same as a part of all of the recording.
    fn share(&self, row: &JoinedRow, recording: usize, measure: CellMeasure) -> Cell {
        let all = measure.of(&self.counted[recording].total);
        let number = self.number(Some(row), recording, measure);
        let digits = |part: f64| Cell::Written(percent_digits(part), sort_key(part));
        Cell::of(number.and_then(|number| share(number, all)), digits)
    }
}

fn written(measure: CellMeasure, number: Option<u64>) -> Cell {
    Cell::of(number, |number| match measure {
        CellMeasure::Count => Cell::Count(number),
        CellMeasure::Time => Cell::Time(number),
    })
}

fn is_not_l2(value: KeyValue) -> bool {
    !matches!(value, KeyValue::Level(level) if level != Level::L1)
}

/// A key in words: `msr L1`.
fn label(key: &[KeyValue], has_levels: bool) -> String {
    let shown = key.iter().filter(|value| has_levels || !matches!(value, KeyValue::Level(_)));
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

impl AllFormats for Several<'_> {
    fn text(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
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
