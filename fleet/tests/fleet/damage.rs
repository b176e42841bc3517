//! Runs that cannot be asked, and files that are not what they should be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

use crate::recorded::{
    NESTED, PLAIN, SaidRun, import, program, refuses, rows, rows_of, run, stderr,
};

pub(crate) const COUNT: &str =
    "SELECT run, count(*) AS rows, sum(count) AS exits FROM exits GROUP BY run ORDER BY run";

/// A good run and another that something is done to.
fn two(folder: &Path) {
    import(NESTED, &folder.join("tree/bad"), SaidRun { host: "bad", ..PLAIN });
    import(NESTED, &folder.join("tree/good"), PLAIN);
}

/// The good run alone is asked, and the other is named with this reason.
fn only_good(folder: &Path, why: &str) {
    for sql in [COUNT, "SELECT run, count(hist), sum(time_ns) FROM exits GROUP BY run"] {
        let output = run(folder, &["query", sql, "tree", "--format", "json"]);
        let said = stderr(&output);
        assert!(output.status.success(), "{why}: {said}");
        let rows = rows_of(&output);
        assert!(rows.len() == 1 && rows[0][0] == "good", "{why}: {rows:?}");
        assert!(
            said.contains("1 run or folder was left out")
                && said.contains("tree/bad: ")
                && said.contains(why),
            "{said}"
        );
    }
}

/// A change to a run, and the expected message.
type RunDamage<'a> = (&'a dyn Fn(&Path), &'a str);

fn segment(run: &Path) -> std::path::PathBuf {
    run.join("exits/000001.parquet")
}

#[test]
fn damaged_runs_are_left_out_and_named() {
    let damages: [RunDamage<'_>; 7] = [
        (
            &|run| {
                let bytes = fs::read(segment(run)).unwrap();
                fs::write(segment(run), &bytes[..bytes.len() / 2]).unwrap();
            },
            "bytes where run.json says",
        ),
        (&|run| fs::remove_file(segment(run)).unwrap(), "exits/000001.parquet is missing"),
        (
            &|run| fs::write(run.join("run.json"), "{\"format_version\"").unwrap(),
            "its run.json is not JSON",
        ),
        (
            &|run| replace(run, "\"format_version\": 1", "\"format_version\": 99"),
            "is of format version 99",
        ),
        (&|run| replace(run, "\"complete\": true", "\"complete\": false"), "was never finished"),
        // Of the same size, it is found out when it is decoded.
        (
            &|run| {
                let len = fs::metadata(segment(run)).unwrap().len();
                fs::write(segment(run), vec![7; len as usize]).unwrap();
            },
            "has checksum",
        ),
        (
            &|run| {
                let mut bytes = fs::read(segment(run)).unwrap();
                let end = bytes.len() - 8 - 100;
                bytes[4..end].fill(0x55);
                fs::write(segment(run), bytes).unwrap();
            },
            "has checksum",
        ),
    ];
    for (damage, why) in damages {
        let folder = tempfile::tempdir().unwrap();
        two(folder.path());
        damage(&folder.path().join("tree/bad"));
        only_good(folder.path(), why);
    }
}

fn replace(run: &Path, from: &str, to: &str) {
    let path = run.join("run.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from));
    fs::write(path, text.replace(from, to)).unwrap();
}

/// One flipped bit in a page need not stop a decoder: --verify compares checksums first.
#[test]
fn verify_finds_a_flipped_bit() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    let path = segment(&folder.path().join("tree/bad"));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let output = run(folder.path(), &["query", "--verify", COUNT, "tree", "--format", "json"]);
    assert!(
        output.status.success() && stderr(&output).contains("has checksum"),
        "{}",
        stderr(&output)
    );
    assert_eq!(rows_of(&output).len(), 1);
}

/// Rewrites a segment with other columns, and lists it as it is now.
fn rewrite(run: &Path, change: &dyn Fn(&RecordBatch) -> RecordBatch) {
    let path = segment(run);
    let builder = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(&path).unwrap()).unwrap();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(|b| change(&b.unwrap())).collect();
    let mut writer = ArrowWriter::try_new(Vec::new(), batches[0].schema(), None).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    let bytes = writer.into_inner().unwrap();
    fs::write(&path, &bytes).unwrap();
    let manifest = run.join("run.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let listed = json["segments"].as_array_mut().unwrap();
    let entry = listed.iter_mut().find(|s| s["path"] == "exits/000001.parquet").unwrap();
    entry["bytes"] = json!(bytes.len());
    entry["crc32"] = json!(format!("{:08x}", crc32fast::hash(&bytes)));
    fs::write(manifest, json.to_string()).unwrap();
}

#[test]
fn a_column_that_an_older_run_lacks_is_null() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    rewrite(&folder.path().join("tree/bad"), &|batch| {
        let schema = batch.schema();
        let keep: Vec<usize> = (0..schema.fields().len())
            .filter(|&i| {
                !["outcome", "hist", "ancillary_of"].contains(&schema.field(i).name().as_str())
            })
            .collect();
        batch.project(&keep).unwrap()
    });
    let sql = "SELECT run, count(*) = count(count), count(outcome) = 0, count(hist) = 0 FROM exits GROUP BY run ORDER BY run";
    assert_eq!(
        json!(rows(folder.path(), &[sql, "tree"])),
        json!([["bad", true, true, true], ["good", true, false, false]])
    );
    let both = rows(folder.path(), &[COUNT, "tree"]);
    assert_eq!(both[0][1..], both[1][1..]);
}

/// Another tool wrote the counts of this run as texts.
pub(crate) fn counts_as_text(run: &Path) {
    rewrite(run, &|batch| {
        let text: ArrayRef = cast(batch.column_by_name("count").unwrap(), &DataType::Utf8).unwrap();
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            (
                field.name().clone(),
                if field.name() == "count" { Arc::clone(&text) } else { Arc::clone(column) },
            )
        });
        RecordBatch::try_from_iter(columns.collect::<Vec<_>>()).unwrap()
    });
}

#[test]
fn a_column_of_another_type_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    counts_as_text(&folder.path().join("tree/bad"));
    let words =
        ["tree/bad/exits/000001.parquet", "column count is Utf8", "UInt64", "leave its run out"];
    refuses(folder.path(), &["query", COUNT, "tree"], 4, &words);
    refuses(folder.path(), &["compact", "tree"], 4, &["bad: its column count is Utf8"]);
    assert!(!folder.path().join("tree/compacted/date=2026-01-01").exists());
    // Who does not ask that run is not stopped by it.
    rows(folder.path(), &["SELECT sum(count) FROM exits WHERE host = 'h'", "tree"]);
}

#[test]
fn a_file_of_something_else_has_no_values() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    rewrite(&folder.path().join("tree/bad"), &|_| {
        let column: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
        RecordBatch::try_from_iter([("something", column)]).unwrap()
    });
    // No column is known: all are null, as for any older run.
    let sql = "SELECT count(*) > 0, count(count) FROM exits WHERE run = 'bad'";
    assert_eq!(rows(folder.path(), &[sql, "tree"]), [[json!(true), json!(0)]]);
}

#[test]
fn paths_that_cannot_be_queried() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let ask = |path: &'static str| ["query", "SELECT 1", path];
    refuses(folder.path(), &ask("nowhere"), 3, &["nowhere: there is no such file or folder"]);
    refuses(folder.path(), &ask("file"), 3, &["file: is a file; name the folder"]);
    refuses(folder.path(), &ask("empty"), 4, &["empty: there is no run in it"]);
    refuses(folder.path(), &["query", "SELECT 1"], 2, &["there are no runs to ask"]);
    refuses(folder.path(), &["query"], 2, &["there is nothing to ask"]);
    two(folder.path());
    refuses(folder.path(), &["query", "SELEC", "tree"], 2, &["the SQL cannot be asked"]);
    refuses(
        folder.path(),
        &["query", "SELECT x FROM exits", "tree"],
        2,
        &["the SQL cannot be asked", "x"],
    );
    refuses(
        folder.path(),
        &["query", COUNT, "tree", "-o", "no/where"],
        5,
        &["there is no folder no"],
    );
    refuses(folder.path(), &["query", COUNT, "tree", "--memory", "1"], 2, &["at least 16M"]);
}

#[test]
fn closed_folders_are_named() {
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    let close = |path: &str, mode| {
        fs::set_permissions(folder.path().join(path), fs::Permissions::from_mode(mode)).unwrap()
    };
    // A private run, in a tree that others may read.
    for path in ["", "tree", "tree/good", "tree/good/exits"] {
        close(path, 0o755);
    }
    close("tree/good/run.json", 0o644);
    for entry in fs::read_dir(folder.path().join("tree/good")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            fs::read_dir(&path).unwrap().for_each(|file| {
                fs::set_permissions(file.unwrap().path(), fs::Permissions::from_mode(0o644))
                    .unwrap()
            });
        }
    }
    // Root may look everywhere, and its programs need not be where others may.
    let nobody = |args: &[&str]| {
        let copy = folder.path().join("program");
        if !copy.exists() {
            assert!(
                std::process::Command::new("cp")
                    .arg(env!("CARGO_BIN_EXE_vmtax-fleet"))
                    .arg(&copy)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let mut command = std::process::Command::new(copy);
        command.args(args).current_dir(folder.path());
        if rustix_is_root() {
            command.uid(65534).gid(65534);
        }
        command.output().unwrap()
    };
    let output = nobody(&["query", "SELECT run FROM runs", "tree", "--format", "csv"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "run\r\ngood\r\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("tree/bad"), "{}", stderr(&output));
    let output = nobody(&["query", "SELECT run FROM runs", "tree/bad", "--format", "csv"]);
    assert!(matches!(output.status.code(), Some(3 | 4)), "{}", stderr(&output));
    close("tree", 0o700);
    let output = nobody(&["query", "SELECT run FROM runs", "tree"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("tree: you may not look into it"), "{}", stderr(&output));
}

fn rustix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn a_closed_pipe_is_success() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    let mut child = program(folder.path());
    child.args(["query", "SELECT * FROM exits a, range(1000) b", "tree", "--format", "csv"]);
    let mut child = child
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

/// More than it may hold goes to the disk, and nothing of that stays.
#[test]
fn low_memory_spills_or_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    fs::create_dir(folder.path().join("tmp")).unwrap();
    let sql = "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY e.time_ns, r.value) AS n FROM events e, range(40) r)";
    let mut command = program(folder.path());
    command.env("TMPDIR", folder.path().join("tmp")).args([
        "query",
        "--memory",
        "32M",
        "--threads",
        "2",
        sql,
        "tree",
        "--format",
        "csv",
    ]);
    let output = command.output().unwrap();
    let events =
        rows(folder.path(), &["SELECT count(*) * 40 FROM events", "tree"])[0][0].as_u64().unwrap();
    match output.status.code() {
        Some(0) => assert!(String::from_utf8_lossy(&output.stdout).contains(&events.to_string())),
        Some(1) => {
            assert!(stderr(&output).contains("give it more with --memory"), "{}", stderr(&output))
        }
        other => panic!("{other:?}: {}", stderr(&output)),
    }
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn the_document_lists_every_exit_code() {
    let document = include_str!("../../../docs/commands.md");
    let codes = [(1, "unexpected"), (2, "usage"), (3, "input"), (4, "data"), (5, "output")];
    for (code, word) in codes {
        assert!(document.contains(&format!("| {code} | {word} |")), "{word}");
    }
}
