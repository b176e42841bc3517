//! Damaged runs: every damage is found and said, the rest is read, and nothing panics.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use vmtax_events::Losses;
use vmtax_store::{Error, Run, StoredTable};

use crate::samples::{
    self, Rows, edit_manifest, first_rows, list_again, read_events, read_rows, write_run,
};

const DAMAGED: &str = "exits/000002.parquet";

/// Two segments of 20 rows per table.
fn run_to_damage(temp: &Path) -> std::path::PathBuf {
    let folder = temp.join("run");
    write_run(&folder, 40, 20);
    folder
}

/// The second segment of exits is reported, and everything else is there.
fn assert_skipped(folder: &Path, how: &str) {
    let (rows, report) = read_rows(folder);
    let all = first_rows(40);
    assert_eq!(rows.exits, all.exits[..20]);
    assert_eq!((rows.accesses, rows.times), (all.accesses, all.times));
    assert_eq!((rows.samples, rows.preempted), (all.samples, all.preempted));
    assert_eq!((report.rows, report.segments, report.damaged), (180, 9, 1));
    let [sentence] = report.losses.truncated.as_slice() else { panic!("{report:?}") };
    let start = format!("{} ", folder.join(DAMAGED).display());
    assert!(sentence.starts_with(&start), "{sentence}");
    assert!(sentence.contains(how), "{sentence}");
    assert!(sentence.ends_with("; 20 rows are missing"), "{sentence}");
}

/// Every byte counts the same for the checksum, so a sample of them will do.
const STRIDE: usize = 13;

#[test]
fn flipped_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    let path = folder.join(DAMAGED);
    let good = fs::read(&path).unwrap();
    for i in (0..good.len()).step_by(STRIDE) {
        let mut bad = good.clone();
        bad[i] ^= 1 << (i % 8);
        fs::write(&path, &bad).unwrap();
        assert_skipped(&folder, "its checksum is");
    }
}

#[test]
fn truncations() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    let path = folder.join(DAMAGED);
    let good = fs::read(&path).unwrap();
    for length in (0..good.len()).step_by(STRIDE).chain(good.len() - 16..good.len()) {
        fs::write(&path, &good[..length]).unwrap();
        assert_skipped(&folder, &format!("it has {length} bytes"));
    }
    fs::write(&path, [good.as_slice(), b"x"].concat()).unwrap();
    assert_skipped(&folder, "it has");
}

#[test]
fn segments_that_are_no_files() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    let path = folder.join(DAMAGED);
    let moved = folder.join("moved");
    fs::rename(&path, &moved).unwrap();
    assert_skipped(&folder, "cannot be read: No such file");
    fs::create_dir(&path).unwrap();
    assert_skipped(&folder, "is not a regular file");
    fs::remove_dir(&path).unwrap();
    symlink(&moved, &path).unwrap();
    assert_skipped(&folder, "is not a regular file");
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_skipped(&folder, "is not a regular file");
}

#[test]
fn row_counts_that_do_not_match() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    edit_manifest(&folder, |json| {
        for entry in json["segments"].as_array_mut().unwrap() {
            if entry["path"] == DAMAGED {
                entry["rows"] = 23.into();
            }
        }
    });
    let (rows, report) = read_rows(&folder);
    assert_eq!(rows, first_rows(40));
    assert_eq!(report.damaged, 1);
    assert!(report.losses.truncated[0].contains("holds 20 rows where run.json says 23; 3 rows"));
}

/// Damage that the checksum was made to match: only a file made on purpose is like this. Tried on
/// every byte, the decoder of parquet 60.1 panics on 19 of them.
#[test]
fn flipped_bytes_under_a_matching_checksum() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 3, 3);
    for segment in ["exits/000001.parquet", "bench/000001.parquet", "events/000001.parquet"] {
        let path = folder.join(segment);
        let good = fs::read(&path).unwrap();
        let mut damaged = 0;
        for i in (0..good.len()).step_by(STRIDE) {
            let mut bad = good.clone();
            bad[i] ^= 1 << (i % 8);
            fs::write(&path, &bad).unwrap();
            list_again(&folder, segment);
            let run = Run::open(&folder).unwrap();
            let reports = [run.read(&mut Rows::default()), run.read_events(&mut |_| {}, &|_| {})];
            for report in reports {
                match report {
                    Ok(report) => damaged += report.damaged,
                    Err(Error::Value { .. } | Error::Column { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(damaged > 0);
        fs::write(&path, &good).unwrap();
        list_again(&folder, segment);
    }
}

#[test]
fn manifests_cut_anywhere() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    let path = folder.join("run.json");
    let good = fs::read(&path).unwrap();
    // The last byte is a newline after the object.
    for length in 0..good.len() - 1 {
        fs::write(&path, &good[..length]).unwrap();
        let error = Run::open(&folder).unwrap_err();
        assert!(matches!(error, Error::Manifest { .. }), "{error}");
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn manifests_with_any_byte_flipped() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    let path = folder.join("run.json");
    let good = fs::read(&path).unwrap();
    for i in 0..good.len() {
        let mut bad = good.clone();
        bad[i] ^= 1 << (i % 8);
        fs::write(&path, &bad).unwrap();
        match Run::open(&folder) {
            // Damage within a path or a checksum ends in a report.
            Ok(run) => drop(run.read(&mut Rows::default()).unwrap()),
            Err(Error::Manifest { .. } | Error::Newer { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn misleading_manifests() {
    type Edit = fn(&mut serde_json::Value);
    let cases: [(Edit, &str); 9] = [
        (|j| j["segments"][0]["path"] = "../run/exits/000001.parquet".into(), "cannot be the path"),
        (|j| j["segments"][0]["path"] = "/etc/passwd".into(), "cannot be the path"),
        (|j| j["segments"][0]["path"] = j["segments"][1]["path"].clone(), "twice"),
        (|j| j["segments"][0]["crc32"] = "+0000001".into(), "8 hex digits"),
        (|j| j["segments"][0]["bytes"] = (-1).into(), "does not describe a run"),
        (|j| j["accelerator"] = "quantum".into(), "quantum"),
        (|j| j["format_version"] = 0.into(), "format_version"),
        (|j| j["format_version"] = "1".into(), "format_version"),
        (|j| *j = serde_json::json!([1, 2]), "format_version"),
    ];
    for (edit, expected) in cases {
        let temp = tempfile::tempdir().unwrap();
        let folder = run_to_damage(temp.path());
        edit_manifest(&folder, edit);
        let error = Run::open(&folder).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with(folder.join("run.json").to_str().unwrap()), "{error}");
    }
}

#[test]
fn files_that_are_not_listed() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    for name in ["exits/000003.parquet", "events/000003.parquet"] {
        fs::copy(folder.join(DAMAGED), folder.join(name)).unwrap();
    }
    for leftover in [".run.json.tmp", "exits/.000003.parquet.tmp", "exits/notes.txt"] {
        fs::write(folder.join(leftover), "left").unwrap();
    }
    let (rows, report) = read_rows(&folder);
    assert_eq!(rows, first_rows(40));
    let note = |name: &str| {
        let folder = folder.display();
        format!("1 files in {folder} are not listed in run.json and were ignored: {name}")
    };
    assert_eq!(report.losses.notes, [note("exits/000003.parquet")]);
    assert!(report.losses.is_empty());
    let (events, report) = read_events(&folder);
    assert_eq!(events.len(), 40);
    assert_eq!(report.losses.notes, [note("events/000003.parquet")]);
}

/// Times without exits would read as a VM that never left its guest.
#[test]
fn exits_that_are_not_listed_although_times_are() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    edit_manifest(&folder, |json| {
        let segments = json["segments"].as_array_mut().unwrap();
        segments.retain(|segment| !segment["path"].as_str().unwrap().starts_with("exits/"));
    });
    let (rows, report) = read_rows(&folder);
    assert!(rows.exits.is_empty() && !rows.times.is_empty());
    assert!(!report.losses.is_empty());
    let folder = folder.display();
    assert_eq!(
        report.losses.missing,
        [format!(
            "{folder} has times or accesses of vCPUs and no exits: its exits segment is missing, or kvm_exit was not recorded."
        )]
    );
}

#[test]
fn tables_of_a_later_version() {
    let temp = tempfile::tempdir().unwrap();
    let folder = run_to_damage(temp.path());
    edit_manifest(&folder, |json| {
        let later = serde_json::json!(
            {"path": "later/000001.parquet", "rows": 1, "bytes": 1, "crc32": "00000000"});
        json["segments"].as_array_mut().unwrap().push(later);
        json["host_facts"] = serde_json::json!({"smt": true});
    });
    let (rows, report) = read_rows(&folder);
    assert_eq!(rows, first_rows(40));
    let expected = Losses {
        notes: vec![format!(
            "1 segments of {} are of kinds that this vmtax does not read",
            folder.display()
        )],
        ..Losses::default()
    };
    assert_eq!(report.losses, expected);
    assert_eq!(samples::read_events(&folder).1.losses, Losses::default());
}

/// A table that is large is decoded on a thread of its own.
#[test]
fn a_damaged_segment_of_a_large_table() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 60_000, 1_000);
    let bytes = Run::open(&folder).unwrap().bytes_of(StoredTable::Exits);
    assert!(bytes > 1 << 20, "{bytes} bytes are not large");
    let path = folder.join(DAMAGED);
    let mut segment = fs::read(&path).unwrap();
    segment[100] ^= 1;
    fs::write(&path, &segment).unwrap();
    let (rows, report) = read_rows(&folder);
    let mut all = first_rows(60_000);
    all.exits.drain(1_000..2_000);
    assert!(rows == all, "other rows");
    assert_eq!((report.rows, report.segments, report.damaged), (299_000, 299, 1));
    let [sentence] = report.losses.truncated.as_slice() else { panic!("{report:?}") };
    assert!(sentence.ends_with("; 1000 rows are missing"), "{sentence}");
}
