//! Reading a run.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread::{self, available_parallelism};

use arrow_array::RecordBatch;
use vmtax_events::{Event, Losses, RowSink};

use crate::column::{self, BatchColumns};
use crate::manifest::{MANIFEST, Manifest, Segment};
use crate::segment;
use crate::{Error, StoredTable, event_table, profile_path, stacks};

/// A table of so many bytes is decoded on a thread of its own, beside the one that takes its rows.
const LARGE: u64 = 1 << 20;
/// Batches that wait for the one that takes their rows.
const AHEAD: usize = 2;
/// Unlisted files that a note names; the others are counted.
const NAMED_FILES: usize = 3;

/// Result of reading a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Rows (or events) delivered.
    pub rows: u64,
    /// Segments that were read to their end.
    pub segments: u64,
    /// Segments that were skipped, or left before their end, because they are damaged or missing.
    pub damaged: u64,
    /// What is missing from the delivered rows, one sentence per damaged segment in `truncated`.
    pub losses: Losses,
}

/// What the decoder of a table hands on.
enum DecodedRows<'s> {
    Batch {
        listed: &'s Segment,
        batch: RecordBatch,
        first_row: u64,
    },
    /// Of a segment: rows that were handed on, and how it is damaged.
    End {
        listed: &'s Segment,
        rows: u64,
        damage: Option<String>,
    },
}

/// A run folder that can be read.
#[derive(Clone, Debug)]
pub struct Run {
    folder: PathBuf,
    manifest: Manifest,
}

/// Whether the folder looks like a run: it has a `run.json`. [`Run::open`] says if it is one.
pub fn is_run(folder: &Path) -> bool {
    folder.join(MANIFEST).is_file()
}

impl Run {
    /// Reads the manifest. Segments are looked at when they are read.
    pub fn open(folder: &Path) -> Result<Run, Error> {
        let not_a_run = |found| Error::NotARun { path: folder.to_owned(), found };
        let path = folder.join(MANIFEST);
        match path.symlink_metadata() {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let found =
                    if folder.is_dir() { "has no run.json" } else { "there is no such folder" };
                return Err(not_a_run(found));
            }
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return Err(not_a_run("is a file"));
            }
            Err(e) => return Err(Error::io(&path, "read the manifest")(e)),
        }
        Ok(Run { folder: folder.to_owned(), manifest: Manifest::read(&path)? })
    }

    /// The folder it was opened as.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `run.json` says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The run was finished. If not, its writer was stopped and later rows are missing.
    pub fn is_complete(&self) -> bool {
        self.manifest.complete
    }

    /// Passes on every exit, then every access, time row, sample and counter, each in the order written,
    /// then the profiles.
    ///
    /// The report's losses are everything that is known to be missing from these rows: what the
    /// recording lost ([`Manifest::losses`]), that the run is incomplete, and damaged segments.
    pub fn read(&self, sink: &mut dyn RowSink) -> Result<ReadReport, Error> {
        self.read_watched(sink, &|_| {})
    }

    /// As [`Run::read`]; `watch` is given the bytes of each segment of [`Run::bytes`] that is read.
    pub fn read_watched(
        &self,
        sink: &mut dyn RowSink,
        watch: &dyn Fn(u64),
    ) -> Result<ReadReport, Error> {
        let mut report =
            ReadReport { losses: self.manifest.losses.clone(), ..ReadReport::default() };
        self.note_incomplete(&mut report);
        for table in StoredTable::COUNTED {
            self.read_table((table, watch), &mut report, &mut |columns| match table {
                StoredTable::Exits => column::read(columns, &mut |row| sink.exit(row)),
                StoredTable::Accesses => column::read(columns, &mut |row| sink.access(row)),
                StoredTable::Time => column::read(columns, &mut |row| sink.time(row)),
                StoredTable::Preempted => column::read(columns, &mut |row| sink.preempted(row)),
                StoredTable::Bench => column::read(columns, &mut |sample| sink.sample(sample)),
                StoredTable::Stats => column::read(columns, &mut |stat| sink.stat(stat)),
                StoredTable::Calls => column::read(columns, &mut |row| sink.call(row)),
                StoredTable::Events => Ok(()),
            })?;
        }
        self.read_profiles(&mut report, sink);
        self.note_unknown_tables(&mut report);
        self.note_missing_exits(&mut report);
        Ok(report)
    }

    fn read_profiles(&self, report: &mut ReadReport, sink: &mut dyn RowSink) {
        for listed in &self.manifest.profiles {
            let Ok(Some(place)) = profile_path::place(&listed.path) else {
                let note = format!("{} is of a kind that this vmtax does not read", listed.path);
                report.losses.notes.push(note);
                continue;
            };
            let path = self.folder.join(&listed.path);
            match stacks::read(&path, listed, place) {
                Ok(profile) => sink.profile(profile),
                Err(how) => {
                    report.damaged += 1;
                    report.losses.truncated.push(format!("{} {how}", path.display()));
                }
            }
        }
    }

    /// Bytes of the segments that [`Run::read`] reads.
    pub fn bytes(&self) -> u64 {
        let tables = StoredTable::COUNTED.into_iter().map(|table| self.bytes_of(table));
        tables.fold(0, u64::saturating_add)
    }

    /// Bytes of a table's segments.
    pub fn bytes_of(&self, table: StoredTable) -> u64 {
        self.manifest.segments_of(table).fold(0, |sum, segment| sum.saturating_add(segment.bytes))
    }

    /// Passes on the raw events in the order written, some thousands at a time. `watch` is given the bytes of each segment
    /// that is read.
    ///
    /// The report's losses are those of the run folder alone: a recount of the events
    /// finds the recording's own losses in them and in [`Manifest::losses`].
    pub fn read_events(
        &self,
        each: &mut dyn FnMut(&[Event]),
        watch: &dyn Fn(u64),
    ) -> Result<ReadReport, Error> {
        let mut report = ReadReport::default();
        self.note_incomplete(&mut report);
        self.read_table((StoredTable::Events, watch), &mut report, &mut |columns| {
            each(&event_table::read(columns)?);
            Ok(())
        })?;
        Ok(report)
    }

    fn read_table(
        &self,
        (table, watch): (StoredTable, &dyn Fn(u64)),
        report: &mut ReadReport,
        each: &mut dyn FnMut(BatchColumns<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut refused = Ok(());
        let mut take = |decoded: DecodedRows<'_>| match decoded {
            DecodedRows::Batch { listed, batch, first_row } => {
                let path = self.folder.join(&listed.path);
                refused = each(BatchColumns { path: &path, batch: &batch, first_row });
                if refused.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }
            DecodedRows::End { listed, rows, damage } => {
                self.note_end(listed, rows, damage, report);
                watch(listed.bytes);
                ControlFlow::Continue(())
            }
        };
        if self.bytes_of(table) < LARGE || available_parallelism().is_ok_and(|n| n.get() == 1) {
            self.decode(table, &mut take);
        } else {
            thread::scope(|scope| {
                let (to, from) = sync_channel(AHEAD);
                let mut send = move |decoded| match to.send(decoded) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                };
                let decode = move || self.decode(table, &mut send);
                match thread::Builder::new().spawn_scoped(scope, decode) {
                    Ok(_) => drop(from.into_iter().try_for_each(&mut take)),
                    Err(_) => self.decode(table, &mut take),
                }
            });
        }
        refused?;
        self.note_unlisted(table, report);
        Ok(())
    }

    /// Hands on the batches and the end of each segment of a table until no more is wanted.
    fn decode<'s>(
        &'s self,
        table: StoredTable,
        hand_on: &mut dyn FnMut(DecodedRows<'s>) -> ControlFlow<()>,
    ) {
        for listed in self.manifest.segments_of(table) {
            let mut flow = ControlFlow::Continue(());
            let path = self.folder.join(&listed.path);
            let (rows, damage) = segment::read(&path, listed, &mut |batch, first_row| {
                flow = hand_on(DecodedRows::Batch { listed, batch, first_row });
                flow
            });
            if flow.is_break() || hand_on(DecodedRows::End { listed, rows, damage }).is_break() {
                return;
            }
        }
    }

    fn note_end(
        &self,
        listed: &Segment,
        rows: u64,
        damage: Option<String>,
        report: &mut ReadReport,
    ) {
        report.rows = report.rows.saturating_add(rows);
        let Some(how) = damage else {
            report.segments += 1;
            return;
        };
        report.damaged += 1;
        let missing = listed.rows.saturating_sub(rows);
        let path = self.folder.join(&listed.path);
        let sentence = format!("{} {how}; {missing} rows are missing", path.display());
        report.losses.truncated.push(sentence);
    }

    fn note_incomplete(&self, report: &mut ReadReport) {
        if !self.manifest.complete {
            report.losses.truncated.push(format!(
                "{} was never finished: its writer was stopped, and what it had not stored is missing",
                self.folder.display()
            ));
        }
    }

    /// Files that are there but not listed come from a writer that was stopped between giving a
    /// segment its name and listing it. Nothing says that they are whole.
    fn note_unlisted(&self, table: StoredTable, report: &mut ReadReport) {
        let listed: HashSet<&str> =
            self.manifest.segments.iter().map(|s| s.path.as_str()).collect();
        // A folder that cannot be listed has been reported with its segments.
        let Ok(entries) = fs::read_dir(self.folder.join(table.name())) else { return };
        let mut unlisted: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .map(|name| format!("{}/{name}", table.name()))
            .filter(|name| StoredTable::of_path(name).is_ok() && !listed.contains(name.as_str()))
            .collect();
        if unlisted.is_empty() {
            return;
        }
        unlisted.sort_unstable();
        let count = unlisted.len();
        unlisted.truncate(NAMED_FILES);
        let more = if count > NAMED_FILES { ", ..." } else { "" };
        report.losses.notes.push(format!(
            "{count} files in {} are not listed in run.json and were ignored: {}{more}",
            self.folder.display(),
            unlisted.join(", ")
        ));
    }

    /// A run of a host where nothing exits has no times of vCPUs either.
    fn note_missing_exits(&self, report: &mut ReadReport) {
        let rows = |table| self.manifest.segments_of(table).map(|s| s.rows).max().unwrap_or(0);
        let has_others = rows(StoredTable::Time) > 0 || rows(StoredTable::Accesses) > 0;
        if rows(StoredTable::Exits) == 0 && has_others && report.losses.is_empty() {
            report.losses.missing.push(format!(
                "{} has times or accesses of vCPUs and no exits: its exits segment is missing, or kvm_exit was not recorded.",
                self.folder.display()
            ));
        }
    }

    fn note_unknown_tables(&self, report: &mut ReadReport) {
        let unknown = self
            .manifest
            .segments
            .iter()
            .filter(|s| StoredTable::of_path(&s.path) == Ok(None))
            .count();
        if unknown > 0 {
            report.losses.notes.push(format!(
                "{unknown} segments of {} are of kinds that this vmtax does not read",
                self.folder.display()
            ));
        }
    }
}
