//! Bytes as the `run.json` of a folder that holds nothing else.
//!
//! The manifest is read from a file and has no other entrance, so each input is written to one. Whatever
//! it lists, nothing outside the folder is read: every listed segment must come back as damaged.
#![no_main]

use std::fs;
use std::sync::OnceLock;

use tempfile::TempDir;
use vmtax_events::{AccessRow, ExitRow, RowSink, TimeRow};
use vmtax_store::{MANIFEST, Run};

struct NoRows;

impl RowSink for NoRows {
    fn exit(&mut self, row: &ExitRow) {
        panic!("a row out of nothing: {row:?}");
    }

    fn access(&mut self, row: &AccessRow) {
        panic!("a row out of nothing: {row:?}");
    }

    fn time(&mut self, row: &TimeRow) {
        panic!("a row out of nothing: {row:?}");
    }
}

fn folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        memory.expect("a folder for temporary files")
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = folder().path();
    fs::write(folder.join(MANIFEST), data).expect("the temporary folder can be written");
    let run = match Run::open(folder) {
        Ok(run) => run,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let report = run.read(&mut NoRows).expect("an absent segment is a loss, not an error");
    assert_eq!((report.rows, report.segments), (0, 0), "{report:?}");
    assert!(run.is_complete() || !report.losses.truncated.is_empty(), "{report:?}");
    let events = run.read_events(&mut |events| panic!("events out of nothing: {events:?}"), &|_| {});
    let events = events.expect("an absent segment is a loss, not an error");
    assert_eq!((events.rows, events.segments), (0, 0), "{events:?}");
});
