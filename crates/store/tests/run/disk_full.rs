//! A full disk at every point of writing a run: an error, no half-written files, and what was
//! stored before still reads.
//!
//! The disk is a tmpfs in a mount namespace of the test's own (`unshare`), so nothing has to be
//! unmounted and invisible to other processes. Where the system refuses that the test is skipped.

use std::env;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use vmtax_events::{Losses, Recording};
use vmtax_store::{Error, Run, RunWriter, SEGMENT_ROWS};

use crate::samples::{self, first_rows, options, read_events, read_rows};

const CHILD: &str = "VMTAX_STORE_TEST_FULL_DISK";
const PAGE: u64 = 4096;
const DISK_PAGES: u64 = 256;
const ROWS_PER_SEGMENT: u64 = 50;

/// Not a test of its own: runs inside the namespace that [`at_every_point`] makes.
#[test]
fn child() {
    let Some(disk) = env::var_os(CHILD).map(PathBuf::from) else { return };
    let mut most_rows = 0;
    for free_pages in 0..60 {
        let folder = disk.join("run");
        leave_free(&disk, free_pages);
        most_rows = most_rows.max(fill(&folder));
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        // The error is the same when the disk fills while the run is finished.
        finish_on_full_disk(&disk, free_pages);
    }
    assert!(most_rows > 2 * ROWS_PER_SEGMENT, "the disk was full before there was anything");
    println!("disk full: up to {most_rows} rows stored");
    let segments = [0, 1, 3, 10, DISK_PAGES - 20].map(|free| fill_buffers(&disk, free));
    assert_eq!(segments[0], 0);
    assert!(segments[4] > 0, "the disk was full before there was anything");
}

#[test]
fn at_every_point() {
    let temp = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={} none \"$0\"", DISK_PAGES * PAGE);
    // Root makes a mount namespace; others may be allowed to in a user namespace.
    let namespace = ["-m", "-rm"].into_iter().find(|flags| {
        let mut probe = Command::new("unshare");
        probe.args([flags, "sh", "-c", &mount]).arg(temp.path());
        probe.output().is_ok_and(|output| output.status.success())
    });
    let Some(flags) = namespace else {
        return vmtax_skipped::system("no tmpfs can be mounted here");
    };
    let output = Command::new("unshare")
        .args([flags, "sh", "-c", &format!("{mount} && exec \"$@\"")])
        .arg(temp.path())
        .arg(env::current_exe().unwrap())
        .args(["--exact", "disk_full::child", "--nocapture"])
        .env(CHILD, temp.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("rows stored"), "the child did not run: {said}");
}

/// Fills the disk but for so many pages.
fn leave_free(disk: &Path, pages: u64) {
    let mut ballast = File::create(disk.join("ballast")).unwrap();
    let page = [1; PAGE as usize];
    let error = std::iter::repeat_with(|| ballast.write_all(&page)).find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let full = ballast.metadata().unwrap().len();
    ballast.set_len(full - pages * PAGE).unwrap();
}

/// Writes until the disk is full. Returns how many rows of each kind were stored.
fn fill(folder: &Path) -> u64 {
    let mut writer = match RunWriter::create(folder, &options()) {
        Ok(writer) => writer,
        Err(error) => {
            assert_full(&error);
            assert!(!folder.exists(), "{:?}", samples::tree(folder));
            assert!(matches!(Run::open(folder), Err(Error::NotARun { .. })));
            return 0;
        }
    };
    let error = (0..)
        .find_map(|n| {
            let result = samples::add(&mut writer, n);
            let full = (n + 1) % ROWS_PER_SEGMENT == 0;
            result.and_then(|()| if full { writer.segment() } else { Ok(()) }).err()
        })
        .unwrap();
    assert_full(&error);
    assert!(matches!(writer.segment(), Err(Error::Failed { .. })));
    assert!(matches!(writer.exit(&samples::exit(0)), Err(Error::Failed { .. })));
    let finish = writer.finish(&Recording::default(), &Losses::default());
    assert!(matches!(finish, Err(Error::Failed { .. })));
    check(folder)
}

/// Full buffers are written on another thread, and their error comes with a later row. Returns how many were stored.
fn fill_buffers(disk: &Path, free_pages: u64) -> usize {
    let folder = disk.join("run");
    leave_free(disk, DISK_PAGES / 2);
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    leave_free(disk, free_pages);
    let error = (0..).find_map(|n| writer.exit(&samples::exit(n)).err()).unwrap();
    assert_full(&error);
    assert!(matches!(writer.exit(&samples::exit(0)), Err(Error::Failed { .. })));
    let finish = writer.finish(&Recording::default(), &Losses::default());
    assert!(matches!(finish, Err(Error::Failed { .. })));
    let run = Run::open(&folder).unwrap();
    assert!(!run.is_complete());
    let segments = run.manifest().segments.len();
    let files = samples::tree(&folder).iter().filter(|name| name.ends_with(".parquet")).count();
    assert_eq!(files, segments, "{:?}", samples::tree(&folder));
    let rows = read_rows(&folder).0.exits;
    assert_eq!(rows.len(), segments * SEGMENT_ROWS);
    assert!(rows.iter().zip(0..).all(|(row, n)| *row == samples::exit(n)));
    fs::remove_dir_all(&folder).unwrap();
    segments
}

fn finish_on_full_disk(disk: &Path, free_pages: u64) {
    let folder = disk.join("run");
    leave_free(disk, DISK_PAGES / 2);
    let mut writer = RunWriter::create(&folder, &options()).unwrap();
    for n in 0..ROWS_PER_SEGMENT {
        samples::add(&mut writer, n).unwrap();
    }
    writer.segment().unwrap();
    samples::add(&mut writer, ROWS_PER_SEGMENT).unwrap();
    let mut ballast = File::options().append(true).open(disk.join("ballast")).unwrap();
    while ballast.write_all(&[1; PAGE as usize]).is_ok() {}
    let full = ballast.metadata().unwrap().len();
    ballast.set_len(full - free_pages % 20 * PAGE).unwrap();
    match writer.finish(&Recording::default(), &Losses::default()) {
        Ok(()) => assert!(Run::open(&folder).unwrap().is_complete()),
        Err(error) => {
            assert_full(&error);
            assert_eq!(check(&folder), ROWS_PER_SEGMENT);
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

fn assert_full(error: &Error) {
    let Error::Io { path, source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::StorageFull, "{error}");
    let message = error.to_string();
    assert!(message.starts_with(path.to_str().unwrap()), "{message}");
    assert!(message.contains("free some space"), "{message}");
}

/// What is there is whole, listed and readable. Returns the rows of each kind.
fn check(folder: &Path) -> u64 {
    let run = Run::open(folder).unwrap();
    assert!(!run.is_complete());
    let listed: Vec<&str> = run.manifest().segments.iter().map(|s| s.path.as_str()).collect();
    for name in samples::tree(folder) {
        let known = name == "run.json" || listed.contains(&name.as_str());
        assert!(known || folder.join(&name).is_dir(), "{name} was left behind");
    }
    let (rows, report) = read_rows(folder);
    let n = rows.exits.len() as u64;
    assert_eq!(rows, first_rows(n));
    assert_eq!(report.damaged, 0, "{report:?}");
    assert_eq!(report.losses.notes, Vec::<String>::new());
    assert_eq!(read_events(folder).0.len() as u64, n);
    n
}
