//! A run whose writer was killed holds every row up to some point, and says that it is incomplete.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use vmtax_store::{Error, Run, RunWriter};

use crate::samples::{self, first_rows, options, read_events, read_rows};

const CHILD: &str = "VMTAX_STORE_TEST_WRITE_FOREVER";
const ROWS_PER_SEGMENT: u64 = 20;

/// Not a test of its own: what [`writers_killed_at_many_moments`] kills.
#[test]
fn child() {
    let Some(folder) = env::var_os(CHILD) else { return };
    let mut writer = RunWriter::create(&PathBuf::from(folder), &options()).unwrap();
    for n in 0.. {
        samples::add(&mut writer, n).unwrap();
        if (n + 1) % ROWS_PER_SEGMENT == 0 {
            writer.segment().unwrap();
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL; an error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_forever(folder: &Path) -> Killed {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture"])
        .env(CHILD, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Killed(child)
}

#[test]
fn writers_killed_at_many_moments() {
    let temp = tempfile::tempdir().unwrap();
    let mut most_rows = 0;
    for moment in 0..40u64 {
        let folder = temp.path().join(moment.to_string());
        let mut writer = write_forever(&folder);
        let deadline = Instant::now() + Duration::from_secs(600);
        // However slow the machine is, some have come further than others.
        let begun = match moment % 4 {
            0 => folder.join("run.json"),
            segments => folder.join(format!("exits/{segments:06}.parquet")),
        };
        while moment > 0 && !begun.exists() {
            assert!(Instant::now() < deadline, "the child does not start");
            if writer.0.try_wait().unwrap().is_some() {
                let mut said = String::new();
                writer.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the child failed: {said}");
            }
            thread::sleep(Duration::from_millis(1));
        }
        // Primes spread the moments over what a commit does; it takes a few milliseconds.
        thread::sleep(Duration::from_micros(moment * 3_701 % 60_000));
        drop(writer);
        most_rows = most_rows.max(check(&folder, moment));
    }
    assert!(most_rows > ROWS_PER_SEGMENT, "no writer came far enough to be killed in the middle");
}

/// The number of rows that the run holds.
fn check(folder: &Path, moment: u64) -> u64 {
    let run = match Run::open(folder) {
        Ok(run) => run,
        // Killed before there was anything.
        Err(Error::NotARun { .. }) if moment == 0 => return 0,
        Err(error) => panic!("{error}"),
    };
    assert!(!run.is_complete());
    let (rows, report) = read_rows(folder);
    let n = rows.exits.len() as u64;
    assert_eq!(rows, first_rows(n));
    assert_eq!(n % ROWS_PER_SEGMENT, 0);
    assert_eq!(report.damaged, 0, "{report:?}");
    assert_eq!(report.rows, 5 * n);
    assert_eq!(report.losses.truncated.len(), 1, "{report:?}");
    let (events, report) = read_events(folder);
    assert_eq!(events, (0..n).map(samples::event).collect::<Vec<_>>());
    assert_eq!(report.damaged, 0, "{report:?}");
    n
}
