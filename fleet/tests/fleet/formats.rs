//! The formats of rows, and names that would do something.

use std::fs;

use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::json;

use crate::recorded::{NESTED, PLAIN, SaidRun, import, rows, run, stderr};

const HOSTILE: &str = "\u{1b}]0;x\u{7}<script>alert(1)</script>=1\u{202e}";

#[test]
fn every_format_has_the_rows_and_names_do_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let labels = [("<b>\u{1b}[31m", "=cmd()")];
    let counted = import(
        NESTED,
        &folder.path().join("run"),
        SaidRun { host: HOSTILE, labels: &labels, ..PLAIN },
    );
    let exits: u64 = counted.exits.iter().map(|row| row.tally.count).sum();
    let sql =
        "SELECT host AS \"\u{1b}[1mhost\", labels, sum(count) AS exits FROM exits GROUP BY 1, 2";
    for format in ["text", "csv", "html"] {
        let output = run(folder.path(), &["query", sql, "run", "--format", format]);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(text.contains(&exits.to_string()), "{format}: {text}");
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{202e}') && !text.contains('\u{7}'),
            "{format}"
        );
        assert!(
            format != "html" || !text.contains("<script>alert") && !text.contains("<b>"),
            "{format}"
        );
    }
    // For programs it is as it is; JSON escapes what a terminal would act on.
    assert_eq!(
        rows(folder.path(), &[sql, "run"]),
        [[json!(HOSTILE), json!("<b>%1B[31m=%3Dcmd()"), json!(exits)]]
    );
}

#[test]
fn parquet_is_a_file_with_types_that_appears_whole() {
    let folder = tempfile::tempdir().unwrap();
    let counted = import(NESTED, &folder.path().join("run"), PLAIN);
    let output = run(
        folder.path(),
        &["query", "SELECT * FROM exits", "run", "--format", "parquet", "-o", "all.parquet"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let file = fs::File::open(folder.path().join("all.parquet")).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let rows = reader.metadata().file_metadata().num_rows();
    assert_eq!(rows, counted.exits.len() as i64);
    assert_eq!(
        reader.schema().field_with_name("emulated").unwrap().data_type().to_string(),
        "Boolean"
    );
    // An error half-way leaves what was there.
    let output = run(
        folder.path(),
        &["query", "SELECT 1 / (count - count) FROM exits", "run", "-o", "all.parquet"],
    );
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(fs::metadata(folder.path().join("all.parquet")).unwrap().len() > 1000);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn no_rows_are_no_rows_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    import(NESTED, &folder.path().join("run"), PLAIN);
    let sql = "SELECT run, count FROM exits WHERE host = 'nobody'";
    assert!(rows(folder.path(), &[sql, "run"]).is_empty());
    for (format, expected) in [("csv", "run,count\r\n"), ("text", "  run  count\n0 rows.\n")] {
        let output = run(folder.path(), &["query", sql, "run", "--format", format]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", stderr(&output));
    }
}
