//! A run has one writer at a time. Two processes for each command that writes are in `crates/vmtax/tests/command/locks.rs`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use vmtax_store::{Claim, Error, RunWriter, remove_empty_run};

use crate::samples::{options, tree};

const CHILD: &str = "VMTAX_STORE_TEST_HOLD";

/// Not a test of its own: the writer that has the run.
#[test]
fn child() {
    let Some(folder) = env::var_os(CHILD).map(PathBuf::from) else { return };
    let writer = RunWriter::create(&folder, &options()).unwrap();
    thread::sleep(Duration::from_secs(3600));
    drop(writer);
}

/// A busy computer stands still for seconds.
const PATIENCE: Duration = Duration::from_secs(600);

/// Does it when nobody has the run any more: children that other tests start have its lock until they are programs of their own.
fn when_free<T>(attempt: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(Error::Busy { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

fn hold(folder: &Path) -> Child {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "lock::child"])
        .env(CHILD, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !folder.join("run.json").exists() {
        assert!(Instant::now() < deadline, "the child does not start");
        thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn the_error_of_a_second_writer_names_the_first() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    let mut child = hold(&folder);
    let left = [".run.json.1-0.tmp", "exits/.000001.parquet.1-0.tmp"].map(|name| folder.join(name));
    fs::create_dir_all(folder.join("exits")).unwrap();
    left.iter().for_each(|path| fs::write(path, "half").unwrap());
    let before = tree(&folder);
    for refused in [
        RunWriter::create(&folder, &options()).map(drop),
        RunWriter::resume(&folder).map(drop),
        Claim::new(&folder).map(drop),
    ] {
        let Err(Error::Busy { holder, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!(holder.process, Some(child.id()));
        assert!(holder.command.ends_with("--exact lock::child"), "{holder:?}");
        let sentence = refused.unwrap_err().to_string();
        assert!(
            sentence.contains(&format!("is being written by process {}", child.id())),
            "{sentence}"
        );
    }
    remove_empty_run(&folder, true);
    assert_eq!(tree(&folder), before, "something of another writer's was removed");
    // SIGKILL, which it cannot do anything about.
    child.kill().unwrap();
    child.wait().unwrap();
    drop(when_free(|| RunWriter::resume(&folder)).unwrap());
    assert!(left.iter().all(|path| !path.exists()), "{:?}", tree(&folder));
    let deadline = Instant::now() + PATIENCE;
    while folder.exists() {
        // It does nothing while somebody has the lock.
        remove_empty_run(&folder, true);
        assert!(Instant::now() < deadline, "{:?}", tree(&folder));
    }
}

#[test]
fn an_unused_claim_leaves_no_folder() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    drop(Claim::new(&folder).unwrap());
    assert!(!folder.exists());
    // Existing files stay, and so do files that are added.
    fs::create_dir(&folder).unwrap();
    drop(Claim::new(&folder).unwrap());
    assert!(folder.exists());
    fs::remove_dir(&folder).unwrap();
    let claim = Claim::new(&folder).unwrap();
    fs::write(folder.join("console.txt"), "").unwrap();
    drop(claim);
    assert!(folder.join("console.txt").exists());
}

#[test]
fn a_folder_of_a_writer_that_was_killed_at_its_first_file() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(".run.json.1-0.tmp"), "{").unwrap();
    let writer = RunWriter::create(&folder, &options()).unwrap();
    assert_eq!(tree(&folder), ["run.json"]);
    drop(writer);
    fs::remove_file(folder.join("run.json")).unwrap();
    fs::write(folder.join(".notes.tmp"), "mine").unwrap();
    let again = when_free(|| RunWriter::create(&folder, &options()));
    assert!(matches!(again, Err(Error::Exists { .. })));
    assert_eq!(tree(&folder), [".notes.tmp"]);
}
