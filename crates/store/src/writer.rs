//! Writing a run.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use arrow_array::ArrayRef;
use vmtax_durable::{FileAccess, NewFile, UnpublishedFile};
use vmtax_events::{
    AccessRow, CallRow, Event, ExitRow, KeptRows, Losses, PreemptedRow, Profile, ProfileOrigin,
    Recording, Sample, Stat, TimeRow,
};

use crate::claim::Claim;
use crate::column::TableRow;
use crate::event_table::Flat;
use crate::manifest::{Accelerator, FORMAT_VERSION, MANIFEST, Manifest, Segment, Span};
use crate::{Error, StoredTable, created, profile_path, segment, stacks};

/// Buffered exits, accesses, time rows, samples and counters together are written when there are this many.
pub const SEGMENT_ROWS: usize = 32 << 10;

/// Buffered events are written when there are this many.
pub const SEGMENT_EVENTS: usize = 256 << 10;

/// How a run is made.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Version of the tool that writes.
    pub tool_version: String,
    /// The command that makes the run: program and arguments.
    pub command: Vec<String>,
    /// Length of the intervals that rows are counted in, ns.
    pub interval_ns: u64,
    /// Store raw events too. Otherwise [`RunWriter::event`] does nothing.
    pub raw_events: bool,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
}

/// Writes a run folder.
///
/// ```text
///  exit, access, time, preempted, sample, stat    event
///                   |                          |
///          buffer of SEGMENT_ROWS   buffer of SEGMENT_EVENTS          memory is bounded by these
///                   |   (full, or segment())   |
///                   v                          v
///          files without a name        file without a name           written, synced
///                   |                          |
///   {exits,accesses,...}/N                    events/N                named, folder synced
///                   |                          |
///                   +----------- run.json -----+                      replaced: now they belong to the run
/// ```
///
/// A full buffer is written on another thread while the next one fills, one at a time. A later call returns its error.
///
/// Exits, accesses, time rows, samples and counters always enter the run together, so an unfinished run
/// holds all of them up to the same row. Profiles are kept until the run is finished, and enter it then. Dropping a writer
/// without [`RunWriter::finish`] leaves an incomplete run that reads. The folder is locked as long as the writer lives. After an error the writer refuses more rows: its run has lost the buffered ones and
/// must not be finished as if it had not.
pub struct RunWriter {
    /// Before the claim, which it needs: fields are dropped in order.
    under_way: UnderWay,
    claim: Claim,
    /// What is known of the run, with the segments that belong to it.
    manifest: Manifest,
    raw_events: bool,
    exits: RowBuffer<ExitRow>,
    accesses: RowBuffer<AccessRow>,
    time: RowBuffer<TimeRow>,
    preempted: RowBuffer<PreemptedRow>,
    bench: RowBuffer<Sample>,
    stats: RowBuffer<Stat>,
    calls: RowBuffer<CallRow>,
    profiles: BTreeMap<ProfileOrigin, Profile>,
    events: RowBuffer<Flat>,
    /// [`RunWriter::span`] was called; rows do not change the span any more.
    exact_span: bool,
    failed: bool,
}

/// Rows of one table that are not yet in a segment.
struct RowBuffer<R: TableRow> {
    builder: R::Builder,
    rows: usize,
    /// Segments written so far.
    segments: u64,
}

impl<R: TableRow> Default for RowBuffer<R> {
    fn default() -> RowBuffer<R> {
        RowBuffer { builder: R::Builder::default(), rows: 0, segments: 0 }
    }
}

impl<R: TableRow> RowBuffer<R> {
    fn push(&mut self, row: &R) {
        R::append(&mut self.builder, row);
        self.rows += 1;
    }

    /// The rows as the next segment of their table, if there are any.
    fn take(&mut self) -> Option<PendingSegment> {
        if self.rows == 0 {
            return None;
        }
        self.segments += 1;
        let mut columns = Vec::new();
        R::finish(&mut self.builder, &mut columns);
        let rows = std::mem::take(&mut self.rows) as u64;
        Some(PendingSegment { table: R::TABLE, number: self.segments, rows, columns })
    }
}

/// A segment that is to be written.
struct PendingSegment {
    table: StoredTable,
    number: u64,
    rows: u64,
    columns: Vec<ArrayRef>,
}

impl RunWriter {
    /// Makes a run in `folder`, which must not exist or be empty. The folder above must exist.
    ///
    /// What is created can be read by its owner alone.
    pub fn create(folder: &Path, options: &CreateOptions) -> Result<RunWriter, Error> {
        RunWriter::begin(Claim::new(folder)?, options)
    }

    /// Makes a run in a folder that was claimed for it.
    pub fn begin(mut claim: Claim, options: &CreateOptions) -> Result<RunWriter, Error> {
        let CreateOptions { tool_version, command, interval_ns, raw_events, labels } = options;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            tool_version: tool_version.clone(),
            command: command.clone(),
            created: created::rfc3339(SystemTime::now()),
            complete: false,
            interval_ns: *interval_ns,
            span: None,
            accelerator: Accelerator::Unknown,
            recording: Recording::default(),
            labels: labels.clone(),
            losses: Losses::default(),
            segments: Vec::new(),
            profiles: Vec::new(),
        };
        manifest.replace(claim.folder())?;
        claim.keep();
        Ok(RunWriter::over(claim, manifest, *raw_events))
    }

    /// Continues a run that was not finished: its segments stay, and further ones follow. What a killed writer left and
    /// the manifest does not list is removed or written over.
    pub fn resume(folder: &Path) -> Result<RunWriter, Error> {
        // First of all: without the lock the run may be another writer's.
        let claim = Claim::of_run(folder)?;
        let manifest = Manifest::read(&folder.join(MANIFEST))?;
        if manifest.complete {
            return Err(Error::Exists { path: folder.to_owned(), found: "holds a finished run" });
        }
        claim.remove_temporaries();
        let mut writer = RunWriter::over(claim, manifest, false);
        let last = |table: StoredTable| {
            let numbers = writer.manifest.segments_of(table).filter_map(|segment| {
                let name = segment.path.rsplit_once('/')?.1;
                name.split('.').next()?.parse::<u64>().ok()
            });
            numbers.max().unwrap_or(0)
        };
        let numbers = StoredTable::ALL.map(last);
        for (table, number) in StoredTable::ALL.into_iter().zip(numbers) {
            writer.continue_after(table, number);
        }
        Ok(writer)
    }

    fn continue_after(&mut self, table: StoredTable, number: u64) {
        let segments = match table {
            StoredTable::Exits => &mut self.exits.segments,
            StoredTable::Accesses => &mut self.accesses.segments,
            StoredTable::Time => &mut self.time.segments,
            StoredTable::Preempted => &mut self.preempted.segments,
            StoredTable::Bench => &mut self.bench.segments,
            StoredTable::Stats => &mut self.stats.segments,
            StoredTable::Calls => &mut self.calls.segments,
            StoredTable::Events => &mut self.events.segments,
        };
        *segments = number;
    }

    fn over(claim: Claim, manifest: Manifest, raw_events: bool) -> RunWriter {
        RunWriter {
            under_way: UnderWay(None),
            claim,
            manifest,
            raw_events,
            exits: RowBuffer::default(),
            accesses: RowBuffer::default(),
            time: RowBuffer::default(),
            preempted: RowBuffer::default(),
            bench: RowBuffer::default(),
            stats: RowBuffer::default(),
            calls: RowBuffer::default(),
            profiles: BTreeMap::new(),
            events: RowBuffer::default(),
            exact_span: false,
            failed: false,
        }
    }

    pub fn exit(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.check()?;
        self.exits.push(row);
        self.cover_interval(row.interval_start_ns);
        self.write_full_rows()
    }

    pub fn access(&mut self, row: &AccessRow) -> Result<(), Error> {
        self.check()?;
        self.accesses.push(row);
        self.cover_interval(row.interval_start_ns);
        self.write_full_rows()
    }

    /// Adds a vCPU's time split.
    pub fn time(&mut self, row: &TimeRow) -> Result<(), Error> {
        self.check()?;
        self.time.push(row);
        self.cover_interval(row.interval_start_ns);
        self.write_full_rows()
    }

    /// Adds who had the CPU of preempted vCPUs.
    pub fn preempted(&mut self, row: &PreemptedRow) -> Result<(), Error> {
        self.check()?;
        self.preempted.push(row);
        self.cover_interval(row.interval_start_ns);
        self.write_full_rows()
    }

    /// Adds all rows that were kept.
    pub fn rows(&mut self, rows: &KeptRows) -> Result<(), Error> {
        rows.samples.iter().try_for_each(|row| self.sample(row))?;
        rows.exits.iter().try_for_each(|row| self.exit(row))?;
        rows.accesses.iter().try_for_each(|row| self.access(row))?;
        rows.times.iter().try_for_each(|row| self.time(row))?;
        rows.preempted.iter().try_for_each(|row| self.preempted(row))
    }

    /// Adds a measured value. It has no time, so it does not change the run's span.
    pub fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.check()?;
        self.bench.push(sample);
        self.write_full_rows()
    }

    /// Adds a counter. Those that come with a run need not be of its time, so it does not change the run's span.
    pub fn stat(&mut self, stat: &Stat) -> Result<(), Error> {
        self.check()?;
        self.stats.push(stat);
        self.write_full_rows()
    }

    /// Adds a node of a call tree; those of a workload in order.
    pub fn call(&mut self, row: &CallRow) -> Result<(), Error> {
        self.check()?;
        self.calls.push(row);
        self.write_full_rows()
    }

    /// Adds a profile; two of one place are added up.
    pub fn profile(&mut self, profile: Profile) {
        match self.profiles.get_mut(&profile.place) {
            Some(sum) => profile.stacks.iter().for_each(|(stack, weight)| sum.add(stack, *weight)),
            None => {
                self.profiles.insert(profile.place, profile);
            }
        }
    }

    /// Whether raw events are stored ([`CreateOptions::raw_events`]).
    pub fn keeps_events(&self) -> bool {
        self.raw_events
    }

    /// Adds a raw event, if they are stored.
    pub fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.check()?;
        if !self.raw_events {
            return Ok(());
        }
        self.events.push(&Flat::from(event));
        self.cover(Span { start_ns: event.time_ns, end_ns: event.time_ns });
        if self.events.rows < SEGMENT_EVENTS {
            return Ok(());
        }
        let events = self.events.take();
        self.commit_beside(events.into_iter().collect())
    }

    /// Writes what is buffered as segments now. A live recording calls this at the end of an
    /// interval, so that a crash costs no more than the open one.
    pub fn segment(&mut self) -> Result<(), Error> {
        self.check()?;
        let mut pending = self.take_rows();
        pending.extend(self.events.take());
        if pending.is_empty() { self.wait() } else { self.commit(pending, false) }
    }

    /// Says what is known so far of the recording and its losses, so that a run that is never
    /// finished holds it too. It is written with the next segments.
    pub fn describe(&mut self, recording: &Recording, losses: &Losses) {
        self.manifest.accelerator = Accelerator::of(recording);
        self.manifest.recording = recording.clone();
        self.manifest.losses = losses.clone();
    }

    /// Says when the first and the last event were, ns. Otherwise the span in the manifest is that
    /// of the rows, which is rounded to intervals.
    pub fn span(&mut self, start_ns: u64, end_ns: u64) {
        self.exact_span = true;
        self.manifest.span = Some(Span { start_ns, end_ns });
    }

    /// The current manifest, without a full buffer that is being written.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Writes what is buffered and marks the run as complete.
    pub fn finish(mut self, recording: &Recording, losses: &Losses) -> Result<(), Error> {
        self.check()?;
        self.describe(recording, losses);
        let mut pending = self.take_rows();
        pending.extend(self.events.take());
        self.commit(pending, true)
    }

    fn check(&self) -> Result<(), Error> {
        if self.failed {
            Err(Error::Failed { path: self.claim.folder().to_owned() })
        } else {
            Ok(())
        }
    }

    fn cover_interval(&mut self, start_ns: u64) {
        let end_ns = start_ns.saturating_add(self.manifest.interval_ns);
        self.cover(Span { start_ns, end_ns });
    }

    fn cover(&mut self, rows: Span) {
        if !self.exact_span {
            self.manifest.span = Some(self.manifest.span.map_or(rows, |span| span.around(rows)));
        }
    }

    fn write_full_rows(&mut self) -> Result<(), Error> {
        let counted = self.exits.rows + self.accesses.rows + self.time.rows + self.preempted.rows;
        let rows = counted + self.bench.rows + self.stats.rows + self.calls.rows;
        if rows < SEGMENT_ROWS {
            return Ok(());
        }
        let pending = self.take_rows();
        self.commit_beside(pending)
    }

    fn take_rows(&mut self) -> Vec<PendingSegment> {
        let rows = [
            self.exits.take(),
            self.accesses.take(),
            self.time.take(),
            self.preempted.take(),
            self.bench.take(),
            self.stats.take(),
            self.calls.take(),
        ];
        rows.into_iter().flatten().collect()
    }

    /// Makes the segments part of the run, all or none. With the last ones the run is complete.
    fn commit(&mut self, pending: Vec<PendingSegment>, last: bool) -> Result<(), Error> {
        self.wait()?;
        // Cleared again on success only: whatever fails below, the rows are gone from the buffers.
        self.failed = true;
        let next = Manifest { complete: last, ..self.manifest.clone() };
        let profiles = if last { std::mem::take(&mut self.profiles) } else { BTreeMap::new() };
        self.manifest = publish(self.claim.folder(), next, pending, &profiles, last)?;
        self.failed = false;
        Ok(())
    }

    /// The same on another thread, after the previous commit.
    fn commit_beside(&mut self, pending: Vec<PendingSegment>) -> Result<(), Error> {
        self.wait()?;
        self.failed = true;
        let (folder, next) = (self.claim.folder().to_owned(), self.manifest.clone());
        let work = move || publish(&folder, next, pending, &BTreeMap::new(), false);
        let thread = thread::Builder::new().spawn(work);
        let thread = thread.map_err(Error::io(self.claim.folder(), "start a thread for"))?;
        self.under_way = UnderWay(Some(thread));
        self.failed = false;
        Ok(())
    }

    /// Waits for the commit that is under way, and returns its error.
    fn wait(&mut self) -> Result<(), Error> {
        match self.under_way.join() {
            None => Ok(()),
            Some(Ok(Ok(written))) => {
                // What else is known may be newer here.
                self.manifest.segments = written.segments;
                Ok(())
            }
            Some(Ok(Err(error))) => {
                self.failed = true;
                Err(error)
            }
            Some(Err(panic)) => resume_unwind(panic),
        }
    }
}

/// Segments that are being made part of the run. Dropping it waits: the folder must not be given up before.
struct UnderWay(Option<JoinHandle<Result<Manifest, Error>>>);

impl UnderWay {
    fn join(&mut self) -> Option<thread::Result<Result<Manifest, Error>>> {
        self.0.take().map(JoinHandle::join)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.join();
    }
}

/// Makes segments and profiles part of the run that is `next` without them, all or none. Returns what it is with them.
fn publish(
    folder: &Path,
    mut next: Manifest,
    pending: Vec<PendingSegment>,
    profiles: &BTreeMap<ProfileOrigin, Profile>,
    at_once: bool,
) -> Result<Manifest, Error> {
    // Dropped on every error, and with them the files.
    let segments = each(folder, at_once, pending, |segment| write_segment(folder, segment))?;
    let (mut written, entries): (Vec<WrittenFile>, Vec<Segment>) = segments.into_iter().unzip();
    next.segments.extend(entries);
    for profile in profiles.values() {
        let (file, entry) = write_profile(folder, profile)?;
        written.push(file);
        next.profiles.push(entry);
    }
    let published = each(folder, at_once, written, |(path, file)| {
        let file = file.publish_revocably().map_err(Error::io(&path, "finish the file"))?;
        file.sync_folder().map_err(Error::io(folder, "sync the folders of"))?;
        Ok(file)
    })?;
    next.replace(folder)?;
    // The manifest lists them now; from here on an error must not remove them.
    published.into_iter().for_each(UnpublishedFile::keep);
    Ok(next)
}

fn write_segment(folder: &Path, pending: PendingSegment) -> Result<(WrittenFile, Segment), Error> {
    let PendingSegment { table, number, rows, columns } = pending;
    let name = table.segment_path(number);
    let path = folder.join(&name);
    let bytes = segment::encode(table, columns).map_err(segment::encode_error(&path))?;
    if number == 1 {
        create_folder(folder, table.name())?;
    }
    let file = write(&path, &bytes, "write the segment")?;
    Ok(((path, file), segment::entry(name, rows, &bytes)))
}

fn write_profile(folder: &Path, profile: &Profile) -> Result<(WrittenFile, Segment), Error> {
    create_folder(folder, profile_path::FOLDER)?;
    let name = profile_path::path(profile.place);
    let path = folder.join(&name);
    let bytes = stacks::encode(profile);
    let file = write(&path, &bytes, "write the profile")?;
    Ok(((path, file), segment::entry(name, profile.stacks.len() as u64, &bytes)))
}

/// Makes a folder of the run, unless a resumed run has it already.
fn create_folder(above: &Path, name: &str) -> Result<(), Error> {
    let folder = above.join(name);
    match vmtax_durable::create_private_folder(&folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(Error::io(&folder, "create the folder"))?,
    }
    vmtax_durable::sync_folder(above).map_err(Error::io(above, "sync the folder"))
}

/// Calls `work` for each item, one after the other or `at_once` on a thread per item. Results in order, or the first error.
///
/// Only the last segments are written `at_once`: before, one thread is enough beside those that read, and the heaps of more would
/// triple a recorder's memory.
fn each<T: Send, R: Send>(
    run: &Path,
    at_once: bool,
    items: Vec<T>,
    work: impl Fn(T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    if !at_once {
        return items.into_iter().map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let start = |item| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(item));
            thread.map_err(Error::io(run, "start a thread for"))
        };
        let threads: Vec<_> = items.into_iter().map(start).collect::<Result<_, _>>()?;
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        });
        results.collect()
    })
}

/// A file of the run that does not have its name yet.
type WrittenFile = (PathBuf, NewFile);

fn write(path: &Path, bytes: &[u8], what: &'static str) -> Result<NewFile, Error> {
    let write = || {
        let new = NewFile::create(path, FileAccess::Private)?;
        new.file().write_all(bytes)?;
        Ok(new)
    };
    write().map_err(Error::io(path, what))
}
