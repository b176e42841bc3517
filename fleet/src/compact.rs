//! Merges the files of a day's runs into few sorted files.
//!
//! ```text
//! runs of a day ──in order──> compacted/.date=D.*.tmp/ ──read again──> same rows? ──rename──> compacted/date=D/
//!                             day.json written last                                            from here on the
//!                                                                                              runs are read here
//! ```
//!
//! If killed, it leaves either a folder that begins with a dot, which is ignored and removed by the next start, or a complete day. Runs are
//! only removed after the rename, one by one, when readers no longer use them.
//!
//! Rows are compared by number and sum of row hashes for each table, which do not depend on order or files: those read from the runs and
//! those read back from the new files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray, new_null_array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use vmtax_durable::{Lock, LockError, NewFolder};
use vmtax_store::{Segment, StoredTable};

use crate::day::{self, DayManifest, DayRun};
use crate::fleet::{Fleet, NoFleet, Selection, Wants};
use crate::folder::Folder;
use crate::run::{self, FleetRun, RunAttributes, Skipped};
use crate::schema::{self, TextType};
use crate::stores;
use crate::types::disagreement;

/// Rows of a file.
const FILE_ROWS: u64 = 8 << 20;
/// Rows of a row group: small enough that a query for one host reads a small part of a file.
const GROUP_ROWS: usize = 128 << 10;

/// Why a day was not compacted.
#[derive(Debug)]
pub enum CompactFailure {
    /// The tree cannot be opened.
    Input(String),
    /// Its content cannot be used.
    Data(String),
    /// The files cannot be written.
    Output(PathBuf, io::Error),
}

/// Result of compacting a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    pub days: Vec<String>,
    pub runs: usize,
    /// Files that were read, and that were written.
    pub files: (usize, usize),
    /// Runs that were removed.
    pub removed: usize,
    pub skipped: Vec<Skipped>,
}

/// Options of compacting.
#[derive(Clone, Debug, Default)]
pub struct CompactOptions {
    pub date: Option<String>,
    /// Remove runs that are in a compacted day.
    pub remove: bool,
    /// Version of the tool.
    pub tool_version: String,
}

struct Everything;

impl Wants for Everything {
    fn wants(&self, runs: &[&RunAttributes], _: bool) -> Result<Vec<bool>, String> {
        Ok(vec![true; runs.len()])
    }
}

/// Compacts the days of a tree.
///
/// # Errors
/// When a day cannot be read or written. Days before it are done.
pub fn compact(tree: &Path, options: &CompactOptions) -> Result<Compacted, CompactFailure> {
    if stores::is_stored(tree) {
        return Err(CompactFailure::Input(
            "a tree in a store cannot be compacted; compact it on a machine, then copy it to the store"
                .to_owned(),
        ));
    }
    let found = Fleet::find(&[tree.to_owned()]).map_err(|e| match e {
        NoFleet::Input(why) => CompactFailure::Input(why),
        NoFleet::Data(why) => CompactFailure::Data(why),
    })?;
    let root = fs::canonicalize(tree)
        .map_err(|e| CompactFailure::Input(format!("{}: cannot be opened: {e}", tree.display())))?;
    let Selection { runs, days } = found.select(&Everything).map_err(CompactFailure::Data)?;
    let mut by_day: BTreeMap<String, Vec<Arc<FleetRun>>> = BTreeMap::new();
    for run in runs {
        let date = run.attributes.date.clone();
        if options.date.as_ref().is_none_or(|only| *only == date) {
            by_day.entry(date).or_default().push(run);
        }
    }
    let mut done = Compacted { skipped: found.skipped(), ..Compacted::default() };
    for (date, mut runs) in by_day {
        if !vmtax_fleet_flags::is_date(&date) {
            return Err(CompactFailure::Data(format!(
                "{date:?} is no day; its runs cannot be compacted"
            )));
        }
        if days.iter().any(|(day, _)| day.date == date) {
            return Err(CompactFailure::Data(format!(
                "{date} is compacted already, and {} was added to it later; ask it where it is, or move {} away and compact again",
                runs[0].attributes.run,
                root.join(day::FOLDER).join(format!("date={date}")).display()
            )));
        }
        runs.sort_by(|a, b| {
            (&a.attributes.host, &a.attributes.run).cmp(&(&b.attributes.host, &b.attributes.run))
        });
        done.files.0 += runs.iter().map(|run| run.manifest.segments.len()).sum::<usize>();
        done.files.1 += compact_day(&root, &date, &runs, options)?;
        done.runs += runs.len();
        done.days.push(date);
    }
    if options.remove {
        // Search again: only runs that readers find in a day may be removed.
        let found = Fleet::find(&[tree.to_owned()])
            .map_err(|_| CompactFailure::Data("the tree changed".to_owned()))?;
        let Selection { days, .. } = found.select(&Everything).map_err(CompactFailure::Data)?;
        let wanted = |date: &str| options.date.as_ref().is_none_or(|only| only == date);
        for (_, runs) in days.iter().filter(|(day, _)| wanted(&day.date)) {
            for run in runs {
                done.removed += usize::from(remove(&root, run)?);
            }
        }
    }
    Ok(done)
}

/// Removes a run, unless it has profiles or does not exist.
fn remove(tree: &Path, run: &FleetRun) -> Result<bool, CompactFailure> {
    if !run.manifest.profiles.is_empty() {
        return Ok(false);
    }
    let folder = local(&run.folder)?;
    match fs::remove_dir_all(folder) {
        Ok(()) => {
            // Remove host=H/date=D if empty, which saves the next query a search.
            for empty in folder.ancestors().skip(1).take_while(|folder| *folder != tree) {
                if fs::remove_dir(empty).is_err() {
                    break;
                }
            }
            Ok(true)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(CompactFailure::Output(folder.to_owned(), e)),
    }
}

fn local(folder: &Folder) -> Result<&Path, CompactFailure> {
    folder
        .local()
        .ok_or_else(|| CompactFailure::Data(format!("{folder}: it is not on this machine")))
}

/// Writes a day. Returns how many files it has.
fn compact_day(
    root: &Path,
    date: &str,
    runs: &[Arc<FleetRun>],
    options: &CompactOptions,
) -> Result<usize, CompactFailure> {
    let folder = root.join(day::FOLDER);
    let output = |path: &Path| {
        let path = path.to_owned();
        move |e: io::Error| CompactFailure::Output(path, e)
    };
    fs::create_dir_all(&folder).map_err(output(&folder))?;
    let _lock = Lock::take(&folder).map_err(|error| match error {
        LockError::Held(holder) => CompactFailure::Data(format!(
            "{}: is being compacted by {holder}; wait for it to end",
            root.display()
        )),
        LockError::Io(e) => CompactFailure::Output(folder.clone(), e),
    })?;
    // Leftovers of killed older versions.
    let old = folder.join(format!(".date={date}.part"));
    vmtax_durable::remove_folder(&old).map_err(output(&old))?;
    let target = folder.join(format!("date={date}"));
    // Dropped on every error, and with it the files.
    let part = NewFolder::beside(&target).map_err(output(&target))?;
    let files = write_day(part.path(), date, runs, options)?;
    part.publish().map_err(output(&target))?;
    Ok(files)
}

fn write_day(
    part: &Path,
    date: &str,
    runs: &[Arc<FleetRun>],
    options: &CompactOptions,
) -> Result<usize, CompactFailure> {
    // One thread per table.
    let tables = std::thread::scope(|scope| {
        let threads =
            StoredTable::ALL.map(|table| scope.spawn(move || verified_table(part, table, runs)));
        threads.map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(CompactFailure::Data("a table's thread failed".into())))
        })
    });
    let mut segments = Vec::new();
    for written in tables {
        segments.extend(written?);
    }
    let day = DayManifest {
        format_version: day::FORMAT_VERSION,
        tool_version: options.tool_version.clone(),
        date: date.to_owned(),
        runs: runs
            .iter()
            .map(|run| DayRun { path: run.attributes.run.clone(), manifest: run.manifest.clone() })
            .collect(),
        segments,
    };
    let path = part.join(day::MANIFEST);
    let output = |e| CompactFailure::Output(path.clone(), e);
    let bytes = serde_json::to_vec(&day).map_err(|e| CompactFailure::Data(e.to_string()))?;
    let mut file = File::create(&path).map_err(output)?;
    io::Write::write_all(&mut file, &bytes).and_then(|()| file.sync_all()).map_err(output)?;
    File::open(part).and_then(|f| f.sync_all()).map_err(output)?;
    Ok(day.segments.len())
}

/// Writes a table and reads it again.
fn verified_table(
    part: &Path,
    table: StoredTable,
    runs: &[Arc<FleetRun>],
) -> Result<Vec<Segment>, CompactFailure> {
    let (written, expected) = write_table(part, table, runs)?;
    let mut found = RowSum::new(table)?;
    for segment in &written {
        run::verify(&Folder::Local(part.to_owned()), segment)
            .map_err(|why| CompactFailure::Data(format!("what was written {why}")))?;
        read_file(&part.join(&segment.path), &mut |batch| found.add(&batch))?;
    }
    if found.value != expected.value {
        return Err(CompactFailure::Data(format!(
            "{}: the rows that were written are not those that were read; nothing was changed, try another disk",
            part.display()
        )));
    }
    Ok(written)
}

fn write_table(
    part: &Path,
    table: StoredTable,
    runs: &[Arc<FleetRun>],
) -> Result<(Vec<Segment>, RowSum), CompactFailure> {
    let mut sum = RowSum::new(table)?;
    let schema = Arc::clone(&sum.schema);
    let mut files = TableFiles { part, table, schema, open: None, written: Vec::new() };
    for run in runs {
        for segment in run.manifest.segments_of(table) {
            run::verify(&run.folder, segment).map_err(|why| {
                CompactFailure::Data(format!(
                    "{}: {why}; leave it out by moving it away, and compact again",
                    run.folder
                ))
            })?;
            read_file(&local(&run.folder)?.join(&segment.path), &mut |batch| {
                let batch = with_attributes(&batch, table, &sum.schema, &run.attributes)?;
                sum.add(&batch)?;
                files.write(&batch)
            })?;
        }
    }
    files.close()?;
    Ok((files.written, sum))
}

/// The files of a table as they are written.
struct TableFiles<'a> {
    part: &'a Path,
    table: StoredTable,
    schema: SchemaRef,
    open: Option<(ArrowWriter<File>, String, u64)>,
    written: Vec<Segment>,
}

impl TableFiles<'_> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), CompactFailure> {
        if self.open.is_none() {
            let folder = self.part.join(self.table.name());
            if self.written.is_empty() {
                fs::create_dir(&folder).map_err(|e| CompactFailure::Output(folder.clone(), e))?;
            }
            let name = format!("{}/{:06}.parquet", self.table.name(), self.written.len() + 1);
            let path = self.part.join(&name);
            let file =
                File::create_new(&path).map_err(|e| CompactFailure::Output(path.clone(), e))?;
            let properties = WriterProperties::builder()
                .set_compression(Compression::ZSTD(ZstdLevel::default()))
                .set_max_row_group_row_count(Some(GROUP_ROWS))
                .set_statistics_enabled(EnabledStatistics::Chunk)
                .build();
            let writer = ArrowWriter::try_new(file, Arc::clone(&self.schema), Some(properties));
            self.open = Some((writer.map_err(|e| of_parquet(&path, e))?, name, 0));
        }
        let Some((writer, name, rows)) = &mut self.open else { return Ok(()) };
        writer.write(batch).map_err(|e| of_parquet(&self.part.join(&*name), e))?;
        *rows += batch.num_rows() as u64;
        if *rows >= FILE_ROWS { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), CompactFailure> {
        let Some((writer, name, rows)) = self.open.take() else { return Ok(()) };
        let path = self.part.join(&name);
        let file = writer.into_inner().map_err(|e| of_parquet(&path, e))?;
        file.sync_all().map_err(|e| CompactFailure::Output(path.clone(), e))?;
        drop(file);
        let (bytes, crc32) =
            checksum(&path).map_err(|e| CompactFailure::Output(path.clone(), e))?;
        self.written.push(Segment { path: name, rows, bytes, crc32 });
        let folder = self.part.join(self.table.name());
        File::open(&folder)
            .and_then(|f| f.sync_all())
            .map_err(|e| CompactFailure::Output(folder, e))
    }
}

fn checksum(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut block = vec![0; 256 << 10];
    let mut bytes = 0;
    loop {
        match io::Read::read(&mut file, &mut block)? {
            0 => return Ok((bytes, hasher.finalize())),
            n => {
                hasher.update(&block[..n]);
                bytes += n as u64;
            }
        }
    }
}

fn of_parquet(path: &Path, error: datafusion::parquet::errors::ParquetError) -> CompactFailure {
    use datafusion::parquet::errors::ParquetError;
    let error = match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    };
    CompactFailure::Output(path.to_owned(), error)
}

/// Passes on the batches of a file.
fn read_file(
    path: &Path,
    each: &mut dyn FnMut(RecordBatch) -> Result<(), CompactFailure>,
) -> Result<(), CompactFailure> {
    let damaged = |e: &dyn std::fmt::Display| {
        CompactFailure::Data(format!("{}: cannot be read: {e}", path.display()))
    };
    let file = File::open(path).map_err(|e| damaged(&e))?;
    let batches = ParquetRecordBatchReaderBuilder::try_new(file)
        .and_then(|b| b.with_batch_size(64 << 10).build());
    for batch in batches.map_err(|e| damaged(&e))? {
        each(batch.map_err(|e| damaged(&e))?)?;
    }
    Ok(())
}

/// A batch of a run with all columns of its table, and those of its run.
fn with_attributes(
    batch: &RecordBatch,
    table: StoredTable,
    schema: &SchemaRef,
    run: &RunAttributes,
) -> Result<RecordBatch, CompactFailure> {
    let of_table = schema::columns(table, TextType::Plain);
    if let Some(wrong) = disagreement(&of_table, &batch.schema()) {
        return Err(CompactFailure::Data(format!(
            "{}: {wrong}; another tool or version wrote it: move it away",
            run.run
        )));
    }
    let rows = batch.num_rows();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for field in of_table.fields() {
        columns.push(match batch.column_by_name(field.name()) {
            Some(column) => {
                cast(column, field.data_type()).map_err(|e| CompactFailure::Data(e.to_string()))?
            }
            None => new_null_array(field.data_type(), rows),
        });
    }
    for text in run.texts() {
        let said = (!text.is_empty()).then_some(text);
        columns.push(Arc::new(StringArray::from_iter(std::iter::repeat_n(said, rows))));
    }
    columns.push(Arc::new(BooleanArray::from(vec![run.emulated; rows])));
    RecordBatch::try_new(Arc::clone(schema), columns)
        .map_err(|e| CompactFailure::Data(e.to_string()))
}

/// Number and hash sum of rows, independent of order.
struct RowSum {
    schema: SchemaRef,
    rows: RowConverter,
    value: (u64, u128),
}

impl RowSum {
    fn new(table: StoredTable) -> Result<RowSum, CompactFailure> {
        let columns = schema::columns(table, TextType::Plain);
        let all: Vec<_> =
            columns.fields().iter().cloned().chain(schema::attributes(TextType::Plain)).collect();
        let schema: SchemaRef = Arc::new(Schema::new(all));
        let fields =
            schema.fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
        let rows = RowConverter::new(fields).map_err(|e| CompactFailure::Data(e.to_string()))?;
        Ok(RowSum { schema, rows, value: (0, 0) })
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<(), CompactFailure> {
        let rows = self
            .rows
            .convert_columns(batch.columns())
            .map_err(|e| CompactFailure::Data(e.to_string()))?;
        for row in &rows {
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(row.as_ref());
            self.value.0 += 1;
            self.value.1 += u128::from(hasher.finish());
        }
        Ok(())
    }
}
