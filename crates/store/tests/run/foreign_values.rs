//! Intact segments with something in them that this version does not know: an error that names
//! file, row, column and value.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::{ArrayRef, Decimal128Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use vmtax_store::{Run, StoredTable};

use crate::samples::{Rows, first_rows, list_again, read_rows, write_run};

/// Writes a segment again with other columns.
fn rewrite(folder: &Path, segment: &str, change: impl FnOnce(&mut Vec<(String, ArrayRef)>)) {
    let path = folder.join(segment);
    let file = File::open(&path).unwrap();
    let mut batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batch = batches.next().unwrap().unwrap();
    let schema = batch.schema();
    let names = schema.fields().iter().map(|f| f.name().clone());
    let mut columns = names.zip(batch.columns().iter().cloned()).collect();
    change(&mut columns);
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)));
    let batch = batch.unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    fs::write(&path, writer.into_inner().unwrap()).unwrap();
    list_again(folder, segment);
}

/// Writes a segment again with this column instead of its own, or without it.
fn replace(folder: &Path, segment: &str, column: &str, with: Option<ArrayRef>) {
    rewrite(folder, segment, |columns| match with {
        Some(array) => columns.iter_mut().find(|(name, _)| name == column).unwrap().1 = array,
        None => columns.retain(|(name, _)| name != column),
    });
}

fn words(words: [Option<&str>; 3]) -> Option<ArrayRef> {
    Some(Arc::new(StringArray::from(words.to_vec())))
}

fn numbers(numbers: [Option<u64>; 3]) -> Option<ArrayRef> {
    Some(Arc::new(UInt64Array::from(numbers.to_vec())))
}

fn squares(squares: [i128; 3]) -> Option<ArrayRef> {
    let squares = Decimal128Array::from(squares.to_vec());
    Some(Arc::new(squares.with_precision_and_scale(38, 0).unwrap()))
}

fn histograms(buckets: usize) -> Option<ArrayRef> {
    let mut hist = ListBuilder::new(UInt64Builder::new());
    for _ in 0..3 {
        hist.values().append_slice(&vec![1; buckets]);
        hist.append(true);
    }
    Some(Arc::new(hist.finish()))
}

const EXITS: &str = "exits/000001.parquet";
const BENCH: &str = "bench/000001.parquet";
const EVENTS: &str = "events/000001.parquet";

#[test]
fn unknown_words_in_columns_are_rejected_by_name() {
    let cases = [
        (EXITS, "level", words([Some("L1"), Some("L1"), Some("L3")]), "row 2", "\"L3\""),
        (EXITS, "isa", words([Some("arm\n"), None, None]), "row 1", "is null"),
        (EXITS, "isa", words([Some("arm\n"); 3]), "row 0", "\"arm\\n\""),
        (EXITS, "detail_kind", words([Some("none"), Some("dma"), None]), "row 2", "is null"),
        (EXITS, "outcome", words([Some("kernel"), Some("lost"), Some("l1")]), "row 1", "\"lost\""),
        (EXITS, "ancillary_isa", words([None, Some("svm"), None]), "row 1", "column ancillary_of"),
        (EXITS, "count", None, "column count", "is missing"),
        (EXITS, "count", words([Some("1"); 3]), "column count", "Utf8"),
        (EXITS, "count", numbers([Some(1), None, Some(1)]), "row 1", "is null"),
        (EXITS, "hist", histograms(41), "row 0", "41 powers of 2"),
        (EXITS, "hist", numbers([Some(1); 3]), "column hist", "UInt64"),
        (EXITS, "bins_ns", histograms(300), "row 0", "counts of 300 bins"),
        (EXITS, "bin_counts", None, "column bin_counts", "is missing"),
        (EXITS, "bin_counts", histograms(7), "row 0", "7 counts of"),
        (EXITS, "sum_sq", squares([1, -1, 1]), "row 1", "-1 is negative"),
        (EXITS, "vm", Some(Arc::new(UInt32Array::from(vec![None; 3]))), "row 0", "is null"),
        ("accesses/000001.parquet", "level", words([Some("L0"); 3]), "row 0", "\"L0\""),
        ("time/000001.parquet", "halted_ns", None, "column halted_ns", "is missing"),
        ("time/000001.parquet", "l2_ns", numbers([Some(1), None, Some(1)]), "row 1", "is null"),
        (BENCH, "better", words([Some("lower"), Some("best"), None]), "row 2", "is null"),
        (
            BENCH,
            "better",
            words([Some("lower"), Some("best"), Some("higher")]),
            "row 1",
            "\"best\"",
        ),
        (BENCH, "workload", None, "column workload", "is missing"),
        (BENCH, "value", numbers([Some(1); 3]), "column value", "UInt64"),
        (BENCH, "metric", words([None; 3]), "row 0", "is null"),
        (EVENTS, "kind", words([Some("entry"), Some("teleport"), None]), "row 2", "is null"),
        (EVENTS, "kind", words([Some("entry"), Some("teleport"), Some("entry")]), "row 1", "tele"),
        (EVENTS, "kind", words([Some("exit"); 3]), "row 0", "reason: is null for exit"),
        (EVENTS, "kind", words([Some("lost"); 3]), "row 0", "column a: is null for lost"),
        (EVENTS, "kind", words([Some("userspace-exit"); 3]), "row 0", "errno: is null"),
    ];
    for (segment, column, with, place, problem) in cases {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("run");
        write_run(&folder, 3, 3);
        replace(&folder, segment, column, with);
        let error = read_error(&folder);
        assert!(error.starts_with(folder.join(segment).to_str().unwrap()), "{error}");
        assert!(error.contains(place) && error.contains(problem), "{column}: {error}");
        assert!(error.contains("newer vmtax"), "{error}");
    }
}

/// A table that is large is decoded on a thread of its own, which ends when its rows are refused.
#[test]
fn an_unknown_word_in_a_large_table() {
    const SEGMENT: &str = "exits/000003.parquet";
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 60_000, 1_000);
    let words = StringArray::from(vec!["L3"; 1_000]);
    replace(&folder, SEGMENT, "level", Some(Arc::new(words)));
    assert!(Run::open(&folder).unwrap().bytes_of(StoredTable::Exits) > 1 << 20);
    let error = read_error(&folder);
    assert!(error.starts_with(folder.join(SEGMENT).to_str().unwrap()), "{error}");
    assert!(error.contains("row 0") && error.contains("\"L3\""), "{error}");
}

#[test]
fn too_large_numbers_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 3, 3);
    replace(&folder, EVENTS, "kind", words([Some("cr-read"); 3]));
    replace(&folder, EVENTS, "a", numbers([Some(255), Some(256), Some(0)]));
    replace(&folder, EVENTS, "b", numbers([Some(u64::MAX); 3]));
    let error = read_error(&folder);
    assert!(error.contains("row 1") && error.contains("256 is too large for cr-read"), "{error}");
}

#[test]
fn columns_of_a_later_version_are_not_missed_in_an_older_run() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 3, 3);
    replace(&folder, "time/000001.parquet", "l2_ns", None);
    let mut expected = first_rows(3);
    expected.times.iter_mut().for_each(|time| time.l2_ns = 0);
    assert_eq!(read_rows(&folder).0, expected);
}

#[test]
fn columns_may_be_added_and_moved() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 3, 3);
    rewrite(&folder, EXITS, |columns| {
        columns.reverse();
        columns.push(("of_a_later_version".to_owned(), words([None; 3]).unwrap()));
    });
    assert_eq!(read_rows(&folder).0, first_rows(3));
}

fn read_error(folder: &Path) -> String {
    let run = Run::open(folder).unwrap();
    let rows = run.read(&mut Rows::default()).err();
    let events = run.read_events(&mut |_| {}, &|_| {}).err();
    rows.or(events).unwrap().to_string()
}
