//! One segment: rows to the bytes of a Parquet file, and a listed file back to batches.

use std::any::Any;
use std::fs::File;
use std::io::{Read, Seek};
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::manifest::{FORMAT_VERSION, Segment};
use crate::{Error, StoredTable};

/// Dictionaries do most of the work on these columns: on the rows of the tests, level 3 was slower
/// and its files 2 to 4 % larger.
const ZSTD_LEVEL: i32 = 1;

/// Rows that are encoded at a time. The encoder's own buffers for list columns grow with it.
const ENCODED_ROWS: usize = 1024;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 8192;

/// The bytes of a Parquet file with these columns.
pub(crate) fn encode(table: StoredTable, columns: Vec<ArrayRef>) -> ParquetResult<Vec<u8>> {
    let batch = RecordBatch::try_new(Arc::new(Schema::new(table.fields())), columns)?;
    // Metadata identifies a segment outside of its run.
    let origin = vec![
        KeyValue::new("vmtax.table".to_owned(), table.name().to_owned()),
        KeyValue::new("vmtax.format_version".to_owned(), FORMAT_VERSION.to_string()),
    ];
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_key_value_metadata(Some(origin));
    for field in batch.schema().fields() {
        if has_many_values(field) {
            let column = ColumnPath::new(vec![field.name().clone()]);
            properties = properties.set_column_dictionary_enabled(column, false);
        }
    }
    let properties = Some(properties.build());
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), properties)?;
    for first in (0..batch.num_rows()).step_by(ENCODED_ROWS) {
        writer.write(&batch.slice(first, ENCODED_ROWS.min(batch.num_rows() - first)))?;
    }
    writer.into_inner()
}

/// Whether a column's values are nearly all distinct: times and sums of squares. Dictionaries for them make the tables a sixth
/// larger and encoding a third slower.
fn has_many_values(field: &Field) -> bool {
    field.name().ends_with("_ns") || matches!(field.data_type(), DataType::Decimal128(..))
}

/// A consumer of batches, each with the number of its first row. It may want no more.
pub(crate) type EachBatch<'a> = dyn FnMut(RecordBatch, u64) -> ControlFlow<()> + 'a;

/// Passes on the batches of the listed segment at `path`. Returns how many rows were delivered, and how the file is damaged or
/// missing if it is.
pub(crate) fn read(
    path: &Path,
    listed: &Segment,
    each: &mut EachBatch<'_>,
) -> (u64, Option<String>) {
    let mut rows = 0;
    let damage = read_counting(path, listed, &mut rows, each).err();
    (rows, damage)
}

fn read_counting(
    path: &Path,
    listed: &Segment,
    rows: &mut u64,
    each: &mut EachBatch<'_>,
) -> Result<(), String> {
    let file = open_verified(path, listed)?;
    let mut batches = guarded(|| open_batches(file))?;
    while let Some(batch) = guarded(|| batches.next().transpose())? {
        let first_row = *rows;
        *rows += batch.num_rows() as u64;
        if each(batch, first_row).is_break() {
            return Ok(());
        }
    }
    if *rows == listed.rows {
        Ok(())
    } else {
        Err(format!("holds {rows} rows where run.json says {}", listed.rows))
    }
}

/// The file, if it is the listed one; else the problem.
pub(crate) fn open_verified(path: &Path, listed: &Segment) -> Result<File, String> {
    let unreadable = |e| format!("cannot be read: {e}");
    // Before opening: opening a pipe would wait for a writer. Links could lead out of the run.
    let metadata = path.symlink_metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if metadata.len() != listed.bytes {
        return Err(format!(
            "is damaged: it has {} bytes where run.json says {}",
            metadata.len(),
            listed.bytes
        ));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut block = vec![0; 128 << 10];
    loop {
        match file.read(&mut block).map_err(unreadable)? {
            0 => break,
            n => hasher.update(&block[..n]),
        }
    }
    let found = hasher.finalize();
    if found != listed.crc32 {
        return Err(format!(
            "is damaged: its checksum is {found:08x} where run.json says {:08x}",
            listed.crc32
        ));
    }
    file.rewind().map_err(unreadable)?;
    Ok(file)
}

fn open_batches(file: File) -> Result<ParquetRecordBatchReader, SegmentError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
    Ok(builder.with_batch_size(BATCH_ROWS).build()?)
}

/// An error of the Parquet or Arrow library.
type SegmentError = Box<dyn std::error::Error>;

/// Runs a part of the Parquet decoder.
///
/// Its input has the checksum that `run.json` lists, so it is what its writer intended. Against
/// a file made to break readers there is this net: parquet 60.1 panics on some contradictions
/// (`ColumnChunkMetaData::byte_range` on a negative offset, a dictionary page that is not there).
fn guarded<T, E: Into<SegmentError>>(part: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let problem = match panic::catch_unwind(AssertUnwindSafe(part)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.into().to_string(),
        Err(panic) => panic_message(&*panic),
    };
    Err(format!("has the listed checksum but is not valid Parquet: {problem}"))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the decoder gave up ({})", text.unwrap_or("no reason given"))
}

/// The manifest's entry for these bytes.
pub(crate) fn entry(path: String, rows: u64, bytes: &[u8]) -> Segment {
    Segment { path, rows, bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes) }
}

/// The columns of a batch could not be encoded.
pub(crate) fn encode_error(path: &Path) -> impl FnOnce(ParquetError) -> Error {
    move |source| Error::Encode { path: path.to_owned(), source }
}
